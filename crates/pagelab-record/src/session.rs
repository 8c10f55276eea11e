//! Main loop of a recording: ticks, samples, rows and events.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use pagelab_command::exit::{Failure, FailureKind};
use pagelab_formats::process_status::parse_statm;
use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_host::sampler::Sampler;
use pagelab_metrics::standard_series::{self, TickCost};
use pagelab_model::PageSize;
use pagelab_model::run::{RunEnd, RunEvent};
use pagelab_runfile::{Error, RunWriter};
use pagelab_sys::clock;

use super::maps::MapScanner;
use super::rows::SeriesWriter;
use super::tick::{BoottimeAlarm, GapDetector, TickGrid, WallClockOffset};

/// Time after a tick at which the file is checked for write errors, if the next tick is later.
const FILE_CHECK_AFTER_NS: u64 = 1_000_000_000;

const MINUTE_NS: u64 = 60_000_000_000;

/// Totals of a recording.
#[derive(Clone, Debug, Default)]
pub struct RecordTotals {
    pub samples: u64,
    pub missed_ticks: u64,
    /// CPU time of each sample with all its work, in order.
    pub cpu_ns: Vec<u64>,
    /// Delay of each sample.
    pub late_ns: Vec<u64>,
}

/// State that a tick needs.
pub struct RecordSession {
    pub path: PathBuf,
    pub writer: RunWriter,
    /// Reader of all metrics.
    pub sampler: Sampler,
    /// Times of the ticks.
    pub grid: TickGrid,
    pub totals: RecordTotals,
    pub page_size: PageSize,
    /// Maps in addition to the samples.
    pub maps: Option<MapScanner>,
    series: SeriesWriter,
    gap_detector: GapDetector,
    offset: WallClockOffset,
    statm: Option<File>,
    cpu_before_ns: u64,
    /// CPU time of the ticking thread, if a scan in another thread would be counted with a sample.
    thread_before_ns: u64,
    /// When call stacks are written next.
    next_stacks_ns: u64,
}

/// Why a recording ended.
#[derive(Debug)]
pub enum RecordingEnd {
    TimeOver,
    /// A signal arrived; the exit code after it.
    Signal(i32),
    /// The file cannot be written any more.
    FileFailed(Error),
}

impl RecordSession {
    /// Creates a session before its first tick. Ticks count from `grid`'s start.
    pub fn new(
        root: &Root,
        path: PathBuf,
        writer: RunWriter,
        sampler: Sampler,
        grid: TickGrid,
        page_size: PageSize,
    ) -> RecordSession {
        RecordSession {
            path,
            writer,
            sampler,
            grid,
            totals: RecordTotals::default(),
            page_size,
            maps: None,
            series: SeriesWriter::default(),
            gap_detector: GapDetector::new(root),
            offset: WallClockOffset::read(),
            statm: root.open_regular_file(paths::SELF_STATM).ok(),
            cpu_before_ns: process_cpu_ns(),
            thread_before_ns: clock::thread_cpu_ns(),
            next_stacks_ns: MINUTE_NS,
        }
    }

    /// Ticks until the time is over, a signal arrives or the file fails.
    pub fn run(
        &mut self,
        alarm: &BoottimeAlarm,
        for_ns: Option<u64>,
        after_tick: &mut dyn FnMut(&RecordSession),
    ) -> Result<RecordingEnd, Failure> {
        let mut tick = 0;
        let last_ns = for_ns.map(|for_ns| self.grid.first_tick_offset_ns.saturating_add(for_ns));
        loop {
            let at_ns = self.grid.at_ns(tick);
            let is_last = last_ns.is_some_and(|last_ns| at_ns > last_ns);
            let until_ns = last_ns.filter(|_| is_last).unwrap_or(at_ns);
            match self.wait(alarm, self.grid.start_ns.saturating_add(until_ns))? {
                Some(ended) => return Ok(ended),
                None if is_last => return Ok(RecordingEnd::TimeOver),
                None => {}
            }
            let next = self.grid.next_possible(tick, clock::boottime_ns());
            let ticked = if next > tick {
                let last = for_ns.map_or(next, |for_ns| next.min(for_ns / self.grid.every_ns + 1));
                self.report_missed(tick, last)
            } else {
                self.tick(tick)
            };
            if let Err(error) = ticked {
                return Ok(RecordingEnd::FileFailed(error));
            }
            tick = next.max(tick + u64::from(next == tick));
            after_tick(self);
        }
    }

    /// Waits for a deadline, and checks in between whether the file still takes records. Returns why the
    /// recording ends before it.
    fn wait(&mut self, alarm: &BoottimeAlarm, deadline_ns: u64) -> Result<Option<RecordingEnd>, Failure> {
        while self.sampler.needs_draining() || self.maps.is_some() {
            let until_ns = clock::boottime_ns().saturating_add(FILE_CHECK_AFTER_NS);
            if until_ns >= deadline_ns {
                break;
            }
            if let Some(ended) = self.wait_for(alarm, until_ns)? {
                return Ok(Some(ended));
            }
            self.sampler.drain_pending();
            let now_ns = clock::boottime_ns().saturating_sub(self.grid.start_ns);
            if let Err(error) = self.write_map(now_ns) {
                return Ok(Some(RecordingEnd::FileFailed(error)));
            }
        }
        self.wait_for(alarm, deadline_ns)
    }

    fn wait_for(&self, alarm: &BoottimeAlarm, deadline_ns: u64) -> Result<Option<RecordingEnd>, Failure> {
        let look_ns = clock::boottime_ns().saturating_add(FILE_CHECK_AFTER_NS);
        for until_ns in [look_ns.min(deadline_ns), deadline_ns] {
            let woken = alarm.wait(until_ns).map_err(|errno| {
                Failure::cannot(FailureKind::NotAvailable, "wait for the next tick", errno)
            })?;
            let failed = self.writer.failure().map(RecordingEnd::FileFailed);
            if let Some(ended) = failed.or(woken.map(RecordingEnd::Signal)) {
                return Ok(Some(ended));
            }
        }
        Ok(None)
    }

    /// Takes one sample and writes its values at the time of the tick.
    pub fn tick(&mut self, tick: u64) -> Result<(), Error> {
        let at_ns = self.grid.at_ns(tick);
        let began_ns = clock::boottime_ns();
        self.sampler.sample(at_ns);
        let sampled_ns = clock::boottime_ns();
        for part in self.sampler.metric_samples() {
            self.series.write(&mut self.writer, at_ns, &part)?;
        }
        for notice in self.sampler.notices() {
            self.record_event(at_ns, notice.kind, notice.text)?;
        }
        let now = WallClockOffset::read();
        if let Some(step) = self.offset.describe_step(&now) {
            self.record_event(at_ns, "clock", step)?;
        }
        self.offset = now;
        let (cpu_ns, thread_ns) = (process_cpu_ns(), clock::thread_cpu_ns());
        let row = TickCost {
            cpu_ns: match self.maps {
                None => cpu_ns.saturating_sub(self.cpu_before_ns),
                Some(_) => thread_ns.saturating_sub(self.thread_before_ns),
            },
            wall_ns: sampled_ns.saturating_sub(began_ns),
            late_ns: began_ns.saturating_sub(self.grid.deadline_ns(tick)),
            rss: self.rss(),
            missed: self.totals.missed_ticks,
        };
        (self.cpu_before_ns, self.thread_before_ns) = (cpu_ns, thread_ns);
        self.write_map(at_ns)?;
        standard_series::push_recorder_row(&row, self.series.clear_row());
        let (name, heads) = (standard_series::RECORDER, standard_series::recorder_columns);
        self.series.write_row(&mut self.writer, at_ns, name, "pagelab's own cost", 0, heads)?;
        self.write_stacks(at_ns)?;
        self.writer.request_commit();
        self.totals.samples += 1;
        self.totals.cpu_ns.push(row.cpu_ns);
        self.totals.late_ns.push(row.late_ns);
        self.gap_detector.record_tick(clock::boottime_ns().saturating_sub(began_ns));
        Ok(())
    }

    /// Writes a map that has been scanned.
    fn write_map(&mut self, at_ns: u64) -> Result<(), Error> {
        let Some(maps) = &mut self.maps else { return Ok(()) };
        let text = maps.write(&mut self.writer, &mut self.series)?;
        text.map_or(Ok(()), |text| self.record_event(at_ns, "maps", text))
    }

    /// Reports the missed ticks from `first` up to, not including, `next`.
    fn report_missed(&mut self, first: u64, next: u64) -> Result<(), Error> {
        let count = next.saturating_sub(first);
        if count == 0 {
            return Ok(());
        }
        self.totals.missed_ticks += count;
        let gap_ns = clock::boottime_ns().saturating_sub(self.grid.deadline_ns(first));
        let why = self.gap_detector.explain(gap_ns);
        let [from, to] = [first, next - 1].map(|tick| self.grid.at_ns(tick) as f64 / 1e9);
        let text = match count {
            1 => format!("1 tick at {from} s: {why}"),
            count => format!("{count} ticks, {from} s to {to} s: {why}"),
        };
        self.record_event(self.grid.at_ns(first), "missed", text)?;
        self.gap_detector.record_tick(0);
        Ok(())
    }

    pub fn record_event(&mut self, at_ns: u64, kind: &str, text: String) -> Result<(), Error> {
        self.writer.add_event(&RunEvent { at_ns, kind: kind.to_owned(), text })
    }

    /// Writes the map that is being scanned, if it is done in time.
    pub fn write_last_map(&mut self, patience: Duration) -> Result<(), Error> {
        let Some(maps) = self.maps.take() else { return Ok(()) };
        let text = maps.write_last(&mut self.writer, &mut self.series, patience)?;
        let at_ns = clock::boottime_ns().saturating_sub(self.grid.start_ns);
        text.map_or(Ok(()), |text| self.record_event(at_ns, "maps", text))
    }

    /// Writes the current call stacks occasionally, so that a killed recording has most of them: after a
    /// minute, and each time that the recording is twice as old, up to an hour.
    fn write_stacks(&mut self, at_ns: u64) -> Result<(), Error> {
        if at_ns < self.next_stacks_ns {
            return Ok(());
        }
        self.next_stacks_ns = at_ns.saturating_add(at_ns.clamp(MINUTE_NS, 60 * MINUTE_NS));
        self.sampler.stacks().map_or(Ok(()), |stacks| self.writer.add_stacks(at_ns, &stacks))
    }

    pub fn close(mut self, ending: RunEnd) -> (Result<(), Error>, RecordTotals) {
        self.sampler.drain_pending();
        if let Some(stacks) = self.sampler.stacks() {
            let at_ns = clock::boottime_ns().saturating_sub(self.grid.start_ns);
            // A failed file reports its error when it is closed.
            let _ = self.writer.add_stacks(at_ns, &stacks);
        }
        (self.writer.close(ending), self.totals)
    }

    fn rss(&self) -> Option<u64> {
        let mut text = [0; 128];
        let count = self.statm.as_ref()?.read_at(&mut text, 0).ok()?;
        Some(parse_statm(&text[..count]).ok()?.resident.to_bytes(self.page_size).0)
    }
}

/// CPU time of all threads of this process.
fn process_cpu_ns() -> u64 {
    clock::process_cpu_ns(std::process::id()).unwrap_or(0)
}
