//! Named counters in the order in which the kernel printed them: vmstat, per-node and per-zone statistics.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Names with one value each. Readings of one file share the names, so that a series stores them once and a
/// later reading does not build them again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(Box<str>, u64)>", into = "Vec<(Box<str>, u64)>")]
pub struct Counters {
    names: Arc<[Box<str>]>,
    values: Vec<u64>,
}

impl Counters {
    /// Counters from names and values of the same length; the longer list is cut.
    pub fn new(names: impl Into<Arc<[Box<str>]>>, values: Vec<u64>) -> Counters {
        let (names, mut values) = (names.into(), values);
        values.truncate(names.len());
        let names = if values.len() < names.len() { names[..values.len()].into() } else { names };
        Counters { names, values }
    }

    /// The value of the first counter called `name`. `None` if unknown, never 0.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.names.iter().position(|n| &**n == name).map(|at| self.values[at])
    }

    /// The sum of all existing counters of `names`; `None` if there are none.
    pub fn sum_of(&self, names: &[&str]) -> Option<u64> {
        names.iter().filter_map(|name| self.get(name)).reduce(u64::saturating_add)
    }

    /// All counters in the kernel's order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.names.iter().map(|name| &**name).zip(self.values.iter().copied())
    }

    /// The shared names.
    pub fn names(&self) -> &Arc<[Box<str>]> {
        &self.names
    }

    /// The values, in the order of the names.
    pub fn values(&self) -> &[u64] {
        &self.values
    }

    /// The values for overwriting in place by a reader that has checked that the names are equal.
    pub fn values_mut(&mut self) -> &mut [u64] {
        &mut self.values
    }

    /// Number of counters.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is no counter at all.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl From<Vec<(Box<str>, u64)>> for Counters {
    fn from(pairs: Vec<(Box<str>, u64)>) -> Counters {
        let (names, values): (Vec<Box<str>>, Vec<u64>) = pairs.into_iter().unzip();
        Counters { names: names.into(), values }
    }
}

impl From<Counters> for Vec<(Box<str>, u64)> {
    fn from(counters: Counters) -> Vec<(Box<str>, u64)> {
        counters.names.iter().cloned().zip(counters.values).collect()
    }
}

impl<'a> FromIterator<(&'a str, u64)> for Counters {
    fn from_iter<I: IntoIterator<Item = (&'a str, u64)>>(iter: I) -> Counters {
        let (names, values): (Vec<Box<str>>, Vec<u64>) =
            iter.into_iter().map(|(name, value)| (Box::from(name), value)).unzip();
        Counters { names: names.into(), values }
    }
}
