//! Profile of samples with data addresses, from a perf file or from the kernel's ring.
//!
//! A sample counts as a miss by what its event is ([`tlb_info`]): each sample of an event that counts misses
//! of the second-level TLB, or those with a miss in the TLB column. A sample without an address never counts.
//! It represents as many misses as its period.

pub mod file;
mod image;
mod profile;
#[cfg(test)]
mod tests;
pub mod tlb_info;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use pagelab_formats::perf_data::{Event, FileInfo, Sample, TlbOutcome};
use pagelab_model::profile::ImageStart;
use pagelab_model::{Bytes, PageSize};

use image::SampledImage;
use tlb_info::{TlbInfo, UnusableReason};

/// Options for samples.
#[derive(Clone, Debug)]
pub struct SamplingOptions {
    /// Only these addresses, as one mapping.
    pub range: Option<Range<u64>>,
    /// The base page of the machine that was sampled.
    pub page_size: PageSize,
    /// Bytes of a cell: the base page, or more if a text has whole regions only.
    pub grain: Bytes,
}

impl SamplingOptions {
    /// By base pages.
    pub fn new(page_size: PageSize, range: Option<Range<u64>>) -> SamplingOptions {
        SamplingOptions { range, page_size, grain: Bytes(page_size.bytes()) }
    }
}

/// Counts of samples.
#[derive(Clone, Copy, Debug, Default)]
struct SampleCounts {
    samples: u64,
    /// Samples of events without TLB data or address.
    unusable: u64,
    /// Those with the address 0: the hardware had none.
    no_address: u64,
    /// Samples without TLB data.
    unknown_tlb: u64,
    /// Those of the kernel's own addresses.
    kernel: u64,
    /// Samples that hit a TLB, at any level.
    hits: u64,
    page_walks: u64,
    /// Those outside of the range that was given; they are hits or walks too.
    out_of_range: u64,
    /// Those that count once, because their weight is in no period: a frequency was set, no period recorded.
    unweighted: u64,
}

/// Collects samples.
#[derive(Debug)]
pub struct SampleCollector {
    options: SamplingOptions,
    /// The TLB information in each event's samples.
    tlb_infos: Vec<TlbInfo>,
    unusable_reasons: BTreeSet<UnusableReason>,
    images: Vec<SampledImage>,
    /// The image that each process runs now.
    current: HashMap<u32, usize>,
    counts: SampleCounts,
    lost: u64,
    throttled: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    /// Mappings that are kept for all images together.
    mapping_count: usize,
    /// Mappings that were not kept, since there are too many.
    dropped_mappings: u64,
}

/// Mappings of all images, at most: 1 GB of them.
const MAPPINGS_MAX: usize = 8 << 20;
/// Images, at most.
const IMAGES_MAX: usize = 1 << 20;

/// One access that was sampled.
#[derive(Clone, Copy, Debug)]
pub struct SampledAccess {
    /// Process.
    pub pid: u32,
    /// Data address.
    pub address: u64,
    /// The outcome in the TLB.
    pub outcome: TlbOutcome,
    /// Number of accesses that it represents.
    pub weight: u64,
    /// NUMA node of the page, if known.
    pub node: Option<u32>,
}

impl SampleCollector {
    /// A collector without samples.
    pub fn new(options: SamplingOptions) -> SampleCollector {
        SampleCollector {
            options,
            tlb_infos: Vec::new(),
            unusable_reasons: BTreeSet::new(),
            images: Vec::new(),
            current: HashMap::new(),
            counts: SampleCounts::default(),
            lost: 0,
            throttled: 0,
            first_ns: None,
            last_ns: 0,
            mapping_count: 0,
            dropped_mappings: 0,
        }
    }

    /// Samples that were lost are known from elsewhere too: a text, an auxiliary trace.
    pub fn add_lost(&mut self, records: u64) {
        self.lost = self.lost.saturating_add(records);
    }

    /// Adds an event.
    pub fn add_event(&mut self, file_info: &FileInfo, event: Event) {
        match event {
            Event::Sample(sample) => self.add_sample(file_info, &sample),
            Event::Mapped(mapping) if !mapping.is_kernel && mapping.pid != u32::MAX => {
                let is_full = self.mapping_count >= MAPPINGS_MAX;
                let image = self.find_or_add_image(mapping.pid);
                let added = if is_full { 0 } else { image.add_mapping(&mapping, file_info) };
                self.mapping_count += added;
                self.dropped_mappings += u64::from(is_full);
            }
            Event::Named { pid, name, is_exec: true, .. } => self.add_exec(pid, name),
            Event::Named { pid, tid, name, .. } if pid == tid && pid != 0 => {
                self.find_or_add_image(pid).name = name;
            }
            Event::Forked { pid, parent, inherits_mappings: true } if pid != parent => {
                self.add_fork(pid, parent)
            }
            Event::Ended { pid, tid } if pid == tid => {
                if let Some(image) = self.current.remove(&pid).and_then(|place| self.images.get_mut(place)) {
                    self.mapping_count = self.mapping_count.saturating_sub(image.discard_unsampled());
                }
            }
            Event::Lost { records } => self.add_lost(records),
            Event::LostSamples { samples } => self.add_lost(samples),
            Event::Throttled => self.throttled += 1,
            Event::Mapped(_) | Event::Named { .. } | Event::Forked { .. } | Event::Ended { .. } => {}
        }
    }

    fn find_or_add_image(&mut self, pid: u32) -> &mut SampledImage {
        let image_index = match self.current.get(&pid) {
            Some(&place) => place,
            None => self.add_image(pid, SampledImage { pid, ..SampledImage::default() }),
        };
        &mut self.images[image_index]
    }

    fn add_image(&mut self, pid: u32, image: SampledImage) -> usize {
        // Beyond the limit all further processes are one.
        let image_index = if self.images.len() < IMAGES_MAX { self.images.len() } else { IMAGES_MAX - 1 };
        if image_index == self.images.len() {
            self.images.push(image);
        }
        self.current.insert(pid, image_index);
        image_index
    }

    fn add_exec(&mut self, pid: u32, name: String) {
        let old = self.current.get(&pid).copied();
        if let Some(image) = old.and_then(|place| self.images.get_mut(place)) {
            self.mapping_count = self.mapping_count.saturating_sub(image.discard_unsampled());
        }
        let begun = if old.is_some() { ImageStart::Executed } else { ImageStart::Attached };
        self.add_image(pid, SampledImage { pid, parent: old, begun, name, ..SampledImage::default() });
    }

    fn add_fork(&mut self, pid: u32, parent: u32) {
        if let Some(&place) = self.current.get(&parent)
            && let Some(parent_image) = self.images.get(place)
        {
            let child = parent_image.fork(pid, place);
            self.add_image(pid, child);
        }
    }

    fn add_sample(&mut self, file_info: &FileInfo, sample: &Sample) {
        self.counts.samples += 1;
        if let Some(time) = sample.time_ns.filter(|&time| time > 0) {
            self.first_ns.get_or_insert(time);
            self.last_ns = self.last_ns.max(time);
        }
        if self.tlb_infos.len() != file_info.events.len() {
            self.tlb_infos =
                (0..file_info.events.len()).map(|event| tlb_info::classify_event(file_info, event)).collect();
        }
        let Some(event) = file_info.events.get(sample.event_index) else { return };
        let outcome = match self.tlb_infos.get(sample.event_index) {
            Some(TlbInfo::Unusable(why)) => {
                self.counts.unusable += 1;
                self.unusable_reasons.insert(*why);
                return;
            }
            Some(meaning) => meaning.tlb_outcome(sample),
            None => return,
        };
        let fixed = (!event.attr.is_frequency()).then_some(event.attr.period_or_frequency);
        let weight = sample.period.or(fixed).filter(|&period| period > 0);
        self.counts.unweighted += u64::from(weight.is_none());
        let node =
            sample.physical_address.filter(|&physical| physical != 0).and_then(|at| file_info.node(at));
        self.add_access(&SampledAccess {
            pid: sample.pid,
            address: tlb_info::strip_address_tag(&file_info.arch, sample.address),
            outcome,
            weight: weight.unwrap_or(1),
            node: node.and_then(|node| u32::try_from(node).ok()),
        });
    }

    /// Adds a sample of a text, which has no mappings and no periods.
    pub fn add_text_sample(&mut self, name: &str, access: &SampledAccess) {
        self.counts.samples += 1;
        self.counts.unweighted += 1;
        if access.pid != 0 && !self.current.contains_key(&access.pid) {
            let image = SampledImage { pid: access.pid, name: name.to_owned(), ..SampledImage::default() };
            self.add_image(access.pid, image);
        }
        self.add_access(access);
    }

    /// Samples of a text are of no use, and why.
    pub fn add_unusable_text_samples(&mut self, why: UnusableReason, samples: u64) {
        self.counts.samples = self.counts.samples.saturating_add(samples);
        self.counts.unusable = self.counts.unusable.saturating_add(samples);
        self.unusable_reasons.insert(why);
    }

    fn add_access(&mut self, access: &SampledAccess) {
        let is_page_walk = match access.outcome {
            _ if access.address == 0 => {
                self.counts.no_address += 1;
                return;
            }
            TlbOutcome::Unknown | TlbOutcome::FirstLevelMiss => {
                self.counts.unknown_tlb += 1;
                return;
            }
            _ if tlb_info::is_kernel(access.address) => {
                self.counts.kernel += 1;
                return;
            }
            TlbOutcome::Hit => {
                self.counts.hits += 1;
                false
            }
            TlbOutcome::PageWalk => {
                self.counts.page_walks += 1;
                true
            }
        };
        let (grain, range) = (self.options.grain.0, self.options.range.clone());
        let inside = range.as_ref().is_none_or(|range| range.contains(&access.address));
        self.counts.out_of_range += u64::from(!inside);
        let misses = if is_page_walk { access.weight } else { 0 };
        let image = self.find_or_add_image(access.pid);
        image.add_sample(access.address, grain, misses, access.node, range.as_ref());
    }
}
