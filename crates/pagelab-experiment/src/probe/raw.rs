//! Page walks: events that have no general name, by processor.
//!
//! Intel counts the cycles in which a page walker is busy. From Skylake on there are several walkers, and the
//! event adds one for each that is busy: the sum can be more than the cycles. AMD counts walks, and not how
//! long they take. Numbers are those of the makers' lists as the kernel's perf has them
//! (tools/perf/pmu-events/arch/x86,
//! `virtual-memory.json` and `memory.json`, models by `mapfile.csv`, 6.12).

use pagelab_model::experiment::Better;
use pagelab_model::machine::Cpu;
use pagelab_model::{Absence, AbsentWhy};
use pagelab_sys::perf_count::What;

use super::events::Event;

/// Cycles for loads, stores and instructions.
const LOAD: &str = "walk-cycles.load";
const STORE: &str = "walk-cycles.store";
const CODE: &str = "walk-cycles.instruction";
/// Cycles for loads and stores together, where they are not told apart.
const DATA: &str = "walk-cycles.data";
/// Walks.
const DATA_WALKS: &str = "walks.data";
const CODE_WALKS: &str = "walks.instruction";

/// What a processor counts of page walks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Walks {
    pub events: Vec<Event>,
    /// The processor and the events by their maker's names.
    pub source: &'static str,
    /// What is asked for and not counted, with the reason.
    pub absent: Vec<(&'static str, Absence)>,
}

/// One row for processors with the same events.
struct Row {
    family: u32,
    models: &'static [u32],
    /// Name, event, mask.
    events: &'static [(&'static str, u16, u8)],
    source: &'static str,
}

const ROWS: [Row; 12] = [
    Row {
        family: 6,
        models: &[0x25, 0x2c, 0x2f],
        events: &[(LOAD, 0x08, 0x04), (CODE, 0x85, 0x04)],
        source: "Westmere: DTLB_LOAD_MISSES.WALK_CYCLES, ITLB_MISSES.WALK_CYCLES",
    },
    Row {
        family: 6,
        models: &[0x2a, 0x2d],
        events: &[(LOAD, 0x08, 0x04), (STORE, 0x49, 0x04), (CODE, 0x85, 0x04)],
        source: "Sandy Bridge: DTLB_LOAD_MISSES, DTLB_STORE_MISSES, ITLB_MISSES .WALK_DURATION",
    },
    Row {
        family: 6,
        models: &[0x3a, 0x3e],
        events: &[(LOAD, 0x08, 0x84), (STORE, 0x49, 0x04), (CODE, 0x85, 0x04)],
        source: "Ivy Bridge: DTLB_LOAD_MISSES, DTLB_STORE_MISSES, ITLB_MISSES .WALK_DURATION",
    },
    Row {
        family: 6,
        models: &[0x3c, 0x3f, 0x45, 0x46],
        events: &[(LOAD, 0x08, 0x10), (STORE, 0x49, 0x10), (CODE, 0x85, 0x10)],
        source: "Haswell: DTLB_LOAD_MISSES, DTLB_STORE_MISSES, ITLB_MISSES .WALK_DURATION",
    },
    Row {
        family: 6,
        models: &[0x3d, 0x47, 0x4f, 0x56],
        events: &[(LOAD, 0x08, 0x10), (STORE, 0x49, 0x10), (CODE, 0x85, 0x10)],
        source: "Broadwell: DTLB_LOAD_MISSES, DTLB_STORE_MISSES, ITLB_MISSES .WALK_DURATION",
    },
    Row {
        family: 6,
        models: &[0x4e, 0x5e, 0x55, 0x8e, 0x9e, 0xa5, 0xa6],
        events: &[(LOAD, 0x08, 0x10), (STORE, 0x49, 0x10), (CODE, 0x85, 0x10)],
        source: "Skylake: DTLB_LOAD_MISSES, DTLB_STORE_MISSES, ITLB_MISSES .WALK_PENDING",
    },
    Row {
        family: 6,
        models: &[0x7d, 0x7e, 0x6a, 0x6c, 0xa7, 0x8c, 0x8d],
        events: &[(LOAD, 0x08, 0x10), (STORE, 0x49, 0x10), (CODE, 0x85, 0x10)],
        source: "Ice Lake: DTLB_LOAD_MISSES, DTLB_STORE_MISSES, ITLB_MISSES .WALK_PENDING",
    },
    Row {
        family: 6,
        models: &[0x8f, 0xcf],
        events: &[(LOAD, 0x12, 0x10), (STORE, 0x13, 0x10), (CODE, 0x11, 0x10)],
        source: "Sapphire Rapids: DTLB_LOAD_MISSES, DTLB_STORE_MISSES, ITLB_MISSES .WALK_PENDING",
    },
    Row {
        family: 6,
        models: &[0x97, 0x9a, 0xb7, 0xba, 0xbf],
        events: &[(LOAD, 0x12, 0x10), (STORE, 0x13, 0x10), (CODE, 0x11, 0x10)],
        source: "Alder Lake, its large cores alone: DTLB_LOAD_MISSES, DTLB_STORE_MISSES, ITLB_MISSES \
                 .WALK_PENDING",
    },
    Row {
        family: 6,
        models: &[0x5c, 0x5f],
        events: &[(DATA, 0x05, 0x01), (CODE, 0x05, 0x02)],
        source: "Goldmont: PAGE_WALKS.D_SIDE_CYCLES, PAGE_WALKS.I_SIDE_CYCLES",
    },
    Row {
        family: 6,
        models: &[0x37, 0x4a, 0x4c, 0x4d, 0x5a, 0x5d, 0x6e, 0x75],
        events: &[(DATA, 0x05, 0x01), (CODE, 0x05, 0x02)],
        source: "Silvermont: PAGE_WALKS.D_SIDE_CYCLES, PAGE_WALKS.I_SIDE_CYCLES",
    },
    Row {
        family: 6,
        models: &[0x57, 0x85],
        events: &[(DATA, 0x05, 0x01), (CODE, 0x05, 0x02)],
        source: "Knights Landing: PAGE_WALKS.D_SIDE_CYCLES, PAGE_WALKS.I_SIDE_CYCLES",
    },
];

/// AMD since Zen. The first Zen (family 17h, models below 30h) has no masks for instruction walks.
const ZEN_1: &[(&str, u16, u8)] = &[(DATA_WALKS, 0x45, 0xf0)];
const ZEN_2: &[(&str, u16, u8)] = &[(DATA_WALKS, 0x45, 0xf0), (CODE_WALKS, 0x85, 0x07)];
const ZEN_3: &[(&str, u16, u8)] = &[(DATA_WALKS, 0x45, 0xf0), (CODE_WALKS, 0x85, 0x0f)];
const ZEN_SOURCE: &str = "Zen: ls_l1_d_tlb_miss.all_l2_miss, bp_l1_tlb_miss_l2_tlb_miss.all";

/// What this processor counts of page walks.
pub(super) fn walks(cpu: &Cpu) -> Walks {
    let counted = |events: &[(&'static str, u16, u8)]| -> Vec<Event> {
        let event = |&(name, event, mask): &(&'static str, u16, u8)| Event {
            name,
            what: What::Raw { event, mask },
            better: Better::Lower,
        };
        events.iter().map(event).collect()
    };
    let missing = |events: &[Event], absence: &Absence| {
        let has_data = events.iter().any(|event| event.name == DATA);
        let is_told =
            |name: &str| events.iter().any(|event| event.name == name) || (has_data && name != CODE);
        [LOAD, STORE, CODE]
            .into_iter()
            .filter(|name| !is_told(name))
            .map(|name| (name, absence.clone()))
            .collect()
    };
    let model = cpu.model.unwrap_or(0);
    match (cpu.vendor.as_str(), cpu.family) {
        ("GenuineIntel", Some(family)) => {
            let row = ROWS.iter().find(|row| row.family == family && row.models.contains(&model));
            let events = row.map(|row| counted(row.events)).unwrap_or_default();
            let detail = match row {
                Some(_) => "this processor does not count them for stores".to_owned(),
                None => format!("the table of processors has no family {family} model {model:#x}"),
            };
            let absence = Absence::new("cycles of page walks", AbsentWhy::NotThere, detail);
            let absent = missing(&events, &absence);
            Walks { events, source: row.map_or("", |row| row.source), absent }
        }
        ("AuthenticAMD" | "HygonGenuine", Some(family @ 0x17..=0x1a)) => {
            let zen = match (family, model) {
                (0x17, ..0x30) | (0x18, _) => ZEN_1,
                (0x17, _) => ZEN_2,
                _ => ZEN_3,
            };
            let detail = "AMD's processors count page walks, and not their cycles";
            let absence = Absence::new("cycles of page walks", AbsentWhy::NotThere, detail);
            Walks { events: counted(zen), source: ZEN_SOURCE, absent: missing(&[], &absence) }
        }
        (vendor, _) => {
            let of = if vendor.is_empty() { "this processor" } else { vendor };
            let detail = format!("the table of processors has none of {of}");
            let absence = Absence::new("cycles of page walks", AbsentWhy::NotThere, detail);
            Walks { events: Vec::new(), source: "", absent: missing(&[], &absence) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(vendor: &str, family: u32, model: u32) -> Walks {
        walks(&Cpu { vendor: vendor.to_owned(), family: Some(family), model: Some(model), ..cpu() })
    }

    fn cpu() -> Cpu {
        Cpu {
            model_name: String::new(),
            vendor: String::new(),
            family: None,
            model: None,
            stepping: None,
            threads: 1,
            cores: None,
            physical_bits: None,
            virtual_bits: None,
            clock_khz: None,
            flags: Vec::new(),
        }
    }

    #[test]
    fn each_model_stands_once_and_what_is_not_counted_says_why() {
        let mut models: Vec<u32> = ROWS.iter().flat_map(|row| row.models).copied().collect();
        models.sort_unstable();
        assert!(models.windows(2).all(|pair| pair[0] != pair[1]), "{models:x?}");
        for row in &ROWS {
            let walks = of("GenuineIntel", row.family, row.models[0]);
            let told = walks.events.len() + walks.absent.len();
            assert!(walks.source == row.source && (2..=3).contains(&told), "{walks:?}");
        }
    }

    #[test]
    fn processors_have_the_events_of_their_makers_lists() {
        let skylake = of("GenuineIntel", 6, 0x55);
        let codes: Vec<_> = skylake.events.iter().map(|event| (event.name, event.what)).collect();
        assert_eq!(codes[0], (LOAD, What::Raw { event: 0x08, mask: 0x10 }));
        assert_eq!((codes.len(), skylake.absent.len()), (3, 0));
        let milan = of("AuthenticAMD", 0x19, 1);
        assert_eq!(milan.events.len(), 2);
        assert_eq!(milan.absent.iter().map(|(name, _)| *name).collect::<Vec<_>>(), [LOAD, STORE, CODE]);
        for walks in [of("GenuineIntel", 6, 0x0f), of("AuthenticAMD", 0x10, 1), walks(&cpu())] {
            assert_eq!((walks.events.len(), walks.absent.len()), (0, 3), "{walks:?}");
        }
        let westmere = of("GenuineIntel", 6, 0x2c);
        assert_eq!(westmere.absent[0].1.reason(), "this processor does not count them for stores");
    }
}
