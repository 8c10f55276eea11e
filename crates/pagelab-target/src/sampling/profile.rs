//! Profile of all samples, or the reason why there is none.

use std::collections::{BTreeMap, HashMap};

use pagelab_formats::perf_data::FileInfo;
use pagelab_model::profile::{
    CellCounts, ImageProfile, MappingIdentity, MappingKind, MappingProfile, ProfileSource, ProfilingCost,
    Program, ReuseHistograms, UnseenRange, UnseenReason,
};
use pagelab_model::{Bytes, PageSize, TlbProfile};

use super::image::{PageSamples, SampledImage};
use super::{SampleCollector, SampleCounts};

/// Stray pages that are nearer than this are taken as one mapping.
const UNMAPPED_GAP_MAX: u64 = 64 << 20;

impl SampleCollector {
    /// Why there is no result, in a sentence: no sample has both an address and the outcome in the TLB.
    pub fn explain_unusable(&self) -> Option<String> {
        let SampleCounts { samples, unusable, no_address, unknown_tlb, kernel, hits, page_walks, .. } =
            self.counts;
        if hits + page_walks + kernel > 0 {
            return None;
        }
        let reasons: Vec<&str> = self.unusable_reasons.iter().map(|why| why.describe()).collect();
        Some(match () {
            () if samples == 0 => "it contains no samples".to_owned(),
            () if unusable == samples => reasons.join("; "),
            () if no_address == samples - unusable => format!(
                "all of its {no_address} samples have the data address 0: the event records no addresses; \
                 hint: use perf mem record"
            ),
            () => format!(
                "of its {samples} samples, {no_address} have the data address 0 and {unknown_tlb} have no \
                 TLB data; hint: use perf mem record"
            ),
        })
    }

    /// The profile. Images without samples are left out, but for those that others began as.
    pub fn finish(mut self, source: ProfileSource, file_info: &FileInfo) -> TlbProfile {
        let mut notes = self.build_notes(file_info);
        let page = self.options.page_size;
        let images = std::mem::take(&mut self.images);
        let mut profile_indexes = HashMap::new();
        let mut found = Vec::new();
        for (place, image) in images.iter().enumerate() {
            if image.samples == 0 {
                continue;
            }
            profile_indexes.insert(place, found.len());
            found.push(self.build_image_profile(image));
        }
        for (profile, image) in found.iter_mut().zip(images.iter().filter(|image| image.samples > 0)) {
            profile.parent = image.parent.and_then(|parent| profile_indexes.get(&parent).copied());
        }
        if found.iter().any(|image: &ImageProfile| image.misses == 0) && self.counts.page_walks == 0 {
            notes.push("no sample missed the second-level TLB".to_owned());
        }
        TlbProfile {
            source,
            what_ifs: Vec::new(),
            exit: None,
            command: Vec::new(),
            page_size: page,
            huge: page.block_bytes(page.default_pmd_order()),
            tlb: None,
            walk_cost: None,
            images: found,
            wall_ns: self.first_ns.map_or(0, |first| self.last_ns.saturating_sub(first)),
            effort: ProfilingCost::default(),
            lost: self.lost,
            notes,
        }
    }

    fn build_notes(&self, file_info: &FileInfo) -> Vec<String> {
        let mut notes = Vec::new();
        let counts = self.counts;
        notes.push(format!(
            "{} of {} samples missed the second-level TLB, {} hit a TLB",
            counts.page_walks, counts.samples, counts.hits
        ));
        let mut note_count = |count: u64, what: &str| {
            if count > 0 {
                notes.push(format!("{count} {what}"));
            }
        };
        note_count(counts.no_address, "samples have no address and are not counted");
        note_count(counts.unknown_tlb, "samples do not say what the second-level TLB did");
        note_count(counts.kernel, "samples are in kernel memory and are ignored");
        note_count(counts.out_of_range, "samples are outside the given range");
        note_count(self.lost, "samples or records were lost: the counts are too low");
        note_count(self.throttled, "times the kernel throttled sampling");
        note_count(self.dropped_mappings, "mappings were dropped: there are too many");
        if counts.unweighted > 0 && counts.page_walks > 0 {
            notes.push("no sampling periods: counts are samples, not misses".to_owned());
        }
        if self.options.page_size == PageSize::DEFAULT
            && !["", "x86_64", "i686"].contains(&file_info.arch.as_str())
        {
            notes.push(format!(
                "assuming 4 KiB pages; {} also supports others; hint: use --page-size",
                file_info.arch
            ));
        }
        notes
    }

    fn build_image_profile(&self, image: &SampledImage) -> ImageProfile {
        let grain = self.options.grain.0;
        let mut mappings = Vec::new();
        if let Some(range) = &self.options.range {
            let bytes = range.end - range.start;
            mappings.push(build_placed_mapping(range.start, bytes, grain, build_cells(&image.range_pages)));
            mappings.extend(build_unseen_profiles(image, grain));
        } else {
            for (&place, pages) in &image.pages {
                let Some(image_mapping) = image.mapping(place) else { continue };
                let mapping =
                    build_placed_mapping(image_mapping.start, image_mapping.bytes, grain, build_cells(pages));
                let (kind, bytes) = match image_mapping.kind {
                    MappingKind::Heap => (MappingKind::Heap, 0),
                    ref kind => (kind.clone(), image_mapping.bytes),
                };
                let key = MappingIdentity { kind, bytes: Bytes(bytes), nth: 0 };
                mappings.push(MappingProfile {
                    key,
                    start: image_mapping.start.wrapping_sub(image_mapping.offset),
                    ..mapping
                });
            }
            mappings.extend(build_unmapped_profiles(&image.unmapped_pages, grain));
        }
        number_mappings(&mut mappings);
        let program = Program { path: image.path.clone(), bytes: None, identity: image.build_id.clone() };
        let name = if image.name.is_empty() { image.path.clone() } else { image.name.clone() };
        ImageProfile {
            pid: image.pid,
            begun: image.begun,
            program,
            arguments: if name.is_empty() { Vec::new() } else { vec![name] },
            misses: image.misses,
            mappings,
            ..ImageProfile::default()
        }
    }
}

/// A mapping that is known by its place.
fn build_placed_mapping(start: u64, bytes: u64, grain: u64, cells: CellCounts) -> MappingProfile {
    MappingProfile {
        key: MappingIdentity { kind: MappingKind::Placed, bytes: Bytes(bytes), nth: 0 },
        start,
        bytes: Bytes(bytes),
        grain: Bytes(grain),
        cells,
        reuse: ReuseHistograms::default(),
        unseen: Vec::new(),
    }
}

fn build_cells(pages: &BTreeMap<u64, PageSamples>) -> CellCounts {
    let node = match pages.values().any(|page| page.node.is_some()) {
        true => pages.values().map(|page| page.node.unwrap_or(CellCounts::NO_NODE)).collect(),
        false => Vec::new(),
    };
    let misses = pages.values().map(|page| page.misses).collect();
    CellCounts { at: pages.keys().copied().collect(), misses, node, ..CellCounts::default() }
}

/// Pages outside of known mappings, as mappings by their place.
fn build_unmapped_profiles(pages: &BTreeMap<u64, PageSamples>, grain: u64) -> Vec<MappingProfile> {
    cluster_pages(pages.keys().copied(), grain)
        .into_iter()
        .map(|(first, last)| {
            let part = pages.range(first..=last).map(|(&at, &page)| (at, page)).collect();
            build_placed_mapping(first * grain, (last - first + 1) * grain, grain, build_cells(&part))
        })
        .collect()
}

/// Mappings and stray pages outside of the requested range: sampled, and not profiled.
fn build_unseen_profiles(image: &SampledImage, grain: u64) -> Vec<MappingProfile> {
    let mapping_ranges = image.outside_mappings.keys().filter_map(|&place| image.mapping(place));
    let unmapped_ranges = cluster_pages(image.outside_unmapped_pages.keys().copied(), grain);
    let ranges = mapping_ranges
        .map(|of| (of.start, of.bytes))
        .chain(unmapped_ranges.into_iter().map(|(first, last)| (first * grain, (last - first + 1) * grain)));
    ranges
        .map(|(start, bytes)| MappingProfile {
            unseen: vec![UnseenRange { offset: start, bytes: Bytes(bytes), why: UnseenReason::OutOfRange }],
            ..build_placed_mapping(start, bytes, grain, CellCounts::default())
        })
        .collect()
}

/// First and last page of each group of nearby pages.
fn cluster_pages(pages: impl Iterator<Item = u64>, grain: u64) -> Vec<(u64, u64)> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    for at in pages {
        match found.last_mut() {
            Some((_, last)) if at - *last <= UNMAPPED_GAP_MAX / grain => *last = at,
            _ => found.push((at, at)),
        }
    }
    found
}

/// Which one of those with equal kind and length each is.
fn number_mappings(mappings: &mut [MappingProfile]) {
    let mut counts: HashMap<(MappingKind, u64), u32> = HashMap::new();
    for mapping in mappings {
        let count = counts.entry((mapping.key.kind.clone(), mapping.key.bytes.0)).or_default();
        mapping.key.nth = *count;
        *count += 1;
    }
}
