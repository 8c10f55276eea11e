//! The memory of the largest processes and of cgroups; names and command lines only on request.

use std::io;

use pagelab_formats::mountinfo::{self, Mount};
use pagelab_formats::{cgroup as cgroup_format, process_status};
use pagelab_model::{Absence, AbsenceReason, Pages};
use pagelab_sys::clock::boottime_ns;

use super::{CaptureSession, privacy};
use crate::cgroup::cgroup_dirs;
use crate::paths::{self, capture_table, process_file};

/// Maximum number of processes, largest first.
const PROCESSES_MAX: usize = 32;
/// Nanoseconds for all smaps_rollup: each walks page tables while it holds the process's mmap lock.
const ROLLUP_BUDGET_NS: u64 = 1_000_000_000;
/// Nanoseconds for the search of the largest.
const STATM_BUDGET_NS: u64 = 1_000_000_000;

const LOSS: &str = "no huge-page coverage for those processes";

/// Captures the largest processes by resident memory.
pub(super) fn capture_processes(session: &mut CaptureSession<'_>) -> io::Result<()> {
    let pids = match session.root.list_processes() {
        Ok(pids) => pids,
        Err(absence) => {
            session.note_missing(absence, "");
            return Ok(());
        }
    };
    let (largest, process_count) = find_largest(session, &pids);
    if session.root.is_live() {
        session.manifest.processes_seen = process_count;
    }
    let with_names = session.options.with_processes;
    let start_ns = boottime_ns();
    let mut unreadable: Option<(usize, Absence)> = None;
    for pid in largest {
        let files: &[&str] = match with_names {
            true => &["statm", "status", "comm", "cmdline", "smaps_rollup"],
            false => &["statm", "status", "smaps_rollup"],
        };
        for &file in files {
            if file == "smaps_rollup" && boottime_ns() - start_ns > ROLLUP_BUDGET_NS {
                let note = "the time limit for smaps_rollup was reached before all of the largest processes \
                            were read";
                if !session.manifest.notes.iter().any(|known| known == note) {
                    session.manifest.notes.push(note.to_owned());
                }
                continue;
            }
            if let Some(absence) = capture_process_file(session, pid, file, with_names)? {
                let count = unreadable.take().map_or(0, |(count, _)| count);
                unreadable = Some((count + 1, absence));
            }
        }
    }
    if let Some((count, absence)) = unreadable {
        let source = format!("{} and similar ({count} files)", absence.source);
        session.note_missing(Absence { source, ..absence }, LOSS);
    }
    Ok(())
}

/// Captures one file of a process. Returns the absence of an unreadable file; an exited process has none.
fn capture_process_file(
    session: &mut CaptureSession<'_>,
    pid: u32,
    file: &str,
    with_names: bool,
) -> io::Result<Option<Absence>> {
    let path = process_file(pid, file);
    let start = boottime_ns();
    let read = session.root.read(&path);
    let took = boottime_ns() - start;
    let text = match read {
        Ok(text) => text,
        Err(absence) if absence.why == AbsenceReason::NotPermitted => return Ok(Some(absence)),
        Err(_) => return Ok(None),
    };
    let (text, altered) = match file {
        "status" if !with_names => {
            privacy::redact_text(text, "names, users and signals omitted", privacy::redact_status)
        }
        "smaps_rollup" if !with_names => {
            privacy::redact_text(text, "addresses omitted", privacy::redact_smaps_rollup)
        }
        _ => (text, None),
    };
    session.store_text(&path, &text, altered, start, took)?;
    Ok(None)
}

/// The largest processes, and the number of those with memory; `None` if there was no time for all.
fn find_largest(session: &CaptureSession<'_>, pids: &[u32]) -> (Vec<u32>, Option<u64>) {
    let start_ns = boottime_ns();
    let mut sizes: Vec<(Pages, u32)> = Vec::new();
    let mut is_complete = true;
    for &pid in pids {
        if boottime_ns() - start_ns > STATM_BUDGET_NS {
            is_complete = false;
            break;
        }
        // Kernel threads have no memory; a process may have exited.
        let statm = session.root.read(&process_file(pid, "statm")).unwrap_or_default();
        let statm = process_status::parse_statm(&statm).unwrap_or_default();
        if statm.resident > Pages(0) {
            sizes.push((statm.resident, pid));
        }
    }
    let seen = is_complete.then_some(sizes.len() as u64);
    sizes.sort_by_key(|&(resident, pid)| (std::cmp::Reverse(resident), pid));
    (sizes.into_iter().take(PROCESSES_MAX).map(|(_, pid)| pid).collect(), seen)
}

/// Captures the memory and hugetlb limits of the process's cgroup and of those above it.
pub(super) fn capture_cgroups(session: &mut CaptureSession<'_>) -> io::Result<()> {
    let (Ok(groups), Ok(mounts)) =
        (session.root.read(paths::SELF_CGROUP), session.root.read(paths::SELF_MOUNTINFO))
    else {
        return Ok(());
    };
    for dir in memory_cgroup_dirs(&groups, &mounts) {
        capture_cgroup(session, &dir)?;
    }
    Ok(())
}

fn capture_cgroup(session: &mut CaptureSession<'_>, folder: &str) -> io::Result<()> {
    let Ok(names) = session.root.list_dir(folder) else { return Ok(()) };
    for name in names {
        let hugetlb = name.starts_with("hugetlb.")
            && ["max", "current", "limit_in_bytes", "usage_in_bytes"].iter().any(|end| name.ends_with(end));
        if hugetlb || capture_table::CGROUP_FILES.contains(&name.as_str()) || name == "cgroup.controllers" {
            session.capture_text(&format!("{folder}/{name}"), "")?;
        }
    }
    Ok(())
}

/// Directories of the process's cgroup and of those above it, in each hierarchy that limits memory.
fn memory_cgroup_dirs(groups: &[u8], mounts: &[u8]) -> Vec<String> {
    const CONTROLLERS: [&str; 2] = ["memory", "hugetlb"];
    // A line that cannot be read hides no other.
    let lines = |text| <[u8]>::split(text, |&byte| byte == b'\n');
    let groups: Vec<_> = lines(groups).filter_map(|line| cgroup_format::parse(line).ok()).flatten().collect();
    let mounts: Vec<_> = lines(mounts).filter_map(|line| mountinfo::parse(line).ok()).flatten().collect();
    // The tree may be a hostile one, and the paths are those of the capture too.
    let is_plain = |mount: &Mount| {
        mount.mount_point.starts_with('/') && !mount.mount_point.split('/').any(|n| n == "..")
    };
    let dirs = |mount: &Mount| {
        let group = match mount.fs_type.as_str() {
            "cgroup2" => groups.iter().find(|group| group.is_v2()),
            "cgroup" if CONTROLLERS.iter().any(|name| mount.has_super_option(name)) => {
                groups.iter().find(|group| CONTROLLERS.iter().any(|name| group.has_controller(name)))
            }
            _ => None,
        };
        group.map(|group| cgroup_dirs(group, mount)).unwrap_or_default()
    };
    mounts.iter().filter(|mount| is_plain(mount)).flat_map(dirs).collect()
}

#[cfg(test)]
mod tests {
    use super::memory_cgroup_dirs;

    #[test]
    fn the_hierarchies_that_limit_memory_are_found() {
        let v2 = "36 25 0:31 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let v1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
              32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let part = "35 31 0:32 /docker/7 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let damaged = format!("nonsense\n - cgroup2\n{v2}");
        let cases: [(&str, &str, &[&str]); 10] = [
            (
                "0::/user.slice/a\n",
                v2,
                &["/sys/fs/cgroup/user.slice/a", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"],
            ),
            ("0::/\n", v2, &["/sys/fs/cgroup"]),
            ("0::/../x\n", v2, &["/sys/fs/cgroup"]),
            (
                "4:memory:/job/3\n1:cpu:/\n0::/\n",
                v1,
                &["/sys/fs/cgroup/memory/job/3", "/sys/fs/cgroup/memory/job", "/sys/fs/cgroup/memory"],
            ),
            ("4:memory:/docker/7/x\n", part, &["/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/memory"]),
            ("4:memory:/docker/77\n", part, &["/sys/fs/cgroup/memory"]),
            ("", v2, &[]),
            ("0::/a\n", "1 2 3:4 / /../x rw - cgroup2 c rw\n", &[]),
            ("0::/a", "nonsense\n - cgroup2\n1 2 3 / ../x - cgroup2 c rw", &[]),
            ("x\n0::/a\n", &damaged, &["/sys/fs/cgroup/a", "/sys/fs/cgroup"]),
        ];
        for (groups, mounts, expected) in cases {
            let found = memory_cgroup_dirs(groups.as_bytes(), mounts.as_bytes());
            assert_eq!(found, expected, "{groups}{mounts}");
        }
    }
}
