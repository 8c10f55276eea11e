//! `pagelab profile --source pmu`.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pagelab_host::root::Root;
use pagelab_model::{PageSize, Profile};
use pagelab_target::error::Error;
use pagelab_target::pmu::{self, Hardware, Target, probe};
use pagelab_target::sampled;

use super::Ask;
use crate::cmd::target_failure;
use crate::exit::{Exit, Failure};
use crate::out;

/// Options of this source.
#[derive(Debug, Default, clap::Args)]
#[group(skip)]
pub struct Options {}

/// Room for records on each CPU: 1 MiB holds some 15 000 samples, and perf_event_mlock_kb allows about half a
/// MiB to everybody.
const RING_BYTES: u64 = 1 << 20;
const RING_BYTES_WITHOUT_ROOT: u64 = 128 << 10;

fn hardware() -> Result<Hardware, Error> {
    probe::available(&Root::live(), &probe::try_here)
}

/// Profiles what was asked for.
pub fn profile(ask: &Ask) -> Result<Profile, Failure> {
    let hardware = hardware().map_err(target_failure)?;
    let target = match (ask.command.split_first(), ask.pid) {
        (Some((program, arguments)), None) => {
            let mut command = Command::new(crate::cmd::program(program)?);
            command.args(arguments);
            Target::Start(command)
        }
        (None, Some(pid)) => Target::Attach(pid),
        _ => {
            let message = "what shall be sampled? give a command behind `--`, or --pid PID";
            return Err(Failure::new(Exit::Usage, message));
        }
    };
    let page_size = PageSize::new(rustix::param::page_size() as u64).unwrap_or(PageSize::USUAL);
    let is_root = rustix::process::geteuid().is_root();
    let options = pmu::Options {
        sampled: sampled::Options::new(page_size, None),
        ring_bytes: if is_root { RING_BYTES } else { RING_BYTES_WITHOUT_ROOT },
        most: None,
    };
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // Without it a signal ends pagelab at once, and there is no profile.
        let _ = signal_hook::flag::register(signal, Arc::clone(&stopped));
    }
    let ran = pmu::record(&hardware, target, &options, &|| stopped.load(Ordering::Relaxed));
    let ran = ran.map_err(target_failure)?;
    if let Some(status) = ran.status.filter(|status| !status.success()) {
        out::complain(&format!("pagelab: the program ended with {status}"));
    }
    Ok(ran.profile)
}

/// Whether this machine has such samples.
pub fn available() -> Result<(), Failure> {
    hardware().map(drop).map_err(target_failure)
}
