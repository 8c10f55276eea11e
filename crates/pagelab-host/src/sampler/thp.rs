//! Transparent huge pages by size: the counters below `hugepages-*kB/stats` (6.10 and later,
//! mm/huge_memory.c), and khugepaged's own.

use std::fs::File;
use std::os::unix::fs::FileExt;

use pagelab_formats::scalar;
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsentWhy, Reading};

use super::source::Source;
use super::tables::{Columns, Tables};
use crate::paths;
use crate::root::Root;

/// khugepaged's counters; its other files are settings.
const KHUGEPAGED: [&str; 2] = ["pages_collapsed", "full_scans"];
/// More files than any kernel has here.
const FILES_MAX: usize = 1000;

/// One number each, kept open.
#[derive(Debug)]
pub(super) struct Thp {
    files: Vec<(String, File)>,
}

impl Thp {
    pub fn open(root: &Root) -> Reading<Thp> {
        let mut files = Vec::new();
        let mut keep = |name: String, path: &str| match root.file(path) {
            Ok(file) => {
                files.push((name, file));
                Ok(())
            }
            // No more descriptors, for example: the others must not do without theirs.
            Err(absence) if absence.why == AbsentWhy::Failed => {
                Err(absence.or("a larger `ulimit -n`, or --metrics without thp"))
            }
            Err(_) => Ok(()),
        };
        let mut sizes: Vec<(u64, String)> = root
            .list(paths::THP)?
            .into_iter()
            .filter_map(|name| {
                let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
                Some((kib, name))
            })
            .collect();
        sizes.sort_unstable();
        for (_, size) in sizes {
            let folder = format!("{}/{size}/stats", paths::THP);
            for name in root.list(&folder).unwrap_or_default() {
                keep(format!("{size}/{name}"), &format!("{folder}/{name}"))?;
            }
        }
        for name in KHUGEPAGED {
            keep(format!("khugepaged/{name}"), &format!("{}/{name}", paths::KHUGEPAGED))?;
        }
        files.truncate(FILES_MAX);
        if files.is_empty() {
            let detail = "this kernel has no counters of huge pages there";
            return Err(Absence::new(root.show(paths::THP), AbsentWhy::NotThere, detail)
                .or("Linux 6.10 or later; thp_… of vmstat has sums over all sizes"));
        }
        Ok(Thp { files })
    }
}

impl Source for Thp {
    fn read(&mut self, tables: &mut Tables) -> Reading<()> {
        let mut columns = Columns::default();
        let mut failed = None;
        let mut buffer = [0; 64];
        for (name, file) in &self.files {
            let value = match file.read_at(&mut buffer, 0) {
                Ok(count) => scalar::parse_u64(&buffer[..count]).ok(),
                Err(error) => {
                    let path = format!("{}/{name}", paths::THP);
                    failed.get_or_insert(Absence::new(path, AbsentWhy::Failed, error.to_string()));
                    None
                }
            };
            // Amounts of folios that there are now; everything else counts events.
            let is_amount = name.rsplit('/').next().is_some_and(|name| name.starts_with("nr_"));
            columns.add(name.clone(), Unit::COUNT, !is_amount, value);
        }
        tables.put("thp", paths::THP, columns);
        failed.map_or(Ok(()), Err)
    }
}
