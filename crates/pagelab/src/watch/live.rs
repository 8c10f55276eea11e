//! Samples of this machine, taken at the ticks of a clock that does not drift.

use pagelab_formats::{choice, zoneinfo};
use pagelab_host::collect::pmd_order;
use pagelab_host::fast::{FastSnapshot, Wanted};
use pagelab_host::machine::live_page_size;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::settings;
use pagelab_host::tracepoints::{Options, Tracepoints, sets};
use pagelab_metrics::usage::MemoryUse;
use pagelab_model::run::Moment;
use pagelab_model::{Absence, AbsentWhy, Bytes, Choice, PageSize, Reading};
use pagelab_sys::clock;

use super::counter::Counter;
use super::keys::Key;
use super::sample::{History, Sample};
use super::view::{About, Feed, Modes, View};
use crate::manifest;

/// The intervals that `+` and `-` step through, in milliseconds.
const STEPS_MS: [u64; 13] =
    [100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000, 3_600_000];
const MS: u64 = 1_000_000;

/// This machine as a source of samples.
pub struct Live {
    root: Root,
    fast: FastSnapshot,
    started: Moment,
    every_ns: u64,
    /// When the next sample is due, in nanoseconds of CLOCK_BOOTTIME.
    due_ns: u64,
    paused: bool,
    /// Samples taken while the screen stands still.
    waiting: History,
    missed: u64,
    /// Counts allocations that fall back to another migratetype's memory, where that is permitted.
    extfrag: Reading<Tracepoints>,
}

impl Live {
    /// Opens the files, and a view that shows the first sample.
    pub fn open(every_ns: u64) -> Reading<(Live, View)> {
        let root = Root::live();
        let fast = FastSnapshot::open(&root, Wanted::ALL);
        // Without any of them there is nothing to show.
        if let (Err(absence), Err(_), Err(_)) = (fast.buddyinfo(), fast.vmstat(), fast.meminfo()) {
            return Err(absence.clone());
        }
        let started = manifest::now();
        let (about, modes) = (about(&root, started), modes(&root));
        let extfrag = count_extfrag(&root);
        let live = Live {
            root,
            fast,
            started,
            every_ns,
            due_ns: started.boottime_ns.saturating_add(every_ns),
            paused: false,
            waiting: History::default(),
            missed: 0,
            extfrag,
        };
        let mut view = View::new(about, live.feed(), modes);
        view.extfrag_absent = live.extfrag.as_ref().err().cloned();
        view.push(live.sample());
        view.notice = live.notice();
        Ok((live, view))
    }

    /// When the next sample is due.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Takes a sample if one is due. Whether the screen has to be drawn again.
    pub fn advance(&mut self, now_ns: u64, view: &mut View) -> bool {
        if now_ns < self.due_ns {
            return false;
        }
        let late = (now_ns - self.due_ns) / self.every_ns.max(1);
        self.missed = self.missed.saturating_add(late);
        self.due_ns = self.due_ns.saturating_add(self.every_ns.saturating_mul(late + 1));
        self.fast.sample();
        let sample = self.sample();
        view.feed = self.feed();
        if self.paused {
            self.waiting.push(sample);
            return false;
        }
        view.push(sample);
        view.modes = modes(&self.root);
        view.notice = self.notice();
        true
    }

    /// Does what a key says about the sampling. Whether it had a meaning.
    pub fn press(&mut self, key: Key, now_ns: u64, view: &mut View) -> bool {
        match key {
            Key::Char(' ') => {
                self.paused = !self.paused;
                if !self.paused {
                    std::mem::take(&mut self.waiting).into_iter().for_each(|sample| view.push(sample));
                    view.modes = modes(&self.root);
                }
            }
            Key::Char(sign @ ('+' | '=' | '-' | '_')) => {
                let every_ms = self.every_ns / MS;
                let to = if matches!(sign, '+' | '=') {
                    STEPS_MS.into_iter().find(|&step| step > every_ms)
                } else {
                    STEPS_MS.into_iter().rev().find(|&step| step < every_ms)
                };
                self.every_ns = to.map_or(self.every_ns, |ms| ms * MS);
                self.due_ns = now_ns.saturating_add(self.every_ns);
            }
            _ => return false,
        }
        view.feed = self.feed();
        true
    }

    fn feed(&self) -> Feed {
        Feed::Live { every_ns: self.every_ns, paused: self.paused, missed: self.missed }
    }

    /// The last sample. A file that could not be read is missing in it.
    fn sample(&self) -> Sample {
        let (meminfo, vmstat) = (self.fast.meminfo().ok(), self.fast.vmstat().ok());
        let pressure = self.fast.pressure().ok();
        let zones = self.fast.buddyinfo().into_iter().flat_map(|buddyinfo| &buddyinfo.zones);
        let mut sample = Sample {
            at_ns: clock::boottime_ns().saturating_sub(self.started.boottime_ns),
            memory: meminfo.map(MemoryUse::of).unwrap_or_default(),
            counters: Counter::pick(|name| vmstat.and_then(|vmstat| vmstat.get(name))),
            zones: zones.map(|zone| (zone.key.clone(), Some(zone.areas.clone()))).collect(),
            some_centipercent: pressure.map(|pressure| pressure.some.avg10_centipercent),
            full_centipercent: pressure
                .and_then(|pressure| pressure.full)
                .map(|full| full.avg10_centipercent),
        };
        let counts = self.extfrag.as_ref().ok().and_then(|tracepoints| tracepoints.counts().ok());
        sample.counters[Counter::Extfrag as usize] = counts.and_then(|counts| Some(counts.first()?.times));
        sample.counters[Counter::OwnCpu as usize] = clock::process_cpu_ns(std::process::id()).ok();
        sample
    }

    /// The first file that could not be read. A kernel without pressure is told by its dashes.
    fn notice(&self) -> Option<String> {
        let absences = [
            self.fast.buddyinfo().err(),
            self.fast.vmstat().err(),
            self.fast.meminfo().err(),
            self.fast.pressure().err().filter(|absence| absence.why != AbsentWhy::NotThere),
        ];
        absences.into_iter().flatten().next().map(said)
    }
}

/// An absence in one line: what, why and the way out.
pub fn said(absence: &Absence) -> String {
    let way_out = absence.way_out.as_ref().map_or(String::new(), |way_out| format!("; {way_out}"));
    format!("{}: {}{way_out}", absence.source, absence.reason())
}

/// Opens the tracepoint for its count alone: the ring is the smallest there is, and nobody reads it.
fn count_extfrag(root: &Root) -> Reading<Tracepoints> {
    let options = Options { ring_bytes: Bytes(1), ..Options::default() };
    let (tracepoints, _) = Tracepoints::open(&Reader::new(root), &sets::EXTFRAG, &options)?;
    let not_enabled = |error: std::io::Error| {
        Absence::new("kmem:mm_page_alloc_extfrag", AbsentWhy::Failed, error.to_string())
    };
    tracepoints.enable().map_err(not_enabled)?;
    Ok(tracepoints)
}

fn about(root: &Root, started: Moment) -> About {
    let reader = Reader::new(root);
    let page_size = live_page_size().unwrap_or(PageSize::USUAL);
    let zones = reader.parse(paths::ZONEINFO, zoneinfo::parse).map(|info| info.zones).unwrap_or_default();
    let uname = rustix::system::uname();
    About {
        host: uname.nodename().to_string_lossy().into_owned(),
        kernel: uname.release().to_string_lossy().into_owned(),
        page_size,
        pmd_order: pmd_order(page_size, &settings::read(&reader)),
        started,
        zone_sizes: zones.into_iter().filter_map(|zone| Some((zone.key, zone.managed?))).collect(),
    }
}

fn modes(root: &Root) -> Modes {
    let reader = Reader::new(root);
    let word = |file: &str| {
        let choice: Reading<Choice> = reader.parse(&format!("{}/{file}", paths::THP), choice::parse);
        choice.map(|choice| choice.selected().to_owned())
    };
    Modes { enabled: word("enabled"), defrag: word("defrag") }
}
