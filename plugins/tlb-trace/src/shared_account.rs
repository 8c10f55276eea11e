//! The account in shared memory: words that all processes of the program write.

use std::ffi::{c_char, c_int, c_void};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::engine::account_layout::{self, header};

unsafe extern "C" {
    fn mmap(at: *mut c_void, bytes: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void;
    pub fn sched_yield() -> c_int;
    pub fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    pub fn access(path: *const c_char, mode: c_int) -> c_int;
}

static BASE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// Maps the account. The descriptor is closed again: the program does not see it.
pub fn map_account(path: &str) -> Option<()> {
    const READ_WRITE: c_int = 3;
    // MAP_SHARED | MAP_NORESERVE.
    const SHARED: c_int = 0x4001;
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    let mut word = [0; 8];
    file.read_exact_at(&mut word, header::MAGIC * 8).ok()?;
    if u64::from_ne_bytes(word) != account_layout::MAGIC {
        return None;
    }
    file.read_exact_at(&mut word, header::WORDS * 8).ok()?;
    let bytes = usize::try_from(u64::from_ne_bytes(word)).ok()?.checked_mul(8)?;
    // SAFETY: a new mapping at a place that the kernel chooses touches nothing that is there.
    // JUSTIFICATION: memory shared with later processes has no safe interface.
    let base = unsafe { mmap(std::ptr::null_mut(), bytes, READ_WRITE, SHARED, file.as_raw_fd(), 0) };
    if base as isize == -1 {
        return None;
    }
    BASE.store(base.cast(), Relaxed);
    Some(())
}

#[inline(always)]
pub fn word(at: u64) -> &'static AtomicU64 {
    // SAFETY: places come from `allocate`, which returns none beyond the end, and the mapping is never
    // unmapped. JUSTIFICATION: a bounds check on each access would slow down profiling measurably.
    unsafe { &*BASE.load(Relaxed).add(at as usize) }
}

/// Half a word: numbers of 32 bits, counted from `at`.
#[inline(always)]
pub fn half_word(at: u64, number: u64) -> &'static AtomicU32 {
    // SAFETY: as in `word`; an AtomicU32 may be at either half of an AtomicU64. JUSTIFICATION: as above.
    unsafe { &*BASE.load(Relaxed).add(at as usize).cast::<AtomicU32>().add(number as usize) }
}

/// Prefetches a word into the caches.
#[inline(always)]
pub fn prefetch(at: u64) {
    prefetch_word(word(at));
}

/// The same for any value.
#[inline(always)]
pub fn prefetch_word<T>(word: &T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint, which touches nothing. JUSTIFICATION: there is no safe one.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(word).cast()) };
}

/// Allocates zeroed words; `None` if the account is full.
pub fn allocate(words: u64) -> Option<u64> {
    /// Words of a cache line.
    const LINE: u64 = 8;
    let end = word(header::WORDS).load(Relaxed);
    let words = words.next_multiple_of(LINE);
    let allocated = word(header::NEXT_FREE).fetch_update(Relaxed, Relaxed, |free| {
        let next = free.checked_add(words)?;
        (next <= end).then_some(next)
    });
    if allocated.is_err() {
        word(header::FAILED_ALLOCATIONS).fetch_add(1, Relaxed);
    }
    allocated.ok()
}

/// Pushes a block to the front of the list whose head is the word `list`; the block's first word is its link.
pub fn push_block(list: u64, block: u64) {
    let mut newest = word(list).load(Relaxed);
    loop {
        word(block).store(newest, Relaxed);
        match word(list).compare_exchange_weak(newest, block, Relaxed, Relaxed) {
            Ok(_) => return,
            Err(other) => newest = other,
        }
    }
}

/// Stores a text and returns its position; 0 if there is no room.
pub fn store_text(text: &[u8]) -> u64 {
    let Some(at) = allocate((text.len() as u64).div_ceil(8)) else { return 0 };
    for (index, bytes) in text.chunks(8).enumerate() {
        let mut value = [0; 8];
        value[..bytes.len()].copy_from_slice(bytes);
        word(at + index as u64).store(u64::from_ne_bytes(value), Relaxed);
    }
    at
}

pub fn read_words(at: u64, count: u64) -> Vec<u64> {
    (at..at + count).map(|at| word(at).load(Relaxed)).collect()
}
