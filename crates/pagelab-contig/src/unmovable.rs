//! Unmovable pages allocated from user space, which pollute pageblocks while they are held.
//!
//! The kernel keeps unmovable allocations together: one that finds no free page of its type takes over a
//! whole pageblock, the largest free block first (mm/page_alloc.c, `__rmqueue_claim`, before 6.15
//! `__rmqueue_fallback`). So N pages alone pollute N / 512 blocks. Here whole pageblocks are filled with
//! unmovable pages first, and then all but one page per block are freed: each kept page pollutes nearly one
//! block. The cost is temporary memory: as much as is to be polluted.
//!
//! Everything is held by descriptors and mappings of this process: it is released when they are dropped, and
//! when the process is killed.

mod sources;

use std::{fmt, io};

use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::{Bytes, PageSize, Reading};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};

use crate::polluted_blocks::PollutedBlocks;

/// Source of unmovable pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flavour {
    /// Page tables of a sparse mapping of the zero page: one page for each touched PMD range. It needs no
    /// descriptor, and is limited only by address space; in the census `page_table`.
    PageTables,
    /// Pages of pipe buffers with one byte each. Limits: RLIMIT_NOFILE, and for others than root
    /// `fs.pipe-user-pages-soft`; in the census `unknown`, since these pages have no flags.
    Pipes,
    /// Pages of messages that wait in unix sockets. Limits: RLIMIT_NOFILE, `net.core.wmem_max` for others
    /// than root; in the census `unknown`, and the heads of the messages `slab`.
    Sockets,
    /// Names in a private, detached tmpfs: dentries and inodes, reclaimable by their type but held by the
    /// file system, so that dropping caches frees none; in the census `slab`. Needs root.
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

    fn open_source(self, page_size: PageSize, stride: u64) -> io::Result<Box<dyn PageSource>> {
        Ok(match self {
            Flavour::PageTables => Box::new(sources::PageTableSource::new(page_size, stride)),
            Flavour::Pipes => Box::new(sources::PipeSource::new(page_size, stride)),
            Flavour::Sockets => Box::new(sources::SocketSource::new(page_size, stride)),
            Flavour::Dentries => Box::new(sources::DentrySource::new(page_size, stride)?),
        })
    }

    /// The error of a flavour that the system rejects.
    fn describe_refusal(self, error: &io::Error) -> String {
        let hint = match (self, Errno::from_io_error(error)) {
            (_, Some(Errno::MFILE)) => "; hint: raise the limit on open files (ulimit -n)",
            (_, Some(Errno::NFILE)) => "; hint: raise fs.file-max",
            (Flavour::Dentries, Some(Errno::PERM)) => "; a private tmpfs needs root (CAP_SYS_ADMIN)",
            (Flavour::PageTables, Some(Errno::NOMEM)) => {
                "; hint: raise vm.max_map_count or RLIMIT_AS (ulimit -v)"
            }
            _ => "",
        };
        format!("{self}: {error}{hint}")
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Source of unmovable pages, freed in the order of allocation.
trait PageSource: fmt::Debug {
    /// Allocates about this number of further pages. Returns the number of allocated pages: more by less than
    /// a stride, fewer if a limit is reached without an error, 0 if none is available.
    fn allocate_pages(&mut self, pages: u64) -> io::Result<u64>;

    /// Keeps one page of each stride, and frees the others. Returns the number of kept pages. Called once.
    fn keep_one_per_stride(&mut self) -> io::Result<u64>;
}

/// Request for unmovable pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PollutionRequest {
    /// Pageblocks to pollute.
    pub blocks: u64,
    /// Pages of a pageblock.
    pub block_pages: u64,
    /// Sources, in turn; each provides an equal part.
    pub flavours: Vec<Flavour>,
}

/// Result of one flavour.
#[derive(Debug)]
pub struct FlavourResult {
    /// Which one.
    pub flavour: Flavour,
    /// Pages allocated temporarily.
    pub pages_allocated: u64,
    /// Pages kept.
    pub pages_kept: u64,
    /// Reason for less than the requested number.
    pub stop_reason: Option<String>,
}

/// Polluted memory, which is held until this is dropped.
#[derive(Debug)]
pub struct PollutedMemory {
    /// By flavour.
    pub flavours: Vec<FlavourResult>,
    /// Machine before, with all pages allocated, and after freeing those that are not kept.
    pub block_counts: Reading<[PollutedBlocks; 3]>,
    _sources: Vec<Option<Box<dyn PageSource>>>,
}

/// Counts the pageblocks now, if that can be read.
pub type BlockCounter<'a> = dyn FnMut() -> Reading<PollutedBlocks> + 'a;

/// Called before each allocation, with the maximum of the next one and the amount allocated so far by all
/// flavours: an error ends the run, and is its reason.
pub type RoomCheck<'a> = dyn FnMut(Bytes, Bytes) -> Result<(), String> + 'a;

/// Pages allocated between two checks of the room.
const BATCH_PAGES: u64 = 1024;

/// Number of further rounds for the missing blocks.
const TOP_UP_ROUNDS: u32 = 4;

/// Pollutes pageblocks. Shortfalls are reported in the parts; obtained pages are kept.
pub fn pollute_blocks(
    request: &PollutionRequest,
    page_size: PageSize,
    count_blocks: &mut BlockCounter<'_>,
    check_room: &mut RoomCheck<'_>,
) -> PollutedMemory {
    let before = count_blocks();
    let mut parts = Vec::new();
    let mut sources: Vec<Option<Box<dyn PageSource>>> = Vec::new();
    let count = request.flavours.len() as u64;
    // Numbers of a sample are too coarse for further rounds.
    let mostly_unmovable = |seen: PollutedBlocks| seen.is_complete.then_some(seen.mostly_unmovable);
    let mut mostly_unmovable_now = before.as_ref().ok().cloned().and_then(mostly_unmovable);
    let mut earlier_flavours_pages = 0;
    let stride = stride_pages(request.block_pages);
    for (number, &flavour) in (0..).zip(&request.flavours) {
        // Parts differ by at most one block, and add up.
        let blocks = (request.blocks * (number + 1)) / count - (request.blocks * number) / count;
        let mut result = FlavourResult { flavour, pages_allocated: 0, pages_kept: 0, stop_reason: None };
        let bytes = |pages: u64| Bytes(pages.saturating_mul(page_size.bytes()));
        let mut room = |next: u64, taken: u64| check_room(bytes(next), bytes(taken + earlier_flavours_pages));
        match flavour.open_source(page_size, stride) {
            Ok(mut source) => {
                let goal = mostly_unmovable_now.map(|seen| seen + blocks);
                allocate_part(&mut *source, &mut result, blocks * request.block_pages, stride, &mut room);
                for _ in 0..TOP_UP_ROUNDS {
                    // A census is slow on a large machine, and a stop signal waits for it.
                    if goal.is_none() || result.stop_reason.is_some() {
                        break;
                    }
                    mostly_unmovable_now = count_blocks().ok().and_then(mostly_unmovable);
                    let missing =
                        goal.zip(mostly_unmovable_now).map_or(0, |(goal, seen)| goal.saturating_sub(seen));
                    if missing == 0 {
                        break;
                    }
                    let pages = missing * request.block_pages;
                    allocate_part(&mut *source, &mut result, pages, stride, &mut room);
                }
                sources.push(Some(source));
            }
            Err(refused) => {
                result.stop_reason = Some(flavour.describe_refusal(&refused));
                sources.push(None);
            }
        }
        earlier_flavours_pages += result.pages_allocated;
        parts.push(result);
    }
    let at_peak = count_blocks();
    // Only now: the next flavour would allocate the pages that the previous one frees, instead of new blocks.
    for (part, source) in parts.iter_mut().zip(&mut sources) {
        let Some(source) = source else { continue };
        match source.keep_one_per_stride() {
            Ok(kept) => part.pages_kept = kept,
            Err(error) => part.stop_reason = Some(part.flavour.describe_refusal(&error)),
        }
    }
    let after = count_blocks();
    let block_counts = before.and_then(|before| Ok([before, at_peak?, after?]));
    PollutedMemory { flavours: parts, block_counts, _sources: sources }
}

/// One page in this number is kept: slightly less than a block, since pages come only nearly in the order of
/// their frames, and a step over a block would leave it whole.
fn stride_pages(block_pages: u64) -> u64 {
    (block_pages - block_pages / 8).max(1)
}

/// Allocates this number of further pages. `check_room` gets numbers of pages: the maximum of the next
/// allocation, and those of this part.
fn allocate_part(
    source: &mut dyn PageSource,
    result: &mut FlavourResult,
    pages: u64,
    stride: u64,
    check_room: &mut dyn FnMut(u64, u64) -> Result<(), String>,
) {
    let goal = result.pages_allocated + pages;
    while result.pages_allocated < goal {
        let batch_pages = (goal - result.pages_allocated).min(BATCH_PAGES);
        if let Err(why) = check_room(batch_pages.next_multiple_of(stride), result.pages_allocated) {
            result.stop_reason = Some(why);
            return;
        }
        match source.allocate_pages(batch_pages) {
            Ok(0) => {
                result.stop_reason = Some(format!("{}: no more pages can be allocated", result.flavour));
                return;
            }
            Ok(taken) => result.pages_allocated += taken,
            Err(error) => {
                result.stop_reason = Some(result.flavour.describe_refusal(&error));
                return;
            }
        }
    }
}

impl PollutedMemory {
    /// Whether fewer blocks than requested are polluted.
    pub fn is_incomplete(&self) -> bool {
        self.flavours.iter().any(|part| part.stop_reason.is_some())
    }
}

/// Raises the soft limit of open files to the hard one, and returns it: pipes and sockets are held by
/// descriptors.
fn raise_nofile_limit() {
    let now = getrlimit(Resource::Nofile);
    if now.current != now.maximum {
        // A rejection here is reported with the descriptor.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
    }
}

/// Amount of a limited resource that a flavour needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLimit {
    /// Which flavour.
    pub flavour: Flavour,
    /// The limit's name.
    pub name: &'static str,
    /// Required amount.
    pub required: u64,
    /// Available amount.
    pub available: u64,
}

impl SourceLimit {
    /// Whether the request exceeds the limit.
    pub fn is_exceeded(&self) -> bool {
        self.required > self.available
    }
}

impl fmt::Display for SourceLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SourceLimit { flavour, name, required: needs, available: has } = self;
        write!(f, "{flavour} needs {needs} of {name}, but the limit is {has}")
    }
}

/// Limits of this process for the requested pages. Those that cannot be read are left out.
pub fn check_limits(root: &Root, request: &PollutionRequest, page_size: PageSize) -> Vec<SourceLimit> {
    let reader = Reader::new(root);
    let read_number = |path: &str| reader.read_line(path).ok().and_then(|text| text.parse::<u64>().ok());
    let is_root = geteuid().is_root();
    let pages_per_flavour = request.blocks.div_ceil((request.flavours.len() as u64).max(1));
    let pages = pages_per_flavour.saturating_mul(request.block_pages);
    let nofile = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let mut limits = Vec::new();
    for &flavour in &request.flavours {
        let mut push_limit = |name, needs: u64, has: Option<u64>| {
            limits.extend(has.map(|has| SourceLimit { flavour, name, required: needs, available: has }));
        };
        match flavour {
            Flavour::Pipes => {
                push_limit("RLIMIT_NOFILE", pages.div_ceil(sources::PIPE_PAGES), Some(nofile));
                let soft = read_number(paths::PIPE_USER_PAGES_SOFT).filter(|&soft| soft > 0 && !is_root);
                push_limit("fs.pipe-user-pages-soft", pages, soft);
            }
            Flavour::Sockets => {
                // The kernel doubles the limit, and a message takes less than two pages.
                let wmem = read_number(paths::WMEM_MAX).filter(|_| !is_root);
                let queue = wmem.map_or(sources::QUEUE_LENGTH_MAX, |max| {
                    (max / page_size.bytes()).clamp(1, sources::QUEUE_LENGTH_MAX)
                });
                push_limit("RLIMIT_NOFILE", pages.div_ceil(queue), Some(nofile));
            }
            Flavour::PageTables => {
                // Two mappings for a stride, each with its guards.
                let mappings = 6 * pages.div_ceil(stride_pages(request.block_pages));
                push_limit("vm.max_map_count", mappings, read_number(paths::MAX_MAP_COUNT));
            }
            Flavour::Dentries => {}
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use pagelab_model::{Absence, AbsenceReason};

    use super::*;
    use crate::fragment::memory_monitor::BackoffReason;

    /// The wording of limits and of reasons to release memory.
    #[test]
    fn limits_are_named_with_what_raises_them() {
        let refused = |(flavour, errno): (Flavour, Errno)| {
            let error = io::Error::from(errno);
            flavour.describe_refusal(&error).replace(&error.to_string(), "ERROR")
        };
        let limit =
            SourceLimit { flavour: Flavour::Sockets, name: "RLIMIT_NOFILE", required: 9, available: 5 };
        let low = BackoffReason::LowMemory { available: Bytes(1 << 30), reserve: Bytes(2 << 30) };
        let mut lines = [
            (Flavour::Pipes, Errno::MFILE),
            (Flavour::PageTables, Errno::NFILE),
            (Flavour::Dentries, Errno::PERM),
            (Flavour::PageTables, Errno::NOMEM),
        ]
        .map(refused)
        .to_vec();
        lines.extend([limit.to_string(), low.to_string(), BackoffReason::Pressure(0.12).to_string()]);
        expect![[r#"
            pipes: ERROR; hint: raise the limit on open files (ulimit -n)
            pagetables: ERROR; hint: raise fs.file-max
            dentries: ERROR; a private tmpfs needs root (CAP_SYS_ADMIN)
            pagetables: ERROR; hint: raise vm.max_map_count or RLIMIT_AS (ulimit -v)
            sockets needs 9 of RLIMIT_NOFILE, but the limit is 5
            only 1 GiB was available, less than the reserve of 2 GiB
            tasks waited for memory 12 % of the time"#]]
        .assert_eq(&lines.join("\n"));
    }

    fn unread_census() -> Reading<PollutedBlocks> {
        Err(Absence::new("/proc/kpageflags", AbsenceReason::NotPermitted, "a test looks at nothing"))
    }

    fn open_files() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn one_page_of_each_blocks_worth_is_kept_and_all_goes_back() {
        let page_size = PageSize::new(rustix::param::page_size() as u64).unwrap();
        for flavour in Flavour::ALL {
            let before = open_files();
            let wanted = PollutionRequest { blocks: 3, block_pages: 512, flavours: vec![flavour] };
            let polluted = pollute_blocks(&wanted, page_size, &mut unread_census, &mut |_, _| Ok(()));
            let part = &polluted.flavours[0];
            if flavour == Flavour::Dentries && part.pages_allocated == 0 {
                assert!(part.stop_reason.as_ref().unwrap().contains("needs root"), "{part:?}");
                continue;
            }
            // Page tables come in strides of 448.
            let got = if flavour == Flavour::PageTables { (4 * 448, 4) } else { (3 * 512, 3) };
            assert_eq!(
                ((part.pages_allocated, part.pages_kept), &part.stop_reason),
                (got, &None),
                "{flavour}"
            );
            assert!(polluted.block_counts.is_err());
            drop(polluted);
            // Tests beside this one open files too, but not hundreds.
            assert!(open_files() < before + 20, "{flavour}");
        }
    }

    #[test]
    fn blocks_are_shared_out_and_the_room_is_asked() {
        let page_size = PageSize::new(rustix::param::page_size() as u64).unwrap();
        let flavours = vec![Flavour::PageTables, Flavour::Pipes];
        let wanted = PollutionRequest { blocks: 5, block_pages: 64, flavours };
        let mut asked = Vec::new();
        let mut room = |next: Bytes, taken: Bytes| {
            asked.push([next, taken].map(|bytes| bytes.0 / page_size.bytes()));
            if taken.0 + next.0 <= page_size.bytes() * 200 { Ok(()) } else { Err("the reserve".to_owned()) }
        };
        let polluted = pollute_blocks(&wanted, page_size, &mut unread_census, &mut room);
        let parts: Vec<_> = polluted
            .flavours
            .iter()
            .map(|part| (part.pages_allocated, part.pages_kept, part.stop_reason.as_deref()))
            .collect();
        assert_eq!(parts, [(168, 3, None), (0, 0, Some("the reserve"))]);
        // Page tables are allocated in strides of 56: the requested 128 are three strides.
        assert_eq!(asked, [[168, 0], [224, 168]]);
    }

    #[test]
    fn blocks_that_are_missing_are_taken_in_addition_but_not_by_a_sample() {
        let page_size = PageSize::new(rustix::param::page_size() as u64).unwrap();
        let wanted = PollutionRequest { blocks: 2, block_pages: 64, flavours: vec![Flavour::Sockets] };
        // Each look sees one crammed block more: two are missing after the first filling, one after the next.
        for (is_whole, taken, looks) in [(true, 2 * 64 + 64, 5), (false, 2 * 64, 3)] {
            let mut crammed = 0;
            let mut look = || {
                crammed += 1;
                Ok(PollutedBlocks {
                    blocks_total: 9,
                    polluted: 0,
                    mostly_unmovable: crammed,
                    blocks_by_class: Vec::new(),
                    is_complete: is_whole,
                })
            };
            let polluted = pollute_blocks(&wanted, page_size, &mut look, &mut |_, _| Ok(()));
            assert_eq!(
                (polluted.flavours[0].pages_allocated, crammed, polluted.is_incomplete()),
                (taken, looks, false)
            );
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for flavour in Flavour::ALL {
            assert_eq!(Flavour::from_name(flavour.name()), Some(flavour));
        }
        assert_eq!(Flavour::from_name("slab"), None);
    }

    #[test]
    fn a_limit_that_is_short_is_told_with_both_numbers() {
        let page_size = PageSize::new(rustix::param::page_size() as u64).unwrap();
        let wanted = PollutionRequest { blocks: 1 << 40, block_pages: 512, flavours: Flavour::ALL.to_vec() };
        let limits = check_limits(&Root::live(), &wanted, page_size);
        let open_files = limits.iter().find(|limit| limit.name == "RLIMIT_NOFILE").unwrap();
        assert!(open_files.is_exceeded() && open_files.flavour == Flavour::Pipes);
        let text = open_files.to_string();
        assert!(text.starts_with("pipes needs 549755813888 of RLIMIT_NOFILE, but the limit is "), "{text}");
        let few = PollutionRequest { blocks: 1, ..wanted };
        assert!(!check_limits(&Root::live(), &few, page_size).iter().any(SourceLimit::is_exceeded));
    }
}
