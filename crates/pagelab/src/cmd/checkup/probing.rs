//! `--probe`: from a snapshot to the probe's facts, and its one-way act journalled.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pagelab_contig::warm::warm;
use pagelab_host::guard::{Guard, GuardError, OWN_MEMORY, Options, Site, Watched};
use pagelab_host::root::Root;
use pagelab_model::machine::Hypervisor;
use pagelab_model::run::{Moment, Stream, StreamHead};
use pagelab_model::{Bytes, Pages, Snapshot};
use pagelab_report::style::{bytes, three_digits};

use super::recording::Recording;
use crate::out;
use crate::probe::{self, ProbeFacts, ProbeOptions, Samples};

/// What keeps the raw samples: the run file, and memory for the page of a run without one.
pub struct Kept<'r> {
    /// The run file, if there is one.
    pub recording: Option<&'r Recording>,
    started: Moment,
    streams: Option<Mutex<Vec<Stream>>>,
}

impl<'r> Kept<'r> {
    /// `in_memory`: a page is going to show them.
    pub fn new(started: Moment, recording: Option<&'r Recording>, in_memory: bool) -> Kept<'r> {
        Kept { recording, started, streams: in_memory.then(Mutex::default) }
    }

    /// The samples that were kept in memory.
    pub fn into_streams(self) -> Vec<Stream> {
        let streams =
            self.streams.map(|streams| streams.into_inner().unwrap_or_else(PoisonError::into_inner));
        streams.unwrap_or_default()
    }
}

impl Samples for Kept<'_> {
    fn take(&self, head: &StreamHead, samples: &[(u64, f64)]) {
        if let Some(recording) = self.recording {
            recording.take(head, samples);
        }
        if let Some(streams) = &self.streams {
            let since_start = |&(at_ns, _): &(u64, f64)| at_ns.saturating_sub(self.started.boottime_ns);
            let stream = Stream {
                head: head.clone(),
                at_ns: samples.iter().map(since_start).collect(),
                values: samples.iter().map(|&(_, value)| value).collect(),
            };
            streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        }
    }
}

/// Measures for as long as is `left` at most, and puts the results into the snapshot.
pub fn probe(snapshot: &mut Snapshot, seed: u64, left: Duration, samples: &Kept<'_>) {
    let usual = ProbeOptions::default();
    let left_ns = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
    let options = ProbeOptions { seed, time_ns: usual.time_ns.min(left_ns), ..usual };
    let facts = facts(snapshot);
    let warmed = warmed(snapshot, &options);
    let measure = || probe::probe(&options, &facts, samples);
    let mut results = match probe::collapses_at_most(&options, &facts) {
        0 => measure(),
        times => {
            let act = format!("MADV_COLLAPSE, at most {times} times, {OWN_MEMORY}");
            journalled(&act, measure).unwrap_or_else(|error| {
                // COLLAPSE changes this process's own memory alone, and all of it is given back: without a
                // journal nothing can be left behind, so the probe goes on and says so.
                out::complain(&format!("pagelab: the probe is not journalled: {error}"));
                measure()
            })
        }
    };
    results.notes.extend(warmed);
    snapshot.probe = Some(results);
}

/// Where the host takes free memory back, as much as is measured is touched once before: latencies would be
/// the host's. What was done, in a sentence.
fn warmed(snapshot: &Snapshot, options: &ProbeOptions) -> Option<String> {
    snapshot.machine.page_reporting.as_ref()?;
    let huge = snapshot.machine.page_size.block(snapshot.pmd_order).0.saturating_mul(options.huge_pages);
    let wanted = Bytes(options.region_max.0.saturating_mul(2).saturating_add(huge));
    let warmed = warm(&Root::live(), wanted, &|| false);
    let short = warmed.short.map_or(String::new(), |why| format!(" ({why})"));
    Some(format!(
        "the host takes free memory back: {} of {} were touched before, for {} of CPU time{short}",
        bytes(warmed.warmed),
        bytes(wanted),
        seconds(warmed.cpu_ns)
    ))
}

fn seconds(ns: u64) -> String {
    format!("{} s", three_digits(ns as f64 / 1e9))
}

/// Performs an act that cannot be undone, journalled before and after. An error: it was not begun.
fn journalled<T>(act: &str, perform: impl Fn() -> T) -> Result<T, GuardError> {
    let watched = Watched::signals(Box::new(|code, outcomes| out::signalled(code, "", outcomes)))?;
    let guard = Guard::begin(&Site::live()?, watched, Options::default())?;
    Ok(guard.one_way(act, &perform)?.unwrap_or_else(perform))
}

/// What a probe must know, from a look.
pub fn facts(snapshot: &Snapshot) -> ProbeFacts {
    let meminfo = snapshot.meminfo.as_ref().ok();
    let amount = |name: &str| meminfo.and_then(|info| info.bytes(name));
    let page_size = snapshot.machine.page_size;
    let zones = snapshot.zoneinfo.as_ref().map_or(&[][..], |info| &info.zones);
    let high = zones.iter().filter_map(|zone| zone.high).map(|pages| pages.0).reduce(u64::saturating_add);
    let thp = snapshot.settings.thp.as_ref();
    let cgroup = snapshot.machine.cgroup.as_ref().ok();
    ProbeFacts {
        page_size,
        pmd_size: thp.map_err(Clone::clone).and_then(|thp| thp.pmd_size.clone()),
        total: amount("MemTotal").unwrap_or_default(),
        free: amount("MemFree").unwrap_or_default(),
        available: amount("MemAvailable"),
        high_watermarks: high.map(|pages| Pages(pages).bytes(page_size)),
        cgroup: cgroup.and_then(|group| Some((group.memory_limit?, group.memory_room))),
        thp_mode: thp.ok().and_then(|thp| Some(thp.enabled.as_ref().ok()?.selected().to_owned())),
        virtual_machine: match &snapshot.machine.hypervisor {
            Ok(Hypervisor::Present { .. }) => Some(true),
            Ok(Hypervisor::None) => Some(false),
            Err(_) => None,
        },
    }
}
