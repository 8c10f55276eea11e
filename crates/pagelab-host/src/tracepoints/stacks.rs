//! Call stacks of fallbacks, deduplicated and with symbol names.
//!
//! Kernel functions get their names from the kernel's table of symbols. Frames of a program are files and
//! offsets: its symbols are not read. A program without frame pointers shows only its innermost frame.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use pagelab_formats::kallsyms::{self, Symbols};
use pagelab_formats::maps::{self, MapsEntry};
use pagelab_formats::perf_record::CallchainContext;
use pagelab_model::extfrag::{ExtfragEvent, FallbackCounts, FallbackStack, FallbackStacks};
use pagelab_model::{Absence, AbsenceReason, Order, Reading};

use super::Event;
use crate::paths;
use crate::reader::Reader;
use crate::root::Root;

/// Maximum number of different stacks. A stack takes about half a kilobyte.
const STACKS_MAX: usize = 1 << 14;

/// Maximum number of programs whose name and mappings are cached.
const CACHED_PROGRAMS_MAX: usize = 256;

/// Maximum bytes read of a program's mappings.
const MAPS_BYTES_MAX: u64 = 4 << 20;

/// The kernel's symbols.
#[derive(Debug)]
pub struct KernelSymbols(Symbols);

impl KernelSymbols {
    /// Reads the kernel's table of symbols, about 10 MB of text: once for a recording. Symbols of modules
    /// that are loaded later are not in it.
    pub fn read(reader: &Reader<'_>) -> Reading<KernelSymbols> {
        let symbols = reader.parse(paths::KALLSYMS, kallsyms::parse)?;
        if !symbols.is_hidden() {
            return Ok(KernelSymbols(symbols));
        }
        let level = reader.read_line(paths::KPTR_RESTRICT).unwrap_or_else(|_| "unknown".into());
        let detail = format!("the kernel hides addresses (kernel.kptr_restrict is {level})");
        Err(Absence::new(paths::KALLSYMS, AbsenceReason::NotPermitted, detail)
            .with_hint("run as root with sysctl kernel.kptr_restrict=0 or 1"))
    }

    /// `__d_alloc`, `dm_table_create [dm_mod]`, or the address.
    fn symbol_name(&self, address: u64) -> String {
        let Some(symbol) = self.0.find(address) else { return format_hex(address) };
        match symbol.module {
            Some(module) => format!("{} [{module}]", symbol.name),
            None => symbol.name.to_owned(),
        }
    }
}

fn format_hex(address: u64) -> String {
    format!("{address:#x}")
}

/// A stack with the program's frames made independent of its mapping addresses.
#[derive(Debug, PartialEq, Eq, Hash)]
struct StackKey {
    process: Option<Arc<str>>,
    kernel: Box<[u64]>,
    user: Box<[UserFrame]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct UserFrame {
    file: Option<Arc<str>>,
    offset: u64,
}

#[derive(Debug, Default)]
struct ProgramMaps {
    name: Option<Arc<str>>,
    maps: Vec<MapsEntry>,
}

/// Collects the stacks of fallbacks.
#[derive(Debug)]
pub struct StackCollector {
    root: Root,
    symbols: Reading<KernelSymbols>,
    pageblock_order: Order,
    counts: HashMap<StackKey, FallbackCounts>,
    dropped_counts: FallbackCounts,
    programs: HashMap<u32, ProgramMaps>,
    names: HashMap<String, Arc<str>>,
    has_user_frames: bool,
}

impl StackCollector {
    /// A collector that reads names and mappings of programs under `root`. `pageblock_order` decides which
    /// events are fragmenting.
    pub fn new(root: Root, symbols: Reading<KernelSymbols>, pageblock_order: Order) -> StackCollector {
        StackCollector {
            root,
            symbols,
            pageblock_order,
            counts: HashMap::new(),
            dropped_counts: FallbackCounts::default(),
            programs: HashMap::new(),
            names: HashMap::new(),
            has_user_frames: false,
        }
    }

    /// Adds one fallback with the call chain of its event.
    pub fn add_fallback(&mut self, event: &Event<'_>, extfrag: &ExtfragEvent) {
        let of = |space: CallchainContext| event.callchain.frames().filter(move |(whose, _)| *whose == space);
        let kernel: Box<[u64]> = of(CallchainContext::Kernel).map(|(_, address)| address).collect();
        let addresses: Vec<u64> = of(CallchainContext::User).map(|(_, address)| address).collect();
        self.has_user_frames |= !addresses.is_empty();
        let (process, user) = self.resolve(event.tid, &addresses);
        let is_full = self.counts.len() >= STACKS_MAX;
        let key = StackKey { process, kernel, user };
        let counts = match self.counts.get_mut(&key) {
            Some(counts) => counts,
            None if is_full => &mut self.dropped_counts,
            None => self.counts.entry(key).or_default(),
        };
        counts.add(extfrag, self.pageblock_order);
    }

    /// Clears the cache of programs: PIDs are reused, and exec replaces programs. To be called between rounds
    /// of reading.
    pub fn forget_programs(&mut self) {
        self.programs.clear();
    }

    fn resolve(&mut self, tid: u32, user: &[u64]) -> (Option<Arc<str>>, Box<[UserFrame]>) {
        if self.programs.len() >= CACHED_PROGRAMS_MAX && !self.programs.contains_key(&tid) {
            self.programs.clear();
        }
        let (root, names) = (&self.root, &mut self.names);
        let program = self.programs.entry(tid).or_insert_with(|| {
            let name =
                read_thread_file(root, tid, "comm", 64).map(|name| intern_name(names, name.trim_end()));
            ProgramMaps { name, maps: Vec::new() }
        });
        if program.maps.is_empty() && !user.is_empty() && program.name.is_some() {
            let text = read_thread_file(root, tid, "maps", MAPS_BYTES_MAX).unwrap_or_default();
            program.maps = maps::parse(text.as_bytes()).unwrap_or_default();
        }
        let frames = user.iter().map(|&address| match maps::find_code_offset(&program.maps, address) {
            Some((map, offset)) if !map.name.is_empty() => {
                UserFrame { file: Some(intern_name(&mut self.names, &map.name)), offset }
            }
            _ => UserFrame { file: None, offset: address },
        });
        (program.name.clone(), frames.collect())
    }

    /// All stacks so far, with names. `lost` is the number of events that did not fit into a ring.
    pub fn stacks(&self, lost: u64) -> FallbackStacks {
        let format_kernel_frame = |address: &u64| match &self.symbols {
            Ok(symbols) => symbols.symbol_name(*address),
            Err(_) => format_hex(*address),
        };
        let format_user_frame = |frame: &UserFrame| match &frame.file {
            Some(file) => format!("{file}+{:#x}", frame.offset),
            None => format_hex(frame.offset),
        };
        let format_stack = |(key, counts): (&StackKey, &FallbackCounts)| FallbackStack {
            comm: key.process.as_deref().map(str::to_owned),
            kernel: key.kernel.iter().map(format_kernel_frame).collect(),
            user: key.user.iter().map(format_user_frame).collect(),
            counts: *counts,
        };
        let mut notes = Vec::new();
        if let Err(absence) = &self.symbols {
            notes.push(format!("kernel functions are not resolved: {}", absence.reason_and_hint()));
        }
        if self.has_user_frames {
            notes.push("user frames are shown as file and offset; symbols are not resolved".to_owned());
        }
        FallbackStacks {
            stacks: self.counts.iter().map(format_stack).collect(),
            overflow: self.dropped_counts,
            lost,
            notes,
        }
    }
}

/// One shared string for each name. There are few names; those of a hostile machine are limited.
fn intern_name(names: &mut HashMap<String, Arc<str>>, name: &str) -> Arc<str> {
    if let Some(known) = names.get(name) {
        return Arc::clone(known);
    }
    let new: Arc<str> = Arc::from(name);
    if names.len() < STACKS_MAX {
        names.insert(name.to_owned(), Arc::clone(&new));
    }
    new
}

/// A file of a thread, up to `bytes_max` bytes; `None` if the thread has exited or reading it is not
/// permitted.
fn read_thread_file(root: &Root, tid: u32, file: &str, bytes_max: u64) -> Option<String> {
    let mut bytes = Vec::new();
    root.open_reader(&paths::process_file(tid, file)).ok()?.take(bytes_max).read_to_end(&mut bytes).ok()?;
    let end = match bytes.len() as u64 == bytes_max {
        // The last line may be truncated.
        true => bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1),
        false => bytes.len(),
    };
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_formats::perf_record::{Record, SampleLayout, parse, sample_type};
    use pagelab_model::{MigrateType, Pfn};

    /// A record with one call chain and nothing else.
    fn record(words: &[u64]) -> Vec<u8> {
        let mut bytes = vec![9, 0, 0, 0, 0, 0];
        bytes.extend((16 + 8 * words.len() as u16).to_ne_bytes());
        bytes.extend((words.len() as u64).to_ne_bytes());
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn equal_stacks_are_one_and_hidden_symbols_are_told() {
        let hidden =
            Absence::new(paths::KALLSYMS, AbsenceReason::NotPermitted, "hidden").with_hint("be root");
        let mut collector = StackCollector::new(Root::live(), Err(hidden), Order(9));
        let (kernel, user) = (-128i64 as u64, -512i64 as u64);
        let layout = SampleLayout::new(sample_type::CALLCHAIN).unwrap();
        let extfrag = ExtfragEvent {
            pfn: Pfn(7),
            alloc_order: Order(0),
            fallback_order: Order(3),
            alloc_migratetype: MigrateType::UNMOVABLE,
            fallback_migratetype: MigrateType::MOVABLE,
            change_ownership: false,
        };
        for words in [[kernel, 0x10, user, 0x20], [kernel, 0x10, user, 0x20], [kernel, 0x11, user, 0x20]] {
            let bytes = record(&words);
            let Ok(Record::Sample(sample)) = parse(&bytes, &layout) else { panic!("a sample") };
            let callchain = sample.callchain;
            let event =
                Event { kind: 0, time_ns: 0, cpu: 0, pid: u32::MAX, tid: u32::MAX, callchain, record: &[] };
            collector.add_fallback(&event, &extfrag);
        }
        let stacks = collector.stacks(5);
        let mut found: Vec<_> =
            stacks.stacks.iter().map(|stack| (&*stack.kernel[0], stack.counts.events)).collect();
        found.sort();
        assert_eq!(found, [("0x10", 2), ("0x11", 1)]);
        assert_eq!((stacks.stacks[0].user[0].as_str(), &stacks.stacks[0].comm), ("0x20", &None));
        assert_eq!(stacks.stacks[0].counts.polluting, stacks.stacks[0].counts.events);
        assert!(stacks.notes[0].contains("hidden; be root"), "{:?}", stacks.notes);
        assert_eq!((stacks.lost, stacks.notes.len()), (5, 2));
    }
}
