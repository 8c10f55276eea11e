//! `-o FILE`: free blocks and use over the time of a run.

use std::path::Path;
use std::time::{Duration, Instant};

use pagelab_host::fast::FastSnapshot;
use pagelab_metrics::recorded;
use pagelab_model::Snapshot;
use pagelab_model::run::{ColumnHead, Ending, Moment};
use pagelab_runfile::{Error, ErrorKind, SeriesId, Writer};

use super::taking::unread;
use crate::exit::{Exit, Failure};
use crate::{manifest, out};

/// Rows come at most this often.
const EVERY: Duration = Duration::from_millis(250);

/// A run file that grows while memory is fragmented and held.
pub struct Recording {
    writer: Option<Writer>,
    started: Moment,
    last: Option<Instant>,
    buddyinfo: (SeriesId, Vec<ColumnHead>),
    meminfo: (SeriesId, Vec<ColumnHead>),
}

impl Recording {
    /// Makes the file. The series have the shape that the files have now.
    pub fn begin(
        path: &Path,
        seed: u64,
        snapshot: &Snapshot,
        fast: &FastSnapshot,
    ) -> Result<Recording, Failure> {
        let started = manifest::now();
        let manifest = manifest::of_this_process("fragment", Some(seed), started, snapshot);
        let mut writer = Writer::create(path, &manifest).map_err(|error| failure(&error))?;
        let mut series = |name: &str, source: &str, heads: Vec<ColumnHead>| {
            writer.series(name, source, &heads).map(|id| (id, heads)).map_err(|error| failure(&error))
        };
        let buddy =
            fast.buddyinfo().map(recorded::buddyinfo_heads).map_err(|absence| unread(absence.clone()))?;
        let info = fast.meminfo().map(recorded::meminfo_heads).map_err(|absence| unread(absence.clone()))?;
        let buddyinfo = series(recorded::BUDDYINFO, "buddyinfo", buddy)?;
        let meminfo = series(recorded::MEMINFO, "meminfo", info)?;
        Ok(Recording { writer: Some(writer), started, last: None, buddyinfo, meminfo })
    }

    /// Stores a row, if the last one is old enough. What cannot be stored is said once, and the run goes on.
    pub fn sample(&mut self, fast: &FastSnapshot) {
        if self.last.is_some_and(|last| last.elapsed() < EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        let at_ns = manifest::now().boottime_ns.saturating_sub(self.started.boottime_ns);
        let (mut free, mut used) = (Vec::new(), Vec::new());
        if let Ok(buddyinfo) = fast.buddyinfo() {
            recorded::buddyinfo_row(buddyinfo, &mut free);
        }
        if let Ok(meminfo) = fast.meminfo() {
            recorded::meminfo_row(meminfo, &mut used);
        }
        let rows = [(&self.buddyinfo, free), (&self.meminfo, used)];
        let Some(writer) = &mut self.writer else { return };
        // What could not be read, or has a zone or a line more than at the start, does not fit the series.
        let mut fitting = rows.iter().filter(|((_, heads), row)| heads.len() == row.len());
        let stored: Result<(), Error> =
            fitting.try_for_each(|((series, _), row)| writer.row(*series, at_ns, row));
        if let Err(error) = stored {
            out::complain(&format!("pagelab: {error}"));
            self.writer = None;
        }
    }

    /// Stores something else, with the time since the start. What cannot be stored is said once.
    pub fn with(&mut self, store: impl FnOnce(&mut Writer, u64) -> Result<(), Error>) {
        let at_ns = manifest::now().boottime_ns.saturating_sub(self.started.boottime_ns);
        let Some(writer) = &mut self.writer else { return };
        if let Err(error) = store(writer, at_ns) {
            out::complain(&format!("pagelab: {error}"));
            self.writer = None;
        }
    }

    /// Closes the file.
    pub fn finish(mut self, stopped_by: Option<&str>) {
        let after_ns = manifest::now().boottime_ns.saturating_sub(self.started.boottime_ns);
        let ending = match stopped_by {
            None => Ending::Complete { after_ns },
            Some(why) => Ending::Stopped { after_ns, why: why.to_owned() },
        };
        if let Some(Err(error)) = self.writer.take().map(|writer| writer.close(ending)) {
            out::complain(&format!("pagelab: {error}"));
        }
    }
}

fn failure(error: &Error) -> Failure {
    let exit = match error.kind() {
        ErrorKind::Exists | ErrorKind::NotThere => Exit::Usage,
        ErrorKind::NotPermitted => Exit::NotAvailable,
        _ => Exit::Partial,
    };
    Failure::new(exit, error.to_string())
}
