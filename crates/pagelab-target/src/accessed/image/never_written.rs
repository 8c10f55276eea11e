//! What an image has of memory that was read and never written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;

use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_sys::pagemap_scan;
use pagelab_tlb::engine::ledger::MappingId;

use super::super::sweep;
use super::super::zeros::looks::{Dropped, Looking};
use super::super::zeros::{Place, eligible, reach};
use super::{Image, Scale};
use crate::drops::Used;

/// Places in which the page of zeros is mapped, of one mapping, that are told one by one.
const PARTS_MAX: usize = 256;

/// Walks in never-written regions, by their names and offsets, and by their addresses.
pub(super) type NamedWalks = Vec<(MappingId, Range<u64>, u64)>;
pub(super) type PlacedWalks = BTreeMap<(u64, u64), u64>;

/// Never-written parts of each extent, by where it begins.
type Parts = BTreeMap<u64, Vec<Range<u64>>>;

impl Image {
    /// Lists what was never written of memory whose entries may be dropped, and takes in how the address
    /// space looks now: by one look at the page tables for both.
    pub fn list_zeros(&mut self, root: &Root, huge: u64) -> io::Result<()> {
        let gone = |_| io::Error::from(io::ErrorKind::NotFound);
        let mappings = sweep::mappings(root, self.process.pid).map_err(gone)?;
        let pagemap = File::open(paths::process(self.process.pid, "pagemap"))?;
        self.look(&mappings);
        let (extents, mut parts) = (&self.extents, Parts::new());
        self.zeros.list(&pagemap, &mappings, huge, |part| {
            if let Some((start, extent)) = extents.range(..=part.start).next_back()
                && part.start < extent.addresses.end
            {
                add(parts.entry(*start).or_default(), part);
            }
        })?;
        self.has_zeros(parts);
        Ok(())
    }

    /// Looks for the page of zeros (Linux 6.7; before, it is not told).
    pub(super) fn look_for_zeros(&mut self) {
        let Ok(pagemap) = File::open(paths::process(self.process.pid, "pagemap")) else { return };
        let mut parts = Parts::new();
        let own = self.extents.iter().filter(|(_, of)| !of.is_shared && eligible::is_own(&of.name));
        for (start, extent) in own {
            let _ = pagemap_scan::zero_parts(&pagemap, extent.addresses.clone(), |part| {
                add(parts.entry(*start).or_default(), part.addresses);
            });
        }
        self.has_zeros(parts);
    }

    /// What is known of an extent stays where nothing was found now.
    fn has_zeros(&mut self, parts: Parts) {
        for (start, parts) in parts {
            if let Some(extent) = self.extents.get_mut(&start) {
                extent.zero = parts;
            }
        }
    }

    /// Looks what is back of dropped entries; the share of the hottest runs.
    pub fn look_at_dropped(&mut self, dropped: &mut [Dropped], looking: &Looking) -> io::Result<u64> {
        let pagemap = File::open(paths::process(self.process.pid, "pagemap"))?;
        self.zeros.look(&pagemap, dropped, &self.names, looking)
    }

    /// What part of the time its CPU time is.
    pub fn usual(&mut self, now: Used) -> f64 {
        if self.zeros.is_new() {
            // Since it was first seen.
            let lived_ns = u64::try_from(self.began.0.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let at_ns = now.at_ns.saturating_sub(lived_ns);
            self.zeros.usual(Used { at_ns, cpu_ns: self.cpu_ns.0, faults: 0 });
        }
        self.zeros.usual(now)
    }

    /// The same as [`Image::swept`] for regions of which entries were dropped.
    pub fn scanned(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        // Which of them find their page in the TLB is left out: it changes little in their order.
        let zeros = self.zeros.walks(self.ran_ns(), Some(0.0)).filter(|(_, walks, _)| *walks > 0);
        zeros.map(|(_, walks, error)| (walks, error))
    }

    /// Never-written regions and their walks: with names, and by address.
    pub(super) fn zero_walks(&self, scale: &Scale, entries: Option<u64>) -> (NamedWalks, PlacedWalks) {
        let swept = self.all_regions().map(|region| (region.seen.pages(), region.seen.page_rate()));
        let groups: Vec<(u64, f64)> = self.zeros.rates().chain(swept).collect();
        let stays = entries.map_or(Some(0.0), |entries| reach::residence_ns(&groups, entries));
        let (mut named, mut placed) = (Vec::new(), BTreeMap::new());
        for (place, walks, _) in self.zeros.walks(scale.time_ns, stays) {
            match place {
                Place::Named(mapping, from, to) => named.push((*mapping, *from..*to, walks)),
                Place::At(from, to) => *placed.entry((*from, *to)).or_default() += walks,
            }
        }
        (named, placed)
    }
}

/// Adds a part behind the others.
fn add(parts: &mut Vec<Range<u64>>, part: Range<u64>) {
    if let Some(last) = parts.last_mut().filter(|last| last.end == part.start) {
        last.end = part.end;
    } else if parts.len() < PARTS_MAX {
        parts.push(part);
    }
}
