//! Manifest of a capture: `pagelab-capture.json`, beside the files that it describes.
//!
//! The names in the file are a contract. Unknown fields of a newer version are passed over.

use pagelab_model::{Absence, AbsenceReason, PageSize};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The manifest's file name, at the root of a capture.
pub const MANIFEST_FILE: &str = "pagelab-capture.json";

/// Version that is written. Of a file with a higher version the known fields are read.
pub const FORMAT_VERSION: u32 = 1;

const FORMAT: &str = "pagelab-capture";

/// Manifest of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format of the file.
    pub format_version: u32,
    /// Version of the pagelab that wrote it.
    #[serde(default)]
    pub tool_version: String,
    /// Base page size of the machine.
    #[serde(rename = "page_size_bytes")]
    pub page_size: Option<PageSize>,
    /// `uname -r` of the machine.
    pub kernel_release: Option<String>,
    /// `uname -m` of the machine.
    pub architecture: Option<String>,
    /// Host name; `None` unless process names were requested.
    pub host_name: Option<String>,
    /// Effective user id of the capture.
    pub euid: Option<u32>,
    /// Wall clock at the beginning, in nanoseconds since 1970, UTC.
    #[serde(rename = "started_realtime_ns")]
    pub realtime_ns: Option<u64>,
    /// The same moment in nanoseconds since boot, sleep included (CLOCK_BOOTTIME).
    #[serde(rename = "started_boottime_ns")]
    pub boottime_ns: Option<u64>,
    /// From the beginning to the last byte read.
    #[serde(default)]
    pub duration_ns: u64,
    /// Whether process names and command lines are in it.
    #[serde(default)]
    pub with_processes: bool,
    /// Processes with memory of their own, whether or not they are in it.
    pub processes_seen: Option<u64>,
    /// Deliberate omissions and changes, one sentence each.
    #[serde(default)]
    pub redactions: Vec<String>,
    /// Other things that a reader should know, one sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The files in it, in the order in which they were read.
    #[serde(default)]
    pub files: Vec<FileRecord>,
    /// Requested but missing files; the source is the path.
    #[serde(
        rename = "absent",
        default,
        serialize_with = "write_absences",
        deserialize_with = "read_absences"
    )]
    pub absences: Vec<Absence>,
}

/// One file of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// The path on the machine.
    pub path: String,
    /// Bytes that the kernel gave, before redaction and compression.
    pub bytes: u64,
    /// Bytes stored.
    pub stored_bytes: u64,
    /// When reading began, in nanoseconds since boot (CLOCK_BOOTTIME).
    #[serde(rename = "read_start_boottime_ns")]
    pub read_start_ns: u64,
    /// How long reading took.
    pub read_ns: u64,
    /// Difference of the stored file from the file of the kernel; `None` if there is none.
    #[serde(rename = "altered", default, skip_serializing_if = "Option::is_none")]
    pub alteration: Option<String>,
}

impl Manifest {
    /// Reads a manifest's text. The error names line and column, and how to do without it.
    pub fn from_json(text: &[u8]) -> Result<Manifest, String> {
        let not_a_manifest =
            |error: serde_json::Error| format!("not a manifest of `pagelab capture`: {error}");
        let head: ManifestHead = serde_json::from_slice(text).map_err(not_a_manifest)?;
        if head.format != FORMAT {
            return Err(format!("not a manifest of `pagelab capture`: its format is not {FORMAT:?}"));
        }
        if let Some(bytes) = head.page_size_bytes.filter(|&bytes| PageSize::new(bytes).is_none()) {
            return Err(format!("invalid page_size_bytes: {bytes}"));
        }
        serde_json::from_slice(text).map_err(not_a_manifest)
    }

    /// The text of the file, indented, with a newline at its end.
    pub fn to_json(&self) -> Vec<u8> {
        let named = NamedManifest { format: FORMAT, manifest: self };
        // Writing numbers, texts and lists to memory cannot fail; an empty file would be reported.
        let mut text = serde_json::to_vec_pretty(&named).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// The record of the file that was at `path`.
    pub fn file(&self, path: &str) -> Option<&FileRecord> {
        self.files.iter().find(|file| file.path == path)
    }
}

/// The fields that are checked before the others.
#[derive(Deserialize)]
struct ManifestHead {
    format: String,
    page_size_bytes: Option<u64>,
}

#[derive(Serialize)]
struct NamedManifest<'a> {
    format: &'static str,
    #[serde(flatten)]
    manifest: &'a Manifest,
}

#[derive(Serialize, Deserialize)]
struct AbsentJson {
    path: String,
    why: String,
    reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "way_out")]
    hint: Option<String>,
}

fn write_absences<S: Serializer>(absences: &[Absence], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(absences.iter().cloned().map(|absence| AbsentJson {
        why: why_name(absence.why).to_owned(),
        reason: absence.reason().to_owned(),
        path: absence.source,
        hint: absence.hint,
    }))
}

fn read_absences<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Absence>, D::Error> {
    let absent = Vec::<AbsentJson>::deserialize(deserializer)?.into_iter();
    Ok(absent
        .map(|absent| Absence {
            hint: absent.hint,
            ..Absence::new(absent.path, parse_why(&absent.why), absent.reason)
        })
        .collect())
}

const WHY_NAMES: [(AbsenceReason, &str); 8] = [
    (AbsenceReason::NotThere, "not_there"),
    (AbsenceReason::NotPermitted, "not_permitted"),
    (AbsenceReason::NotSaved, "not_saved"),
    (AbsenceReason::NotRequested, "not_requested"),
    (AbsenceReason::Malformed, "malformed"),
    (AbsenceReason::Changing, "changing"),
    (AbsenceReason::Undefined, "undefined"),
    (AbsenceReason::Failed, "failed"),
];

/// Names in manifests of earlier versions.
const EARLIER_WHY_NAMES: [(AbsenceReason, &str); 2] =
    [(AbsenceReason::NotRequested, "not_asked"), (AbsenceReason::Changing, "moving")];

/// The name of a kind of reason in JSON.
pub fn why_name(why: AbsenceReason) -> &'static str {
    WHY_NAMES.iter().find(|(known, _)| *known == why).map_or("failed", |(_, name)| name)
}

fn parse_why(name: &str) -> AbsenceReason {
    let mut names = WHY_NAMES.iter().chain(&EARLIER_WHY_NAMES);
    names.find(|(_, known)| *known == name).map_or(AbsenceReason::Failed, |(why, _)| *why)
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
                alteration: Some("names left out".to_owned()),
            }],
            absences: WHY_NAMES.map(|(why, name)| Absence::new(name, why, "so").with_hint("do")).to_vec(),
            ..Manifest::default()
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        assert_eq!(Manifest::from_json(&sample().to_json()), Ok(sample()));
    }

    #[test]
    fn names_of_earlier_versions_are_read() {
        for (why, name) in EARLIER_WHY_NAMES {
            assert_eq!(parse_why(name), why);
            assert_ne!(why_name(why), name);
        }
        let earlier = br#"{"path": "x", "why": "moving", "reason": "so", "way_out": "do"}"#;
        let absent: AbsentJson = serde_json::from_slice(earlier).unwrap();
        assert_eq!(absent.hint.as_deref(), Some("do"));
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
                "invalid page_size_bytes: 3",
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
