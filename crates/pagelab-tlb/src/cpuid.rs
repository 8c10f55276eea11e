//! TLBs from CPUID registers: Intel's leaves 0x18 and 2, AMD's 0x8000_0005, _0006 and _0019.

use pagelab_model::Bytes;
use pagelab_model::machine::{CpuidLeaf, Tlb, TlbHolds, TlbLevel, TlbSource};

use crate::descriptors;

/// Type of a translation cache in leaf 0x18, EDX bits 4..0.
const LEAF_18_TYPES: [(u32, TlbHolds); 5] = [
    (1, TlbHolds::Data),
    (2, TlbHolds::Instruction),
    (3, TlbHolds::Unified),
    (4, TlbHolds::Data),
    (5, TlbHolds::Stores),
];

/// Page sizes of leaf 0x18, EBX bits 3..0.
const LEAF_18_SIZES: [(u32, u64); 4] = [(0, 4 << 10), (1, 2 << 20), (2, 4 << 20), (3, 1 << 30)];

/// AMD's four-bit codes of associativity (APM volume 3, Fn8000_0006); `FULL` stands for all entries.
const AMD_WAYS: [(u32, u32); 13] = [
    (0x1, 1),
    (0x2, 2),
    (0x3, 3),
    (0x4, 4),
    (0x5, 6),
    (0x6, 8),
    (0x8, 16),
    (0xa, 32),
    (0xb, 48),
    (0xc, 64),
    (0xd, 96),
    (0xe, 128),
    (0xf, FULL),
];
const FULL: u32 = u32::MAX;

/// QEMU's constants for the first-level TLBs of a virtual AMD processor: 255 entries, direct mapped. No real
/// processor has them; they say nothing about the hardware.
const QEMU_L1_PLACEHOLDER: u32 = 0x01ff_01ff;

/// The TLBs that the leaves describe; `None` where they are absent, zero or a known placeholder.
pub fn decode(leaves: &[CpuidLeaf]) -> Option<Tlb> {
    let (source, levels) = match vendor(leaves)?.as_str() {
        "AuthenticAMD" | "HygonGenuine" => ("leaves 0x80000005, 0x80000006, 0x80000019", amd(leaves)),
        _ => match leaf_18(leaves) {
            levels if levels.is_empty() => ("leaf 2", leaf_2(leaves)),
            levels => ("leaf 0x18", levels),
        },
    };
    if levels.iter().all(|tlb| tlb.holds == TlbHolds::Instruction) {
        return None;
    }
    Some(Tlb { source: TlbSource::Cpuid(source.to_owned()), levels: sorted(levels) })
}

/// The vendor's name, as leaf 0 spells it.
pub fn vendor(leaves: &[CpuidLeaf]) -> Option<String> {
    let zero = find(leaves, 0)?;
    let bytes: Vec<u8> = [zero.ebx, zero.edx, zero.ecx].iter().flat_map(|r| r.to_le_bytes()).collect();
    Some(String::from_utf8_lossy(&bytes).trim_end_matches(['\0', ' ']).to_owned())
}

fn find(leaves: &[CpuidLeaf], leaf: u32) -> Option<&CpuidLeaf> {
    leaves.iter().find(|found| found.leaf == leaf && found.sub_leaf == 0)
}

/// Smallest level first, instruction TLBs after data TLBs, smaller pages first.
fn sorted(mut levels: Vec<TlbLevel>) -> Vec<TlbLevel> {
    let rank = |holds| [TlbHolds::Data, TlbHolds::Stores, TlbHolds::Unified].iter().position(|&h| h == holds);
    levels.sort_by_key(|tlb| (tlb.level, rank(tlb.holds).unwrap_or(usize::MAX), tlb.page_sizes.clone()));
    levels
}

/// Leaf 0x18, deterministic address translation parameters (SDM volume 2A): sub-leaf by sub-leaf.
fn leaf_18(leaves: &[CpuidLeaf]) -> Vec<TlbLevel> {
    let subs = leaves.iter().filter(|leaf| leaf.leaf == 0x18);
    subs.filter_map(|sub| {
        let holds = LEAF_18_TYPES.iter().find(|(kind, _)| *kind == sub.edx & 0x1f)?.1;
        let (ways, sets) = (sub.ebx >> 16, sub.ecx);
        let entries = ways.checked_mul(sets).filter(|&entries| entries > 0)?;
        let fully = sub.edx & (1 << 8) != 0;
        let held = LEAF_18_SIZES.iter().filter(|(bit, _)| sub.ebx & (1 << bit) != 0);
        let page_sizes: Vec<Bytes> = held.map(|&(_, size)| Bytes(size)).collect();
        let level = (sub.edx >> 5) & 0x7;
        let ways = Some(if fully { entries } else { ways });
        (!page_sizes.is_empty()).then_some(TlbLevel { level, holds, page_sizes, entries, ways })
    })
    .collect()
}

/// Leaf 2: sixteen descriptors, of which byte 0 of EAX is no descriptor; a register with its top bit set has
/// none. 0xFE and 0xFF (ask leaf 0x18, ask leaf 4) are no TLBs and add none.
fn leaf_2(leaves: &[CpuidLeaf]) -> Vec<TlbLevel> {
    let Some(two) = find(leaves, 2) else {
        return Vec::new();
    };
    let registers = [two.eax & !0xff, two.ebx, two.ecx, two.edx];
    let valid = registers.into_iter().filter(|register| register & (1 << 31) == 0);
    valid.flat_map(u32::to_le_bytes).flat_map(descriptors::tlbs).collect()
}

/// AMD's leaves. One structure that holds several page sizes is printed once for each, as AMD does.
fn amd(leaves: &[CpuidLeaf]) -> Vec<TlbLevel> {
    let mut levels = Vec::new();
    let first = find(leaves, 0x8000_0005).filter(|leaf| leaf.eax != QEMU_L1_PLACEHOLDER);
    let Some(first) = first else {
        return levels;
    };
    for (register, size) in [(first.ebx, 4u64 << 10), (first.eax, 2 << 20)] {
        for (half, holds) in [(register, TlbHolds::Instruction), (register >> 16, TlbHolds::Data)] {
            let (entries, ways) = (half & 0xff, (half >> 8) & 0xff);
            push(&mut levels, 1, holds, size, entries, if ways == 0xff { FULL } else { ways });
        }
    }
    // Fn8000_0021 EAX bit 14, L2TlbSizeX32 (Zen 5): sizes of the second level count in units of 32 entries.
    let times_32 = find(leaves, 0x8000_0021).is_some_and(|leaf| leaf.eax & (1 << 14) != 0);
    let unit = if times_32 { 32 } else { 1 };
    let second = find(leaves, 0x8000_0006).map(|leaf| [(leaf.ebx, 4u64 << 10), (leaf.eax, 2 << 20)]);
    let gibibyte = find(leaves, 0x8000_0019).map(|leaf| [(1, leaf.eax, 1), (2, leaf.ebx, unit)]);
    for (register, size) in second.into_iter().flatten() {
        coded(&mut levels, 2, register, size, unit);
    }
    for (level, register, unit) in gibibyte.into_iter().flatten() {
        coded(&mut levels, level, register, 1 << 30, unit);
    }
    levels
}

/// Two TLBs in one register: each half has twelve bits of entries and four of associativity code.
fn coded(levels: &mut Vec<TlbLevel>, level: u32, register: u32, size: u64, unit: u32) {
    for (half, holds) in [(register, TlbHolds::Instruction), (register >> 16, TlbHolds::Data)] {
        let code = (half >> 12) & 0xf;
        let ways = AMD_WAYS.iter().find(|(known, _)| *known == code).map_or(0, |&(_, ways)| ways);
        push(levels, level, holds, size, (half & 0xfff) * unit, ways);
    }
}

/// Adds a TLB that has entries; 0 ways are unknown ways.
fn push(levels: &mut Vec<TlbLevel>, level: u32, holds: TlbHolds, size: u64, entries: u32, ways: u32) {
    if entries > 0 {
        let ways = if ways == FULL { Some(entries) } else { Some(ways).filter(|&ways| ways > 0) };
        levels.push(TlbLevel { level, holds, page_sizes: vec![Bytes(size)], entries, ways });
    }
}
