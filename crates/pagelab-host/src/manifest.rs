//! What a capture says about itself: `pagelab-capture.json`, beside the files that it describes.
//!
//! The fields here are the contract in memory; the names in the file stand in the private records below,
//! so that one can change without the other. Unknown fields of a newer version are passed over.

use pagelab_model::{Absence, AbsentWhy, PageSize};
use serde::{Deserialize, Serialize};

/// The manifest's file name, at the root of a capture.
pub const MANIFEST_FILE: &str = "pagelab-capture.json";

/// The version that is written. A file with a higher one is read as far as it is understood.
pub const FORMAT_VERSION: u32 = 1;

const FORMAT: &str = "pagelab-capture";

/// What a capture says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Version of the format of the file.
    pub format_version: u32,
    /// Version of the pagelab that wrote it.
    pub tool_version: String,
    /// Base page size of the machine.
    pub page_size: Option<PageSize>,
    /// `uname -r` of the machine.
    pub kernel_release: Option<String>,
    /// `uname -m` of the machine.
    pub architecture: Option<String>,
    /// Host name; `None` unless process names were asked for.
    pub host_name: Option<String>,
    /// Effective user id of the one who captured it.
    pub euid: Option<u32>,
    /// Wall clock at the beginning, in nanoseconds since 1970, UTC.
    pub realtime_ns: Option<u64>,
    /// The same moment in nanoseconds since boot, sleep included (CLOCK_BOOTTIME).
    pub boottime_ns: Option<u64>,
    /// From the beginning to the last byte read.
    pub duration_ns: u64,
    /// Whether process names and command lines are in it.
    pub with_processes: bool,
    /// Processes with memory of their own that were there, whether or not they are in it.
    pub processes_seen: Option<u64>,
    /// What was left out or changed on purpose, one sentence each.
    pub redactions: Vec<String>,
    /// Other things that a reader should know, one sentence each.
    pub notes: Vec<String>,
    /// The files in it, in the order in which they were read.
    pub files: Vec<FileRecord>,
    /// What was wanted and is not in it; the source is the path.
    pub absent: Vec<Absence>,
}

/// One file of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRecord {
    /// The path on the machine.
    pub path: String,
    /// Bytes that the kernel gave, before redaction and compression.
    pub bytes: u64,
    /// Bytes stored.
    pub stored_bytes: u64,
    /// When reading began, in nanoseconds since boot (CLOCK_BOOTTIME).
    pub read_start_ns: u64,
    /// How long reading took.
    pub read_ns: u64,
    /// How the stored file differs from what the kernel gave; `None` if it does not.
    pub altered: Option<String>,
}

impl Manifest {
    /// Reads a manifest's text. The error names line and column, and how to do without it.
    pub fn from_json(text: &[u8]) -> Result<Manifest, String> {
        let record: ManifestRecord = serde_json::from_slice(text)
            .map_err(|error| format!("not a manifest of `pagelab capture`: {error}"))?;
        if record.format != FORMAT {
            return Err(format!("not a manifest of `pagelab capture`: its format is not {FORMAT:?}"));
        }
        record.try_into()
    }

    /// The text of the file, indented, with a newline at its end.
    pub fn to_json(&self) -> Vec<u8> {
        // Numbers, texts and lists cannot fail to be written to memory; an empty file would be told as such.
        let mut text = serde_json::to_vec_pretty(&ManifestRecord::from(self)).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// The record of the file that was at `path`.
    pub fn file(&self, path: &str) -> Option<&FileRecord> {
        self.files.iter().find(|file| file.path == path)
    }
}

#[derive(Serialize, Deserialize)]
struct ManifestRecord {
    format: String,
    format_version: u32,
    #[serde(default)]
    tool_version: String,
    page_size_bytes: Option<u64>,
    kernel_release: Option<String>,
    architecture: Option<String>,
    host_name: Option<String>,
    euid: Option<u32>,
    started_realtime_ns: Option<u64>,
    started_boottime_ns: Option<u64>,
    #[serde(default)]
    duration_ns: u64,
    #[serde(default)]
    with_processes: bool,
    processes_seen: Option<u64>,
    #[serde(default)]
    redactions: Vec<String>,
    #[serde(default)]
    notes: Vec<String>,
    #[serde(default)]
    files: Vec<FileJson>,
    #[serde(default)]
    absent: Vec<AbsentJson>,
}

#[derive(Serialize, Deserialize)]
struct FileJson {
    path: String,
    bytes: u64,
    stored_bytes: u64,
    read_start_boottime_ns: u64,
    read_ns: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    altered: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct AbsentJson {
    path: String,
    why: String,
    reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    way_out: Option<String>,
}

impl From<&Manifest> for ManifestRecord {
    fn from(manifest: &Manifest) -> ManifestRecord {
        let manifest = manifest.clone();
        let file = |file: FileRecord| FileJson {
            path: file.path,
            bytes: file.bytes,
            stored_bytes: file.stored_bytes,
            read_start_boottime_ns: file.read_start_ns,
            read_ns: file.read_ns,
            altered: file.altered,
        };
        let absent = |absence: Absence| AbsentJson {
            why: why_name(absence.why).to_owned(),
            reason: absence.reason().to_owned(),
            path: absence.source,
            way_out: absence.way_out,
        };
        ManifestRecord {
            format: FORMAT.to_owned(),
            format_version: manifest.format_version,
            tool_version: manifest.tool_version,
            page_size_bytes: manifest.page_size.map(PageSize::bytes),
            kernel_release: manifest.kernel_release,
            architecture: manifest.architecture,
            host_name: manifest.host_name,
            euid: manifest.euid,
            started_realtime_ns: manifest.realtime_ns,
            started_boottime_ns: manifest.boottime_ns,
            duration_ns: manifest.duration_ns,
            with_processes: manifest.with_processes,
            processes_seen: manifest.processes_seen,
            redactions: manifest.redactions,
            notes: manifest.notes,
            files: manifest.files.into_iter().map(file).collect(),
            absent: manifest.absent.into_iter().map(absent).collect(),
        }
    }
}

impl TryFrom<ManifestRecord> for Manifest {
    type Error = String;

    fn try_from(record: ManifestRecord) -> Result<Manifest, String> {
        let page_size = match record.page_size_bytes {
            None => None,
            Some(bytes) => {
                let size = PageSize::new(bytes);
                Some(size.ok_or_else(|| format!("page_size_bytes is {bytes}, which no machine has"))?)
            }
        };
        let file = |file: FileJson| FileRecord {
            path: file.path,
            bytes: file.bytes,
            stored_bytes: file.stored_bytes,
            read_start_ns: file.read_start_boottime_ns,
            read_ns: file.read_ns,
            altered: file.altered,
        };
        let absent = |absent: AbsentJson| {
            let mut absence = Absence::new(absent.path, why_of(&absent.why), absent.reason);
            absence.way_out = absent.way_out;
            absence
        };
        Ok(Manifest {
            format_version: record.format_version,
            tool_version: record.tool_version,
            page_size,
            kernel_release: record.kernel_release,
            architecture: record.architecture,
            host_name: record.host_name,
            euid: record.euid,
            realtime_ns: record.started_realtime_ns,
            boottime_ns: record.started_boottime_ns,
            duration_ns: record.duration_ns,
            with_processes: record.with_processes,
            processes_seen: record.processes_seen,
            redactions: record.redactions,
            notes: record.notes,
            files: record.files.into_iter().map(file).collect(),
            absent: record.absent.into_iter().map(absent).collect(),
        })
    }
}

const WHY_NAMES: [(AbsentWhy, &str); 8] = [
    (AbsentWhy::NotThere, "not_there"),
    (AbsentWhy::NotPermitted, "not_permitted"),
    (AbsentWhy::NotSaved, "not_saved"),
    (AbsentWhy::NotAsked, "not_asked"),
    (AbsentWhy::Malformed, "malformed"),
    (AbsentWhy::Moving, "moving"),
    (AbsentWhy::Undefined, "undefined"),
    (AbsentWhy::Failed, "failed"),
];

/// The name of a kind of reason in JSON.
pub fn why_name(why: AbsentWhy) -> &'static str {
    WHY_NAMES.iter().find(|(known, _)| *known == why).map_or("failed", |(_, name)| name)
}

fn why_of(name: &str) -> AbsentWhy {
    WHY_NAMES.iter().find(|(_, known)| *known == name).map_or(AbsentWhy::Failed, |(why, _)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        Manifest {
            format_version: FORMAT_VERSION,
            page_size: PageSize::new(64 << 10),
            boottime_ns: Some(u64::MAX),
            files: vec![FileRecord {
                path: "/proc/x\ny".to_owned(),
                bytes: 1,
                stored_bytes: 2,
                read_start_ns: 3,
                read_ns: 4,
                altered: Some("names left out".to_owned()),
            }],
            absent: WHY_NAMES.map(|(why, name)| Absence::new(name, why, "so").or("do")).to_vec(),
            ..Manifest::default()
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        assert_eq!(Manifest::from_json(&sample().to_json()), Ok(sample()));
    }

    #[test]
    fn a_newer_field_is_passed_over_and_nonsense_is_named() {
        let newer = br#"{"format": "pagelab-capture", "format_version": 9, "colour": "blue"}"#;
        assert_eq!(Manifest::from_json(newer).map(|m| m.format_version), Ok(9));
        let cases = [
            ("", "EOF while parsing"),
            ("[]", "invalid length 0"),
            (r#"{"format": "other", "format_version": 1}"#, "its format is not"),
            (r#"{"format": "pagelab-capture", "format_version": -1}"#, "line 1 column"),
            (
                r#"{"format": "pagelab-capture", "format_version": 1, "page_size_bytes": 3}"#,
                "page_size_bytes is 3",
            ),
        ];
        for (text, part) in cases {
            let error = Manifest::from_json(text.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        // Nesting is bounded by the parser: no stack is spent on it.
        assert!(Manifest::from_json(&b"[".repeat(1 << 20)).is_err());
    }
}
