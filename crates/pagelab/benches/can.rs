//! Benchmark of the predictions of `pagelab can`: memory states in guests, predicted and then requested.
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

use pagelab_contig::memory_snapshot::{SnapshotOptions, take_snapshot};
use pagelab_contig::reserve::Reserve;
use pagelab_contig::thp_request::{FAILED_COLLAPSES_MAX, ThpRequest, ThpRequestResult};
use pagelab_contig::verify_forecast::verify_forecast;
use pagelab_guest::boot::GuestPlan;
use pagelab_guest::job::JobStep as GuestStep;
use pagelab_guest::outcome::{GuestOutcome, StepEnd};
use pagelab_host::guard::{Guard, GuardOptions, GuardSite, Knob, SignalWatch};
use pagelab_host::root::Root;
use pagelab_metrics::forecast::{AllocationMethod, AllocationRequest, Forecast, ReclaimStep, predict};
use pagelab_metrics::fragmentation_index;
use pagelab_model::size;
use pagelab_model::{Bytes, Pages, Reading, ZoneEntry};
use pagelab_sys::clock;
use pagelab_sys::scheduling::PinnedThread;
use serde_json::{Value, json};
use state::MemoryState;

/// The states; each is created, predicted and requested in its own process. `seed`: of the one before the
/// first.
fn make_states(mut seed: u64) -> Vec<MemoryState> {
    let mut states = Vec::new();
    for cache in [0.0, 0.35] {
        for (target, keep) in [(0.0, 1), (0.5, 1), (0.5, 16), (0.75, 64), (1.0, 1), (1.0, 256)] {
            seed += 1;
            states.push(MemoryState {
                fragmented_share: target,
                pages_kept: keep,
                unmovable_share: 0.0,
                cache_share: cache,
                is_released: false,
                seed,
            });
        }
        for (target, unmovable) in [(0.5, 0.05), (0.9, 0.02)] {
            seed += 1;
            states.push(MemoryState {
                fragmented_share: target,
                pages_kept: 8,
                unmovable_share: unmovable,
                cache_share: cache,
                is_released: false,
                seed,
            });
        }
    }
    states
}

/// The states after a build: memory was broken up while files were read, and the pieces went back. Then page
/// cache is scattered, in large folios if the file system supports them, and most memory is free.
fn released_states(seed: u64, count: usize) -> Vec<MemoryState> {
    let kinds = [0.2, 0.4].into_iter().flat_map(|cache| {
        let targets = [0.9, 1.0, 0.6].into_iter();
        targets.flat_map(move |target| [(cache, target, 1), (cache, target, 16)])
    });
    let kinds: Vec<(f64, f64, u64)> = kinds.collect();
    (0..count as u64)
        .zip(kinds.iter().cycle())
        .map(|(at, &(cache, target, keep))| MemoryState {
            fragmented_share: target,
            pages_kept: keep,
            unmovable_share: 0.0,
            cache_share: cache,
            is_released: true,
            seed: seed + 100 + at,
        })
        .collect()
}

/// Guests: kernel series and memory.
const GUESTS: [(&str, &str); 2] = [("6.1", "1G"), ("6.12", "1G")];

/// Reserve in a guest, which runs nothing else.
const GUEST_RESERVE: Bytes = Bytes(0);

fn main() {
    if let Some(job) = pagelab_guest::agent::read_job() {
        pagelab_guest::agent::run_job(job);
    }
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    match words.first().map(String::as_str) {
        Some("state") => {
            println!(
                "{}",
                measure_state(&MemoryState::parse(&words[1..]), Some(PathBuf::from("/disk")), GUEST_RESERVE)
            )
        }
        Some("--host") => run_host(&words),
        _ => run_guests(&words),
    }
}

/// Makes a state, predicts, asks, compares.
fn measure_state(state: &MemoryState, disk: Option<PathBuf>, reserve: Bytes) -> Value {
    let root = Root::live();
    let pinned = PinnedThread::to_current_cpu().ok();
    let options = SnapshotOptions {
        pagetypeinfo: true,
        census_time_budget: Duration::from_secs(30),
        drain_pcp: true,
        ..SnapshotOptions::default()
    };
    let guard =
        Guard::new(&GuardSite::live().unwrap(), SignalWatch::without_handler(), GuardOptions::default())
            .unwrap();
    // The kernel's own compaction would undo the state during the measurement.
    if Path::new("/proc/sys/vm/compaction_proactiveness").exists() {
        guard.set_knob(&Knob::vm("compaction_proactiveness").unwrap(), "0").unwrap();
    }
    let known = take_snapshot(&root, &options);
    let page = known.machine.page_size;
    let size = page.block_bytes(known.pmd_order);
    let held = state::make_state(state, page, size, disk, reserve.0);
    let snapshot = take_snapshot(&root, &options);
    let ask = AllocationRequest {
        count: u64::MAX,
        order: snapshot.pmd_order,
        method: AllocationMethod::Thp,
        node: None,
        cpu: pinned.as_ref().map(PinnedThread::cpu),
    };
    let forecast = predict(&snapshot, ask).unwrap();
    let total = snapshot.meminfo.as_ref().unwrap().bytes("MemTotal").unwrap();
    let wanted = ThpRequest {
        count: total.0 / size.0,
        size,
        page_size: page,
        node: None,
        reserve: Reserve(reserve),
        deadline_ns: clock::monotonic_ns() + 400_000_000_000,
        failed_collapses_max: FAILED_COLLAPSES_MAX,
    };
    let found = verify_forecast(&guard, &root, &snapshot.settings, wanted).unwrap();
    drop(guard);
    drop(held);
    let zones = snapshot.buddyinfo.as_ref().unwrap().zones.iter();
    let areas = zones.max_by_key(|zone| zone.areas.free_pages()).unwrap();
    let polluted_by: Vec<String> =
        forecast.polluted_by_class().iter().map(|(c, blocks)| format!("{} {blocks}", c.name())).collect();
    let mut steps = serde_json::Map::new();
    for (step, asked) in
        ReclaimStep::ALL.into_iter().zip([found.now, found.after_compaction, found.after_dropping_cache])
    {
        steps.insert(format!("{step:?}"), compare_step(&forecast, step, asked));
    }
    let pages = |pages: Option<Pages>| pages.unwrap_or_default().0;
    let zone = |zone: &ZoneEntry| {
        json!([zone.key.zone, pages(zone.free), pages(zone.min), pages(zone.low), zone.count_pcp_pages().0])
    };
    let marks: Vec<Value> = snapshot.zoneinfo.as_ref().unwrap().zones.iter().map(zone).collect();
    json!({
        "zone_free_min_low_listed": marks,
        "words": state.command_arguments(),
        "released": state.is_released,
        "index": fragmentation_index::unusable_index(&areas.areas, snapshot.pmd_order),
        "cached_mib": snapshot.meminfo.as_ref().unwrap().bytes("Cached").unwrap().0 >> 20,
        "kernel": std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().trim(),
        "blocks": forecast.zone_forecasts.iter().map(|zone| zone.blocks).sum::<u64>(),
        "polluted": forecast.polluted_by_class().iter().map(|(_, blocks)| blocks).sum::<u64>(),
        "polluted_by": polluted_by,
        "steps": steps,
    })
}

fn compare_step(forecast: &Forecast, step: ReclaimStep, allocation: Reading<ThpRequestResult>) -> Value {
    let asked = allocation.unwrap();
    let bounds = forecast.bounds_after(step);
    let predicted = bounds.expected.min(asked.regions);
    let allowed = forecast.error_scale(asked.allocated);
    json!({
        "low": bounds.low, "predicted": predicted, "high": bounds.high,
        "requested": asked.regions, "allocated": asked.allocated,
        "collapsed": asked.by_collapse, "tries": asked.collapse_ns.len(), "refusal": asked.first_refusal, "stopped": format!("{:?}", asked.stop_reason),
        "error": predicted as i64 - asked.allocated as i64, "allowed": allowed,
        "expected": bounds.expected,
        // What the reserve cut off says nothing of what could have come.
        "within": bounds.low.min(asked.regions) <= asked.allocated && asked.allocated <= bounds.high,
        "ratio": predicted.abs_diff(asked.allocated) as f64 / allowed,
    })
}

fn parse_number(arguments: &[String], name: &str) -> Option<u64> {
    arguments.iter().find_map(|word| word.strip_prefix(name)).map(|number| number.parse().unwrap())
}

/// States in one boot.
const STATES_PER_BOOT: usize = 4;

fn run_guests(arguments: &[String]) {
    let mut rows = Vec::new();
    for (series, memory) in GUESTS {
        if arguments.iter().any(|word| word.starts_with("--kernel="))
            && !arguments.contains(&format!("--kernel={series}"))
        {
            continue;
        }
        let states = select_states(arguments, RELEASED_PER_GUEST);
        let step = |state: &MemoryState| {
            let words = ["state".to_owned()].into_iter().chain(state.command_arguments());
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
            let mut plan = GuestPlan { steps, ..plan.clone() };
            plan.program = Some(std::env::current_exe().unwrap());
            plan.config.memory = size::parse(memory).unwrap();
            plan.config.disk = Some(size::parse("1536M").unwrap());
            plan.config.cpus = 2;
            plan.timeouts.total = Duration::from_secs(3600);
            let ended = trial::run(&plan);
            if let GuestOutcome::Completed(finished) = &ended {
                let (steps, wall) = (finished.steps.len(), finished.report.wall_time.as_secs_f64());
                println!("{series}: {steps} states in a boot of {wall:.0} s");
            }
            ended
        };
        let ended = trial::each_step(&steps, STATES_PER_BOOT, &mut boot);
        for (step, state) in ended.iter().zip(&states) {
            match step {
                Ok(step) => rows.extend(parse_output(step, state)),
                Err(why) => println!("{series}: {state:?}: its guest was lost twice, no figure: {why}"),
            }
        }
    }
    if !arguments.iter().any(|word| word.starts_with("--kernel=")) {
        rows.extend(run_on_host(arguments));
    }
    print_bars(&rows);
}

/// What a state's process printed.
fn parse_output(step: &StepEnd, state: &MemoryState) -> Option<Value> {
    let text = String::from_utf8_lossy(&step.stdout);
    let row = text.lines().last().and_then(|line| serde_json::from_str::<Value>(line).ok());
    match &row {
        Some(row) => print_row(row),
        None => println!("{state:?}: {:?} {text}{}", step.end, String::from_utf8_lossy(&step.stderr)),
    }
    row
}

/// Released states of each kernel: 40 in all.
const RELEASED_PER_GUEST: usize = 14;
const RELEASED_ON_HOST: usize = 12;

/// The states that the command line wants.
fn select_states(arguments: &[String], released_count: usize) -> Vec<MemoryState> {
    let seed = parse_number(arguments, "--seed=").unwrap_or(0);
    let few = parse_number(arguments, "--states=").map_or(usize::MAX, |few| few as usize);
    let only = parse_number(arguments, "--only=");
    let has = |word: &str| arguments.iter().any(|found| found == word);
    let held = if has("--released") { Vec::new() } else { make_states(seed) };
    let released = if has("--held") { Vec::new() } else { released_states(seed, released_count) };
    let all = held.into_iter().chain(released);
    let is_wanted = |state: &MemoryState| {
        only.is_none_or(|only| only == state.seed) && (!has("--cached") || state.cache_share > 0.0)
    };
    all.filter(is_wanted).take(few).collect()
}

/// The released states on this machine, as root: the reserve for other programs is kept.
fn run_on_host(arguments: &[String]) -> Vec<Value> {
    if !rustix::process::geteuid().is_root() {
        println!("not root: no state on this machine");
        return Vec::new();
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let states = select_states(arguments, RELEASED_ON_HOST);
    let states = states.iter().filter(|state| state.is_released);
    states
        .map(|state| print_and_keep(measure_state(state, Some(folder.path().to_owned()), HOST_RESERVE)))
        .collect()
}

/// What others keep of this machine.
const HOST_RESERVE: Bytes = Bytes(5 << 30);

fn run_host(arguments: &[String]) {
    let states = select_states(arguments, 0);
    let states = states.iter().filter(|state| state.unmovable_share == 0.0 && state.cache_share == 0.0);
    let mut rows: Vec<Value> =
        states.map(|state| print_and_keep(measure_state(state, None, HOST_RESERVE))).collect();
    rows.extend(run_on_host(arguments));
    print_bars(&rows);
}

fn print_and_keep(row: Value) -> Value {
    print_row(&row);
    row
}

fn print_row(row: &Value) {
    let steps = STEPS.map(|step| {
        let step = &row["steps"][step];
        format!(
            "{:>5} {:>5} {:>+5} {:.2} {} {}",
            step["predicted"],
            step["allocated"],
            step["error"].as_i64().unwrap_or_default(),
            step["ratio"].as_f64().unwrap_or_default(),
            if step["within"] == json!(false) { "OUTSIDE" } else { "" },
            step["stopped"].as_str().unwrap_or_default()
        )
    });
    println!(
        "{:<40} {} F_u {:.2} cache {:>4} blocks {} polluted {:>4} | {}",
        row["words"].to_string(),
        row["kernel"].as_str().unwrap(),
        row["index"].as_f64().unwrap(),
        row["cached_mib"],
        row["blocks"],
        row["polluted"],
        steps.join(" | ")
    );
    println!("   {row}");
}

const BARS: [&str; 4] =
    ["can_error_now", "can_error_compacted", "can_error_dropped", "can_outside_share_released"];
const STEPS: [&str; 3] = ["Nothing", "Compaction", "Cache"];

fn print_bars(rows: &[Value]) {
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
