//! The hypervisor's name as CPUID gives it: better than nothing where DMI and sysfs are silent.

use pagelab_model::machine::{CpuidLeaf, Hypervisor};

/// First leaf of the range that hypervisors answer in; its registers hold a signature of 12 letters.
const SIGNATURE_LEAF: u32 = 0x4000_0000;

/// Signatures and the names that people know; others are shown as they are.
const NAMES: [(&str, &str); 6] = [
    ("KVMKVMKVM", "KVM"),
    ("Microsoft Hv", "Hyper-V"),
    ("VMwareVMware", "VMware"),
    ("XenVMMXenVMM", "Xen"),
    ("TCGTCGTCGTCG", "QEMU TCG"),
    ("bhyve bhyve ", "bhyve"),
];

/// The hypervisor that answers, if one does.
pub fn from_cpuid(leaves: &[CpuidLeaf]) -> Option<Hypervisor> {
    let leaf = leaves.iter().find(|leaf| leaf.leaf == SIGNATURE_LEAF)?;
    let letters = [leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes).concat();
    let signature: String = String::from_utf8_lossy(&letters).trim_end_matches('\0').to_owned();
    if signature.trim().is_empty() {
        return None;
    }
    let known = NAMES.iter().find(|(letters, _)| *letters == signature);
    let name = known.map_or(signature, |(_, name)| (*name).to_owned());
    Some(Hypervisor::Present { name, source: "CPUID leaf 0x40000000".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_become_names_and_unknown_ones_stay() {
        let of = |text: &[u8; 12]| {
            let register =
                |at: usize| u32::from_le_bytes([text[at], text[at + 1], text[at + 2], text[at + 3]]);
            let (ebx, ecx, edx) = (register(0), register(4), register(8));
            from_cpuid(&[CpuidLeaf { leaf: SIGNATURE_LEAF, sub_leaf: 0, eax: 0, ebx, ecx, edx }])
        };
        let name = |text| match of(text) {
            Some(Hypervisor::Present { name, .. }) => Some(name),
            _ => None,
        };
        assert_eq!(name(b"KVMKVMKVM\0\0\0").as_deref(), Some("KVM"));
        assert_eq!(name(b"SomethingNew").as_deref(), Some("SomethingNew"));
        assert_eq!(name(&[0; 12]), None);
        assert_eq!(from_cpuid(&[]), None);
    }
}
