//! Breaking memory up, against touching as much memory once by base pages, in one process.

use std::io::{self, Write};
use std::time::Instant;

use pagelab_contig::fragment::facts::{Facts, Way};
use pagelab_contig::fragment::reach::{Bounds, Ending, Flow, reach};
use pagelab_contig::fragment::spoiler::Spoiler;
use pagelab_contig::fragment::watch::Watch;
use pagelab_contig::oom::OfferedFirst;
use pagelab_contig::reserve::Reserve;
use pagelab_host::machine::Known;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{collect, processes};
use pagelab_metrics::frag::unusable;
use pagelab_metrics::fragment_plan::{Goal, plan};
use pagelab_model::{Bytes, Snapshot};
use pagelab_sys::map::{Advice, Mapping};

/// F_u to reach.
const TARGET: f64 = 0.8;
/// Share of all memory that may be broken up.
const SHARE: f64 = 0.8;
/// What stays available for others on a shared machine: this, or the reserve.
const STAYS_MIN: u64 = 5 << 30;
/// Pieces in which memory is touched: as much as is broken up is touched, and less is held.
const PIECE: u64 = 1 << 30;
/// What is touched once in to make memory whole: no more than a huge page anywhere.
const HUGE: u64 = 2 << 20;
const ROUNDS: usize = 3;

fn look() -> Snapshot {
    let root = Root::live();
    let nobody = processes::Budget { processes_max: 0, ..processes::Budget::default() };
    let options = collect::CollectOptions {
        pagetypeinfo: false,
        processes: nobody,
        known: Known::default(),
        taken_realtime_ns: None,
    };
    collect::collect(&Reader::new(&root), &options)
}

/// Makes free memory whole, as far as the kernel can: each fault of a huge page compacts for it, where the
/// mode of defragmentation is not `never`. It also warms the frames: one that the host of a guest has not
/// backed yet costs far more at its first touch, whoever touches.
fn make_whole() -> io::Result<()> {
    let available = look().meminfo.ok().and_then(|info| info.bytes("MemAvailable")).unwrap_or_default();
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
struct Took {
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

    fn took(&self) -> Took {
        Took { wall: self.began.elapsed().as_secs_f64(), cpu: Clock::cpu() - self.cpu }
    }
}

/// The time of touching so much memory once by base pages; giving it back is not counted.
fn touch(amount: u64) -> io::Result<Took> {
    let mut all = Took::default();
    let mut left = amount;
    let mut held = Vec::new();
    while left > 0 {
        let len = left.min(PIECE);
        let mut map = Mapping::anonymous(Bytes(len), Bytes(1))?;
        map.advise(0..len, Advice::NoHugePage)?;
        let clock = Clock::start();
        let step = rustix::param::page_size() / size_of::<u64>();
        map.words_mut().iter_mut().step_by(step).for_each(|word| *word = 1);
        let took = clock.took();
        (all.wall, all.cpu) = (all.wall + took.wall, all.cpu + took.cpu);
        held.push(map);
        left -= len;
    }
    Ok(all)
}

/// The time of fragmenting to the target, F_u before and after, and the memory that was broken up.
fn fragment() -> Result<(Took, f64, f64, u64), String> {
    let snapshot = look();
    let facts = Facts::of(&snapshot, None).map_err(|error| error.to_string())?;
    let (way, goal) = (facts.way(), Goal { order: facts.unit, target: TARGET, tolerance: Goal::TOLERANCE });
    if way == Way::BasePages {
        return Err("no huge pages here".to_owned());
    }
    let shape = facts.shape(way, goal.order);
    let units_max = (facts.mem_total.0 as f64 * SHARE) as u64 / facts.unit_bytes().0;
    let planned = plan(&facts.areas_initialised(), &goal, shape, units_max)
        .map_err(|why| format!("the target cannot be reached now: {why:?}"))?;
    let reserve = Reserve::of(facts.mem_total);
    let text = |absence: pagelab_model::Absence| absence.reason().to_owned();
    let mut watch = Watch::open(facts.zone.clone(), reserve, facts.page_size, facts.unit).map_err(text)?;
    let mut spoiler = Spoiler::new(way, shape, 1, facts.page_size, None);
    let bounds = Bounds { planned: planned.units, units_max, batch: facts.batch(), fill: 0 };
    let clock = Clock::start();
    let reached = reach(&mut spoiler, &mut watch, &goal, bounds, &mut |_, _| Flow::On)
        .map_err(|error| error.to_string())?;
    let took = clock.took();
    let size = spoiler.units() * facts.unit_bytes().0;
    let after = unusable(&reached.areas, goal.order);
    watch.give_back(|| spoiler.clear());
    match reached.ending {
        // Others may break more up meanwhile: all of the work was done then, and the numbers tell.
        Ending::Short(_) if after >= TARGET => Ok((took, planned.before, after, size)),
        Ending::Met => Ok((took, planned.before, after, size)),
        other => Err(format!("not met: {other:?}, F_u {after:.3}")),
    }
}

fn measure() -> Result<(Vec<f64>, String), String> {
    let mut ratios = Vec::new();
    let mut how = String::new();
    for _ in 0..ROUNDS {
        make_whole().map_err(|error| error.to_string())?;
        let (took, before, after, size) = fragment()?;
        let available = look().meminfo.ok().and_then(|info| info.bytes("MemAvailable")).unwrap_or_default();
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
    let _offered = OfferedFirst::new();
    let line = match measure() {
        Ok((mut samples, how)) => {
            samples.sort_by(f64::total_cmp);
            let value = samples[samples.len() / 2];
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
