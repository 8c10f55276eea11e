//! Rows of the table `manifest`: user, command, machine, time, and the end of the run.

use std::collections::BTreeMap;

use pagelab_model::run::{ClockReading, Manifest, RunEnd};
use serde::Serialize;
use serde::de::DeserializeOwned;

const KEY_KIND: &str = "kind";
const KEY_TOOL_VERSION: &str = "tool_version";
const KEY_COMMAND_LINE: &str = "command_line";
const KEY_SEED: &str = "seed";
const KEY_REALTIME: &str = "started_realtime_ns";
const KEY_BOOTTIME: &str = "started_boottime_ns";
const KEY_MACHINE: &str = "machine";
const KEY_SETTINGS: &str = "settings";
const KEY_ENDING: &str = "ending";
const KEY_ENDED_AFTER: &str = "ended_after_ns";
const KEY_ENDED_WHY: &str = "ended_why";

/// The rows that a close adds.
pub(crate) const ENDING_KEYS: [&str; 3] = [KEY_ENDING, KEY_ENDED_AFTER, KEY_ENDED_WHY];

const ENDING_COMPLETE: &str = "complete";
const ENDING_STOPPED: &str = "stopped";

/// Rows that are written before anything is measured.
pub(crate) fn manifest_rows(manifest: &Manifest) -> serde_json::Result<Vec<(&'static str, String)>> {
    let Manifest { kind, tool_version, command_line, seed, started, machine, settings } = manifest;
    let mut rows = vec![
        (KEY_KIND, kind.clone()),
        (KEY_TOOL_VERSION, tool_version.clone()),
        (KEY_COMMAND_LINE, to_json(command_line)?),
        (KEY_REALTIME, started.realtime_ns.to_string()),
        (KEY_BOOTTIME, started.boottime_ns.to_string()),
        (KEY_MACHINE, to_json(machine)?),
        (KEY_SETTINGS, to_json(settings)?),
    ];
    rows.extend(seed.map(|seed| (KEY_SEED, seed.to_string())));
    Ok(rows)
}

fn to_json(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(value)
}

/// The rows that a close adds.
pub(crate) fn ending_rows(ending: &RunEnd) -> Vec<(&'static str, String)> {
    match ending {
        RunEnd::Complete { after_ns } => {
            vec![(KEY_ENDING, ENDING_COMPLETE.to_owned()), (KEY_ENDED_AFTER, after_ns.to_string())]
        }
        RunEnd::Stopped { after_ns, reason: why } => {
            vec![
                (KEY_ENDING, ENDING_STOPPED.to_owned()),
                (KEY_ENDED_AFTER, after_ns.to_string()),
                (KEY_ENDED_WHY, why.clone()),
            ]
        }
        RunEnd::NotClosed => Vec::new(),
    }
}

/// Reads the rows; an error is a sentence.
pub(crate) struct ManifestRows(pub BTreeMap<String, String>);

impl ManifestRows {
    /// The manifest, and the keys that this reader does not know once the ending is taken too.
    pub fn take_manifest(&mut self) -> Result<Manifest, String> {
        let started = ClockReading {
            realtime_ns: self.take_number(KEY_REALTIME)?,
            boottime_ns: self.take_number(KEY_BOOTTIME)?,
        };
        Ok(Manifest {
            kind: self.take_text(KEY_KIND)?,
            tool_version: self.take_text(KEY_TOOL_VERSION)?,
            command_line: self.take_json(KEY_COMMAND_LINE)?,
            seed: if self.0.contains_key(KEY_SEED) { Some(self.take_number(KEY_SEED)?) } else { None },
            started,
            machine: self.take_json(KEY_MACHINE)?,
            settings: self.take_json(KEY_SETTINGS)?,
        })
    }

    /// End of the run.
    pub fn take_ending(&mut self) -> Result<RunEnd, String> {
        let Some(ending) = self.0.remove(KEY_ENDING) else { return Ok(RunEnd::NotClosed) };
        let after_ns = self.take_number(KEY_ENDED_AFTER)?;
        match &*ending {
            ENDING_COMPLETE => Ok(RunEnd::Complete { after_ns }),
            ENDING_STOPPED => Ok(RunEnd::Stopped { after_ns, reason: self.take_text(KEY_ENDED_WHY)? }),
            other => Err(format!("unknown end {other:?} of its run; expected `complete` or `stopped`")),
        }
    }

    fn take_text(&mut self, key: &str) -> Result<String, String> {
        self.0.remove(key).ok_or_else(|| format!("its manifest has no `{key}`"))
    }

    fn take_number(&mut self, key: &str) -> Result<u64, String> {
        let text = self.take_text(key)?;
        text.parse().map_err(|_| format!("`{key}` in its manifest is {text:?}; expected a number"))
    }

    fn take_json<T: DeserializeOwned>(&mut self, key: &str) -> Result<T, String> {
        let text = self.take_text(key)?;
        serde_json::from_str(&text).map_err(|error| format!("`{key}` in its manifest: {error}"))
    }
}
