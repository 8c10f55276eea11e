//! Page-walk events by processor; they have no generic name.
//!
//! Intel counts the cycles in which a page walker is busy. From Skylake on there are several walkers, and the
//! event adds one for each busy walker: the sum can exceed the cycles. AMD counts walks, not their duration.
//! The numbers are those of the vendors' lists in the kernel's perf (tools/perf/pmu-events/arch/x86,
//! `virtual-memory.json` and `memory.json`, models by `mapfile.csv`, 6.12).

use pagelab_model::experiment::BetterDirection;
use pagelab_model::machine::Cpu;
use pagelab_model::{Absence, AbsenceReason};
use pagelab_sys::perf_event::CounterEvent;

use super::counters::PerfEventSpec;

/// Cycles for loads, stores and instructions.
const LOAD_WALK_CYCLES: &str = "walk-cycles.load";
const STORE_WALK_CYCLES: &str = "walk-cycles.store";
const CODE_WALK_CYCLES: &str = "walk-cycles.instruction";
/// Cycles for loads and stores together, if the processor does not separate them.
const DATA_WALK_CYCLES: &str = "walk-cycles.data";
const DATA_WALKS: &str = "walks.data";
const CODE_WALKS: &str = "walks.instruction";

/// Page-walk events of a processor.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PageWalkEvents {
    pub events: Vec<PerfEventSpec>,
    /// The processor and the vendor's names of the events.
    pub source: String,
    /// Requested events that it does not count, with the reason.
    pub absent: Vec<(&'static str, Absence)>,
}

/// Name, event, mask.
type RawEvents = &'static [(&'static str, u16, u8)];

/// Row of the table: models of Intel's family 6 with the same events.
struct CpuEvents {
    name: &'static str,
    models: &'static [u32],
    events: RawEvents,
    vendor_names: &'static str,
}

const WESTMERE: RawEvents = &[(LOAD_WALK_CYCLES, 0x08, 0x04), (CODE_WALK_CYCLES, 0x85, 0x04)];
const SANDY_BRIDGE: RawEvents =
    &[(LOAD_WALK_CYCLES, 0x08, 0x04), (STORE_WALK_CYCLES, 0x49, 0x04), (CODE_WALK_CYCLES, 0x85, 0x04)];
const IVY_BRIDGE: RawEvents =
    &[(LOAD_WALK_CYCLES, 0x08, 0x84), (STORE_WALK_CYCLES, 0x49, 0x04), (CODE_WALK_CYCLES, 0x85, 0x04)];
const SINCE_HASWELL: RawEvents =
    &[(LOAD_WALK_CYCLES, 0x08, 0x10), (STORE_WALK_CYCLES, 0x49, 0x10), (CODE_WALK_CYCLES, 0x85, 0x10)];
const SINCE_GOLDEN_COVE: RawEvents =
    &[(LOAD_WALK_CYCLES, 0x12, 0x10), (STORE_WALK_CYCLES, 0x13, 0x10), (CODE_WALK_CYCLES, 0x11, 0x10)];
const ATOM: RawEvents = &[(DATA_WALK_CYCLES, 0x05, 0x01), (CODE_WALK_CYCLES, 0x05, 0x02)];

const WALK_CYCLES: &str = "DTLB_LOAD_MISSES.WALK_CYCLES, ITLB_MISSES.WALK_CYCLES";
const WALK_DURATION: &str = "DTLB_LOAD_MISSES, DTLB_STORE_MISSES, ITLB_MISSES .WALK_DURATION";
const WALK_PENDING: &str = "DTLB_LOAD_MISSES, DTLB_STORE_MISSES, ITLB_MISSES .WALK_PENDING";
const SIDE_CYCLES: &str = "PAGE_WALKS.D_SIDE_CYCLES, PAGE_WALKS.I_SIDE_CYCLES";

const fn row(
    name: &'static str,
    models: &'static [u32],
    events: RawEvents,
    vendor_names: &'static str,
) -> CpuEvents {
    CpuEvents { name, models, events, vendor_names }
}

const CPU_EVENTS: [CpuEvents; 12] = [
    row("Westmere", &[0x25, 0x2c, 0x2f], WESTMERE, WALK_CYCLES),
    row("Sandy Bridge", &[0x2a, 0x2d], SANDY_BRIDGE, WALK_DURATION),
    row("Ivy Bridge", &[0x3a, 0x3e], IVY_BRIDGE, WALK_DURATION),
    row("Haswell", &[0x3c, 0x3f, 0x45, 0x46], SINCE_HASWELL, WALK_DURATION),
    row("Broadwell", &[0x3d, 0x47, 0x4f, 0x56], SINCE_HASWELL, WALK_DURATION),
    row("Skylake", &[0x4e, 0x5e, 0x55, 0x8e, 0x9e, 0xa5, 0xa6], SINCE_HASWELL, WALK_PENDING),
    row("Ice Lake", &[0x7d, 0x7e, 0x6a, 0x6c, 0xa7, 0x8c, 0x8d], SINCE_HASWELL, WALK_PENDING),
    row("Sapphire Rapids", &[0x8f, 0xcf], SINCE_GOLDEN_COVE, WALK_PENDING),
    row("Alder Lake, P-cores only", &[0x97, 0x9a, 0xb7, 0xba, 0xbf], SINCE_GOLDEN_COVE, WALK_PENDING),
    row("Goldmont", &[0x5c, 0x5f], ATOM, SIDE_CYCLES),
    row("Silvermont", &[0x37, 0x4a, 0x4c, 0x4d, 0x5a, 0x5d, 0x6e, 0x75], ATOM, SIDE_CYCLES),
    row("Knights Landing", &[0x57, 0x85], ATOM, SIDE_CYCLES),
];

impl CpuEvents {
    fn source(&self) -> String {
        format!("{}: {}", self.name, self.vendor_names)
    }
}

/// AMD since Zen. The first Zen (family 17h, models below 30h) has no masks for instruction walks.
const ZEN_1: RawEvents = &[(DATA_WALKS, 0x45, 0xf0)];
const ZEN_2: RawEvents = &[(DATA_WALKS, 0x45, 0xf0), (CODE_WALKS, 0x85, 0x07)];
const ZEN_3: RawEvents = &[(DATA_WALKS, 0x45, 0xf0), (CODE_WALKS, 0x85, 0x0f)];
const ZEN_SOURCE: &str = "Zen: ls_l1_d_tlb_miss.all_l2_miss, bp_l1_tlb_miss_l2_tlb_miss.all";

/// The page-walk events of this processor.
pub(super) fn page_walk_events(cpu: &Cpu) -> PageWalkEvents {
    let to_events = |events: RawEvents| -> Vec<PerfEventSpec> {
        let event = |&(name, event, mask): &(&'static str, u16, u8)| PerfEventSpec {
            name,
            event_type: CounterEvent::Raw { event, mask },
            better: BetterDirection::Lower,
        };
        events.iter().map(event).collect()
    };
    let missing = |events: &[PerfEventSpec], absence: &Absence| {
        let has_data = events.iter().any(|event| event.name == DATA_WALK_CYCLES);
        let is_named = |name: &str| {
            events.iter().any(|event| event.name == name) || (has_data && name != CODE_WALK_CYCLES)
        };
        [LOAD_WALK_CYCLES, STORE_WALK_CYCLES, CODE_WALK_CYCLES]
            .into_iter()
            .filter(|name| !is_named(name))
            .map(|name| (name, absence.clone()))
            .collect()
    };
    let model = cpu.model.unwrap_or(0);
    match (cpu.vendor.as_str(), cpu.family) {
        ("GenuineIntel", Some(family)) => {
            let row = CPU_EVENTS.iter().find(|row| family == 6 && row.models.contains(&model));
            let events = row.map(|row| to_events(row.events)).unwrap_or_default();
            let detail = match row {
                Some(_) => "this processor does not count them for stores".to_owned(),
                None => format!("no page-walk events are known for family {family} model {model:#x}"),
            };
            let absence = Absence::new("page-walk cycles", AbsenceReason::NotThere, detail);
            let absent = missing(&events, &absence);
            PageWalkEvents { events, source: row.map(CpuEvents::source).unwrap_or_default(), absent }
        }
        ("AuthenticAMD" | "HygonGenuine", Some(family @ 0x17..=0x1a)) => {
            let zen_row = match (family, model) {
                (0x17, ..0x30) | (0x18, _) => ZEN_1,
                (0x17, _) => ZEN_2,
                _ => ZEN_3,
            };
            let detail = "AMD processors count page walks, but not their cycles";
            let absence = Absence::new("page-walk cycles", AbsenceReason::NotThere, detail);
            let absent = missing(&[], &absence);
            PageWalkEvents { events: to_events(zen_row), source: ZEN_SOURCE.to_owned(), absent }
        }
        (vendor, _) => {
            let vendor_name = if vendor.is_empty() { "this processor" } else { vendor };
            let detail = format!("no page-walk events are known for {vendor_name}");
            let absence = Absence::new("page-walk cycles", AbsenceReason::NotThere, detail);
            PageWalkEvents { events: Vec::new(), source: String::new(), absent: missing(&[], &absence) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk_events_of(vendor: &str, family: u32, model: u32) -> PageWalkEvents {
        page_walk_events(&Cpu {
            vendor: vendor.to_owned(),
            family: Some(family),
            model: Some(model),
            ..cpu()
        })
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
        let mut models: Vec<u32> = CPU_EVENTS.iter().flat_map(|row| row.models).copied().collect();
        models.sort_unstable();
        assert!(models.windows(2).all(|pair| pair[0] != pair[1]), "{models:x?}");
        for row in &CPU_EVENTS {
            let walks = walk_events_of("GenuineIntel", 6, row.models[0]);
            let count = walks.events.len() + walks.absent.len();
            assert!(walks.source == row.source() && (2..=3).contains(&count), "{walks:?}");
        }
    }

    #[test]
    fn processors_have_the_events_of_their_makers_lists() {
        let skylake = walk_events_of("GenuineIntel", 6, 0x55);
        let codes: Vec<_> = skylake.events.iter().map(|event| (event.name, event.event_type)).collect();
        assert_eq!(codes[0], (LOAD_WALK_CYCLES, CounterEvent::Raw { event: 0x08, mask: 0x10 }));
        assert_eq!((codes.len(), skylake.absent.len()), (3, 0));
        let milan = walk_events_of("AuthenticAMD", 0x19, 1);
        assert_eq!(milan.events.len(), 2);
        assert_eq!(
            milan.absent.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            [LOAD_WALK_CYCLES, STORE_WALK_CYCLES, CODE_WALK_CYCLES]
        );
        for walks in [
            walk_events_of("GenuineIntel", 6, 0x0f),
            walk_events_of("AuthenticAMD", 0x10, 1),
            page_walk_events(&cpu()),
        ] {
            assert_eq!((walks.events.len(), walks.absent.len()), (0, 3), "{walks:?}");
        }
        let westmere = walk_events_of("GenuineIntel", 6, 0x2c);
        assert_eq!(westmere.absent[0].1.reason(), "this processor does not count them for stores");
    }
}
