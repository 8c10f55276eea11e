//! `--probe`: facts for the probe from a snapshot, and the journal entry of its irreversible part.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pagelab_contig::host_warming::warm_host_memory;
use pagelab_host::guard::{GuardError, GuardOptions, OWN_MEMORY};
use pagelab_host::root::Root;
use pagelab_model::machine::Hypervisor;
use pagelab_model::run::{ClockReading, SampleStream, StreamHeader};
use pagelab_model::{Bytes, Pages, Snapshot};
use pagelab_report::style::{format_bytes, format_three_digits};

use crate::probe::{self, ProbeFacts, ProbeOptions};
use crate::snapshot_recording::Recording;
use pagelab_command::machine_guard::open_guard;
use pagelab_command::output;

/// Recorder of the raw samples: in the run file, and in memory for an HTML page.
pub struct StreamRecorder<'r> {
    /// The run file, if there is one.
    pub recording: Option<&'r Recording>,
    started: ClockReading,
    streams: Option<Mutex<Vec<SampleStream>>>,
}

impl<'r> StreamRecorder<'r> {
    /// Creates a recorder. `in_memory`: keep the samples for an HTML page.
    pub fn new(
        started: ClockReading,
        recording: Option<&'r Recording>,
        in_memory: bool,
    ) -> StreamRecorder<'r> {
        StreamRecorder { recording, started, streams: in_memory.then(Mutex::default) }
    }

    /// Returns the samples kept in memory.
    pub fn into_streams(self) -> Vec<SampleStream> {
        let streams =
            self.streams.map(|streams| streams.into_inner().unwrap_or_else(PoisonError::into_inner));
        streams.unwrap_or_default()
    }

    fn record_stream(&self, head: &StreamHeader, samples: &[(u64, f64)]) {
        if let Some(recording) = self.recording {
            recording.record_stream(head, samples);
        }
        if let Some(streams) = &self.streams {
            let since_start = |&(at_ns, _): &(u64, f64)| at_ns.saturating_sub(self.started.boottime_ns);
            let stream = SampleStream {
                header: head.clone(),
                at_ns: samples.iter().map(since_start).collect(),
                values: samples.iter().map(|&(_, value)| value).collect(),
            };
            streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        }
    }
}

/// Measures for at most `time_left`, and stores the results in the snapshot.
pub fn run_probe(snapshot: &mut Snapshot, seed: u64, time_left: Duration, samples: &StreamRecorder<'_>) {
    let usual = ProbeOptions::default();
    let left_ns = u64::try_from(time_left.as_nanos()).unwrap_or(u64::MAX);
    let options = ProbeOptions { seed, time_ns: usual.time_ns.min(left_ns), ..usual };
    let facts = probe_facts(snapshot);
    let warmed = prefault_memory(snapshot, &options);
    let measure = || probe::probe(&options, &facts, &|head, values| samples.record_stream(head, values));
    let mut results = match probe::collapses_max(&options, &facts) {
        0 => measure(),
        times => {
            let act = format!("MADV_COLLAPSE, at most {times} times, {OWN_MEMORY}");
            perform_journalled(&act, measure).unwrap_or_else(|error| {
                // COLLAPSE changes only memory of this process, and all of it is freed: without a journal
                // nothing can remain, so the probe continues with a warning.
                output::warn(&format!("warning: the probe is not journalled: {error}"));
                measure()
            })
        }
    };
    results.notes.extend(warmed);
    snapshot.probe = Some(results);
}

/// If the host reclaims free memory, touches as much as will be measured: otherwise latencies would include
/// the host's. Returns a note about it.
fn prefault_memory(snapshot: &Snapshot, options: &ProbeOptions) -> Option<String> {
    snapshot.machine.page_reporting.as_ref()?;
    let huge =
        snapshot.machine.page_size.block_bytes(snapshot.pmd_order).0.saturating_mul(options.huge_pages);
    let buffer_bytes = Bytes(options.region_max.0.saturating_mul(2).saturating_add(huge));
    let warmed = warm_host_memory(&Root::live(), buffer_bytes, &|| false);
    let short = warmed.shortfall_reason.map_or(String::new(), |why| format!(" ({why})"));
    Some(format!(
        "the host reclaims free memory: {} of {} was touched first, at a cost of {} of CPU time{short}",
        format_bytes(warmed.warmed),
        format_bytes(buffer_bytes),
        format_seconds(warmed.cpu_ns)
    ))
}

fn format_seconds(ns: u64) -> String {
    format!("{} s", format_three_digits(ns as f64 / 1e9))
}

/// Performs an irreversible act, with journal entries before and after it. An error: it was not started.
fn perform_journalled<T>(act: &str, perform: impl Fn() -> T) -> Result<T, GuardError> {
    let guard = open_guard(GuardOptions::default())?;
    Ok(guard.perform_one_way(act, &perform)?.unwrap_or_else(perform))
}

/// Returns the facts that the probe requires, from a snapshot.
pub fn probe_facts(snapshot: &Snapshot) -> ProbeFacts {
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
        high_watermarks: high.map(|pages| Pages(pages).to_bytes(page_size)),
        cgroup: cgroup.and_then(|group| Some((group.memory_limit?, group.memory_room))),
        thp_mode: thp.ok().and_then(|thp| Some(thp.enabled.as_ref().ok()?.selected().to_owned())),
        virtual_machine: match &snapshot.machine.hypervisor {
            Ok(Hypervisor::Present { .. }) => Some(true),
            Ok(Hypervisor::None) => Some(false),
            Err(_) => None,
        },
    }
}
