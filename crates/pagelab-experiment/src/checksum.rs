//! Checksums of workloads: trials of the same command must compute the same result, wherever they run.

use std::collections::BTreeMap;

use pagelab_model::run::Run;

use crate::place::PlaceEvent;

/// Kind of the event with the checksum of a command; a resumed run compares with it.
pub const CHECKSUM_EVENT: &str = "checksum";

/// Checksums so far, by command.
#[derive(Clone, Debug, Default)]
pub struct ChecksumTable {
    known: BTreeMap<String, String>,
}

/// A checksum compared with those of other trials of the same command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChecksumState {
    /// The first one.
    New,
    /// The same.
    Known,
    /// Another, in a sentence.
    Differs(String),
}

impl ChecksumTable {
    /// Those of an earlier session of a run.
    pub fn from_run(run: Option<&Run>) -> ChecksumTable {
        let events = run.map_or(&[][..], |run| &run.events);
        let events = events.iter().filter(|event| event.kind == CHECKSUM_EVENT);
        let known = events.filter_map(|event| parse(&event.text));
        ChecksumTable { known: known.map(|(of, sum)| (of.to_owned(), sum.to_owned())).collect() }
    }

    /// Compares a checksum of a command, and keeps it if it is the first.
    pub fn check(&mut self, command: &str, sum: &str) -> ChecksumState {
        match self.known.get(command) {
            Some(known) if known != sum => ChecksumState::Differs(format!(
                "its checksum is {sum}, but other trials with the same options have {known}"
            )),
            Some(_) => ChecksumState::Known,
            None => {
                self.known.insert(command.to_owned(), sum.to_owned());
                ChecksumState::New
            }
        }
    }
}

/// The event of a checksum.
pub fn event(command: &str, sum: &str) -> PlaceEvent {
    PlaceEvent { kind: CHECKSUM_EVENT, text: format!("{command}: {sum}"), is_note: false }
}

/// Command and checksum in the text of an event.
pub fn parse(text: &str) -> Option<(&str, &str)> {
    text.rsplit_once(": ")
}
