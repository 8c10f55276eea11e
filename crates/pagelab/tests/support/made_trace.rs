//! Trace of a simulation in a file: programs start, allocate and exit, and some of their objects remain.
//! Where everything lies is known.

use std::path::Path;

use pagelab_model::alloc_trace::{
    FrameRun, FrameState, FreeAreasSample, TraceEvent, TraceEventKind, TraceHeader, TraceZone,
};
use pagelab_model::random::SplitMix64;
use pagelab_model::run::{ClockReading, Manifest, RunEnd};
use pagelab_model::{BuddyInfo, FreeAreas, NodeId, PageSize, Snapshot, ZoneFreeAreas, ZoneKey};
use pagelab_runfile::{RunWriter, TraceEncoder};
use pagelab_sim::memory::{Memory, Request, Watermark, ZoneConfig};
use pagelab_sim::pcp::{PcpBatching, PcpConfig};
use pagelab_sim::policies::GroupByMobility;
use pagelab_sim::types::{AllocationType, Fallback, Frame, ZoneGeometry};
use pagelab_sim::watermarks::Watermarks;
use pagelab_sim::zone::ZoneFeatures;

/// As the kernel that the head names has them.
const KEEP: PcpConfig = PcpConfig {
    cpus: 2,
    batch: 63,
    high: 378,
    batching: PcpBatching::FreeFactor { drains_high_order: true },
};

/// The machine: one zone of `frames`, which are all free.
pub fn head(frames: u32) -> TraceHeader {
    TraceHeader {
        kernel: "6.1-made".to_owned(),
        page_bytes: 4096,
        max_order: 10,
        pageblock_order: 9,
        cpus: KEEP.cpus,
        zones: vec![TraceZone {
            key: ZoneKey { node: NodeId(0), zone: "Normal".to_owned() },
            first: 0,
            spanned: frames,
            managed: frames,
            watermarks: [64, 80, 96],
            pcp_batch_high: [KEEP.batch, KEEP.high],
            pcp_counts: vec![0; usize::from(KEEP.cpus)],
            lowmem_reserve: vec![0],
        }],
        migratetypes: Vec::new(),
        began: 0,
        ..TraceHeader::default()
    }
}

pub fn run(frames: u32, was: FrameState) -> FrameRun {
    FrameRun { pfn: 0, frames, state: was, read_ns: 0 }
}

/// The machine at work.
pub struct SyntheticTrace {
    memory: Memory<GroupByMobility>,
    key: ZoneKey,
    random: SplitMix64,
    /// What each program holds.
    programs: Vec<Vec<(Frame, u8)>>,
    at_ns: u64,
    pub events: Vec<TraceEvent>,
    pub samples: Vec<FreeAreasSample>,
}

impl SyntheticTrace {
    pub fn new(frames: u32, seed: u64) -> SyntheticTrace {
        let setup = ZoneConfig {
            name: "Normal".to_owned(),
            node: 0,
            zone_index: 2,
            geometry: ZoneGeometry { first_frame: Frame::new(0), frames, max_order: 10, pageblock_order: 9 },
            watermarks: Watermarks { min: 64, low: 80, high: 96 },
            lowmem_reserve: vec![0; 3],
            features: ZoneFeatures::default(),
        };
        SyntheticTrace {
            memory: Memory::new(vec![setup], &GroupByMobility, KEEP).unwrap(),
            key: head(frames).zones[0].key.clone(),
            random: SplitMix64::new(seed),
            programs: vec![Vec::new(); 48],
            at_ns: 0,
            events: Vec::new(),
            samples: Vec::new(),
        }
    }

    fn push_event(&mut self, cpu: u16, tid: u32, what: TraceEventKind) {
        self.at_ns += 200;
        self.events.push(TraceEvent { time_ns: self.at_ns, tid, cpu, kind: what });
    }

    /// Programs take memory and end, `events` times.
    pub fn run(&mut self, events: usize) {
        let frames = u64::from(self.memory.zones().next().unwrap().0.geometry.frames);
        let most = frames * 3 / 4 / self.programs.len() as u64;
        while self.events.len() < events {
            let number = self.random.next_below(self.programs.len() as u64) as usize;
            let (cpu, tid) = ((number % 2) as u16, 1000 + number as u32);
            for _ in 0..self.random.next_below(64) {
                self.allocate(cpu, tid, number);
            }
            let held: u64 = self.programs[number].iter().map(|(_, order)| 1u64 << order).sum();
            if held > most || self.random.next_below(20) == 0 {
                self.exit_thread(cpu, tid, number);
            }
            if self.random.next_below(50) == 0 {
                let kept = self.memory.zones().next().unwrap().1;
                let blocks = kept.zone().free_blocks().iter().map(|&blocks| u64::from(blocks)).collect();
                let zone = ZoneFreeAreas { key: self.key.clone(), areas: FreeAreas::new(blocks).unwrap() };
                self.samples
                    .push(FreeAreasSample { at_ns: self.at_ns, free: BuddyInfo { zones: vec![zone] } });
            }
        }
    }

    fn allocate(&mut self, cpu: u16, tid: u32, number: usize) {
        let order = match self.random.next_below(100) {
            0..88 => 0,
            88..99 => self.random.next_below(4) as u8,
            _ => 9,
        };
        let migratetype = match self.random.next_below(10) {
            0 => 0,
            1 => 2,
            _ => 1,
        };
        let kind = AllocationType::from_index(migratetype).unwrap();
        let request = Request {
            order,
            alloc_type: kind,
            zone_index: 2,
            node: 0,
            cpu,
            watermark: Watermark::NoWatermark,
            can_fragment: true,
        };
        let Some((_, taken)) = self.memory.allocate_block(&request).unwrap() else { return };
        if let Some(Fallback {
            frame,
            order: taken_order,
            alloc_list: wanted,
            fallback_list: from,
            changes_ownership: owns,
        }) = taken.fallback
        {
            self.push_event(
                cpu,
                tid,
                TraceEventKind::Fallback {
                    pfn: frame.number(),
                    alloc_order: order,
                    fallback_order: taken_order,
                    alloc_migratetype: wanted,
                    fallback_migratetype: from,
                    change_ownership: owns,
                },
            );
        }
        self.programs[number].push((taken.frame, order));
        self.push_event(
            cpu,
            tid,
            TraceEventKind::Alloc { pfn: Some(taken.frame.number()), order, migratetype, gfp_flags: 8 },
        );
    }

    /// A program ends; a fiftieth of its memory stays with another.
    fn exit_thread(&mut self, cpu: u16, tid: u32, number: usize) {
        for (frame, order) in std::mem::take(&mut self.programs[number]) {
            if self.random.next_below(50) == 0 {
                let next = (number + 1) % self.programs.len();
                self.programs[next].push((frame, order));
                continue;
            }
            self.memory.free_block(cpu, frame).unwrap();
            self.push_event(cpu, tid, TraceEventKind::Free { pfn: frame.number(), order });
        }
    }
}

/// Writes a trace; it is closed if `ends`.
pub fn write(
    path: &Path,
    head: &TraceHeader,
    runs: &[FrameRun],
    events: &[TraceEvent],
    samples: &[FreeAreasSample],
    ends: bool,
) {
    let snapshot = Snapshot::new_unread("a made machine", PageSize::DEFAULT);
    let manifest = Manifest {
        kind: "trace".to_owned(),
        tool_version: "0.1.0".to_owned(),
        command_line: vec!["pagelab".to_owned()],
        seed: None,
        started: ClockReading { realtime_ns: 0, boottime_ns: 0 },
        machine: snapshot.machine,
        settings: snapshot.settings,
    };
    let mut writer = RunWriter::create(path, &manifest).unwrap();
    writer.add_trace_header(head).unwrap();
    let mut encoder = TraceEncoder::new().unwrap();
    for block in events.chunks(1 << 16) {
        writer.add_trace_block(encoder.encode_block(block).unwrap()).unwrap();
    }
    writer.add_trace_runs(runs).unwrap();
    writer.add_trace_samples(samples).unwrap();
    let after_ns = events.last().map_or(0, |event| event.time_ns);
    match ends {
        true => writer.close(RunEnd::Complete { after_ns }).unwrap(),
        false => writer.flush().unwrap(),
    }
}
