//! Processes: their memory in huge pages. A series for each process.

use std::collections::BTreeSet;
use std::time::Duration;

use pagelab_model::process::ProcessMemory;
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsenceReason, PageSize, Reading};

use super::metrics::ProcessFilter;
use super::source::MetricSource;
use super::tables::{ColumnBuilder, Tables};
use crate::capture::pattern;
use crate::paths;
use crate::processes::{ScanBudget, read_matching};
use crate::reader::Reader;
use crate::root::Root;

/// Processes read at a time, and the time for them: smaps_rollup walks page tables under the mmap lock.
const SCAN_BUDGET: ScanBudget = ScanBudget {
    processes_max: 8,
    per_process: Duration::from_millis(50),
    total: Duration::from_millis(200),
    with_smaps: false,
};

#[derive(Debug)]
pub(super) struct ProcessSource {
    root: Root,
    page_size: PageSize,
    filter: ProcessFilter,
    has_reported_budget: bool,
}

impl ProcessSource {
    pub fn open(root: &Root, page_size: PageSize, filter: &ProcessFilter) -> Reading<ProcessSource> {
        let processes = ProcessSource {
            root: root.clone(),
            page_size,
            filter: filter.clone(),
            has_reported_budget: false,
        };
        let refused = |detail: String| Absence::new(paths::PROC, AbsenceReason::NotThere, detail);
        match filter {
            ProcessFilter::Pid(pid) => root
                .read(&paths::process_file(*pid, "statm"))
                .map(drop)
                .map_err(|_| refused(format!("no process {pid}")).with_hint("list processes with `ps -e`"))?,
            ProcessFilter::ByName(name) if processes.selected_pids().is_some_and(|pids| pids.is_empty()) => {
                let refusal = refused(format!("no process is named {}", name.escape_debug()));
                let hint = "names are the first 15 bytes of what `ps -o comm` prints; * matches any text";
                return Err(refusal.with_hint(hint));
            }
            _ => {}
        }
        Ok(processes)
    }

    /// Processes selected by number or name; `None`: all.
    fn selected_pids(&self) -> Option<BTreeSet<u32>> {
        let wanted = match &self.filter {
            ProcessFilter::Largest => return None,
            ProcessFilter::Pid(pid) => return Some(BTreeSet::from([*pid])),
            ProcessFilter::ByName(wanted) => wanted,
        };
        let is_called = |pid: &u32| {
            let name = self.root.read(&paths::process_file(*pid, "comm")).unwrap_or_default();
            pattern::is_match(wanted, &String::from_utf8_lossy(name.trim_ascii_end()))
        };
        Some(self.root.list_processes().unwrap_or_default().into_iter().filter(is_called).collect())
    }
}

impl MetricSource for ProcessSource {
    fn read(&mut self, tables: &mut Tables) -> Reading<()> {
        let wanted = self.selected_pids();
        let reader = Reader::new(&self.root);
        let is_wanted = |pid| wanted.as_ref().is_none_or(|wanted| wanted.contains(&pid));
        let coverage = read_matching(&reader, self.page_size, &SCAN_BUDGET, is_wanted)?;
        for process in &coverage.processes {
            let name = process.name.as_deref().unwrap_or("?");
            let source = paths::process_file(process.pid, "smaps_rollup");
            tables.set_row(&format!("process {} {name}", process.pid), &source, memory_columns(process));
        }
        if (coverage.is_budget_spent || coverage.skipped_over_budget > 0) && !self.has_reported_budget {
            self.has_reported_budget = true;
            let text = "processes: some were skipped, because walking their page tables takes too long";
            tables.notices.push(super::Notice { kind: "left out", text: text.to_owned() });
        }
        coverage.unreadable.map_or(Ok(()), |(_, absence)| Err(absence))
    }

    fn has_transient_series(&self) -> bool {
        true
    }
}

/// The names are those of smaps_rollup; AnonHugePages and similar fields count memory mapped by whole huge
/// pages.
fn memory_columns(process: &ProcessMemory) -> ColumnBuilder {
    let mut columns = ColumnBuilder::default();
    for (name, bytes) in [
        ("Rss", process.rss),
        ("Anonymous", process.anonymous),
        ("AnonHugePages", process.anon_huge),
        ("ShmemPmdMapped", process.shmem_huge),
        ("FilePmdMapped", process.file_huge),
        ("Hugetlb", process.hugetlb),
    ] {
        columns.add_amount(name, Unit::BYTES, Some(bytes.0));
    }
    columns.add_amount("read_ns", Unit::NANOSECONDS, Some(process.read_ns));
    columns
}
