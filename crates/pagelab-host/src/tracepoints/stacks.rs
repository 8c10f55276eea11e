//! Call stacks of fallbacks, each once, with names.
//!
//! Functions of the kernel are named by its own table of symbols. Frames of a program are given as file and
//! offset: its own symbols are not read. A program without frame pointers shows its innermost frame alone.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use pagelab_formats::kallsyms::{self, Symbols};
use pagelab_formats::maps::{self, Map};
use pagelab_formats::perf_record::Space;
use pagelab_model::extfrag::{ExtfragEvent, FallbackCounts, StackCounts, Stacks};
use pagelab_model::{Absence, AbsentWhy, Order, Reading};

use super::Event;
use crate::paths;
use crate::reader::Reader;
use crate::root::Root;

/// Different stacks that are kept, at most. A stack takes about half a kilobyte.
const STACKS_MAX: usize = 1 << 14;

/// Programs whose name and mappings are remembered at a time, at most.
const PROGRAMS_MAX: usize = 256;

/// Bytes of a program's mappings that are read, at most.
const MAPS_MAX: u64 = 4 << 20;

/// The kernel's symbols.
#[derive(Debug)]
pub struct KernelSymbols(Symbols);

impl KernelSymbols {
    /// Reads the kernel's table of symbols, some 10 MB of text: once for a recording. Symbols of modules that
    /// are loaded later are not in it.
    pub fn read(reader: &Reader<'_>) -> Reading<KernelSymbols> {
        let symbols = reader.parse(paths::KALLSYMS, kallsyms::parse)?;
        if !symbols.is_hidden() {
            return Ok(KernelSymbols(symbols));
        }
        let level = reader.line(paths::KPTR_RESTRICT).unwrap_or_else(|_| "unknown".into());
        let detail = format!("the kernel hides addresses (kernel.kptr_restrict is {level})");
        Err(Absence::new(paths::KALLSYMS, AbsentWhy::NotPermitted, detail)
            .or("run as root with sysctl kernel.kptr_restrict=0 or 1"))
    }

    /// `__d_alloc`, `dm_table_create [dm_mod]`, or the address.
    fn name(&self, address: u64) -> String {
        match self.0.find(address) {
            Some(symbol) => match symbol.module {
                Some(module) => format!("{} [{module}]", symbol.name),
                None => symbol.name.to_owned(),
            },
            None => hexadecimal(address),
        }
    }
}

fn hexadecimal(address: u64) -> String {
    format!("{address:#x}")
}

/// A stack as it came, with the program's frames made independent of where it was mapped.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    process: Option<Arc<str>>,
    kernel: Box<[u64]>,
    user: Box<[Frame]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Frame {
    file: Option<Arc<str>>,
    offset: u64,
}

#[derive(Debug, Default)]
struct Program {
    name: Option<Arc<str>>,
    maps: Vec<Map>,
}

/// Collects the stacks of fallbacks.
#[derive(Debug)]
pub struct StackCollector {
    root: Root,
    symbols: Reading<KernelSymbols>,
    pageblock_order: Order,
    counts: HashMap<Key, FallbackCounts>,
    not_kept: FallbackCounts,
    programs: HashMap<u32, Program>,
    names: HashMap<String, Arc<str>>,
    has_user: bool,
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
            not_kept: FallbackCounts::default(),
            programs: HashMap::new(),
            names: HashMap::new(),
            has_user: false,
        }
    }

    /// Takes one fallback in, with the call chain of its event.
    pub fn add(&mut self, event: &Event<'_>, extfrag: &ExtfragEvent) {
        let of = |space: Space| event.callchain.frames().filter(move |(whose, _)| *whose == space);
        let kernel: Box<[u64]> = of(Space::Kernel).map(|(_, address)| address).collect();
        let addresses: Vec<u64> = of(Space::User).map(|(_, address)| address).collect();
        self.has_user |= !addresses.is_empty();
        let (process, user) = self.resolve(event.tid, &addresses);
        let is_full = self.counts.len() >= STACKS_MAX;
        let key = Key { process, kernel, user };
        let counts = match self.counts.get_mut(&key) {
            Some(counts) => counts,
            None if is_full => &mut self.not_kept,
            None => self.counts.entry(key).or_default(),
        };
        counts.add(extfrag, self.pageblock_order);
    }

    /// Forgets which program has which number: numbers are used again, and programs become others by exec. To
    /// be called between rounds of reading.
    pub fn forget_programs(&mut self) {
        self.programs.clear();
    }

    fn resolve(&mut self, tid: u32, user: &[u64]) -> (Option<Arc<str>>, Box<[Frame]>) {
        if self.programs.len() >= PROGRAMS_MAX && !self.programs.contains_key(&tid) {
            self.programs.clear();
        }
        let (root, names) = (&self.root, &mut self.names);
        let program = self.programs.entry(tid).or_insert_with(|| {
            let name = text(root, tid, "comm", 64).map(|name| interned(names, name.trim_end()));
            Program { name, maps: Vec::new() }
        });
        if program.maps.is_empty() && !user.is_empty() && program.name.is_some() {
            let text = text(root, tid, "maps", MAPS_MAX).unwrap_or_default();
            program.maps = maps::parse(text.as_bytes()).unwrap_or_default();
        }
        let frames = user.iter().map(|&address| match maps::find(&program.maps, address) {
            Some((map, offset)) if !map.name.is_empty() => {
                Frame { file: Some(interned(&mut self.names, &map.name)), offset }
            }
            _ => Frame { file: None, offset: address },
        });
        (program.name.clone(), frames.collect())
    }

    /// All stacks so far, with names. `lost` is the number of events that did not get into a ring.
    pub fn stacks(&self, lost: u64) -> Stacks {
        let kernel_name = |address: &u64| match &self.symbols {
            Ok(symbols) => symbols.name(*address),
            Err(_) => hexadecimal(*address),
        };
        let user_name = |frame: &Frame| match &frame.file {
            Some(file) => format!("{file}+{:#x}", frame.offset),
            None => hexadecimal(frame.offset),
        };
        let one = |(key, counts): (&Key, &FallbackCounts)| StackCounts {
            process: key.process.as_deref().map(str::to_owned),
            kernel: key.kernel.iter().map(kernel_name).collect(),
            user: key.user.iter().map(user_name).collect(),
            counts: *counts,
        };
        let mut notes = Vec::new();
        if let Err(absence) = &self.symbols {
            let way_out = absence.way_out.as_deref().map(|way_out| format!(": {way_out}"));
            notes.push(format!(
                "functions of the kernel have no names: {}{}",
                absence.reason(),
                way_out.unwrap_or_default()
            ));
        }
        if self.has_user {
            notes.push("frames of programs are files and offsets; their symbols are not read".to_owned());
        }
        Stacks { stacks: self.counts.iter().map(one).collect(), not_kept: self.not_kept, lost, notes }
    }
}

/// One string for each name, however often it is met. Names are few; a hostile machine's are cut off.
fn interned(names: &mut HashMap<String, Arc<str>>, name: &str) -> Arc<str> {
    if let Some(known) = names.get(name) {
        return Arc::clone(known);
    }
    let new: Arc<str> = Arc::from(name);
    if names.len() < STACKS_MAX {
        names.insert(name.to_owned(), Arc::clone(&new));
    }
    new
}

/// A file of a thread, up to `most` bytes; `None` where the thread has gone or may not be looked at.
fn text(root: &Root, tid: u32, file: &str, most: u64) -> Option<String> {
    let mut bytes = Vec::new();
    root.stream(&paths::process(tid, file)).ok()?.take(most).read_to_end(&mut bytes).ok()?;
    let end = match bytes.len() as u64 == most {
        // The last line may be cut.
        true => bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1),
        false => bytes.len(),
    };
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_formats::perf_record::{Layout, Record, parse, sample_type};
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
        let hidden = Absence::new(paths::KALLSYMS, AbsentWhy::NotPermitted, "hidden").or("be root");
        let mut collector = StackCollector::new(Root::live(), Err(hidden), Order(9));
        let (kernel, user) = (-128i64 as u64, -512i64 as u64);
        let layout = Layout::new(sample_type::CALLCHAIN).unwrap();
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
                Event { kind: 0, at_ns: 0, cpu: 0, pid: u32::MAX, tid: u32::MAX, callchain, record: &[] };
            collector.add(&event, &extfrag);
        }
        let stacks = collector.stacks(5);
        let mut found: Vec<_> =
            stacks.stacks.iter().map(|stack| (&*stack.kernel[0], stack.counts.events)).collect();
        found.sort();
        assert_eq!(found, [("0x10", 2), ("0x11", 1)]);
        assert_eq!((stacks.stacks[0].user[0].as_str(), &stacks.stacks[0].process), ("0x20", &None));
        assert_eq!(stacks.stacks[0].counts.spoiling, stacks.stacks[0].counts.events);
        assert!(stacks.notes[0].contains("hidden: be root"), "{:?}", stacks.notes);
        assert_eq!((stacks.lost, stacks.notes.len()), (5, 2));
    }
}
