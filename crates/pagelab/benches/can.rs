//! How well `pagelab can` predicts: states of memory in guests, each predicted and then really asked for.
//!
//! In a guest this program is PID 1 and every step; `--host` runs the movable states on this machine.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a bench panics to fail, and prints what it measured"
)]

#[path = "can/files.rs"]
mod files;
#[path = "can/state.rs"]
mod state;
#[path = "../tests/guest/trial.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod trial;

use std::path::{Path, PathBuf};
use std::time::Duration;

use pagelab_contig::asking::{Asked, MISSED_COLLAPSES_MAX, Wanted};
use pagelab_contig::look::{LookOptions, look};
use pagelab_contig::reserve::Reserve;
use pagelab_contig::truth::truth;
use pagelab_guest::boot::Plan;
use pagelab_guest::job::Step as GuestStep;
use pagelab_guest::outcome::{Outcome, StepEnd};
use pagelab_guest::shape::parse_size;
use pagelab_host::guard::{Guard, Knob, Options, Site, Watched};
use pagelab_host::root::Root;
use pagelab_metrics::can::{Ask, Forecast, How, Step, forecast};
use pagelab_metrics::frag;
use pagelab_model::{Bytes, Pages, Reading, ZoneInfo};
use pagelab_sys::affinity::Pinned;
use pagelab_sys::clock;
use serde_json::{Value, json};
use state::State;

/// The states; each is made, predicted and asked for in a process of its own. `seed`: of the one before the
/// first.
fn states(mut seed: u64) -> Vec<State> {
    let mut states = Vec::new();
    for cache in [0.0, 0.35] {
        for (target, keep) in [(0.0, 1), (0.5, 1), (0.5, 16), (0.75, 64), (1.0, 1), (1.0, 256)] {
            seed += 1;
            states.push(State { target, keep, unmovable: 0.0, cache, released: false, seed });
        }
        for (target, unmovable) in [(0.5, 0.05), (0.9, 0.02)] {
            seed += 1;
            states.push(State { target, keep: 8, unmovable, cache, released: false, seed });
        }
    }
    states
}

/// The states after a build: memory was broken up while files were read, and the pieces went back. Page cache
/// lies scattered then, in large folios where the file system makes some, and most memory is free.
fn released(seed: u64, count: usize) -> Vec<State> {
    let kinds = [0.2, 0.4].into_iter().flat_map(|cache| {
        let targets = [0.9, 1.0, 0.6].into_iter();
        targets.flat_map(move |target| [(cache, target, 1), (cache, target, 16)])
    });
    let kinds: Vec<(f64, f64, u64)> = kinds.collect();
    (0..count as u64)
        .zip(kinds.iter().cycle())
        .map(|(at, &(cache, target, keep))| State {
            target,
            keep,
            unmovable: 0.0,
            cache,
            released: true,
            seed: seed + 100 + at,
        })
        .collect()
}

/// Guests: kernel series and memory.
const GUESTS: [(&str, &str); 2] = [("6.1", "1G"), ("6.12", "1G")];

/// What is left in a guest, which is ours alone.
const GUEST_RESERVE: Bytes = Bytes(0);

fn main() {
    if let Some(job) = pagelab_guest::agent::job() {
        pagelab_guest::agent::run(job);
    }
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    match words.first().map(String::as_str) {
        Some("state") => {
            println!("{}", one(&State::parse(&words[1..]), Some(PathBuf::from("/disk")), GUEST_RESERVE))
        }
        Some("--host") => host(&words),
        _ => guests(&words),
    }
}

/// Makes a state, predicts, asks, compares.
fn one(state: &State, disk: Option<PathBuf>, reserve: Bytes) -> Value {
    let root = Root::live();
    let pinned = Pinned::here().ok();
    let options = LookOptions {
        pagetypeinfo: true,
        census_time: Duration::from_secs(30),
        settle: true,
        ..LookOptions::default()
    };
    let guard = Guard::begin(&Site::live().unwrap(), Watched::left_to_restore(), Options::default()).unwrap();
    // The kernel's own compaction would undo the state while it is looked at.
    if Path::new("/proc/sys/vm/compaction_proactiveness").exists() {
        guard.set(&Knob::vm("compaction_proactiveness").unwrap(), "0").unwrap();
    }
    let known = look(&root, &options);
    let page = known.machine.page_size;
    let size = page.block(known.pmd_order);
    let held = state::make(state, page, size, disk, reserve.0);
    let snapshot = look(&root, &options);
    let ask = Ask {
        count: u64::MAX,
        order: snapshot.pmd_order,
        how: How::Thp,
        node: None,
        cpu: pinned.as_ref().map(Pinned::cpu),
    };
    let forecast = forecast(&snapshot, ask).unwrap();
    let total = snapshot.meminfo.as_ref().unwrap().bytes("MemTotal").unwrap();
    let wanted = Wanted {
        count: total.0 / size.0,
        size,
        page_size: page,
        reserve: Reserve(reserve),
        deadline_ns: clock::monotonic_ns() + 400_000_000_000,
        misses_max: MISSED_COLLAPSES_MAX,
    };
    let found = truth(&guard, &root, &snapshot.settings, wanted, None).unwrap();
    drop(guard);
    drop(held);
    let zones = snapshot.buddyinfo.as_ref().unwrap().zones.iter();
    let areas = zones.max_by_key(|zone| zone.areas.free_pages()).unwrap();
    let spoiled = forecast.spoiled();
    let spoiled_by: Vec<String> =
        spoiled.iter().map(|(c, blocks)| format!("{} {blocks}", c.name())).collect();
    let mut steps = serde_json::Map::new();
    for (step, asked) in
        Step::ALL.into_iter().zip([found.now, found.after_compaction, found.after_dropping_cache])
    {
        steps.insert(format!("{step:?}"), compared(&forecast, step, asked));
    }
    let pages = |pages: Option<Pages>| pages.unwrap_or_default().0;
    let zone = |zone: &ZoneInfo| {
        json!([zone.key.zone, pages(zone.free), pages(zone.min), pages(zone.low), zone.pages_per_cpu().0])
    };
    let marks: Vec<Value> = snapshot.zoneinfo.as_ref().unwrap().zones.iter().map(zone).collect();
    json!({
        "zone_free_min_low_listed": marks,
        "words": state.words(),
        "released": state.released,
        "index": frag::unusable(&areas.areas, snapshot.pmd_order),
        "cached_mib": snapshot.meminfo.as_ref().unwrap().bytes("Cached").unwrap().0 >> 20,
        "kernel": std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().trim(),
        "blocks": forecast.zones.iter().map(|zone| zone.blocks).sum::<u64>(),
        "spoiled": forecast.spoiled().iter().map(|(_, blocks)| blocks).sum::<u64>(),
        "spoiled_by": spoiled_by,
        "steps": steps,
    })
}

fn compared(forecast: &Forecast, step: Step, asked: Reading<Asked>) -> Value {
    let asked = asked.unwrap();
    let bounds = forecast.after(step);
    let predicted = bounds.expected.min(asked.asked);
    let allowed = forecast.allowed_error(asked.got);
    json!({
        "low": bounds.low, "predicted": predicted, "high": bounds.high,
        "asked": asked.asked, "got": asked.got,
        "collapsed": asked.by_collapse, "tries": asked.collapse_ns.len(), "refusal": asked.first_refusal, "stopped": format!("{:?}", asked.stopped),
        "error": predicted as i64 - asked.got as i64, "allowed": allowed,
        "expected": bounds.expected,
        // What the reserve cut off says nothing of what could have come.
        "within": bounds.low.min(asked.asked) <= asked.got && asked.got <= bounds.high,
        "ratio": predicted.abs_diff(asked.got) as f64 / allowed,
    })
}

fn number(words: &[String], name: &str) -> Option<u64> {
    words.iter().find_map(|word| word.strip_prefix(name)).map(|number| number.parse().unwrap())
}

/// States in one boot.
const STATES_A_BOOT: usize = 4;

fn guests(words: &[String]) {
    let mut rows = Vec::new();
    for (series, memory) in GUESTS {
        if words.iter().any(|word| word.starts_with("--kernel="))
            && !words.contains(&format!("--kernel={series}"))
        {
            continue;
        }
        let states = chosen(words, RELEASED_IN_A_GUEST);
        let step = |state: &State| {
            let words = ["state".to_owned()].into_iter().chain(state.words());
            GuestStep::Pagelab(words.map(Into::into).collect())
        };
        let steps: Vec<GuestStep> = states.iter().map(step).collect();
        let Some(plan) = trial::plan(series, Vec::new()) else {
            for bar in BARS {
                println!("{{\"bar\":\"{bar}\",\"value\":null,\"unit\":\"ratio\",\"why\":\"no guest\"}}");
            }
            return;
        };
        let mut boot = |steps: Vec<GuestStep>| {
            let mut plan = Plan { steps, ..plan.clone() };
            plan.program = Some(std::env::current_exe().unwrap());
            plan.shape.memory = parse_size(memory).unwrap();
            plan.shape.disk = Some(parse_size("1536M").unwrap());
            plan.shape.cpus = 2;
            plan.patience.whole = Duration::from_secs(3600);
            let ended = trial::run(&plan);
            if let Outcome::Finished(finished) = &ended {
                let (steps, wall) = (finished.steps.len(), finished.about.wall.as_secs_f64());
                println!("{series}: {steps} states in a boot of {wall:.0} s");
            }
            ended
        };
        let ended = trial::each_step(&steps, STATES_A_BOOT, &mut boot);
        for (step, state) in ended.iter().zip(&states) {
            match step {
                Ok(step) => rows.extend(told(step, state)),
                Err(why) => println!("{series}: {state:?}: its guest was lost twice, no figure: {why}"),
            }
        }
    }
    if !words.iter().any(|word| word.starts_with("--kernel=")) {
        rows.extend(on_this_machine(words));
    }
    bars(&rows);
}

/// What a state's process printed.
fn told(step: &StepEnd, state: &State) -> Option<Value> {
    let text = String::from_utf8_lossy(&step.stdout);
    let row = text.lines().last().and_then(|line| serde_json::from_str::<Value>(line).ok());
    match &row {
        Some(row) => show(row),
        None => println!("{state:?}: {:?} {text}{}", step.end, String::from_utf8_lossy(&step.stderr)),
    }
    row
}

/// Released states of each kernel: 40 in all.
const RELEASED_IN_A_GUEST: usize = 14;
const RELEASED_HERE: usize = 12;

/// The states that the command line wants.
fn chosen(words: &[String], released_count: usize) -> Vec<State> {
    let seed = number(words, "--seed=").unwrap_or(0);
    let few = number(words, "--states=").map_or(usize::MAX, |few| few as usize);
    let only = number(words, "--only=");
    let has = |word: &str| words.iter().any(|found| found == word);
    let held = if has("--released") { Vec::new() } else { states(seed) };
    let released = if has("--held") { Vec::new() } else { released(seed, released_count) };
    let all = held.into_iter().chain(released);
    let is_wanted =
        |state: &State| only.is_none_or(|only| only == state.seed) && (!has("--cached") || state.cache > 0.0);
    all.filter(is_wanted).take(few).collect()
}

/// The released states on this machine, as root: nothing is taken past what is left to others.
fn on_this_machine(words: &[String]) -> Vec<Value> {
    if !rustix::process::geteuid().is_root() {
        println!("not root: no state on this machine");
        return Vec::new();
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let states = chosen(words, RELEASED_HERE);
    let states = states.iter().filter(|state| state.released);
    states.map(|state| shown(one(state, Some(folder.path().to_owned()), HOST_RESERVE))).collect()
}

/// What others keep of this machine.
const HOST_RESERVE: Bytes = Bytes(5 << 30);

fn host(words: &[String]) {
    let states = chosen(words, 0);
    let states = states.iter().filter(|state| state.unmovable == 0.0 && state.cache == 0.0);
    let mut rows: Vec<Value> = states.map(|state| shown(one(state, None, HOST_RESERVE))).collect();
    rows.extend(on_this_machine(words));
    bars(&rows);
}

fn shown(row: Value) -> Value {
    show(&row);
    row
}

fn show(row: &Value) {
    let steps = STEPS.map(|step| {
        let step = &row["steps"][step];
        format!(
            "{:>5} {:>5} {:>+5} {:.2} {} {}",
            step["predicted"],
            step["got"],
            step["error"].as_i64().unwrap_or_default(),
            step["ratio"].as_f64().unwrap_or_default(),
            if step["within"] == json!(false) { "OUTSIDE" } else { "" },
            step["stopped"].as_str().unwrap_or_default()
        )
    });
    println!(
        "{:<40} {} F_u {:.2} cache {:>4} blocks {} spoiled {:>4} | {}",
        row["words"].to_string(),
        row["kernel"].as_str().unwrap(),
        row["index"].as_f64().unwrap(),
        row["cached_mib"],
        row["blocks"],
        row["spoiled"],
        steps.join(" | ")
    );
    println!("   {row}");
}

const BARS: [&str; 4] =
    ["can_error_now", "can_error_compacted", "can_error_dropped", "can_outside_share_released"];
const STEPS: [&str; 3] = ["Nothing", "Compaction", "Cache"];

fn bars(rows: &[Value]) {
    let is_released = |row: &&Value| row["released"] == json!(true);
    let released: Vec<&Value> = rows.iter().filter(is_released).collect();
    if !released.is_empty() {
        let is_outside =
            |row: &&&Value| STEPS.iter().any(|step| row["steps"][step]["within"] == json!(false));
        let outside = released.iter().filter(is_outside).count();
        let share = outside as f64 / released.len() as f64;
        println!(
            "{{\"bar\":\"{}\",\"value\":{share:.3},\"unit\":\"ratio\",\"how\":\"{outside} of {} states whose \
             truth is outside of the printed bounds at some step: fragment held, cache filled, released\"}}",
            BARS[3],
            released.len()
        );
    }
    let held: Vec<&Value> = rows.iter().filter(|row| !is_released(row)).collect();
    if held.is_empty() {
        return;
    }
    for (bar, step) in BARS.into_iter().zip(STEPS) {
        let ratios: Vec<f64> = held.iter().filter_map(|row| row["steps"][step]["ratio"].as_f64()).collect();
        let worst = ratios.iter().copied().fold(0.0, f64::max);
        let listed = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect::<Vec<_>>().join(",");
        println!(
            "{{\"bar\":\"{bar}\",\"value\":{worst:.3},\"unit\":\"ratio\",\"samples\":[{listed}],\
             \"how\":\"|predicted - got| / max(5 % of got, 1 % of the blocks), the worst of {} states\"}}",
            held.len()
        );
    }
}
