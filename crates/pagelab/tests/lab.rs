//! Tests of the mapping laboratory: recipes at their quick size, the explained process map, a page cache
//! dropped from outside.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail where they stand")]
#![allow(clippy::print_stderr, reason = "a skipped check says so")]

mod support;

use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagelab_model::experiment::{Experiment, TrialEnd};
use pagelab_runfile::read_run_file;
use serde_json::Value;
use support::running::wait_until;
use support::{CommandOutput, Lab};

/// What drops the page cache, and what must not have it dropped, take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: not-root: caches are dropped and memory is fragmented by root");
    }
    is_root
}

/// With a PATH, as a user has it.
fn run_pagelab(lab: &Lab, args: &[&str]) -> CommandOutput {
    let mut command = lab.command(args);
    let output = command.env("PATH", "/usr/bin:/bin").stdin(Stdio::null()).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    CommandOutput { code: output.status.code(), out, err }
}

fn experiment(lab: &Lab, name: &str) -> Experiment {
    *read_run_file(&lab.path().join(name)).unwrap().experiment.unwrap()
}

#[test]
fn two_recipes_come_to_their_end_at_their_quick_size() {
    if !is_root() {
        return;
    }
    let _turn = turn();
    let lab = Lab::new();
    for (recipe, variants) in [("mmap-lab", 14), ("fragment-compact", 2)] {
        let file = format!("{recipe}.pagelab");
        let ran = run_pagelab(&lab, &["run", recipe, "--quick", "-o", &file]);
        assert_eq!(ran.code, Some(0), "{recipe}\n{}{}", ran.out, ran.err);
        let of = experiment(&lab, &file);
        assert_eq!((of.plan.variants.len(), of.trials.len()), (variants, variants + 1), "{recipe}");
        assert!(of.trials.iter().all(|trial| trial.end == TrialEnd::Done), "{}", ran.out);
        assert!(ran.out.contains("too few to decide"), "{}", ran.out);
    }
    let of = experiment(&lab, "mmap-lab.pagelab");
    let value = |variant: &str, name: &str| {
        let trial = of.trials.iter().find(|trial| {
            of.plan.variants[of.plan.schedule.get(trial.slot).unwrap().variant].name == variant
        });
        let measure = trial.unwrap().measures.iter().find(|measure| measure.name == name);
        *measure.unwrap_or_else(|| panic!("{variant} has no {name}")).value.as_ref().unwrap()
    };
    assert_eq!(value("dropped-file", "figure.cached_before"), 0.0);
    // The same accesses, whatever is mapped.
    for variant in ["anon-shared", "file-shared", "private-file", "sparse-file", "anon-beside"] {
        for name in ["figure.loads", "figure.stores"] {
            assert_eq!(value(variant, name), value("anon-private", name), "{variant}");
        }
    }
    let report = run_pagelab(&lab, &["report", "mmap-lab.pagelab"]).out;
    for words in ["all variants", "relative to anon-private", "caches  ", "TLB  ", "counters  "] {
        assert!(report.contains(words), "{words}: {report}");
    }
    let shown = |flag: &str| run_pagelab(&lab, &["report", flag, "mmap-lab.pagelab"]).out.lines().count();
    assert!(shown("-v") < shown("-vv"), "what no variant changes is left out");
}

/// Pages written back since boot; a read of `stat_refresh` adds up the counts of all processors first.
fn written_pages() -> u64 {
    std::fs::read("/proc/sys/vm/stat_refresh").unwrap();
    let vmstat = std::fs::read_to_string("/proc/vmstat").unwrap();
    vmstat.lines().find_map(|line| line.strip_prefix("nr_written ")).unwrap().parse().unwrap()
}

/// MAP_POPULATE of a shared file maps for reading: stores fault once more, unless it was for writing. Then
/// only pages fault again that writeback cleaned and write-protected meanwhile, for example by another
/// program's sync.
#[test]
fn a_file_populated_for_writing_faults_again_only_after_writeback() {
    if !is_root() {
        return;
    }
    let _turn = turn();
    let lab = Lab::new();
    let pages = (32 << 20) / rustix::param::page_size() as u64;
    let faults_after = |populate: &str| {
        let words = ["workload", "mmap-access", "--size", "32M", "--mapping", "file", "--sharing", "shared"];
        let ran =
            run_pagelab(&lab, &[&words[..], &["--file", "prewritten", "--populate", populate]].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let document: Value = serde_json::from_str(&ran.out).unwrap();
        let mut figures = document["figures"].as_array().unwrap().iter();
        let figure = figures.find(|figure| figure["name"] == "write_faults_after_populate");
        figure.unwrap()["value"].as_f64().unwrap() as u64
    };
    assert!(faults_after("populate") > 0);
    wait_until("a run without writeback", || {
        let before = written_pages();
        let faults = faults_after("populate-write");
        // The preparation of the file writes each page once.
        let others = (written_pages() - before).saturating_sub(pages);
        assert!(faults <= others, "{faults} faults, {others} pages written back");
        others == 0
    });
}

/// A file of 96 MiB, and a competitor that leaves more than that of the limit that both share, and less.
const SCARCE: &str = r#"
name = "scarce"
question = "Does a competitor that leaves too little memory show in the accesses?"
repeats = 1
warm_up = 0
twins = false
[[workload]]
built_in = "mmap-access"
options = { size = "96M", mapping = "file", sharing = "shared", file = "prewritten" }
[[variant]]
name = "roomy"
memory_limit = "256M"
hog = { leaves = "200M", how = "process" }
pin = "if-two"
[[variant]]
name = "scarce"
memory_limit = "256M"
hog = { leaves = "48M", how = "process" }
pin = "if-two"
"#;

#[test]
fn a_competitor_that_leaves_too_little_of_a_shared_limit_takes_the_file_out_of_memory() {
    if !is_root() {
        return;
    }
    let _turn = turn();
    let lab = Lab::new();
    lab.write("scarce.toml", SCARCE);
    let ran = run_pagelab(&lab, &["run", "scarce.toml", "-o", "scarce.pagelab"]);
    if ran.out.contains("hog.leaves") || ran.err.contains("hog.leaves") {
        eprintln!("skipped: no-memory-cgroup: {}", ran.out);
        return;
    }
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    let run = read_run_file(&lab.path().join("scarce.pagelab")).unwrap();
    let pinned = run.events.iter().filter(|event| event.text.contains("pin: ")).count();
    assert_eq!(pinned, 2, "each trial says which CPU it had: {:?}", run.events);
    let of = *run.experiment.unwrap();
    let value = |variant: &str, name: &str| {
        let is_it =
            |slot: usize| of.plan.variants[of.plan.schedule.get(slot).unwrap().variant].name == variant;
        let trial = of.trials.iter().find(|trial| is_it(trial.slot)).unwrap();
        let measure = trial.measures.iter().find(|measure| measure.name == name);
        *measure.unwrap_or_else(|| panic!("{variant} has no {name}")).value.as_ref().unwrap()
    };
    // In a file system in memory nothing can be read from a disk.
    if value("scarce", "rusage.oublock") > 0.0 {
        let read = |variant: &str| value(variant, "phase.rusage.inblock") * 512.0 / f64::from(1 << 20);
        assert!(read("scarce") > 24.0 && read("roomy") < 8.0, "{} and {} MiB", read("scarce"), read("roomy"));
    }
    // The whole process wrote and synced the file before, and checks it after.
    for variant in ["roomy", "scarce"] {
        assert!(value(variant, "phase.wall") < value(variant, "wall"), "{variant}");
        assert!(value(variant, "phase.cpu.system") < value(variant, "cpu.system"), "{variant}");
    }
}

#[test]
fn a_run_without_counters_can_have_one_model_of_each_variant() {
    let lab = Lab::new();
    let recipe = "name = \"m\"\nquestion = \"q\"\nrepeats = 2\nwarm_up = 0\ntwins = false\n[[workload]]\n\
                  built_in = \"chase\"\noptions = { size = \"64M\", steps = \"300000\" }\n\
                  [[variant]]\nname = \"base\"\noptions = { advise = \"nohuge\" }\n\
                  [[variant]]\nname = \"huge\"\noptions = { advise = \"huge\" }\n";
    lab.write("m.toml", recipe);
    let mut command = lab.command(&["run", "m.toml", "--model", "-o", "m.pagelab"]);
    for name in ["PATH", "HOME", "XDG_CACHE_HOME"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    let output = command.stdin(Stdio::null()).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    let run = read_run_file(&lab.path().join("m.pagelab")).unwrap();
    if err.contains("model: not needed") {
        let mut measures = run.experiment.iter().flat_map(|of| &of.trials).flat_map(|trial| &trial.measures);
        assert!(measures.all(|measure| !measure.name.starts_with("model.")), "{err}");
        return;
    }
    if run.events.iter().any(|event| event.text.contains("cannot profile with --source exact: QEMU")) {
        eprintln!("skipped: qemu-user-not-to-be-had: {err}");
        return;
    }
    let of = *run.experiment.unwrap();
    let modelled = |variant: usize, name: &str| -> Vec<f64> {
        let trials =
            of.trials.iter().filter(|trial| of.plan.schedule.get(trial.slot).unwrap().variant == variant);
        let found = trials.flat_map(|trial| &trial.measures).filter(|measure| measure.name == name);
        found.map(|measure| *measure.value.as_ref().unwrap()).collect()
    };
    let [base, huge] = [0, 1].map(|variant| modelled(variant, "model.tlb-misses"));
    assert_eq!((base.len(), huge.len()), (1, 1), "one run each\n{err}");
    // 300 000 dependent steps over 64 MiB: nearly each a walk on base pages, and none on 32 huge ones.
    assert!(base[0] > 200_000.0 && huge[0] < base[0] / 10.0, "{base:?} and {huge:?}\n{err}");
    for trial in &of.trials {
        let counted = |name: &str| trial.measures.iter().find(|measure| measure.name == name).unwrap();
        assert!(counted("counter.dTLB-load-misses").value.is_err(), "no model in a counter's column");
    }
    let report = run_pagelab(&lab, &["report", "-vv", "m.pagelab"]).out;
    for words in [
        "modelled TLB misses, one run each: ",
        "model.tlb-misses",
        "model.miss_rate.accesses",
        "modelled once, no interval",
    ] {
        assert!(report.replace("\n", " ").contains(words), "{words}: {report}");
    }
}

/// The first workload drops the cache each time it runs, the second the first time only.
const DROPS: &str = r#"
name = "drops"
question = "Is a trial kept during which the page cache was dropped?"
repeats = 1
warm_up = 0
twins = false
[[workload]]
name = "always"
command = ["sh", "-c", "echo x >> always; echo 1 > /proc/sys/vm/drop_caches"]
[[workload]]
name = "once"
command = ["sh", "-c", "echo x >> once; if [ $(wc -l < once) = 1 ]; then echo 1 > /proc/sys/vm/drop_caches; fi"]
[[variant]]
name = "as it is"
"#;

/// How often anybody has dropped it.
fn drops() -> u64 {
    let vmstat = std::fs::read_to_string("/proc/vmstat").unwrap();
    let line = vmstat.lines().find_map(|line| line.strip_prefix("drop_pagecache ")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn a_trial_during_which_the_page_cache_was_dropped_is_made_once_more_and_then_rejected() {
    if !is_root() {
        return;
    }
    let _turn = turn();
    let lab = Lab::new();
    lab.write("drops.toml", DROPS);
    let before = drops();
    let ran = run_pagelab(&lab, &["run", "drops.toml", "-o", "drops.pagelab"]);
    let dropped = drops() - before;
    let runs = |name: &str| std::fs::read_to_string(lab.path().join(name)).unwrap().lines().count();
    assert_eq!((runs("always"), runs("once")), (2, 2), "each is repeated once\n{}", ran.err);
    assert_eq!(ran.code, Some(5), "{}{}", ran.out, ran.err);
    let of = experiment(&lab, "drops.pagelab");
    let end = |name: &str| {
        let at = |slot: usize| of.plan.workloads[of.plan.schedule.get(slot).unwrap().workload].name.as_str();
        let of_it: Vec<_> = of.trials.iter().filter(|trial| at(trial.slot) == name).collect();
        assert_eq!(of_it.len(), 1, "{of_it:?}");
        of_it[0].end.clone()
    };
    let rejected = TrialEnd::Rejected("another process dropped the page cache during the trial".to_owned());
    assert_eq!(end("always"), rejected);
    // Three are ours; somebody else on the machine may have dropped it in the second attempt too.
    if dropped == 3 {
        assert_eq!(end("once"), TrialEnd::Done);
    }
    assert!(ran.out.contains("rejected: another process dropped the page"), "{}", ran.out);
}

#[test]
fn the_process_map_is_explained_line_by_line() {
    let lab = Lab::new();
    let args = ["workload", "mmap-access", "--size", "8M", "--mapping", "file", "--sharing", "shared"];
    let said = run_pagelab(&lab, &[&args[..], &["--explain"]].concat());
    assert_eq!(said.code, Some(0), "{}", said.err);
    for words in [
        "THE MAPPING UNDER TEST: shared, of ",
        "8 MiB dirty",
        "text: code of ",
        "bss: zero-initialised variables of ",
        "heap: the brk(2) area",
        "stack of the main thread",
        "vdso: kernel code",
        "guard of the mapping under test",
        "The file system chooses its page sizes",
    ] {
        assert!(
            said.out.contains(words) || said.out.replace("\n      ", " ").contains(words),
            "{words}: {}",
            said.out
        );
    }
    assert!(said.out.lines().all(|line| line.chars().count() <= 80), "{}", said.out);
    // Any process: the test's own. Its lines are those of maps, as far as it does not change.
    let pid = std::process::id().to_string();
    let said = run_pagelab(&lab, &["map", "--pid", &pid, "--explain"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let stack = maps.lines().find(|line| line.ends_with("[stack]")).unwrap().split('-').next().unwrap();
    assert!(maps.lines().any(|line| said.out.contains(line.split(' ').next().unwrap())), "{}", said.out);
    assert!(!stack.is_empty() && said.out.contains("stack of the main thread"), "{}", said.out);
    let refused = run_pagelab(&lab, &["map", "--explain"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("--pid"), "{}", refused.err);
    let gone = run_pagelab(&lab, &["map", "--pid", "4194305", "--explain"]);
    assert_eq!(gone.code, Some(3), "{}", gone.err);
    assert!(gone.err.contains("no such process"), "{}", gone.err);
}

#[test]
fn a_name_that_no_workload_has_is_answered_with_those_there_are() {
    let lab = Lab::new();
    let ran = run_pagelab(&lab, &["workload", "nope"]);
    assert_eq!(ran.code, Some(2));
    for words in ["unknown workload `nope`", "chase", "mmap-access", "pagelab workload"] {
        assert!(ran.err.contains(words), "{words}: {}", ran.err);
    }
}

#[test]
fn a_hot_set_can_be_had_without_touching_its_memory() {
    let lab = Lab::new();
    let args = ["workload", "hot-regions", "--base", "0", "--size", "512M", "--rounds", "1"];
    let hot = |first: &str| -> Value {
        let said = run_pagelab(&lab, &[&args[..], &["--first", first]].concat());
        assert_eq!(said.code, Some(0), "{}", said.err);
        serde_json::from_str(&said.out).unwrap()
    };
    let said = hot("none");
    let generated = said["generated"].as_str().unwrap();
    assert!(generated.contains("first touch by the reads themselves"), "{said}");
    let offsets = |of: &Value| {
        let regions = of["hot_regions"].as_array().unwrap().iter();
        regions.map(|region| region["offset_bytes"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let small = hot("read");
    assert_eq!(offsets(&said), offsets(&small));
}
