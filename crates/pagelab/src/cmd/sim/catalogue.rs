//! What there is to simulate, and whether a configuration makes sense, before anything runs.

use pagelab_model::Bytes;
use pagelab_model::study::{StudyCell, StudyFigure, StudyPicture, StudySeries, StudyTrial, StudyZone};
use pagelab_report::style::bytes;
use pagelab_sim::besides;
use pagelab_sim::loads::{self, Load};
use pagelab_sim::machine::{Class, reclaims};
use pagelab_sim::policies::{self, Entry, SHORT};
use pagelab_sim::study::{self, Figure, Outcome, Picture, Scheme, Series, Spec};
use pagelab_sim::words::Kind;

use super::options::once;
use crate::cmd::usage;
use crate::exit::Failure;

/// Something that can be chosen by name.
pub struct Named {
    /// What it is called.
    pub name: &'static str,
    /// What it is, in one line.
    pub summary: &'static str,
    /// Where it is from; may be empty.
    pub source: &'static str,
}

/// Placement policies.
pub fn policies() -> Vec<Named> {
    let named = |of: &Entry| Named { name: of.name, summary: of.summary, source: of.source };
    policies::TABLE.iter().map(named).collect()
}

/// A zone that is added to a policy by `+`.
const ZONE: Named = Named {
    name: "zone",
    summary: "a zone for movable pages alone, above kernelcore",
    source: "Gorman and Whitcroft 2006, section 6; ZONE_MOVABLE",
};

/// What else is added, beside the ways of reclaim and what zones have beside their lists.
const MOVED: [Named; 3] = [
    Named {
        name: "compaction",
        summary: "pages are moved together for large blocks",
        source: "mm/compaction.c",
    },
    Named {
        name: "proactive",
        summary: "compaction ahead of need",
        source: "vm.compaction_proactiveness, Linux 5.9",
    },
    Named {
        name: "noactivate",
        summary: "reclaim takes pages that were used again like the others",
        source: "mm/vmscan.c without PAGEREF_ACTIVATE",
    },
];

/// Words that are added to a policy by `+`.
pub fn added() -> Vec<Named> {
    let way = |of: &reclaims::Entry| Named { name: of.name, summary: of.summary, source: of.source };
    let beside = |of: &besides::Entry| Named { name: of.name, summary: of.summary, source: of.source };
    let mut all = vec![ZONE];
    all.extend(reclaims::named().iter().map(way));
    all.extend(MOVED);
    all.extend(besides::TABLE.iter().map(beside));
    all
}

/// Parts of the simulator that no command reaches: what they are, and where else they can be had.
pub const LIBRARY: [Named; 4] = [
    Named {
        name: "nodes",
        summary: "machines of several nodes: no load says where its programs run",
        source: "pagelab_sim::layout::Layout::x86_64",
    },
    Named {
        name: "trees",
        summary: "trees of pageblocks: sim bench alone, which measures them",
        source: "pagelab_sim::trees, after LLFree",
    },
    Named {
        name: "large folios",
        summary: "pages of programs and files above order 0: loads have none",
        source: "pagelab_sim::machine::Ask, with an order",
    },
    Named {
        name: "splits",
        summary: "live blocks that are cut in parts: sim replay alone, as a trace has them",
        source: "pagelab_sim::zone::Zone::split",
    },
];

/// Machines by name; any size of x86-64 is one too.
pub const MACHINES: [Named; 3] = [
    Named {
        name: "x86",
        summary: "1518 MiB, huge pages of 4 MiB (order 10), high memory",
        source: "Gorman and Whitcroft 2006, section 7",
    },
    Named {
        name: "ppc64",
        summary: "4019 MiB, huge pages of 16 MiB (order 12), one zone",
        source: "Gorman and Whitcroft 2006, section 7",
    },
    Named { name: "16G", summary: "any size of x86-64, huge pages of 2 MiB (order 9)", source: "" },
];

/// Loads.
pub fn loads() -> &'static [Load] {
    loads::TABLE
}

/// The part of a configuration that something is wrong with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Scheme,
    Machine,
    Kernelcore,
    Load,
    Parameters,
}

/// What is wrong with a configuration, in words: what was wanted, what stands in the way, the way out.
pub fn check(cell: &StudyCell) -> Result<(), String> {
    check_parts(cell).map_err(|(_, text)| text)
}

/// The same, with the part of it.
pub fn check_parts(cell: &StudyCell) -> Result<(), (Part, String)> {
    let of = |part: Part| move |text: String| (part, text);
    check_scheme(&cell.scheme).map_err(of(Part::Scheme))?;
    check_load(&cell.load).map_err(of(Part::Load))?;
    check_kernelcore(cell).map_err(of(Part::Kernelcore))?;
    let run = |cell: &StudyCell| {
        let spec = spec(cell, 0, 0)?;
        study::check(&spec).map_err(|wrong| format!("{wrong} (pagelab sim list)"))
    };
    // What goes well without a part is wrong with that part.
    let without = |part: Part| match part {
        Part::Parameters => StudyCell { parameters: Vec::new(), ..cell.clone() },
        _ => StudyCell { parameters: Vec::new(), kernelcore: None, ..cell.clone() },
    };
    run(cell).map_err(|text| {
        let parts = [Part::Parameters, Part::Kernelcore];
        let part = parts.into_iter().find(|&part| run(&without(part)).is_ok());
        (part.unwrap_or(Part::Machine), text)
    })
}

fn check_scheme(text: &str) -> Result<(), String> {
    let words: Vec<&str> = text.split('+').collect();
    for (at, word) in words.iter().enumerate() {
        if word.is_empty() || words[..at].contains(word) {
            let what = if word.is_empty() { "an empty word".to_owned() } else { format!("{word} twice") };
            return Err(format!("{text:?}: {what}; a scheme is words joined by +, such as zone+linear"));
        }
    }
    let ways: Vec<&str> = reclaims::named().iter().map(|way| way.name).collect();
    if ways.iter().filter(|way| words.contains(way)).count() > 1 {
        return Err(format!("{text}: reclaim takes one or the other: {}", ways.join(" or ")));
    }
    let unknown = |word: &&str| !is_added(word) && policies::find(word).is_none();
    if let Some(word) = words.iter().find(|word| unknown(word)) {
        let added: Vec<&str> = added().iter().map(|word| word.name).collect();
        return Err(format!(
            "{text}: no policy is called {word:?}; there are {}, and with + {} (pagelab sim list)",
            names().join(", "),
            added.join(", ")
        ));
    }
    Scheme::parse(text).map(|_| ()).map_err(|wrong| format!("{text}: {wrong} (pagelab sim list)"))
}

/// Whether a word is one that is added, with a size behind it where it takes one.
fn is_added(word: &str) -> bool {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    added().iter().any(|of| match of.name.split_once('=') {
        Some((of, _)) => of == name,
        None => of.name == word,
    })
}

/// All names of placement policies, the short ones behind the others.
fn names() -> Vec<&'static str> {
    let short = SHORT.iter().map(|(name, _)| *name);
    policies::TABLE.iter().map(|policy| policy.name).chain(short).collect()
}

/// The placement policies of these names, for a command that has nothing but the allocator: no zones and no
/// reclaim. `cannot`: what it cannot do with them.
pub fn placements(option: &str, given: &[String], cannot: &str) -> Result<Vec<&'static Entry>, Failure> {
    once(option, given)?;
    let mut found: Vec<&'static Entry> = Vec::new();
    for name in given {
        let added = name.split('+').find(|word| is_added(word));
        let Some(entry) = policies::find(name) else {
            let why = match added {
                Some(word) => format!("{word} belongs to a machine with zones and reclaim, and {cannot}"),
                None => "no such policy".to_owned(),
            };
            return Err(usage(&format!("{option} {name:?}: {why}; there are {}", names().join(", "))));
        };
        if found.iter().any(|known| known.name == entry.name) {
            return Err(usage(&format!("{option} {name:?}: {} is there twice; name each once", entry.name)));
        }
        found.push(entry);
    }
    Ok(found)
}

fn check_load(name: &str) -> Result<(), String> {
    if loads().iter().any(|load| load.name == name) {
        return Ok(());
    }
    let names: Vec<&str> = loads().iter().map(|load| load.name).collect();
    Err(format!("there is no load {name:?}; there are {} (pagelab sim list)", names.join(", ")))
}

/// Bytes of the largest blocks of a machine: what zones are cut at.
fn largest(machine: &str) -> u64 {
    if machine == "ppc64" { 16 << 20 } else { 4 << 20 }
}

/// A zone begins at one of the largest blocks: another size would be rounded, and not be what was asked for.
fn check_kernelcore(cell: &StudyCell) -> Result<(), String> {
    let Some(size) = cell.kernelcore else { return Ok(()) };
    let largest = largest(&cell.machine);
    if size > 0 && size.is_multiple_of(largest) {
        return Ok(());
    }
    let near = (size / largest * largest).max(largest) >> 20;
    Err(format!(
        "kernelcore of {}: zones of {} are cut at multiples of {}; give one, such as {near}M",
        exact(size),
        cell.machine,
        bytes(Bytes(largest))
    ))
}

/// A size that is not rounded, in the largest unit of which it is a whole number.
fn exact(size: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let found = units.iter().find(|(shift, _)| size > 0 && size.is_multiple_of(1 << shift));
    found.map_or(format!("{size} bytes"), |(shift, unit)| format!("{} {unit}", size >> shift))
}

/// What each list of a scheme's policy holds, by number; nothing for a scheme that there is not.
pub fn lists(scheme: &str) -> Vec<String> {
    let Ok(scheme) = Scheme::parse(scheme) else { return Vec::new() };
    let Some(policy) = policies::find(&scheme.policy).map(|entry| entry.policy) else { return Vec::new() };
    let word = |kind: Kind| match kind {
        Kind::Unmovable => "unmovable",
        Kind::Movable => "movable",
        Kind::Reclaimable => "reclaimable",
    };
    let list = |list: u8| {
        let kinds: Vec<&str> =
            Kind::ALL.into_iter().filter(|&kind| policy.wanted(kind) == list).map(word).collect();
        match kinds.len() {
            0 => format!("list {list}"),
            count if count == Kind::ALL.len() => "all".to_owned(),
            _ => kinds.join(", "),
        }
    };
    let besides = scheme.besides.lists().iter().map(|&list| list.to_owned());
    (0..policy.lists()).map(list).chain(besides).collect()
}

/// What the simulator is asked for.
pub fn spec(cell: &StudyCell, seed: u64, pictures: u32) -> Result<Spec, String> {
    let scheme = Scheme::parse(&cell.scheme).map_err(|wrong| wrong.to_string())?;
    Ok(Spec {
        machine: cell.machine.clone(),
        // A scheme without a movable zone has nothing to divide.
        kernelcore: cell.kernelcore.filter(|_| scheme.movable_zone),
        scheme,
        load: cell.load.clone(),
        parameters: cell.parameters.clone(),
        seed,
        pictures,
    })
}

/// The zones of a configuration's machine; nothing for one that there is not.
pub fn zones(cell: &StudyCell) -> Vec<StudyZone> {
    let found = spec(cell, 0, 0).ok().and_then(|spec| study::zones(&spec).ok()).unwrap_or_default();
    found.into_iter().map(|(name, first, frames)| StudyZone { name, first, frames }).collect()
}

/// What came of it, as a run file keeps it.
pub fn trial(slot: usize, outcome: Outcome) -> StudyTrial {
    let figure = |of: Figure| StudyFigure {
        phase: of.phase,
        name: of.name,
        value: of.value,
        per: of.per.max(1),
        unit: of.unit.to_owned(),
    };
    let series = |of: Series| StudySeries { name: of.name, over: of.over.to_owned(), points: of.points };
    StudyTrial {
        slot,
        figures: outcome.figures.into_iter().map(figure).collect(),
        series: outcome.series.into_iter().map(series).collect(),
        pictures: outcome.pictures.into_iter().map(picture).collect(),
        notes: outcome.notes,
    }
}

fn picture(of: Picture) -> StudyPicture {
    let run = |(first, frames, class): (u32, u32, Option<Class>)| (first, frames, number(class));
    let runs = of.runs.into_iter().map(run).collect();
    StudyPicture { step: of.step, phase: of.phase, runs, owners: of.owners }
}

/// The number of a use in the file; 0 is free.
fn number(class: Option<Class>) -> u8 {
    match class {
        None => 0,
        Some(Class::Kernel) => 1,
        Some(Class::PageTable) => 2,
        Some(Class::Cache) => 3,
        Some(Class::File | Class::Buffer) => 4,
        Some(Class::Anonymous) => 5,
        Some(Class::Huge) => 6,
    }
}
