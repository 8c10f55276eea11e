//! What of the wanted memory is on huge pages, read back from the page tables: a success code is no proof.

use std::fs::File;
use std::io;
use std::ops::Range;

use pagelab_host::paths;
use pagelab_sys::pagemap_scan;

use super::folios::{Folios, NO_FOLIO, UNSEEN};
use super::space::{Want, overlap};

/// Looks at all wants that lie in `range` of the process, and keeps the most that was seen. Returns the bytes
/// on huge pages that are wanted there.
pub(super) fn look(pid: u32, wants: &mut [Want], range: &Range<u64>, huge: u64) -> io::Result<u64> {
    if !wants.iter().any(|want| overlap(&want.at, range)) {
        return Ok(0);
    }
    let pagemap = File::open(paths::process(pid, "pagemap"))?;
    let (mut sum, mut folios) = (0, Folios::default());
    let page = rustix::param::page_size() as u64;
    for want in wants.iter_mut().filter(|want| overlap(&want.at, range)) {
        let bytes = pagemap_scan::huge_bytes(&pagemap, want.at.clone())?.0;
        sum += bytes;
        let size = want.at.end - want.at.start;
        if want.is_region && size < huge {
            let seen = folios.is_one(&pagemap, &want.at, page);
            want.got = want.got.max(if matches!(seen, Ok(true)) { size } else { bytes });
            want.touched = want.touched.max(touched(&pagemap, &want.at, huge)?);
            if want.touched > 0 && !want.is_closed {
                let why = if seen.is_err() { UNSEEN } else { NO_FOLIO };
                want.why.get_or_insert_with(|| why.to_owned());
            }
            continue;
        }
        let units = if want.is_region { bytes } else { bytes / huge };
        want.got = want.got.max(units);
        let touched = touched(&pagemap, &want.at, huge)?;
        want.touched = want.touched.max(touched);
    }
    Ok(sum)
}

/// How many stretches of a huge page's size in `range`, whole and in place, hold anything.
pub(super) fn touched(pagemap: &File, range: &Range<u64>, huge: u64) -> io::Result<u64> {
    let whole = super::place::inside(range, huge);
    let range = if whole.is_empty() { range.clone() } else { whole };
    let (mut count, mut next) = (0u64, 0u64);
    pagemap_scan::populated(pagemap, range, |part| {
        let (first, last) = ((part.start / huge).max(next), part.end.saturating_sub(1) / huge);
        if first <= last {
            count += last - first + 1;
            next = last + 1;
        }
    })?;
    Ok(count)
}
