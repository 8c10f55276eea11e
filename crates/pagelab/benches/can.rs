//! How well `pagelab can` predicts: states of memory in guests, each predicted and then really asked for.
//!
//! In a guest this program is PID 1 and every step; `--host` runs the movable states on this machine.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a bench panics to fail, and prints what it measured"
)]

#[path = "can/state.rs"]
mod state;
#[path = "../tests/guest/trial.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod trial;

use std::path::{Path, PathBuf};
use std::time::Duration;

use pagelab_contig::asking::{Asked, Wanted};
use pagelab_contig::look::{LookOptions, look};
use pagelab_contig::reserve::Reserve;
use pagelab_contig::truth::truth;
use pagelab_guest::boot::Plan;
use pagelab_guest::job::Step as GuestStep;
use pagelab_guest::outcome::{Finished, Outcome};
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
            states.push(State { target, keep, unmovable: 0.0, cache, seed });
        }
        for (target, unmovable) in [(0.5, 0.05), (0.9, 0.02)] {
            seed += 1;
            states.push(State { target, keep: 8, unmovable, cache, seed });
        }
    }
    states
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
        "ratio": predicted.abs_diff(asked.got) as f64 / allowed,
    })
}

fn number(words: &[String], name: &str) -> Option<u64> {
    words.iter().find_map(|word| word.strip_prefix(name)).map(|number| number.parse().unwrap())
}

/// States in one boot: with a lost guest no more than these are lost.
const STATES_A_BOOT: usize = 4;

/// Runs a guest; one that is lost is booted once more, and what its kernel said is told.
fn unless_lost_twice(plan: &Plan) -> Option<Finished> {
    (0..2).find_map(|_| match trial::run(plan) {
        Outcome::Finished(finished) => Some(finished),
        Outcome::Lost(lost) => {
            eprintln!("the guest was lost: {}\n{}", lost.why, trial::console(&lost));
            None
        }
    })
}

fn guests(words: &[String]) {
    let few = number(words, "--states=").map(|few| few as usize);
    let only = number(words, "--only=");
    let cached = words.iter().any(|word| word == "--cached");
    let seed = number(words, "--seed=").unwrap_or(0);
    let mut rows = Vec::new();
    for (series, memory) in GUESTS {
        if words.iter().any(|word| word.starts_with("--kernel="))
            && !words.contains(&format!("--kernel={series}"))
        {
            continue;
        }
        let states: Vec<State> = states(seed).into_iter().take(few.unwrap_or(usize::MAX)).collect();
        let states: Vec<State> = states
            .into_iter()
            .filter(|s| only.is_none_or(|n| n == s.seed) && (!cached || s.cache > 0.0))
            .collect();
        let step = |state: &State| {
            let words = ["state".to_owned()].into_iter().chain(state.words());
            GuestStep::Pagelab(words.map(Into::into).collect())
        };
        for states in states.chunks(STATES_A_BOOT) {
            let Some(mut plan) = trial::plan(series, states.iter().map(step).collect()) else {
                for bar in BARS {
                    println!("{{\"bar\":\"{bar}\",\"value\":null,\"unit\":\"ratio\",\"why\":\"no guest\"}}");
                }
                return;
            };
            plan.program = Some(std::env::current_exe().unwrap());
            plan.shape.memory = parse_size(memory).unwrap();
            plan.shape.disk = Some(parse_size("1536M").unwrap());
            plan.shape.cpus = 2;
            plan.patience.whole = Duration::from_secs(3600);
            let Some(ended) = unless_lost_twice(&plan) else {
                println!("{series}: the guest was lost twice: {} states without a figure", states.len());
                continue;
            };
            for (step, state) in ended.steps.iter().zip(states) {
                let text = String::from_utf8_lossy(&step.stdout);
                match text.lines().last().and_then(|line| serde_json::from_str::<Value>(line).ok()) {
                    Some(row) => {
                        show(&row);
                        rows.push(row);
                    }
                    None => {
                        println!("{state:?}: {:?} {text}{}", step.end, String::from_utf8_lossy(&step.stderr))
                    }
                }
            }
        }
    }
    bars(&rows);
}

fn host(words: &[String]) {
    let rows: Vec<Value> = states(number(words, "--seed=").unwrap_or(0))
        .iter()
        .filter(|state| state.unmovable == 0.0 && state.cache == 0.0)
        .map(|state| {
            let row = one(state, None, Bytes(5 << 30));
            show(&row);
            row
        })
        .collect();
    bars(&rows);
}

fn show(row: &Value) {
    let steps = ["Nothing", "Compaction", "Cache"].map(|step| {
        let step = &row["steps"][step];
        format!(
            "{:>5} {:>5} {:>+5} {:.2} {}",
            step["predicted"],
            step["got"],
            step["error"].as_i64().unwrap(),
            step["ratio"].as_f64().unwrap(),
            step["stopped"].as_str().unwrap()
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

const BARS: [&str; 3] = ["can_error_now", "can_error_compacted", "can_error_dropped"];

fn bars(rows: &[Value]) {
    for (bar, step) in BARS.into_iter().zip(["Nothing", "Compaction", "Cache"]) {
        let ratios: Vec<f64> = rows.iter().map(|row| row["steps"][step]["ratio"].as_f64().unwrap()).collect();
        let worst = ratios.iter().copied().fold(0.0, f64::max);
        let listed = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect::<Vec<_>>().join(",");
        println!(
            "{{\"bar\":\"{bar}\",\"value\":{worst:.3},\"unit\":\"ratio\",\"samples\":[{listed}],\
             \"how\":\"|predicted - got| / max(5 % of got, 1 % of the blocks), the worst of {} states\"}}",
            rows.len()
        );
    }
}
