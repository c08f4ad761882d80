//! Every input that was ever found, and every recorded conversation, on every build.

use std::path::Path;

use hicached_fuzz::TARGETS;

#[test]
fn every_corpus_passes_its_target() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (target, run) in TARGETS {
        let folder = corpora.join(target);
        let mut inputs: Vec<_> = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(!inputs.is_empty(), "{target} has no input");
        inputs.sort();
        for path in inputs {
            // The name is read when a target panics.
            println!("{}", path.display());
            run(&std::fs::read(&path).unwrap());
        }
    }
}

#[test]
fn every_corpus_belongs_to_a_target() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for entry in std::fs::read_dir(corpora).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(TARGETS.iter().any(|(target, _)| name == **target), "{name:?} is replayed by nothing");
    }
}
