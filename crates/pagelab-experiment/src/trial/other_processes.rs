//! CPU time of other processes during a trial: if one of them, such as a server, does the work of a command,
//! the trial measures something else.
//!
//! CPU time alone does not tell for whom a process works. The flag says what was measured, and how to measure
//! the other process; it claims nothing about a program that sleeps.

use std::collections::BTreeMap;
use std::fs;

use pagelab_formats::process_status;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::experiment::Flag;

/// Below this share of one CPU a command waited for something: a program that computes has more, also on a
/// machine that is not quiet.
const COMPUTING_SHARE_MIN: f64 = 0.9;
/// Share of one CPU that other processes have at least. Daemons stay far below a quarter; below it the speed
/// of another process is hardly that of the trial.
const OTHERS_SHARE_MIN: f64 = 0.25;
/// A named process has at least this part of the CPU time of the others.
const NAMED_PART_MIN: f64 = 0.5;
/// The parent of all kernel threads, kthreadd.
const KERNEL_THREADS_PARENT: u64 = 2;

/// CPU time of the processes of the machine, in ticks, by PID and start.
#[derive(Clone, Debug, Default)]
pub struct ProcessTimes(BTreeMap<(u32, u64), u64>);

impl ProcessTimes {
    /// Reads them. Kernel threads and this process with its children are left out.
    pub fn read() -> ProcessTimes {
        let (root, own) = (Root::live(), u64::from(std::process::id()));
        let reader = Reader::new(&root);
        let pids = root.list_processes().unwrap_or_default().into_iter();
        let times = pids.filter(|&pid| u64::from(pid) != own).filter_map(|pid| {
            let stat = reader.parse(&paths::process_stat_file(pid), process_status::parse_stat).ok()?;
            let is_counted = ![own, KERNEL_THREADS_PARENT].contains(&stat.parent);
            is_counted.then_some(((pid, stat.start_ticks), stat.cpu_ticks))
        });
        ProcessTimes(times.collect())
    }

    /// The process with the most CPU time since then: its PID, and the time in ticks.
    fn find_busiest_since(&self, earlier: &ProcessTimes) -> Option<(u32, u64)> {
        let used = self.0.iter().map(|(process, ticks)| {
            // One that has started since then has all of its time from it.
            (process.0, ticks.saturating_sub(earlier.0.get(process).copied().unwrap_or(0)))
        });
        used.max_by_key(|(_, ticks)| *ticks)
    }
}

/// A process that was busy during a trial.
#[derive(Clone, Debug, PartialEq)]
pub struct BusyProcess {
    name: String,
    pid: u32,
    /// Share of one CPU.
    share: f64,
}

impl BusyProcess {
    /// The process with the most CPU time between two readings, which are `wall_ns` apart.
    pub fn find(before: &ProcessTimes, after: &ProcessTimes, wall_ns: u64) -> Option<BusyProcess> {
        let (pid, ticks) = after.find_busiest_since(before)?;
        let name = fs::read_to_string(paths::process_file(pid, "comm")).ok()?.trim_end().to_owned();
        let share = (ticks.saturating_mul(super::system_activity::tick_ns())) as f64 / wall_ns.max(1) as f64;
        Some(BusyProcess { name, pid, share })
    }
}

/// The flag of a trial whose command waited while other processes used more CPU time than it. Shares are of
/// one CPU.
pub fn busy_others_flag(command: f64, others: f64, busiest: Option<&BusyProcess>) -> Option<Flag> {
    if command >= COMPUTING_SHARE_MIN || others < OTHERS_SHARE_MIN || others < command {
        return None;
    }
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let measured =
        format!("the command used {} of a CPU, other processes used {}", percent(command), percent(others));
    let named = busiest.filter(|process| process.share >= others * NAMED_PART_MIN);
    let text = match named {
        Some(BusyProcess { name, pid, share }) => format!(
            "{measured}, {name} (pid {pid}) {}; if that process does the work, measure it: pagelab tune \
            --pid {pid} --metric CMD",
            percent(*share)
        ),
        None => format!(
            "{measured}; if one of them does the work, measure it: pagelab tune --pid PID --metric CMD, or \
            use a workload that starts it"
        ),
    };
    Some(Flag { kind: Flag::OTHERS_BUSY.to_owned(), text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_waits_for_a_busy_process_is_flagged_with_what_was_measured() {
        let server = BusyProcess { name: "server".to_owned(), pid: 7, share: 0.92 };
        for (command, others, is_flagged) in [
            (0.03, 0.95, true),
            (0.6, 0.95, true),
            // It computes; the others are noise.
            (0.99, 1.0, false),
            (1.7, 1.9, false),
            // It sleeps, and nothing else works.
            (0.0, 0.2, false),
            (0.6, 0.5, false),
        ] {
            assert_eq!(busy_others_flag(command, others, Some(&server)).is_some(), is_flagged, "{command}");
        }
        let text = |others, busiest| busy_others_flag(0.03, others, busiest).unwrap().text;
        assert_eq!(
            text(0.95, Some(&server)),
            "the command used 3 % of a CPU, other processes used 95 %, server (pid 7) 92 %; if that process \
             does the work, measure it: pagelab tune --pid 7 --metric CMD"
        );
        assert!(text(2.0, Some(&server)).contains("used 200 %; if one of them"), "no process has half of it");
        assert!(text(0.95, None).ends_with("or use a workload that starts it"));
    }

    #[test]
    fn the_busiest_process_is_the_one_with_the_most_time_since_then() {
        let times = |of: &[(u32, u64, u64)]| {
            ProcessTimes(of.iter().map(|&(pid, start, ticks)| ((pid, start), ticks)).collect())
        };
        let (before, after) =
            (times(&[(3, 1, 900), (4, 1, 10)]), times(&[(3, 1, 905), (4, 1, 60), (5, 9, 7)]));
        assert_eq!(after.find_busiest_since(&before), Some((4, 50)));
        // The PID was reused.
        assert_eq!(times(&[(4, 8, 30)]).find_busiest_since(&before), Some((4, 30)));
        assert_eq!(times(&[]).find_busiest_since(&before), None);
    }
}
