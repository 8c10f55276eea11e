//! Configuration of the mapping, and its invalid combinations.

use std::fmt;
use std::time::Duration;

use pagelab_model::Bytes;
use pagelab_sys::byte_mapping::round_up_to_pages;

use super::pattern::{AccessPattern, BlockSequence, LINE_BYTES, PatternKind};
use crate::mapping;
use crate::options::{
    DurationSpec, OptionSpec, SEED_OPTION, ValueKind, WorkloadOptions, choice_option, number_option,
    size_option,
};
use crate::private_dir::FOLDER_OPTION;

/// Its options.
pub const OPTION_SPECS: &[OptionSpec] = &[
    size_option("1G", "Bytes of the mapping"),
    SEED_OPTION,
    mapping::ADVISE_OPTION,
    choice_option("mapping", &["anon", "file"], "anon", "Mapped object: anonymous memory or a file"),
    choice_option("sharing", &["private", "shared"], "private", "MAP_PRIVATE or MAP_SHARED"),
    choice_option(
        "populate",
        &["none", "populate", "populate-write"],
        "none",
        "How pages are prefaulted: MAP_POPULATE, MADV_POPULATE_WRITE, or not",
    ),
    choice_option(
        "prefill",
        &["none", "memset", "memset+msync"],
        "none",
        "Fill before the accesses: none, memset, memset and msync",
    ),
    choice_option("access", &["sequential", "random"], "sequential", "Order of the windows"),
    choice_option(
        "pattern",
        &["lab", "report"],
        "lab",
        "Accesses: cache lines of 32 KiB windows (lab), or bytes of 512-byte blocks (report)",
    ),
    number_option("blocks", 0, 1 << 40, "0", "Number of windows or blocks; 0: as many as the buffer has"),
    choice_option(
        "file",
        &["sparse", "prewritten", "dropped"],
        "sparse",
        "The file: never written, written, written and dropped from cache",
    ),
    OptionSpec {
        name: "pause",
        kind: ValueKind::Duration(DurationSpec {
            least: Duration::ZERO,
            most: Duration::from_secs(86_400),
            bare_unit: Duration::from_millis(1),
            former_name: None,
        }),
        default: "0s",
        help: "Pause between msync and the accesses",
    },
    FOLDER_OPTION,
];

/// Content of a file, on disk and in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileContent {
    /// Holes only.
    Sparse,
    /// Written and synced, in the cache.
    Prewritten,
    /// Written and synced, and dropped from the cache.
    DroppedFromCache,
}

/// Preparation of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PopulateMode {
    /// They do not.
    None,
    /// By `MAP_POPULATE`.
    Map,
    /// By `MADV_POPULATE_WRITE`.
    Write,
}

/// Preparation of the whole mapping before the accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefillMode {
    /// Nothing.
    None,
    /// It is filled.
    Memset,
    /// It is filled and written to the file.
    MemsetAndSync,
}

/// A checked configuration.
#[derive(Clone, Copy, Debug)]
pub struct AccessConfig {
    /// Bytes that are mapped: whole pages.
    pub mapping_bytes: Bytes,
    /// Seed of the random order.
    pub seed: u64,
    /// The file; `None`: anonymous memory.
    pub content: Option<FileContent>,
    /// `MAP_SHARED`.
    pub is_shared: bool,
    /// How pages come.
    pub populate: PopulateMode,
    /// Preparation.
    pub prefill: PrefillMode,
    /// Order of the windows.
    pub order: BlockSequence,
    /// The pattern.
    pub pattern: PatternKind,
    /// Windows or blocks.
    pub block_count: u64,
    /// Milliseconds after `msync`.
    pub pause_ms: u64,
}

impl AccessConfig {
    /// Configuration by the options, or why they contradict each other.
    pub fn from_options(options: &WorkloadOptions) -> Result<AccessConfig, String> {
        let is_file = options.get_text("mapping") == "file";
        let content = match options.get_text("file") {
            "prewritten" => FileContent::Prewritten,
            "dropped" => FileContent::DroppedFromCache,
            _ => FileContent::Sparse,
        };
        let pattern = match options.get_text("pattern") {
            "lab" => PatternKind::LabWindow,
            _ => PatternKind::ReportBlock,
        };
        let order = match options.get_text("access") {
            "random" => BlockSequence::Random,
            _ => BlockSequence::Sequential,
        };
        let len = round_up_to_pages(options.get_size("size")).ok_or("size: too large for a mapping")?;
        let width = AccessPattern::block_lines(pattern) * LINE_BYTES as u64;
        if len.0 < width {
            let mapped = len.0;
            return Err(format!(
                "size: a window of this pattern has {width} bytes, but the mapping has {mapped}"
            ));
        }
        let blocks = Some(options.get_number("blocks")).filter(|&blocks| blocks > 0).unwrap_or(len.0 / width);
        let config = AccessConfig {
            mapping_bytes: len,
            seed: options.get_number("seed"),
            content: is_file.then_some(content),
            is_shared: options.get_text("sharing") == "shared",
            populate: match options.get_text("populate") {
                "populate" => PopulateMode::Map,
                "populate-write" => PopulateMode::Write,
                _ => PopulateMode::None,
            },
            prefill: match options.get_text("prefill") {
                "memset" => PrefillMode::Memset,
                "memset+msync" => PrefillMode::MemsetAndSync,
                _ => PrefillMode::None,
            },
            order,
            pattern,
            block_count: blocks,
            pause_ms: options.get_duration("pause").as_millis() as u64,
        };
        config.check_combination(content, options.get_text("advise") == "huge")?;
        Ok(config)
    }

    /// Rejects combinations in which an option would have no effect.
    fn check_combination(&self, file: FileContent, requests_huge_pages: bool) -> Result<(), String> {
        let is_set = |is_wrong: bool, text: &str| if is_wrong { Err(text.to_owned()) } else { Ok(()) };
        let syncs = self.prefill == PrefillMode::MemsetAndSync;
        is_set(
            self.content.is_none() && file != FileContent::Sparse,
            "file: anonymous memory has no file to prepare; hint: use mapping file",
        )?;
        is_set(
            syncs && self.content.is_none(),
            "prefill: msync has nothing to write without a file; hint: use memset, or mapping file",
        )?;
        is_set(
            syncs && !self.is_shared,
            "prefill: msync does not write back a private mapping; hint: use memset, or sharing shared",
        )?;
        is_set(self.pause_ms > 0 && !syncs, "pause: it only follows msync; hint: use prefill memset+msync")?;
        is_set(
            requests_huge_pages && self.populate == PopulateMode::Map,
            "advise: MAP_POPULATE allocates the pages before madvise can be called; hint: use populate \
             populate-write",
        )
    }

    /// Cache lines that are mapped.
    pub fn line_count(&self) -> u64 {
        self.mapping_bytes.0 / LINE_BYTES as u64
    }
}

impl fmt::Display for AccessConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, ", self.mapping_bytes.0)?;
        let content = self.content.map(|content| match content {
            FileContent::Sparse => "sparse file",
            FileContent::Prewritten => "written file",
            FileContent::DroppedFromCache => "written file dropped from cache",
        });
        write!(f, "{}, ", content.unwrap_or("anonymous"))?;
        f.write_str(if self.is_shared { "shared" } else { "private" })?;
        f.write_str(match self.populate {
            PopulateMode::None => "",
            PopulateMode::Map => ", populated",
            PopulateMode::Write => ", populated for writing",
        })?;
        f.write_str(match self.prefill {
            PrefillMode::None => "",
            PrefillMode::Memset => ", filled",
            PrefillMode::MemsetAndSync => ", filled and synced",
        })?;
        if self.pause_ms > 0 {
            write!(f, ", {} ms pause", self.pause_ms)?;
        }
        let order = if self.order == BlockSequence::Random { "random" } else { "sequential" };
        let pattern = if self.pattern == PatternKind::LabWindow { "lab" } else { "report" };
        write!(f, ", {} blocks of pattern {pattern}, {order}, seed {}", self.block_count, self.seed)
    }
}
