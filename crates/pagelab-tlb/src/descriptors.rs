//! One-byte TLB descriptors of CPUID leaf 2.
//!
//! After the Intel SDM, volume 2A, table "Encoding of CPUID Leaf 2 Descriptors". The kernel keeps the same
//! list in arch/x86/kernel/cpu/cpuid_0x2_table.c, without ways. Where the SDM does not name a level, DTLB0,
//! uTLB and single TLBs are level 1; DTLB1 and the larger of two data TLBs that come together are
//! level 2.

use pagelab_model::Bytes;
use pagelab_model::machine::{TlbContent, TlbLevel};

use TlbContent::{Data, Instruction, Unified};

const K4: u64 = 4 << 10;
const M2: u64 = 2 << 20;
const M4: u64 = 4 << 20;
const G1: u64 = 1 << 30;

/// Ways: a number, `FULLY_ASSOCIATIVE`, or `UNSPECIFIED` where the manual is silent.
const FULLY_ASSOCIATIVE: u32 = u32::MAX;
const UNSPECIFIED: u32 = 0;

type DescriptorRow = (u8, u32, TlbContent, u32, u32, &'static [u64]);

/// Descriptor, level, contents, entries, ways, page sizes. Descriptors with two lines are two TLBs.
#[rustfmt::skip]
const DESCRIPTORS: &[DescriptorRow] = &[
    (0x01, 1, Instruction, 32, 4, &[K4]),
    (0x02, 1, Instruction, 2, FULLY_ASSOCIATIVE, &[M4]),
    (0x03, 1, Data, 64, 4, &[K4]),
    (0x04, 1, Data, 8, 4, &[M4]),
    (0x05, 2, Data, 32, 4, &[M4]),
    (0x0b, 1, Instruction, 4, 4, &[M4]),
    (0x4f, 1, Instruction, 32, UNSPECIFIED, &[K4]),
    (0x50, 1, Instruction, 64, UNSPECIFIED, &[K4, M2, M4]),
    (0x51, 1, Instruction, 128, UNSPECIFIED, &[K4, M2, M4]),
    (0x52, 1, Instruction, 256, UNSPECIFIED, &[K4, M2, M4]),
    (0x55, 1, Instruction, 7, FULLY_ASSOCIATIVE, &[M2, M4]),
    (0x56, 1, Data, 16, 4, &[M4]),
    (0x57, 1, Data, 16, 4, &[K4]),
    (0x59, 1, Data, 16, FULLY_ASSOCIATIVE, &[K4]),
    (0x5a, 1, Data, 32, 4, &[M2, M4]),
    (0x5b, 1, Data, 64, UNSPECIFIED, &[K4, M4]),
    (0x5c, 1, Data, 128, UNSPECIFIED, &[K4, M4]),
    (0x5d, 1, Data, 256, UNSPECIFIED, &[K4, M4]),
    (0x61, 1, Instruction, 48, FULLY_ASSOCIATIVE, &[K4]),
    (0x63, 1, Data, 32, 4, &[M2, M4]),
    (0x63, 1, Data, 4, 4, &[G1]),
    (0x64, 2, Data, 512, 4, &[K4]),
    (0x6a, 1, Data, 64, 8, &[K4]),
    (0x6b, 2, Data, 256, 8, &[K4]),
    (0x6c, 2, Data, 128, 8, &[M2, M4]),
    (0x6d, 2, Data, 16, FULLY_ASSOCIATIVE, &[G1]),
    (0x76, 1, Instruction, 8, FULLY_ASSOCIATIVE, &[M2, M4]),
    (0xa0, 1, Data, 32, FULLY_ASSOCIATIVE, &[K4]),
    (0xb0, 1, Instruction, 128, 4, &[K4]),
    (0xb1, 1, Instruction, 8, 4, &[M2]),
    (0xb2, 1, Instruction, 64, 4, &[K4]),
    (0xb3, 1, Data, 128, 4, &[K4]),
    (0xb4, 2, Data, 256, 4, &[K4]),
    (0xb5, 1, Instruction, 64, 8, &[K4]),
    (0xb6, 1, Instruction, 128, 8, &[K4]),
    (0xba, 2, Data, 64, 4, &[K4]),
    (0xc0, 1, Data, 8, 4, &[K4, M4]),
    (0xc1, 2, Unified, 1024, 8, &[K4, M2]),
    (0xc2, 1, Data, 16, 4, &[K4, M2]),
    (0xc3, 2, Unified, 1536, 6, &[K4, M2]),
    (0xc3, 2, Unified, 16, 4, &[G1]),
    (0xc4, 1, Data, 32, 4, &[M2, M4]),
    (0xca, 2, Unified, 512, 4, &[K4]),
];

/// The TLBs of one descriptor; none if it describes something else.
pub fn decode_descriptor(descriptor: u8) -> impl Iterator<Item = TlbLevel> {
    DESCRIPTORS.iter().filter(move |entry| entry.0 == descriptor).map(
        |&(_, level, holds, entries, ways, sizes)| {
            let ways = match ways {
                UNSPECIFIED => None,
                FULLY_ASSOCIATIVE => Some(entries),
                ways => Some(ways),
            };
            let page_sizes = sizes.iter().map(|&size| Bytes(size)).collect();
            TlbLevel { level, holds, page_sizes, entries, ways }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_its_ways_divide_its_entries() {
        assert!(DESCRIPTORS.windows(2).all(|pair| pair[0].0 <= pair[1].0));
        for entry in DESCRIPTORS {
            for tlb in decode_descriptor(entry.0) {
                assert!(tlb.ways.is_none_or(|ways| tlb.entries % ways == 0), "{:#x}: {tlb:?}", entry.0);
                assert!(tlb.page_sizes.is_sorted());
            }
        }
    }
}
