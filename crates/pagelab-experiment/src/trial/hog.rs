//! Competitor for memory beside the trial: this program as a child that writes its memory repeatedly.

use std::io::Read;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use pagelab_model::Bytes;
use pagelab_sys::{clock, spawn};

use crate::cgroup::TrialCgroup;
use crate::gate::{self, READY};

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The process; it ends when this value is dropped, and with this process.
pub(super) struct HogProcess(Child);

impl HogProcess {
    /// Starts it, in this group if any, and waits until it has all its memory.
    pub fn start(
        size: Bytes,
        group: Option<&TrialCgroup>,
        stop_signal: &dyn Fn() -> Option<i32>,
    ) -> Result<HogProcess, String> {
        let failed = |error: &dyn std::fmt::Display| format!("hog: cannot start it: {error}");
        let mut command = gate::gate_command();
        command.args(["--hog", &size.0.to_string()]);
        // First, so that a kill of pagelab also ends a child that waits for the control group.
        spawn::die_with_parent(&mut command);
        if let Some(group) = group {
            group.join_before_exec(&mut command).map_err(|error| failed(&error))?;
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut hog = HogProcess(command.spawn().map_err(|error| failed(&error))?);
        let mut out = hog.0.stdout.take().ok_or_else(|| failed(&"no output pipe"))?;
        gate::set_nonblocking(&out).map_err(|errno| failed(&errno))?;
        let (deadline, mut said) = (Instant::now() + START_TIMEOUT, Vec::new());
        while !said.ends_with(b"\n") {
            let mut buffer = [0; 256];
            match out.read(&mut buffer) {
                Ok(0) => return Err("hog: it exited before it allocated all its memory".to_owned()),
                Ok(count) => said.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(&error)),
            }
            if stop_signal().is_some() {
                return Err("stopped while the hog was allocating its memory".to_owned());
            }
            if Instant::now() >= deadline {
                return Err(format!(
                    "hog: it did not allocate its memory within {} s",
                    START_TIMEOUT.as_secs()
                ));
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

    /// Whether it still runs: the kernel may have killed it for lack of memory.
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
