//! A profile of very much memory has larger cells.

use pagelab_model::profile::{Cells, MappingProfile};
use pagelab_model::{Bytes, Profile};

/// Cells of a profile at most; beyond them cells are made larger. 4 Mi cells are 16 GiB of base pages.
const CELLS_MOST: usize = 4 << 20;
/// How many times larger a cell is made at once.
const STEP: u64 = 16;

/// Makes cells larger until there are few enough, and says so.
pub fn bound(profile: &mut Profile) {
    bound_to(profile, CELLS_MOST);
}

fn bound_to(profile: &mut Profile, most: usize) {
    let count = |profile: &Profile| -> usize {
        profile.images.iter().flat_map(|image| &image.mappings).map(|mapping| mapping.cells.at.len()).sum()
    };
    let pages = count(profile);
    let mut grain = profile.page_size.bytes();
    while count(profile) > most && grain < profile.huge.0 {
        grain = (grain * STEP).min(profile.huge.0);
        let mappings = profile.images.iter_mut().flat_map(|image| &mut image.mappings);
        mappings.for_each(|mapping| enlarge(mapping, grain));
    }
    if grain > profile.page_size.bytes() {
        let kib = grain >> 10;
        profile.notes.push(format!(
            "{pages} pages were touched, more than the {most} cells of a profile: a cell stands for {kib} KiB"
        ));
    }
}

fn enlarge(mapping: &mut MappingProfile, grain: u64) {
    let times = grain / mapping.grain.0.max(1);
    let old = std::mem::take(&mut mapping.cells);
    let mut new = Cells::default();
    for (index, at) in old.at.iter().enumerate() {
        if new.at.last() != Some(&(at / times)) {
            new.at.push(at / times);
            new.misses.push(0);
            new.accesses.push(0);
            new.written.push(0);
        }
        let last = new.at.len() - 1;
        new.misses[last] += old.misses[index];
        new.accesses[last] += old.accesses.get(index).copied().unwrap_or(0);
        new.written[last] |= old.written.get(index).copied().unwrap_or(0);
    }
    (mapping.cells, mapping.grain) = (new, Bytes(grain));
}
