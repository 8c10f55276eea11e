//! A recording that goes on: ticks, samples, rows, and what happened in between.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use pagelab_formats::status::parse_statm;
use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_host::sampler::Sampler;
use pagelab_metrics::recorded::{self, RecorderTick};
use pagelab_model::PageSize;
use pagelab_model::run::{Ending, Event};
use pagelab_runfile::{Error, Writer};
use pagelab_sys::clock;

use super::gap::Watch;
use super::maps::Maps;
use super::rows::Rows;
use super::status::Status;
use super::tick::{Alarm, Grid, Woken};
use super::wall::Offset;
use crate::exit::{Exit, Failure};

/// How long after a tick it is looked whether the disk took it, where the next tick is further away.
const LOOK_AFTER_NS: u64 = 1_000_000_000;

const MINUTE_NS: u64 = 60_000_000_000;

/// What a recording has come to.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Samples taken.
    pub samples: u64,
    /// Ticks missed.
    pub missed: u64,
    /// CPU time of each sample with all that belongs to it, in the order of taking.
    pub cpu_ns: Vec<u64>,
    /// How late each sample began.
    pub late_ns: Vec<u64>,
}

/// Everything that a tick needs.
pub struct Session {
    pub path: PathBuf,
    pub writer: Writer,
    pub sampler: Sampler,
    pub grid: Grid,
    pub totals: Totals,
    pub page_size: PageSize,
    /// Maps beside the samples.
    pub maps: Option<Maps>,
    rows: Rows,
    watch: Watch,
    offset: Offset,
    statm: Option<File>,
    cpu_before_ns: u64,
    /// CPU time of the thread that ticks, where a scan in another one would be counted with a sample.
    thread_before_ns: u64,
    /// When call stacks are to be written next.
    stacks_ns: u64,
}

/// Why a recording ended.
#[derive(Debug)]
pub enum Ended {
    /// The time that was asked for is over.
    Over,
    /// A signal came; the exit code after it.
    Signal(i32),
    /// The file can be written no more.
    Failed(Error),
}

impl Session {
    /// A recording that has not ticked yet. Ticks count from `grid`'s start.
    pub fn new(
        root: &Root,
        path: PathBuf,
        writer: Writer,
        sampler: Sampler,
        grid: Grid,
        page_size: PageSize,
    ) -> Session {
        Session {
            path,
            writer,
            sampler,
            grid,
            totals: Totals::default(),
            page_size,
            maps: None,
            rows: Rows::default(),
            watch: Watch::new(root),
            offset: Offset::now(),
            statm: root.file(paths::SELF_STATM).ok(),
            cpu_before_ns: cpu_ns(),
            thread_before_ns: clock::thread_cpu_ns(),
            stacks_ns: MINUTE_NS,
        }
    }

    /// Ticks until the time is over, a signal comes or the file fails.
    pub fn run(&mut self, alarm: &Alarm, for_ns: Option<u64>, status: &mut Status) -> Result<Ended, Failure> {
        let mut tick = 0;
        let last_ns = for_ns.map(|for_ns| self.grid.first_ns.saturating_add(for_ns));
        loop {
            let at_ns = self.grid.at_ns(tick);
            let is_last = last_ns.is_some_and(|last_ns| at_ns > last_ns);
            let until_ns = last_ns.filter(|_| is_last).unwrap_or(at_ns);
            match self.wait(alarm, self.grid.start_ns.saturating_add(until_ns))? {
                Waited::Due if is_last => return Ok(Ended::Over),
                Waited::Due => {}
                Waited::Stop(code) => return Ok(Ended::Signal(code)),
                Waited::Failed(error) => return Ok(Ended::Failed(error)),
            }
            let next = self.grid.next_possible(tick, clock::boottime_ns());
            let ticked = if next > tick {
                let last = for_ns.map_or(next, |for_ns| next.min(for_ns / self.grid.every_ns + 1));
                self.missed(tick, last)
            } else {
                self.tick(tick)
            };
            if let Err(error) = ticked {
                return Ok(Ended::Failed(error));
            }
            tick = next.max(tick + u64::from(next == tick));
            status.show(self);
        }
    }

    /// Waits for a deadline, and looks in between whether the file still takes records.
    fn wait(&mut self, alarm: &Alarm, deadline_ns: u64) -> Result<Waited, Failure> {
        while self.sampler.cannot_wait() || self.maps.is_some() {
            let until_ns = clock::boottime_ns().saturating_add(LOOK_AFTER_NS);
            if until_ns >= deadline_ns {
                break;
            }
            match self.wait_for(alarm, until_ns)? {
                Waited::Due => {
                    self.sampler.between();
                    let now_ns = clock::boottime_ns().saturating_sub(self.grid.start_ns);
                    if let Err(error) = self.write_map(now_ns) {
                        return Ok(Waited::Failed(error));
                    }
                }
                ended => return Ok(ended),
            }
        }
        self.wait_for(alarm, deadline_ns)
    }

    fn wait_for(&self, alarm: &Alarm, deadline_ns: u64) -> Result<Waited, Failure> {
        let look_ns = clock::boottime_ns().saturating_add(LOOK_AFTER_NS);
        for until_ns in [look_ns.min(deadline_ns), deadline_ns] {
            let woken = alarm.wait(until_ns).map_err(|errno| {
                Failure::new(Exit::NotAvailable, "cannot wait for the next tick").because(errno)
            })?;
            match (woken, self.writer.failure()) {
                (_, Some(error)) => return Ok(Waited::Failed(error)),
                (Woken::Stop(code), None) => return Ok(Waited::Stop(code)),
                (Woken::Due, None) => {}
            }
        }
        Ok(Waited::Due)
    }

    /// Takes one sample and writes what it saw at the time of its tick.
    pub fn tick(&mut self, tick: u64) -> Result<(), Error> {
        let at_ns = self.grid.at_ns(tick);
        let began_ns = clock::boottime_ns();
        self.sampler.sample(at_ns);
        let sampled_ns = clock::boottime_ns();
        for part in self.sampler.parts() {
            self.rows.write(&mut self.writer, at_ns, &part)?;
        }
        for notice in self.sampler.notices() {
            self.event(at_ns, notice.kind, notice.text)?;
        }
        let now = Offset::now();
        if let Some(step) = self.offset.step_to(&now) {
            self.event(at_ns, "clock", step)?;
        }
        self.offset = now;
        let (cpu_ns, thread_ns) = (cpu_ns(), clock::thread_cpu_ns());
        let row = RecorderTick {
            cpu_ns: match self.maps {
                None => cpu_ns.saturating_sub(self.cpu_before_ns),
                Some(_) => thread_ns.saturating_sub(self.thread_before_ns),
            },
            wall_ns: sampled_ns.saturating_sub(began_ns),
            late_ns: began_ns.saturating_sub(self.grid.deadline_ns(tick)),
            rss: self.rss(),
            missed: self.totals.missed,
        };
        (self.cpu_before_ns, self.thread_before_ns) = (cpu_ns, thread_ns);
        self.write_map(at_ns)?;
        recorded::recorder_row(&row, self.rows.fresh());
        let (name, heads) = (recorded::RECORDER, recorded::recorder_heads);
        self.rows.put(&mut self.writer, at_ns, name, "pagelab's own cost", 0, heads)?;
        self.keep_stacks(at_ns)?;
        self.writer.hurry();
        self.totals.samples += 1;
        self.totals.cpu_ns.push(row.cpu_ns);
        self.totals.late_ns.push(row.late_ns);
        self.watch.mark(clock::boottime_ns().saturating_sub(began_ns));
        Ok(())
    }

    /// Writes a map that has been scanned meanwhile.
    fn write_map(&mut self, at_ns: u64) -> Result<(), Error> {
        let Some(maps) = &mut self.maps else { return Ok(()) };
        match maps.write(&mut self.writer, &mut self.rows)? {
            Some(text) => self.event(at_ns, "maps", text),
            None => Ok(()),
        }
    }

    /// Tells of the ticks from `first` up to, not including, `next`.
    fn missed(&mut self, first: u64, next: u64) -> Result<(), Error> {
        let count = next.saturating_sub(first);
        if count == 0 {
            return Ok(());
        }
        self.totals.missed += count;
        let gap_ns = clock::boottime_ns().saturating_sub(self.grid.deadline_ns(first));
        let why = self.watch.why(gap_ns);
        let [from, to] = [first, next - 1].map(|tick| self.grid.at_ns(tick) as f64 / 1e9);
        let text = match count {
            1 => format!("1 tick at {from} s: {why}"),
            count => format!("{count} ticks, {from} s to {to} s: {why}"),
        };
        self.event(self.grid.at_ns(first), "missed", text)?;
        self.watch.mark(0);
        Ok(())
    }

    /// Something that happened.
    pub fn event(&mut self, at_ns: u64, kind: &str, text: String) -> Result<(), Error> {
        self.writer.event(&Event { at_ns, kind: kind.to_owned(), text })
    }

    /// Writes the map that is being scanned, if it comes in time.
    pub fn last_map(&mut self, patience: Duration) -> Result<(), Error> {
        let Some(maps) = self.maps.take() else { return Ok(()) };
        match maps.write_last(&mut self.writer, &mut self.rows, patience)? {
            Some(text) => {
                let at_ns = clock::boottime_ns().saturating_sub(self.grid.start_ns);
                self.event(at_ns, "maps", text)
            }
            None => Ok(()),
        }
    }

    /// Writes the call stacks so far now and then, so that a killed recording has most of them: after a
    /// minute, and each time that the recording is twice as old, up to an hour.
    fn keep_stacks(&mut self, at_ns: u64) -> Result<(), Error> {
        if at_ns < self.stacks_ns {
            return Ok(());
        }
        self.stacks_ns = at_ns.saturating_add(at_ns.clamp(MINUTE_NS, 60 * MINUTE_NS));
        match self.sampler.stacks() {
            Some(stacks) => self.writer.stacks(at_ns, &stacks),
            None => Ok(()),
        }
    }

    /// Closes the file.
    pub fn close(mut self, ending: Ending) -> (Result<(), Error>, Totals) {
        self.sampler.between();
        if let Some(stacks) = self.sampler.stacks() {
            let at_ns = clock::boottime_ns().saturating_sub(self.grid.start_ns);
            // A file that fails says so when it is closed.
            let _ = self.writer.stacks(at_ns, &stacks);
        }
        (self.writer.close(ending), self.totals)
    }

    fn rss(&self) -> Option<u64> {
        let mut text = [0; 128];
        let count = self.statm.as_ref()?.read_at(&mut text, 0).ok()?;
        Some(parse_statm(&text[..count]).ok()?.resident.bytes(self.page_size).0)
    }
}

enum Waited {
    Due,
    Stop(i32),
    Failed(Error),
}

/// CPU time of all threads of this process.
fn cpu_ns() -> u64 {
    clock::process_cpu_ns(std::process::id()).unwrap_or(0)
}
