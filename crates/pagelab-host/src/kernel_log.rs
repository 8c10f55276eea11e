//! Past allocation failures in the kernel log: `/dev/kmsg`, the syslog call, or a saved text.

use std::io;
use std::time::{Duration, Instant};

use pagelab_formats::kernel_log::{LogScanner, parse, parse_record};
use pagelab_model::snapshot::AllocFailures;
use pagelab_model::{Absence, AbsenceReason, Reading};
use pagelab_sys::kernel_support;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::paths;
use crate::reader::Reader;

/// The largest record that a read of `/dev/kmsg` returns (PRINTKRB_RECORD_MAX and before it
/// CONSOLE_EXT_LOG_MAX: 8 KiB); a smaller buffer would get EINVAL.
const RECORD_MAX: usize = 16 << 10;
/// Records read at most; the largest ring (32 MiB) holds fewer.
const RECORDS_MAX: u32 = 1 << 20;
/// A log that is written faster than it is read ends here.
const TIME_MAX: Duration = Duration::from_secs(2);

/// Reads the log's reports of failed allocations.
pub fn read(reader: &Reader<'_>) -> Reading<AllocFailures> {
    if reader.root().is_live() {
        return match read_failures() {
            Ok(failures) => Ok(failures),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let log = kernel_support::read_kernel_log().map_err(|error| read_absence(reader, &error))?;
                parse(&log).map_err(|error| {
                    Absence::new("syslog(2)", AbsenceReason::Malformed, error.message_in_file("syslog(2)"))
                })
            }
            Err(error) => Err(read_absence(reader, &error)),
        };
    }
    let mut failures = match reader.parse(paths::KMSG, parse) {
        Err(absence) if absence.why == AbsenceReason::NotSaved => reader.parse(paths::KMSG_TEXT, parse)?,
        other => other?,
    };
    // The first record of an extract is not the first record of the log.
    failures.log_overwritten &= !is_extract(reader);
    Ok(failures)
}

/// Whether the saved log is an extract, according to its capture.
pub(crate) fn is_extract(reader: &Reader<'_>) -> bool {
    let file = reader.root().manifest().and_then(|manifest| manifest.file(paths::KMSG));
    file.is_some_and(|file| file.alteration.is_some())
}

/// The reports among all records that the ring holds now.
fn read_failures() -> io::Result<AllocFailures> {
    let mut messages = LogScanner::default();
    let lost = for_each_record(|record| {
        if let Ok(message) = parse_record(record) {
            messages.add_message(&message);
        }
    })?;
    let mut failures = messages.failures;
    failures.log_overwritten |= lost;
    Ok(failures)
}

/// Gives each record that the ring holds now to `visit`, and never waits for another. Whether some were
/// overwritten before they were read.
pub(crate) fn for_each_record(mut visit: impl FnMut(&[u8])) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let kmsg = rustix::fs::open(paths::KMSG, flags, Mode::empty())?;
    let mut buffer = vec![0u8; RECORD_MAX];
    let (started, mut lost) = (Instant::now(), false);
    for _ in 0..RECORDS_MAX {
        match rustix::io::read(&kmsg, &mut buffer) {
            Ok(0) | Err(Errno::AGAIN) => break,
            Ok(length) => visit(&buffer[..length]),
            // The record was overwritten before it was read: the next read continues after the gap.
            Err(Errno::PIPE) => lost = true,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if started.elapsed() > TIME_MAX {
            break;
        }
    }
    Ok(lost)
}

fn read_absence(reader: &Reader<'_>, error: &io::Error) -> Absence {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            dmesg_restrict_absence(reader.read_line(paths::DMESG_RESTRICT).ok().as_deref())
        }
        io::ErrorKind::Unsupported => Absence::new(
            paths::KMSG,
            AbsenceReason::NotThere,
            "this kernel has no log (CONFIG_PRINTK is not set)",
        ),
        _ => reader.root().absence(paths::KMSG, error),
    }
}

/// Why the log was refused, from the value of `dmesg_restrict`.
fn dmesg_restrict_absence(restrict: Option<&str>) -> Absence {
    let (detail, hint) = match restrict {
        Some("1") => (
            "the log requires privileges (kernel.dmesg_restrict is 1)",
            "run as root, or sysctl kernel.dmesg_restrict=0",
        ),
        _ => ("permission denied", "run as root, or join a group that can read it"),
    };
    Absence::new(paths::KMSG, AbsenceReason::NotPermitted, detail).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_tree::FakeTree;

    #[test]
    fn a_saved_log_in_either_form() {
        let read_from = |files: &[(&str, &str)]| {
            let tree = FakeTree::new(files);
            let root = tree.root();
            read(&Reader::new(&root))
        };
        let record = "4,9,77,-;a: page allocation failure: order:3, mode:0x1\n";
        let text = "[    1.000000] b: page allocation failure: order:4, mode:0x1\n";
        let first = |reading: Reading<AllocFailures>| reading.unwrap().reports[0].clone();
        let report = first(read_from(&[("/dev/kmsg", record), ("/proc/kmsg.txt", text)]));
        assert_eq!((report.process.as_str(), report.at_us), ("a", Some(77)));
        assert_eq!(first(read_from(&[("/proc/kmsg.txt", text)])).order, Some(4));
        assert_eq!(read_from(&[]).unwrap_err().why, AbsenceReason::NotSaved);
    }

    #[test]
    fn an_extract_does_not_tell_whether_the_log_was_overwritten() {
        let manifest = |altered: &str| {
            format!(
                r#"{{"format": "pagelab-capture", "format_version": 1, "files": [{{"path": "/dev/kmsg",
                "bytes": 1, "stored_bytes": 1, "read_start_boottime_ns": 0, "read_ns": 0{altered}}}]}}"#
            )
        };
        let overwritten = |altered: &str| {
            let record = "4,9,77,-;a: page allocation failure: order:3, mode:0x1\n";
            let manifest = manifest(altered);
            let tree = FakeTree::new(&[("/dev/kmsg", record), ("/pagelab-capture.json", &manifest)]);
            let root = tree.root();
            let failures = read(&Reader::new(&root)).unwrap();
            assert_eq!(failures.reports.len(), 1);
            failures.log_overwritten
        };
        assert!(overwritten(""));
        assert!(!overwritten(r#", "altered": "only summaries""#));
    }

    #[test]
    fn a_refused_log_names_the_setting() {
        let absence = dmesg_restrict_absence(Some("1"));
        assert_eq!(absence.reason(), "the log requires privileges (kernel.dmesg_restrict is 1)");
        assert_eq!(absence.hint.as_deref(), Some("run as root, or sysctl kernel.dmesg_restrict=0"));
        assert_eq!(dmesg_restrict_absence(Some("0")).why, AbsenceReason::NotPermitted);
    }
}
