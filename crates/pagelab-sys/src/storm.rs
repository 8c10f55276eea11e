//! Small operations of the kernel and the C library, one after the other, counted and timed: what AIM9's
//! allocation, process and signal tests do.

pub mod breaks;
pub mod children;
pub mod jumps;
pub mod signals;

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After at least so many operations.
    Count(u64),
    /// After at least so many nanoseconds.
    Nanoseconds(u64),
}

impl Until {
    /// Whether so many operations in so many nanoseconds are enough.
    pub fn is_reached(self, operations: u64, took_ns: u64) -> bool {
        match self {
            Until::Count(count) => operations >= count,
            Until::Nanoseconds(ns) => took_ns >= ns,
        }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storm {
    /// Operations.
    pub operations: u64,
    /// Nanoseconds from the first to the last, without setting up.
    pub took_ns: u64,
}

/// Does `step`, which says how many operations it did, until it is enough.
pub fn repeat(until: Until, mut step: impl FnMut() -> std::io::Result<u64>) -> std::io::Result<Storm> {
    let began = crate::clock::monotonic_ns();
    let mut operations = 0u64;
    loop {
        operations += step()?;
        let took_ns = crate::clock::monotonic_ns().saturating_sub(began);
        if until.is_reached(operations, took_ns) {
            return Ok(Storm { operations, took_ns });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_when_it_is_enough() {
        let mut steps = 0;
        let storm = repeat(Until::Count(10), || {
            steps += 1;
            Ok(4)
        });
        assert_eq!((storm.unwrap().operations, steps), (12, 3));
        let storm = repeat(Until::Nanoseconds(1_000_000), || Ok(1)).unwrap();
        assert!(storm.took_ns >= 1_000_000 && storm.operations > 0);
        assert!(repeat(Until::Count(1), || Err(std::io::ErrorKind::NotFound.into())).is_err());
    }
}
