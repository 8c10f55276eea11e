//! Samples of this machine at the ticks of a clock without drift.

use pagelab_command::manifest;
use pagelab_formats::{setting, zoneinfo};
use pagelab_host::fast_snapshot::{FastSnapshot, FileSelection};
use pagelab_host::machine::live_page_size;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::tracepoints::{self, TracepointOptions, Tracepoints};
use pagelab_host::{paths, settings};
use pagelab_metrics::usage::MemoryUse;
use pagelab_model::run::ClockReading;
use pagelab_model::{Absence, AbsenceReason, Bytes, PageSize, Reading, SysfsChoice};
use pagelab_sys::clock;

use super::Source;
use super::keys::{Key, choose_step};
use super::sample::{Counter, Sample, SampleHistory};
use super::view::{FeedState, ThpModes, View, ViewInfo};

/// The intervals that `+` and `-` step through, in milliseconds.
const INTERVALS_MS: [u64; 13] =
    [100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000, 3_600_000];
const MS: u64 = 1_000_000;

/// This machine as a source of samples.
pub struct LiveSource {
    root: Root,
    fast: FastSnapshot,
    started: ClockReading,
    every_ns: u64,
    /// Time of the next sample, in nanoseconds of CLOCK_BOOTTIME.
    due_ns: u64,
    paused: bool,
    /// Samples taken while the screen is paused.
    paused_samples: SampleHistory,
    missed_samples: u64,
    /// Count of allocations that fall back to another migratetype, if permitted.
    extfrag: Reading<Tracepoints>,
}

impl LiveSource {
    /// Opens the files, and a view of the first sample.
    pub fn open(every_ns: u64) -> Reading<(LiveSource, View)> {
        let root = Root::live();
        let fast = FastSnapshot::open(&root, FileSelection::ALL);
        // Without any of these files the view would be empty.
        if let (Err(absence), Err(_), Err(_)) = (fast.buddyinfo(), fast.vmstat(), fast.meminfo()) {
            return Err(absence.clone());
        }
        let started = manifest::current_moment();
        let (about, modes) = (read_about(&root, started), read_modes(&root));
        let extfrag = count_extfrag(&root);
        let live = LiveSource {
            root,
            fast,
            started,
            every_ns,
            due_ns: started.boottime_ns.saturating_add(every_ns),
            paused: false,
            paused_samples: SampleHistory::default(),
            missed_samples: 0,
            extfrag,
        };
        let mut view = View::new(about, live.to_feed(), modes);
        view.extfrag_absent = live.extfrag.as_ref().err().cloned();
        view.push(live.build_sample());
        view.last_failure = live.notice();
        Ok((live, view))
    }
}

impl Source for LiveSource {
    fn due_ns(&self, _now_ns: u64) -> Option<u64> {
        Some(self.due_ns)
    }

    fn advance(&mut self, now_ns: u64, view: &mut View) -> bool {
        if now_ns < self.due_ns {
            return false;
        }
        let late = (now_ns - self.due_ns) / self.every_ns.max(1);
        self.missed_samples = self.missed_samples.saturating_add(late);
        self.due_ns = self.due_ns.saturating_add(self.every_ns.saturating_mul(late + 1));
        self.fast.sample();
        let sample = self.build_sample();
        view.feed = self.to_feed();
        if self.paused {
            self.paused_samples.push(sample);
            return false;
        }
        view.push(sample);
        view.modes = read_modes(&self.root);
        view.last_failure = self.notice();
        true
    }

    fn handle_key(&mut self, key: Key, now_ns: u64, view: &mut View) -> bool {
        match key {
            Key::Char(' ') => {
                self.paused = !self.paused;
                if !self.paused {
                    std::mem::take(&mut self.paused_samples)
                        .into_samples()
                        .for_each(|sample| view.push(sample));
                    view.modes = read_modes(&self.root);
                }
            }
            Key::Char(sign @ ('+' | '=' | '-' | '_')) => {
                let to = choose_step(sign, &INTERVALS_MS, self.every_ns / MS);
                self.every_ns = to.map_or(self.every_ns, |ms| ms * MS);
                self.due_ns = now_ns.saturating_add(self.every_ns);
            }
            _ => return false,
        }
        view.feed = self.to_feed();
        true
    }
}

impl LiveSource {
    fn to_feed(&self) -> FeedState {
        FeedState::Live { every_ns: self.every_ns, paused: self.paused, missed: self.missed_samples }
    }

    /// Returns the last sample. A file that could not be read is missing in it.
    fn build_sample(&self) -> Sample {
        let (meminfo, vmstat) = (self.fast.meminfo().ok(), self.fast.vmstat().ok());
        let pressure = self.fast.pressure().ok();
        let zones = self.fast.buddyinfo().into_iter().flat_map(|buddyinfo| &buddyinfo.zones);
        let mut sample = Sample {
            at_ns: clock::boottime_ns().saturating_sub(self.started.boottime_ns),
            memory: meminfo.map(MemoryUse::from_meminfo).unwrap_or_default(),
            counters: Counter::read_all(|name| vmstat.and_then(|vmstat| vmstat.get(name))),
            zones: zones.map(|zone| (zone.key.clone(), Some(zone.areas.clone()))).collect(),
            some_centipercent: pressure.map(|pressure| pressure.some.avg10_centipercent),
            full_centipercent: pressure.and_then(|pressure| Some(pressure.full?.avg10_centipercent)),
        };
        let counts = self.extfrag.as_ref().ok().and_then(|tracepoints| tracepoints.counts().ok());
        sample.counters[Counter::Extfrag as usize] = counts.and_then(|counts| Some(counts.first()?.times));
        sample.counters[Counter::OwnCpu as usize] = clock::process_cpu_ns(std::process::id()).ok();
        sample
    }

    /// Returns the first file that could not be read. A kernel without pressure is shown by dashes.
    fn notice(&self) -> Option<String> {
        let absences = [
            self.fast.buddyinfo().err(),
            self.fast.vmstat().err(),
            self.fast.meminfo().err(),
            self.fast.pressure().err().filter(|absence| absence.why != AbsenceReason::NotThere),
        ];
        absences.into_iter().flatten().next().map(ToString::to_string)
    }
}

/// Opens the tracepoint only to count its events, with the smallest ring buffer, which is not read.
fn count_extfrag(root: &Root) -> Reading<Tracepoints> {
    let options = TracepointOptions { ring_bytes: Bytes(1), ..TracepointOptions::default() };
    let (tracepoints, _) = Tracepoints::open(&Reader::new(root), &tracepoints::EXTFRAG, &options)?;
    let not_enabled = |error: std::io::Error| {
        Absence::new("kmem:mm_page_alloc_extfrag", AbsenceReason::Failed, error.to_string())
    };
    tracepoints.enable().map_err(not_enabled)?;
    Ok(tracepoints)
}

fn read_about(root: &Root, started: ClockReading) -> ViewInfo {
    let reader = Reader::new(root);
    let page_size = live_page_size().unwrap_or(PageSize::DEFAULT);
    let zones = reader.parse(paths::ZONEINFO, zoneinfo::parse).map(|info| info.zones).unwrap_or_default();
    let uname = rustix::system::uname();
    ViewInfo {
        host: uname.nodename().to_string_lossy().into_owned(),
        kernel: uname.release().to_string_lossy().into_owned(),
        page_size,
        pmd_order: settings::read(&reader).pmd_order(page_size),
        started,
        zone_sizes: zones.into_iter().filter_map(|zone| Some((zone.key, zone.managed?))).collect(),
    }
}

fn read_modes(root: &Root) -> ThpModes {
    let reader = Reader::new(root);
    let word = |file: &str| {
        let choice: Reading<SysfsChoice> = reader.parse(&format!("{}/{file}", paths::THP), setting::parse);
        choice.map(|choice| choice.selected().to_owned())
    };
    ThpModes { enabled: word("enabled"), defrag: word("defrag") }
}
