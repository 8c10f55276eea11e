//! Blocks in any order on any number of threads, compared with a sequential reader.

use std::path::Path;

use pagelab_command::exit::FailureKind;
use pagelab_model::alloc_trace::FrameState;

use super::*;

#[path = "../../../../pagelab/tests/support/made_trace.rs"]
mod made_trace;

const FRAMES: u32 = 32 * 1024;

/// Sums the times of its events, and fails at a block after some steps.
#[derive(Clone, Debug, Default, PartialEq)]
struct Sum {
    name: &'static str,
    blocks: usize,
    times: u64,
    stumbles: Option<(usize, usize)>,
}

impl EventSink for Sum {
    fn accept(&mut self, events: &[TraceEvent]) -> Result<(), SinkError> {
        // A sink that is called after it failed, or out of order, has another sum.
        self.times = events.iter().fold(self.times, |sum, event| sum.wrapping_mul(31) ^ event.time_ns);
        self.blocks += 1;
        match self.stumbles.filter(|(block, _)| *block == self.blocks - 1) {
            Some((_, step)) => {
                Err(SinkError { step, failure: Failure::new(FailureKind::BadInput, self.name) })
            }
            None => Ok(()),
        }
    }
}

fn made(path: &Path) {
    let mut made = made_trace::SyntheticTrace::new(FRAMES, 7);
    made.run(400_000);
    let runs = [made_trace::run(FRAMES, FrameState::Free)];
    made_trace::write(path, &made_trace::head(FRAMES), &runs, &made.events, &made.samples, true);
}

/// Error of the first block that a reader cannot decode, and its index.
fn first_damage(path: &Path) -> Option<(usize, String)> {
    let mut reader = TraceReader::open(path).unwrap();
    let mut events = Vec::new();
    (0..reader.blocks().len()).find_map(|place| {
        let error = reader.read_block(place, &mut events).err()?;
        Some((place, read_failure(&error).to_string()))
    })
}

#[test]
fn takers_see_every_block_in_its_turn_whatever_the_threads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.pagelab");
    made(&path);
    let mut reader = TraceReader::open(&path).unwrap();
    let blocks = reader.blocks().len();
    assert!(blocks >= 6);
    let mut alone = Sum::default();
    let mut events = Vec::new();
    for place in 1..blocks {
        reader.read_block(place, &mut events).unwrap();
        alone.accept(&events).unwrap();
    }
    for threads in [1, 2, 6] {
        let threads = NonZero::new(threads).unwrap();
        let takers = vec![Sum::default(); 3];
        let (takers, _) = feed_sinks(&mut reader, 1..blocks, threads, takers).unwrap();
        assert_eq!(takers, vec![alone.clone(); 3], "{threads} threads");
        let (none, _) = feed_sinks(&mut reader, 3..3, threads, vec![Sum::default()]).unwrap();
        assert_eq!(none, [Sum::default()]);
    }
}

#[test]
fn the_error_is_the_one_that_a_single_thread_comes_to_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.pagelab");
    made(&path);
    // At three quarters of the file there are only blocks.
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() / 4 * 3;
    bytes[at] ^= 0x55;
    std::fs::write(&path, &bytes).unwrap();
    let (damaged, damage) = first_damage(&path).expect("a block whose checksum is wrong");
    assert!(damaged >= 3 && damage.contains("event block"), "{damaged}: {damage}");
    let mut reader = TraceReader::open(&path).unwrap();
    let last = reader.blocks().len();
    for (stumbles, wanted) in [
        ([None, None, None], &damage[..]),
        ([None, Some((damaged, 0)), None], &damage),
        ([None, Some((damaged - 1, 5)), None], "second"),
        ([Some((2, 4)), Some((2, 3)), Some((2, 3))], "second"),
        ([Some((2, 1)), Some((1, 9)), Some((0, 9))], "third"),
    ] {
        for threads in [1, 2, 6] {
            let names = ["first", "second", "third"];
            let takers = names.into_iter().zip(stumbles);
            let takers = takers.map(|(name, stumbles)| Sum { name, stumbles, ..Sum::default() }).collect();
            let fed = feed_sinks(&mut reader, 0..last, NonZero::new(threads).unwrap(), takers);
            let failure = fed.map(|_| ()).unwrap_err();
            assert_eq!(failure.to_string(), wanted, "{stumbles:?}, {threads} threads");
        }
    }
}
