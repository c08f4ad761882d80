//! Which actors of a group a process hosts.

use std::collections::BTreeSet;

use hicached_actors::protocol::{Address, CP_SIZE_MAX, Rank};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::BusKind;

/// What one process hosts.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Actors {
    /// `all`, `control`, `index`, `allocator`, `writer`, `loader`, `evictor`, `sender`, `receiver`, `ranks`, `rank.N`.
    #[serde(deserialize_with = "list_or_text")]
    pub run: Vec<String>,
}

/// The machines that share one control incarnation.
pub const CONTROL: [Address; 7] = [
    Address::Index,
    Address::Allocator,
    Address::Writer,
    Address::Loader,
    Address::Evictor,
    Address::Sender,
    Address::Receiver,
];

impl Actors {
    /// The actors it names, of a group of `cp_size` ranks on a bus of `kind`.
    ///
    /// # Errors
    /// Every fault, each naming the key and what to change.
    pub(super) fn named(&self, cp_size: u8, kind: BusKind) -> Result<BTreeSet<Address>, Vec<String>> {
        let (mut actors, mut faults) = (BTreeSet::new(), Vec::new());
        if self.run.is_empty() {
            faults.push(format!("actors.run is empty: name {ENTRIES}"));
        }
        for entry in &self.run {
            match actors_of(entry, cp_size) {
                Ok(named) => {
                    let twice: Vec<String> = named.iter().filter(|one| actors.contains(*one)).map(name).collect();
                    if !twice.is_empty() {
                        let twice = twice.join(", ");
                        faults.push(format!("actors.run names {twice} twice: take {entry:?} or the other entry out"));
                    }
                    actors.extend(named);
                }
                Err(fault) => faults.push(fault),
            }
        }
        if kind == BusKind::Memory && faults.is_empty() && self.run != ["all"] {
            let run = &self.run;
            faults.push(format!(
                "actors.run is {run:?}: make it [\"all\"], or bus.kind \"nats\": the memory bus reaches no other process"
            ));
        }
        if faults.is_empty() { Ok(actors) } else { Err(faults) }
    }
}

fn actors_of(entry: &str, cp_size: u8) -> Result<Vec<Address>, String> {
    let ranks = || (0..cp_size).map(|rank| Address::Rank(Rank(rank)));
    match entry {
        "all" => Ok(CONTROL.into_iter().chain(ranks()).collect()),
        "control" => Ok(CONTROL.to_vec()),
        "ranks" => Ok(ranks().collect()),
        _ => match Address::parse(entry) {
            Ok(Address::Rank(rank)) if rank.0 >= cp_size && cp_size <= CP_SIZE_MAX => {
                Err(format!("actors.run names {entry}: group.cp_size is {cp_size}, ranks count from 0"))
            }
            Ok(Address::Engine) | Err(_) => Err(format!("actors.run names {entry:?}: use {ENTRIES}")),
            Ok(actor) => Ok(vec![actor]),
        },
    }
}

fn name(actor: &Address) -> String {
    actor.to_string()
}

/// A list of names; or one text with commas, which is all that the environment and a flag can write.
pub(super) fn list_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct Names;
    impl<'de> Visitor<'de> for Names {
        type Value = Vec<String>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list of names, or one text with commas")
        }
        fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
            let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
            Ok(names.map(str::to_owned).collect())
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut names = Vec::new();
            while let Some(name) = seq.next_element()? {
                names.push(name);
            }
            Ok(names)
        }
    }
    deserializer.deserialize_any(Names)
}

const ENTRIES: &str = "all, control, index, allocator, writer, loader, evictor, sender, receiver, ranks or rank.N";

#[cfg(test)]
mod tests {
    use super::*;

    fn named(run: &[&str], kind: BusKind) -> Result<Vec<String>, Vec<String>> {
        let actors = Actors { run: run.iter().map(|entry| (*entry).to_owned()).collect() };
        actors.named(2, kind).map(|all| all.iter().map(name).collect())
    }

    #[test]
    fn entries_stand_for_one_actor_or_for_several() {
        for (run, count) in [
            (&["all"][..], 9),
            (&["control"], 7),
            (&["ranks"], 2),
            (&["control", "ranks"], 9),
            (&["rank.1"], 1),
            (&["index", "loader", "rank.0"], 3),
        ] {
            assert_eq!(named(run, BusKind::Nats).expect("sound").len(), count, "{run:?}");
        }
        assert_eq!(named(&["rank.1", "evictor"], BusKind::Nats), Ok(vec!["evictor".to_owned(), "rank.1".to_owned()]));
    }

    #[test]
    fn every_fault_is_named() {
        for (run, kind, fault) in [
            (&[][..], BusKind::Nats, "is empty"),
            (&["rank.2"], BusKind::Nats, "rank.2: group.cp_size is 2"),
            (&["engine"], BusKind::Nats, "\"engine\": use all,"),
            (&["rank.x"], BusKind::Nats, "\"rank.x\": use all,"),
            (&["control", "writer"], BusKind::Nats, "names writer twice"),
            (&["index", "index"], BusKind::Nats, "names index twice"),
            (&["control", "ranks"], BusKind::Memory, "the memory bus reaches no other process"),
        ] {
            let faults = named(run, kind).expect_err("a fault");
            assert!(faults.len() == 1 && faults[0].contains(fault), "{run:?}: {faults:?}");
        }
        assert_eq!(named(&["prefetcher", "rank.7", "all", "ranks"], BusKind::Nats).expect_err("three").len(), 3);
    }
}
