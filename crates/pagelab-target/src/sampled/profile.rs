//! The profile of what was sampled, or why there is none.

use std::collections::{BTreeMap, HashMap};

use pagelab_formats::perf_data::About;
use pagelab_model::profile::{
    Cells, Effort, ImageProfile, MappingKey, MappingKind, MappingProfile, ProfileSource, Program, Reuse,
    Unseen, UnseenWhy,
};
use pagelab_model::{Bytes, PageSize, Profile};

use super::image::{Image, Page};
use super::{Sampled, Seen};

/// Stray pages that are nearer than this are taken as one mapping.
const STRAY_GAP: u64 = 64 << 20;

impl Sampled {
    /// Why nothing can be said, in a sentence: no sample tells both an address and what the TLB did.
    pub fn refusal(&self) -> Option<String> {
        let Seen { samples, of_no_use, no_address, unsaid, kernel, hits, walked, .. } = self.seen;
        if hits + walked + kernel > 0 {
            return None;
        }
        let because: Vec<&str> = self.refused.iter().map(|why| why.sentence()).collect();
        Some(match () {
            () if samples == 0 => "it has no samples at all".to_owned(),
            () if of_no_use == samples => because.join("; "),
            () if no_address == samples - of_no_use => format!(
                "all of its {no_address} samples have the data address 0: the event tells no addresses, \
                 although they were asked for; record with perf mem record"
            ),
            () => format!(
                "of its {samples} samples, {no_address} have the data address 0 and {unsaid} do not say \
                 what the TLB did; record with perf mem record"
            ),
        })
    }

    /// The profile. Images without samples are left out, but for those that others began as.
    pub fn finish(mut self, source: ProfileSource, about: &About) -> Profile {
        let mut notes = self.notes(about);
        let page = self.options.page_size;
        let images = std::mem::take(&mut self.images);
        let mut places = HashMap::new();
        let mut found = Vec::new();
        for (place, image) in images.iter().enumerate() {
            if image.samples == 0 {
                continue;
            }
            places.insert(place, found.len());
            found.push(self.image_profile(image));
        }
        for (profile, image) in found.iter_mut().zip(images.iter().filter(|image| image.samples > 0)) {
            profile.parent = image.parent.and_then(|parent| places.get(&parent).copied());
        }
        if found.iter().any(|image: &ImageProfile| image.misses == 0) && self.seen.walked == 0 {
            notes.push("no sample missed the second-level TLB".to_owned());
        }
        Profile {
            source,
            what_ifs: Vec::new(),
            exit: None,
            command: Vec::new(),
            page_size: page,
            huge: page.block(page.usual_pmd_order()),
            tlb: None,
            walk_cost: None,
            images: found,
            wall_ns: self.first_ns.map_or(0, |first| self.last_ns.saturating_sub(first)),
            effort: Effort::default(),
            lost: self.lost,
            notes,
        }
    }

    fn notes(&self, about: &About) -> Vec<String> {
        let mut notes = Vec::new();
        let Seen { samples, no_address, unsaid, kernel, hits, walked, out_of_range, unweighed, .. } =
            self.seen;
        notes.push(format!(
            "{walked} of {samples} samples missed the second-level TLB, {hits} found a translation in a TLB"
        ));
        let mut say = |count: u64, what: &str| {
            if count > 0 {
                notes.push(format!("{count} {what}"));
            }
        };
        say(no_address, "samples have no address and count nowhere");
        say(unsaid, "samples do not say what the second-level TLB did");
        say(kernel, "samples are of the kernel's own memory and count nowhere");
        say(out_of_range, "samples lie outside of the given range");
        say(self.lost, "samples or records were lost: what is counted is less than what was");
        say(self.throttled, "times the kernel stopped sampling for a moment, since it took too much time");
        say(self.dropped, "mappings were not kept, since there are too many of them");
        if unweighed > 0 && walked > 0 {
            notes.push("periods are not told: counts are of samples, not of misses".to_owned());
        }
        if self.options.page_size == PageSize::USUAL && !["", "x86_64", "i686"].contains(&about.arch.as_str())
        {
            notes.push(format!(
                "pages of 4 KiB are assumed; {} has others too: say --page-size if it had",
                about.arch
            ));
        }
        notes
    }

    fn image_profile(&self, image: &Image) -> ImageProfile {
        let grain = self.options.grain.0;
        let mut mappings = Vec::new();
        if let Some(range) = &self.options.range {
            let bytes = range.end - range.start;
            mappings.push(placed(range.start, bytes, grain, cells(&image.ranged)));
            mappings.extend(outside(image, grain));
        } else {
            for (&place, pages) in &image.pages {
                let Some(of) = image.mapping(place) else { continue };
                let mapping = placed(of.start, of.bytes, grain, cells(pages));
                let (kind, bytes) = match of.kind {
                    MappingKind::Heap => (MappingKind::Heap, 0),
                    ref kind => (kind.clone(), of.bytes),
                };
                let key = MappingKey { kind, bytes: Bytes(bytes), nth: 0 };
                mappings.push(MappingProfile { key, start: of.start.wrapping_sub(of.offset), ..mapping });
            }
            mappings.extend(strays(&image.strays, grain));
        }
        number(&mut mappings);
        let program = Program { path: image.path.clone(), bytes: None, identity: image.build_id.clone() };
        let name = if image.name.is_empty() { image.path.clone() } else { image.name.clone() };
        ImageProfile {
            pid: image.pid,
            parent: None,
            begun: image.begun,
            program,
            arguments: if name.is_empty() { Vec::new() } else { vec![name] },
            accesses: None,
            instructions: None,
            misses: image.misses,
            mappings,
        }
    }
}

/// A mapping that is known by its place.
fn placed(start: u64, bytes: u64, grain: u64, cells: Cells) -> MappingProfile {
    MappingProfile {
        key: MappingKey { kind: MappingKind::Placed, bytes: Bytes(bytes), nth: 0 },
        start,
        bytes: Bytes(bytes),
        grain: Bytes(grain),
        cells,
        reuse: Reuse::default(),
        unseen: Vec::new(),
    }
}

fn cells(pages: &BTreeMap<u64, Page>) -> Cells {
    let node = match pages.values().any(|page| page.node.is_some()) {
        true => pages.values().map(|page| page.node.unwrap_or(Cells::NO_NODE)).collect(),
        false => Vec::new(),
    };
    let misses = pages.values().map(|page| page.misses).collect();
    Cells { at: pages.keys().copied().collect(), misses, node, ..Cells::default() }
}

/// Pages outside of known mappings, as mappings by their place.
fn strays(pages: &BTreeMap<u64, Page>, grain: u64) -> Vec<MappingProfile> {
    clusters(pages.keys().copied(), grain)
        .into_iter()
        .map(|(first, last)| {
            let part = pages.range(first..=last).map(|(&at, &page)| (at, page)).collect();
            placed(first * grain, (last - first + 1) * grain, grain, cells(&part))
        })
        .collect()
}

/// Mappings and stray pages outside of the range that was asked for: sampled, and not looked at.
fn outside(image: &Image, grain: u64) -> Vec<MappingProfile> {
    let of_mappings = image.outside.keys().filter_map(|&place| image.mapping(place));
    let of_strays = clusters(image.outside_strays.keys().copied(), grain);
    let stretches = of_mappings
        .map(|of| (of.start, of.bytes))
        .chain(of_strays.into_iter().map(|(first, last)| (first * grain, (last - first + 1) * grain)));
    stretches
        .map(|(start, bytes)| MappingProfile {
            unseen: vec![Unseen { offset: start, bytes: Bytes(bytes), why: UnseenWhy::OutOfRange }],
            ..placed(start, bytes, grain, Cells::default())
        })
        .collect()
}

/// First and last page of each group of pages that lie near each other.
fn clusters(pages: impl Iterator<Item = u64>, grain: u64) -> Vec<(u64, u64)> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    for at in pages {
        match found.last_mut() {
            Some((_, last)) if at - *last <= STRAY_GAP / grain => *last = at,
            _ => found.push((at, at)),
        }
    }
    found
}

/// Which one of those with equal kind and length each is.
fn number(mappings: &mut [MappingProfile]) {
    let mut counts: HashMap<(MappingKind, u64), u32> = HashMap::new();
    for mapping in mappings {
        let count = counts.entry((mapping.key.kind.clone(), mapping.key.bytes.0)).or_default();
        mapping.key.nth = *count;
        *count += 1;
    }
}
