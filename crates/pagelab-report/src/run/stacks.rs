//! Who spoils movable memory: the functions and programs behind fallbacks into movable pageblocks.

use pagelab_metrics::callers::{Caller, View as Passed, Weight, callers};
use pagelab_model::run::Run;

use super::{View, clipped};
use crate::style::{Style, count, percent};
use crate::text::{Column, Page};

/// Callers in the summary.
const CALLERS: usize = 3;
/// Columns that the name of a function or program may take.
const NAME_MAX: usize = 32;
/// Programs named beside a caller.
const PROGRAMS: usize = 3;
/// Frames of a stack that are shown.
const FRAMES: usize = 12;

pub(super) fn show(run: &Run, view: View, style: Style) -> String {
    let mut page = Page::new(style);
    let Some(stacks) = &run.stacks else { return page.finish() };
    let found = callers(stacks, Passed::Asker, Weight::Spoiling);
    let number = |number: u64| count(u128::from(number));
    let (all, spoiling) = (found.all.events, found.all.spoiling);
    let facts = [
        style.bold("who spoils movable memory"),
        format!("{} of {} fallbacks", number(spoiling), number(all)),
        format!("{} claimed pageblocks", number(found.all.spoiling_claimed)),
    ];
    page.facts("", &facts, "   ");
    if spoiling == 0 {
        page.hanging_dim("  ", "no unmovable or reclaimable allocation took movable memory");
    } else {
        let most = if view.verbose { found.callers.len() } else { CALLERS };
        let rows: Vec<Vec<String>> =
            found.callers.iter().take(most).map(|caller| row(caller, spoiling, style)).collect();
        let columns = [
            Column::right("fallbacks"),
            Column::right("share"),
            Column::right("claimed"),
            Column::left("asked by"),
            Column::left("in"),
        ];
        // On a narrow terminal the least needed columns go first: the programs, then what was claimed.
        let without = |left: &[usize]| -> Vec<Vec<String>> {
            rows.iter().map(|row| left.iter().map(|&at| row[at].clone()).collect()).collect()
        };
        let fits = page.table_if_it_fits(2, &columns, &rows)
            || page.table_if_it_fits(2, &columns[..4], &without(&[0, 1, 2, 3]));
        if !fits {
            page.table(2, &[Column::right("fallbacks"), Column::left("asked by")], &without(&[0, 3]));
        }
        if found.callers.len() > most {
            let rest = count((found.callers.len() - most) as u128);
            page.hanging_dim("  ", &format!("not shown: {rest} more callers (-v)"));
        }
    }
    if stacks.lost > 0 {
        let text = format!("{} events were lost: the rings were full", number(stacks.lost));
        page.hanging_dim("  ", &text);
    }
    if stacks.not_kept.events > 0 {
        let text =
            format!("{} events have no caller: too many different stacks", number(stacks.not_kept.events));
        page.hanging_dim("  ", &text);
    }
    if view.verbose {
        for note in &stacks.notes {
            page.hanging_dim("  ", note);
        }
        for caller in found.callers.iter().take(CALLERS) {
            page.gap();
            chain(&mut page, caller, style);
        }
    }
    page.finish()
}

fn row(caller: &Caller, all: u64, style: Style) -> Vec<String> {
    let counts = &caller.counts;
    let name = |name: &str| style.one_line(&clipped(name, NAME_MAX));
    let mut programs: Vec<String> = caller
        .programs
        .iter()
        .take(PROGRAMS)
        .map(|(program, _)| program.as_deref().map_or_else(|| "(gone)".to_owned(), name))
        .collect();
    let more = caller.programs.len().saturating_sub(PROGRAMS);
    if more > 0 {
        programs.push(format!("{more} more"));
    }
    vec![
        count(u128::from(counts.spoiling)),
        percent(counts.spoiling as f64 / all.max(1) as f64),
        count(u128::from(counts.spoiling_claimed)),
        name(&caller.function),
        clipped(&programs.join(", "), NAME_MAX),
    ]
}

/// The heaviest stack of a caller, innermost first.
fn chain(page: &mut Page, caller: &Caller, style: Style) {
    let of = |frames: &[String]| {
        // Without frame pointers a chain ends in the same word again and again.
        let mut frames: Vec<&String> = frames.iter().collect();
        frames.dedup();
        let shown: Vec<String> = frames.iter().take(FRAMES).map(|frame| clipped(frame, 80)).collect();
        let more = frames.len().saturating_sub(FRAMES);
        shown.join(" ← ") + &if more > 0 { format!(" ← {more} more") } else { String::new() }
    };
    page.hanging("  ", &style.one_line(&of(&caller.stack)));
    if !caller.user.is_empty() {
        page.hanging_dim("    in the program ", &style.one_line(&of(&caller.user)));
    }
}
