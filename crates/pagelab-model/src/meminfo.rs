//! `/proc/meminfo`: amounts in bytes and a few plain counts; unknown fields are kept.

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

    /// Memory available without swapping: `MemAvailable`; free memory alone before 3.14.
    pub fn available_bytes(&self) -> Option<Bytes> {
        self.bytes("MemAvailable").or_else(|| self.bytes("MemFree"))
    }

    /// The plain count called `name`, if there is a field of that name without a unit.
    pub fn count(&self, name: &str) -> Option<u64> {
        self.field(name).filter(|&(_, kib)| !kib).map(|(value, _)| value)
    }

    fn field(&self, name: &str) -> Option<(u64, bool)> {
        let index = self.fields.names().iter().position(|n| &**n == name)?;
        Some((self.fields.values()[index], *self.in_kib.get(index)?))
    }
}
