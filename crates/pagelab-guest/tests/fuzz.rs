//! Fuzz tests of guest messages and kernel packages: no panic, bounded memory, damaged data is rejected.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand

use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagelab_formats::fuzz::{FuzzTarget, mutate};
use pagelab_guest::console::{ConsoleTail, TAIL_BYTES, printable};
use pagelab_guest::file_receiver::output_name;
use pagelab_guest::job::GuestJob;
use pagelab_guest::kernel::parse_release;
use pagelab_guest::message::AgentMessage;
use pagelab_guest::modules::ModuleIndex;
use pagelab_guest::packet::{PAYLOAD_MAX, PacketDecoder, encode};

/// `packet 0: hello`, `packet 1: note`, by `encode`; a test holds them against it.
const PACKETS: &[u8] = b"\xa5\x50\x02\x00\x00\x00\x00\x00\x04\x00\x00\x00note";
const JOB: &[u8] = br#"{"magic":"pagelab guest job 1","modules":[],"cgroup":null,"swap":false,"disk":false,"bulk":["/modules/a.ko"],"steps":[{"Pagelab":[{"Unix":[102]}]}],"output_paths":["a"],"output_bytes_max":1}"#;
const DEP: &[u8] =
    b"kernel/a-b.ko: kernel/c.ko.xz kernel/d.ko\nkernel/c.ko.xz:\nkernel/d.ko: kernel/a-b.ko\n";

const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "packets", run: run_packets, seeds: &[PACKETS] },
    FuzzTarget { name: "job", run: run_job, seeds: &[JOB] },
    FuzzTarget { name: "modules", run: run_modules, seeds: &[DEP] },
    FuzzTarget { name: "image", run: run_image, seeds: &[b"HdrS"] },
    FuzzTarget {
        name: "console",
        run: run_console,
        seeds: &[b"[ 1.0] Kernel panic - not syncing: x\r\n\x1b[2J"],
    },
    FuzzTarget { name: "wish", run: run_output_name, seeds: &[b"/a/b.tar", b"../x"] },
];

/// Whatever is put behind, before, or into good packets: those that come out are the first that went in.
fn run_packets(input: &[u8]) {
    let good: Vec<u8> = (0..3).flat_map(|number| encode(4, number, &input[..input.len().min(100)])).collect();
    for stream in [input.to_vec(), [&good[..], input].concat(), {
        let mut broken = good.clone();
        let at = input.iter().map(|&byte| usize::from(byte)).sum::<usize>() % good.len();
        broken.splice(at..at, input.iter().copied());
        broken
    }] {
        let mut decoder = PacketDecoder::default();
        let mut packets = 0;
        for piece in stream.chunks(1 + input.len() % 97) {
            decoder.push_bytes(piece);
            while let Some(Ok(packet)) = decoder.next_packet() {
                packets += 1;
                assert!(packet.payload.len() <= PAYLOAD_MAX);
                let again = AgentMessage::from_packet(packet.clone()).map(|message| message.to_packet().kind);
                assert!(again.is_err() || again == Ok(packet.kind));
            }
        }
        assert!(packets <= stream.len() / 16);
    }
}

fn run_job(input: &[u8]) {
    if let Some(Ok(job)) = GuestJob::from_bytes(input) {
        assert_eq!(GuestJob::from_bytes(&job.to_bytes()), Some(Ok(job)));
    }
}

fn run_modules(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let modules = ModuleIndex::parse(&text, &text);
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
    if let Some(release) = parse_release(&head) {
        assert!(!release.contains('/') && release.len() < 256);
    }
}

fn run_console(input: &[u8]) {
    let mut console = ConsoleTail::default();
    for _ in 0..50 {
        console.push_bytes(input);
    }
    assert!(console.tail().len() <= TAIL_BYTES);
    let said = [console.panic_line(), console.last_line(), Some(printable(&String::from_utf8_lossy(input)))];
    for line in said.into_iter().flatten() {
        assert!(!line.chars().any(char::is_control) && line.chars().count() <= 201, "{line:?}");
    }
}

fn run_output_name(input: &[u8]) {
    let name = output_name(&String::from_utf8_lossy(input));
    assert!(name.is_none_or(|name| !name.contains('/') && name != ".." && name != "." && !name.is_empty()));
}

#[test]
fn no_input_breaks_a_parser() {
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
fn seeds_are_valid_input() {
    assert!(encode(2, 0, b"note").starts_with(PACKETS));
    assert!(matches!(GuestJob::from_bytes(JOB), Some(Ok(_))));
    assert!(ModuleIndex::parse(&String::from_utf8_lossy(DEP), "").load_order(&["a_b"]).is_ok());
}

#[test]
fn a_canary_is_found() {
    // A decoder that believed lengths would be caught: the mutator makes packets that claim too much.
    let claims = |input: &[u8]| {
        let mut decoder = PacketDecoder::default();
        decoder.push_bytes(input);
        matches!(decoder.next_packet(), Some(Err(_)))
    };
    assert!((0..2000).any(|round| claims(&mutate(1, round, &[PACKETS]))));
}
