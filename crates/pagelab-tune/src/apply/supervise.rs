//! Supervisor process of `apply`: it does the job of the front end, which may have exited, and reports to it.
//! If it ends, the program ends.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use pagelab_command::atomic_file::check_output;
use pagelab_command::exit::{Exit, Failure, FailureKind};
use pagelab_target::supervisor::{self, ProgramExit, Summary};
use serde_json::Value;

use super::messages::{SupervisorJob, SupervisorMessage};
use super::{ApplySubject, front_end};

/// Does a job, and reports to `reports`. The exit code of the process is not used.
pub fn run_supervisor(job: File, reports: File) -> Result<(), Failure> {
    let reports = RefCell::new(Some(reports));
    let report = |message: SupervisorMessage| {
        // The front end may have exited.
        let _ = reports.borrow_mut().as_mut().map(|reports| message.write_to(reports));
    };
    let job = match SupervisorJob::read(job) {
        Ok(job) => job,
        Err(error) => {
            let failure = Failure::cannot(FailureKind::Bug, "read the job", error);
            report(SupervisorMessage::from_failure(&failure));
            return Ok(());
        }
    };
    let summary_path = job.request.summary.clone();
    let end = |exit: u8, summary: Summary| {
        let document = super::summary_to_json(&summary);
        if let Some(problem) = write_summary(summary_path.as_deref(), &document) {
            report(SupervisorMessage::Note(problem));
        }
        report(SupervisorMessage::Ended { exit, summary });
    };
    if let ApplySubject::Process(pid) = job.request.subject {
        match collapse_process(&job, pid, &report) {
            Ok(summary) => {
                let is_partial = summary.allocated < summary.requested;
                end(if is_partial { Exit::Partial } else { Exit::Success } as u8, summary);
            }
            Err(error) => report(SupervisorMessage::from_failure(&error)),
        }
        return Ok(());
    }
    let spec = Arc::new(job.into_spec()?);
    let started = |pid: u32| {
        // From now on the supervisor does not hold the descriptors of the program.
        let _ = front_end::detach_stdio(true);
        report(SupervisorMessage::Started(pid));
    };
    let ended = |exit: ProgramExit, summary: Summary| {
        end(exit.exit_code(), summary);
        // The front end ends now; remaining processes of the program are still supervised.
        drop(reports.take());
    };
    if let Err(error) = supervisor::run_supervised(&spec, started, ended) {
        report(SupervisorMessage::from_failure(&error));
    }
    Ok(())
}

/// Collapses memory of a running process. This process can be killed at any time; the front end does so when
/// a region takes too long.
fn collapse_process(
    job: &SupervisorJob,
    pid: u32,
    report: &dyn Fn(SupervisorMessage),
) -> Result<Summary, Failure> {
    let mut process = job.open_process(pid)?;
    if job.request.overrides {
        process.enable_thp()?;
    }
    process.run_collapse_pass(|| report(SupervisorMessage::RegionStarted))?;
    let mut summary = process.build_summary();
    summary.supervisor_cpu_ns = pagelab_sys::clock::process_cpu_ns(std::process::id()).unwrap_or(0);
    Ok(summary)
}

/// Writes the summary file. Returns a note if that fails.
pub fn write_summary(path: Option<&OsStr>, document: &Value) -> Option<String> {
    // The caller has checked it before the start.
    let file = check_output(Path::new(path?), true);
    let failure = file.and_then(|file| file.write(format!("{document:#}\n").as_bytes())).err()?;
    Some(failure.to_string())
}
