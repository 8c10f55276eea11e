//! Benchmark of fragmentation, compared with touching the same amount of memory once by base pages.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::time::Instant;

use pagelab_contig::fragment::control_loop::{LoopBounds, LoopEnd, reach_target};
use pagelab_contig::fragment::fragmenter::Fragmenter;
use pagelab_contig::fragment::inputs::{FillMethod, FragmentInputs};
use pagelab_contig::fragment::memory_monitor::MemoryMonitor;
use pagelab_contig::oom::OomScoreGuard;
use pagelab_contig::reserve::Reserve;
use pagelab_host::machine::MachineOverrides;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{collect, processes};
use pagelab_metrics::fragment_plan::{FragmentationGoal, plan_fragmentation};
use pagelab_metrics::fragmentation_index::unusable_index;
use pagelab_model::order_statistics::median;
use pagelab_model::{Bytes, Snapshot};
use pagelab_sys::mapping::{Advice, Mapping};

/// F_u to reach.
const TARGET: f64 = 0.8;
/// Share of all memory that may be broken up.
const SHARE: f64 = 0.8;
/// What stays available for others on a shared machine: this, or the reserve.
const STAYS_MIN: u64 = 5 << 30;
/// Pieces in which memory is touched: as much as is broken up is touched, and less is held.
const PIECE: u64 = 1 << 30;
/// Largest touch that restores whole memory: one huge page at a time.
const HUGE: u64 = 2 << 20;
const ROUNDS: usize = 3;

fn read_snapshot() -> Snapshot {
    let root = Root::live();
    let no_processes = processes::ScanBudget { processes_max: 0, ..processes::ScanBudget::default() };
    let options = collect::CollectOptions {
        pagetypeinfo: false,
        processes: no_processes,
        overrides: MachineOverrides::default(),
        captured_realtime_ns: None,
    };
    collect::collect(&Reader::new(&root), &options)
}

/// Defragments free memory as far as the kernel can: each huge page fault compacts, if the defrag mode is not
/// `never`. It also warms the frames: one that the host of a guest has not backed yet costs far more at its
/// first touch.
fn make_whole() -> io::Result<()> {
    let available =
        read_snapshot().meminfo.ok().and_then(|info| info.bytes("MemAvailable")).unwrap_or_default();
    let mut held = Vec::new();
    let mut left = available.0.saturating_sub(STAYS_MIN);
    while left >= PIECE {
        let mut map = Mapping::anonymous(Bytes(PIECE), Bytes(HUGE))?;
        map.advise(0..PIECE, Advice::HugePage)?;
        let step = HUGE as usize / size_of::<u64>();
        map.words_mut().iter_mut().step_by(step).for_each(|word| *word = 1);
        held.push(map);
        left -= PIECE;
    }
    Ok(())
}

/// Seconds of wall and of processor time.
#[derive(Clone, Copy, Default)]
struct ElapsedTime {
    wall: f64,
    cpu: f64,
}

struct Clock {
    began: Instant,
    cpu: f64,
}

impl Clock {
    fn cpu() -> f64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    }

    fn start() -> Clock {
        Clock { began: Instant::now(), cpu: Clock::cpu() }
    }

    fn elapsed(&self) -> ElapsedTime {
        ElapsedTime { wall: self.began.elapsed().as_secs_f64(), cpu: Clock::cpu() - self.cpu }
    }
}

/// The time of touching so much memory once by base pages; giving it back is not counted.
fn touch(amount: u64) -> io::Result<ElapsedTime> {
    let mut all = ElapsedTime::default();
    let mut left = amount;
    let mut held = Vec::new();
    while left > 0 {
        let len = left.min(PIECE);
        let mut map = Mapping::anonymous(Bytes(len), Bytes(1))?;
        map.advise(0..len, Advice::NoHugePage)?;
        let clock = Clock::start();
        let step = rustix::param::page_size() / size_of::<u64>();
        map.words_mut().iter_mut().step_by(step).for_each(|word| *word = 1);
        let took = clock.elapsed();
        (all.wall, all.cpu) = (all.wall + took.wall, all.cpu + took.cpu);
        held.push(map);
        left -= len;
    }
    Ok(all)
}

/// The time of fragmenting to the target, F_u before and after, and the memory that was broken up.
fn fragment() -> Result<(ElapsedTime, f64, f64, u64), String> {
    let snapshot = read_snapshot();
    let facts = FragmentInputs::from_snapshot(&snapshot, None).map_err(|error| error.to_string())?;
    let (way, goal) = (
        facts.fill_method(),
        FragmentationGoal {
            order: facts.unit_order,
            target: TARGET,
            tolerance: FragmentationGoal::TOLERANCE,
        },
    );
    if way == FillMethod::BasePages {
        return Err("no huge pages here".to_owned());
    }
    let shape = facts.keep_pattern(way, goal.order);
    let units_max = (facts.mem_total.0 as f64 * SHARE) as u64 / facts.unit_size().0;
    let planned = plan_fragmentation(&facts.initialized_free_areas(), &goal, shape, units_max)
        .map_err(|why| format!("the target cannot be reached now: {why:?}"))?;
    let reserve = Reserve::from_total_memory(facts.mem_total);
    let text = |absence: pagelab_model::Absence| absence.reason().to_owned();
    let mut watch =
        MemoryMonitor::open(facts.zone.clone(), reserve, facts.page_size, facts.unit_order).map_err(text)?;
    let mut fragmenter = Fragmenter::new(way, shape, 1, facts.page_size, None);
    let bounds = LoopBounds {
        planned_units: planned.units,
        units_max,
        batch_units: facts.units_per_batch(),
        fill_units: 0,
    };
    let clock = Clock::start();
    let reached =
        reach_target(&mut fragmenter, &mut watch, &goal, bounds, &mut |_, _| ControlFlow::Continue(()))
            .map_err(|error| error.to_string())?;
    let took = clock.elapsed();
    let size = fragmenter.fragmented_units() * facts.unit_size().0;
    let after = unusable_index(&reached.free_areas, goal.order);
    watch.free_and_drain(|| fragmenter.release_all());
    match reached.end {
        // Other programs may fragment more memory meanwhile; the numbers show it.
        LoopEnd::ShortOfTarget(_) if after >= TARGET => Ok((took, planned.unusable_before, after, size)),
        LoopEnd::Met => Ok((took, planned.unusable_before, after, size)),
        other => Err(format!("not met: {other:?}, F_u {after:.3}")),
    }
}

fn measure() -> Result<(Vec<f64>, String), String> {
    let mut ratios = Vec::new();
    let mut how = String::new();
    for _ in 0..ROUNDS {
        make_whole().map_err(|error| error.to_string())?;
        let (took, before, after, size) = fragment()?;
        let available =
            read_snapshot().meminfo.ok().and_then(|info| info.bytes("MemAvailable")).unwrap_or_default();
        let amount = size.min(available.0.saturating_sub(STAYS_MIN));
        let touched = touch(amount).map_err(|error| error.to_string())?;
        let per_byte = |seconds: f64, bytes: u64| seconds / bytes.max(1) as f64;
        ratios.push(per_byte(took.wall, size) / per_byte(touched.wall, amount));
        let cpu_ratio = per_byte(took.cpu, size) / per_byte(touched.cpu, amount);
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let round = format!(
            "F_u {before:.3} to {after:.3}, {:.1} GiB in {:.2} s; touching {:.1} GiB {:.2} s; ratio of processor \
             time {cpu_ratio:.2}",
            gib(size),
            took.wall,
            gib(amount),
            touched.wall
        );
        let _ = writeln!(io::stderr(), "{round}");
        how = if how.is_empty() { round } else { format!("{how}; {round}") };
    }
    Ok((ratios, how))
}

fn main() {
    let _offered = OomScoreGuard::new();
    let line = match measure() {
        Ok((mut samples, how)) => {
            let value = median(&mut samples).unwrap_or(f64::NAN);
            format!(
                "{{\"bar\":\"fragment_touch_ratio\",\"value\":{value:.3},\"unit\":\"ratio\",\"samples\":{samples:?},\"how\":\"{how}\"}}"
            )
        }
        Err(why) => {
            let why = why.replace('"', "'");
            format!(
                "{{\"bar\":\"fragment_touch_ratio\",\"value\":null,\"unit\":\"ratio\",\"why\":\"{why}\"}}"
            )
        }
    };
    let _ = writeln!(io::stdout(), "{line}");
}
