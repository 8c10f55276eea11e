//! Regions of mappings that are identified by what they are, not by address, so that they hold in the next
//! run.

use std::collections::BTreeMap;
use std::ops::Range;

use pagelab_model::Bytes;
use pagelab_model::profile::{MappingProfile, UnseenReason};
use pagelab_tlb::engine::mapping_table::{MappedKind, MappingId, MappingTable};

use super::image::{FINE_GRAIN, MappingBuilder, SweptRegion, WalkScale};
use super::sweep::ScannedPiece;
use crate::supervisor::to_mapping_identity;

/// Mappings and their observations.
#[derive(Debug, Default)]
pub struct NamedRegions {
    /// By the calls that the program made, as of the last sweep.
    pub mapping_table: Option<MappingTable>,
    /// The number of the address space that they are of.
    pub space: Option<u32>,
    /// By mapping, first and last offset.
    pub(super) regions: BTreeMap<(MappingId, u64, u64), SweptRegion>,
}

impl NamedRegions {
    /// Takes in a piece in a turn, if all of it has names: shared out evenly where they are several, since
    /// mappings that touch and are alike are one to the kernel.
    pub fn add_piece(&mut self, turn: u64, piece: &ScannedPiece, page: u64) -> bool {
        let parts = self.find_parts(&piece.addresses);
        if parts.is_empty() {
            return false;
        }
        let all: u64 = parts.iter().map(|(at, ..)| at.end - at.start).sum();
        for (addresses, mapping, offset) in parts {
            let length = addresses.end - addresses.start;
            let share = |bytes: u64| (u128::from(bytes) * u128::from(length) / u128::from(all.max(1))) as u64;
            let pages = share(piece.resident) / page;
            if pages > 0 {
                let region = self.regions.entry((mapping, offset, offset + length)).or_default();
                let referenced = share(piece.referenced) / page;
                region.add_sweep(turn, piece.huge_bytes > 0, pages, referenced, piece.lag_ns);
            }
        }
        true
    }

    /// Whether all of the range has names.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        !self.find_parts(range).is_empty()
    }

    /// The mappings that have names in a range; none if some of it has none. Files and the stack are known
    /// to the kernel by names of their own.
    pub fn find_parts(&self, range: &Range<u64>) -> Vec<(Range<u64>, MappingId, u64)> {
        let Some(table) = &self.mapping_table else { return Vec::new() };
        let has_name =
            |kind: &MappedKind| matches!(kind, MappedKind::Anonymous | MappedKind::Shared | MappedKind::Heap);
        match table.is_covered_by(range.clone(), has_name) {
            true => table.spans_in(range),
            false => Vec::new(),
        }
    }

    /// The mappings of the profile, with these parts never written and not seen, and these walks of others.
    pub fn build_mappings(
        &self,
        scale: &WalkScale,
        zero_parts: &[Range<u64>],
        walks: &[(MappingId, Range<u64>, u64)],
    ) -> Vec<MappingProfile> {
        let Some(table) = &self.mapping_table else { return Vec::new() };
        let grain = |mapping: MappingId| match table.mapping(mapping).start % scale.huge {
            0 => scale.huge,
            _ => FINE_GRAIN,
        };
        let mut builders: BTreeMap<MappingId, MappingBuilder> = BTreeMap::new();
        // A piece of a mapping that is unmapped may be missing in the mapping table of a new image.
        let is_known = |mapping: MappingId| (mapping.0 as usize) < table.mappings().len();
        for (&(mapping, from, to), region) in self.regions.iter().filter(|(key, _)| is_known(key.0)) {
            builders.entry(mapping).or_default().add_region(from..to, grain(mapping), region, scale);
        }
        for (mapping, offsets, walks) in walks.iter().filter(|(mapping, ..)| is_known(*mapping)) {
            builders.entry(*mapping).or_default().add_walks(offsets.clone(), grain(*mapping), *walks);
        }
        for (addresses, mapping, offset) in zero_parts.iter().flat_map(|part| self.find_parts(part)) {
            let offsets = offset..offset + (addresses.end - addresses.start);
            builders.entry(mapping).or_default().add_unseen(&offsets, UnseenReason::ZeroPage);
        }
        let build_mapping = |(mapping, found): (MappingId, MappingBuilder)| {
            let record = table.mapping(mapping);
            let bytes = record.bytes.max(record.key.bytes);
            found.build(to_mapping_identity(&record.key), record.start, Bytes(bytes), Bytes(grain(mapping)))
        };
        builders.into_iter().map(build_mapping).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::profile::{MappingIdentity, MappingKind};

    const HUGE: u64 = 2 << 20;
    const PAGE: u64 = 1 << 12;

    #[test]
    fn mappings_that_the_kernel_merged_are_told_apart_and_keep_their_names() {
        let mut table = MappingTable::new();
        table.record_mmap(10 * HUGE..12 * HUGE, MappedKind::Anonymous);
        table.record_mmap(12 * HUGE..14 * HUGE, MappedKind::Anonymous);
        table.record_mmap(20 * HUGE..21 * HUGE, MappedKind::File("/a".to_owned()));
        let mut names = NamedRegions { mapping_table: Some(table), ..NamedRegions::default() };
        let piece = |addresses: Range<u64>, referenced| ScannedPiece {
            resident: addresses.end - addresses.start,
            addresses,
            referenced,
            huge_bytes: 0,
            lag_ns: 1_000_000,
        };
        assert!(names.add_piece(0, &piece(11 * HUGE..13 * HUGE, HUGE), PAGE));
        assert!(
            !names.add_piece(0, &piece(20 * HUGE..21 * HUGE, HUGE), PAGE),
            "files have names of their own"
        );
        assert!(!names.add_piece(0, &piece(13 * HUGE..15 * HUGE, HUGE), PAGE), "a part is not known");
        let scale = WalkScale { time_ns: 1_000_000, sweeps: 1, huge: HUGE };
        let mappings = names.build_mappings(&scale, std::slice::from_ref(&(13 * HUGE..14 * HUGE)), &[]);
        let key = |nth| MappingIdentity { kind: MappingKind::Anonymous, bytes: Bytes(2 * HUGE), nth };
        assert_eq!(mappings.iter().map(|of| of.key.clone()).collect::<Vec<_>>(), [key(0), key(1)]);
        assert_eq!(mappings[0].cells.at, [1]);
        assert_eq!(mappings[1].cells.at, [0]);
        assert_eq!(mappings[0].cells.misses, mappings[1].cells.misses);
        assert_eq!((mappings[1].unseen[0].offset, mappings[1].unseen[0].bytes), (HUGE, Bytes(HUGE)));
    }
}
