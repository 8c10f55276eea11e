//! Extract of the kernel log: allocation failures and OOM kills, in the form of `/dev/kmsg`.
//!
//! The head of each report, the memory summary below it (mm/show_mem.c) and each kill are kept; stack traces,
//! tables of tasks and the rest of the log are not, so that no names of processes are included.

use std::io;

use pagelab_formats::kernel_log;
use pagelab_model::AbsenceReason;
use pagelab_sys::clock::boottime_ns;

use super::{Alteration, CaptureSession};
use crate::kernel_log::for_each_record;
use crate::paths;

/// Number of records after the head of a report that are searched for its summary.
const REPORT_RECORDS_MAX: usize = 400;
const TEXT_BYTES_MAX: usize = 4 << 20;

const ALTERATION: &str = "only OOM kills and allocation failures with their memory summaries";

/// Captures the records of failed allocations.
pub(super) fn capture_kernel_log(session: &mut CaptureSession<'_>) -> io::Result<()> {
    let start = boottime_ns();
    let mut filter = LogFilter::new(session.options.with_processes);
    let read = if session.root.is_live() {
        filter_live_log(&mut filter).map_err(|error| session.root.absence(paths::KMSG, &error))
    } else {
        session.root.read(paths::KMSG).map(|text| {
            for record in String::from_utf8_lossy(&text).lines() {
                filter.add_record(record);
            }
        })
    };
    match read {
        Ok(()) => {
            let altered = Alteration { description: ALTERATION, original_bytes: filter.log_bytes };
            session.store_text(
                paths::KMSG,
                filter.text.as_bytes(),
                Some(altered),
                start,
                boottime_ns() - start,
            )
        }
        Err(mut absence) => {
            if absence.why == AbsenceReason::NotPermitted {
                absence.hint = Some("run as root, or set kernel.dmesg_restrict to 0".to_owned());
            }
            session.note_missing(absence, "no past allocation failures or OOM kills");
            Ok(())
        }
    }
}

fn filter_live_log(filter: &mut LogFilter) -> io::Result<()> {
    // Continuation lines of a record (`SUBSYSTEM=…`) are not text of the log.
    let first_line = |record: &[u8]| {
        let line = record.split(|&byte| byte == b'\n').next().unwrap_or_default();
        filter.add_record(&String::from_utf8_lossy(line));
    };
    for_each_record(first_line).map(drop)
}

struct LogFilter {
    with_names: bool,
    text: String,
    log_bytes: u64,
    /// Records that may still belong to the last report.
    records_left: usize,
}

impl LogFilter {
    fn new(with_names: bool) -> LogFilter {
        LogFilter { with_names, text: String::new(), log_bytes: 0, records_left: 0 }
    }

    /// Processes one record: `6,339,5140900,-;text`.
    fn add_record(&mut self, record: &str) {
        self.log_bytes += record.len() as u64 + 1;
        let Some((prefix, text)) = record.split_once(';') else { return };
        let head = ["page allocation failure", "page allocation stalls", "invoked oom-killer"]
            .iter()
            .find_map(|words| text.find(words));
        let line = match head {
            Some(at) => {
                self.records_left = REPORT_RECORDS_MAX;
                // The name before the head ends in a colon or a blank, and may contain either. The cpuset
                // after it is often a container's name.
                let unnamed = text[at..].split(",cpuset=").next().unwrap_or("");
                match self.with_names {
                    true => text.to_owned(),
                    false if text[..at].ends_with(": ") => format!("process: {unnamed}"),
                    false => format!("process {unnamed}"),
                }
            }
            // The kernel rate-limits reports, not kills, so a kill may have no report.
            None if kernel_log::is_oom_message(text.as_bytes()) => match self.with_names {
                true => text.to_owned(),
                false => redact_name(text),
            },
            None if self.records_left > 0 => {
                self.records_left -= 1;
                if !is_summary_line(text) {
                    return;
                }
                text.to_owned()
            }
            None => return,
        };
        if self.text.len() + line.len() < TEXT_BYTES_MAX {
            self.text.push_str(prefix);
            self.text.push(';');
            self.text.push_str(&line);
            self.text.push('\n');
        }
    }
}

/// The same without the name of a process and the path of a control group.
fn redact_name(text: &str) -> String {
    if text.starts_with("memory: usage ") {
        return text.to_owned();
    }
    if text.starts_with("oom-kill:") {
        return text.split(',').next().unwrap_or("").to_owned();
    }
    if text.starts_with("Task in ") {
        return "Task killed as a result of a limit".to_owned();
    }
    match kernel_log::find_victim_name(text.as_bytes()) {
        Some(name) => {
            let [before, after] =
                [text.get(..name.start), text.get(name.end..)].map(Option::unwrap_or_default);
            format!("{before}process{after}")
        }
        None => String::new(),
    }
}

/// Whether a line is one of the memory summary that follows the head.
fn is_summary_line(text: &str) -> bool {
    let line = text.trim_start();
    let counted = || {
        let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
        rest.len() < line.len()
            && [" total pagecache pages", " pages in swap cache", " pages RAM", " pages HighMem"]
                .iter()
                .chain(&[" pages reserved", " pages cma reserved", " pages hwpoisoned"])
                .any(|words| rest.starts_with(words))
    };
    ["Mem-Info:", "active_anon:", "isolated_anon:", "unevictable:", "slab_reclaimable:", "mapped:", "free:"]
        .iter()
        .chain(&["kernel_misc_reclaimable:", "lowmem_reserve[]:", "Node ", "Free swap", "Total swap"])
        .any(|words| line.starts_with(words))
        || counted()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_kept_without_names_and_the_rest_is_not() {
        let log = [
            "6,1,10,-;secret: unrelated",
            "4,2,20,-;my app: x: page allocation failure: order:9, nodemask=0,cpuset=secret,mems_allowed=0",
            "4,3,21,-;CPU: 0 PID: 7 Comm: secret Not tainted",
            "4,4,22,-;Mem-Info:",
            "4,5,23,-;active_anon:1 inactive_anon:2",
            "4,6,24,-;Node 0 DMA: 1*4kB (U) = 4kB",
            "6,7,25,-;Tasks state (memory values in pages):",
            "6,8,26,-;[   42]     0    42     1234 secret",
            "4,9,27,-;6291456 pages RAM",
            "4,10,28,-;secret invoked oom-killer: gfp_mask=0x0, order=0",
        ];
        let mut filter = LogFilter::new(false);
        log.iter().for_each(|record| filter.add_record(record));
        let want = "4,2,20,-;process: page allocation failure: order:9, nodemask=0\n\
                    4,4,22,-;Mem-Info:\n4,5,23,-;active_anon:1 inactive_anon:2\n\
                    4,6,24,-;Node 0 DMA: 1*4kB (U) = 4kB\n4,9,27,-;6291456 pages RAM\n\
                    4,10,28,-;process invoked oom-killer: gfp_mask=0x0, order=0\n";
        assert_eq!(filter.text, want);
        let kills = [
            "6,11,29,-;memory: usage 64kB, limit 64kB, failcnt 4",
            "6,12,30,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/secret,task=secret,pid=42,uid=0",
            "3,13,31,-;Memory cgroup out of memory: Killed process 42 (sec (ret)) total-vm:7kB, anon-rss:1kB",
            "3,14,32,-;Out of memory: Kill process 43 (secret) score 9 or sacrifice child",
            "3,15,33,-;Killed process 44 (secret) total-vm:7kB",
            "3,16,34,-;Out of memory: Killed process 45 (secret)",
            "3,17,35,-;Out of memory: kill process 46 (secret) score 9 or a child",
            "3,18,36,-;Killed process 47, UID 0, (secret) total-vm:7kB",
        ];
        let mut filter = LogFilter::new(false);
        kills.iter().for_each(|record| filter.add_record(record));
        let want = "6,11,29,-;memory: usage 64kB, limit 64kB, failcnt 4\n\
                    6,12,30,-;oom-kill:constraint=CONSTRAINT_MEMCG\n\
                    3,13,31,-;Memory cgroup out of memory: Killed process 42 (process) total-vm:7kB, \
                    anon-rss:1kB\n3,14,32,-;Out of memory: Kill process 43 (process) score 9 or sacrifice \
                    child\n3,15,33,-;Killed process 44 (process) total-vm:7kB\n\
                    3,16,34,-;Out of memory: Killed process 45 (process)\n\
                    3,17,35,-;Out of memory: kill process 46 (process) score 9 or a child\n\
                    3,18,36,-;Killed process 47, UID 0, (process) total-vm:7kB\n";
        assert_eq!(filter.text, want);
        let found = kernel_log::parse(filter.text.as_bytes()).unwrap();
        let told: Vec<_> = found.kills.iter().map(|kill| (kill.pid, kill.process.as_str())).collect();
        assert_eq!(told, [42, 44, 45, 47].map(|pid| (Some(pid), "process")));
        let mut named = LogFilter::new(true);
        named.add_record(log[1]);
        assert!(named.text.contains("my app"));
    }
}
