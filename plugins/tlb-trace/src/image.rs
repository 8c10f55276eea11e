//! The account of this process: its image, its events, its chunks.

use std::sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::arena::{self, half, word};
use crate::engine::layout::{chunk, events, head, image, thread};

/// The image of this process; 0 if there is none, and nothing can be accounted.
static IMAGE: AtomicU64 = AtomicU64::new(0);
/// Whether several threads write.
static SHARED: AtomicU64 = AtomicU64::new(0);
/// Chunks by number.
static CHUNKS: AtomicPtr<Top> = AtomicPtr::new(std::ptr::null_mut());

const LEAF_BITS: u32 = 15;
const TOP_BITS: u32 = 14;

/// Chunks of 2^15 numbers: with 256 KiB each, 8 GiB of addresses.
struct Leaf([AtomicU64; 1 << LEAF_BITS]);
struct Top([AtomicPtr<Leaf>; 1 << TOP_BITS]);

/// Zeroed memory that is never freed.
fn zeroed<T>() -> *mut T {
    // SAFETY: the types that this is used for are valid as zeroes, and not of length 0.
    // JUSTIFICATION: arrays of atomics of such a length would be made on the stack otherwise.
    unsafe { std::alloc::alloc_zeroed(std::alloc::Layout::new::<T>()).cast() }
}

/// Begins the account of this process.
pub fn begin(pid: u32, forked_from: Option<u64>, text: &[u8]) {
    let at = arena::take(image::LENGTH).unwrap_or(0);
    if at == 0 {
        word(head::LOST).fetch_add(1, Relaxed);
    } else {
        let put = |field: u64, value: u64| word(at + field).store(value, Relaxed);
        put(image::PID, pid.into());
        if let Some(parent) = forked_from {
            put(image::BEGUN, 1);
            put(image::PARENT, parent);
            put(image::PARENT_EVENTS, word(parent + image::EVENT_COUNT).load(Relaxed));
        }
        if !text.is_empty() {
            put(image::TEXT, arena::keep(text));
            put(image::TEXT_BYTES, text.len() as u64);
        }
        arena::link(head::IMAGES, at);
    }
    IMAGE.store(at, Relaxed);
    SHARED.store(0, Relaxed);
    // What the parent had is left where it is: it is not ours.
    CHUNKS.store(zeroed(), Release);
}

/// This process has several threads from now on.
pub fn share() {
    SHARED.store(1, Relaxed);
}

/// The image; `None` if it could not be accounted for.
pub fn current() -> Option<u64> {
    Some(IMAGE.load(Relaxed)).filter(|&at| at != 0)
}

/// Sets a field of the image.
pub fn put(field: u64, value: u64) {
    if let Some(at) = current() {
        word(at + field).store(value, Relaxed);
    }
}

/// Adds to a field of the image.
pub fn add(field: u64, value: u64) {
    if let Some(at) = current() {
        word(at + field).fetch_add(value, Relaxed);
    }
}

/// Writes an event down. Under the lock.
pub fn event(what: u64, numbers: [u64; 4], text: &[u8]) {
    let Some(at) = current() else { return };
    let count = word(at + image::EVENT_COUNT).load(Relaxed);
    let place = count % events::COUNT;
    if place == 0 {
        let Some(block) = arena::take(events::HEAD + events::COUNT * events::EACH) else { return };
        arena::link(at + image::EVENTS, block);
    }
    let event = word(at + image::EVENTS).load(Relaxed) + events::HEAD + place * events::EACH;
    let kept = if text.is_empty() { 0 } else { arena::keep(text) };
    for (index, value) in numbers.into_iter().enumerate() {
        word(event + 1 + index as u64).store(value, Relaxed);
    }
    word(event + 5).store(kept, Relaxed);
    word(event + 6).store(if kept == 0 { 0 } else { text.len() as u64 }, Relaxed);
    word(event).store(what, Relaxed);
    word(at + image::EVENT_COUNT).store(count + 1, Release);
}

fn slot(number: u64) -> Option<&'static AtomicU64> {
    let top = CHUNKS.load(Acquire);
    if number >> (LEAF_BITS + TOP_BITS) != 0 || top.is_null() {
        return None;
    }
    // SAFETY: `begin` made it, and it is never freed. The number was looked at.
    // JUSTIFICATION: a table of this length that is found without a lock.
    let leaf = unsafe { &(*top).0[(number >> LEAF_BITS) as usize] };
    let mut found = leaf.load(Acquire);
    if found.is_null() {
        let fresh = zeroed();
        found = match leaf.compare_exchange(std::ptr::null_mut(), fresh, Release, Acquire) {
            Ok(_) => fresh,
            // Another thread was faster; the few pages that were not touched are lost.
            Err(other) => other,
        };
    }
    // SAFETY: as above. JUSTIFICATION: as above.
    Some(unsafe { &(*found).0[number as usize & ((1 << LEAF_BITS) - 1)] })
}

/// The chunk of a base page.
#[inline]
pub fn chunk_of(page: u64, passes: u64) -> Option<u64> {
    let number = page >> chunk::PAGES_BITS;
    let slot = slot(number)?;
    let known = slot.load(Relaxed);
    if known != 0 {
        return Some(known);
    }
    let image = current()?;
    let fresh = arena::take(chunk::words(passes))?;
    word(fresh + chunk::NUMBER).store(number, Relaxed);
    match slot.compare_exchange(0, fresh, Relaxed, Relaxed) {
        Ok(_) => {
            arena::link(image + image::CHUNKS, fresh);
            Some(fresh)
        }
        Err(other) => Some(other),
    }
}

/// Chunks that have a part of pages `from..to` are closed: what comes to these addresses later is of other
/// mappings. Under the lock, before the event is written down.
pub fn close(from: u64, to: u64) {
    let Some(image) = current() else { return };
    let events = word(image + image::EVENT_COUNT).load(Relaxed);
    let top = CHUNKS.load(Acquire);
    let (mut number, last) = (from >> chunk::PAGES_BITS, to.saturating_sub(1) >> chunk::PAGES_BITS);
    let last = last.min((1 << (LEAF_BITS + TOP_BITS)) - 1);
    while from < to && number <= last {
        // SAFETY: as in `slot`. JUSTIFICATION: as there.
        let leaf = unsafe { (*top).0[(number >> LEAF_BITS) as usize].load(Acquire) };
        if leaf.is_null() {
            number = ((number >> LEAF_BITS) + 1) << LEAF_BITS;
            continue;
        }
        // SAFETY: as above. JUSTIFICATION: as above.
        let slot = unsafe { &(*leaf).0[number as usize & ((1 << LEAF_BITS) - 1)] };
        let chunk = slot.swap(0, Relaxed);
        if chunk != 0 {
            word(chunk + chunk::CLOSED).store(events + 1, Relaxed);
        }
        number += 1;
    }
}

/// Adds to a word that other threads may add to.
#[inline(always)]
pub fn count(at: u64, by: u64) {
    let counter = word(at);
    if SHARED.load(Relaxed) == 0 {
        counter.store(counter.load(Relaxed) + by, Relaxed);
    } else {
        counter.fetch_add(by, Relaxed);
    }
}

/// Adds 1 to a number of 32 bits that other threads may add to; it stays at its largest.
#[inline(always)]
pub fn count_half(at: u64, number: u64) {
    let counter = half(at, number);
    if counter.load(Relaxed) == u32::MAX {
        return;
    }
    if SHARED.load(Relaxed) == 0 {
        counter.store(counter.load(Relaxed) + 1, Relaxed);
    } else {
        counter.fetch_add(1, Relaxed);
    }
}

/// A block for the counts of one thread.
pub fn thread_block(passes: u64) -> Option<u64> {
    let image = current()?;
    let block = arena::take(thread::PASSES + passes * thread::PASS)?;
    arena::link(image + image::THREADS, block);
    Some(block)
}
