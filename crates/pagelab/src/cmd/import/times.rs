//! When a file was taken: what its name ends in, or when it was last changed.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Where times are from that the files do not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TimesFrom {
    /// Names where any file is called NAME.SECONDS, else times of change
    Auto,
    /// Names: NAME.SECONDS, seconds since 1970
    Name,
    /// When each file was last changed
    Modified,
}

/// Seconds since 1970 have at least this many digits since 2001; shorter ends of names are log numbers.
const DIGITS: std::ops::RangeInclusive<usize> = 9..=10;

/// A file with what its name says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Where it is.
    pub path: PathBuf,
    /// The machine and the time in nanoseconds since 1970, of `NAME.SECONDS`.
    pub named: Option<(String, u64)>,
}

impl Named {
    /// What the name of a file says.
    pub fn new(path: PathBuf) -> Named {
        let named = path.file_name().and_then(|name| split(name.to_str()?));
        Named { path, named }
    }
}

/// `vm-17.1770127506` as `vm-17` and nanoseconds since 1970.
fn split(name: &str) -> Option<(String, u64)> {
    let (machine, seconds) = name.rsplit_once('.')?;
    let is_time = DIGITS.contains(&seconds.len()) && seconds.bytes().all(|digit| digit.is_ascii_digit());
    let seconds: u64 = seconds.parse().ok().filter(|_| is_time && !machine.is_empty())?;
    Some((machine.to_owned(), seconds * 1_000_000_000))
}

/// When a file was last changed, in nanoseconds since 1970.
pub fn modified_ns(path: &Path) -> Option<u64> {
    let modified = path.metadata().ok()?.modified().ok()?;
    u64::try_from(modified.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_in_seconds_since_1970_or_say_nothing() {
        let machine = |name: &str| split(name).map(|(machine, at_ns)| (machine, at_ns / 1_000_000_000));
        let known = |machine: &str, seconds| Some((machine.to_owned(), seconds));
        assert_eq!(machine("vm-17.1770127506"), known("vm-17", 1_770_127_506));
        assert_eq!(machine("a.b.example.999999999"), known("a.b.example", 999_999_999));
        for name in
            ["buddyinfo", "buddyinfo.1", "x.1770127506000", ".1770127506", "x.17701275o6", "x.-770127506"]
        {
            assert_eq!(split(name), None, "{name}");
        }
    }
}
