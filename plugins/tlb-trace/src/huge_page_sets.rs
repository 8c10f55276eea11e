//! The huge pages of the passes after the first, and other state that all threads share.
//!
//! Its lock is held for moments and never during a system call: QEMU could not stop a thread for a fork that
//! waits in an access.

use std::collections::HashMap;
use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::config::config;
use crate::engine::account_layout::{self, sets};
use crate::engine::mapping_table::{MappedKind, MappingTable};
use crate::vcpu::PAGE_BITS;

/// The memory that is in huge pages in one pass.
#[derive(Debug)]
pub enum HugePageSet {
    /// All private anonymous memory and the heap.
    All,
    /// Offsets of huge pages by (kind, hash of the path, bytes, nth).
    Regions(HashMap<(u64, u64, u64, u64), Vec<u64>>),
    /// Numbers of huge pages.
    Addresses(Vec<u64>),
}

/// State that all threads share.
#[derive(Default)]
struct SharedState {
    mapping_table: MappingTable,
    /// Base pages that were unmapped.
    unmapped: Vec<(u64, u64)>,
}

static SHARED: AtomicPtr<SharedState> = AtomicPtr::new(std::ptr::null_mut());
static IS_HELD: AtomicU32 = AtomicU32::new(0);
static UNMAPPING_COUNT: AtomicUsize = AtomicUsize::new(0);

const LEAF_BITS: u32 = 13;
const TOP_BITS: u32 = 13;
const UNKNOWN: u8 = 0;
type Leaf = [AtomicU8; 1 << LEAF_BITS];
type Top = [AtomicPtr<Leaf>; 1 << TOP_BITS];
/// Page size codes plus 1, by pass and number of the huge page; 0 is not computed yet.
static CODES: [Top; crate::config::PASSES_MAX] =
    [const { [const { AtomicPtr::new(std::ptr::null_mut()) }; 1 << TOP_BITS] }; crate::config::PASSES_MAX];

fn with_shared<R>(update: impl FnOnce(&mut SharedState) -> R) -> R {
    while IS_HELD.swap(1, Acquire) != 0 {
        std::hint::spin_loop();
    }
    let mut shared = SHARED.load(Relaxed);
    if shared.is_null() {
        shared = Box::into_raw(Box::default());
        SHARED.store(shared, Relaxed);
    }
    // SAFETY: made above and never freed, and the lock is held. JUSTIFICATION: a std Mutex that another
    // thread held at a fork could not be released in the child.
    let result = update(unsafe { &mut *shared });
    IS_HELD.store(0, Release);
    result
}

/// In a forked child: no other thread exists that could release the lock.
pub fn reset_after_fork() {
    IS_HELD.store(0, Release);
}

/// Decodes the sets of the account, one for each further pass.
pub fn decode(mut words: &[u64]) -> Option<Vec<HugePageSet>> {
    let mut found = Vec::new();
    while let [kind, rest @ ..] = words {
        let (set, rest) = match *kind {
            sets::ALL => (HugePageSet::All, rest),
            sets::REGIONS => {
                let [count, rest @ ..] = rest else { return None };
                let length = usize::try_from(count.checked_mul(sets::REGION)?).ok()?;
                let (regions, rest) = rest.split_at_checked(length)?;
                let mut by_key: HashMap<_, Vec<u64>> = HashMap::new();
                for region in regions.chunks_exact(sets::REGION as usize) {
                    let key = (region[0], region[1], region[2], region[3]);
                    by_key.entry(key).or_default().push(region[4]);
                }
                (HugePageSet::Regions(by_key), rest)
            }
            sets::ADDRESSES => {
                let [count, rest @ ..] = rest else { return None };
                let (addresses, rest) = rest.split_at_checked(usize::try_from(*count).ok()?)?;
                let mut numbers: Vec<u64> = addresses.to_vec();
                numbers.sort_unstable();
                (HugePageSet::Addresses(numbers), rest)
            }
            _ => return None,
        };
        found.push(set);
        words = rest;
    }
    Some(found)
}

/// The size of the page that contains a base page, in a pass after the first.
#[inline]
pub fn page_size_code(pass: usize, page: u64) -> u8 {
    let number = page >> (config().huge_shift - PAGE_BITS);
    let Some(leaf) = CODES[pass].get((number >> LEAF_BITS) as usize) else { return 0 };
    // SAFETY: leaves are made once and never freed. JUSTIFICATION: a lookup without a lock.
    if let Some(leaf) = unsafe { leaf.load(Acquire).as_ref() } {
        let known = leaf[number as usize & ((1 << LEAF_BITS) - 1)].load(Relaxed);
        if known != UNKNOWN {
            return known - 1;
        }
    }
    compute_code(pass, number)
}

#[cold]
fn compute_code(pass: usize, number: u64) -> u8 {
    let config = config();
    let Some(set) = config.sets.get(pass - 1) else { return 0 };
    with_shared(|shared| {
        let is_huge =
            is_huge(&shared.mapping_table, set, number << config.huge_shift, 1 << config.huge_shift);
        let code = if is_huge { config.huge_code } else { 0 };
        let entry = &CODES[pass][(number >> LEAF_BITS) as usize];
        if entry.load(Relaxed).is_null() {
            entry.store(Box::into_raw(Box::new([const { AtomicU8::new(UNKNOWN) }; 1 << LEAF_BITS])), Release);
        }
        // SAFETY: as in `page_size_code`. JUSTIFICATION: as there.
        let leaf = unsafe { &*entry.load(Relaxed) };
        leaf[number as usize & ((1 << LEAF_BITS) - 1)].store(code + 1, Relaxed);
        code
    })
}

/// Whether the set has a huge page at `start`: only where mappings fill it.
fn is_huge(table: &MappingTable, set: &HugePageSet, start: u64, bytes: u64) -> bool {
    match set {
        HugePageSet::All => table.is_covered_by(start..start + bytes, |kind| {
            matches!(kind, MappedKind::Anonymous | MappedKind::Heap)
        }),
        HugePageSet::Addresses(numbers) => {
            numbers.binary_search(&start).is_ok() && table.is_covered_by(start..start + bytes, |_| true)
        }
        HugePageSet::Regions(by_key) => {
            let Some((mapping, offset)) = table.find(start) else { return false };
            if table.find(start + bytes - 1) != Some((mapping, offset + bytes - 1)) {
                return false;
            }
            let key = &table.mapping(mapping).key;
            let (kind, path) = match &key.kind {
                MappedKind::Anonymous => (account_layout::events::ANONYMOUS, 0),
                MappedKind::Shared => (account_layout::events::SHARED, 0),
                MappedKind::File(path) => {
                    (account_layout::events::FILE, account_layout::fnv1a(path.as_bytes()))
                }
                MappedKind::Heap => (sets::HEAP, 0),
                MappedKind::Stack => (sets::STACK, 0),
            };
            let regions = by_key.get(&(kind, path, key.bytes, key.nth.into()));
            // In another run the mapping may begin at another offset in a huge page: the nearest region
            // counts.
            regions.is_some_and(|offsets| offsets.iter().any(|&planned| planned.abs_diff(offset) * 2 < bytes))
        }
    }
}

/// Updates the mappings, and forgets the page sizes of these addresses.
pub fn update_mappings<T>(ranges: &[(u64, u64)], update: impl FnOnce(&mut MappingTable) -> T) {
    let config = config();
    if config.passes < 2 {
        return;
    }
    with_shared(|shared| {
        update(&mut shared.mapping_table);
        for codes in &CODES[1..config.passes as usize] {
            for &(from, to) in ranges {
                forget_codes(codes, from >> config.huge_shift, to.div_ceil(1 << config.huge_shift));
            }
        }
    });
}

fn forget_codes(codes: &Top, from: u64, to: u64) {
    let mut number = from;
    while number < to && number >> (LEAF_BITS + TOP_BITS) == 0 {
        // SAFETY: as in `page_size_code`. JUSTIFICATION: as there.
        match unsafe { codes[(number >> LEAF_BITS) as usize].load(Relaxed).as_ref() } {
            None => number = ((number >> LEAF_BITS) + 1) << LEAF_BITS,
            Some(leaf) => {
                leaf[number as usize & ((1 << LEAF_BITS) - 1)].store(UNKNOWN, Relaxed);
                number += 1;
            }
        }
    }
}

/// Base pages were unmapped: other threads invalidate them before their next access.
pub fn queue_unmapping(from: u64, to: u64) {
    with_shared(|shared| {
        shared.unmapped.push((from, to));
        UNMAPPING_COUNT.store(shared.unmapped.len(), Relaxed);
    });
}

pub fn unmapping_count() -> usize {
    UNMAPPING_COUNT.load(Relaxed)
}

/// The unmappings from a number on, and their number so far.
pub fn unmappings_since(seen: usize) -> (Vec<(u64, u64)>, usize) {
    with_shared(|shared| (shared.unmapped.get(seen..).unwrap_or_default().to_vec(), shared.unmapped.len()))
}
