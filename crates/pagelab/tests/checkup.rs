//! Tests of `pagelab checkup` on handwritten trees, on the corpus, and on this machine.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test panics to fail, and says what it skips")]

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use expect_test::expect;
use rustix::process::Signal;
use serde_json::Value;
use support::{CommandOutput, Lab, binary};

/// Runs the binary in a folder of its own.
fn pagelab(arguments: &[&str]) -> CommandOutput {
    Lab::new().run(arguments)
}

/// A machine of 4 GiB whose one zone holds the free blocks given, by order.
fn machine(free_blocks: &[u64]) -> Lab {
    let cells: String = free_blocks.iter().map(|n| format!(" {n:>6}")).collect();
    let free_kib: u64 = free_blocks.iter().enumerate().map(|(order, n)| (n << order) * 4).sum();
    let thp = "sys/kernel/mm/transparent_hugepage";
    let lab = Lab::new();
    lab.write("proc/buddyinfo", format!("Node 0, zone   Normal{cells} \n"));
    lab.write(
        "proc/meminfo",
        format!(
            "MemTotal:        4194304 kB\nMemFree:        {free_kib:>8} kB\nMemAvailable:    3000000 kB\n\
             Buffers:            1000 kB\nCached:           600000 kB\nSwapCached:            0 kB\n\
             AnonPages:        400000 kB\nShmem:             10000 kB\nSlab:             100000 kB\n\
             SReclaimable:      60000 kB\nSUnreclaim:        40000 kB\nKernelStack:        4000 kB\n\
             PageTables:         8000 kB\nSwapTotal:             0 kB\nSwapFree:              0 kB\n"
        ),
    );
    lab.write(
        "proc/vmstat",
        "nr_free_pages 1\nthp_fault_alloc 1000\nthp_fault_fallback 10\ncompact_stall 5\noom_kill 0\n",
    );
    lab.write("proc/sys/kernel/osrelease", "6.1.0-test\n");
    lab.write(&format!("{thp}/enabled"), "always [madvise] never\n");
    lab.write(&format!("{thp}/hpage_pmd_size"), "2097152\n");
    lab
}

/// The size of a huge page; the file is there where there are transparent huge pages.
const PMD_SIZE: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";

/// The folder of a lab as an argument.
fn root(lab: &Lab) -> &str {
    lab.path().to_str().unwrap()
}

/// Free memory in whole blocks.
const WHOLE: [u64; 11] = [10, 10, 10, 5, 5, 5, 2, 2, 1, 3, 500];
/// The same amount in pieces smaller than 2 MiB.
const PIECES: [u64; 11] = [90_000, 60_000, 40_000, 10_000, 3000, 800, 200, 50, 10, 0, 0];

#[test]
fn a_healthy_machine_has_nothing_to_do() {
    let tree = machine(&WHOLE);
    let output = pagelab(&["checkup", "--root", root(&tree)]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    let text = output.out.replace(root(&tree), "TREE");
    expect![[r#"
        TREE   4 GiB   Linux 6.1.0-test   THP madvise

          nothing found; not judged, because it cannot be read:
          TREE/proc/zoneinfo

          node  zone        free  2 MiB pages now  F_u by order 0 … 10  F_u(9)
             0  Normal  1.96 GiB            1 003  ▁▁▁▁▁▁▁▁▁▁▁           0.001

          used by programs 400 MiB   page cache 577 MiB   slab 97.7 MiB
          page tables 7.81 MiB   kernel stacks 3.91 MiB   free 1.96 GiB
          THP faults since boot: 1 000 allocated, 10 fell back (0.99 %)

        not available: hardware counters (only available on the running machine) ·
                       kpageflags, extfrag, slabinfo, psi, kernel log (not in the saved
                       tree)
        -v for everything · --json · --html FILE
    "#]]
    .assert_eq(&text);
    let brief = pagelab(&["checkup", "--brief", "--root", root(&tree)]);
    assert_eq!((brief.code, brief.out.as_str()), (Some(0), ""));
}

#[test]
fn free_memory_in_pieces_is_a_finding_with_its_number_and_the_next_command() {
    let tree = machine(&PIECES);
    let output = pagelab(&["checkup", "--root", root(&tree)]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    let text = output.out.replace(root(&tree), "TREE");
    expect![[r#"
        TREE   4 GiB   Linux 6.1.0-test   THP madvise

          1  100 % of the free memory in Normal is unusable for 2 MiB pages
             F_u(9) 1.000 on node 0, 2.08 GiB free, 0 huge pages available now
             (buddyinfo)
             → pagelab frag --explain --root TREE
             → pagelab checkup -v --root TREE
             → on that machine: pagelab compact

          node  zone        free  2 MiB pages now  F_u by order 0 … 10  F_u(9)
             0  Normal  2.08 GiB                0  ▁▂▄▆▇██████           1.000

          used by programs 400 MiB   page cache 577 MiB   slab 97.7 MiB
          page tables 7.81 MiB   kernel stacks 3.91 MiB   free 2.08 GiB
          THP faults since boot: 1 000 allocated, 10 fell back (0.99 %)

        not available: hardware counters (only available on the running machine) ·
                       kpageflags, extfrag, slabinfo, psi, kernel log (not in the saved
                       tree)
        -v for everything · --json · --html FILE
    "#]]
    .assert_eq(&text);
    let brief = pagelab(&["checkup", "--brief", "--root", root(&tree)]);
    assert_eq!(brief.code, Some(1));
    expect![[r#"
        100 % of the free memory in Normal is unusable for 2 MiB pages
    "#]]
    .assert_eq(&brief.out);
}

#[test]
fn information_is_no_finding_for_cron() {
    let tree = machine(&WHOLE);
    // 11 is the default of Linux 6.1, above the largest order: it means never.
    tree.write("sys/module/page_reporting/parameters/page_reporting_order", "11\n");
    let output = pagelab(&["checkup", "--root", root(&tree)]);
    assert!(!output.out.contains("reclaims free"), "{}", output.out);
    // A balloon reports: the host takes free memory back, and there is nothing to do about it.
    tree.write("sys/module/page_reporting/parameters/page_reporting_order", "9\n");
    tree.write("sys/bus/virtio/devices/virtio0/device", "0x0005\n");
    tree.write("sys/bus/virtio/devices/virtio0/features", "01100101\n");
    let output = pagelab(&["checkup", "--root", root(&tree)]);
    assert!(output.out.contains("reclaims free"), "{}", output.out);
    let brief = pagelab(&["checkup", "--brief", "--root", root(&tree)]);
    assert_eq!((brief.code, brief.out.as_str()), (Some(0), ""));
}

/// The last command of the first finding, for a kill in `group` on a machine with this mount and these files.
fn remedy_of_a_kill(group: &str, mount: &str, files: &[(&str, &str)]) -> String {
    let tree = machine(&WHOLE);
    let log = format!(
        "6,2,10,-;memory: usage 65536kB, limit 65536kB, failcnt 42\n\
         6,3,11,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg={group},task_memcg={group},task=java\n\
         3,4,12,-;Memory cgroup out of memory: Killed process 7 (java) total-vm:9kB\n"
    );
    for (path, text) in [("dev/kmsg", &*log), ("proc/self/mountinfo", mount)].iter().chain(files) {
        tree.write(path, *text);
    }
    let output = pagelab(&["checkup", "--json", "--root", root(&tree)]);
    let json: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(json["findings"][0]["id"], "cgroup_oom_kills", "{}", output.out);
    json["findings"][0]["next"].as_array().unwrap().last().unwrap().as_str().unwrap().to_owned()
}

#[test]
fn a_limit_that_killed_is_raised_in_the_file_of_its_group() {
    let v2 = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    let v1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    assert_eq!(
        remedy_of_a_kill("/jobs/7", v2, &[("sys/fs/cgroup/jobs/7/memory.max", "67108864\n")]),
        "echo 134217728 > /sys/fs/cgroup/jobs/7/memory.max"
    );
    let files = [
        ("sys/fs/cgroup/memory/release_agent", "\n"),
        ("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "67108864\n"),
    ];
    assert_eq!(
        remedy_of_a_kill("/jobs/7", v1, &files),
        "echo 134217728 > /sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes"
    );
    // The group is not there: the unit that made it, if the path tells.
    assert_eq!(
        remedy_of_a_kill("/system.slice/db.service", v2, &[]),
        "systemctl set-property db.service MemoryMax=134217728"
    );
    assert_eq!(remedy_of_a_kill("/jobs/8", v1, &files), "dmesg | grep -F /jobs/8");
}

/// F_u(9) is 0.0667 here; the kernel prints 0.066, since it truncates.
#[test]
fn all_commands_print_the_same_index() {
    let tree = machine(&[1023, 0, 0, 0, 0, 0, 0, 0, 0, 28, 0]);
    let file = tree.path().join("proc/buddyinfo");
    let texts = [
        pagelab(&["checkup", "--root", root(&tree)]),
        pagelab(&["checkup", "-v", "--root", root(&tree)]),
        pagelab(&["frag", "--root", root(&tree)]),
        pagelab(&["frag", "--from", file.to_str().unwrap()]),
        pagelab(&["frag", "--root", root(&tree), "--format", "unusable"]),
    ];
    for ran in &texts {
        assert!(ran.out.contains("0.066") && !ran.out.contains("0.067"), "{}{}", ran.out, ran.err);
    }
}

#[test]
fn a_malformed_file_is_named_with_its_line_and_the_rest_goes_on() {
    let tree = machine(&WHOLE);
    tree.write("proc/buddyinfo", "Node 0, zone Normal 1 2 3\nNode 0, zone Movable 1 2\n");
    let output = pagelab(&["checkup", "--root", root(&tree)]);
    assert_eq!(output.code, Some(3));
    let text = &output.out;
    assert!(text.contains("/proc/buddyinfo:2: zone Movable has 2 counts"), "{text}");
    assert!(text.contains("used by programs 400 MiB"), "{text}");
}

#[test]
fn unreadable_parts_are_not_reported_as_good() {
    let tree = Lab::new();
    tree.write("proc/vmstat", "nr_free_pages 1\nthp_fault_alloc 1\nthp_fault_fallback 0\n");
    let output = pagelab(&["checkup", "--root", root(&tree)]);
    assert!(output.out.contains("nothing found; not judged") && !output.out.contains("nothing to do"));
    let brief = pagelab(&["checkup", "--brief", "--root", root(&tree)]);
    assert_eq!((brief.code, brief.out.as_str()), (Some(0), ""));
    assert!(brief.err.contains("not judged") && brief.err.contains("meminfo"), "{}", brief.err);
}

#[test]
fn a_text_that_was_cut_off_is_bad_input() {
    let tree = machine(&WHOLE);
    tree.write("proc/buddyinfo", "Node 0, zone   Normal      1      2      37");
    let output = pagelab(&["checkup", "--root", root(&tree)]);
    assert_eq!(output.code, Some(3));
    assert!(output.out.contains("proc/buddyinfo:1: the last line has no newline"), "{}", output.out);
}

#[test]
fn command_lines_that_contradict_themselves_are_refused() {
    for arguments in [
        &["checkup", "--probe", "--root", "x"][..],
        &["checkup", "--brief", "--json"],
        &["checkup", "--tlb", "l9=what"],
        &["checkup", "--page-size", "4K"],
        &["checkup", "--page-size", "5K", "--root", "."],
    ] {
        let output = pagelab(arguments);
        assert_eq!(output.code, Some(2), "{arguments:?}: {}", output.err);
        assert!(!output.err.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_root_that_is_no_captured_tree_is_bad_input_with_a_hint() {
    let (empty, text) = (Lab::new(), Lab::new());
    text.write("not-a-tree", "hello\n");
    let missing = empty.path().join("missing");
    let file = text.path().join("not-a-tree");
    for root in [empty.path(), &missing, &file] {
        let output = pagelab(&["checkup", "--root", root.to_str().unwrap()]);
        assert_eq!(output.code, Some(3), "{}: {}", root.display(), output.err);
        assert!(output.err.contains("pagelab capture"), "{}", output.err);
    }
}

#[test]
fn no_line_is_wider_than_80_columns() {
    for tree in [machine(&WHOLE), machine(&PIECES)] {
        for more in [&[][..], &["-v"], &["-v", "--paper"]] {
            let output = pagelab(&[&["checkup", "--root", root(&tree)][..], more].concat());
            for line in output.out.lines().filter(|line| !line.contains(root(&tree))) {
                assert!(line.chars().count() <= 80, "{line}");
            }
        }
    }
}

#[test]
fn a_checkup_of_this_machine_changes_nothing() {
    let before = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    for arguments in [&["checkup"][..], &["checkup", "-v"], &["checkup", "--json"]] {
        let output = pagelab(arguments);
        assert_eq!(output.code, Some(0), "{arguments:?}: {}", output.err);
    }
    assert_eq!(std::fs::read_to_string("/proc/self/mountinfo").unwrap(), before, "nothing was mounted");
}

#[test]
fn the_probe_reports_requested_and_allocated_huge_pages() {
    let output = pagelab(&["checkup", "--probe", "--json"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    let probe = &serde_json::from_slice::<Value>(output.out.as_bytes()).unwrap()["probe"];
    let huge = &probe["huge_pages"];
    if huge.is_null() {
        eprintln!("skipped: thp-absent: {}", probe["huge_pages_absent_reason"]);
        return;
    }
    assert!(huge["requested"].as_u64().unwrap() > 0);
    assert!(huge["allocated"].as_u64() <= huge["requested"].as_u64());
    assert_eq!(huge["latency_ns"].as_array().unwrap().len() as u64, huge["requested"].as_u64().unwrap());
}

#[test]
fn the_journal_of_the_probe_exists_only_while_it_runs() {
    let mut probe = Probing::start();
    let Some(journal) = probe.journal() else { return };
    let text = std::fs::read_to_string(&journal).unwrap();
    assert!(text.contains("one-way") && text.contains("MADV_COLLAPSE"), "{text}");
    let status = probe.child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(!journal.exists(), "{}", journal.display());
}

#[test]
fn an_interrupted_probe_leaves_no_journal_behind() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut probe = Probing::start();
        let Some(journal) = probe.journal() else { return };
        rustix::process::kill_process(rustix::process::Pid::from_child(&probe.child), signal).unwrap();
        let sent = Instant::now();
        let status = probe.child.wait().unwrap();
        assert_eq!(status.code(), Some(code), "{signal:?}");
        assert!(sent.elapsed() < Duration::from_secs(60), "{:?} from {signal:?} to the end", sent.elapsed());
        assert!(!journal.exists(), "{}", journal.display());
    }
}

/// `checkup --probe` on this machine, running.
struct Probing {
    child: Child,
    lab: Lab,
}

impl Probing {
    fn start() -> Probing {
        let lab = Lab::new();
        let mut command = lab.command(&["checkup", "--probe", "--json"]);
        let child = command.env("XDG_RUNTIME_DIR", lab.path()).stdout(Stdio::null()).spawn().unwrap();
        Probing { child, lab }
    }

    /// Its journal, as soon as there is one. `None`: the probe had nothing to journal here.
    fn journal(&mut self) -> Option<PathBuf> {
        let journals =
            if is_root() { PathBuf::from("/run/pagelab") } else { self.lab.path().join("pagelab") };
        let name = format!("{}-", self.child.id());
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.child.try_wait().unwrap().is_none() {
            let mut names = std::fs::read_dir(&journals).into_iter().flatten().flatten();
            let own = names.find(|entry| entry.file_name().to_string_lossy().starts_with(&name));
            // The head is written first; the act stands in the second line.
            let is_whole =
                |path: &PathBuf| std::fs::read_to_string(path).is_ok_and(|t| t.lines().count() > 1);
            if let Some(path) = own.map(|entry| entry.path()).filter(is_whole) {
                return Some(path);
            }
            assert!(Instant::now() < deadline, "no journal in {}", journals.display());
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(!Path::new(PMD_SIZE).exists(), "the probe ended without a journal");
        eprintln!("skipped: thp-absent: no {PMD_SIZE}");
        None
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_unprivileged_user_gets_readable_parts_and_reasons_for_the_others() {
    if !is_root() {
        eprintln!("skipped: not-root: this test becomes another user");
        return;
    }
    let dir = tempfile::Builder::new().prefix("pagelab-test-").tempdir_in("/tmp").unwrap();
    let copy = dir.path().join("pagelab");
    std::fs::copy(binary(), &copy).unwrap();
    Command::new("chmod").args(["-R", "a+rX"]).arg(dir.path()).status().unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&copy)
        .args(["checkup", "--json"])
        .current_dir("/")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let look: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(look["fragmentation"]["zones"].as_array().is_some_and(|zones| !zones.is_empty()));
    assert!(look["supply_absent_reason"].as_str().unwrap().contains("kpageflags"), "{look:#}");
    assert_eq!(look["taken"]["euid"], 65534);
}

#[test]
fn every_real_machine_of_the_corpus_is_looked_at() {
    let Some(corpus) = support::corpus() else { return };
    let mut looked_at = 0;
    for entry in std::fs::read_dir(corpus.join("proc")).unwrap() {
        let path = entry.unwrap().path();
        // One folder holds two buddyinfo files under other names: `frag --from` reads those.
        if path.file_name().is_some_and(|name| name == "insights") {
            continue;
        }
        let output = pagelab(&["checkup", "-v", "--root", path.to_str().unwrap()]);
        assert_eq!(output.code, Some(0), "{}: {}{}", path.display(), output.out, output.err);
        looked_at += 1;
    }
    assert_eq!(looked_at, 11);
}

#[test]
fn json_explains_each_null_and_documents_each_field() {
    let docs = include_str!("../../../docs/json.md");
    let trees = [machine(&WHOLE), machine(&PIECES)];
    let roots: Vec<Vec<&str>> =
        trees.iter().map(|tree| vec!["checkup", "--json", "--root", root(tree)]).collect();
    let live = vec!["checkup", "--json", "--probe", "--migratetypes", "--deep"];
    let mut names = BTreeSet::new();
    for arguments in roots.iter().chain([&live]) {
        let output = pagelab(arguments);
        let look: Value = serde_json::from_slice(output.out.as_bytes()).unwrap();
        assert_eq!((&look["pagelab_json"], &look["kind"]), (&2.into(), &"checkup".into()));
        walk(&look, "", &mut names);
    }
    let undocumented: Vec<&String> =
        names.iter().filter(|name| !docs.contains(&format!("`{name}`"))).collect();
    assert!(undocumented.is_empty(), "not in docs/json.md: {undocumented:#?}");
}

/// Collects field names; objects whose keys are the kernel's own names are documented as a whole.
fn walk(value: &Value, path: &str, names: &mut BTreeSet<String>) {
    const KERNEL_NAMES: [&str; 6] = ["vmstat", "meminfo", "vm", "counters", "khugepaged", "pageblocks"];
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if field.is_null() {
                    let why = fields.get(&format!("{name}_absent_reason")).and_then(Value::as_str);
                    assert!(why.is_some_and(|why| !why.is_empty()), "{path}.{name} is null without a reason");
                }
                if !name.ends_with("_absent_reason") {
                    names.insert(name.clone());
                }
                if !KERNEL_NAMES.contains(&name.as_str()) || field.is_array() {
                    walk(field, &format!("{path}.{name}"), names);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| walk(item, path, names)),
        _ => {}
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
