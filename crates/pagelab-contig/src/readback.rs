//! Reading back which part of our memory huge pages back; the success of a request is no proof.

use std::fs::File;
use std::ops::Range;

use pagelab_formats::smaps;
use pagelab_host::paths::{SELF_PAGEMAP, SELF_SMAPS};
use pagelab_host::root::Root;
use pagelab_model::process::Mapping;
use pagelab_model::{Absence, AbsentWhy, Bytes, Reading};
use pagelab_sys::pagemap_scan;

/// The better of two ways that works here.
#[derive(Debug)]
pub enum ReadBack {
    /// The PAGEMAP_SCAN ioctl (6.7).
    Scan(File),
    /// `AnonHugePages` in smaps (2.6.38), which walks the page tables of the whole process each time.
    Smaps,
}

impl ReadBack {
    /// Tries the ioctl on an empty range of page tables, which asks nothing but whether it is there.
    pub fn open() -> ReadBack {
        match Root::live().file(SELF_PAGEMAP) {
            Ok(pagemap) if pagemap_scan::is_known(&pagemap).is_ok() => ReadBack::Scan(pagemap),
            _ => ReadBack::Smaps,
        }
    }

    /// Its name for a report.
    pub fn name(&self) -> &'static str {
        match self {
            ReadBack::Scan(_) => "PAGEMAP_SCAN",
            ReadBack::Smaps => "smaps",
        }
    }

    /// Bytes of an own address range that PMD huge pages map.
    pub fn huge_bytes(&self, addresses: Range<u64>) -> Reading<Bytes> {
        match self {
            ReadBack::Scan(pagemap) => pagemap_scan::huge_bytes(pagemap, addresses)
                .map_err(|error| Absence::new("PAGEMAP_SCAN", AbsentWhy::Failed, error.to_string())),
            ReadBack::Smaps => {
                let text = Root::live().read(SELF_SMAPS)?;
                let malformed = |detail: String| Absence::new(SELF_SMAPS, AbsentWhy::Malformed, detail);
                let mappings = smaps::parse(&text).map_err(|error| malformed(error.in_file(SELF_SMAPS)))?;
                anon_huge(&mappings, addresses)
                    .ok_or_else(|| malformed("the range is not in it as mapped".to_owned()))
            }
        }
    }
}

/// Sum of `AnonHugePages` over the mappings that lie in `addresses`; `None` if one lies in it only partly, or
/// if not all of the range is there.
fn anon_huge(mappings: &[Mapping], addresses: Range<u64>) -> Option<Bytes> {
    let (mut seen, mut huge) = (0u64, 0u64);
    for mapping in mappings.iter().filter(|m| m.start < addresses.end && m.end > addresses.start) {
        if mapping.start < addresses.start || mapping.end > addresses.end {
            return None;
        }
        seen += mapping.end - mapping.start;
        huge = huge.saturating_add(Bytes::from_kib(mapping.fields_kib.get("AnonHugePages")?).0);
    }
    (seen == addresses.end.saturating_sub(addresses.start)).then_some(Bytes(huge))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &[u8] = b"\
55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]
AnonHugePages:      2048 kB
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac nh
7f0000400000-7f0000800000 rw-p 00000000 00:00 0
AnonHugePages:      4096 kB
";

    #[test]
    fn smaps_counts_only_the_range_and_refuses_merged_mappings() {
        let cases = [
            (0x7f00_0000_0000..0x7f00_0040_0000, Some(2 << 20)),
            (0x7f00_0000_0000..0x7f00_0080_0000, Some(6 << 20)),
            (0x7f00_0000_0000..0x7f00_0060_0000, None),
            (0x7f00_0000_1000..0x7f00_0040_0000, None),
            (0x7f00_0080_0000..0x7f00_00a0_0000, None),
        ];
        let mappings = smaps::parse(SMAPS).unwrap();
        for (range, expected) in cases {
            assert_eq!(anon_huge(&mappings, range.clone()), expected.map(Bytes), "{range:x?}");
        }
    }
}
