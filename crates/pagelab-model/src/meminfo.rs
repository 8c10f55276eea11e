//! `/proc/meminfo`: amounts in bytes and a few plain counts, unknown fields kept.

use crate::{Bytes, Counters};

use serde::{Deserialize, Serialize};

/// The fields of `/proc/meminfo` in the kernel's order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meminfo {
    /// Field names with the printed numbers, still in the printed unit.
    pub fields: Counters,
    /// For each field, whether its line ended in `kB` (an amount) or not (a count, such as
    /// `HugePages_Total`).
    pub in_kib: Vec<bool>,
}

impl Meminfo {
    /// The amount called `name`, if there is a field of that name with the unit kB.
    pub fn bytes(&self, name: &str) -> Option<Bytes> {
        self.field(name).filter(|&(_, kib)| kib).map(|(value, _)| Bytes::from_kib(value))
    }

    /// Memory that can be had without swapping: `MemAvailable`; before 3.14, which has none, free memory
    /// alone.
    pub fn available(&self) -> Option<Bytes> {
        self.bytes("MemAvailable").or_else(|| self.bytes("MemFree"))
    }

    /// The plain count called `name`, if there is a field of that name without a unit.
    pub fn count(&self, name: &str) -> Option<u64> {
        self.field(name).filter(|&(_, kib)| !kib).map(|(value, _)| value)
    }

    fn field(&self, name: &str) -> Option<(u64, bool)> {
        let at = self.fields.names().iter().position(|n| &**n == name)?;
        Some((self.fields.values()[at], *self.in_kib.get(at)?))
    }
}
