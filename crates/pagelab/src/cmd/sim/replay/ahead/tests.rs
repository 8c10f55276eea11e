//! Blocks in any order on any number of threads, held against a reader that goes through them one by one.

use std::path::Path;

use pagelab_model::alloc_trace::Was;

use super::*;
use crate::exit::Exit;

#[path = "../../../../../tests/support/made_trace.rs"]
mod made_trace;

const FRAMES: u32 = 32 * 1024;

/// Adds up what it sees, and stumbles at a block, behind some steps of it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Sum {
    name: &'static str,
    blocks: usize,
    times: u64,
    stumbles: Option<(usize, usize)>,
}

impl Taker for Sum {
    fn take(&mut self, events: &[TraceEvent]) -> Result<(), Stumble> {
        // Whoever is asked again after it stumbled, or out of turn, has another sum.
        self.times = events.iter().fold(self.times, |sum, event| sum.wrapping_mul(31) ^ event.at_ns);
        self.blocks += 1;
        match self.stumbles.filter(|(block, _)| *block == self.blocks - 1) {
            Some((_, step)) => Err(Stumble { step, failure: Failure::new(Exit::BadInput, self.name) }),
            None => Ok(()),
        }
    }
}

fn made(path: &Path) {
    let mut made = made_trace::Made::new(FRAMES, 7);
    made.run(400_000);
    let runs = [made_trace::run(FRAMES, Was::Free)];
    made_trace::write(path, &made_trace::head(FRAMES), &runs, &made.events, &made.samples, true);
}

/// The error of the first block that a reader cannot decode, and that block.
fn first_damage(path: &Path) -> Option<(usize, String)> {
    let mut reader = TraceReader::open(path).unwrap();
    let mut events = Vec::new();
    (0..reader.blocks().len()).find_map(|place| {
        let error = reader.block(place, &mut events).err()?;
        Some((place, refusal(&error).to_string()))
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
        reader.block(place, &mut events).unwrap();
        alone.take(&events).unwrap();
    }
    for threads in [1, 2, 6] {
        let threads = NonZero::new(threads).unwrap();
        let takers = vec![Sum::default(); 3];
        let (takers, _) = feed(&mut reader, 1..blocks, threads, takers).unwrap();
        assert_eq!(takers, vec![alone.clone(); 3], "{threads} threads");
        let (none, _) = feed(&mut reader, 3..3, threads, vec![Sum::default()]).unwrap();
        assert_eq!(none, [Sum::default()]);
    }
}

#[test]
fn the_error_is_the_one_that_a_single_thread_comes_to_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.pagelab");
    made(&path);
    // Blocks are all there is at three quarters of the file.
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() / 4 * 3;
    bytes[at] ^= 0x55;
    std::fs::write(&path, &bytes).unwrap();
    let (damaged, damage) = first_damage(&path).expect("a block whose checksum is wrong");
    assert!(damaged >= 3 && damage.contains("of its events"), "{damaged}: {damage}");
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
            let fed = feed(&mut reader, 0..last, NonZero::new(threads).unwrap(), takers);
            let failure = fed.map(|_| ()).unwrap_err();
            assert_eq!(failure.to_string(), wanted, "{stumbles:?}, {threads} threads");
        }
    }
}
