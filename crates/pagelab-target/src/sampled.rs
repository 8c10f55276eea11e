//! Samples with data addresses, from a file of perf or from the kernel's ring, made into a profile.
//!
//! A sample counts as a miss by what its event is ([`meaning`]): each sample of an event that counts misses
//! of the second-level TLB, or those whose TLB column says so. A sample without an address never counts. It
//! stands for as many misses as its period says.

pub mod file;
mod image;
pub mod meaning;
mod profile;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use pagelab_formats::perf_data::{About, Answer, Event, Sample};
use pagelab_model::{Bytes, PageSize};

use image::Image;
use meaning::{Meaning, Refused};

/// What is done with samples.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only these addresses are wanted, as one mapping.
    pub range: Option<Range<u64>>,
    /// The base page of the machine that was sampled.
    pub page_size: PageSize,
    /// Bytes of a cell: the base page, or more where a text tells whole regions alone.
    pub grain: Bytes,
}

impl Options {
    /// By base pages.
    pub fn new(page_size: PageSize, range: Option<Range<u64>>) -> Options {
        Options { range, page_size, grain: Bytes(page_size.bytes()) }
    }
}

/// What the samples were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// All samples.
    pub samples: u64,
    /// Those of events that say nothing about the TLB or an address.
    pub of_no_use: u64,
    /// Those with the address 0: the hardware had none.
    pub no_address: u64,
    /// Those that say nothing about the TLB.
    pub unsaid: u64,
    /// Those of the kernel's own addresses.
    pub kernel: u64,
    /// Those that found a translation in the TLB, on whatever level.
    pub hits: u64,
    /// Those that walked the page tables.
    pub walked: u64,
    /// Those outside of the range that was given; they are hits or walks too.
    pub out_of_range: u64,
    /// Those that stand for as many events as their period says; the others count once.
    pub weighed: u64,
    /// Those whose weight is in no period: a frequency was set and no period recorded.
    pub unweighed: u64,
}

/// Collects samples.
#[derive(Debug)]
pub struct Sampled {
    options: Options,
    /// What each event's samples mean.
    meanings: Vec<Meaning>,
    refused: BTreeSet<Refused>,
    images: Vec<Image>,
    /// The image that each process runs now.
    current: HashMap<u32, usize>,
    seen: Seen,
    lost: u64,
    throttled: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    /// Mappings that are kept for all images together.
    kept: usize,
    /// Mappings that were not kept, since there are too many.
    dropped: u64,
}

/// Mappings of all images, at most: 1 GB of them.
const KEPT_MAX: usize = 8 << 20;
/// Images, at most.
const IMAGES_MAX: usize = 1 << 20;

/// One access that was sampled.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// Process.
    pub pid: u32,
    /// Data address.
    pub address: u64,
    /// What the TLB did.
    pub answer: Answer,
    /// How many accesses of its kind it stands for.
    pub stands_for: u64,
    /// The node that the page lies on, where it is known.
    pub node: Option<u32>,
}

impl Sampled {
    /// Nothing is sampled yet.
    pub fn new(options: Options) -> Sampled {
        Sampled {
            options,
            meanings: Vec::new(),
            refused: BTreeSet::new(),
            images: Vec::new(),
            current: HashMap::new(),
            seen: Seen::default(),
            lost: 0,
            throttled: 0,
            first_ns: None,
            last_ns: 0,
            kept: 0,
            dropped: 0,
        }
    }

    /// What the samples were so far.
    pub fn seen(&self) -> Seen {
        self.seen
    }

    /// Samples that were lost are known from elsewhere too: a text, an auxiliary trace.
    pub fn add_lost(&mut self, records: u64) {
        self.lost = self.lost.saturating_add(records);
    }

    /// Takes one event in.
    pub fn take(&mut self, about: &About, event: Event) {
        match event {
            Event::Sample(sample) => self.sample(about, &sample),
            Event::Mapped(mapping) if !mapping.kernel && mapping.pid != u32::MAX => {
                let place = self.image(mapping.pid);
                if self.kept >= KEPT_MAX {
                    self.dropped += 1;
                } else if let Some(image) = self.images.get_mut(place) {
                    self.kept += image.map(&mapping, about);
                }
            }
            Event::Named { pid, name, exec: true, .. } => self.exec(pid, name),
            Event::Named { pid, tid, name, .. } if pid == tid && pid != 0 => {
                let place = self.image(pid);
                if let Some(image) = self.images.get_mut(place) {
                    image.name = name;
                }
            }
            Event::Forked { pid, parent, keeps: true } if pid != parent => self.fork(pid, parent),
            Event::Ended { pid, tid } if pid == tid => {
                if let Some(image) = self.current.remove(&pid).and_then(|place| self.images.get_mut(place)) {
                    self.kept = self.kept.saturating_sub(image.end());
                }
            }
            Event::Lost { records } => self.add_lost(records),
            Event::LostSamples { samples } => self.add_lost(samples),
            Event::Throttled => self.throttled += 1,
            Event::Mapped(_) | Event::Named { .. } | Event::Forked { .. } | Event::Ended { .. } => {}
        }
    }

    fn image(&mut self, pid: u32) -> usize {
        if let Some(&place) = self.current.get(&pid) {
            return place;
        }
        self.begin(pid, Image::attached(pid))
    }

    fn begin(&mut self, pid: u32, image: Image) -> usize {
        // Beyond the limit all further processes are one.
        let place = if self.images.len() < IMAGES_MAX { self.images.len() } else { IMAGES_MAX - 1 };
        if place == self.images.len() {
            self.images.push(image);
        }
        self.current.insert(pid, place);
        place
    }

    fn exec(&mut self, pid: u32, name: String) {
        let old = self.current.get(&pid).copied();
        if let Some(image) = old.and_then(|place| self.images.get_mut(place)) {
            self.kept = self.kept.saturating_sub(image.end());
        }
        self.begin(pid, Image::executed(pid, old, name));
    }

    fn fork(&mut self, pid: u32, parent: u32) {
        let Some((&place, of)) =
            self.current.get(&parent).and_then(|place| Some((place, self.images.get(*place)?)))
        else {
            return;
        };
        let child = of.forked(pid, place);
        self.begin(pid, child);
    }

    fn sample(&mut self, about: &About, sample: &Sample) {
        self.seen.samples += 1;
        if let Some(time) = sample.time.filter(|&time| time > 0) {
            self.first_ns.get_or_insert(time);
            self.last_ns = self.last_ns.max(time);
        }
        if self.meanings.len() != about.events.len() {
            self.meanings = (0..about.events.len()).map(|event| meaning::of(about, event)).collect();
        }
        let Some(event) = about.events.get(sample.event) else { return };
        let answer = match self.meanings.get(sample.event) {
            Some(Meaning::No(why)) => {
                self.seen.of_no_use += 1;
                self.refused.insert(*why);
                return;
            }
            Some(meaning) => meaning.answer(sample),
            None => return,
        };
        let fixed = (!event.attr.is_frequency()).then_some(event.attr.period_or_frequency);
        let stands_for = sample.period.or(fixed).filter(|&period| period > 0);
        match stands_for {
            Some(_) => self.seen.weighed += 1,
            None => self.seen.unweighed += 1,
        }
        let node = sample.physical.filter(|&physical| physical != 0).and_then(|at| about.node(at));
        self.sight(&Sight {
            pid: sample.pid,
            address: meaning::address(&about.arch, sample.address),
            answer,
            stands_for: stands_for.unwrap_or(1),
            node: node.and_then(|node| u32::try_from(node).ok()),
        });
    }

    /// Takes in one sample of a text, which knows no mappings and no periods.
    pub fn text_sample(&mut self, name: &str, sight: &Sight) {
        self.seen.samples += 1;
        self.seen.unweighed += 1;
        if sight.pid != 0 && !self.current.contains_key(&sight.pid) {
            let mut image = Image::attached(sight.pid);
            image.name = name.to_owned();
            self.begin(sight.pid, image);
        }
        self.sight(sight);
    }

    /// Samples of a text are of no use, and why.
    pub fn text_useless(&mut self, why: Refused, samples: u64) {
        self.seen.samples = self.seen.samples.saturating_add(samples);
        self.seen.of_no_use = self.seen.of_no_use.saturating_add(samples);
        self.refused.insert(why);
    }

    fn sight(&mut self, sight: &Sight) {
        let walked = match sight.answer {
            _ if sight.address == 0 => {
                self.seen.no_address += 1;
                return;
            }
            Answer::Unsaid | Answer::FirstMissed => {
                self.seen.unsaid += 1;
                return;
            }
            _ if meaning::is_kernel(sight.address) => {
                self.seen.kernel += 1;
                return;
            }
            Answer::Hit => {
                self.seen.hits += 1;
                false
            }
            Answer::Walked => {
                self.seen.walked += 1;
                true
            }
        };
        let inside = self.options.range.as_ref().is_none_or(|range| range.contains(&sight.address));
        self.seen.out_of_range += u64::from(!inside);
        let place = self.image(sight.pid);
        let misses = if walked { sight.stands_for } else { 0 };
        let grain = self.options.grain.0;
        if let Some(image) = self.images.get_mut(place) {
            image.count(sight.address, grain, misses, sight.node, self.options.range.as_ref());
        }
    }
}
