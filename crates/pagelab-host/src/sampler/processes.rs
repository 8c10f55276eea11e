//! Processes: how much of their memory is huge pages. A series for each process.

use std::collections::BTreeSet;
use std::time::Duration;

use pagelab_model::process::ProcessMemory;
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsentWhy, PageSize, Reading};

use super::metrics::Which;
use super::source::Source;
use super::tables::{Columns, Tables};
use crate::capture::pattern;
use crate::paths;
use crate::processes::{Budget, read_these};
use crate::reader::Reader;
use crate::root::Root;

/// Processes read at a time, and the time for them: smaps_rollup walks page tables under the mmap lock.
const BUDGET: Budget = Budget {
    processes_max: 8,
    each: Duration::from_millis(50),
    total: Duration::from_millis(200),
    deep: false,
};

#[derive(Debug)]
pub(super) struct Processes {
    root: Root,
    page_size: PageSize,
    which: Which,
    has_told_budget: bool,
}

impl Processes {
    pub fn open(root: &Root, page_size: PageSize, which: &Which) -> Reading<Processes> {
        let processes =
            Processes { root: root.clone(), page_size, which: which.clone(), has_told_budget: false };
        let refused = |detail: String| Absence::new(paths::PROC, AbsentWhy::NotThere, detail);
        match which {
            Which::Pid(pid) => root
                .read(&paths::process(*pid, "statm"))
                .map(|_| ())
                .map_err(|_| refused(format!("there is no process {pid}")).or("look with ps"))?,
            Which::Named(name) if processes.wanted().is_some_and(|pids| pids.is_empty()) => {
                let way_out = "names are the first 15 bytes that ps -o comm prints; * is any text";
                return Err(refused(format!("no process is called {}", name.escape_debug())).or(way_out));
            }
            _ => {}
        }
        Ok(processes)
    }

    /// The processes that are asked for by number or name; `None`: all.
    fn wanted(&self) -> Option<BTreeSet<u32>> {
        let wanted = match &self.which {
            Which::Largest => return None,
            Which::Pid(pid) => return Some(BTreeSet::from([*pid])),
            Which::Named(wanted) => wanted,
        };
        let is_called = |pid: &u32| {
            let name = self.root.read(&paths::process(*pid, "comm")).unwrap_or_default();
            pattern::matches(wanted, &String::from_utf8_lossy(name.trim_ascii_end()))
        };
        let names = self.root.list(paths::PROC).unwrap_or_default();
        Some(names.iter().filter_map(|name| name.parse().ok()).filter(is_called).collect())
    }
}

impl Source for Processes {
    fn read(&mut self, tables: &mut Tables) -> Reading<()> {
        let wanted = self.wanted();
        let reader = Reader::new(&self.root);
        let is_wanted = |pid| wanted.as_ref().is_none_or(|wanted| wanted.contains(&pid));
        let coverage = read_these(&reader, self.page_size, &BUDGET, is_wanted)?;
        for process in &coverage.processes {
            let name = process.name.as_deref().unwrap_or("?");
            let source = paths::process(process.pid, "smaps_rollup");
            tables.put(&format!("process {} {name}", process.pid), &source, columns(process));
        }
        if (coverage.budget_spent || coverage.over_budget > 0) && !self.has_told_budget {
            self.has_told_budget = true;
            let text = "processes: some are left out, since walking their page tables takes too long";
            tables.notices.push(super::Notice { kind: "left out", text: text.to_owned() });
        }
        coverage.unreadable.map_or(Ok(()), |(_, absence)| Err(absence))
    }

    fn comes_and_goes(&self) -> bool {
        true
    }
}

/// The names are those of smaps_rollup; AnonHugePages and its like count memory mapped by whole huge pages.
fn columns(process: &ProcessMemory) -> Columns {
    let mut columns = Columns::default();
    for (name, bytes) in [
        ("Rss", process.rss),
        ("Anonymous", process.anonymous),
        ("AnonHugePages", process.anon_huge),
        ("ShmemPmdMapped", process.shmem_huge),
        ("FilePmdMapped", process.file_huge),
        ("Hugetlb", process.hugetlb),
    ] {
        columns.amount(name, Unit::BYTES, Some(bytes.0));
    }
    columns.amount("read_ns", Unit::NANOSECONDS, Some(process.read_ns));
    columns
}
