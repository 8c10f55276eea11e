//! What a guest and a kernel's package can say, under the seeded mutator: nothing panics, nothing grows,
//! nothing that was damaged is believed.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand

use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagelab_formats::fuzz::{Target, mutate};
use pagelab_guest::console::{Console, KEPT, printable};
use pagelab_guest::frame::{Decoder, PAYLOAD_MAX, encode};
use pagelab_guest::job::Job;
use pagelab_guest::kernel::release_of;
use pagelab_guest::message::Message;
use pagelab_guest::modules::Modules;
use pagelab_guest::taken::name_of;

/// `frame 0: hello`, `frame 1: note`, by `encode`; a test holds them against it.
const FRAMES: &[u8] = b"\xa5\x50\x02\x00\x00\x00\x00\x00\x04\x00\x00\x00note";
const JOB: &[u8] = br#"{"magic":"pagelab guest job 1","modules":[],"cgroup":null,"swap":false,"disk":false,"bulk":["/modules/a.ko"],"steps":[{"Pagelab":[{"Unix":[102]}]}],"takes":["a"],"take_bytes_max":1}"#;
const DEP: &[u8] =
    b"kernel/a-b.ko: kernel/c.ko.xz kernel/d.ko\nkernel/c.ko.xz:\nkernel/d.ko: kernel/a-b.ko\n";

const TARGETS: &[Target] = &[
    Target { name: "frames", run: run_frames, seeds: &[FRAMES] },
    Target { name: "job", run: run_job, seeds: &[JOB] },
    Target { name: "modules", run: run_modules, seeds: &[DEP] },
    Target { name: "image", run: run_image, seeds: &[b"HdrS"] },
    Target {
        name: "console",
        run: run_console,
        seeds: &[b"[ 1.0] Kernel panic - not syncing: x\r\n\x1b[2J"],
    },
    Target { name: "wish", run: run_wish, seeds: &[b"/a/b.tar", b"../x"] },
];

/// Whatever is put behind, before, or into good frames: those that come out are the first that went in.
fn run_frames(input: &[u8]) {
    let good: Vec<u8> = (0..3).flat_map(|number| encode(4, number, &input[..input.len().min(100)])).collect();
    for stream in [input.to_vec(), [&good[..], input].concat(), {
        let mut broken = good.clone();
        let at = input.iter().map(|&byte| usize::from(byte)).sum::<usize>() % good.len();
        broken.splice(at..at, input.iter().copied());
        broken
    }] {
        let mut decoder = Decoder::default();
        let mut frames = 0;
        for piece in stream.chunks(1 + input.len() % 97) {
            decoder.push(piece);
            while let Some(Ok(frame)) = decoder.next() {
                frames += 1;
                assert!(frame.payload.len() <= PAYLOAD_MAX);
                let again = Message::from_frame(frame.clone()).map(|message| message.to_frame().kind);
                assert!(again.is_err() || again == Ok(frame.kind));
            }
        }
        assert!(frames <= stream.len() / 16);
    }
}

fn run_job(input: &[u8]) {
    if let Some(Ok(job)) = Job::from_bytes(input) {
        assert_eq!(Job::from_bytes(&job.to_bytes()), Some(Ok(job)));
    }
}

fn run_modules(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let modules = Modules::parse(&text, &text);
    if let Ok(order) = modules.load_order(&["a_b", "c"]) {
        let mut once = order.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), order.len(), "a module is loaded once");
    }
}

fn run_image(input: &[u8]) {
    let mut head = vec![0; 0x202];
    head.extend(input);
    if let Some(release) = release_of(&head) {
        assert!(!release.contains('/') && release.len() < 256);
    }
}

fn run_console(input: &[u8]) {
    let mut console = Console::default();
    for _ in 0..50 {
        console.push(input);
    }
    assert!(console.tail().len() <= KEPT);
    let said = [console.panic_line(), console.last_line(), Some(printable(&String::from_utf8_lossy(input)))];
    for line in said.into_iter().flatten() {
        assert!(!line.chars().any(char::is_control) && line.chars().count() <= 201, "{line:?}");
    }
}

fn run_wish(input: &[u8]) {
    let name = name_of(&String::from_utf8_lossy(input));
    assert!(name.is_none_or(|name| !name.contains('/') && name != ".." && name != "." && !name.is_empty()));
}

#[test]
fn no_input_breaks_anything() {
    let seconds = std::env::var("PAGELAB_FUZZ_SECONDS").map_or(1.0, |text| text.parse().unwrap());
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed: u64 = std::env::var("PAGELAB_FUZZ_SEED").map_or_else(|_| clock(), |text| text.parse().unwrap());
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut rounds = 0;
    while rounds < 50 || Instant::now() < end {
        for target in TARGETS {
            let input = mutate(seed, rounds, target.seeds);
            let ran = std::panic::catch_unwind(|| (target.run)(&input));
            assert!(
                ran.is_ok(),
                "{} in round {rounds}: PAGELAB_FUZZ_SEED={seed} repeats it; input: \"{}\"",
                target.name,
                input.escape_ascii()
            );
        }
        rounds += 1;
    }
    // Not `eprintln`, which the test harness keeps to itself when the test passes.
    let line = format!("fuzz: seed {seed}, {rounds} rounds of {} targets\n", TARGETS.len());
    let _ = std::io::stderr().write_all(line.as_bytes());
}

#[test]
fn the_seeds_are_what_is_really_said() {
    assert!(encode(2, 0, b"note").starts_with(FRAMES));
    assert!(matches!(Job::from_bytes(JOB), Some(Ok(_))));
    assert!(Modules::parse(&String::from_utf8_lossy(DEP), "").load_order(&["a_b"]).is_ok());
}

#[test]
fn a_canary_is_found() {
    // A decoder that believed lengths would be caught: the mutator makes frames that claim too much.
    let claims = |input: &[u8]| {
        let mut decoder = Decoder::default();
        decoder.push(input);
        matches!(decoder.next(), Some(Err(_)))
    };
    assert!((0..2000).any(|round| claims(&mutate(1, round, &[FRAMES]))));
}
