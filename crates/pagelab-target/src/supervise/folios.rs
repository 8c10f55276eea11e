//! Whether a region smaller than a huge page (mTHP) lies on one folio, as the kernel shows it to root: which
//! frames are behind it (`pagemap`), and what these are (`kpageflags`).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use pagelab_formats::{kpageflags, pagemap};
use pagelab_host::paths;
use pagelab_model::PageFlags;

/// Why it is not known.
pub(super) const UNSEEN: &str = "smaller than a huge page: on what it lies is shown to root alone \
                                 (pagemap, kpageflags)";
/// Why it is not so.
pub(super) const NO_FOLIO: &str = "no folio of this size came: hugepages-…kB/enabled says `never` for it \
                                   (transparent_hugepage, Linux 6.8), or none was free when it was touched";

/// The flags of frames, opened when they are first asked for.
#[derive(Debug, Default)]
pub(super) struct Folios {
    flags: Option<File>,
}

impl Folios {
    /// Whether all of `range` lies on one folio. An error where that is not shown.
    pub fn is_one(&mut self, pagemap: &File, range: &Range<u64>, page: u64) -> io::Result<bool> {
        let pages = usize::try_from((range.end - range.start) / page).unwrap_or(0);
        let mut bytes = vec![0; pages * pagemap::ENTRY_BYTES];
        pagemap.read_exact_at(&mut bytes, range.start / page * pagemap::ENTRY_BYTES as u64)?;
        let entries = pagemap::entries(&bytes).map_err(|error| io::Error::other(error.to_string()))?;
        let mut first = None;
        for (at, entry) in (0..).zip(entries) {
            if !entry.is_present() {
                return Ok(false);
            }
            let frame = entry.frame().ok_or(io::ErrorKind::PermissionDenied)?.0;
            if frame != *first.get_or_insert(frame) + at {
                return Ok(false);
            }
        }
        let Some(first) = first else { return Ok(false) };
        let mut flags = vec![0; pages * kpageflags::ENTRY_BYTES];
        self.flags()?.read_exact_at(&mut flags, first * kpageflags::ENTRY_BYTES as u64)?;
        let (words, _) = flags.as_chunks::<{ kpageflags::ENTRY_BYTES }>();
        Ok(is_within_one(words.iter().map(|word| PageFlags(u64::from_ne_bytes(*word)))))
    }

    fn flags(&mut self) -> io::Result<&File> {
        if self.flags.is_none() {
            self.flags = Some(File::open(paths::KPAGEFLAGS)?);
        }
        self.flags.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Whether frames that follow each other are of one folio: all but the first are tails of it.
fn is_within_one(flags: impl Iterator<Item = PageFlags>) -> bool {
    let is_tail = |flags: PageFlags| flags.has(PageFlags::COMPOUND_TAIL);
    let mut count = 0;
    for (at, flags) in flags.enumerate() {
        if !(is_tail(flags) || (at == 0 && flags.has(PageFlags::COMPOUND_HEAD))) {
            return false;
        }
        count = at + 1;
    }
    count > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_folio_has_tails_behind_its_first_frame() {
        let (head, tail, none) = (1u64 << 15, 1u64 << 16, 0);
        for (words, wanted) in [
            (&[head, tail, tail, tail][..], true),
            (&[tail, tail], true),
            (&[head, tail, head, tail], false),
            (&[none, none], false),
            (&[head], false),
            (&[], false),
        ] {
            assert_eq!(is_within_one(words.iter().map(|word| PageFlags(*word))), wanted, "{words:?}");
        }
    }
}
