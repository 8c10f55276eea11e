//! Regions of mappings whose names hold in the next run: what they are, and not where they lie.

use std::collections::BTreeMap;
use std::ops::Range;

use pagelab_model::Bytes;
use pagelab_model::profile::MappingProfile;
use pagelab_tlb::engine::ledger::{Kind, Ledger, MappingId};

use super::image::{FINE_GRAIN, Found, Region, Scale};
use super::sweep::Piece;
use crate::supervise::model_key;

/// What lies where, and what was seen there.
#[derive(Debug, Default)]
pub struct Names {
    /// By the calls that the program made, as of the last sweep.
    pub ledger: Option<Ledger>,
    /// The number of the program whose calls they are.
    pub program: Option<usize>,
    /// By mapping, first and last offset.
    regions: BTreeMap<(MappingId, u64, u64), Region>,
}

impl Names {
    /// What was seen up to now does not count.
    pub fn forget(&mut self) {
        self.regions.clear();
    }

    /// Takes in a piece, if all of it has names: shared out evenly where they are several, since mappings
    /// that touch and are alike are one to the kernel.
    pub fn take(&mut self, piece: &Piece, page: u64) -> bool {
        let parts = self.parts(&piece.addresses);
        if parts.is_empty() {
            return false;
        }
        let all: u64 = parts.iter().map(|(at, ..)| at.end - at.start).sum();
        for (at, mapping, offset) in parts {
            let length = at.end - at.start;
            let share = |bytes: u64| (u128::from(bytes) * u128::from(length) / u128::from(all.max(1))) as u64;
            let pages = share(piece.resident) / page;
            if pages > 0 {
                let region = self.regions.entry((mapping, offset, offset + length)).or_default();
                region.add(piece.huge > 0, pages, share(piece.referenced) / page, piece.lag_ns);
            }
        }
        true
    }

    /// Whether all of the range has names.
    pub fn knows(&self, range: &Range<u64>) -> bool {
        !self.parts(range).is_empty()
    }

    /// All regions.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.values()
    }

    /// The mappings that have names in a range; none if some of it has none. Files and the stack are known
    /// to the kernel by names of their own.
    pub fn parts(&self, range: &Range<u64>) -> Vec<(Range<u64>, MappingId, u64)> {
        let Some(ledger) = &self.ledger else { return Vec::new() };
        let has_name = |kind: &Kind| matches!(kind, Kind::Anonymous | Kind::Shared | Kind::Heap);
        match ledger.covered(range.clone(), has_name) {
            true => ledger.within(range),
            false => Vec::new(),
        }
    }

    /// The mappings of the profile, with these parts never written and not seen, and these walks of others.
    pub fn mappings(
        &self,
        scale: &Scale,
        zeros: &[Range<u64>],
        walks: &[(MappingId, Range<u64>, u64)],
    ) -> Vec<MappingProfile> {
        let Some(ledger) = &self.ledger else { return Vec::new() };
        let grain = |mapping: MappingId| match ledger.made(mapping).start % scale.huge {
            0 => scale.huge,
            _ => FINE_GRAIN,
        };
        let mut found: BTreeMap<MappingId, Found> = BTreeMap::new();
        for (&(mapping, from, to), region) in &self.regions {
            // A piece of a mapping that is unmapped may be gone from the account of a new image.
            if (mapping.0 as usize) < ledger.mappings().len() {
                found.entry(mapping).or_default().add(from..to, grain(mapping), region, scale);
            }
        }
        for (mapping, at, walks) in walks {
            if (mapping.0 as usize) < ledger.mappings().len() {
                found.entry(*mapping).or_default().count(at.clone(), grain(*mapping), *walks);
            }
        }
        for (at, mapping, offset) in zeros.iter().flat_map(|part| self.parts(part)) {
            found.entry(mapping).or_default().zero(offset..offset + (at.end - at.start));
        }
        let of = |(mapping, found): (MappingId, Found)| {
            let made = ledger.made(mapping);
            let bytes = made.bytes.max(made.key.bytes);
            found.mapping(model_key(&made.key), made.start, Bytes(bytes), Bytes(grain(mapping)))
        };
        found.into_iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::profile::{MappingKey, MappingKind};

    const HUGE: u64 = 2 << 20;
    const PAGE: u64 = 1 << 12;

    #[test]
    fn mappings_that_the_kernel_merged_are_told_apart_and_keep_their_names() {
        let mut ledger = Ledger::new();
        ledger.mapped(10 * HUGE..12 * HUGE, Kind::Anonymous);
        ledger.mapped(12 * HUGE..14 * HUGE, Kind::Anonymous);
        ledger.mapped(20 * HUGE..21 * HUGE, Kind::File("/a".to_owned()));
        let mut names = Names { ledger: Some(ledger), ..Names::default() };
        let piece = |addresses: Range<u64>, referenced| Piece {
            resident: addresses.end - addresses.start,
            addresses,
            referenced,
            huge: 0,
            lag_ns: 1_000_000,
        };
        assert!(names.take(&piece(11 * HUGE..13 * HUGE, HUGE), PAGE));
        assert!(!names.take(&piece(20 * HUGE..21 * HUGE, HUGE), PAGE), "files have names of their own");
        assert!(!names.take(&piece(13 * HUGE..15 * HUGE, HUGE), PAGE), "a part is not known");
        let scale = Scale { time_ns: 1_000_000, sweeps: 1, huge: HUGE };
        let mappings = names.mappings(&scale, std::slice::from_ref(&(13 * HUGE..14 * HUGE)), &[]);
        let key = |nth| MappingKey { kind: MappingKind::Anonymous, bytes: Bytes(2 * HUGE), nth };
        assert_eq!(mappings.iter().map(|of| of.key.clone()).collect::<Vec<_>>(), [key(0), key(1)]);
        assert_eq!(mappings[0].cells.at, [1]);
        assert_eq!(mappings[1].cells.at, [0]);
        assert_eq!(mappings[0].cells.misses, mappings[1].cells.misses);
        assert_eq!((mappings[1].unseen[0].offset, mappings[1].unseen[0].bytes), (HUGE, Bytes(HUGE)));
    }
}
