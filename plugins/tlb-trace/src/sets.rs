//! Which memory lies on huge pages in the passes behind the first, and what else all threads share.
//!
//! Guarded by a lock that is held for moments and never over a system call: a thread that waits in an access
//! would keep QEMU from stopping it for a fork.

use std::collections::HashMap;
use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::engine::layout::{self, sets};
use crate::engine::ledger::{Kind, Ledger};
use crate::start::config;
use crate::vcpu::PAGE_BITS;

/// What is asked of one pass.
#[derive(Debug)]
pub enum Set {
    /// All private anonymous memory and the heap.
    All,
    /// Offsets of huge pages by (kind, hash of the path, bytes, nth).
    Regions(HashMap<(u64, u64, u64, u64), Vec<u64>>),
    /// Numbers of huge pages.
    Addresses(Vec<u64>),
}

/// What all threads share.
#[derive(Default)]
struct Shared {
    ledger: Ledger,
    /// Base pages that were unmapped.
    unmapped: Vec<(u64, u64)>,
}

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());
static HELD: AtomicU32 = AtomicU32::new(0);
static UNMAPPED: AtomicUsize = AtomicUsize::new(0);

const LEAF_BITS: u32 = 13;
const TOP_BITS: u32 = 13;
const UNKNOWN: u8 = 0;
type Leaf = [AtomicU8; 1 << LEAF_BITS];
type Top = [AtomicPtr<Leaf>; 1 << TOP_BITS];
/// Codes by pass and number of the huge page, 1 more than they are; 0 is not known yet.
static CODES: [Top; crate::start::PASSES_MOST] =
    [const { [const { AtomicPtr::new(std::ptr::null_mut()) }; 1 << TOP_BITS] }; crate::start::PASSES_MOST];

fn with<R>(act: impl FnOnce(&mut Shared) -> R) -> R {
    while HELD.swap(1, Acquire) != 0 {
        std::hint::spin_loop();
    }
    let mut shared = SHARED.load(Relaxed);
    if shared.is_null() {
        shared = Box::into_raw(Box::default());
        SHARED.store(shared, Relaxed);
    }
    // SAFETY: made above and never freed, and the lock is held. JUSTIFICATION: a std Mutex could not be
    // made good again in a child that was forked while another thread held it.
    let result = act(unsafe { &mut *shared });
    HELD.store(0, Release);
    result
}

/// In a forked child: no other thread is there to give the lock back.
pub fn begin_anew() {
    HELD.store(0, Release);
}

/// The words of the account as sets, for each further pass.
pub fn decode(mut words: &[u64]) -> Option<Vec<Set>> {
    let mut found = Vec::new();
    while let [kind, rest @ ..] = words {
        let (set, rest) = match *kind {
            sets::ALL => (Set::All, rest),
            sets::REGIONS => {
                let [count, rest @ ..] = rest else { return None };
                let length = usize::try_from(count.checked_mul(sets::REGION)?).ok()?;
                let (regions, rest) = rest.split_at_checked(length)?;
                let mut by_key: HashMap<_, Vec<u64>> = HashMap::new();
                for region in regions.chunks_exact(sets::REGION as usize) {
                    let key = (region[0], region[1], region[2], region[3]);
                    by_key.entry(key).or_default().push(region[4]);
                }
                (Set::Regions(by_key), rest)
            }
            sets::ADDRESSES => {
                let [count, rest @ ..] = rest else { return None };
                let (addresses, rest) = rest.split_at_checked(usize::try_from(*count).ok()?)?;
                let mut numbers: Vec<u64> = addresses.to_vec();
                numbers.sort_unstable();
                (Set::Addresses(numbers), rest)
            }
            _ => return None,
        };
        found.push(set);
        words = rest;
    }
    Some(found)
}

/// The size of the page that a base page lies in, in a pass behind the first.
#[inline]
pub fn code(pass: usize, page: u64) -> u8 {
    let number = page >> (config().huge_shift - PAGE_BITS);
    let Some(leaf) = CODES[pass].get((number >> LEAF_BITS) as usize) else { return 0 };
    // SAFETY: leaves are made once and never freed. JUSTIFICATION: a table of this length that is found
    // without a lock.
    if let Some(leaf) = unsafe { leaf.load(Acquire).as_ref() } {
        let known = leaf[number as usize & ((1 << LEAF_BITS) - 1)].load(Relaxed);
        if known != UNKNOWN {
            return known - 1;
        }
    }
    learn(pass, number)
}

#[cold]
fn learn(pass: usize, number: u64) -> u8 {
    let config = config();
    let Some(set) = config.sets.get(pass - 1) else { return 0 };
    with(|shared| {
        let is_huge = is_huge(&shared.ledger, set, number << config.huge_shift, 1 << config.huge_shift);
        let code = if is_huge { config.huge_code } else { 0 };
        let entry = &CODES[pass][(number >> LEAF_BITS) as usize];
        if entry.load(Relaxed).is_null() {
            entry.store(Box::into_raw(Box::new([const { AtomicU8::new(UNKNOWN) }; 1 << LEAF_BITS])), Release);
        }
        // SAFETY: as in `code`. JUSTIFICATION: as there.
        let leaf = unsafe { &*entry.load(Relaxed) };
        leaf[number as usize & ((1 << LEAF_BITS) - 1)].store(code + 1, Relaxed);
        code
    })
}

/// Whether the set has a huge page at `start`: only where mappings fill it.
fn is_huge(ledger: &Ledger, set: &Set, start: u64, bytes: u64) -> bool {
    match set {
        Set::All => ledger.covered(start..start + bytes, |kind| matches!(kind, Kind::Anonymous | Kind::Heap)),
        Set::Addresses(numbers) => {
            numbers.binary_search(&start).is_ok() && ledger.covered(start..start + bytes, |_| true)
        }
        Set::Regions(by_key) => {
            let Some((mapping, offset)) = ledger.find(start) else { return false };
            if ledger.find(start + bytes - 1) != Some((mapping, offset + bytes - 1)) {
                return false;
            }
            let key = &ledger.made(mapping).key;
            let (kind, path) = match &key.kind {
                Kind::Anonymous => (layout::events::ANONYMOUS, 0),
                Kind::Shared => (layout::events::SHARED, 0),
                Kind::File(path) => (layout::events::FILE, layout::hash(path.as_bytes())),
                Kind::Heap => (sets::HEAP, 0),
                Kind::Stack => (sets::STACK, 0),
            };
            let regions = by_key.get(&(kind, path, key.bytes, key.nth.into()));
            // In another run the mapping may begin elsewhere between two huge pages: the nearest ones.
            regions.is_some_and(|offsets| offsets.iter().any(|&wanted| wanted.abs_diff(offset) * 2 < bytes))
        }
    }
}

/// Tells the ledger of a change, and forgets what was known of the addresses.
pub fn change(changed: &[(u64, u64)], act: impl FnOnce(&mut Ledger)) {
    let config = config();
    if config.passes < 2 {
        return;
    }
    with(|shared| {
        act(&mut shared.ledger);
        for codes in &CODES[1..config.passes as usize] {
            for &(from, to) in changed {
                unlearn(codes, from >> config.huge_shift, to.div_ceil(1 << config.huge_shift));
            }
        }
    });
}

fn unlearn(codes: &Top, from: u64, to: u64) {
    let mut number = from;
    while number < to && number >> (LEAF_BITS + TOP_BITS) == 0 {
        // SAFETY: as in `code`. JUSTIFICATION: as there.
        match unsafe { codes[(number >> LEAF_BITS) as usize].load(Relaxed).as_ref() } {
            None => number = ((number >> LEAF_BITS) + 1) << LEAF_BITS,
            Some(leaf) => {
                leaf[number as usize & ((1 << LEAF_BITS) - 1)].store(UNKNOWN, Relaxed);
                number += 1;
            }
        }
    }
}

/// Base pages were unmapped: the other threads forget them before their next access.
pub fn unmapped(from: u64, to: u64) {
    with(|shared| {
        shared.unmapped.push((from, to));
        UNMAPPED.store(shared.unmapped.len(), Relaxed);
    });
}

/// How many unmappings there were.
pub fn unmappings() -> usize {
    UNMAPPED.load(Relaxed)
}

/// Unmappings from a number on, and how many there are.
pub fn unmappings_since(seen: usize) -> (Vec<(u64, u64)>, usize) {
    with(|shared| (shared.unmapped.get(seen..).unwrap_or_default().to_vec(), shared.unmapped.len()))
}
