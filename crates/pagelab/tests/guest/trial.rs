//! Guest for a test: a plan with a given kernel and layout, or the reason why it is not available.

#[path = "../support/binary.rs"]
mod binary;

use std::ffi::OsString;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use binary::binary;
use pagelab_guest::boot::{self, GuestObserver, GuestPlan, QEMU};
use pagelab_guest::cache::KernelCache;
use pagelab_guest::config::GuestConfig;
use pagelab_guest::job::{CgroupConfig, CgroupVersion, JobStep};
use pagelab_guest::kernel_setup::set_up_kernel;
use pagelab_guest::outcome::{CompletedJob, FirstMessageCost, GuestOutcome, LostGuest, StepEnd};
use pagelab_model::{FailureKind, size};
use pagelab_packages::program;
use pagelab_sys::spawn::die_with_parent;

/// One guest at a time, so that what a boot costs says something.
pub fn lock_guests() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A download that says nothing.
pub struct SilentWatcher;

impl pagelab_packages::apt::FetchObserver for SilentWatcher {
    fn report_progress(&mut self, _line: &str) {}

    fn stop_signal(&mut self) -> Option<i32> {
        None
    }
}

/// The plan of a guest on the newest kernel of a series with 256 MiB, one CPU and control groups of
/// version 2. `None` means that it was skipped, which is said: there is no QEMU, or no way to get a kernel.
pub fn plan(series: &str, steps: Vec<JobStep>) -> Option<GuestPlan> {
    if program::find_program(QEMU.as_ref()).is_none() {
        eprintln!("skipped: qemu-absent: there is no {QEMU}");
        return None;
    }
    let cache = KernelCache::in_dir(&pagelab_packages::store::default_cache_dir().expect("HOME is set"));
    let kernel =
        match cache.find_kernel(series).map_or_else(|| set_up_kernel(&cache, series, &mut SilentWatcher), Ok)
        {
            Ok(kernel) => kernel,
            Err(error) if error.kind() == FailureKind::NotAvailable => {
                eprintln!("skipped: kernel-not-to-be-had: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
    let shape = GuestConfig {
        memory: size::parse("256M").unwrap(),
        cgroup: Some(CgroupConfig { version: CgroupVersion::V2, limit_bytes: None }),
        ..GuestConfig::default()
    };
    let mut plan = GuestPlan::new(kernel, shape, steps);
    plan.program = Some(binary().into());
    Some(plan)
}

/// The binary under test, which a test that is killed does not leave behind with its guest.
pub fn pagelab_here() -> Command {
    let mut command = Command::new(binary());
    die_with_parent(&mut command);
    command
}

/// A step that is this command line of pagelab.
pub fn pagelab(words: &str) -> JobStep {
    JobStep::Pagelab(words.split(' ').map(OsString::from).collect())
}

/// Says what a boot cost; xtask prints such lines.
struct CostWatcher(String);

impl GuestObserver for CostWatcher {
    fn on_first_message(&mut self, cost: FirstMessageCost) {
        let (cpu, wall) = (cost.host_cpu.as_secs_f64(), cost.wall_time.as_secs_f64());
        eprintln!("guest: {}: first line after {cpu:.1} s of host CPU, {wall:.1} s", self.0);
    }
}

/// Runs a guest whose job is finished.
pub fn finished(plan: &GuestPlan) -> CompletedJob {
    match run(plan) {
        GuestOutcome::Completed(finished) => {
            assert_eq!(finished.report.notes, Vec::<String>::new());
            finished
        }
        GuestOutcome::Lost(lost) => panic!("the guest was lost: {}\n{}", lost.reason, console(&lost)),
    }
}

/// Carries out steps that do not need one another, so many a boot. A lost guest costs the step that it was
/// lost in, which is carried out once more in another guest; lost in it again, that step has the reason.
pub fn each_step(
    steps: &[JobStep],
    a_boot: usize,
    boot: &mut dyn FnMut(Vec<JobStep>) -> GuestOutcome,
) -> Vec<Result<StepEnd, String>> {
    let mut ended: Vec<Result<StepEnd, String>> = Vec::new();
    let mut is_again = false;
    while ended.len() < steps.len() {
        let next: Vec<JobStep> = steps[ended.len()..].iter().take(a_boot.max(1)).cloned().collect();
        let count = next.len();
        let (done, lost) = match boot(next) {
            GuestOutcome::Completed(finished) => (finished.steps, "the guest did nothing".to_owned()),
            GuestOutcome::Lost(lost) => {
                eprintln!("the guest was lost: {}\n{}", lost.reason, console(&lost));
                (lost.steps, lost.reason.to_string())
            }
        };
        is_again &= done.is_empty();
        let is_whole = done.len() == count;
        ended.extend(done.into_iter().map(Ok));
        if is_again {
            ended.push(Err(lost));
        }
        is_again = !is_again && !is_whole;
    }
    ended
}

/// Runs a guest to any end.
pub fn run(plan: &GuestPlan) -> GuestOutcome {
    boot::run_guest(plan, &mut CostWatcher(plan.kernel.release.clone())).unwrap()
}

/// End of its kernel log.
pub fn console(lost: &LostGuest) -> String {
    let text = String::from_utf8_lossy(&lost.report.console).into_owned();
    text.lines().rev().take(20).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
}
