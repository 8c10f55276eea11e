//! Options of fragmenting, as a command line or another front end gives them.

use std::ffi::OsString;
use std::time::Duration;

use pagelab_command::atomic_file::NewRunFile;
use pagelab_model::{Bytes, size};

/// Options of `fragment`.
#[derive(Clone, Debug, Default)]
pub struct FragmentOptions {
    /// The unusable free space index to reach, 0 to 1, within 0.02
    pub target: Option<f64>,
    /// Buddy order of the index [default: the order of a huge page]
    pub order: Option<String>,
    /// Fragment at most this much memory: 80%, 4G, 512M [default: what the target needs]
    pub size: Option<MemorySize>,
    /// Seed of the choice of kept pages
    pub seed: u64,
    /// NUMA node [default: the node of the largest zone]
    pub node: Option<u32>,
    /// Keep at least this much memory available [default: 5 % of memory, at least 512M]
    pub reserve: Option<MemorySize>,
    /// While holding, correct the index when compaction or other programs change it
    pub keep_to_target: bool,
    /// Disable proactive compaction during the run (vm.compaction_proactiveness 0)
    pub pause_compaction: bool,
    /// If THP is disabled, set it to madvise during the run
    pub allow_thp: bool,
    /// Measure how many huge pages can be allocated before, during and after
    pub measure_thp: bool,
    /// What happens while memory is held.
    pub held: HeldOptions,
}

/// What happens while memory is held, and the output.
#[derive(Clone, Debug, Default)]
pub struct HeldOptions {
    /// Unmovable pages beside it.
    pub unmovable: UnmovableOptions,
    /// Print the plan and allocate nothing
    pub dry_run: bool,
    /// Print JSON when all memory is released
    pub json: bool,
    /// Record free blocks and memory use in this run file
    pub output: Option<NewRunFile>,
    /// Run this command while memory is fragmented; its exit code is returned
    pub command: Vec<OsString>,
}

/// Requested unmovable pages.
#[derive(Clone, Debug, Default)]
pub struct UnmovableOptions {
    /// Also pollute this share of all pageblocks with unmovable pages: 10%
    pub unmovable: Option<f64>,
    /// Source of unmovable pages: pagetables, pipes, sockets, dentries [default: pagetables]
    pub flavour: Vec<String>,
}

/// How memory is filled and walked.
#[derive(Clone, Debug)]
pub struct WalkSettings {
    /// Fill this much memory: 80%, 4G; the reserve always stays free
    pub size: MemorySize,
    /// Walk chunks of this size
    pub chunk: Bytes,
    /// Pages of a step, uniformly random in this range
    pub step: String,
    /// Probability that a page is released at the end of a step
    pub probability: f64,
    /// Fill all chunks before the first walk: released pages stay free
    pub fill_first: bool,
    /// Seed of the choice of released pages
    pub seed: u64,
    /// Keep at least this much memory available [default: 5 % of memory, at least 512M]
    pub reserve: Option<MemorySize>,
}

/// Options of `fragment random`.
#[derive(Clone, Debug)]
pub struct RandomOptions {
    /// How memory is filled and walked.
    pub options: WalkSettings,
    /// Request huge pages; they are not split, so few pages are released
    pub thp: bool,
    /// What happens while memory is held.
    pub held: HeldOptions,
}

/// Options of `fragment procedure`.
#[derive(Clone, Debug)]
pub struct ProcedureOptions {
    /// How memory is filled and walked.
    pub options: WalkSettings,
    /// Only with huge pages
    pub thp: bool,
    /// Only without huge pages
    pub no_thp: bool,
    /// Time to wait after the first compaction
    pub settle: Duration,
    /// Print JSON
    pub json: bool,
    /// Record scores, free blocks and memory use in this run file
    pub output: Option<NewRunFile>,
}

/// Amount of memory, or share of all memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemorySize {
    /// Share of all memory, 0 to 1.
    Share(f64),
    /// Amount in bytes.
    Amount(Bytes),
}

impl MemorySize {
    /// Parses a share of all memory, with `%`, or an amount: a bare number is bytes.
    pub fn parse(text: &str) -> Result<MemorySize, String> {
        match text.trim().ends_with('%') {
            true => size::parse_nonzero_share(text).map(MemorySize::Share),
            false => size::parse_nonzero(text).map(MemorySize::Amount),
        }
    }

    /// Returns the size in bytes, for this total.
    pub fn to_bytes(self, total: Bytes) -> Bytes {
        match self {
            MemorySize::Share(share) => Bytes((total.0 as f64 * share) as u64),
            MemorySize::Amount(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shares_or_amounts_and_never_negative() {
        let total = Bytes(1 << 30);
        let cases = [
            ("50%", Some(1 << 29)),
            ("12.5 %", Some(1 << 27)),
            ("4G", Some(4 << 30)),
            ("1.5g", Some(3 << 29)),
            ("512MiB", Some(512 << 20)),
            ("8192", Some(8192)),
            ("0", None),
            ("-1G", None),
            ("-5%", None),
            ("101%", None),
            ("0%", None),
            ("nan%", None),
            ("inf", None),
            ("0.8", None),
            ("4X", None),
            ("", None),
            ("%", None),
            ("1e30G", None),
        ];
        for (text, bytes) in cases {
            let found = MemorySize::parse(text).ok().map(|size| size.to_bytes(total).0);
            assert_eq!(found, bytes, "{text}");
        }
    }
}
