//! `pagelab report` on a terminal: one run file of whatever kind, section by section.
//!
//! A later kind of content adds a file here and a line in `SECTIONS`.

mod activity;
mod course;
mod events;
mod experiment;
mod fragmentation;
mod head;
mod look;
mod maps;
mod not_shown;
mod profile;
mod recorder;
mod samples;
mod scores;
mod series;
pub(crate) mod spark;
mod stacks;
mod study;
pub(crate) mod tune;
mod used;

use pagelab_metrics::recorded;
use pagelab_model::run::Run;

use crate::style::Style;

/// What to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct View {
    /// Everything, not the summary alone.
    pub verbose: bool,
    /// What is the same for all variants of an experiment too.
    pub all: bool,
}

/// One section of the report.
struct Section {
    /// Whether this run has something for it.
    applies: fn(&Run) -> bool,
    /// Its text, each line ended by a newline.
    show: fn(&Run, View, Style) -> String,
}

/// The sections, in the order of the report.
const SECTIONS: [Section; 18] = [
    Section { applies: |_| true, show: head::show },
    Section { applies: tune::applies, show: tune::show },
    Section { applies: |run| run.experiment.is_some(), show: experiment::show },
    Section { applies: |run| run.study.is_some(), show: study::show },
    Section { applies: |run| run.profile.is_some(), show: profile::show },
    Section { applies: |run| run.snapshot.is_some(), show: look::show },
    Section { applies: |run| !recorded::zones(run).is_empty(), show: fragmentation::show },
    Section { applies: used::applies, show: used::show },
    Section { applies: activity::has_pressure, show: activity::pressure },
    Section { applies: activity::applies, show: activity::show },
    Section { applies: series::applies, show: series::show },
    Section { applies: |run| !run.maps.is_empty(), show: maps::show },
    Section { applies: scores::applies, show: scores::show },
    Section { applies: samples::applies, show: samples::show },
    Section { applies: |run| run.stacks.is_some(), show: stacks::show },
    Section { applies: |run| !run.events.is_empty(), show: events::show },
    Section { applies: recorder::applies, show: recorder::show },
    Section { applies: |run| !run.not_shown.is_empty(), show: not_shown::show },
];

/// The report of one run.
pub fn render(run: &Run, view: View, style: Style) -> String {
    let sections = SECTIONS.iter().filter(|section| (section.applies)(run));
    let texts = sections.map(|section| (section.show)(run, view, style)).filter(|text| !text.is_empty());
    let texts: Vec<String> = texts.collect();
    texts.join("\n")
}

/// A name from a file, short enough for a column.
pub(crate) fn clipped(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    name.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// `1 reading`, `2 readings`.
fn plural(of: usize, word: &str) -> String {
    format!("{} {word}{}", crate::style::count(of as u128), if of == 1 { "" } else { "s" })
}

#[cfg(test)]
pub(crate) mod tests;
