//! `pagelab supervise`, which is not for people: the process whose end is the program's end.
//!
//! It says what happens in lines to the front end, which may be gone: `started PID`, `ended JSON`,
//! `failed CODE MESSAGE`.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use pagelab_target::error::Error;
use pagelab_target::supervise::{self, Ended, Summary};

use serde_json::Value;

use super::json;
use crate::cmd::target_exit;
use crate::exit::{Exit, Failure};

/// What the supervisor is told.
#[derive(Debug, clap::Args)]
#[group(id = "supervise")]
pub struct Args {
    /// Say what happens to this descriptor
    #[arg(long, value_name = "FD")]
    tell: i32,
    #[command(flatten)]
    apply: super::Args,
}

/// Supervises. The exit code is of no use: the front end is told by lines.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let tell = RefCell::new(Some(File::from(pagelab_sys::spawn::take_over(args.tell)?)));
    let say = |line: &str| {
        // A front end that is gone needs to know nothing.
        let _ = tell.borrow_mut().as_mut().map(|tell| writeln!(tell, "{line}"));
    };
    if let Some(pid) = args.apply.how.pid {
        return running(args, pid, &say);
    }
    let spec = args.apply.choice().and_then(|choice| args.apply.spec(choice));
    let spec = match spec {
        Ok(spec) => Arc::new(spec),
        Err(failure) => {
            say(&format!("failed {} {failure}", failure.exit() as u8));
            return Ok(Exit::Done as u8);
        }
    };
    let started = |pid: u32| {
        // From now on the program's own descriptors are its own alone.
        let _ = super::front::leave_stdio(true);
        say(&format!("started {pid}"));
    };
    let ended = |ended: Ended, summary: Summary| {
        let document = json::summary(&summary);
        if let Some(note) = write_summary(args.apply.how.summary.as_deref(), &document) {
            say(&note);
        }
        say(&format!("ended {} {document}", ended.code()));
        // The front end ends now; what the program left running is supervised on.
        drop(tell.take());
    };
    if let Err(error) = supervise::run(&spec, started, ended) {
        say(&format!("failed {} {error}", target_exit(error.kind()) as u8));
    }
    Ok(Exit::Done as u8)
}

/// Gives huge pages to a process that runs. This process can be killed at any time; the front end does so
/// when one region takes too long.
fn running(args: &Args, pid: u32, say: &dyn Fn(&str)) -> Result<u8, Failure> {
    let failed = |error: &Error| say(&format!("failed {} {error}", target_exit(error.kind()) as u8));
    let outside = args.apply.choice().and_then(|choice| args.apply.outside(pid, choice));
    let mut outside = match outside {
        Ok(outside) => outside,
        Err(failure) => {
            say(&format!("failed {} {failure}", failure.exit() as u8));
            return Ok(Exit::Done as u8);
        }
    };
    let switched = if args.apply.how.overrides { outside.switch_on() } else { Ok(()) };
    let done = switched.and_then(|()| {
        outside.pass(|region| {
            say(&format!("region {region:#x}"));
            true
        })
    });
    if let Err(error) = &done {
        failed(error);
        return Ok(Exit::Done as u8);
    }
    let mut summary = outside.summary();
    summary.supervisor_cpu_ns = pagelab_sys::clock::process_cpu_ns(std::process::id()).unwrap_or(0);
    let document = json::summary(&summary);
    if let Some(note) = write_summary(args.apply.how.summary.as_deref(), &document) {
        say(&note);
    }
    let code = if summary.got < summary.wanted { Exit::Partial } else { Exit::Done };
    say(&format!("ended {} {document}", code as u8));
    Ok(Exit::Done as u8)
}

/// Writes the summary's file; what to say if it cannot be.
pub fn write_summary(path: Option<&Path>, document: &Value) -> Option<String> {
    let path = path?;
    let error = std::fs::write(path, format!("{document:#}\n")).err()?;
    Some(format!("note cannot write {}: {error}", path.display()))
}
