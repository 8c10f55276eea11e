//! Progress of downloads: a line for each, and the signal that stops them.

use std::io::IsTerminal;

use pagelab_host::capture::StopSignal;
use pagelab_packages::apt::FetchObserver;

use crate::exit::Failure;
use crate::output;
use crate::progress::{self, StatusEnd, StatusKind};

/// Progress output, and the signal that requests a stop.
pub struct SetupProgress {
    /// Recorder of signals.
    pub stop: StopSignal,
    /// Whether to print progress.
    pub is_verbose: bool,
}

impl SetupProgress {
    /// Installs handlers that only record signals.
    pub fn start(tell: bool) -> Result<SetupProgress, Failure> {
        let stop = StopSignal::watch().map_err(Failure::no_signal_handlers)?;
        Ok(SetupProgress { stop, is_verbose: tell || std::io::stderr().is_terminal() })
    }

    /// Prints a line of progress. In a log it is also what a long silence says.
    pub fn print(&self, line: &str) {
        if self.is_verbose {
            output::warn(line);
        }
        progress::set_status(StatusKind::Setup, line, StatusEnd::Unknown);
    }
}

impl Drop for SetupProgress {
    fn drop(&mut self) {
        progress::set_status(StatusKind::Setup, "", StatusEnd::Unknown);
    }
}

impl FetchObserver for SetupProgress {
    fn report_progress(&mut self, line: &str) {
        self.print(line);
    }

    fn stop_signal(&mut self) -> Option<i32> {
        self.stop.signal()
    }
}
