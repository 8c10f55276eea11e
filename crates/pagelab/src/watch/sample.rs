//! One moment of a machine's memory as the view shows it, live or recorded, and the moments before it.

use std::collections::VecDeque;

use pagelab_metrics::usage::MemoryUse;
use pagelab_model::FreeAreas;
use pagelab_model::free_areas::ZoneKey;

use super::counter::Counter;

/// One moment. What could not be read is `None` and never 0.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Nanoseconds since the start of the watch or of the recording.
    pub at_ns: u64,
    /// Where the memory is.
    pub memory: MemoryUse,
    /// Counters by their index.
    pub counters: [Option<u64>; Counter::COUNT],
    /// Free blocks by zone, in the kernel's order.
    pub zones: Vec<(ZoneKey, Option<FreeAreas>)>,
    /// Share of the last 10 s in which some task waited for memory, in hundredths of a percent.
    pub some_centipercent: Option<u32>,
    /// Share in which all tasks that had work waited.
    pub full_centipercent: Option<u32>,
}

impl Sample {
    /// The free blocks of one zone.
    pub fn zone(&self, key: &ZoneKey) -> Option<&FreeAreas> {
        self.zones.iter().find(|(known, _)| known == key).and_then(|(_, areas)| areas.as_ref())
    }

    /// The value of a counter.
    pub fn counter(&self, counter: Counter) -> Option<u64> {
        self.counters[counter as usize]
    }

    /// How much a counter grew since `before`; `None` where it went back or one reading is missing.
    pub fn grown(&self, before: &Sample, counter: Counter) -> Option<u64> {
        self.counter(counter)?.checked_sub(before.counter(counter)?)
    }

    /// The same per second of the time that really passed; `None` if none did.
    pub fn rate(&self, before: &Sample, counter: Counter) -> Option<f64> {
        let passed_ns = self.at_ns.checked_sub(before.at_ns).filter(|&ns| ns > 0)?;
        Some(self.grown(before, counter)? as f64 / (passed_ns as f64 / 1e9))
    }

    /// Bytes that it takes, about.
    fn weight(&self) -> usize {
        let zone = |(key, areas): &(ZoneKey, Option<FreeAreas>)| {
            size_of_val(key) + key.zone.len() + 8 * areas.as_ref().map_or(0, FreeAreas::orders) + 32
        };
        size_of_val(self) + self.zones.iter().map(zone).sum::<usize>()
    }
}

/// The latest moments, oldest first: as many as fit into a bound of number and of memory.
#[derive(Clone, Debug, Default)]
pub struct History {
    samples: VecDeque<Sample>,
    /// The weights of all samples.
    bytes: usize,
    /// How many samples there ever were.
    pushed: usize,
}

impl History {
    /// At most this many moments: over an hour at one a second.
    pub const SAMPLES_MAX: usize = 4000;
    /// About this much memory at most, on whatever machine.
    const BYTES_MAX: usize = 16 << 20;

    /// Adds the latest moment; the oldest go where there is no room.
    pub fn push(&mut self, sample: Sample) {
        self.bytes += sample.weight();
        self.pushed += 1;
        self.samples.push_back(sample);
        while self.samples.len() > 2
            && (self.samples.len() > History::SAMPLES_MAX || self.bytes > History::BYTES_MAX)
        {
            self.bytes -= self.samples.pop_front().map_or(0, |oldest| oldest.weight());
        }
    }

    /// Goes back by one moment: takes the latest away, and puts an older one before the oldest if there is
    /// room.
    pub fn step_back(&mut self, older: Option<Sample>) {
        if let Some(latest) = self.samples.pop_back() {
            self.bytes -= latest.weight();
            self.pushed -= 1;
        }
        if let Some(older) = older.filter(|older| self.bytes + older.weight() <= History::BYTES_MAX) {
            self.bytes += older.weight();
            self.samples.push_front(older);
        }
    }

    /// Forgets all, as if `before` moments had been there and gone.
    pub fn restart(&mut self, before: usize) {
        *self = History { pushed: before, ..History::default() };
    }

    /// The latest moment.
    pub fn last(&self) -> Option<&Sample> {
        self.samples.back()
    }

    /// The moment with this many after it.
    pub fn back(&self, steps: usize) -> Option<&Sample> {
        self.samples.get(self.samples.len().checked_sub(steps + 1)?)
    }

    /// The moments, oldest first.
    pub fn into_iter(self) -> impl Iterator<Item = Sample> {
        self.samples.into_iter()
    }

    /// How many there were since the beginning, kept or not.
    pub fn pushed(&self) -> usize {
        self.pushed
    }

    /// How many are kept.
    pub fn len(&self) -> usize {
        self.samples.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::NodeId;

    fn at(at_ns: u64, swapped: Option<u64>) -> Sample {
        let mut sample = Sample { at_ns, ..Sample::default() };
        sample.counters[Counter::SwapIn as usize] = swapped;
        sample
    }

    #[test]
    fn rates_are_of_the_time_that_passed_and_never_made_up() {
        let cases = [
            ((0, Some(5)), (2_000_000_000, Some(9)), Some(2.0)),
            ((0, Some(5)), (1_000_000_000, Some(5)), Some(0.0)),
            ((0, Some(5)), (1_000_000_000, Some(4)), None),
            ((0, None), (1_000_000_000, Some(4)), None),
            ((0, Some(4)), (1_000_000_000, None), None),
            ((7, Some(4)), (7, Some(9)), None),
            ((8, Some(4)), (7, Some(9)), None),
        ];
        for ((then, before), (now, after), rate) in cases {
            assert_eq!(at(now, after).rate(&at(then, before), Counter::SwapIn), rate);
        }
    }

    #[test]
    fn the_history_is_bounded_in_number_and_in_memory() {
        let mut history = History::default();
        for at_ns in 0..=History::SAMPLES_MAX as u64 {
            history.push(at(at_ns, None));
        }
        assert_eq!((history.len(), history.back(0).unwrap().at_ns), (4000, 4000));
        assert_eq!(history.back(3999).unwrap().at_ns, 1);
        assert!(history.back(4000).is_none() && history.back(usize::MAX - 1).is_none());
        let zone = |node| {
            let key = ZoneKey { node: NodeId(node), zone: "x".repeat(32) };
            (key, FreeAreas::new(vec![1; 64]))
        };
        for at_ns in 0..100 {
            history.push(Sample { at_ns, zones: (0..6144).map(zone).collect(), ..Sample::default() });
        }
        assert!((2..6).contains(&history.len()), "{}", history.len());
        let (kept, newest) = (history.len(), history.last().unwrap().at_ns);
        history.step_back(Some(at(0, None)));
        assert_eq!((history.len(), history.last().unwrap().at_ns), (kept, newest - 1));
        let heavy = Sample { zones: (0..6144).map(zone).collect(), ..Sample::default() };
        (0..kept).for_each(|_| history.push(heavy.clone()));
        history.step_back(Some(heavy.clone()));
        history.step_back(Some(Sample { zones: [heavy.zones.clone(), heavy.zones].concat(), ..heavy }));
        assert!(history.len() <= kept, "what has no room is not kept");
        let weights: usize = history.samples.iter().map(Sample::weight).sum();
        assert_eq!(history.bytes, weights);
    }
}
