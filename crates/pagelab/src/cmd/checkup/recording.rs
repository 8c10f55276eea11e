//! `--run FILE`: the run file of a checkup, begun before anything is measured and closed whatever comes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use pagelab_host::guard::Watched;
use pagelab_model::Snapshot;
use pagelab_model::run::{Ending, Manifest, Moment, StreamHead};
use pagelab_runfile::{Error, ErrorKind, Writer};

use crate::cmd::run_file;
use crate::exit::{Exit, Failure};
use crate::probe::Samples;
use crate::{manifest, out};

/// How long a signal waits for the file to be closed. A disk that takes longer leaves it unclosed, and
/// readable.
const CLOSE_PATIENCE: Duration = Duration::from_secs(3);

/// A run file that is being written.
pub struct Recording {
    shared: Arc<Shared>,
}

/// What the thread that waits for signals needs too.
struct Shared {
    path: PathBuf,
    started: Moment,
    file: Mutex<File>,
}

struct File {
    /// `None` once it is closed.
    writer: Option<Writer>,
    /// The first thing that could not be written. The checkup goes on without the file.
    failure: Option<Error>,
}

impl Recording {
    /// Makes the file with its manifest. From now on a signal closes it.
    pub fn begin(path: &Path, manifest: &Manifest) -> Result<Recording, Failure> {
        let writer = Writer::create(path, manifest).map_err(|error| run_file(&error))?;
        let file = Mutex::new(File { writer: Some(writer), failure: None });
        let shared = Arc::new(Shared { path: path.to_owned(), started: manifest.started, file });
        let on_signal = shared.clone();
        let watched = Watched::signals(Box::new(move |code, outcomes| {
            let kept = stop(&on_signal, out::signal_name(code));
            out::signalled(code, &kept, outcomes)
        }));
        if let Err(error) = watched {
            out::complain(&format!("pagelab: a signal will leave {} unclosed: {error}", path.display()));
        }
        Ok(Recording { shared })
    }

    /// Stores a look that is going to be added to, for the case that a signal or a kill ends the run.
    pub fn so_far(&self, look: &Snapshot) {
        self.shared.lock().try_to(|writer| writer.snapshot_so_far(look));
    }

    /// Takes the file away again: there was nothing to record.
    pub fn abandon(self) {
        let writer = self.shared.lock().writer.take();
        let ending = Ending::Stopped { after_ns: 0, why: "there was nothing to read".to_owned() };
        // It was made a moment ago and holds nothing; if it stays, it says so itself.
        if writer.is_some_and(|writer| writer.close(ending).is_ok()) {
            let _ = std::fs::remove_file(&self.shared.path);
        }
    }

    /// Stores the whole look and closes the file.
    pub fn finish(self, look: &Snapshot) -> Result<PathBuf, Failure> {
        let mut file = self.shared.lock();
        file.try_to(|writer| writer.snapshot(look));
        let after_ns = self.shared.after_ns();
        let ending = match &file.failure {
            None => Ending::Complete { after_ns },
            Some(_) => Ending::Stopped { after_ns, why: "not all of it could be stored".to_owned() },
        };
        let closed = file.writer.take().map(|writer| writer.close(ending));
        match file.failure.take().or(closed.and_then(Result::err)) {
            // Numbers that no machine has are a saved tree's.
            Some(error) if error.kind() == ErrorKind::NotStorable && look.taken.euid.is_none() => {
                Err(Failure::new(Exit::BadInput, error.to_string()))
            }
            Some(error) => Err(run_file(&error)),
            None => Ok(self.shared.path.clone()),
        }
    }
}

impl Samples for Recording {
    fn take(&self, head: &StreamHead, samples: &[(u64, f64)]) {
        let started_ns = self.shared.started.boottime_ns;
        self.shared.lock().try_to(|writer| {
            let stream = writer.stream(head)?;
            for &(at_ns, value) in samples {
                writer.sample(stream, at_ns.saturating_sub(started_ns), value)?;
            }
            Ok(())
        });
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nanoseconds since the start.
    fn after_ns(&self) -> u64 {
        manifest::now().boottime_ns.saturating_sub(self.started.boottime_ns)
    }
}

impl File {
    /// Writes, unless the file is closed or has failed before.
    fn try_to(&mut self, write: impl FnOnce(&mut Writer) -> Result<(), Error>) {
        if self.failure.is_none()
            && let Some(writer) = &mut self.writer
        {
            self.failure = write(writer).err();
        }
    }
}

/// Closes the file after a signal, with what is known so far, and says what is in it. In a thread of its
/// own: the disk, or whoever holds the file, may take longer than a person who pressed Ctrl-C waits.
fn stop(shared: &Arc<Shared>, signal: &'static str) -> String {
    let (done, closed) = mpsc::channel();
    let file = shared.path.display().to_string();
    let shared = shared.clone();
    let close = move || {
        let mut file = shared.lock();
        let writer = file.writer.take();
        let ending = Ending::Stopped { after_ns: shared.after_ns(), why: signal.to_owned() };
        // The receiver may have lost its patience.
        let _ = done.send(writer.map(|writer| writer.close(ending)));
    };
    let is_closing = thread::Builder::new().name("close".to_owned()).spawn(close).is_ok();
    match closed.recv_timeout(if is_closing { CLOSE_PATIENCE } else { Duration::ZERO }) {
        Ok(Some(Ok(()))) => format!("{file} keeps what was seen and measured until then"),
        Ok(Some(Err(error))) => error.to_string(),
        Ok(None) => format!("{file} was closed before"),
        Err(_) => format!("{file} could not be closed in time; what had been written can be read"),
    }
}
