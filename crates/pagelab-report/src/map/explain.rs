//! What `--explain` says: each mapping of a process, what it is, how large, and whether huge pages may come.

use std::ops::Range;

use pagelab_metrics::address_space::{Eligible, HugeSettings, Part, eligible, len, parts};
use pagelab_model::Bytes;
use pagelab_model::process::Mapping;

use crate::style::{Style, bytes};
use crate::text::Page;

/// The address space of one process.
#[derive(Clone, Debug)]
pub struct AddressSpace {
    /// Process id.
    pub pid: u32,
    /// The kernel's name for it.
    pub name: Option<String>,
    /// Its mappings, by address.
    pub mappings: Vec<Mapping>,
    /// Addresses that an experiment measures, if it is one.
    pub under_test: Option<Range<u64>>,
    /// What huge pages depend on.
    pub settings: HugeSettings,
}

/// A mapping with what is said of it.
#[derive(Clone, Debug)]
pub struct Explained<'a> {
    /// What the kernel printed.
    pub mapping: &'a Mapping,
    /// What it is.
    pub part: Part,
    /// The same in words.
    pub what: String,
    /// Whether huge pages may come.
    pub eligible: Eligible,
    /// Why, in words.
    pub why: String,
}

impl AddressSpace {
    /// Every mapping, explained.
    pub fn explained(&self) -> Vec<Explained<'_>> {
        let parts = parts(&self.mappings, self.under_test.as_ref());
        let each = self.mappings.iter().zip(&parts).enumerate().map(|(at, (mapping, &part))| {
            let eligible = eligible(mapping, part, &self.settings);
            let what = self.what(at, part, &parts);
            Explained { mapping, part, what, eligible, why: self.why(eligible) }
        });
        each.collect()
    }

    /// Its size and its number of mappings, in a sentence.
    pub fn headline(&self) -> String {
        let name = self.name.as_deref().unwrap_or("process");
        if self.mappings.is_empty() {
            return format!(
                "{name} (pid {}) has no memory of its own: a kernel thread, or it has ended",
                self.pid
            );
        }
        let sum = |of: &dyn Fn(&Mapping) -> u64| self.mappings.iter().map(of).fold(0, u64::saturating_add);
        let resident = Bytes::from_kib(sum(&|one| one.fields_kib.get("Rss").unwrap_or(0)));
        let mapped = Bytes(sum(&|one| if one.permissions.starts_with("---") { 0 } else { len(one) }));
        format!(
            "{name} (pid {}): {} mappings, {} that may be used, {} resident",
            self.pid,
            self.mappings.len(),
            bytes(mapped),
            bytes(resident)
        )
    }

    /// The modes on which huge pages depend.
    pub fn modes(&self) -> String {
        let mode = |mode: &Option<String>| mode.clone().unwrap_or("not known".to_owned());
        let process = match self.settings.process {
            Some(false) => "; this process has switched them off (prctl)",
            _ => "",
        };
        format!(
            "huge pages: mode {} for anonymous memory, {} for shared memory{process}",
            mode(&self.settings.enabled),
            mode(&self.settings.shmem)
        )
    }

    /// The whole text.
    pub fn text(&self, style: &Style) -> String {
        let mut page = Page::new(*style);
        page.hanging_bold("", &self.headline());
        page.hanging_dim("  ", &self.modes());
        page.hanging_dim(
            "  ",
            "addresses · permissions (read, write, execute; p private: stores stay here, s shared) · size · \
             resident · huge pages, as the kernel says of each mapping (THPeligible of smaps)",
        );
        let mut below: Option<u64> = None;
        for Explained { mapping, what, eligible, why, .. } in self.explained() {
            if let Some(gap) = below.and_then(|end| mapping.start.checked_sub(end)).filter(|gap| *gap > 0) {
                page.hanging_dim("      ", &format!("… {} not mapped …", bytes(Bytes(gap))));
            }
            below = Some(mapping.end);
            let resident =
                mapping.fields_kib.get("Rss").map_or("–".to_owned(), |kib| bytes(Bytes::from_kib(kib)));
            let huge = match eligible {
                Eligible::Yes | Eligible::Asked | Eligible::Hugetlb => "huge pages: yes",
                Eligible::NotSaid => "huge pages: ?",
                _ => "huge pages: no",
            };
            let facts = [
                format!("{:x}-{:x}", mapping.start, mapping.end),
                mapping.permissions.clone(),
                bytes(Bytes(len(mapping))),
                format!("resident {resident}"),
                huge.to_owned(),
            ];
            page.facts("  ", &facts, "  ");
            let text = if why.is_empty() { what } else { format!("{what}. {why}") };
            page.hanging("      ", &page.style().one_line(&text));
        }
        page.finish()
    }

    fn what(&self, at: usize, part: Part, parts: &[Part]) -> String {
        let of = &self.mappings[at];
        let meets =
            |at: usize, other: u64, edge: u64| parts.get(at) == Some(&Part::UnderTest) && other == edge;
        let below = at.checked_sub(1).is_some_and(|at| meets(at, self.mappings[at].end, of.start));
        let above = self.mappings.get(at + 1).is_some_and(|next| meets(at + 1, next.start, of.end));
        let is_edge = below || above;
        let file = match of.name.is_empty() {
            true => "a file".to_owned(),
            false => of.name.clone(),
        };
        let fixed = match part {
            Part::UnderTest => return self.under_test(of),
            Part::Text => return format!("text: the instructions of {file}, shared by all who run them"),
            Part::ReadOnlyData => return format!("rodata: headers and constants of {file}, never written"),
            Part::Relocated => {
                return format!(
                    "relocated data of {file}: addresses that the dynamic linker filled in and then \
                     write-protected (RELRO)"
                );
            }
            Part::Data => {
                return format!("data: variables of {file} with a first value; a store copies the page");
            }
            Part::Bss => {
                let below = at.checked_sub(1).map_or("", |below| &self.mappings[below].name);
                return format!("bss: variables of {below} that begin as 0, directly above its data");
            }
            Part::FilePrivate => {
                return format!("{file}, private: a store would copy the page and not reach it");
            }
            Part::FileShared => return format!("{file}, shared: its pages are those of the page cache"),
            Part::Named => return format!("{}, named by the kernel", of.name),
            Part::Device => return format!("device {file}"),
            Part::Anonymous if !of.name.is_empty() => {
                return format!("anonymous memory that the program calls {}", of.name);
            }
            Part::SharedMemory => return format!("shared memory, kept in {file} of the kernel's own tmpfs"),
            Part::Heap => "heap: what brk(2) moves the end of; small allocations of malloc",
            Part::MainStack => {
                "stack of the first thread: grows down by itself as far as its limit; below it the kernel \
                 keeps a gap free (stack_guard_gap)"
            }
            Part::ThreadStack => "likely a stack, of a thread or of signals: the mapping below is its guard",
            Part::Arena => "likely an arena of malloc for one or more threads, in 64 MiB of its own",
            Part::Anonymous => "anonymous memory: mmap, such as large allocations of malloc",
            Part::Guard | Part::Reserved if is_edge => {
                "guard of the mapping under test: no access, so that the kernel merges it with no neighbour"
            }
            Part::Guard => "guard: no access, so that running over the edge beside it is a fault",
            Part::Reserved => "reserved addresses: no access, no memory",
            Part::Vdso => "vdso: code of the kernel that reads the clock without entering the kernel",
            Part::Vvar => "vvar: the kernel's clock data, which the vdso reads",
            Part::Vsyscall => "vsyscall: the old vdso at a fixed address, kept for old programs",
            Part::Hugetlb => "pages of a hugetlb pool (vm.nr_hugepages)",
        };
        fixed.to_owned()
    }

    fn under_test(&self, of: &Mapping) -> String {
        let kind = match (of.permissions.chars().nth(3), of.inode, of.name.is_empty()) {
            (Some('s'), 0, _) => "anonymous, shared".to_owned(),
            (Some('s'), ..) => format!("shared, of {}", of.name),
            (_, 0, true) => "anonymous, private".to_owned(),
            _ => format!("private, of {}", of.name),
        };
        let held = |field: &str| of.fields_kib.get(field).map(Bytes::from_kib).filter(|held| held.0 > 0);
        let huge = ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"].iter().find_map(|field| held(field));
        let huge =
            huge.map_or("no huge page in it".to_owned(), |held| format!("{} in huge pages", bytes(held)));
        let dirty =
            ["Shared_Dirty", "Private_Dirty"].iter().filter_map(|field| held(field)).map(|of| of.0).sum();
        format!("THE MAPPING UNDER TEST: {kind}; {} dirty, {huge}", bytes(Bytes(dirty)))
    }

    /// Why huge pages may come or not; empty where the size says enough.
    fn why(&self, eligible: Eligible) -> String {
        let size = self.settings.size.map_or(String::new(), |size| format!(" of {}", bytes(size)));
        let shmem = self.settings.shmem.as_deref().unwrap_or("not known");
        match eligible {
            Eligible::Yes => "Huge pages may come: the mode gives them to all memory like this".to_owned(),
            Eligible::Asked => "Huge pages may come: it asked for them (MADV_HUGEPAGE)".to_owned(),
            Eligible::Hugetlb => "It is in huge pages of the pool, and always was".to_owned(),
            Eligible::TooSmall => format!("Too small for huge pages: no whole, aligned block{size} in it"),
            Eligible::Declined => "No huge pages: it declined them (MADV_NOHUGEPAGE)".to_owned(),
            Eligible::SwitchedOff => "No huge pages: the process switched them off by prctl".to_owned(),
            Eligible::NotAsked => {
                "No huge pages: the mode is madvise, and it did not ask (MADV_HUGEPAGE)".to_owned()
            }
            Eligible::ModeNever => "No huge pages: the mode is never".to_owned(),
            Eligible::ShmemMode => format!("No huge pages: the mode of shared memory is {shmem}"),
            Eligible::PageCache => "Its page sizes are the file system's choice (large folios of the page \
                                    cache), not a mode's"
                .to_owned(),
            Eligible::Special => "No huge pages: its frames are not ordinary memory".to_owned(),
            Eligible::NoAccess => String::new(),
            Eligible::Unexplained => "No huge pages: nothing that is known says why".to_owned(),
            Eligible::NotSaid => "Whether huge pages may come this kernel does not say (5.0 does)".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
