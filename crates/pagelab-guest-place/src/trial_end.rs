//! Ends of trials in guests: a report, or why there is none.

use pagelab_experiment::place::FinishedTrial;
use pagelab_experiment::trial_report;
use pagelab_guest::console::printable;
use pagelab_guest::message::StepExit;
use pagelab_guest::outcome::{LossReason, StepEnd};
use pagelab_model::experiment::{Trial, TrialEnd};
use pagelab_model::kernel_panic::PANIC_START;

/// Characters of a line that are kept.
const LINE_CHARS_MAX: usize = 500;
/// Lines of the console of a lost guest that are kept.
const CONSOLE_LINES: usize = 10;
/// What the kernel prints when it kills a process for lack of memory (mm/oom_kill.c, `__oom_kill_process`).
const OOM_KILL: &str = "Out of memory: Killed process";
const SIGKILL: i32 = 9;

/// A trial of a slot that only has an end.
pub fn with_end(slot: usize, end: TrialEnd) -> Trial {
    Trial { end, ..Trial::new(slot, 0) }
}

/// The trial in the report of a step, or a lost trial. `is_oom_result`: a lack of memory is then a result.
pub fn of_step(slot: usize, step: &StepEnd, console: &[u8], is_oom_result: bool) -> FinishedTrial {
    let stderr = || last_lines(&step.stderr, 1);
    let reason = match &step.end {
        StepExit::Code(0) if step.is_truncated => "its report is too long".to_owned(),
        StepExit::Code(0) => match trial_report::decode(&step.stdout, slot) {
            Ok(finished) => return finished,
            Err(why) => format!("its report is damaged: {}", printable(&why)),
        },
        StepExit::Signal(SIGKILL) if has_oom_kill(console) => {
            return lost(
                slot,
                is_oom_result,
                true,
                "the guest's kernel killed it for lack of memory",
                console,
            );
        }
        StepExit::Code(code) => format!("it ended with exit code {code} in the guest: {}", stderr()),
        StepExit::Signal(signal) => format!("signal {signal} killed it in the guest"),
        StepExit::NotRun(why) => format!("the guest did not run it: {}", printable(why)),
    };
    lost(slot, is_oom_result, false, &reason, console)
}

/// The trial that was under way in a guest that was lost, with the console since it began.
pub fn of_lost_guest(slot: usize, reason: &LossReason, console: &[u8], is_oom_result: bool) -> FinishedTrial {
    // Only the guest itself ends for lack of memory; QEMU, its line and its deadline have other reasons.
    let is_out_of_memory = match reason {
        LossReason::OutOfMemory(_) => true,
        LossReason::Panic(_) | LossReason::AgentError(_) | LossReason::PoweredOff => has_oom_kill(console),
        _ => false,
    };
    lost(slot, is_oom_result, is_out_of_memory, &format!("its guest was lost: {reason}"), console)
}

fn lost(
    slot: usize,
    is_oom_result: bool,
    is_out_of_memory: bool,
    reason: &str,
    console: &[u8],
) -> FinishedTrial {
    let end = match is_oom_result && is_out_of_memory {
        true => TrialEnd::OutOfMemory,
        false => TrialEnd::Lost(reason.to_owned()),
    };
    let last_output = last_lines(up_to_panic(console), CONSOLE_LINES);
    Trial { last_output, ..with_end(slot, end) }.into()
}

fn has_oom_kill(console: &[u8]) -> bool {
    String::from_utf8_lossy(console).contains(OOM_KILL)
}

/// The console up to the line of a panic: behind it are registers and a stack.
fn up_to_panic(console: &[u8]) -> &[u8] {
    const PANIC: &[u8] = PANIC_START.as_bytes();
    let Some(at) = console.windows(PANIC.len()).position(|window| window == PANIC) else { return console };
    let line = console[at..].iter().position(|&byte| byte == b'\n').unwrap_or(console.len() - at);
    &console[..at + line]
}

/// A line of bounded length, safe to print.
fn clip(line: &str) -> String {
    printable(&line.chars().take(LINE_CHARS_MAX).collect::<String>())
}

/// The last lines of a text, safe to print.
fn last_lines(text: &[u8], count: usize) -> String {
    let text = String::from_utf8_lossy(text);
    let mut lines: Vec<String> =
        text.lines().rev().filter(|line| !line.trim().is_empty()).take(count).map(clip).collect();
    lines.reverse();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(end: StepExit, stdout: &str, stderr: &str) -> StepEnd {
        StepEnd { end, stdout: stdout.into(), stderr: stderr.into(), is_truncated: false }
    }

    #[test]
    fn a_step_without_a_report_is_a_lost_trial_with_its_reason() {
        let oom = b"x\n[ 9.0] Out of memory: Killed process 80 (pagelab)\n";
        for (step, console, said) in [
            (step(StepExit::Code(0), "{}", ""), &b""[..], "its report is damaged: missing field"),
            (step(StepExit::Code(0), "", ""), b"", "its report is damaged: EOF"),
            (
                step(StepExit::Code(2), "", "a\nerror: \x1b[1mbad\n\n"),
                b"",
                "with exit code 2 in the guest: error: ?[1mbad",
            ),
            (step(StepExit::Signal(11), "", ""), b"", "signal 11 killed it"),
            (step(StepExit::NotRun("no swap".into()), "", ""), b"", "did not run it: no swap"),
            (step(StepExit::Signal(9), "", ""), oom, "killed it for lack of memory"),
        ] {
            let finished = of_step(3, &step, console, false);
            assert_eq!(finished.trial.slot, 3);
            let TrialEnd::Lost(reason) = finished.trial.end else {
                panic!("{said}: {:?}", finished.trial.end)
            };
            assert!(reason.contains(said), "{reason}");
        }
        let cut = StepEnd { is_truncated: true, ..step(StepExit::Code(0), "{}", "") };
        assert_eq!(
            of_step(0, &cut, b"", false).trial.end,
            TrialEnd::Lost("its report is too long".to_owned())
        );
        let finished = of_step(0, &step(StepExit::Signal(9), "", ""), oom, true);
        assert_eq!(finished.trial.end, TrialEnd::OutOfMemory);
        assert!(finished.trial.last_output.ends_with("Killed process 80 (pagelab)"));
    }

    #[test]
    fn a_guest_out_of_memory_is_a_result_only_where_that_is_compared() {
        let panic = || LossReason::OutOfMemory("System is deadlocked on memory".to_owned());
        let end = |reason: LossReason, console: &str, is_varied| {
            of_lost_guest(0, &reason, console.as_bytes(), is_varied).trial.end
        };
        assert_eq!(end(panic(), "", true), TrialEnd::OutOfMemory);
        let unvaried = end(panic(), "", false);
        assert!(
            matches!(unvaried, TrialEnd::Lost(why) if why.contains("panicked: out of memory (System is"))
        );
        let oom = "Out of memory: Killed process 80 (x)\n";
        assert_eq!(end(LossReason::PoweredOff, oom, true), TrialEnd::OutOfMemory);
        // QEMU was killed by somebody else: that is no result, whatever happened before.
        for reason in [LossReason::QemuKilled(9), LossReason::TimedOut(std::time::Duration::ZERO)] {
            assert!(matches!(end(reason, oom, true), TrialEnd::Lost(_)));
        }
        let lines: String = (0..30).map(|line| format!("line {line}\n")).collect();
        let kept = of_lost_guest(0, &LossReason::PoweredOff, lines.as_bytes(), true).trial;
        assert_eq!(
            (kept.last_output.lines().count(), kept.last_output.lines().last()),
            (10, Some("line 29"))
        );
        let panic = "a\nb\nKernel panic - not syncing: x\nRIP: 0\nCode: 1\n";
        let kept_panic = of_lost_guest(0, &LossReason::PoweredOff, panic.as_bytes(), true).trial;
        assert_eq!(kept_panic.last_output, "a\nb\nKernel panic - not syncing: x");
        assert!(matches!(kept.end, TrialEnd::Lost(why) if why.contains("powered off without a result")));
    }
}
