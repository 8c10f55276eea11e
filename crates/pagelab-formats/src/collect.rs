//! Collecting named counters, sharing the names with an earlier list as long as they are the same.

use std::sync::Arc;

use pagelab_model::Counters;

/// Names and values in the order of their lines. While the names repeat those of `known`, none is allocated.
pub struct Collect {
    known: Arc<[Box<str>]>,
    /// Empty as long as all names so far are the first ones of `known`.
    own: Vec<Box<str>>,
    values: Vec<u64>,
}

impl Collect {
    /// An empty list that expects the names of `known`.
    pub fn like(known: &Counters) -> Collect {
        let known = known.names().clone();
        Collect { values: Vec::with_capacity(known.len()), known, own: Vec::new() }
    }

    /// An empty list.
    pub fn new() -> Collect {
        Collect::like(&Counters::default())
    }

    /// Adds a counter.
    pub fn push(&mut self, name: &str, value: u64) {
        if self.own.is_empty() {
            if self.known.get(self.values.len()).is_some_and(|known| **known == *name) {
                self.values.push(value);
                return;
            }
            self.own = self.known[..self.values.len()].to_vec();
        }
        self.own.push(name.into());
        self.values.push(value);
    }

    /// How many counters there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// The list.
    pub fn finish(self) -> Counters {
        let names = match (self.own.is_empty(), self.values.len()) {
            (true, count) if count == self.known.len() => self.known,
            (true, count) => self.known[..count].into(),
            (false, _) => self.own.into(),
        };
        Counters::new(names, self.values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(known: &Counters, names: &[&str]) -> Counters {
        let mut collect = Collect::like(known);
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
