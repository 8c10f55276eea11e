//! Functions and programs that pollute movable memory: the callers behind fallbacks into movable pageblocks.

use pagelab_metrics::callers::{Caller, aggregate_callers};
use pagelab_model::run::Run;

use super::{View, clip_name};
use crate::style::{TextStyle, format_count, format_percent};
use crate::text_report::{RowTable, TextReport};

/// Callers in the summary, at most.
const CALLERS_MAX: usize = 3;
/// Columns of the name of a function or program, at most.
const NAME_MAX: usize = 32;
/// Programs named beside a caller, at most.
const PROGRAMS_MAX: usize = 3;
/// Frames of a stack, at most.
const FRAMES_MAX: usize = 12;

pub(super) fn render_stacks(run: &Run, view: View, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    let Some(stacks) = &run.stacks else { return output.into_text() };
    let stacks_table = aggregate_callers(stacks);
    let number = |number: u64| format_count(u128::from(number));
    let (total_fallbacks, polluting_fallbacks) = (stacks_table.total.events, stacks_table.total.polluting);
    let facts = [
        style.paint_bold("callers that pollute movable pageblocks"),
        format!("{} of {} fallbacks", number(polluting_fallbacks), number(total_fallbacks)),
        format!("{} claimed pageblocks", number(stacks_table.total.polluting_claimed)),
    ];
    output.add_fact_line(&facts);
    if polluting_fallbacks == 0 {
        output.add_dim_indented("no unmovable or reclaimable allocation fell back to movable memory");
    } else {
        let heaviest = if view.verbose { stacks_table.callers.len() } else { CALLERS_MAX };
        // On a narrow terminal, the programs are left out first, then the claimed pageblocks.
        let choices: [&[usize]; 3] = [&[0, 1, 2, 3, 4], &[0, 1, 2, 3], &[0, 3]];
        RowTable::<&Caller>::new()
            .right("fallbacks", |caller| number(caller.counts.polluting))
            .right("share", |caller| {
                format_percent(caller.counts.polluting as f64 / polluting_fallbacks as f64)
            })
            .right("claimed", |caller| number(caller.counts.polluting_claimed))
            .left("caller", |caller| style.clip_name(&caller.function, NAME_MAX))
            .left("in", |caller| programs_text(caller, style))
            .add_narrowed_to(&mut output, 2, stacks_table.callers.iter().take(heaviest), &choices);
        if stacks_table.callers.len() > heaviest {
            let rest = format_count((stacks_table.callers.len() - heaviest) as u128);
            output.add_dim_indented(&format!("not shown: {rest} more callers (-v)"));
        }
    }
    if stacks.lost > 0 {
        let text = format!("{} events were lost: the ring buffers were full", number(stacks.lost));
        output.add_dim_indented(&text);
    }
    if stacks.overflow.events > 0 {
        let text =
            format!("{} events have no caller: too many different stacks", number(stacks.overflow.events));
        output.add_dim_indented(&text);
    }
    if view.verbose {
        for note in &stacks.notes {
            output.add_dim_indented(note);
        }
        for caller in stacks_table.callers.iter().take(CALLERS_MAX) {
            output.add_gap();
            write_heaviest_stack(&mut output, caller, style);
        }
    }
    output.into_text()
}

fn programs_text(caller: &Caller, style: TextStyle) -> String {
    let name = |name: &str| style.clip_name(name, NAME_MAX);
    let mut programs: Vec<String> = caller
        .programs
        .iter()
        .take(PROGRAMS_MAX)
        .map(|(program, _)| program.as_deref().map_or_else(|| "(exited)".to_owned(), name))
        .collect();
    let more = caller.programs.len().saturating_sub(PROGRAMS_MAX);
    if more > 0 {
        programs.push(format!("{more} more"));
    }
    clip_name(&programs.join(", "), NAME_MAX)
}

/// Writes the most frequent stack of a caller, innermost frame first.
fn write_heaviest_stack(output: &mut TextReport, caller: &Caller, style: TextStyle) {
    let frame_text = |frames: &[String]| {
        // Without frame pointers a chain ends in the same word repeatedly.
        let mut frames: Vec<&String> = frames.iter().collect();
        frames.dedup();
        let shown: Vec<String> = frames.iter().take(FRAMES_MAX).map(|frame| clip_name(frame, 80)).collect();
        let more = frames.len().saturating_sub(FRAMES_MAX);
        shown.join(" ← ") + &if more > 0 { format!(" ← {more} more") } else { String::new() }
    };
    output.add_indented(&style.to_one_line(&frame_text(&caller.stack)));
    if !caller.user.is_empty() {
        output.add_dim_paragraph("    user stack ", &style.to_one_line(&frame_text(&caller.user)));
    }
}
