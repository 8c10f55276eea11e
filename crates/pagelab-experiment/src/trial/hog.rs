//! A competitor for memory beside the trial: this program once more, writing its memory again and again.

use std::io::Read;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use pagelab_model::Bytes;
use pagelab_sys::{clock, spawn};

use crate::gate::READY;
use crate::group::Group;
use crate::own;

/// How long it may take to get its memory.
const PATIENCE: Duration = Duration::from_secs(60);

/// The process; it ends with this value, and with this process.
pub(super) struct HogProcess(Child);

impl HogProcess {
    /// Starts it, in this group where there is one, and waits until it has all its memory.
    pub fn start(
        size: Bytes,
        group: Option<&Group>,
        stop: &dyn Fn() -> Option<i32>,
    ) -> Result<HogProcess, String> {
        let failed = |error: &dyn std::fmt::Display| format!("hog: it cannot be started: {error}");
        let mut command = own::gate();
        command.args(["--hog", &size.0.to_string()]);
        if let Some(group) = group {
            group.join(&mut command).map_err(|error| failed(&error))?;
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        spawn::die_with_parent(&mut command);
        let mut hog = HogProcess(command.spawn().map_err(|error| failed(&error))?);
        let mut out = hog.0.stdout.take().ok_or_else(|| failed(&"it has no output"))?;
        own::do_not_block(&out).map_err(|errno| failed(&errno))?;
        let (until, mut said) = (Instant::now() + PATIENCE, Vec::new());
        while !said.ends_with(b"\n") {
            let mut piece = [0; 256];
            match out.read(&mut piece) {
                Ok(0) => return Err("hog: it ended before it had its memory".to_owned()),
                Ok(count) => said.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(&error)),
            }
            if stop().is_some() {
                return Err("stopped while a competitor took its memory".to_owned());
            }
            if Instant::now() >= until {
                return Err(format!("hog: it has not got its memory within {} s", PATIENCE.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        match said.trim_ascii() == READY.as_bytes() {
            true => Ok(hog),
            false => Err(failed(&String::from_utf8_lossy(&said))),
        }
    }

    /// CPU time so far, ns.
    pub fn cpu_ns(&self) -> u64 {
        clock::process_cpu_ns(self.0.id()).unwrap_or(0)
    }

    /// Whether it still runs: the kernel may have killed it for want of memory.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for HogProcess {
    fn drop(&mut self) {
        // One that has ended already cannot be killed, and is waited for all the same.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
