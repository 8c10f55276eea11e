//! The account in shared memory: words that all processes of the program write.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::engine::layout::{self, head};

unsafe extern "C" {
    fn mmap(at: *mut c_void, bytes: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void;
    pub fn sched_yield() -> c_int;
    pub fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    pub fn access(path: *const c_char, mode: c_int) -> c_int;
}

static BASE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// Maps the account. The descriptor is closed again: the program does not see it.
pub fn open(path: &str) -> Option<()> {
    const READ_WRITE: c_int = 3;
    // MAP_SHARED | MAP_NORESERVE.
    const SHARED: c_int = 0x4001;
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    let mut word = [0; 8];
    file.read_exact_at(&mut word, head::MAGIC * 8).ok()?;
    if u64::from_ne_bytes(word) != layout::MAGIC {
        return None;
    }
    file.read_exact_at(&mut word, head::WORDS * 8).ok()?;
    let bytes = usize::try_from(u64::from_ne_bytes(word)).ok()?.checked_mul(8)?;
    // SAFETY: a new mapping at a place that the kernel chooses touches nothing that is there.
    // JUSTIFICATION: memory shared with processes to come has no safe interface.
    let base = unsafe { mmap(std::ptr::null_mut(), bytes, READ_WRITE, SHARED, file.as_raw_fd(), 0) };
    if base as isize == -1 {
        return None;
    }
    BASE.store(base.cast(), Relaxed);
    Some(())
}

/// A word.
#[inline(always)]
pub fn word(at: u64) -> &'static AtomicU64 {
    // SAFETY: places come from `take`, which gives none behind the end, and the mapping is never unmapped.
    // JUSTIFICATION: a check on each of a billion accesses would be seen in the cost of profiling.
    unsafe { &*BASE.load(Relaxed).add(at as usize) }
}

/// Half a word: numbers of 32 bits, counted from `at`.
#[inline(always)]
pub fn half(at: u64, number: u64) -> &'static AtomicU32 {
    // SAFETY: as in `word`; an AtomicU32 may lie wherever a half of an AtomicU64 lies.
    // JUSTIFICATION: as above.
    unsafe { &*BASE.load(Relaxed).add(at as usize).cast::<AtomicU32>().add(number as usize) }
}

/// The memory of a word is fetched into the caches: it is needed soon.
#[inline(always)]
pub fn fetch(at: u64) {
    fetch_word(word(at));
}

/// The same of any word.
#[inline(always)]
pub fn fetch_word<T>(word: &T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint, which touches nothing. JUSTIFICATION: there is no safe one.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(word).cast()) };
}

/// So many words of zeroes, from now on the caller's; `None` if the account is full.
pub fn take(words: u64) -> Option<u64> {
    /// Words of a cache line.
    const LINE: u64 = 8;
    let end = word(head::WORDS).load(Relaxed);
    let words = words.next_multiple_of(LINE);
    let taken = word(head::FREE).fetch_update(Relaxed, Relaxed, |free| {
        let next = free.checked_add(words)?;
        (next <= end).then_some(next)
    });
    if taken.is_err() {
        word(head::FULL).fetch_add(1, Relaxed);
    }
    taken.ok()
}

/// Puts a block at the head of a list whose head is `list`; the block's first word is its link.
pub fn link(list: u64, block: u64) {
    let mut newest = word(list).load(Relaxed);
    loop {
        word(block).store(newest, Relaxed);
        match word(list).compare_exchange_weak(newest, block, Relaxed, Relaxed) {
            Ok(_) => return,
            Err(other) => newest = other,
        }
    }
}

/// Keeps a text and gives its place; 0 if there is no room.
pub fn keep(text: &[u8]) -> u64 {
    let Some(at) = take((text.len() as u64).div_ceil(8)) else { return 0 };
    for (index, bytes) in text.chunks(8).enumerate() {
        let mut value = [0; 8];
        value[..bytes.len()].copy_from_slice(bytes);
        word(at + index as u64).store(u64::from_ne_bytes(value), Relaxed);
    }
    at
}

/// Words that are there from the start.
pub fn words(at: u64, count: u64) -> Vec<u64> {
    (at..at + count).map(|at| word(at).load(Relaxed)).collect()
}

/// A text of C.
pub fn c_string(bytes: &[u8]) -> Option<CString> {
    CString::new(bytes).ok()
}
