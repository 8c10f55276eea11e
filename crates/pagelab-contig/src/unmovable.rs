//! Unmovable pages from user space: pageblocks that compaction cannot empty for as long as they are held.
//!
//! The kernel keeps unmovable allocations together: one that finds no free page of its type takes over a
//! whole pageblock, the largest free block first (mm/page_alloc.c, `__rmqueue_claim`, before 6.15
//! `__rmqueue_fallback`). So N pages alone spoil N / 512 blocks. Here whole pageblocks are filled with
//! unmovable pages first, and then all but one page of each block's worth are given back: what stays spoils
//! nearly one block a page. The price is that for a moment as much memory is taken as is to be spoiled.
//!
//! Everything is held by descriptors and mappings of this process: it goes back when they are dropped, and
//! when the process is killed.

mod dentries;
mod limits;
mod page_tables;
mod pipes;
mod sockets;

use std::fmt;
use std::io;

pub use limits::{Limit, limits};
use pagelab_model::{Bytes, PageSize, Reading};

use crate::spoiled::SpoiledBlocks;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Where unmovable pages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flavour {
    /// Page tables of a sparse mapping of the zero page: one page for each PMD range that is touched. No
    /// descriptor, no limit but that of address space; in the census `page_table`.
    PageTables,
    /// Pages of pipe buffers with one byte each. Limits: RLIMIT_NOFILE, and for others than root
    /// `fs.pipe-user-pages-soft`; in the census `unknown`, since these pages have no flags.
    Pipes,
    /// Pages of messages that wait in unix sockets. Limits: RLIMIT_NOFILE, `net.core.wmem_max` for others
    /// than root; in the census `unknown`, and the heads of the messages `slab`.
    Sockets,
    /// Names in a private tmpfs that is mounted nowhere: dentries and inodes, reclaimable by their type but
    /// held by the file system, so that dropping caches frees none; in the census `slab`. Needs root.
    Dentries,
}

impl Flavour {
    /// All of them, the one with the fewest conditions first.
    pub const ALL: [Flavour; 4] = [Flavour::PageTables, Flavour::Pipes, Flavour::Sockets, Flavour::Dentries];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Flavour::PageTables => "pagetables",
            Flavour::Pipes => "pipes",
            Flavour::Sockets => "sockets",
            Flavour::Dentries => "dentries",
        }
    }

    /// The flavour with this name.
    pub fn from_name(name: &str) -> Option<Flavour> {
        Flavour::ALL.into_iter().find(|flavour| flavour.name() == name)
    }

    fn source(self, page_size: PageSize, stride: u64) -> Result<Box<dyn Source>, Refused> {
        let refused = |error| Refused { flavour: self, error };
        Ok(match self {
            Flavour::PageTables => Box::new(page_tables::PageTables::new(page_size, stride)),
            Flavour::Pipes => Box::new(pipes::Pipes::new(page_size, stride)),
            Flavour::Sockets => Box::new(sockets::Sockets::new(page_size, stride)),
            Flavour::Dentries => Box::new(dentries::Dentries::new(page_size, stride).map_err(refused)?),
        })
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A flavour that the system does not give.
#[derive(Debug)]
pub struct Refused {
    /// Which one.
    pub flavour: Flavour,
    /// What the system said.
    pub error: io::Error,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refused { flavour, error } = self;
        let way_out = match (flavour, error.raw_os_error().map(rustix::io::Errno::from_raw_os_error)) {
            (_, Some(rustix::io::Errno::MFILE)) => "; raise the limit of open files (ulimit -n)",
            (_, Some(rustix::io::Errno::NFILE)) => "; raise fs.file-max",
            (Flavour::Dentries, Some(rustix::io::Errno::PERM)) => {
                "; a private tmpfs needs root (CAP_SYS_ADMIN)"
            }
            (Flavour::PageTables, Some(rustix::io::Errno::NOMEM)) => {
                "; raise vm.max_map_count or RLIMIT_AS (ulimit -v)"
            }
            _ => "",
        };
        write!(f, "{flavour}: {error}{way_out}")
    }
}

impl std::error::Error for Refused {}

/// A place that unmovable pages are taken from and given back to, in the order of taking.
trait Source: fmt::Debug {
    /// Takes about so many more pages. Returns how many it took: more by less than a stride, or fewer where a
    /// limit is reached without an error, and 0 where nothing more is to be had.
    fn grow(&mut self, pages: u64) -> io::Result<u64>;

    /// Of everything taken, keeps one page of each stride, and gives the others back. Returns how many are
    /// kept. Called once.
    fn thin(&mut self) -> io::Result<u64>;
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Pageblocks to spoil.
    pub blocks: u64,
    /// Pages of a pageblock.
    pub block_pages: u64,
    /// Where from, in turn; each gives an equal part.
    pub flavours: Vec<Flavour>,
}

/// What one flavour came to.
#[derive(Debug)]
pub struct Part {
    /// Which one.
    pub flavour: Flavour,
    /// Pages taken for a moment.
    pub taken: u64,
    /// Pages kept.
    pub kept: u64,
    /// Why it gave less than was asked for, if so.
    pub stopped: Option<String>,
}

/// Spoiled memory, as long as it is held.
#[derive(Debug)]
pub struct Spoiled {
    /// By flavour.
    pub parts: Vec<Part>,
    /// The machine before, with all that was taken, and after what is not kept was given back.
    pub looks: Reading<[SpoiledBlocks; 3]>,
    sources: Vec<Option<Box<dyn Source>>>,
}

/// Counts the pageblocks now, where that can be read.
pub type Look<'a> = dyn FnMut() -> Reading<SpoiledBlocks> + 'a;

/// Asked before more is taken, with the most that comes next and with what all flavours have taken so far: an
/// error ends it, and is the reason.
pub type Room<'a> = dyn FnMut(Bytes, Bytes) -> Result<(), String> + 'a;

/// Pages that are taken between two looks at the room.
const PIECE_PAGES: u64 = 1024;

/// How often what is missing of the blocks is taken in addition.
const TRIES: u32 = 4;

/// Spoils pageblocks. What cannot be had is said in the parts, and what was got is kept.
pub fn spoil(wanted: &Wanted, page_size: PageSize, look: &mut Look<'_>, room: &mut Room<'_>) -> Spoiled {
    let before = look();
    let mut parts = Vec::new();
    let mut sources: Vec<Option<Box<dyn Source>>> = Vec::new();
    let count = wanted.flavours.len() as u64;
    // Numbers of a sample are too coarse to take more by.
    let crammed = |seen: SpoiledBlocks| seen.is_whole.then_some(seen.crammed);
    let mut seen = before.as_ref().ok().cloned().and_then(crammed);
    let mut others = 0;
    let stride = stride(wanted.block_pages);
    for (number, &flavour) in (0..).zip(&wanted.flavours) {
        // Parts differ by at most one block, and add up.
        let blocks = (wanted.blocks * (number + 1)) / count - (wanted.blocks * number) / count;
        let mut part = Part { flavour, taken: 0, kept: 0, stopped: None };
        let bytes = |pages: u64| Bytes(pages.saturating_mul(page_size.bytes()));
        let mut room = |next: u64, taken: u64| room(bytes(next), bytes(taken + others));
        match flavour.source(page_size, stride) {
            Ok(mut source) => {
                let goal = seen.map(|seen| seen + blocks);
                fill(&mut *source, &mut part, blocks * wanted.block_pages, stride, &mut room);
                for _ in 0..TRIES {
                    // A look takes long on a large machine, and whoever stops it waits.
                    if goal.is_none() || part.stopped.is_some() {
                        break;
                    }
                    seen = look().ok().and_then(crammed);
                    let missing = goal.zip(seen).map_or(0, |(goal, seen)| goal.saturating_sub(seen));
                    if missing == 0 {
                        break;
                    }
                    fill(&mut *source, &mut part, missing * wanted.block_pages, stride, &mut room);
                }
                sources.push(Some(source));
            }
            Err(refused) => {
                part.stopped = Some(refused.to_string());
                sources.push(None);
            }
        }
        others += part.taken;
        parts.push(part);
    }
    let full = look();
    // Only now: what one flavour gives back, the next one would take instead of new blocks.
    for (part, source) in parts.iter_mut().zip(&mut sources) {
        let Some(source) = source else { continue };
        match source.thin() {
            Ok(kept) => part.kept = kept,
            Err(error) => part.stopped = Some(Refused { flavour: part.flavour, error }.to_string()),
        }
    }
    let after = look();
    let looks = before.and_then(|before| Ok([before, full?, after?]));
    Spoiled { parts, looks, sources }
}

/// Of so many pages one is kept: a little less than a block, since pages come only nearly in the order of
/// their frames, and one step over a block would leave it whole.
fn stride(block_pages: u64) -> u64 {
    (block_pages - block_pages / 8).max(1)
}

/// Takes so many pages more. `room` is asked in pages: the most that come next, and those of this part.
fn fill(
    source: &mut dyn Source,
    part: &mut Part,
    pages: u64,
    stride: u64,
    room: &mut dyn FnMut(u64, u64) -> Result<(), String>,
) {
    let goal = part.taken + pages;
    while part.taken < goal {
        let piece = (goal - part.taken).min(PIECE_PAGES);
        if let Err(why) = room(piece.next_multiple_of(stride), part.taken) {
            part.stopped = Some(why);
            return;
        }
        match source.grow(piece) {
            Ok(0) => {
                part.stopped = Some(format!("{}: nothing more is to be had", part.flavour));
                return;
            }
            Ok(taken) => part.taken += taken,
            Err(error) => {
                part.stopped = Some(Refused { flavour: part.flavour, error }.to_string());
                return;
            }
        }
    }
}

impl Spoiled {
    /// Whether there is less than was wanted.
    pub fn is_short(&self) -> bool {
        self.parts.iter().any(|part| part.stopped.is_some())
    }

    /// Gives everything back.
    pub fn release(self) {
        drop(self.sources);
    }
}

/// Raises the soft limit of open files to the hard one, and returns it: descriptors are what pipes and
/// sockets are held by.
fn raise_open_files() {
    let now = getrlimit(Resource::Nofile);
    if now.current != now.maximum {
        // What is refused here is said when a descriptor is.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::{Absence, AbsentWhy};

    use super::*;

    fn unseen() -> Reading<SpoiledBlocks> {
        Err(Absence::new("/proc/kpageflags", AbsentWhy::NotPermitted, "a test looks at nothing"))
    }

    fn open_files() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn one_page_of_each_blocks_worth_is_kept_and_all_goes_back() {
        let page_size = PageSize::new(rustix::param::page_size() as u64).unwrap();
        for flavour in Flavour::ALL {
            let before = open_files();
            let wanted = Wanted { blocks: 3, block_pages: 512, flavours: vec![flavour] };
            let spoiled = spoil(&wanted, page_size, &mut unseen, &mut |_, _| Ok(()));
            let part = &spoiled.parts[0];
            if flavour == Flavour::Dentries && part.taken == 0 {
                assert!(part.stopped.as_ref().unwrap().contains("needs root"), "{part:?}");
                continue;
            }
            // Page tables come in strides of 448.
            let got = if flavour == Flavour::PageTables { (4 * 448, 4) } else { (3 * 512, 3) };
            assert_eq!(((part.taken, part.kept), &part.stopped), (got, &None), "{flavour}");
            assert!(spoiled.looks.is_err());
            spoiled.release();
            // Tests beside this one open files too, but not hundreds.
            assert!(open_files() < before + 20, "{flavour}");
        }
    }

    #[test]
    fn blocks_are_shared_out_and_the_room_is_asked() {
        let page_size = PageSize::new(rustix::param::page_size() as u64).unwrap();
        let flavours = vec![Flavour::PageTables, Flavour::Pipes];
        let wanted = Wanted { blocks: 5, block_pages: 64, flavours };
        let mut asked = Vec::new();
        let mut room = |next: Bytes, taken: Bytes| {
            asked.push([next, taken].map(|bytes| bytes.0 / page_size.bytes()));
            if taken.0 + next.0 <= page_size.bytes() * 200 { Ok(()) } else { Err("the reserve".to_owned()) }
        };
        let spoiled = spoil(&wanted, page_size, &mut unseen, &mut room);
        let parts: Vec<_> =
            spoiled.parts.iter().map(|part| (part.taken, part.kept, part.stopped.as_deref())).collect();
        assert_eq!(parts, [(168, 3, None), (0, 0, Some("the reserve"))]);
        // Page tables come in strides of 56, and so much is asked for: 128 are three strides.
        assert_eq!(asked, [[168, 0], [224, 168]]);
    }

    #[test]
    fn blocks_that_are_missing_are_taken_in_addition_but_not_by_a_sample() {
        let page_size = PageSize::new(rustix::param::page_size() as u64).unwrap();
        let wanted = Wanted { blocks: 2, block_pages: 64, flavours: vec![Flavour::Sockets] };
        // Each look sees one crammed block more: two are missing after the first filling, one after the next.
        for (is_whole, taken, looks) in [(true, 2 * 64 + 64, 5), (false, 2 * 64, 3)] {
            let mut crammed = 0;
            let mut look = || {
                crammed += 1;
                Ok(SpoiledBlocks { blocks: 9, spoiled: 0, crammed, holding: Vec::new(), is_whole })
            };
            let spoiled = spoil(&wanted, page_size, &mut look, &mut |_, _| Ok(()));
            assert_eq!((spoiled.parts[0].taken, crammed, spoiled.is_short()), (taken, looks, false));
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for flavour in Flavour::ALL {
            assert_eq!(Flavour::from_name(flavour.name()), Some(flavour));
        }
        assert_eq!(Flavour::from_name("slab"), None);
    }
}
