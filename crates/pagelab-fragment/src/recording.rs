//! `-o FILE`: time series of free blocks and memory use during a run.

use std::time::{Duration, Instant};

use pagelab_command::atomic_file::NewRunFile;
use pagelab_command::exit::{Failure, absence_failure};
use pagelab_command::{manifest, output};
use pagelab_host::fast_snapshot::FastSnapshot;
use pagelab_metrics::published_scores::{ProcedurePhase, unusable_permille_by_order};
use pagelab_metrics::standard_series;
use pagelab_model::run::{ClockReading, ColumnHeader, RunEnd, StreamHeader, Unit};
use pagelab_model::{Absence, BuddyInfo, Snapshot};
use pagelab_runfile::{Error, RunWriter, SeriesId};

const ROW_INTERVAL_MIN: Duration = Duration::from_millis(250);

/// Run file with samples taken while memory is fragmented and held.
pub struct FragmentRecording {
    writer: Option<RunWriter>,
    started: ClockReading,
    last_row: Option<Instant>,
    buddyinfo: (SeriesId, Vec<ColumnHeader>),
    meminfo: (SeriesId, Vec<ColumnHeader>),
}

impl FragmentRecording {
    /// Creates the file. The columns of the series are those of the kernel's files now.
    pub fn create(
        file: &NewRunFile,
        seed: u64,
        snapshot: &Snapshot,
        fast: &FastSnapshot,
    ) -> Result<FragmentRecording, Failure> {
        let started = manifest::current_moment();
        let manifest = manifest::build_for_process("fragment", Some(seed), started, snapshot);
        let mut writer = file.create(&manifest)?;
        let mut series = |name: &str, source: &str, heads: Vec<ColumnHeader>| {
            let id = writer.add_series(name, source, &heads)?;
            Ok::<_, Failure>((id, heads))
        };
        let absent = |absence: &Absence| absence_failure(absence.clone());
        let buddy = fast.buddyinfo().map(standard_series::buddyinfo_columns).map_err(absent)?;
        let info = fast.meminfo().map(standard_series::meminfo_columns).map_err(absent)?;
        let buddyinfo = series(standard_series::BUDDYINFO, "buddyinfo", buddy)?;
        let meminfo = series(standard_series::MEMINFO, "meminfo", info)?;
        Ok(FragmentRecording { writer: Some(writer), started, last_row: None, buddyinfo, meminfo })
    }

    /// Stores a row, if the last one is old enough. After a write error it warns once, and the run continues.
    pub fn sample(&mut self, fast: &FastSnapshot) {
        if self.last_row.is_some_and(|last| last.elapsed() < ROW_INTERVAL_MIN) {
            return;
        }
        self.last_row = Some(Instant::now());
        let (mut free, mut used) = (Vec::new(), Vec::new());
        if let Ok(buddyinfo) = fast.buddyinfo() {
            standard_series::push_buddyinfo_row(buddyinfo, &mut free);
        }
        if let Ok(meminfo) = fast.meminfo() {
            standard_series::push_meminfo_row(meminfo, &mut used);
        }
        // A row that could not be read, or has more zones or lines than at the start, does not fit.
        let fitting: Vec<_> = [(&self.buddyinfo, free), (&self.meminfo, used)]
            .into_iter()
            .filter(|((_, heads), row)| heads.len() == row.len())
            .map(|((series, _), row)| (*series, row))
            .collect();
        self.store_with(|writer, at_ns| {
            fitting.iter().try_for_each(|(series, row)| writer.add_row(*series, at_ns, row))
        });
    }

    /// Stores other data, with the time since the start. After a write error it warns once.
    pub fn store_with(&mut self, store: impl FnOnce(&mut RunWriter, u64) -> Result<(), Error>) {
        let at_ns = manifest::current_moment().boottime_ns.saturating_sub(self.started.boottime_ns);
        let Some(writer) = &mut self.writer else { return };
        if let Err(error) = store(writer, at_ns) {
            output::warn(&format!("warning: {error}"));
            self.writer = None;
        }
    }

    pub fn finish(mut self, stopped_by: Option<&str>) {
        let after_ns = manifest::current_moment().boottime_ns.saturating_sub(self.started.boottime_ns);
        let ending = match stopped_by {
            None => RunEnd::Complete { after_ns },
            Some(why) => RunEnd::Stopped { after_ns, reason: why.to_owned() },
        };
        if let Some(Err(error)) = self.writer.take().map(|writer| writer.close(ending)) {
            output::warn(&format!("warning: {error}"));
        }
    }
}

/// Records F_u of each zone by order, as samples in thousandths.
pub fn record_score(recording: &mut FragmentRecording, phase: ProcedurePhase, thp: bool, free: &BuddyInfo) {
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let huge = if thp { "yes" } else { "no" };
    recording.store_with(|writer, at_ns| {
        for zone in &free.zones {
            for (order, permille) in unusable_permille_by_order(&zone.areas).into_iter().enumerate() {
                let stream = writer.add_stream(&StreamHeader {
                    name: standard_series::UNUSABLE_INDEX_STREAM.to_owned(),
                    unit: Unit::PERMILLE.into(),
                    labels: vec![
                        label("huge pages", huge),
                        label("phase", phase.name()),
                        label("zone", &format!("{}/{}", zone.key.node.0, zone.key.zone)),
                        label(standard_series::ORDER_LABEL, &order.to_string()),
                    ],
                })?;
                writer.add_sample(stream, at_ns, f64::from(permille))?;
            }
        }
        Ok(())
    });
}
