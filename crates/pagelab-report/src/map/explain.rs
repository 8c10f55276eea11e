//! Text of `--explain`: each mapping of a process with its type, its size, and whether it may have huge
//! pages.

use std::ops::Range;

use pagelab_metrics::address_space::{
    MappingRole, ThpEligibility, ThpEligibilitySettings, classify_mappings, mapping_bytes, thp_eligibility,
};
use pagelab_model::Bytes;
use pagelab_model::process::Mapping;

use crate::style::{TextStyle, format_bytes};
use crate::text_report::TextReport;

/// Address space of one process.
#[derive(Clone, Debug)]
pub struct AddressSpaceReport {
    /// Process ID.
    pub pid: u32,
    /// Kernel's name of the process.
    pub name: Option<String>,
    /// Mappings, by address.
    pub mappings: Vec<Mapping>,
    /// Addresses that an experiment measures, if this is one.
    pub test_region: Option<Range<u64>>,
    /// Settings on which huge pages depend.
    pub settings: ThpEligibilitySettings,
}

/// Explained mapping.
#[derive(Clone, Debug)]
pub struct ExplainedMapping<'a> {
    /// Kernel's record of the mapping.
    pub mapping: &'a Mapping,
    /// Type of the mapping.
    pub role: MappingRole,
    /// Type in words.
    pub description: String,
    /// Whether it may have huge pages.
    pub eligibility: ThpEligibility,
    /// Reason, in words.
    pub reason: String,
}

impl AddressSpaceReport {
    /// Explains every mapping.
    pub fn explain_mappings(&self) -> Vec<ExplainedMapping<'_>> {
        let roles = classify_mappings(&self.mappings, self.test_region.as_ref());
        let each = self.mappings.iter().zip(&roles).enumerate().map(|(at, (mapping, &part))| {
            let eligibility = thp_eligibility(mapping, part, &self.settings);
            let description = self.describe_mapping(at, part, &roles);
            ExplainedMapping {
                mapping,
                role: part,
                description,
                eligibility,
                reason: self.eligibility_reason(eligibility),
            }
        });
        each.collect()
    }

    /// Returns the size and the number of mappings in a sentence.
    pub fn format_headline(&self) -> String {
        let name = self.name.as_deref().unwrap_or("process");
        if self.mappings.is_empty() {
            return format!(
                "{name} (pid {}) has no user memory: it is a kernel thread or has exited",
                self.pid
            );
        }
        let sum = |of: &dyn Fn(&Mapping) -> u64| self.mappings.iter().map(of).fold(0, u64::saturating_add);
        let resident = Bytes::from_kib(sum(&|one| one.fields_kib.get("Rss").unwrap_or(0)));
        let mapped =
            Bytes(sum(&|one| if one.permissions.starts_with("---") { 0 } else { mapping_bytes(one) }));
        format!(
            "{name} (pid {}): {} mappings, {} accessible, {} resident",
            self.pid,
            self.mappings.len(),
            format_bytes(mapped),
            format_bytes(resident)
        )
    }

    /// Returns the modes on which huge pages depend.
    pub fn thp_modes_text(&self) -> String {
        let mode = |mode: &Option<String>| mode.clone().unwrap_or("unknown".to_owned());
        let process = match self.settings.process_enabled {
            Some(false) => "; disabled for this process (prctl)",
            _ => "",
        };
        format!(
            "huge pages: mode {} for anonymous memory, {} for shared memory{process}",
            mode(&self.settings.enabled),
            mode(&self.settings.shmem_enabled)
        )
    }

    /// Renders the complete text.
    pub fn to_text(&self, style: &TextStyle) -> String {
        let mut output = TextReport::new(*style);
        output.add_bold_text(&self.format_headline());
        output.add_dim_indented(&self.thp_modes_text());
        output.add_dim_indented(
            "addresses · permissions (read, write, execute; p private, s shared) · size · resident · THP \
             eligibility (THPeligible of smaps)",
        );
        let mut lower_neighbour: Option<u64> = None;
        for ExplainedMapping { mapping, description, eligibility, reason, .. } in self.explain_mappings() {
            if let Some(gap) =
                lower_neighbour.and_then(|end| mapping.start.checked_sub(end)).filter(|gap| *gap > 0)
            {
                output.add_dim_paragraph("      ", &format!("… {} not mapped …", format_bytes(Bytes(gap))));
            }
            lower_neighbour = Some(mapping.end);
            let resident = mapping
                .fields_kib
                .get("Rss")
                .map_or("–".to_owned(), |kib| format_bytes(Bytes::from_kib(kib)));
            let huge = match eligibility {
                ThpEligibility::Yes | ThpEligibility::Advised | ThpEligibility::Hugetlb => "huge pages: yes",
                ThpEligibility::NotReported => "huge pages: ?",
                _ => "huge pages: no",
            };
            let facts = [
                format!("{:x}-{:x}", mapping.start, mapping.end),
                mapping.permissions.clone(),
                format_bytes(Bytes(mapping_bytes(mapping))),
                format!("resident {resident}"),
                huge.to_owned(),
            ];
            output.add_facts("  ", &facts, "  ");
            let text = if reason.is_empty() { description } else { format!("{description}. {reason}") };
            output.add_paragraph("      ", &output.style().to_one_line(&text));
        }
        output.into_text()
    }

    fn describe_mapping(&self, index: usize, role: MappingRole, roles: &[MappingRole]) -> String {
        let of = &self.mappings[index];
        let meets = |at: usize, other: u64, edge: u64| {
            roles.get(at) == Some(&MappingRole::UnderTest) && other == edge
        };
        let lower_neighbour =
            index.checked_sub(1).is_some_and(|at| meets(at, self.mappings[at].end, of.start));
        let above = self.mappings.get(index + 1).is_some_and(|next| meets(index + 1, next.start, of.end));
        let is_edge = lower_neighbour || above;
        let file = if of.name.is_empty() { "a file".to_owned() } else { of.name.clone() };
        match role {
            MappingRole::UnderTest => self.describe_test_region(of),
            MappingRole::Text => format!("text: code of {file}, shared by all processes that map it"),
            MappingRole::ReadOnlyData => format!("rodata: headers and constants of {file}, read-only"),
            MappingRole::Relocated => format!(
                "relocated data of {file}: addresses written by the dynamic linker, then write-protected \
                 (RELRO)"
            ),
            MappingRole::Data => format!("data: initialised variables of {file}, copied on write"),
            MappingRole::Bss => {
                let lower_neighbour = index.checked_sub(1).map_or("", |below| &self.mappings[below].name);
                format!("bss: zero-initialised variables of {lower_neighbour}, directly above its data")
            }
            MappingRole::FilePrivate => {
                format!("{file}, private: pages are copied on write, the file does not change")
            }
            MappingRole::FileShared => format!("{file}, shared: pages of the page cache"),
            MappingRole::NamedByKernel => format!("{}, named by the kernel", of.name),
            MappingRole::Device => format!("device {file}"),
            MappingRole::Anonymous if !of.name.is_empty() => {
                format!("anonymous memory, named {} by the program", of.name)
            }
            MappingRole::SharedMemory => format!("shared memory, {file} in the kernel's internal tmpfs"),
            MappingRole::Heap => "heap: the brk(2) area; small malloc allocations".to_owned(),
            MappingRole::MainStack => {
                "stack of the main thread: grows down to its limit; the kernel keeps a gap below it \
                 (stack_guard_gap)"
                    .to_owned()
            }
            MappingRole::ThreadStack => {
                "probably a thread or signal stack: the mapping below is its guard".to_owned()
            }
            MappingRole::Arena => "probably a malloc arena of one or more threads, 64 MiB".to_owned(),
            MappingRole::Anonymous => {
                "anonymous memory: mmap, for example large malloc allocations".to_owned()
            }
            MappingRole::Guard | MappingRole::Reserved if is_edge => {
                "guard of the mapping under test: no access, prevents merging with a neighbour".to_owned()
            }
            MappingRole::Guard => "guard: no access, so that an overrun faults".to_owned(),
            MappingRole::Reserved => "reserved addresses: no access, no memory".to_owned(),
            MappingRole::Vdso => "vdso: kernel code that reads the clock in user mode".to_owned(),
            MappingRole::Vvar => "vvar: kernel clock data for the vdso".to_owned(),
            MappingRole::Vsyscall => {
                "vsyscall: the vdso's predecessor at a fixed address, for old programs".to_owned()
            }
            MappingRole::Hugetlb => "pages from a hugetlb pool (vm.nr_hugepages)".to_owned(),
        }
    }

    fn describe_test_region(&self, mapping: &Mapping) -> String {
        let kind = match (mapping.permissions.chars().nth(3), mapping.inode, mapping.name.is_empty()) {
            (Some('s'), 0, _) => "anonymous, shared".to_owned(),
            (Some('s'), ..) => format!("shared, of {}", mapping.name),
            (_, 0, true) => "anonymous, private".to_owned(),
            _ => format!("private, of {}", mapping.name),
        };
        let held = |field: &str| mapping.fields_kib.get(field).map(Bytes::from_kib).filter(|held| held.0 > 0);
        let huge = ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"].iter().find_map(|field| held(field));
        let huge =
            huge.map_or("no huge pages".to_owned(), |held| format!("{} in huge pages", format_bytes(held)));
        let dirty =
            ["Shared_Dirty", "Private_Dirty"].iter().filter_map(|field| held(field)).map(|of| of.0).sum();
        format!("THE MAPPING UNDER TEST: {kind}; {} dirty, {huge}", format_bytes(Bytes(dirty)))
    }

    /// Explains why the mapping may have huge pages or not; empty if its size explains it.
    fn eligibility_reason(&self, eligibility: ThpEligibility) -> String {
        let size = self.settings.pmd_size.map_or(String::new(), |size| format!(" of {}", format_bytes(size)));
        let shmem = self.settings.shmem_enabled.as_deref().unwrap_or("unknown");
        match eligibility {
            ThpEligibility::Yes => "Eligible for huge pages: the mode covers all such memory".to_owned(),
            ThpEligibility::Advised => "Eligible for huge pages: MADV_HUGEPAGE".to_owned(),
            ThpEligibility::Hugetlb => "Huge pages from a hugetlb pool".to_owned(),
            ThpEligibility::TooSmall => {
                format!("Too small for huge pages: it contains no aligned block{size}")
            }
            ThpEligibility::Declined => "No huge pages: MADV_NOHUGEPAGE".to_owned(),
            ThpEligibility::DisabledByPrctl => "No huge pages: disabled for the process by prctl".to_owned(),
            ThpEligibility::NotAdvised => {
                "No huge pages: the mode is madvise, and MADV_HUGEPAGE is not set".to_owned()
            }
            ThpEligibility::NeverMode => "No huge pages: the mode is never".to_owned(),
            ThpEligibility::ShmemMode => format!("No huge pages: the mode of shared memory is {shmem}"),
            ThpEligibility::PageCache => {
                "The file system chooses its page sizes (large folios of the page cache)".to_owned()
            }
            ThpEligibility::SpecialMapping => "No huge pages: not backed by normal memory".to_owned(),
            ThpEligibility::NoAccess => String::new(),
            ThpEligibility::Unexplained => "No huge pages: unknown reason".to_owned(),
            ThpEligibility::NotReported => {
                "THP eligibility unknown: reported only since Linux 5.0".to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests;
