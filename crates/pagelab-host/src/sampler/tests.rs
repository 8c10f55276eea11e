//! Tests of the sampler on trees that change during the test.

use std::fs;
use std::path::Path;

use pagelab_model::AbsenceReason;

use super::{MetricValues, Metrics, Sampler, Table};
use crate::root::Root;

/// A saved tree that can be written over.
struct Tree {
    folder: tempfile::TempDir,
}

impl Tree {
    fn new(files: &[(&str, &str)]) -> Tree {
        let tree = Tree { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(tree.folder.path().join("proc")).unwrap();
        files.iter().for_each(|(path, text)| tree.write(path, text));
        tree
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.folder.path().join(Path::new(path).strip_prefix("/").unwrap())
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn sampler(&self, metrics: &str) -> Sampler {
        let root = Root::open(self.folder.path()).unwrap();
        Sampler::open(&root, &Metrics::parse(metrics).unwrap())
    }
}

fn fresh_tables(sampler: &Sampler) -> Vec<&Table> {
    let tables = sampler.metric_samples().flat_map(|part| match part.values {
        MetricValues::Tables(tables) => tables,
        _ => &[],
    });
    tables.filter(|table| table.is_fresh).collect()
}

fn value(table: &Table, column: &str) -> Option<i64> {
    let at = table.heads.iter().position(|head| head.name == column).unwrap_or_else(|| panic!("{column}"));
    table.row[at]
}

const S: u64 = 1_000_000_000;

#[test]
fn counters_of_huge_pages_by_size() {
    let thp = "/sys/kernel/mm/transparent_hugepage";
    let tree = Tree::new(&[
        (&format!("{thp}/enabled"), "always [madvise] never\n"),
        (&format!("{thp}/hugepages-2048kB/stats/anon_fault_alloc"), "7\n"),
        (&format!("{thp}/hugepages-64kB/stats/nr_anon"), "3\n"),
        (&format!("{thp}/hugepages-64kB/stats/split"), "4\n"),
        (&format!("{thp}/khugepaged/pages_collapsed"), "11\n"),
        (&format!("{thp}/khugepaged/defrag"), "1\n"),
    ]);
    let mut sampler = tree.sampler("thp");
    assert_eq!(sampler.absences(), []);
    sampler.sample(0);
    let heads = |sampler: &Sampler| -> Vec<(String, bool)> {
        fresh_tables(sampler)[0].heads.iter().map(|head| (head.name.clone(), head.is_counter)).collect()
    };
    let want = [
        ("hugepages-64kB/nr_anon", false),
        ("hugepages-64kB/split", true),
        ("hugepages-2048kB/anon_fault_alloc", true),
        ("khugepaged/pages_collapsed", true),
    ];
    assert_eq!(heads(&sampler), want.map(|(name, grows)| (name.to_owned(), grows)));
    assert_eq!(fresh_tables(&sampler)[0].row, [3, 4, 7, 11].map(Some));
    tree.write(&format!("{thp}/hugepages-64kB/stats/split"), "9\n");
    tree.write(&format!("{thp}/hugepages-64kB/stats/nr_anon"), "nonsense\n");
    sampler.sample(S);
    assert_eq!(fresh_tables(&sampler)[0].row, [None, Some(9), Some(7), Some(11)]);
    let none = Tree::new(&[(&format!("{thp}/enabled"), "always [madvise] never\n")]).sampler("thp");
    assert!(none.is_empty() && none.absences()[0].1.hint.is_some(), "{:?}", none.absences());
}

const V2: &str = "36 25 0:31 / /cg rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
const STAT: &str = "anon 40\nfile 50\nanon_thp 30\nfile_thp 0\npgfault 6\nsome_new_line 1\n";

fn v2(groups: &[&str]) -> Tree {
    let tree = Tree::new(&[("/proc/self/mountinfo", V2), ("/cg/cgroup.controllers", "cpu memory pids\n")]);
    for group in groups {
        tree.write(&format!("/cg{group}/memory.stat"), STAT);
        tree.write(&format!("/cg{group}/memory.current"), "4096\n");
        let psi = "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n";
        tree.write(&format!("/cg{group}/memory.pressure"), psi);
    }
    tree
}

#[test]
fn control_groups_come_and_go_each_with_its_own_series() {
    let tree = v2(&["/a", "/a/b", "/odd\u{1b}[2J'\"name"]);
    let mut sampler = tree.sampler("cgroups");
    sampler.sample(0);
    let names = |sampler: &Sampler| -> Vec<String> {
        fresh_tables(sampler).iter().map(|table| table.series.clone()).collect()
    };
    assert_eq!(names(&sampler), ["cgroup /a", "cgroup /odd\u{1b}[2J'\"name", "cgroup /a/b"]);
    let group = fresh_tables(&sampler)[0].clone();
    let columns = ["memory.current", "anon", "anon_thp", "file_thp", "memory.pressure.some.total"];
    assert_eq!(columns.map(|column| value(&group, column)), [4096, 40, 30, 0, 5].map(Some));
    sampler.sample(S / 2);
    assert_eq!(names(&sampler), Vec::<String>::new(), "at most once a second");
    fs::remove_dir_all(tree.path("/cg/a")).unwrap();
    tree.write("/cg/new/memory.stat", STAT);
    sampler.sample(100 * S);
    assert_eq!(names(&sampler), ["cgroup /odd\u{1b}[2J'\"name", "cgroup /new"]);
    let ended: Vec<String> = sampler
        .notices()
        .into_iter()
        .filter(|notice| notice.kind == "ended")
        .map(|notice| notice.text)
        .collect();
    assert_eq!(ended, ["cgroup /a disappeared", "cgroup /a/b disappeared"]);
    let shape = |sampler: &Sampler, name: &str| {
        fresh_tables(sampler).iter().find(|table| table.series == name).map(|table| table.layout_version)
    };
    tree.write("/cg/a/memory.stat", "anon 1\n");
    sampler.sample(200 * S);
    assert_ne!(
        shape(&sampler, "cgroup /a"),
        Some(group.layout_version),
        "it is another group, of another shape"
    );
}

#[test]
fn groups_are_chosen_by_path_or_by_name() {
    let tree = v2(&["/system/ssh", "/system/db1", "/user/db2", "/db"]);
    for (pattern, want) in [
        ("cgroups=/system/*", "/system/db1 /system/ssh"),
        ("cgroups=db*", "/db /system/db1 /user/db2"),
        ("cgroups=/db", "/db"),
        ("cgroups=*2", "/user/db2"),
    ] {
        let mut sampler = tree.sampler(pattern);
        sampler.sample(0);
        let names: Vec<&str> =
            fresh_tables(&sampler).iter().map(|table| table.series.trim_start_matches("cgroup ")).collect();
        assert_eq!(names.join(" "), want, "{pattern}");
    }
    let none = tree.sampler("cgroups=/none");
    assert!(none.absences()[0].1.reason().contains("no cgroup matches /none"));
    let without = Tree::new(&[("/proc/self/mountinfo", V2), ("/cg/cgroup.controllers", "cpu\n")]);
    assert_eq!(without.sampler("cgroups").absences()[0].1.why, AbsenceReason::NotThere);
}

#[test]
fn more_groups_than_are_read_are_told_once() {
    let names: Vec<String> = (0..70).map(|number| format!("/g{number:02}")).collect();
    let tree = v2(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut sampler = tree.sampler("cgroups");
    for round in 0..3 {
        sampler.sample(round * 1000 * S);
        assert_eq!(fresh_tables(&sampler).len(), 64);
        let told = sampler.notices().iter().filter(|notice| notice.kind == "left out").count();
        assert_eq!(told, usize::from(round == 0));
    }
}

#[test]
fn slab_caches_that_were_once_large_stay() {
    let head = "slabinfo - version: 2.1\n# name <active_objs> <num_objs> <objsize> <objperslab> \
                <pagesperslab> : tunables : slabdata\n";
    let cache = |name: &str, slabs: u64| {
        format!("{name} 5 10 64 64 1 : tunables 0 0 0 : slabdata {slabs} {slabs} 0\n")
    };
    let many: String = (0..30).map(|number| cache(&format!("c{number:02}"), 100 - number)).collect();
    let tree = Tree::new(&[("/proc/slabinfo", &format!("{head}{many}"))]);
    let mut sampler = tree.sampler("slab");
    sampler.sample(0);
    let columns = |sampler: &Sampler| fresh_tables(sampler)[0].heads.len();
    let (before, shape) = (columns(&sampler), fresh_tables(&sampler)[0].layout_version);
    assert_eq!(before, 2 * 20 + 2, "twenty caches, and what reading cost");
    tree.write("/proc/slabinfo", &format!("{head}{many}{}", cache("large", 1000)));
    sampler.sample(1000 * S);
    assert_eq!(columns(&sampler), before + 2);
    assert_ne!(fresh_tables(&sampler)[0].layout_version, shape);
    assert!(value(fresh_tables(&sampler)[0], "c19/bytes").is_some_and(|bytes| bytes > 0));
}

#[test]
fn a_slow_file_that_cannot_be_read_for_a_while_has_no_value() {
    let zone = "Node 0, zone Normal\n  pages free 5\n        min 1\n        low 2\n        high 3\n";
    let tree = Tree::new(&[("/proc/zoneinfo", zone)]);
    let mut sampler = tree.sampler("zoneinfo");
    sampler.sample(0);
    assert_eq!(value(fresh_tables(&sampler)[0], "0/Normal/low"), Some(2));
    for (round, (text, low, told)) in
        [("junk\n", None, Some("unreadable")), ("junk\n", None, None), (zone, Some(2), Some("readable"))]
            .into_iter()
            .enumerate()
    {
        tree.write("/proc/zoneinfo", text);
        sampler.sample((round as u64 + 1) * 1000 * S);
        assert_eq!(value(fresh_tables(&sampler)[0], "0/Normal/low"), low, "{round}");
        let kinds: Vec<&str> = sampler.notices().iter().map(|notice| notice.kind).collect();
        let kinds: Vec<&str> = kinds.into_iter().filter(|kind| *kind != "cadence").collect();
        assert_eq!(kinds, told.into_iter().collect::<Vec<_>>(), "{round}");
    }
}
