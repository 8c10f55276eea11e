//! Pages of the hugetlb pools by zone, which no file of the kernel states: the heads of huge pages in
//! `/proc/kpageflags`, by the spans of `/proc/zoneinfo`.

use std::io;
use std::os::unix::fs::FileExt;

use pagelab_formats::kpageflags::ENTRY_BYTES;
use pagelab_formats::zoneinfo;
use pagelab_model::{Bytes, PageFlags, PageSize, Reading, ZoneKey};

use crate::paths;
use crate::reader::Reader;

/// Huge pages of `huge_page_size` in each zone that has frames, those in use included. Only one word of each
/// aligned group of frames is read. A page in the spans of two zones is counted in both, and huge pages of a
/// larger size count too: the caller compares the sum with the pool.
pub fn count_hugetlb_by_zone(
    reader: &Reader<'_>,
    page_size: PageSize,
    huge_page_size: Bytes,
) -> Reading<Vec<(ZoneKey, u64)>> {
    let zoneinfo = reader.parse(paths::ZONEINFO, zoneinfo::parse)?;
    let flags = reader.root().open_regular_file(paths::KPAGEFLAGS)?;
    let step = (huge_page_size.0 / page_size.bytes()).max(1);
    let mut counts = Vec::new();
    for zone in zoneinfo.zones {
        let (Some(start), Some(end)) = (zone.start, zone.end()) else { continue };
        if start >= end {
            continue;
        }
        let mut count = 0;
        let mut frame = start.0.checked_next_multiple_of(step);
        while let Some(at) = frame.filter(|&at| at < end.0) {
            let mut word = [0; ENTRY_BYTES];
            let Some(offset) = at.checked_mul(ENTRY_BYTES as u64) else { break };
            match flags.read_exact_at(&mut word, offset) {
                Ok(()) => {}
                // The zone's span may end behind the last frame of the file.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(reader.root().absence(paths::KPAGEFLAGS, &error)),
            }
            count += u64::from(is_hugetlb_head(PageFlags(u64::from_ne_bytes(word))));
            frame = at.checked_add(step);
        }
        counts.push((zone.key, count));
    }
    Ok(counts)
}

fn is_hugetlb_head(flags: PageFlags) -> bool {
    flags.has_any(PageFlags::HUGE) && flags.has_any(PageFlags::COMPOUND_HEAD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_tree::FakeTree;

    const SPANS: &str = "Node 0, zone      DMA\n  pages free     1\n  spanned  7\n  start_pfn: 1\n\
        Node 0, zone    DMA32\n  pages free     1\n  spanned  8\n  start_pfn: 8\n\
        Node 0, zone   Normal\n  pages free     0\n  spanned  0\n  start_pfn: 0\n\
        Node 0, zone  Movable\n  pages free     1\n  spanned  100\n  start_pfn: 16\n\
        Node 0, zone   Device\n  pages free     0\n";

    #[test]
    fn heads_are_counted_by_the_spans_of_zones() {
        let (head, tail) = (PageFlags::HUGE.union(PageFlags::COMPOUND_HEAD), PageFlags::HUGE);
        let thp = PageFlags::THP.union(PageFlags::COMPOUND_HEAD);
        let tail = tail.union(PageFlags::COMPOUND_TAIL);
        // Huge pages of four frames: at 4, 8, 12 and 20, and a transparent one at 16.
        let flags: Vec<u8> = (0..24_u64)
            .map(|frame| match frame {
                4 | 8 | 12 | 20 => head,
                16 => thp,
                0..=3 | 17..=19 => PageFlags(0),
                _ => tail,
            })
            .flat_map(|flags| flags.0.to_ne_bytes())
            .collect();
        let tree = FakeTree::new(&[(paths::ZONEINFO, SPANS)]);
        let count = |tree: &FakeTree| {
            let root = tree.root();
            let size = Bytes(4 * PageSize::DEFAULT.bytes());
            let counts = count_hugetlb_by_zone(&Reader::new(&root), PageSize::DEFAULT, size)?;
            Ok(counts.into_iter().map(|(key, count)| (key.zone, count)).collect::<Vec<_>>())
        };
        let absent: Reading<Vec<_>> = count(&tree);
        assert!(absent.unwrap_err().source.contains("kpageflags"));
        tree.add_file(paths::KPAGEFLAGS, &flags);
        let expected =
            [("DMA", 1), ("DMA32", 2), ("Movable", 1)].map(|(name, count)| (name.to_owned(), count));
        assert_eq!(count(&tree).unwrap(), expected);
        // A file that ends inside a word, and spans beyond all frames.
        tree.add_file(paths::KPAGEFLAGS, &flags[..flags.len() / 2 + 3]);
        let huge = SPANS.replace("spanned  100", &format!("spanned  {}", i64::MAX));
        tree.add_file(paths::ZONEINFO, huge.as_bytes());
        assert_eq!(count(&tree).unwrap()[2].1, 0);
    }
}
