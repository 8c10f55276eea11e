//! TLBs from CPUID registers: Intel's leaves 0x18 and 2, AMD's 0x8000_0005, _0006 and _0019.

use pagelab_model::Bytes;
use pagelab_model::machine::{CpuidLeaf, Tlb, TlbContent, TlbLevel, TlbSource};

use crate::descriptors;

/// Type of a translation cache in leaf 0x18, EDX bits 4..0, from type 1 on.
const LEAF_18_TYPES: [TlbContent; 5] =
    [TlbContent::Data, TlbContent::Instruction, TlbContent::Unified, TlbContent::Data, TlbContent::Stores];

/// Page sizes of leaf 0x18, EBX bits 3..0.
const LEAF_18_SIZES: [(u32, u64); 4] = [(0, 4 << 10), (1, 2 << 20), (2, 4 << 20), (3, 1 << 30)];

/// Ways by AMD's four-bit code of associativity (APM volume 3, Fn8000_0006); 0: none, or reserved;
/// `FULLY_ASSOCIATIVE` means all entries.
const AMD_WAYS: [u32; 16] = [0, 1, 2, 3, 4, 6, 8, 0, 16, 0, 32, 48, 64, 96, 128, FULLY_ASSOCIATIVE];
const FULLY_ASSOCIATIVE: u32 = u32::MAX;

/// QEMU's constants for the first-level TLBs of a virtual AMD processor: 255 entries, direct mapped. No real
/// processor has them; they say nothing about the hardware.
const QEMU_L1_PLACEHOLDER: u32 = 0x01ff_01ff;

/// The TLBs that the leaves describe; `None` where they are absent, zero or a known placeholder.
pub fn decode(leaves: &[CpuidLeaf]) -> Option<Tlb> {
    let (source, levels) = match decode_vendor(leaves)?.as_str() {
        "AuthenticAMD" | "HygonGenuine" => ("leaves 0x80000005, 0x80000006, 0x80000019", decode_amd(leaves)),
        _ => match decode_leaf_18(leaves) {
            levels if levels.is_empty() => ("leaf 2", decode_leaf_2(leaves)),
            levels => ("leaf 0x18", levels),
        },
    };
    if levels.iter().all(|tlb| tlb.holds == TlbContent::Instruction) {
        return None;
    }
    Some(Tlb { source: TlbSource::Cpuid(source.to_owned()), levels: sort_levels(levels) })
}

/// The vendor's name, as leaf 0 spells it.
pub fn decode_vendor(leaves: &[CpuidLeaf]) -> Option<String> {
    let leaf_0 = find_leaf(leaves, 0)?;
    let bytes: Vec<u8> = [leaf_0.ebx, leaf_0.edx, leaf_0.ecx].iter().flat_map(|r| r.to_le_bytes()).collect();
    Some(String::from_utf8_lossy(&bytes).trim_end_matches(['\0', ' ']).to_owned())
}

fn find_leaf(leaves: &[CpuidLeaf], leaf: u32) -> Option<&CpuidLeaf> {
    leaves.iter().find(|found| found.leaf == leaf && found.sub_leaf == 0)
}

/// Smallest level first, instruction TLBs after data TLBs, smaller pages first.
fn sort_levels(mut levels: Vec<TlbLevel>) -> Vec<TlbLevel> {
    let rank =
        |holds| [TlbContent::Data, TlbContent::Stores, TlbContent::Unified].iter().position(|&h| h == holds);
    levels.sort_by_key(|tlb| (tlb.level, rank(tlb.holds).unwrap_or(usize::MAX), tlb.page_sizes.clone()));
    levels
}

/// Leaf 0x18, deterministic address translation parameters (SDM volume 2A): sub-leaf by sub-leaf.
fn decode_leaf_18(leaves: &[CpuidLeaf]) -> Vec<TlbLevel> {
    let sub_leaves = leaves.iter().filter(|leaf| leaf.leaf == 0x18);
    sub_leaves
        .filter_map(|sub| {
            let holds = *LEAF_18_TYPES.get((sub.edx & 0x1f).checked_sub(1)? as usize)?;
            let (ways, sets) = (sub.ebx >> 16, sub.ecx);
            let entries = ways.checked_mul(sets).filter(|&entries| entries > 0)?;
            let is_fully_associative = sub.edx & (1 << 8) != 0;
            let size_bits = LEAF_18_SIZES.iter().filter(|(bit, _)| sub.ebx & (1 << bit) != 0);
            let page_sizes: Vec<Bytes> = size_bits.map(|&(_, size)| Bytes(size)).collect();
            let level = (sub.edx >> 5) & 0x7;
            let ways = Some(if is_fully_associative { entries } else { ways });
            (!page_sizes.is_empty()).then_some(TlbLevel { level, holds, page_sizes, entries, ways })
        })
        .collect()
}

/// Leaf 2: sixteen descriptors, of which byte 0 of EAX is no descriptor; a register with its top bit set has
/// none. 0xFE and 0xFF (ask leaf 0x18, ask leaf 4) are no TLBs and add none.
fn decode_leaf_2(leaves: &[CpuidLeaf]) -> Vec<TlbLevel> {
    let Some(leaf) = find_leaf(leaves, 2) else {
        return Vec::new();
    };
    let registers = [leaf.eax & !0xff, leaf.ebx, leaf.ecx, leaf.edx];
    let valid = registers.into_iter().filter(|register| register & (1 << 31) == 0);
    valid.flat_map(u32::to_le_bytes).flat_map(descriptors::decode_descriptor).collect()
}

/// AMD's leaves. One structure that holds several page sizes is printed once for each, as AMD does.
fn decode_amd(leaves: &[CpuidLeaf]) -> Vec<TlbLevel> {
    let mut levels = Vec::new();
    let l1_leaf = find_leaf(leaves, 0x8000_0005).filter(|leaf| leaf.eax != QEMU_L1_PLACEHOLDER);
    let Some(l1_leaf) = l1_leaf else {
        return levels;
    };
    for (register, size) in [(l1_leaf.ebx, 4u64 << 10), (l1_leaf.eax, 2 << 20)] {
        for (half, holds) in [(register, TlbContent::Instruction), (register >> 16, TlbContent::Data)] {
            let (entries, ways) = (half & 0xff, (half >> 8) & 0xff);
            let ways = if ways == 0xff { FULLY_ASSOCIATIVE } else { ways };
            push_tlb(&mut levels, 1, holds, size, entries, ways);
        }
    }
    // Fn8000_0021 EAX bit 14, L2TlbSizeX32 (Zen 5): sizes of the second level count in units of 32 entries.
    let is_scaled_by_32 = find_leaf(leaves, 0x8000_0021).is_some_and(|leaf| leaf.eax & (1 << 14) != 0);
    let unit = if is_scaled_by_32 { 32 } else { 1 };
    let l2_registers =
        find_leaf(leaves, 0x8000_0006).map(|leaf| [(leaf.ebx, 4u64 << 10), (leaf.eax, 2 << 20)]);
    let gib_registers = find_leaf(leaves, 0x8000_0019).map(|leaf| [(1, leaf.eax, 1), (2, leaf.ebx, unit)]);
    for (register, size) in l2_registers.into_iter().flatten() {
        decode_register(&mut levels, 2, register, size, unit);
    }
    for (level, register, unit) in gib_registers.into_iter().flatten() {
        decode_register(&mut levels, level, register, 1 << 30, unit);
    }
    levels
}

/// Two TLBs in one register: each half has twelve bits of entries and four of associativity code.
fn decode_register(levels: &mut Vec<TlbLevel>, level: u32, register: u32, size: u64, unit: u32) {
    for (half, holds) in [(register, TlbContent::Instruction), (register >> 16, TlbContent::Data)] {
        let ways = AMD_WAYS[(half >> 12 & 0xf) as usize];
        push_tlb(levels, level, holds, size, (half & 0xfff) * unit, ways);
    }
}

/// Adds a TLB that has entries; 0 ways are unknown ways.
fn push_tlb(levels: &mut Vec<TlbLevel>, level: u32, holds: TlbContent, size: u64, entries: u32, ways: u32) {
    if entries > 0 {
        let ways =
            if ways == FULLY_ASSOCIATIVE { Some(entries) } else { Some(ways).filter(|&ways| ways > 0) };
        levels.push(TlbLevel { level, holds, page_sizes: vec![Bytes(size)], entries, ways });
    }
}
