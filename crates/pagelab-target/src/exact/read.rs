//! What the plugin has written, as records: images, their events, threads and chunks.

use pagelab_tlb::engine::layout::{chunk, events, head, image, thread};

use super::account::Account;

/// Events of one image at most that are believed.
const EVENTS_MOST: u64 = 1 << 28;

/// One process image.
#[derive(Debug)]
pub struct Image {
    /// Where it stands.
    pub at: u64,
    /// Its words, see [`image`].
    pub words: Vec<u64>,
    /// The program and its arguments.
    pub text: Vec<u8>,
    /// What it executed outside of QEMU.
    pub native: Option<Vec<u8>>,
    /// Changes of its mappings, in order.
    pub events: Vec<Event>,
    /// The words of its threads, see [`thread`].
    pub threads: Vec<Vec<u64>>,
    /// The words of its chunks, see [`chunk`]; the oldest first.
    pub chunks: Vec<Vec<u64>>,
}

impl Image {
    /// A word of it.
    pub fn field(&self, field: u64) -> u64 {
        self.words.get(field as usize).copied().unwrap_or(0)
    }
}

/// A change of mappings.
#[derive(Clone, Debug)]
pub struct Event {
    /// What it was, see [`mod@events`].
    pub what: u64,
    /// Its numbers.
    pub numbers: [u64; 4],
    /// Its text: a path.
    pub text: String,
}

/// All images, in the order in which they began.
pub fn images(account: &Account) -> Vec<Image> {
    let places = account.list(account.head(head::IMAGES));
    places.into_iter().filter_map(|at| one(account, at)).collect()
}

fn one(account: &Account, at: u64) -> Option<Image> {
    let words = account.words(at, image::LENGTH)?;
    let passes = account.head(head::PASSES);
    let field = |field: u64| words[field as usize];
    let text = |at: u64, bytes: u64| account.text(field(at), field(bytes));
    let blocks = |list: u64, length: u64| -> Vec<Vec<u64>> {
        account.list(field(list)).into_iter().filter_map(|at| account.words(at, length)).collect()
    };
    let events = events(account, field(image::EVENTS), field(image::EVENT_COUNT).min(EVENTS_MOST));
    Some(Image {
        at,
        text: text(image::TEXT, image::TEXT_BYTES).unwrap_or_default(),
        native: text(image::NATIVE, image::NATIVE_BYTES),
        events,
        threads: blocks(image::THREADS, thread::PASSES + passes * thread::PASS),
        chunks: blocks(image::CHUNKS, chunk::words(passes)),
        words,
    })
}

fn events(account: &Account, newest: u64, count: u64) -> Vec<Event> {
    let mut found = Vec::new();
    for block in account.list(newest) {
        let Some(words) = account.words(block + events::HEAD, events::COUNT * events::EACH) else { break };
        for event in words.chunks_exact(events::EACH as usize) {
            if found.len() as u64 == count {
                return found;
            }
            let text = match (event[5], event[6]) {
                (0, _) => String::new(),
                (at, bytes) => {
                    String::from_utf8_lossy(&account.text(at, bytes).unwrap_or_default()).into_owned()
                }
            };
            found.push(Event { what: event[0], numbers: [event[1], event[2], event[3], event[4]], text });
        }
    }
    found
}
