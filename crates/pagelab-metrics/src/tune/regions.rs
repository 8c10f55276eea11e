//! Misses by huge region before and under a plan, from two profiles of the same program.

use std::collections::{BTreeMap, BTreeSet};

use pagelab_model::Profile;
use pagelab_model::profile::{MappingKey, MappingKind, MappingProfile};
use pagelab_model::tune::Tune;

/// Misses of one region of the size of a huge page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The process image that it belongs to, by its place in the profile.
    pub image: usize,
    /// Its mapping.
    pub key: MappingKey,
    /// Its first byte, counted from the mapping's first; below 0 where a huge page there begins before it.
    pub offset: i64,
    /// Misses without huge pages.
    pub before: u64,
    /// Misses under the plan; `None` where they were not recounted.
    pub after: Option<u64>,
    /// Whether it is planned.
    pub is_planned: bool,
}

/// Where a region is: image, mapping, offset.
type Place = (usize, MappingKey, i64);

/// The regions of a profile on the grid of the profiled run, most misses first.
pub fn regions(tune: &Tune, before: &Profile) -> Vec<Region> {
    let huge = i64::try_from(tune.huge).unwrap_or(i64::MAX).max(1);
    let planned = planned(tune, before);
    let recounted = tune.after.as_deref().map(|after| counted(after, huge));
    let region = |((image, key, offset), before): (Place, u64)| {
        let place = (image, key.clone(), offset);
        let after = recounted.as_ref().map(|found| found.get(&place).copied().unwrap_or(0));
        let is_planned = planned.contains(&place);
        Region { image, key, offset, before, after, is_planned }
    };
    let mut found: Vec<Region> = counted(before, huge).into_iter().map(region).collect();
    found.sort_by(|a, b| b.before.cmp(&a.before).then(a.offset.cmp(&b.offset)));
    found
}

/// The address that offset 0 of a mapping has.
fn base(key: &MappingKey, start: u64) -> i64 {
    match key.kind {
        MappingKind::Placed => 0,
        _ => i64::try_from(start).unwrap_or(0),
    }
}

fn counted(profile: &Profile, huge: i64) -> BTreeMap<Place, u64> {
    let mut found = BTreeMap::new();
    for (image, of) in profile.images.iter().enumerate() {
        for mapping in &of.mappings {
            let base = base(&mapping.key, mapping.start);
            for (at, misses) in mapping.cells.at.iter().zip(&mapping.cells.misses) {
                let offset = offset_of_cell(mapping, *at);
                let region = (base.saturating_add(offset)).div_euclid(huge).saturating_mul(huge) - base;
                let sum: &mut u64 = found.entry((image, mapping.key.clone(), region)).or_default();
                *sum = sum.saturating_add(*misses);
            }
        }
    }
    found
}

fn offset_of_cell(mapping: &MappingProfile, at: u64) -> i64 {
    i64::try_from(at.saturating_mul(mapping.grain.0)).unwrap_or(i64::MAX)
}

/// Planned regions lie on the grid of the same run, in the image of their program.
fn planned(tune: &Tune, profile: &Profile) -> BTreeSet<Place> {
    let mut planned = BTreeSet::new();
    for program in &tune.plan.programs {
        let same = |image: &usize| profile.images[*image].program == program.program;
        for image in (0..profile.images.len()).filter(same) {
            for mapping in &program.mappings {
                let offsets = mapping.regions.iter().map(|region| region.offset);
                let offset = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
                planned.extend(offsets.map(|at| (image, mapping.key.clone(), offset(at))));
            }
        }
    }
    planned
}
