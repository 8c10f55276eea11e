//! What happened meanwhile: how often each kind, and when what.

use pagelab_model::run::Run;

use super::{View, clipped};
use crate::quantity::duration;
use crate::style::{Style, count};
use crate::text::Page;

/// Events that the summary shows: the last ones, which tell most of how it ended.
const LAST: usize = 3;
/// Kinds that an experiment has for each trial: how it was prepared, and what it computed.
const USUAL: [&str; 3] = ["preflight", "checksum", "trial"];
/// Columns that a kind may take.
const KIND_MAX: usize = 20;
/// Kinds that are counted by name.
const KINDS_MAX: usize = 8;
/// Characters of a text in the summary.
const TEXT_MAX: usize = 200;

pub(super) fn show(run: &Run, view: View, style: Style) -> String {
    let mut page = Page::new(style);
    let mut kinds: Vec<(&str, u128)> = Vec::new();
    let mut others = 0;
    for event in &run.events {
        match kinds.iter().position(|(kind, _)| *kind == event.kind) {
            Some(place) => kinds[place].1 += 1,
            None if kinds.len() < KINDS_MAX => kinds.push((&event.kind, 1)),
            None => others += 1,
        }
    }
    let mut facts = vec![style.bold("events")];
    facts.extend(kinds.iter().map(|(kind, times)| format!("{} {}", count(*times), clipped(kind, KIND_MAX))));
    if others > 0 {
        facts.push(format!("{} of other kinds", count(others)));
    }
    let is_usual = run.experiment.is_some() && run.events.iter().all(|of| USUAL.contains(&of.kind.as_str()));
    if is_usual && !view.verbose {
        facts.push("not shown: -v".to_owned());
        page.facts("", &facts, "   ");
        return page.finish();
    }
    page.facts("", &facts, "   ");
    let skipped = if view.verbose { 0 } else { run.events.len().saturating_sub(LAST) };
    if skipped > 0 {
        page.hanging_dim("  ", &format!("not shown: {} earlier ones (-v)", count(skipped as u128)));
    }
    for event in run.events.iter().skip(skipped) {
        let text = if view.verbose { event.text.clone() } else { clipped(&event.text, TEXT_MAX) };
        let first =
            format!("  {:>11}  {}  ", duration(event.at_ns), style.one_line(&clipped(&event.kind, KIND_MAX)));
        page.hanging(&style.signs(&first), &text);
    }
    page.finish()
}
