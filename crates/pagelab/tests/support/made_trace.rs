//! A trace that the simulator itself made, in a file: programs come, take memory, and go; some of what they
//! leave behind stays. Where everything lies is known.

use std::path::Path;

use pagelab_model::alloc_trace::{TraceEvent, TraceHead, TraceRun, TraceSample, TraceWhat, TraceZone, Was};
use pagelab_model::run::{Ending, Manifest, Moment};
use pagelab_model::seed::SplitMix64;
use pagelab_model::{BuddyInfo, FreeAreas, NodeId, PageSize, Snapshot, ZoneFree, ZoneKey};
use pagelab_runfile::{TraceEncoder, Writer};
use pagelab_sim::marks::Marks;
use pagelab_sim::memory::{Down, Memory, Request, Setup};
use pagelab_sim::percpu::{Keep, Terms};
use pagelab_sim::policy::Mobility;
use pagelab_sim::words::{Kind, Shape, Stolen};
use pagelab_sim::zone::Extras;

/// As the kernel that the head names has them.
const KEEP: Keep = Keep { cpus: 2, batch: 63, high: 378, terms: Terms::Doubling { empties: true } };

/// The machine: one zone of `frames`, which are all free.
pub fn head(frames: u32) -> TraceHead {
    TraceHead {
        kernel: "6.1-made".to_owned(),
        page_bytes: 4096,
        max_order: 10,
        block_order: 9,
        cpus: KEEP.cpus,
        zones: vec![TraceZone {
            key: ZoneKey { node: NodeId(0), zone: "Normal".to_owned() },
            first: 0,
            spanned: frames,
            managed: frames,
            marks: [64, 80, 96],
            per_cpu: [KEEP.batch, KEEP.high],
            kept: vec![0; usize::from(KEEP.cpus)],
            reserves: vec![0],
        }],
        migratetypes: Vec::new(),
        began: 0,
        ..TraceHead::default()
    }
}

pub fn run(frames: u32, was: Was) -> TraceRun {
    TraceRun { pfn: 0, frames, was, read_ns: 0 }
}

/// The machine at work.
pub struct Made {
    memory: Memory<Mobility>,
    key: ZoneKey,
    random: SplitMix64,
    /// What each program holds.
    programs: Vec<Vec<(u32, u8)>>,
    at_ns: u64,
    pub events: Vec<TraceEvent>,
    pub samples: Vec<TraceSample>,
}

impl Made {
    pub fn new(frames: u32, seed: u64) -> Made {
        let setup = Setup {
            name: "Normal".to_owned(),
            node: 0,
            height: 2,
            shape: Shape { first: 0, frames, max_order: 10, block_order: 9 },
            marks: Marks { min: 64, low: 80, high: 96 },
            reserves: vec![0; 3],
            extras: Extras::default(),
        };
        Made {
            memory: Memory::new(vec![setup], &Mobility, KEEP).unwrap(),
            key: head(frames).zones[0].key.clone(),
            random: SplitMix64::new(seed),
            programs: vec![Vec::new(); 48],
            at_ns: 0,
            events: Vec::new(),
            samples: Vec::new(),
        }
    }

    fn say(&mut self, cpu: u16, tid: u32, what: TraceWhat) {
        self.at_ns += 200;
        self.events.push(TraceEvent { at_ns: self.at_ns, tid, cpu, what });
    }

    /// Programs take memory and end, `events` times.
    pub fn run(&mut self, events: usize) {
        let frames = u64::from(self.memory.zones().next().unwrap().0.shape.frames);
        let most = frames * 3 / 4 / self.programs.len() as u64;
        while self.events.len() < events {
            let number = self.random.below(self.programs.len() as u64) as usize;
            let (cpu, tid) = ((number % 2) as u16, 1000 + number as u32);
            for _ in 0..self.random.below(64) {
                self.take(cpu, tid, number);
            }
            let held: u64 = self.programs[number].iter().map(|(_, order)| 1u64 << order).sum();
            if held > most || self.random.below(20) == 0 {
                self.end(cpu, tid, number);
            }
            if self.random.below(50) == 0 {
                let kept = self.memory.zones().next().unwrap().1;
                let blocks = kept.zone().free_blocks().iter().map(|&blocks| u64::from(blocks)).collect();
                let zone = ZoneFree { key: self.key.clone(), areas: FreeAreas::new(blocks).unwrap() };
                self.samples.push(TraceSample { at_ns: self.at_ns, free: BuddyInfo { zones: vec![zone] } });
            }
        }
    }

    fn take(&mut self, cpu: u16, tid: u32, number: usize) {
        let order = match self.random.below(100) {
            0..88 => 0,
            88..99 => self.random.below(4) as u8,
            _ => 9,
        };
        let migratetype = match self.random.below(10) {
            0 => 0,
            1 => 2,
            _ => 1,
        };
        let kind = Kind::of(migratetype).unwrap();
        let request = Request { order, kind, height: 2, node: 0, cpu, down: Down::ToNothing, may_mix: true };
        let Some((_, taken)) = self.memory.take(&request).unwrap() else { return };
        if let Some(Stolen { frame, order: taken_order, wanted, from, owns }) = taken.stolen {
            self.say(cpu, tid, TraceWhat::Fallback { pfn: frame, order, taken_order, wanted, from, owns });
        }
        self.programs[number].push((taken.frame, order));
        self.say(cpu, tid, TraceWhat::Alloc { pfn: Some(taken.frame), order, migratetype, gfp: 8 });
    }

    /// A program ends; a fiftieth of its memory stays with another.
    fn end(&mut self, cpu: u16, tid: u32, number: usize) {
        for (pfn, order) in std::mem::take(&mut self.programs[number]) {
            if self.random.below(50) == 0 {
                let next = (number + 1) % self.programs.len();
                self.programs[next].push((pfn, order));
                continue;
            }
            self.memory.free(cpu, pfn).unwrap();
            self.say(cpu, tid, TraceWhat::Free { pfn, order });
        }
    }
}

/// Writes a trace; it is closed if `ends`.
pub fn write(
    path: &Path,
    head: &TraceHead,
    runs: &[TraceRun],
    events: &[TraceEvent],
    samples: &[TraceSample],
    ends: bool,
) {
    let snapshot = Snapshot::unread("a made machine", PageSize::USUAL);
    let manifest = Manifest {
        kind: "trace".to_owned(),
        tool_version: "0.1.0".to_owned(),
        command_line: vec!["pagelab".to_owned()],
        seed: None,
        started: Moment { realtime_ns: 0, boottime_ns: 0 },
        machine: snapshot.machine,
        settings: snapshot.settings,
    };
    let mut writer = Writer::create(path, &manifest).unwrap();
    writer.trace_head(head).unwrap();
    let mut encoder = TraceEncoder::new().unwrap();
    for block in events.chunks(1 << 16) {
        writer.trace_events(encoder.encode(block).unwrap()).unwrap();
    }
    writer.trace_runs(runs).unwrap();
    writer.trace_samples(samples).unwrap();
    let after_ns = events.last().map_or(0, |event| event.at_ns);
    match ends {
        true => writer.close(Ending::Complete { after_ns }).unwrap(),
        false => writer.flush().unwrap(),
    }
}
