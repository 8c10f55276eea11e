//! Sets of huge pages in the words that the plugin reads.

use pagelab_model::profile::MappingKind;
use pagelab_model::{Bytes, HugePlan};
use pagelab_tlb::engine::layout::{self, events, sets};

use super::Set;

/// The words of a set. Regions of a plan that are smaller than a huge page are left out: no TLB of x86-64
/// holds such pages.
pub fn encode(set: &Set, huge: Bytes) -> Vec<u64> {
    match set {
        Set::All => vec![sets::ALL],
        Set::Addresses(addresses) => {
            let mut words = vec![sets::ADDRESSES, addresses.len() as u64];
            words.extend(addresses);
            words
        }
        Set::Plan(plan) => of_plan(plan, huge),
    }
}

fn of_plan(plan: &HugePlan, huge: Bytes) -> Vec<u64> {
    let mut regions: Vec<[u64; sets::REGION as usize]> = Vec::new();
    let mut addresses = Vec::new();
    for mapping in plan.programs.iter().flat_map(|program| &program.mappings) {
        let (kind, path) = match &mapping.key.kind {
            MappingKind::Anonymous => (events::ANONYMOUS, 0),
            MappingKind::Shared => (events::SHARED, 0),
            MappingKind::File(path) => (events::FILE, layout::hash(path.as_bytes())),
            MappingKind::Heap => (sets::HEAP, 0),
            MappingKind::Stack => (sets::STACK, 0),
            MappingKind::Placed => {
                addresses.extend(mapping.regions.iter().map(|region| region.offset));
                continue;
            }
        };
        let key = &mapping.key;
        let planned = mapping.regions.iter().filter(|region| region.page >= huge);
        regions.extend(planned.map(|at| [kind, path, key.bytes.0, key.nth.into(), at.offset]));
    }
    if regions.is_empty() && !addresses.is_empty() {
        let mut words = vec![sets::ADDRESSES, addresses.len() as u64];
        words.extend(addresses);
        return words;
    }
    let mut words = vec![sets::REGIONS, regions.len() as u64];
    words.extend(regions.iter().flatten());
    words
}
