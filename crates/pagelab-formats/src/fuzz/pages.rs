//! Fuzz targets of the records with an entry for each page, and of texts whose kind is not known.

use super::Target;
use crate::{free_text, kpagecount, kpageflags, pagemap};

/// Three entries of a file with a 64-bit word for each page: free, anonymous, without a flag.
const ENTRIES: &[u8] = b"\0\x04\0\0\0\0\0\0\x28\x58\0\0\x04\0\0\0\0\0\0\0\0\0\0\0";

pub(super) const KPAGEFLAGS: Target =
    Target { name: "kpageflags", run: kpageflags::fuzz, seeds: &[b"\x09\x08", ENTRIES] };

pub(super) const KPAGECOUNT: Target = Target { name: "kpagecount", run: kpagecount::fuzz, seeds: &[ENTRIES] };

pub(super) const PAGEMAP: Target = Target {
    name: "pagemap",
    run: pagemap::fuzz,
    seeds: &[b"\x10\0\0\0\0\0\0\x80\x21\0\0\0\0\0\0\x40\0\0\0\0\0\0\0\0"],
};

pub(super) const FREE_TEXT: Target = Target {
    name: "free_text",
    run: run_free_text,
    seeds: &[
        b"[ 1.5] Node 0 DMA: 3*4kB (UE) 1*8kB (M) 0*16kB = 20kB\n[ 1.5] Node 0 Normal: empty\n",
        b"cat /proc/buddyinfo\nNode 0, zone      DMA      4      0      1 \nNode 0, zone   Normal 1 2 3\n",
    ],
};

/// What was found has zones of one length, each of them once.
fn run_free_text(data: &[u8]) {
    let Ok(found) = free_text::read(data, None) else { return };
    let zones = &found.buddyinfo.zones;
    assert!(!zones.is_empty() || !found.unpopulated.is_empty());
    for (at, zone) in zones.iter().enumerate() {
        assert_eq!(zone.areas.orders(), zones[0].areas.orders());
        assert!(zones[..at].iter().all(|other| other.key != zone.key), "{:?} stands twice", zone.key);
    }
}
