//! What is mapped, how, and what makes no sense together.

use std::fmt;

use pagelab_model::Bytes;
use pagelab_sys::bytes_map::whole_pages;

use super::pattern::{Kind as PatternKind, LINE, Order, Pattern};
use crate::folder::FOLDER;
use crate::memory;
use crate::options::{Kind, OptionHead, Options, SEED, size};

/// Its options.
pub const OPTIONS: &[OptionHead] = &[
    size("1G", "Bytes that are mapped"),
    SEED,
    memory::ADVISE,
    word("mapping", &["anon", "file"], "anon", "What is mapped: anonymous memory or a file"),
    word("sharing", &["private", "shared"], "private", "MAP_PRIVATE or MAP_SHARED"),
    word(
        "populate",
        &["none", "populate", "populate-write"],
        "none",
        "Pages there before: none, by MAP_POPULATE, by MADV_POPULATE_WRITE",
    ),
    word(
        "prefill",
        &["none", "memset", "memset+msync"],
        "none",
        "What is done before the accesses: nothing, memset, memset and msync",
    ),
    word("access", &["sequential", "random"], "sequential", "Order of the windows"),
    word("pattern", &["lab", "report"], "lab", "Lines of 32 KiB windows, or bytes of 512-byte blocks"),
    OptionHead {
        name: "blocks",
        kind: Kind::Number(0, 1 << 40),
        default: "0",
        help: "How many windows or blocks; 0: as many as the buffer has",
    },
    word(
        "file",
        &["sparse", "prewritten", "dropped"],
        "sparse",
        "The file: never written, written, written and dropped from cache",
    ),
    OptionHead {
        name: "pause",
        kind: Kind::Number(0, 86_400_000),
        default: "0",
        help: "Milliseconds between msync and the accesses",
    },
    FOLDER,
];

const fn word(
    name: &'static str,
    words: &'static [&'static str],
    default: &'static str,
    help: &'static str,
) -> OptionHead {
    OptionHead { name, kind: Kind::Word(words), default, help }
}

/// What a file has in it, on disk and in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Holes only.
    Sparse,
    /// Written and synced, in the cache.
    Prewritten,
    /// Written and synced, and dropped from the cache.
    Dropped,
}

/// How pages come before anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Populate {
    /// They do not.
    None,
    /// By `MAP_POPULATE`.
    Map,
    /// By `MADV_POPULATE_WRITE`.
    Write,
}

/// What is done with the whole mapping before the accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefill {
    /// Nothing.
    None,
    /// It is filled.
    Memset,
    /// It is filled and written to the file.
    MemsetAndSync,
}

/// A checked configuration.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Bytes that are mapped: whole pages.
    pub len: Bytes,
    /// Seed of the random order.
    pub seed: u64,
    /// The file; `None`: anonymous memory.
    pub content: Option<Content>,
    /// `MAP_SHARED`.
    pub is_shared: bool,
    /// How pages come.
    pub populate: Populate,
    /// What is done before.
    pub prefill: Prefill,
    /// Order of the windows.
    pub order: Order,
    /// The pattern.
    pub pattern: PatternKind,
    /// Windows or blocks.
    pub blocks: u64,
    /// Milliseconds after `msync`.
    pub pause_ms: u64,
}

impl Setting {
    /// What the options say, or why they make no sense together.
    pub fn of(options: &Options) -> Result<Setting, String> {
        let is_file = options.text("mapping") == "file";
        let content = match options.text("file") {
            "prewritten" => Content::Prewritten,
            "dropped" => Content::Dropped,
            _ => Content::Sparse,
        };
        let pattern = if options.text("pattern") == "lab" { PatternKind::Lab } else { PatternKind::Report };
        let order = if options.text("access") == "random" { Order::Random } else { Order::Sequential };
        let len = whole_pages(options.size("size")).ok_or("size: too large to be mapped")?;
        let width = Pattern::width(pattern) * LINE as u64;
        if len.0 < width {
            return Err(format!(
                "size: a window of this pattern has {width} bytes, and {} are mapped",
                len.0
            ));
        }
        let blocks = Some(options.number("blocks")).filter(|&blocks| blocks > 0).unwrap_or(len.0 / width);
        let setting = Setting {
            len,
            seed: options.number("seed"),
            content: is_file.then_some(content),
            is_shared: options.text("sharing") == "shared",
            populate: match options.text("populate") {
                "populate" => Populate::Map,
                "populate-write" => Populate::Write,
                _ => Populate::None,
            },
            prefill: match options.text("prefill") {
                "memset" => Prefill::Memset,
                "memset+msync" => Prefill::MemsetAndSync,
                _ => Prefill::None,
            },
            order,
            pattern,
            blocks,
            pause_ms: options.number("pause"),
        };
        setting.make_sense(content, options.text("advise") == "huge")?;
        Ok(setting)
    }

    /// Refuses crossings in which an option would do nothing.
    fn make_sense(&self, file: Content, asks_for_huge: bool) -> Result<(), String> {
        let says = |is_wrong: bool, text: &str| if is_wrong { Err(text.to_owned()) } else { Ok(()) };
        let syncs = self.prefill == Prefill::MemsetAndSync;
        says(
            self.content.is_none() && file != Content::Sparse,
            "file: anonymous memory has no file that could be written before; choose mapping file",
        )?;
        says(
            syncs && self.content.is_none(),
            "prefill: msync has nothing to write without a file; choose memset, or mapping file",
        )?;
        says(
            syncs && !self.is_shared,
            "prefill: msync writes nothing of a private mapping; choose memset, or sharing shared",
        )?;
        says(self.pause_ms > 0 && !syncs, "pause: it follows msync; choose prefill memset+msync")?;
        says(
            asks_for_huge && self.populate == Populate::Map,
            "advise: MAP_POPULATE takes the pages before anything can be advised; choose populate \
             populate-write",
        )
    }

    /// Cache lines that are mapped.
    pub fn lines(&self) -> u64 {
        self.len.0 / LINE as u64
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, ", self.len.0)?;
        let content = self.content.map(|content| match content {
            Content::Sparse => "sparse file",
            Content::Prewritten => "written file",
            Content::Dropped => "written file dropped from cache",
        });
        write!(f, "{}, ", content.unwrap_or("anonymous"))?;
        f.write_str(if self.is_shared { "shared" } else { "private" })?;
        f.write_str(match self.populate {
            Populate::None => "",
            Populate::Map => ", populated",
            Populate::Write => ", populated for writing",
        })?;
        f.write_str(match self.prefill {
            Prefill::None => "",
            Prefill::Memset => ", filled",
            Prefill::MemsetAndSync => ", filled and synced",
        })?;
        if self.pause_ms > 0 {
            write!(f, ", {} ms pause", self.pause_ms)?;
        }
        let order = if self.order == Order::Random { "random" } else { "sequential" };
        let pattern = if self.pattern == PatternKind::Lab { "lab" } else { "report" };
        write!(f, ", {} blocks of pattern {pattern}, {order}, seed {}", self.blocks, self.seed)
    }
}
