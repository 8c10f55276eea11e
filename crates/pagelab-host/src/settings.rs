//! The kernel's memory settings: transparent huge pages, hugetlb pools, /proc/sys/vm, swap.

use pagelab_formats::{setting, swap, text};
use pagelab_model::settings::{HugetlbPool, Settings, ThpSettings, ThpSize};
use pagelab_model::{Absence, AbsenceReason, Bytes, Counters, Reading};

use crate::paths;
use crate::reader::Reader;

/// Files that act when they are touched: two are write-only, and reading `stat_refresh` makes every
/// processor fold its counters (mm/vmstat.c, `vmstat_refresh`).
const TRIGGER_FILES: [&str; 3] = ["compact_memory", "drop_caches", "stat_refresh"];
/// Maximum number of names of one directory; the kernel has about 60.
const NAMES_MAX: usize = 512;

/// Reads all settings.
pub fn read(reader: &Reader<'_>) -> Settings {
    let (vm, vm_absent) = read_number_files(reader, paths::SYSCTL_VM);
    Settings {
        thp: read_thp(reader),
        hugetlb: read_hugetlb_pools(reader),
        vm,
        vm_absent,
        swap: read_swap_areas(reader),
    }
}

fn read_thp(reader: &Reader<'_>) -> Reading<ThpSettings> {
    let names = reader.root().list_dir(paths::THP).map_err(|absence| {
        explain_absence(absence, "this kernel has no transparent huge pages", "CONFIG_TRANSPARENT_HUGEPAGE")
    })?;
    let at = |name: &str| format!("{}/{name}", paths::THP);
    Ok(ThpSettings {
        enabled: reader.parse(&at("enabled"), setting::parse),
        defrag: reader.parse(&at("defrag"), setting::parse),
        shmem_enabled: reader.parse(&at("shmem_enabled"), setting::parse),
        pmd_size: reader.parse(&at("hpage_pmd_size"), setting::parse_u64).map(Bytes),
        use_zero_page: reader.parse(&at("use_zero_page"), setting::parse_u64),
        sizes: read_thp_sizes(reader, &names),
        khugepaged: read_number_files(reader, &at("khugepaged")).0,
    })
}

fn read_thp_sizes(reader: &Reader<'_>, names: &[String]) -> Vec<ThpSize> {
    let mut sizes: Vec<ThpSize> = parse_size_dirs(names)
        .map(|(size, name)| {
            let at = |file: &str| format!("{}/{name}/{file}", paths::THP);
            ThpSize {
                size,
                enabled: reader.parse(&at("enabled"), setting::parse),
                shmem_enabled: reader.parse(&at("shmem_enabled"), setting::parse),
                stats: read_number_files(reader, &at("stats")).0,
            }
        })
        .collect();
    sizes.sort_by_key(|size| size.size);
    sizes
}

/// Names of the form `hugepages-2048kB` with their size.
pub(crate) fn parse_size_dirs(names: &[String]) -> impl Iterator<Item = (Bytes, &String)> {
    names.iter().take(NAMES_MAX).filter_map(|name| {
        let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
        Some((Bytes::from_kib(text::parse_number(kib.as_bytes())?), name))
    })
}

fn read_hugetlb_pools(reader: &Reader<'_>) -> Reading<Vec<HugetlbPool>> {
    let names = reader.root().list_dir(paths::HUGETLB).map_err(|absence| {
        explain_absence(absence, "this kernel has no hugetlb support", "CONFIG_HUGETLBFS")
    })?;
    let mut pools = parse_size_dirs(&names)
        .map(|(size, name)| read_hugetlb_pool(reader, size, name))
        .collect::<Reading<Vec<_>>>()?;
    pools.sort_by_key(|pool| pool.page_size);
    Ok(pools)
}

fn read_hugetlb_pool(reader: &Reader<'_>, page_size: Bytes, name: &str) -> Reading<HugetlbPool> {
    let number = |file: &str| reader.parse(&format!("{}/{name}/{file}", paths::HUGETLB), setting::parse_u64);
    Ok(HugetlbPool {
        page_size,
        total: number("nr_hugepages")?,
        free: number("free_hugepages")?,
        reserved: number("resv_hugepages")?,
        surplus: number("surplus_hugepages")?,
        overcommit: number("nr_overcommit_hugepages")?,
    })
}

fn read_swap_areas(reader: &Reader<'_>) -> Reading<Vec<pagelab_model::settings::SwapArea>> {
    let areas = reader.parse(paths::SWAPS, swap::parse);
    areas.map_err(|absence| explain_absence(absence, "this kernel has no swap support", "CONFIG_SWAP"))
}

/// The files of a directory that hold one plain number, and those that could not be read. A file with other
/// content (`lowmem_reserve_ratio` is a list) is neither.
fn read_number_files(reader: &Reader<'_>, dir: &str) -> (Counters, Vec<Absence>) {
    let names = match reader.root().list_dir(dir) {
        Ok(names) => names,
        Err(absence) => return (Counters::default(), vec![absence]),
    };
    let (mut numbers, mut absent) = (Vec::new(), Vec::new());
    for name in names.iter().take(NAMES_MAX).filter(|name| !TRIGGER_FILES.contains(&name.as_str())) {
        match reader.note_malformed(reader.root().read(&format!("{dir}/{name}"))) {
            // No number of the kernel is empty; one that was cut off to nothing is not read as absent.
            Ok(content) if content.is_empty() && !reader.root().is_live() => {
                let empty = reader.root().malformed_absence(&format!("{dir}/{name}"), "it is empty");
                absent.extend(reader.note_malformed::<()>(Err(empty)).err());
            }
            Ok(content) => {
                let number = text::parse_number(content.trim_ascii());
                if number.is_some() {
                    reader.note_truncated(&format!("{dir}/{name}"), &content);
                }
                numbers.extend(number.map(|value| (name.as_str(), value)));
            }
            Err(absence) => absent.push(absence),
        }
    }
    (numbers.into_iter().collect(), absent)
}

/// An absence with its meaning on a live machine: the kernel was built without the option.
pub(crate) fn explain_absence(absence: Absence, meaning: &str, config: &str) -> Absence {
    if absence.why != AbsenceReason::NotThere {
        return absence;
    }
    Absence::new(absence.source, AbsenceReason::NotThere, format!("{meaning} ({config} is not set)"))
        .with_hint(format!("boot a kernel built with {config}=y"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_tree::FakeTree;

    #[test]
    fn settings_of_a_tree() {
        let thp = "/sys/kernel/mm/transparent_hugepage";
        let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB";
        let tree = FakeTree::new(&[
            (&format!("{thp}/enabled"), "always [madvise] never\n"),
            (&format!("{thp}/hpage_pmd_size"), "2097152\n"),
            (&format!("{thp}/khugepaged/scan_sleep_millisecs"), "10000\n"),
            (&format!("{thp}/hugepages-2048kB/enabled"), "always [inherit] madvise never\n"),
            (&format!("{thp}/hugepages-64kB/enabled"), "always inherit madvise [never]\n"),
            (&format!("{thp}/hugepages-64kB/stats/anon_fault_alloc"), "7\n"),
            (&format!("{pool}/nr_hugepages"), "8\n"),
            (&format!("{pool}/free_hugepages"), "5\n"),
            (&format!("{pool}/resv_hugepages"), "1\n"),
            (&format!("{pool}/surplus_hugepages"), "0\n"),
            (&format!("{pool}/nr_overcommit_hugepages"), "3\n"),
            ("/proc/sys/vm/min_free_kbytes", "67584\n"),
            ("/proc/sys/vm/lowmem_reserve_ratio", "256\t256\t32\t0\t0\n"),
            ("/proc/sys/vm/stat_refresh", "1\n"),
            ("/proc/sys/vm/new_in_some_kernel", "4\n"),
            ("/proc/swaps", "Filename Type Size Used Priority\n"),
        ]);
        let root = tree.root();
        let reader = Reader::new(&root);
        let settings = read(&reader);
        let thp = settings.thp.unwrap();
        assert_eq!(thp.enabled.unwrap().selected(), "madvise");
        assert_eq!(thp.pmd_size, Ok(Bytes(2 << 20)));
        assert_eq!(thp.defrag.unwrap_err().why, AbsenceReason::NotSaved);
        assert_eq!(thp.sizes.iter().map(|s| s.size.0 >> 10).collect::<Vec<_>>(), [64, 2048]);
        assert_eq!(thp.sizes[0].stats.get("anon_fault_alloc"), Some(7));
        assert_eq!(thp.khugepaged.get("scan_sleep_millisecs"), Some(10_000));
        let pools = settings.hugetlb.unwrap();
        assert_eq!((pools[0].total, pools[0].free, pools[0].overcommit), (8, 5, 3));
        let names: Vec<&str> = settings.vm.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["min_free_kbytes", "new_in_some_kernel"]);
        assert_eq!((settings.vm_absent, settings.swap), (vec![], Ok(vec![])));
        assert_eq!(reader.problems(), []);
    }

    #[test]
    fn a_malformed_setting_is_a_problem_and_the_rest_is_read() {
        let tree = FakeTree::new(&[
            ("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise never\n"),
            ("/sys/kernel/mm/transparent_hugepage/defrag", "[never]\n"),
        ]);
        let root = tree.root();
        let reader = Reader::new(&root);
        let thp = read(&reader).thp.unwrap();
        assert_eq!(thp.enabled.unwrap_err().why, AbsenceReason::Malformed);
        assert!(thp.defrag.is_ok());
        assert_eq!(reader.problems().len(), 1);
        assert!(reader.problems()[0].message.contains("enabled:1: "), "{:?}", reader.problems());
    }

    #[test]
    fn a_kernel_without_huge_pages_says_which_option_is_missing() {
        let absence = Absence::new("x", AbsenceReason::NotThere, "");
        let said = explain_absence(absence, "this kernel has no hugetlb support", "CONFIG_HUGETLBFS");
        assert_eq!(said.reason(), "this kernel has no hugetlb support (CONFIG_HUGETLBFS is not set)");
        assert_eq!(said.hint.as_deref(), Some("boot a kernel built with CONFIG_HUGETLBFS=y"));
    }
}
