//! Tests of the kernel module in real guests, a boot of 6.1 and one of 6.12: grouping by mobility goes off
//! and on, nothing is left on the free lists of other types, and the module is unloaded.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test's helpers may fail where they stand, and say so

#[path = "guest/trial.rs"]
#[allow(dead_code, reason = "the other tests use more of it")]
mod trial;

use std::time::Duration;

use pagelab_formats::pagetypeinfo;
use pagelab_guest::boot::GuestPlan;
use pagelab_guest::dimms::Dimms;
use pagelab_guest::job::JobStep;
use pagelab_guest::kernel_module::ModuleCache;
use pagelab_guest::message::StepExit;
use pagelab_guest::module_build::set_up_module;
use pagelab_guest::outcome::StepEnd;
use pagelab_model::{FailureKind, size};
use trial::{lock_guests, pagelab};

const CONTROL: &str = "/sys/kernel/debug/pagelab/control";
/// The memory block that is the DIMM: blocks are of 128 MiB, and it is at 4 GiB.
const DIMM_STATE: &str = "/sys/devices/system/memory/memory32/state";
const PAGETYPEINFO: &str = "/proc/pagetypeinfo";
/// Of the migratetypes of /proc/pagetypeinfo, those that mobility alone distinguishes.
const GROUPED: [&str; 2] = ["Movable", "Reclaimable"];

struct SilentObserver;

impl pagelab_packages::apt::FetchObserver for SilentObserver {
    fn report_progress(&mut self, _line: &str) {}

    fn stop_signal(&mut self) -> Option<i32> {
        None
    }
}

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
    let module = match set_up_module(&cache, &plan.kernel, None, &mut SilentObserver) {
        Ok(module) => module,
        Err(error) if error.kind() == FailureKind::NotAvailable => {
            eprintln!("skipped: module-not-built: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    plan.module = Some(module.path);
    plan.config.memory = size::parse("512M").unwrap();
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

fn list_steps() -> Vec<JobStep> {
    vec![
        read(CONTROL),
        read(PAGETYPEINFO),
        write("grouping off\n"),
        read(CONTROL),
        read(PAGETYPEINFO),
        pagelab("can 20 --really --json"),
        read(PAGETYPEINFO),
        write_to(DIMM_STATE, "offline"),
        write_to(DIMM_STATE, "online"),
        read(PAGETYPEINFO),
        write("nothing off\n"),
        write("grouping maybe\n"),
        write("grouping on\n"),
        read(CONTROL),
        JobStep::UnloadModule { name: "pagelab".into() },
        read(CONTROL),
    ]
}

fn check_grouping(series: &str) {
    let Some(plan) = plan(series, list_steps()) else { return };
    let turn = lock_guests();
    let ended = trial::finished(&plan);
    drop(turn);
    let console = String::from_utf8_lossy(&ended.report.console).into_owned();
    let [
        on,
        before,
        off,
        is_off,
        after,
        can,
        later,
        offline,
        online,
        with_dimm,
        unknown,
        malformed,
        on_again,
        is_on,
        unloaded,
        gone,
    ] = &ended.steps[..]
    else {
        panic!("{console}")
    };
    for step in [on, before, off, is_off, after, later, offline, online, with_dimm, on_again, is_on, unloaded]
    {
        assert_eq!(step.end, StepExit::Code(0), "{console}");
    }
    for (control, line) in [(on, "grouping on"), (is_off, "grouping off"), (is_on, "grouping on")] {
        assert_eq!(text(control).lines().next(), Some(line));
    }
    for (step, reason) in
        [(unknown, "Invalid argument"), (malformed, "Invalid argument"), (gone, "No such file")]
    {
        assert!(matches!(&step.end, StepExit::NotRun(why) if why.contains(reason)), "{:?}", step.end);
    }
    assert!(matches!(can.end, StepExit::Code(0 | 1)), "{:?}", String::from_utf8_lossy(&can.stderr));

    let (pages, blocks) = count_type(before, "Movable");
    assert!(pages > 10_000 && blocks > 100, "{}", text(before));
    for info in [after, later, with_dimm] {
        for name in GROUPED {
            assert_eq!(count_type(info, name), (0, 0), "{name}\n{}\n{console}", text(info));
        }
        let (pages, blocks) = count_type(info, "Unmovable");
        assert!(pages > 10_000 && blocks > 100, "{}", text(info));
        assert_eq!(count_blocks(info), count_blocks(before), "no pageblock is lost");
    }
    for word in ["WARNING", "BUG", "Oops", "Call Trace"] {
        assert!(!console.contains(word), "{console}");
    }
    let log = console.lines().filter(|line| line.contains("pagelab: "));
    eprintln!("guest: {series}: {}", log.collect::<Vec<_>>().join("\nguest: "));
}

#[test]
fn grouping_goes_off_and_on_in_6_1() {
    check_grouping("6.1");
}

#[test]
fn grouping_goes_off_and_on_in_6_12() {
    check_grouping("6.12");
}
