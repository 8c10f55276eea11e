//! Builder of named counters, which shares the names with an earlier list while they are equal.

use std::sync::Arc;

use pagelab_model::Counters;

/// Names and values in the order of their lines. While the names repeat those of `known`, none is allocated.
pub struct CounterBuilder {
    known_names: Arc<[Box<str>]>,
    /// Empty as long as all names so far are the first ones of `known`.
    own_names: Vec<Box<str>>,
    values: Vec<u64>,
}

impl CounterBuilder {
    /// An empty list that expects the names of `known`.
    pub fn with_names_of(known: &Counters) -> CounterBuilder {
        let known = known.names().clone();
        CounterBuilder { values: Vec::with_capacity(known.len()), known_names: known, own_names: Vec::new() }
    }

    /// An empty list.
    pub fn new() -> CounterBuilder {
        CounterBuilder::with_names_of(&Counters::default())
    }

    /// Adds a counter.
    pub fn push(&mut self, name: &str, value: u64) {
        if self.own_names.is_empty() {
            if self.known_names.get(self.values.len()).is_some_and(|known| **known == *name) {
                self.values.push(value);
                return;
            }
            self.own_names = self.known_names[..self.values.len()].to_vec();
        }
        self.own_names.push(name.into());
        self.values.push(value);
    }

    /// How many counters there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// The list.
    pub fn finish(self) -> Counters {
        let names = match (self.own_names.is_empty(), self.values.len()) {
            (true, count) if count == self.known_names.len() => self.known_names,
            (true, count) => self.known_names[..count].into(),
            (false, _) => self.own_names.into(),
        };
        Counters::new(names, self.values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(known: &Counters, names: &[&str]) -> Counters {
        let mut collect = CounterBuilder::with_names_of(known);
        names.iter().zip(1..).for_each(|(name, value)| collect.push(name, value));
        collect.finish()
    }

    #[test]
    fn names_are_shared_only_when_all_are_the_same() {
        let first = collect(&Counters::default(), &["a", "b"]);
        assert!(Arc::ptr_eq(collect(&first, &["a", "b"]).names(), first.names()));
        for names in [&["a"][..], &["a", "c"], &["a", "b", "c"], &["b", "a"], &[]] {
            let other = collect(&first, names);
            let expect: Counters = names.iter().copied().zip(1..).collect();
            assert_eq!(other, expect);
        }
    }
}
