//! Tests of the kernel module in real guests, a boot of 6.1 and one of 6.12: each feature is switched, what
//! it does is seen in files of the kernel, and the module is unloaded. A longer one, `--ignored`, loads and
//! unloads it twenty times under load.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test's helpers may fail where they stand, and say so

#[path = "guest/trial.rs"]
#[allow(dead_code, reason = "the other tests use more of it")]
mod trial;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

use pagelab_formats::alloc_attempts::{self, AllocAttempt};
use pagelab_formats::{meminfo, pagetypeinfo};
use pagelab_guest::boot::GuestPlan;
use pagelab_guest::job::JobStep;
use pagelab_guest::kernel_module::ModuleCache;
use pagelab_guest::message::StepExit;
use pagelab_guest::module_build::set_up_module;
use pagelab_guest::outcome::{GuestOutcome, StepEnd};
use pagelab_model::dimms::Dimms;
use pagelab_model::{FailureKind, size};
use trial::{lock_guests, pagelab};

const CONTROL: &str = "/sys/kernel/debug/pagelab/control";
/// The memory block that is the DIMM: blocks are of 128 MiB, and it is at 4 GiB.
const DIMM_STATE: &str = "/sys/devices/system/memory/memory32/state";
const PAGETYPEINFO: &str = "/proc/pagetypeinfo";
const COUNTERS: &str = "/sys/kernel/debug/pagelab/counters";
const ATTEMPTS: &str = "/sys/kernel/debug/pagelab/attempts";
/// The share of a zone that one scan of linear reclaim reads, in percent: a quarter may miss the file.
const LINEAR_SHARE: &str = "/sys/module/pagelab/parameters/linear_share";
const VMSTAT: &str = "/proc/vmstat";
const NR_HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";
const LRU_GEN: &str = "/sys/kernel/mm/lru_gen/enabled";
/// A file that the guest has in tmpfs: pages that reclaim can take, since there is a swap disk.
const FILL_BYTES: usize = 48 << 20;
/// Of the migratetypes of /proc/pagetypeinfo, those that mobility alone distinguishes.
const GROUPED: [&str; 2] = ["Movable", "Reclaimable"];

fn read(path: &str) -> JobStep {
    JobStep::Read { path: path.into() }
}

fn write(text: &str) -> JobStep {
    write_to(CONTROL, text)
}

fn write_to(path: &str, text: &str) -> JobStep {
    JobStep::Write { path: path.into(), text: text.into() }
}

/// A guest with the module in which each warning of the kernel is a panic; `None`: it was skipped.
fn plan(series: &str, steps: Vec<JobStep>) -> Option<GuestPlan> {
    let mut plan = trial::plan(series, steps)?;
    let cache = ModuleCache::in_dir(&pagelab_packages::store::default_cache_dir().unwrap());
    let module = match set_up_module(&cache, &plan.kernel, None, &mut trial::SilentWatcher) {
        Ok(module) => module,
        Err(error) if error.kind() == FailureKind::NotAvailable => {
            eprintln!("skipped: module-not-built: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    plan.module = Some(module.path);
    plan.config.memory = size::parse("512M").unwrap();
    plan.config.swap = Some(size::parse("256M").unwrap());
    // Per-CPU lists of another CPU, and memory that comes online after grouping went off.
    plan.config.cpus = 2;
    plan.config.dimms = Some(Dimms { count: 1, size: size::parse("128M").unwrap() });
    plan.config.append = "loglevel=7 panic_on_warn=1".into();
    plan.timeouts.total = Duration::from_secs(120);
    Some(plan)
}

fn text(step: &StepEnd) -> String {
    String::from_utf8_lossy(&step.stdout).into_owned()
}

/// Free pages and pageblocks of a migratetype, of all zones.
fn count_type(step: &StepEnd, migratetype: &str) -> (u64, u64) {
    let info = pagetypeinfo::parse(&step.stdout).unwrap();
    let lists = info.free.iter().filter(|row| row.migratetype == migratetype);
    let pages =
        lists.flat_map(|row| row.counts.iter().zip(0..)).map(|(count, order)| count.at_least() << order);
    let blocks = info.blocks.iter().flat_map(|row| &row.counts).filter(|(name, _)| name == migratetype);
    (pages.sum(), blocks.map(|(_, count)| count).sum())
}

/// Pageblocks of all types and zones.
fn count_blocks(step: &StepEnd) -> u64 {
    let info = pagetypeinfo::parse(&step.stdout).unwrap();
    info.blocks.iter().flat_map(|row| &row.counts).map(|(_, count)| count).sum()
}

/// A line that the module rejects: the command is not run.
#[test]
fn without_its_switch_a_command_is_not_run() {
    let Some(mut plan) = plan("6.1", vec![pagelab("frag")]) else { return };
    plan.module_lines = vec!["grouping off".into(), "nothing off".into()];
    let turn = lock_guests();
    let ended = trial::finished(&plan);
    drop(turn);
    let reason = "cannot switch `nothing off` in the module of pagelab: Invalid argument";
    assert!(
        matches!(&ended.steps[0].end, StepExit::NotRun(why) if why.starts_with(reason)),
        "{:?}",
        ended.steps
    );
    assert!(String::from_utf8_lossy(&ended.report.console).contains("pagelab: grouping off: "));
}

/// Steps with names, and their ends by name.
type NamedStep = (&'static str, JobStep);
type StepEnds = BTreeMap<&'static str, StepEnd>;

/// A step that runs beside the later ones.
fn background(words: &str) -> JobStep {
    JobStep::StartBackground(words.split(' ').map(OsString::from).collect())
}

fn unload() -> JobStep {
    JobStep::UnloadModule { name: "pagelab".into() }
}

/// Whether a feature's line of the control file is this one.
fn has_line(step: &StepEnd, line: &str) -> bool {
    text(step).lines().any(|found| found == line)
}

/// A value of a file with lines `NAME VALUE`.
fn value(step: &StepEnd, name: &str) -> u64 {
    let text = text(step);
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or_else(|| panic!("no {name} in\n{text}"))
}

fn grouping_steps() -> Vec<NamedStep> {
    vec![
        ("grouping is on", read(CONTROL)),
        ("types before", read(PAGETYPEINFO)),
        ("grouping off", write("grouping off\n")),
        ("grouping is off", read(CONTROL)),
        ("types after", read(PAGETYPEINFO)),
        ("can", pagelab("can 20 --really --json")),
        ("types later", read(PAGETYPEINFO)),
        ("offline", write_to(DIMM_STATE, "offline")),
        ("online", write_to(DIMM_STATE, "online")),
        ("types with dimm", read(PAGETYPEINFO)),
        ("unknown feature", write("nothing off\n")),
        ("unknown state", write("grouping maybe\n")),
        ("grouping on", write("grouping on\n")),
        ("grouping is on again", read(CONTROL)),
    ]
}

fn check_grouping(ends: &StepEnds, console: &str) {
    for (name, line) in [
        ("grouping is on", "grouping on"),
        ("grouping is off", "grouping off"),
        ("grouping is on again", "grouping on"),
    ] {
        assert!(has_line(&ends[name], line), "{name}: {}", text(&ends[name]));
    }
    let can = &ends["can"];
    assert!(matches!(can.end, StepExit::Code(0 | 1)), "{:?}", String::from_utf8_lossy(&can.stderr));
    let before = &ends["types before"];
    let (pages, blocks) = count_type(before, "Movable");
    assert!(pages > 10_000 && blocks > 100, "{}", text(before));
    for name in ["types after", "types later", "types with dimm"] {
        let info = &ends[name];
        for grouped in GROUPED {
            assert_eq!(count_type(info, grouped), (0, 0), "{grouped}\n{}\n{console}", text(info));
        }
        let (pages, blocks) = count_type(info, "Unmovable");
        assert!(pages > 10_000 && blocks > 100, "{}", text(info));
        assert_eq!(count_blocks(info), count_blocks(before), "no pageblock is lost");
    }
}

/// A pool of more huge pages than there is memory: the write has to end, and nothing was compacted for it.
fn compaction_steps() -> Vec<NamedStep> {
    vec![
        ("compaction off", write("direct_compaction off\n")),
        ("vmstat before pool", read(VMSTAT)),
        ("request pool", write_to(NR_HUGEPAGES, "1000")),
        ("pool", read(NR_HUGEPAGES)),
        ("free pool", write_to(NR_HUGEPAGES, "0")),
        ("vmstat after pool", read(VMSTAT)),
        ("counters after pool", read(COUNTERS)),
    ]
}

fn check_compaction(ends: &StepEnds) {
    let pool: u64 = text(&ends["pool"]).trim().parse().unwrap();
    assert!((20..320).contains(&pool), "{pool} huge pages of 640 MiB");
    for name in ["compact_stall", "compact_migrate_scanned", "compact_daemon_wake"] {
        let [before, after] =
            ["vmstat before pool", "vmstat after pool"].map(|file| value(&ends[file], name));
        assert_eq!(before, after, "{name}");
    }
    assert!(value(&ends["counters after pool"], "compactions_refused") > 0);
}

/// Memory is filled with held pages until no block of order 9 is free; what is left to reclaim is the file.
/// Then linear reclaim has to empty regions, and reclaim has to ignore references.
fn reclaim_steps() -> Vec<NamedStep> {
    vec![
        ("ten attempts", pagelab("workload alloc-pages --order 9 --gfp movable --count 10")),
        ("fill", write_to(ATTEMPTS, "9 movable 300")),
        ("clear", write_to(ATTEMPTS, "clear")),
        ("vmstat before linear", read(VMSTAT)),
        ("linear", write("reclaim linear\n")),
        ("whole zones", write_to(LINEAR_SHARE, "100")),
        ("linear attempts", write_to(ATTEMPTS, "9 movable 4 retry")),
        ("attempts", read(ATTEMPTS)),
        ("counters of linear", read(COUNTERS)),
        ("vmstat after linear", read(VMSTAT)),
        ("mglru off", write_to(LRU_GEN, "0")),
        ("unreferenced", write("reclaim unreferenced\n")),
        // It touches more than is left, once: a workload that returns to its memory would only swap.
        ("release", write_to(ATTEMPTS, "release")),
        ("fill again", write_to(ATTEMPTS, "9 movable 200")),
        ("large workload", pagelab("workload aim9 --test jmp_test --count 1 --ballast 180")),
        ("counters of unreferenced", read(COUNTERS)),
        ("reclaim is unreferenced", read(CONTROL)),
        ("release again", write_to(ATTEMPTS, "release")),
        ("too many", write_to(ATTEMPTS, "0 movable 100000")),
        ("no order", write_to(ATTEMPTS, "11 movable 1")),
        ("unload", unload()),
        ("unloaded", read(CONTROL)),
    ]
}

fn check_reclaim(ends: &StepEnds, console: &str) {
    let ten = text(&ends["ten attempts"]);
    assert!(ten.contains("\"attempts\"") && ten.contains("share ok"), "{ten}");
    let table = alloc_attempts::parse(&ends["attempts"].stdout).unwrap();
    let ok: Vec<&AllocAttempt> = table.attempts.iter().filter(|attempt| attempt.is_ok()).collect();
    let counters = text(&ends["counters of linear"]);
    assert!(!ok.is_empty(), "{}\n{counters}\n{console}", text(&ends["attempts"]));
    // A block was not free before, and pages of the file were written to swap for it.
    assert!(ok.iter().any(|attempt| attempt.reclaimed_pages >= 200), "{}", text(&ends["attempts"]));
    let emptied = value(&ends["counters of linear"], "linear_regions_emptied");
    let swapped = ["vmstat before linear", "vmstat after linear"].map(|file| value(&ends[file], "pswpout"));
    assert!(emptied >= 1 && swapped[1] - swapped[0] >= 256, "{swapped:?}\n{counters}");
    for name in ["linear_regions_scanned", "linear_regions_tried", "linear_pages_reclaimed", "linear_ns"] {
        assert!(value(&ends["counters of linear"], name) > 0, "{name}");
    }
    assert!(has_line(&ends["reclaim is unreferenced"], "reclaim unreferenced"));
    assert!(value(&ends["counters of unreferenced"], "references_ignored") > 0, "{console}");
}

/// The module again, on a kernel that seems to lack symbols.
fn lacking_steps() -> Vec<NamedStep> {
    let parameters = "without=wakeup_kcompactd,lru_gen_caps".into();
    vec![
        ("load again", JobStep::LoadModule { parameters }),
        ("lacking control", read(CONTROL)),
        ("lacking feature", write("direct_compaction off\n")),
        ("lacking state", write("reclaim unreferenced\n")),
        ("other feature", write("grouping off\n")),
        ("other state", write("reclaim linear\n")),
        ("unload again", unload()),
    ]
}

fn check_lacking(ends: &StepEnds) {
    assert_eq!(
        text(&ends["lacking control"]),
        "grouping on\n\
         direct_compaction unavailable: this kernel has no symbol wakeup_kcompactd\n\
         reclaim stock\n\
         reclaim/unreferenced unavailable: this kernel has no symbol lru_gen_caps\n"
    );
}

/// Steps that must fail, and why.
const REFUSED: [(&str, &str); 7] = [
    ("unknown feature", "Invalid argument"),
    ("unknown state", "Invalid argument"),
    ("too many", "No space left"),
    ("no order", "Invalid argument"),
    ("unloaded", "No such file"),
    ("lacking feature", "not supported"),
    ("lacking state", "not supported"),
];

/// Carries out the steps in one guest. A warning of the kernel fails.
fn run_named(mut plan: GuestPlan, steps: Vec<NamedStep>) -> (StepEnds, String) {
    let (names, steps): (Vec<&str>, Vec<JobStep>) = steps.into_iter().unzip();
    plan.steps = steps;
    let turn = lock_guests();
    let ended = trial::finished(&plan);
    drop(turn);
    let console = String::from_utf8_lossy(&ended.report.console).into_owned();
    for word in ["WARNING", "BUG", "Oops", "Call Trace"] {
        assert!(!console.contains(word), "{console}");
    }
    (names.into_iter().zip(ended.steps).collect(), console)
}

fn check_features(series: &str) {
    let Some(mut plan) = plan(series, Vec::new()) else { return };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![0x55; FILL_BYTES]).unwrap();
    plan.input_files = vec![file.path().to_owned()];
    let steps = [grouping_steps(), compaction_steps(), reclaim_steps(), lacking_steps()].concat();
    let (ends, console) = run_named(plan, steps);
    for (name, step) in &ends {
        match REFUSED.iter().find(|(refused, _)| refused == name) {
            Some((_, reason)) => assert!(
                matches!(&step.end, StepExit::NotRun(why) if why.contains(reason)),
                "{name}: {:?}",
                step.end
            ),
            None if *name == "can" => {}
            None => assert_eq!(step.end, StepExit::Code(0), "{name}: {}\n{console}", text(step)),
        }
    }
    let log: Vec<&str> = console.lines().filter(|line| line.contains("pagelab: ")).collect();
    eprintln!("guest: {series}: {}", log.join("\nguest: "));
    check_grouping(&ends, &console);
    check_compaction(&ends);
    check_reclaim(&ends, &console);
    check_lacking(&ends);
}

#[test]
fn every_feature_is_switched_in_6_1() {
    check_features("6.1");
}

#[test]
fn every_feature_is_switched_in_6_12() {
    check_features("6.12");
}

/// Loads and unloads of the long test.
const ROUNDS: usize = 20;

/// One round: all features switched, half of the time switched back, and pages left held half of the time.
fn load_round(number: usize) -> Vec<JobStep> {
    let mut steps = vec![
        JobStep::LoadModule { parameters: String::new() },
        write("grouping off\n"),
        write("direct_compaction off\n"),
        write("reclaim unreferenced\n"),
        write("reclaim linear\n"),
        write_to(ATTEMPTS, "9 movable 3 retry"),
    ];
    if number.is_multiple_of(2) {
        steps.extend([
            write("reclaim stock\n"),
            write("direct_compaction on\n"),
            write("grouping on\n"),
            write_to(ATTEMPTS, "release"),
        ]);
    }
    steps.push(unload());
    steps
}

/// What a round leaves behind, in kB: free memory, slab, vmalloc. The load is killed first.
fn rest(steps: &mut Vec<JobStep>) {
    steps.push(JobStep::KillBackground);
    steps.push(write_to("/proc/sys/vm/drop_caches", "3"));
    steps.push(read("/proc/sys/vm/stat_refresh"));
    steps.push(read("/proc/meminfo"));
}

/// Rounds with the module and rounds without, with the same load in both.
fn long_steps(with_module: bool) -> Vec<JobStep> {
    let mut steps = vec![unload(), write_to(LRU_GEN, "0")];
    for number in 0..ROUNDS {
        steps.push(background("workload chase --size 160M --steps 100000000"));
        steps.push(background("workload aim9 --test page_test --time 600s"));
        match with_module {
            true => steps.extend(load_round(number)),
            false => steps.push(pagelab("can 20 --really --json")),
        }
        rest(&mut steps);
    }
    steps
}

/// Free memory, slab and vmalloc at the end of each round.
fn rests(steps: &[StepEnd]) -> Vec<[i64; 3]> {
    let infos = steps.iter().filter(|step| step.stdout.starts_with(b"MemTotal:"));
    let rest = |step: &StepEnd| {
        let info = meminfo::parse(&step.stdout).unwrap();
        ["MemFree", "Slab", "VmallocUsed"].map(|name| (info.bytes(name).unwrap().0 >> 10) as i64)
    };
    infos.map(rest).collect()
}

fn check_rests(series: &str) {
    let turn = lock_guests();
    let mut both = Vec::new();
    for with_module in [false, true] {
        let Some(mut plan) = plan(series, long_steps(with_module)) else { return };
        plan.timeouts.total = Duration::from_secs(900);
        let ended = trial::finished(&plan);
        let console = String::from_utf8_lossy(&ended.report.console).into_owned();
        assert!(!console.contains("WARNING") && !console.contains("Call Trace"), "{console}");
        both.push(rests(&ended.steps));
    }
    drop(turn);
    let [idle, loaded] = &both[..] else { unreachable!() };
    assert!(idle.len() == ROUNDS && loaded.len() == ROUNDS, "{idle:?}\n{loaded:?}");
    for (index, name) in ["MemFree", "Slab", "VmallocUsed"].iter().enumerate() {
        let column = |of: &[[i64; 3]]| of.iter().map(|rest| rest[index]).collect::<Vec<i64>>();
        let (idle, loaded) = (column(idle), column(loaded));
        eprintln!("guest: {series}: {name} kB: without {idle:?}, with {loaded:?}");
        // The first round of each warms caches up.
        let spread = idle[1..].iter().max().unwrap() - idle[1..].iter().min().unwrap();
        let change = loaded[ROUNDS - 1] - loaded[1];
        assert!(change.abs() <= spread.max(256), "{name}: {change} kB, spread {spread} kB");
    }
}

#[test]
#[ignore = "takes-minutes: twenty loads and unloads of the module"]
fn nothing_is_left_behind_by_twenty_loads_in_6_1() {
    check_rests("6.1");
}

#[test]
#[ignore = "takes-minutes: twenty loads and unloads of the module"]
fn nothing_is_left_behind_by_twenty_loads_in_6_12() {
    check_rests("6.12");
}

/// A pagelab that is killed while the module works for it: the write ends, what was done is kept, the pages
/// stay held, and the module can be unloaded.
#[test]
fn a_killed_pagelab_leaves_a_module_that_works() {
    let steps = vec![
        background("workload alloc-pages --order 0 --gfp kernel --count 90000 --release no"),
        pagelab("workload chase --size 1M --steps 100000"),
        JobStep::KillBackground,
        read(ATTEMPTS),
        write_to(ATTEMPTS, "release"),
        read(CONTROL),
        unload(),
    ];
    let Some(plan) = plan("6.1", steps) else { return };
    let turn = lock_guests();
    let ended = trial::finished(&plan);
    drop(turn);
    for step in &ended.steps {
        assert_eq!(step.end, StepExit::Code(0), "{}", text(step));
    }
    let table = alloc_attempts::parse(&ended.steps[3].stdout).unwrap();
    let ok = table.attempts.iter().filter(|attempt| attempt.is_ok()).count() as u64;
    assert_eq!(table.pages_held, ok, "order 0: as many pages as attempts that succeeded");
    eprintln!("guest: killed after {} of 90 000 attempts", table.attempts.len());
}

/// A kernel that takes signed modules alone: the guest says so, and what needs a switch is not run.
#[test]
fn a_refused_module_costs_the_command_that_needs_it() {
    let Some(mut plan) = plan("6.1", vec![pagelab("frag"), read(VMSTAT)]) else { return };
    plan.config.append = "module.sig_enforce=1".into();
    plan.config.swap = None;
    plan.module_lines = vec!["direct_compaction off".into()];
    let turn = lock_guests();
    let GuestOutcome::Completed(ended) = trial::run(&plan) else { panic!("the guest was lost") };
    drop(turn);
    let notes = ended.report.notes.join("\n");
    assert!(notes.contains("cannot load") && notes.contains("pagelab.ko"), "{notes}");
    assert!(matches!(&ended.steps[0].end, StepExit::NotRun(why) if why.contains("cannot switch")));
    assert_eq!(ended.steps[1].end, StepExit::Code(0), "the guest continues");
}

/// A panic with all features switched takes the guest, and the host reports it.
#[test]
fn a_panic_takes_the_guest_alone() {
    let steps = vec![
        write("direct_compaction off\n"),
        write("reclaim linear\n"),
        write_to(ATTEMPTS, "9 movable 10"),
        write_to("/proc/sysrq-trigger", "c"),
    ];
    let Some(plan) = plan("6.1", steps) else { return };
    let turn = lock_guests();
    let outcome = trial::run(&plan);
    drop(turn);
    let GuestOutcome::Lost(lost) = outcome else { panic!("the guest survived a panic") };
    assert_eq!(lost.steps.len(), 3, "{}", lost.reason);
    assert!(lost.reason.to_string().contains("panic"), "{}", lost.reason);
}
