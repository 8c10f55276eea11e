//! Breaking memory up, against touching as much memory once by base pages, in one process.

use std::io;
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

/// Seconds of touching so much memory once by base pages; giving it back is not counted.
fn touch(amount: u64) -> io::Result<f64> {
    let mut seconds = 0.0;
    let mut left = amount;
    let mut held = Vec::new();
    while left > 0 {
        let len = left.min(PIECE);
        let mut map = Mapping::anonymous(Bytes(len), Bytes(1))?;
        map.advise(0..len, Advice::NoHugePage)?;
        let began = Instant::now();
        let step = rustix::param::page_size() / size_of::<u64>();
        map.words_mut().iter_mut().step_by(step).for_each(|word| *word = 1);
        seconds += began.elapsed().as_secs_f64();
        held.push(map);
        left -= len;
    }
    Ok(seconds)
}

/// Seconds of fragmenting to the target, F_u before and after, and the memory that was broken up.
fn fragment() -> Result<(f64, f64, f64, u64), String> {
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
    let began = Instant::now();
    let reached = reach(&mut spoiler, &mut watch, &goal, bounds, &mut |_, _| Flow::On)
        .map_err(|error| error.to_string())?;
    let seconds = began.elapsed().as_secs_f64();
    let size = spoiler.units() * facts.unit_bytes().0;
    let after = unusable(&reached.areas, goal.order);
    watch.give_back(|| spoiler.clear());
    match reached.ending {
        Ending::Met => Ok((seconds, planned.before, after, size)),
        other => Err(format!("not met: {other:?}, F_u {after:.3}")),
    }
}

fn measure() -> Result<(Vec<f64>, String), String> {
    let mut ratios = Vec::new();
    let mut how = String::new();
    // Frames that the host of a guest has not backed yet cost far more at their first touch, whoever touches.
    let _warm = fragment()?;
    for _ in 0..ROUNDS {
        let (seconds, before, after, size) = fragment()?;
        let available = look().meminfo.ok().and_then(|info| info.bytes("MemAvailable")).unwrap_or_default();
        let amount = size.min(available.0.saturating_sub(STAYS_MIN));
        let touched = touch(amount).map_err(|error| error.to_string())?;
        let (per_gib, touch_per_gib) = (seconds / size as f64, touched / amount.max(1) as f64);
        ratios.push(per_gib / touch_per_gib);
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        how = format!(
            "F_u {before:.3} to {after:.3}, {:.1} GiB in {seconds:.2} s; touching {:.1} GiB {touched:.2} s; per byte",
            gib(size),
            gib(amount)
        );
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
    use std::io::Write;
    let _ = writeln!(io::stdout(), "{line}");
}
