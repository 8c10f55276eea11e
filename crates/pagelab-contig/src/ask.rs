//! Asking for huge pages until none comes: how many can really be had now. All are given back at once.

use std::io;

use pagelab_model::{Absence, AbsentWhy, Bytes, Reading};
use pagelab_sys::map::{Advice, Mapping};

use crate::readback::ReadBack;

/// Huge pages in a row that did not come, after which no more is asked for: one may miss by chance.
const MISSES_MAX: u64 = 4;

/// What came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Huge pages that came.
    pub came: u64,
    /// Whether the asking ended at its bound, so that more might have come.
    pub at_bound: bool,
}

/// Faults in huge pages of `size`, at most `most`, one after another; `stop` is asked before each. Whether
/// the kernel compacts for them is `defrag`'s business: whoever wants to know what is there *now* sets it to
/// `never` or `defer` before.
pub fn huge_pages(size: Bytes, most: u64, stop: &mut dyn FnMut() -> bool) -> Reading<Asked> {
    let readback = ReadBack::open();
    let failed = |what: &str, error: io::Error| {
        Absence::new("huge pages", AbsentWhy::Failed, format!("{what}: {error}"))
    };
    let (mut pages, mut misses) = (Vec::new(), 0);
    while (pages.len() as u64) < most && misses < MISSES_MAX {
        if stop() {
            return Err(Absence::new("huge pages", AbsentWhy::NotAsked, "stopped before the end"));
        }
        let mut map = Mapping::anonymous(size, size).map_err(|e| failed("cannot map memory", e))?;
        map.advise(0..size.0, Advice::HugePage).map_err(|e| failed("cannot ask for huge pages", e))?;
        if let Some(word) = map.words_mut().first_mut() {
            *word = 1;
        }
        if readback.huge_bytes(map.addresses())? == size {
            misses = 0;
            pages.push(map);
        } else {
            misses += 1;
        }
    }
    Ok(Asked { came: pages.len() as u64, at_bound: pages.len() as u64 >= most })
}
