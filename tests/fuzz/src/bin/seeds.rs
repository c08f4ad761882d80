//! Writes recorded conversations into `fuzz/corpus/TARGET`: run it from the root of the repository when the
//! protocol or the simulator has changed.

use std::io;
use std::path::Path;

use hicached_fuzz::{TARGETS, recordings};

fn main() -> io::Result<()> {
    for (target, _) in TARGETS {
        let folder = Path::new("fuzz/corpus").join(target);
        std::fs::create_dir_all(&folder)?;
        for (name, input) in recordings(target) {
            std::fs::write(folder.join(name), input)?;
        }
    }
    Ok(())
}
