//! Transparent huge pages by size: the counters below `hugepages-*kB/stats` (6.10 and later,
//! mm/huge_memory.c), and khugepaged's own.

use std::fs::File;
use std::os::unix::fs::FileExt;

use pagelab_formats::setting;
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsenceReason, Reading};

use super::source::MetricSource;
use super::tables::{ColumnBuilder, Tables};
use crate::paths;
use crate::root::Root;
use crate::settings::parse_size_dirs;

/// khugepaged's counters; its other files are settings.
const KHUGEPAGED_COUNTERS: [&str; 2] = ["pages_collapsed", "full_scans"];
/// More than the number of files of any kernel here.
const FILES_MAX: usize = 1000;

/// One number each, kept open.
#[derive(Debug)]
pub(super) struct ThpSource {
    files: Vec<(String, File)>,
}

impl ThpSource {
    pub fn open(root: &Root) -> Reading<ThpSource> {
        let mut files = Vec::new();
        let mut open_counter = |name: String, path: &str| match root.open_regular_file(path) {
            Ok(file) => {
                files.push((name, file));
                Ok(())
            }
            // For example no more descriptors: the other files must still be read.
            Err(absence) if absence.why == AbsenceReason::Failed => {
                Err(absence.with_hint("raise `ulimit -n`, or leave thp out of --metrics"))
            }
            Err(_) => Ok(()),
        };
        let names = root.list_dir(paths::THP)?;
        let mut sizes: Vec<_> = parse_size_dirs(&names).collect();
        sizes.sort_unstable();
        for (_, size) in sizes {
            let folder = format!("{}/{size}/stats", paths::THP);
            for name in root.list_dir(&folder).unwrap_or_default() {
                open_counter(format!("{size}/{name}"), &format!("{folder}/{name}"))?;
            }
        }
        for name in KHUGEPAGED_COUNTERS {
            open_counter(format!("khugepaged/{name}"), &format!("{}/{name}", paths::KHUGEPAGED))?;
        }
        files.truncate(FILES_MAX);
        if files.is_empty() {
            let detail = "this kernel has no per-size THP counters";
            return Err(Absence::new(root.display_path(paths::THP), AbsenceReason::NotThere, detail)
                .with_hint("use Linux 6.10 or later, or the thp_… counters of vmstat"));
        }
        Ok(ThpSource { files })
    }
}

impl MetricSource for ThpSource {
    fn read(&mut self, tables: &mut Tables) -> Reading<()> {
        let mut columns = ColumnBuilder::default();
        let mut first_absence = None;
        let mut buffer = [0; 64];
        for (name, file) in &self.files {
            let value = match file.read_at(&mut buffer, 0) {
                Ok(count) => setting::parse_u64(&buffer[..count]).ok(),
                Err(error) => {
                    let path = format!("{}/{name}", paths::THP);
                    first_absence.get_or_insert(Absence::new(path, AbsenceReason::Failed, error.to_string()));
                    None
                }
            };
            // Present numbers of folios; everything else counts events.
            let is_amount = name.rsplit('/').next().is_some_and(|name| name.starts_with("nr_"));
            columns.add_column(name.clone(), Unit::COUNT, !is_amount, value);
        }
        tables.set_row("thp", paths::THP, columns);
        first_absence.map_or(Ok(()), Err)
    }
}
