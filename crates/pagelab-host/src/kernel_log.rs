//! Past allocation failures in the kernel's log: `/dev/kmsg`, the syslog call, or a saved text.

use std::io;
use std::time::{Duration, Instant};

use pagelab_formats::kernel_log::{Messages, parse, parse_record};
use pagelab_model::snapshot::AllocFailures;
use pagelab_model::{Absence, AbsentWhy, Reading};
use pagelab_sys::presence;
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
        return match records() {
            Ok(failures) => Ok(failures),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let log = presence::kernel_log().map_err(|error| absence(reader, &error))?;
                parse(&log).map_err(|error| {
                    Absence::new("syslog(2)", AbsentWhy::Malformed, error.in_file("syslog(2)"))
                })
            }
            Err(error) => Err(absence(reader, &error)),
        };
    }
    let mut failures = match reader.parse(paths::KMSG, parse) {
        Err(absence) if absence.why == AbsentWhy::NotSaved => reader.parse(paths::KMSG_TEXT, parse)?,
        other => other?,
    };
    // Where an extract begins says nothing of where the log began.
    failures.log_overwritten &= !is_extract(reader);
    Ok(failures)
}

/// Whether the saved log is not the whole log, as its capture says.
pub(crate) fn is_extract(reader: &Reader<'_>) -> bool {
    let file = reader.root().manifest().and_then(|manifest| manifest.file(paths::KMSG));
    file.is_some_and(|file| file.altered.is_some())
}

/// The reports among all records that the ring holds now.
fn records() -> io::Result<AllocFailures> {
    let mut messages = Messages::default();
    let lost = each_record(|record| {
        if let Ok(message) = parse_record(record) {
            messages.take(&message);
        }
    })?;
    let mut failures = messages.failures;
    failures.log_overwritten |= lost;
    Ok(failures)
}

/// Gives each record that the ring holds now to `take`, and never waits for another. Whether some were
/// overwritten before they were read.
pub(crate) fn each_record(mut take: impl FnMut(&[u8])) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let kmsg = rustix::fs::open(paths::KMSG, flags, Mode::empty())?;
    let mut buffer = vec![0u8; RECORD_MAX];
    let (started, mut lost) = (Instant::now(), false);
    for _ in 0..RECORDS_MAX {
        match rustix::io::read(&kmsg, &mut buffer) {
            Ok(0) | Err(Errno::AGAIN) => break,
            Ok(length) => take(&buffer[..length]),
            // The record was overwritten before it was read: the next read goes on behind the gap.
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

fn absence(reader: &Reader<'_>, error: &io::Error) -> Absence {
    match error.kind() {
        io::ErrorKind::PermissionDenied => refused(reader.line(paths::DMESG_RESTRICT).ok().as_deref()),
        io::ErrorKind::Unsupported => Absence::new(
            paths::KMSG,
            AbsentWhy::NotThere,
            "this kernel keeps no log (CONFIG_PRINTK is not set)",
        ),
        _ => reader.root().absence(paths::KMSG, error),
    }
}

/// Why the log was refused, from the value of `dmesg_restrict`.
fn refused(restrict: Option<&str>) -> Absence {
    let (detail, way_out) = match restrict {
        Some("1") => (
            "the log is for the privileged alone (kernel.dmesg_restrict is 1)",
            "run as root, or sysctl kernel.dmesg_restrict=0",
        ),
        _ => ("permission denied", "run as root, or join the group that may read it"),
    };
    Absence::new(paths::KMSG, AbsentWhy::NotPermitted, detail).or(way_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Tree;

    #[test]
    fn a_saved_log_in_either_form() {
        let read_from = |files: &[(&str, &str)]| {
            let tree = Tree::new(files);
            let root = tree.root();
            read(&Reader::new(&root))
        };
        let record = "4,9,77,-;a: page allocation failure: order:3, mode:0x1\n";
        let text = "[    1.000000] b: page allocation failure: order:4, mode:0x1\n";
        let first = |reading: Reading<AllocFailures>| reading.unwrap().reports[0].clone();
        let report = first(read_from(&[("/dev/kmsg", record), ("/proc/kmsg.txt", text)]));
        assert_eq!((report.process.as_str(), report.at_us), ("a", Some(77)));
        assert_eq!(first(read_from(&[("/proc/kmsg.txt", text)])).order, Some(4));
        assert_eq!(read_from(&[]).unwrap_err().why, AbsentWhy::NotSaved);
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
            let tree = Tree::new(&[("/dev/kmsg", record), ("/pagelab-capture.json", &manifest)]);
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
        let absence = refused(Some("1"));
        assert_eq!(absence.reason(), "the log is for the privileged alone (kernel.dmesg_restrict is 1)");
        assert_eq!(absence.way_out.as_deref(), Some("run as root, or sysctl kernel.dmesg_restrict=0"));
        assert_eq!(refused(Some("0")).why, AbsentWhy::NotPermitted);
    }
}
