//! Replay of a recorded trace under simulated policies, compared with the free memory of the traced kernel.

use std::num::NonZero;
use std::path::Path;

use pagelab_command::exit::read_trace_failure as read_failure;
use pagelab_command::exit::{Failure, FailureKind};
use pagelab_command::progress::{CommandStatus, StatusEnd};
use pagelab_contig::thp_request;
use pagelab_host::root::Root;
use pagelab_metrics::fragmentation_index::unusable_index;
use pagelab_model::alloc_trace::{FrameRun, FreeAreasSample, LostEvents, TraceHeader, TraceZone};
use pagelab_model::free_areas::{BuddyInfo, FreeAreas};
use pagelab_model::run::RunEnd;
use pagelab_model::{Bytes, Order};
use pagelab_report::style::format_bytes;
use pagelab_runfile::TraceReader;
use pagelab_sim::policies::PolicyEntry;
use pagelab_sim::replay::snapshot::ReplaySnapshot;
use pagelab_sim::replay::types::{ReplayStats, ZoneSelection};
use pagelab_sim::types::Error;
use pagelab_sys::clock;

use crate::sim_place::processor_count;
use policy_replay::{PolicyReplay, ReplayEngine};

mod parallel_decode;
mod policy_replay;
pub mod run_file;
pub mod show;
mod verdict;

/// Blocks of events that are scanned in advance for the owners of pageblocks: 4 million events.
const SCANNED_BLOCKS: usize = 64;
/// Bytes of a frame that the state to begin with takes, and those of a policy.
const START_BYTES: u64 = 2;
const ENGINE_BYTES: u64 = 14;

/// Free memory of a moment.
#[derive(Clone, Debug, Default)]
struct FreeMemory {
    /// All zones together.
    all_zones: FreeAreas,
    /// By zone of the trace.
    zones: Vec<FreeAreas>,
}

impl FreeMemory {
    fn from_buddyinfo(info: &BuddyInfo, head: &TraceHeader) -> FreeMemory {
        let zone = |key| info.zone(key).cloned().unwrap_or_default();
        let zones: Vec<FreeAreas> = head.zones.iter().map(|of| zone(&of.key)).collect();
        let mut all_zones = vec![0u64; usize::from(head.max_order) + 1];
        for zone in &zones {
            for (sum, blocks) in all_zones.iter_mut().zip(zone.counts()) {
                *sum = sum.saturating_add(*blocks);
            }
        }
        FreeMemory { all_zones: FreeAreas::new(all_zones).unwrap_or_default(), zones }
    }

    fn unusable(&self, order: u8) -> f64 {
        unusable_index(&self.all_zones, Order(order))
    }
}

/// State reported by the kernel at one moment.
#[derive(Clone, Debug)]
struct FreeMemorySample {
    at_ns: u64,
    free: FreeMemory,
}

/// Result of one policy.
#[derive(Debug, Default)]
struct PolicyOutcome {
    policy: &'static str,
    /// As many as samples.
    free: Vec<FreeMemory>,
    end: FreeMemory,
    kept_frames: u64,
    account: ReplayStats,
    cpu_ns: u64,
}

/// All results of a replay.
#[derive(Debug)]
pub struct ReplayReport {
    file: String,
    head: TraceHeader,
    ending: RunEnd,
    losses: Vec<LostEvents>,
    end_ns: u64,
    complete_ns: u64,
    /// Samples before the snapshot was complete, or after the end of a trace that was cut.
    samples_left_out: u64,
    /// Frames that are not in the snapshot, although zones have memory there.
    uncovered_frames: u64,
    /// Frames that per-CPU lists held at the start.
    pcp_frames: u64,
    /// The state that all policies begin with.
    initial_state: FreeMemory,
    pageblocks_by_type: [u64; 3],
    pageblocks_from_events: u64,
    zones: ZoneSelection,
    samples: Vec<FreeMemorySample>,
    outcomes: Vec<PolicyOutcome>,
    decode_cpu_ns: u64,
    /// From the first event to the last, all policies together, by the clock.
    wall_ns: u64,
}

fn bad_trace(file: &Path, problem: impl std::fmt::Display) -> Failure {
    Failure::cannot(FailureKind::BadInput, format_args!("replay {}", file.display()), problem)
}

fn contradiction(file: &Path, wrong: &Error) -> Failure {
    bad_trace(file, format_args!("corrupt trace: {wrong}"))
}

/// The state to begin with, from the snapshot and the first events.
fn build_start(
    reader: &mut TraceReader,
    file: &Path,
    policies: usize,
    threads: NonZero<usize>,
) -> Result<ReplaySnapshot, Failure> {
    let frames =
        ReplaySnapshot::spanned_frames(reader.header()).map_err(|wrong| contradiction(file, &wrong))?;
    let needed = frames.saturating_mul(START_BYTES + ENGINE_BYTES * policies as u64);
    if let Ok(available) = thp_request::read_available_memory(&Root::live())
        && needed > available.0
    {
        let (needed, available) = (format_bytes(Bytes(needed)), format_bytes(available));
        let reason =
            format!("its zones span {frames} frames, which needs {needed}; only {available} is available");
        let action = format_args!("replay {}", file.display());
        return Err(Failure::cannot(FailureKind::NotAvailable, action, reason)
            .hint("use fewer policies, or a machine with more memory"));
    }
    let runs = reader.read_frame_runs().map_err(|error| read_failure(&error))?;
    let start = ReplaySnapshot::new(reader.header(), &runs).map_err(|wrong| contradiction(file, &wrong))?;
    check_snapshot(reader, file, runs.last())?;
    let complete_ns = start.complete_ns();
    // Blocks follow each other in time.
    let during = reader.blocks().partition_point(|block| block.at_ns <= complete_ns);
    let scanned = during.max(SCANNED_BLOCKS).min(reader.blocks().len());
    let (starts, _) = parallel_decode::feed_sinks(reader, 0..scanned, threads, vec![start])?;
    let Some(mut start) = starts.into_iter().next() else {
        return Err(Failure::cannot(
            FailureKind::Bug,
            "replay the trace",
            "its first events were not scanned",
        ));
    };
    start.infer_pcp_lists(&reader.read_samples().map_err(|error| read_failure(&error))?);
    Ok(start)
}

/// Refuses a trace without a snapshot, or with a part of one, by its last run.
fn check_snapshot(reader: &TraceReader, file: &Path, last_run: Option<&FrameRun>) -> Result<(), Failure> {
    let was_requested = !reader.manifest().command_line.iter().any(|word| word == "--no-snapshot");
    let is_complete = matches!(reader.run_end(), RunEnd::Complete { .. });
    if last_run.is_none() && (is_complete || !was_requested) {
        return Err(bad_trace(
            file,
            "it has no snapshot of memory; hint: run `pagelab trace record` as root, without --no-snapshot",
        ));
    }
    let read_until = last_run.map_or(0, |run| u64::from(run.pfn) + u64::from(run.frames));
    let behind = |zone: &TraceZone| {
        let end = u64::from(zone.first) + u64::from(zone.spanned);
        end.saturating_sub(read_until.max(zone.first.into()))
    };
    let without: u64 = reader.header().zones.iter().map(behind).sum();
    if without > 0 && !is_complete {
        return Err(bad_trace(
            file,
            format_args!(
                "it ended before the snapshot of memory was complete, {without} frames are missing; hint: \
                record longer: `--for` counts from the end of the snapshot"
            ),
        ));
    }
    Ok(())
}

/// Replays a trace under each policy. `threads`: one for each processor if `None`.
pub fn replay_policies(
    reader: &mut TraceReader,
    file: &Path,
    zones: ZoneSelection,
    threads: Option<NonZero<usize>>,
    policies: &[&'static PolicyEntry],
) -> Result<ReplayReport, Failure> {
    let threads = threads.unwrap_or_else(processor_count);
    let text = format!("replaying {} blocks under {} policies", reader.blocks().len(), policies.len());
    let _status = CommandStatus::start(text, StatusEnd::Unknown);
    let start = build_start(reader, file, policies.len(), threads)?;
    let lane = |policy: &&'static PolicyEntry| policy_replay::build_engine(policy, &start, zones);
    let lanes: Vec<Box<dyn ReplayEngine>> = policies
        .iter()
        .map(lane)
        .collect::<Result<_, Error>>()
        .map_err(|wrong| contradiction(file, &wrong))?;
    let begin = lanes.first().map(|lane| lane.sample()).unwrap_or_default();
    let samples = reader.read_samples().map_err(|error| read_failure(&error))?;
    let losses = reader.read_losses().map_err(|error| read_failure(&error))?;
    let (head, ending) = (reader.header().clone(), reader.run_end().clone());
    let late: Vec<FreeAreasSample> =
        samples.iter().filter(|sample| sample.at_ns > start.complete_ns()).cloned().collect();
    let course = |(lane, policy)| PolicyReplay::new((file, &head), policy, lane, &late);
    let courses = lanes.into_iter().zip(policies.iter().map(|policy| policy.name)).map(course).collect();
    let blocks = 0..reader.blocks().len();
    let began_ns = clock::monotonic_ns();
    let (mut courses, decode_cpu_ns) = parallel_decode::feed_sinks(reader, blocks, threads, courses)?;
    let wall_ns = clock::monotonic_ns().saturating_sub(began_ns);
    // Unless the trace was cut there.
    if ending != RunEnd::NotClosed {
        courses.iter_mut().for_each(PolicyReplay::record_remaining_samples);
    }
    let end_ns = courses.first().map_or(0, PolicyReplay::end_ns);
    let replayed: Vec<PolicyOutcome> = courses.into_iter().map(PolicyReplay::into_outcome).collect();
    let compared = replayed.first().map_or(0, |replayed| replayed.free.len());
    let sampled = |sample: &FreeAreasSample| FreeMemorySample {
        at_ns: sample.at_ns,
        free: FreeMemory::from_buddyinfo(&sample.free, &head),
    };
    let sampled: Vec<FreeMemorySample> = late.iter().take(compared).map(sampled).collect();
    let (owners, owners_told) = start.pageblocks_by_owner();
    Ok(ReplayReport {
        file: file.display().to_string(),
        ending,
        losses,
        end_ns,
        complete_ns: start.complete_ns(),
        samples_left_out: (samples.len() - sampled.len()) as u64,
        uncovered_frames: start.uncovered_frames().saturating_sub(hole_frames(&head)),
        pcp_frames: start.pcp_frames(),
        initial_state: FreeMemory::from_buddyinfo(&begin, &head),
        pageblocks_by_type: owners,
        pageblocks_from_events: owners_told,
        zones,
        samples: sampled,
        outcomes: replayed,
        decode_cpu_ns,
        wall_ns,
        head: head.clone(),
    })
}

/// Frames that zones span and do not manage.
fn hole_frames(head: &TraceHeader) -> u64 {
    head.zones.iter().map(|zone| u64::from(zone.spanned.saturating_sub(zone.managed))).sum()
}
