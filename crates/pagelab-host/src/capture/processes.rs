//! The memory of the largest processes; their names and command lines only on request.

use std::io;

use pagelab_formats::status;
use pagelab_model::{Absence, AbsentWhy, Pages};
use pagelab_sys::clock::boottime_ns;

use super::{Taking, privacy};
use crate::paths;
use crate::paths::captured;

/// How many processes are taken, largest first.
const LARGEST: usize = 32;
/// Nanoseconds for all smaps_rollup: each walks page tables while it holds the process's mmap lock.
const ROLLUP_BUDGET_NS: u64 = 1_000_000_000;
/// Nanoseconds to look for the largest.
const LOOK_BUDGET_NS: u64 = 1_000_000_000;

const LOSS: &str = "no huge-page coverage of those processes";

/// Takes the largest processes by resident memory.
pub(super) fn take(taking: &mut Taking<'_>) -> io::Result<()> {
    let names = match taking.root.list(paths::PROC) {
        Ok(names) => names,
        Err(absence) => {
            taking.missing(absence, "");
            return Ok(());
        }
    };
    let pids: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    let (largest, seen) = largest(taking, &pids);
    if taking.root.is_live() {
        taking.manifest.processes_seen = seen;
    }
    let named = taking.options.with_processes;
    let started = boottime_ns();
    let mut unreadable: Option<(usize, Absence)> = None;
    for pid in largest {
        let files: &[&str] = match named {
            true => &["statm", "status", "comm", "cmdline", "smaps_rollup"],
            false => &["statm", "status", "smaps_rollup"],
        };
        for &file in files {
            if file == "smaps_rollup" && boottime_ns() - started > ROLLUP_BUDGET_NS {
                let note =
                    "the time for smaps_rollup was spent before all of the largest processes were read";
                if !taking.manifest.notes.iter().any(|known| known == note) {
                    taking.manifest.notes.push(note.to_owned());
                }
                continue;
            }
            if let Some(absence) = one(taking, pid, file, named)? {
                let count = unreadable.take().map_or(0, |(count, _)| count);
                unreadable = Some((count + 1, absence));
            }
        }
    }
    if let Some((count, absence)) = unreadable {
        let source = format!("{} and its like ({count} files)", absence.source);
        taking.missing(Absence { source, ..absence }, LOSS);
    }
    Ok(())
}

/// Takes one file of a process; what may not be read is handed back, and a process that has ended is none.
fn one(taking: &mut Taking<'_>, pid: u32, file: &str, named: bool) -> io::Result<Option<Absence>> {
    let path = captured::of_process(pid, file);
    let start = boottime_ns();
    let read = taking.root.read(&path);
    let took = boottime_ns() - start;
    let text = match read {
        Ok(text) => text,
        Err(absence) if absence.why == AbsentWhy::NotPermitted => return Ok(Some(absence)),
        Err(_) => return Ok(None),
    };
    let (text, altered) = match file {
        "status" if !named => privacy::altered(text, "names, users and signals left out", privacy::status),
        "smaps_rollup" if !named => privacy::altered(text, "addresses left out", privacy::rollup),
        _ => (text, None),
    };
    taking.store(&path, &text, altered, start, took)?;
    Ok(None)
}

/// The largest processes, and how many have memory at all; `None` if there was no time to look at each.
fn largest(taking: &Taking<'_>, pids: &[u32]) -> (Vec<u32>, Option<u64>) {
    let started = boottime_ns();
    let mut sizes: Vec<(Pages, u32)> = Vec::new();
    let mut is_whole = true;
    for &pid in pids {
        if boottime_ns() - started > LOOK_BUDGET_NS {
            is_whole = false;
            break;
        }
        // Kernel threads have no memory; a process may have ended.
        let statm = taking.root.read(&captured::of_process(pid, "statm")).unwrap_or_default();
        let statm = status::parse_statm(&statm).unwrap_or_default();
        if statm.resident > Pages(0) {
            sizes.push((statm.resident, pid));
        }
    }
    let seen = is_whole.then_some(sizes.len() as u64);
    sizes.sort_by_key(|&(resident, pid)| (std::cmp::Reverse(resident), pid));
    (sizes.into_iter().take(LARGEST).map(|(_, pid)| pid).collect(), seen)
}
