//! The records of this process in the account: its image, events and chunks.

use std::sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::engine::account_layout::{chunk, events, header, image, thread};
use crate::shared_account::{self, half_word, word};

/// The image of this process; 0 if there was no room for one, and nothing can be recorded.
static IMAGE: AtomicU64 = AtomicU64::new(0);
/// Whether several threads write.
static IS_MULTITHREADED: AtomicU64 = AtomicU64::new(0);
/// Chunks by number.
static CHUNKS: AtomicPtr<Top> = AtomicPtr::new(std::ptr::null_mut());

const LEAF_BITS: u32 = 15;
const TOP_BITS: u32 = 14;

/// Chunks of 2^15 numbers: with 256 KiB each, 8 GiB of addresses.
struct Leaf([AtomicU64; 1 << LEAF_BITS]);
struct Top([AtomicPtr<Leaf>; 1 << TOP_BITS]);

/// Zeroed memory that is never freed.
fn alloc_zeroed_static<T>() -> *mut T {
    // SAFETY: the types that this is used for are valid as zeroes, and not of length 0.
    // JUSTIFICATION: arrays of atomics of such a length would be made on the stack otherwise.
    unsafe { std::alloc::alloc_zeroed(std::alloc::Layout::new::<T>()).cast() }
}

pub fn begin_image(pid: u32, forked_from: Option<u64>, text: &[u8]) {
    let at = shared_account::allocate(image::LENGTH).unwrap_or(0);
    if at == 0 {
        word(header::LOST_IMAGES).fetch_add(1, Relaxed);
    } else {
        let put = |field: u64, value: u64| word(at + field).store(value, Relaxed);
        put(image::PID, pid.into());
        if let Some(parent) = forked_from {
            put(image::START_KIND, 1);
            put(image::PARENT, parent);
            put(image::PARENT_EVENTS, word(parent + image::EVENT_COUNT).load(Relaxed));
        }
        if !text.is_empty() {
            put(image::TEXT, shared_account::store_text(text));
            put(image::TEXT_BYTES, text.len() as u64);
        }
        shared_account::push_block(header::IMAGES, at);
    }
    IMAGE.store(at, Relaxed);
    IS_MULTITHREADED.store(0, Relaxed);
    // The parent's table stays allocated: it belongs to the parent.
    CHUNKS.store(alloc_zeroed_static(), Release);
}

/// Counts are updated atomically from now on: the process has several threads.
pub fn set_multithreaded() {
    IS_MULTITHREADED.store(1, Relaxed);
}

/// The image; `None` if there was no room for it.
pub fn current_image() -> Option<u64> {
    Some(IMAGE.load(Relaxed)).filter(|&at| at != 0)
}

pub fn set_field(field: u64, value: u64) {
    if let Some(at) = current_image() {
        word(at + field).store(value, Relaxed);
    }
}

pub fn add_to_field(field: u64, value: u64) {
    if let Some(at) = current_image() {
        word(at + field).fetch_add(value, Relaxed);
    }
}

/// Records an event. The lock must be held.
pub fn record_event(kind: u64, numbers: [u64; 4], text: &[u8]) {
    let Some(at) = current_image() else { return };
    let count = word(at + image::EVENT_COUNT).load(Relaxed);
    let place = count % events::PER_BLOCK;
    if place == 0 {
        let Some(block) = shared_account::allocate(events::HEADER + events::PER_BLOCK * events::LENGTH)
        else {
            return;
        };
        shared_account::push_block(at + image::EVENTS, block);
    }
    let event = word(at + image::EVENTS).load(Relaxed) + events::HEADER + place * events::LENGTH;
    let kept = if text.is_empty() { 0 } else { shared_account::store_text(text) };
    for (index, value) in numbers.into_iter().enumerate() {
        word(event + 1 + index as u64).store(value, Relaxed);
    }
    word(event + 5).store(kept, Relaxed);
    word(event + 6).store(if kept == 0 { 0 } else { text.len() as u64 }, Relaxed);
    word(event).store(kind, Relaxed);
    word(at + image::EVENT_COUNT).store(count + 1, Release);
}

fn chunk_slot(number: u64) -> Option<&'static AtomicU64> {
    let top = CHUNKS.load(Acquire);
    if number >> (LEAF_BITS + TOP_BITS) != 0 || top.is_null() {
        return None;
    }
    // SAFETY: `begin_image` made it, and it is never freed. The number was checked.
    // JUSTIFICATION: a lookup without a lock.
    let leaf = unsafe { &(*top).0[(number >> LEAF_BITS) as usize] };
    let mut found = leaf.load(Acquire);
    if found.is_null() {
        let fresh = alloc_zeroed_static();
        found = match leaf.compare_exchange(std::ptr::null_mut(), fresh, Release, Acquire) {
            Ok(_) => fresh,
            // Another thread was faster; the untouched memory of this leaf is leaked.
            Err(other) => other,
        };
    }
    // SAFETY: as above. JUSTIFICATION: as above.
    Some(unsafe { &(*found).0[number as usize & ((1 << LEAF_BITS) - 1)] })
}

/// The chunk of a base page, allocated if there is none yet.
#[inline]
pub fn find_or_add_chunk(page: u64, passes: u64) -> Option<u64> {
    let number = page >> chunk::PAGES_BITS;
    let slot = chunk_slot(number)?;
    let known = slot.load(Relaxed);
    if known != 0 {
        return Some(known);
    }
    let image = current_image()?;
    let fresh = shared_account::allocate(chunk::length(passes))?;
    word(fresh + chunk::NUMBER).store(number, Relaxed);
    match slot.compare_exchange(0, fresh, Relaxed, Relaxed) {
        Ok(_) => {
            shared_account::push_block(image + image::CHUNKS, fresh);
            Some(fresh)
        }
        Err(other) => Some(other),
    }
}

/// Closes the chunks of pages `from..to`: later accesses to these addresses belong to other mappings. The
/// lock must be held, and the event not be recorded yet.
pub fn close_chunks(from: u64, to: u64) {
    let Some(image) = current_image() else { return };
    let events = word(image + image::EVENT_COUNT).load(Relaxed);
    let top = CHUNKS.load(Acquire);
    let (mut number, last) = (from >> chunk::PAGES_BITS, to.saturating_sub(1) >> chunk::PAGES_BITS);
    let last = last.min((1 << (LEAF_BITS + TOP_BITS)) - 1);
    while from < to && number <= last {
        // SAFETY: as in `chunk_slot`. JUSTIFICATION: as there.
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
pub fn add_count(at: u64, by: u64) {
    let counter = word(at);
    if IS_MULTITHREADED.load(Relaxed) == 0 {
        counter.store(counter.load(Relaxed) + by, Relaxed);
    } else {
        counter.fetch_add(by, Relaxed);
    }
}

/// Adds 1 to a saturating number of 32 bits that other threads may add to.
#[inline(always)]
pub fn increment_u32(at: u64, number: u64) {
    let counter = half_word(at, number);
    if counter.load(Relaxed) == u32::MAX {
        return;
    }
    if IS_MULTITHREADED.load(Relaxed) == 0 {
        counter.store(counter.load(Relaxed) + 1, Relaxed);
    } else {
        counter.fetch_add(1, Relaxed);
    }
}

/// Allocates a block for the counts of one thread.
pub fn add_thread_block(passes: u64) -> Option<u64> {
    let image = current_image()?;
    let block = shared_account::allocate(thread::PASSES + passes * thread::PASS)?;
    shared_account::push_block(image + image::THREADS, block);
    Some(block)
}
