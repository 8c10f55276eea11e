//! `checkup -o FILE`: run file of a checkup, created before the measurement and closed in any case.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use pagelab_command::atomic_file::NewRunFile;
use pagelab_host::guard::SignalWatch;
use pagelab_model::Snapshot;
use pagelab_model::run::{ClockReading, Manifest, RunEnd, StreamHeader};
use pagelab_runfile::{Error, ErrorKind, RunWriter};

use pagelab_command::exit::{Failure, FailureKind};
use pagelab_command::{manifest, output};

/// Maximum wait after a signal for the file to be closed. If the disk takes longer, the file remains unclosed
/// and readable.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Run file that is being written.
pub struct Recording {
    shared: Arc<SharedRecording>,
}

/// State shared with the thread that waits for signals.
struct SharedRecording {
    path: PathBuf,
    started: ClockReading,
    file: Mutex<RunFileState>,
}

struct RunFileState {
    /// `None` once it is closed.
    writer: Option<RunWriter>,
    /// First write error. The checkup continues without the file.
    failure: Option<Error>,
}

impl Recording {
    /// Creates the file with its manifest. From then on a signal closes it.
    pub fn create(run_file: &NewRunFile, manifest: &Manifest) -> Result<Recording, Failure> {
        let writer = run_file.create(manifest)?;
        let path = &run_file.path;
        let file = Mutex::new(RunFileState { writer: Some(writer), failure: None });
        let shared = Arc::new(SharedRecording { path: path.to_owned(), started: manifest.started, file });
        let on_signal = shared.clone();
        let watched = SignalWatch::install(Box::new(move |code, outcomes| {
            let kept = close_after_signal(&on_signal, output::signal_name(code));
            output::exit_after_signal(code, &kept, outcomes)
        }));
        if let Err(error) = watched {
            output::warn(&format!("warning: a signal will leave {} open: {error}", path.display()));
        }
        Ok(Recording { shared })
    }

    /// Stores an incomplete snapshot, in case a signal ends the run.
    pub fn store_partial(&self, snapshot: &Snapshot) {
        self.shared.lock().try_write(|writer| writer.add_partial_snapshot(snapshot));
    }

    /// Removes the file, since there is nothing to record.
    pub fn abandon(self) {
        let writer = self.shared.lock().writer.take();
        let ending = RunEnd::Stopped { after_ns: 0, reason: "nothing to read".to_owned() };
        // It was just created and is empty; if it remains, its contents show that.
        if writer.is_some_and(|writer| writer.close(ending).is_ok()) {
            let _ = std::fs::remove_file(&self.shared.path);
        }
    }

    /// Stores the complete snapshot and closes the file.
    pub fn finish(self, snapshot: &Snapshot) -> Result<PathBuf, Failure> {
        let mut file = self.shared.lock();
        file.try_write(|writer| writer.add_snapshot(snapshot));
        let after_ns = self.shared.elapsed_ns();
        let ending = match &file.failure {
            None => RunEnd::Complete { after_ns },
            Some(_) => {
                RunEnd::Stopped { after_ns, reason: "the snapshot was not completely stored".to_owned() }
            }
        };
        let closed = file.writer.take().map(|writer| writer.close(ending));
        match file.failure.take().or(closed.and_then(Result::err)) {
            // Values that no machine can have come from a saved tree.
            Some(error) if error.kind() == ErrorKind::NotStorable && snapshot.taken.euid.is_none() => {
                Err(Failure::new(FailureKind::BadInput, error.to_string()))
            }
            Some(error) => Err(error.into()),
            None => Ok(self.shared.path.clone()),
        }
    }

    /// Stores the samples of a stream: nanoseconds since boot, and value.
    pub fn record_stream(&self, head: &StreamHeader, samples: &[(u64, f64)]) {
        let started_ns = self.shared.started.boottime_ns;
        self.shared.lock().try_write(|writer| {
            let stream = writer.add_stream(head)?;
            for &(at_ns, value) in samples {
                writer.add_sample(stream, at_ns.saturating_sub(started_ns), value)?;
            }
            Ok(())
        });
    }
}

impl SharedRecording {
    fn lock(&self) -> MutexGuard<'_, RunFileState> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn elapsed_ns(&self) -> u64 {
        manifest::current_moment().boottime_ns.saturating_sub(self.started.boottime_ns)
    }
}

impl RunFileState {
    /// Writes, unless the file is closed or has failed before.
    fn try_write(&mut self, write: impl FnOnce(&mut RunWriter) -> Result<(), Error>) {
        if self.failure.is_none()
            && let Some(writer) = &mut self.writer
        {
            self.failure = write(writer).err();
        }
    }
}

/// Closes the file after a signal, with the data so far, and returns a sentence about its content. It does so
/// in a separate thread: the disk, or the holder of the lock, may take longer than a user waits after Ctrl-C.
fn close_after_signal(shared: &Arc<SharedRecording>, signal: &'static str) -> String {
    let (done, closed) = mpsc::channel();
    let file = shared.path.display().to_string();
    let shared = shared.clone();
    let close = move || {
        let mut file = shared.lock();
        let writer = file.writer.take();
        let ending = RunEnd::Stopped { after_ns: shared.elapsed_ns(), reason: signal.to_owned() };
        // The receiver may have stopped waiting.
        let _ = done.send(writer.map(|writer| writer.close(ending)));
    };
    let is_closing = thread::Builder::new().name("close".to_owned()).spawn(close).is_ok();
    match closed.recv_timeout(if is_closing { CLOSE_TIMEOUT } else { Duration::ZERO }) {
        Ok(Some(Ok(()))) => format!("{file} contains the data until then"),
        Ok(Some(Err(error))) => error.to_string(),
        Ok(None) => format!("{file} was already closed"),
        Err(_) => format!("cannot close {file} in time; it is readable up to the last commit"),
    }
}
