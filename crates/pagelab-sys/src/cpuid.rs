//! The raw CPUID leaves that describe TLBs; no leaf at all where the architecture has no CPUID.

use pagelab_model::machine::CpuidLeaf;

/// Sub-leaves of leaf 0x18 that are read at most; real processors have fewer than 16.
const SUB_LEAVES_MAX: u32 = 64;

/// Bit 31 of ECX in leaf 1: a hypervisor is present and answers in the leaves from 0x4000_0000 on.
#[cfg(target_arch = "x86_64")]
const HYPERVISOR_BIT: u32 = 1 << 31;

/// The leaves 0, 1, 2, 4, 0x18 (all sub-leaves), the hypervisor's 0x4000_0000, and 0x8000_0000, _0005, _0006,
/// _0019 and _0021 that the processor has, on the CPU of this thread.
#[cfg(target_arch = "x86_64")]
pub fn read_leaves() -> Vec<CpuidLeaf> {
    let first = read_leaf(0, 0);
    let (highest, mut leaves) = (first.eax, vec![first]);
    leaves.extend([1, 2, 4].into_iter().filter(|&leaf| leaf <= highest).map(|leaf| read_leaf(leaf, 0)));
    if highest >= 0x18 {
        let zero = read_leaf(0x18, 0);
        leaves.push(zero);
        leaves.extend((1..=zero.eax.min(SUB_LEAVES_MAX)).map(|sub_leaf| read_leaf(0x18, sub_leaf)));
    }
    if highest >= 1 && read_leaf(1, 0).ecx & HYPERVISOR_BIT != 0 {
        leaves.push(read_leaf(0x4000_0000, 0));
    }
    let extended = read_leaf(0x8000_0000, 0);
    let wanted = [0x8000_0005, 0x8000_0006, 0x8000_0019, 0x8000_0021];
    leaves.extend(wanted.into_iter().filter(|&leaf| leaf <= extended.eax).map(|leaf| read_leaf(leaf, 0)));
    leaves.push(extended);
    leaves
}

/// No leaves: this architecture has no CPUID.
#[cfg(not(target_arch = "x86_64"))]
pub fn read_leaves() -> Vec<CpuidLeaf> {
    Vec::new()
}

#[cfg(target_arch = "x86_64")]
fn read_leaf(leaf: u32, sub_leaf: u32) -> CpuidLeaf {
    let found = std::arch::x86_64::__cpuid_count(leaf, sub_leaf);
    CpuidLeaf { leaf, sub_leaf, eax: found.eax, ebx: found.ebx, ecx: found.ecx, edx: found.edx }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_vendor_is_spelt_in_leaf_0() {
        let leaves = read_leaves();
        let zero = leaves.iter().find(|l| l.leaf == 0).unwrap();
        let vendor: Vec<u8> = [zero.ebx, zero.edx, zero.ecx].iter().flat_map(|r| r.to_le_bytes()).collect();
        assert!(vendor.iter().all(|b| b.is_ascii_graphic() || *b == b' '), "{vendor:?}");
        assert!(leaves.iter().any(|l| l.leaf == 0x8000_0000));
    }
}
