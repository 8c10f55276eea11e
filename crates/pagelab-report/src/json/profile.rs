//! The JSON of a profile: fields and units stand in `docs/json.md`.

use pagelab_model::Profile;
use pagelab_model::profile::{Begun, ImageProfile, Stretches, UnseenWhy, WhatIf};
use pagelab_tlb::cost::of_what_if;
use pagelab_tlb::plan::Ranked;
use serde_json::Value;

use super::header;
use super::object::{Object, array};
use super::plan::{kind, region, source, walk_cost};
use crate::profile::ranking;

/// The document: by huge page, or by the source's own cells.
pub fn document(profile: &Profile, by_cell: bool) -> Value {
    put(header("profile"), profile, by_cell).into()
}

/// Why a number of misses is missing.
const UNSEEN: &str = "neither a sweep of accessed bits nor a scan of the zero page saw the program";
const COUNTED: &str = "misses are counted, not estimated; or it is not known how far they are off";

/// All misses of a profile, and between which numbers they lie with 95 % where they are an estimate.
pub(super) fn misses(object: Object, profile: &Profile) -> Object {
    let within = profile.misses_interval();
    object
        .option("misses", profile.misses(), UNSEEN)
        .option("misses_low", within.map(|(low, _)| low), COUNTED)
        .option("misses_high", within.map(|(_, high)| high), COUNTED)
}

/// The fields of a profile.
pub(super) fn put(object: Object, profile: &Profile, by_cell: bool) -> Object {
    let shown = ranking(profile, by_cell);
    let region_bytes = if by_cell { profile.page_size.bytes() } else { profile.huge.0 };
    let unpriced = "what a page walk costs is not known: pagelab plan --calibrate measures it";
    let unaccounted = "the source does not account for it";
    let is_seen = profile.misses().is_some();
    misses(object, profile)
        .put("source", source(profile.source))
        .put("command", profile.command.clone())
        .put("page_bytes", profile.page_size.bytes())
        .put("huge_bytes", profile.huge.0)
        .put("region_bytes", region_bytes)
        .put("wall_ns", profile.wall_ns)
        .put("lost", profile.lost)
        .option("profiler_cpu_ns", profile.effort.cpu_ns, unaccounted)
        .option("stopped_ns", profile.effort.stopped_ns, unaccounted)
        .option("duty_permille", profile.effort.duty_permille, unaccounted)
        .option("split_ns", profile.effort.split_ns, unaccounted)
        .option("sweeps", profile.effort.sweeps, unaccounted)
        .option("zero_scans", profile.effort.zero_scans, unaccounted)
        .option("zero_pages_dropped", profile.effort.zero_pages.map(|pages| pages.0), unaccounted)
        .option("zero_pages_returned", profile.effort.zero_pages.map(|pages| pages.1), unaccounted)
        .option("slow_down_ppm", profile.effort.slow_down_ppm, unaccounted)
        .option("accessed_page_ps", profile.effort.accessed_page_ps, unaccounted)
        .option("stretches", profile.effort.stretches.map(stretches), "all of the run was looked at")
        .option("walk_cost", profile.walk_cost.as_ref().map(walk_cost), unpriced)
        .option("cost_ns", shown.timed.then_some((shown.total / 1000.0) as u64), unpriced)
        .put("images", array(&profile.images, |of| image(of, is_seen)))
        .put("regions", array(&shown.regions, |of| region(&shown, of)))
        .put("unseen", Value::Array(shown.mappings.iter().flat_map(unseen).collect()))
        .put("what_ifs", array(&profile.what_ifs, |of| what_if(profile, of)))
        .put("notes", profile.notes.clone())
}

fn stretches(of: Stretches) -> Object {
    Object::new().put("count", of.count).put("counted", of.counted).put("accesses", of.accesses)
}

fn what_if(profile: &Profile, of: &WhatIf) -> Object {
    let cost = of_what_if(of, profile.walk_cost.as_ref()).map(|ps| (ps / 1000.0) as u64);
    let unpriced = "what a page walk costs is not known: pagelab plan --calibrate measures it";
    Object::new()
        .put("name", of.name.as_str())
        .put("misses", of.misses)
        .option("cost_ns", cost, unpriced)
        .put("upper_reads", of.upper_reads.to_vec())
}

fn image(image: &ImageProfile, is_seen: bool) -> Object {
    let begun = match image.begun {
        Begun::Launched => "launched",
        Begun::Forked => "forked",
        Begun::Executed => "executed",
        Begun::Attached => "attached",
    };
    Object::new()
        .put("pid", image.pid)
        .option("parent", image.parent, "the first process")
        .put("begun", begun)
        .put("program", image.program.path.as_str())
        .option("identity", image.program.identity.as_deref(), "the program's file was not read")
        .put("arguments", image.arguments.clone())
        .option("accesses", image.accesses, "the source does not count accesses")
        .option("instructions", image.instructions, "the source does not count instructions")
        .option("misses", is_seen.then_some(image.misses), UNSEEN)
        .put("mappings", image.mappings.len())
}

fn unseen(mapping: &Ranked) -> Vec<Value> {
    let (word, file) = kind(&mapping.key.kind);
    let one = |&(offset, bytes, why): &(u64, pagelab_model::Bytes, UnseenWhy)| {
        Object::new()
            .put("program", mapping.program.path.as_str())
            .put("kind", word)
            .option("file", file, "the mapping is of no file")
            .put("asked_bytes", mapping.key.bytes.0)
            .put("nth", mapping.key.nth)
            .put("offset", offset)
            .put("bytes", bytes.0)
            .put("why", why_word(why))
            .into()
    };
    mapping.unseen.iter().map(one).collect()
}

fn why_word(why: UnseenWhy) -> &'static str {
    match why {
        UnseenWhy::AlreadyHuge => "already_huge",
        UnseenWhy::ZeroPage => "zero_page",
        UnseenWhy::NotPermitted => "not_permitted",
        UnseenWhy::Changed => "changed",
        UnseenWhy::OutOfRange => "out_of_range",
        UnseenWhy::NotByProgram => "not_by_program",
    }
}
