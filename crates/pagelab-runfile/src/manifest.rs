//! The rows of the table `manifest`: who ran what where, and how it ended.

use std::collections::BTreeMap;

use pagelab_model::run::{Ending, Manifest, Moment};
use serde::Serialize;
use serde::de::DeserializeOwned;

const KIND: &str = "kind";
const TOOL_VERSION: &str = "tool_version";
const COMMAND_LINE: &str = "command_line";
const SEED: &str = "seed";
const REALTIME: &str = "started_realtime_ns";
const BOOTTIME: &str = "started_boottime_ns";
const MACHINE: &str = "machine";
const SETTINGS: &str = "settings";
const ENDING: &str = "ending";
const ENDED_AFTER: &str = "ended_after_ns";
const ENDED_WHY: &str = "ended_why";

/// The rows that a close adds.
pub(crate) const ENDING_KEYS: [&str; 3] = [ENDING, ENDED_AFTER, ENDED_WHY];

const COMPLETE: &str = "complete";
const STOPPED: &str = "stopped";

/// The rows that stand in the file before anything is measured.
pub(crate) fn rows(manifest: &Manifest) -> serde_json::Result<Vec<(&'static str, String)>> {
    let Manifest { kind, tool_version, command_line, seed, started, machine, settings } = manifest;
    let mut rows = vec![
        (KIND, kind.clone()),
        (TOOL_VERSION, tool_version.clone()),
        (COMMAND_LINE, json(command_line)?),
        (REALTIME, started.realtime_ns.to_string()),
        (BOOTTIME, started.boottime_ns.to_string()),
        (MACHINE, json(machine)?),
        (SETTINGS, json(settings)?),
    ];
    rows.extend(seed.map(|seed| (SEED, seed.to_string())));
    Ok(rows)
}

fn json(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(value)
}

/// The rows that a close adds.
pub(crate) fn of_ending(ending: &Ending) -> Vec<(&'static str, String)> {
    match ending {
        Ending::Complete { after_ns } => {
            vec![(ENDING, COMPLETE.to_owned()), (ENDED_AFTER, after_ns.to_string())]
        }
        Ending::Stopped { after_ns, why } => {
            vec![(ENDING, STOPPED.to_owned()), (ENDED_AFTER, after_ns.to_string()), (ENDED_WHY, why.clone())]
        }
        Ending::NotClosed => Vec::new(),
    }
}

/// The rows read back; what is wrong is said in words.
pub(crate) struct Rows(pub BTreeMap<String, String>);

impl Rows {
    /// The manifest, and the keys that this reader does not know once the ending is taken too.
    pub fn manifest(&mut self) -> Result<Manifest, String> {
        let started = Moment { realtime_ns: self.number(REALTIME)?, boottime_ns: self.number(BOOTTIME)? };
        Ok(Manifest {
            kind: self.text(KIND)?,
            tool_version: self.text(TOOL_VERSION)?,
            command_line: self.json(COMMAND_LINE)?,
            seed: if self.0.contains_key(SEED) { Some(self.number(SEED)?) } else { None },
            started,
            machine: self.json(MACHINE)?,
            settings: self.json(SETTINGS)?,
        })
    }

    /// How the run ended.
    pub fn ending(&mut self) -> Result<Ending, String> {
        let Some(ending) = self.0.remove(ENDING) else { return Ok(Ending::NotClosed) };
        let after_ns = self.number(ENDED_AFTER)?;
        match &*ending {
            COMPLETE => Ok(Ending::Complete { after_ns }),
            STOPPED => Ok(Ending::Stopped { after_ns, why: self.text(ENDED_WHY)? }),
            other => Err(format!("it ended as {other:?}, which is neither `complete` nor `stopped`")),
        }
    }

    fn text(&mut self, key: &str) -> Result<String, String> {
        self.0.remove(key).ok_or_else(|| format!("its manifest has no `{key}`"))
    }

    fn number(&mut self, key: &str) -> Result<u64, String> {
        let text = self.text(key)?;
        text.parse().map_err(|_| format!("`{key}` of its manifest is {text:?}, not a number"))
    }

    fn json<T: DeserializeOwned>(&mut self, key: &str) -> Result<T, String> {
        let text = self.text(key)?;
        serde_json::from_str(&text).map_err(|error| format!("`{key}` of its manifest: {error}"))
    }
}
