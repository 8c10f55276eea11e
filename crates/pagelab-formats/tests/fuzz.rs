//! Test of every fuzz target with the seeded mutator, for about two seconds in total.
//!
//! `PAGELAB_FUZZ_SECONDS` lengthens it; `PAGELAB_FUZZ_SEED` repeats what a failure printed.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand

use std::env;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagelab_formats::buddyinfo;
use pagelab_formats::fuzz::{FuzzTarget, TARGETS, mutate};

/// A text of the size that the mutator makes must be read in less, on a busy machine too; most take
/// microseconds.
const SLOWEST: Duration = Duration::from_secs(30);

/// The round in which a target fails, with its input.
struct Failure {
    round: u64,
    input: Vec<u8>,
    problem: String,
}

/// Runs a target for one round.
fn round(target: &FuzzTarget, seed: u64, round: u64) -> Result<(), Failure> {
    let input = mutate(seed, round, target.seeds);
    let start = Instant::now();
    let ran = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
    let slow = start.elapsed() > SLOWEST;
    let problem = match ran {
        Ok(()) if slow => format!("took {:?}", start.elapsed()),
        Ok(()) => return Ok(()),
        Err(_) => "panicked".to_owned(),
    };
    Err(Failure { round, input, problem })
}

#[test]
fn no_input_breaks_a_parser() {
    let seconds = env::var("PAGELAB_FUZZ_SECONDS").map_or(2.0, |text| text.parse().unwrap());
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed: u64 = env::var("PAGELAB_FUZZ_SEED").map_or_else(|_| clock(), |text| text.parse().unwrap());
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut rounds = 0;
    while rounds < 100 || Instant::now() < end {
        for target in TARGETS {
            if let Err(Failure { round, input, problem }) = round(target, seed, rounds) {
                panic!(
                    "{} {problem} in round {round}: PAGELAB_FUZZ_SEED={seed} repeats it; input: \"{}\"",
                    target.name,
                    input.escape_ascii()
                );
            }
        }
        rounds += 1;
    }
    // Not `eprintln`, which the test harness keeps to itself when the test passes.
    let line = format!("fuzz: seed {seed}, {rounds} rounds of {} targets\n", TARGETS.len());
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Fails as a parser would that takes a number for small: the mutator must find it.
fn canary(input: &[u8]) {
    if let Ok(info) = buddyinfo::parse(input) {
        assert!(info.free_pages() < 1 << 40);
    }
}

#[test]
fn a_canary_is_found() {
    let seeds = TARGETS.iter().find(|target| target.name == "buddyinfo").unwrap().seeds;
    let target = FuzzTarget { name: "canary", run: canary, seeds };
    let found = (0..100_000).find_map(|number| round(&target, 1, number).err());
    assert!(found.is_some_and(|failure| !failure.input.is_empty()));
}

#[test]
fn mutated_inputs_are_accepted_as_well_as_refused() {
    let seeds = TARGETS.iter().find(|target| target.name == "buddyinfo").unwrap().seeds;
    let accepted = (0..1000).filter(|&round| buddyinfo::parse(&mutate(1, round, seeds)).is_ok()).count();
    assert!((50..950).contains(&accepted), "{accepted} of 1000 accepted");
}
