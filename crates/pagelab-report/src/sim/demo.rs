//! The demonstration of an allocator, step by step, on a terminal and a page.

use serde::Serialize;

use crate::style::{TextStyle, Tint};
use crate::text_report::{Alignment, align_columns, wrap_text};

/// The same requests under one or several policies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Demo {
    /// Subject, in a phrase.
    pub title: String,
    /// Phrases for the first lines: pages, orders, seed.
    pub facts: Vec<String>,
    /// One run per policy; all have the same requests.
    pub policies: Vec<PolicyTrace>,
    /// Frames of a pageblock.
    pub block_frames: u32,
    /// Order of the block that the lesson requests at its end.
    pub huge_page_order: u8,
}

/// Run of a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PolicyTrace {
    /// Name of the policy.
    pub policy: String,
    /// Names of its lists, by number.
    pub lists: Vec<String>,
    /// Steps, beginning with the state before any request.
    pub steps: Vec<RequestStep>,
}

/// One request, the actions of the allocator, and memory after it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RequestStep {
    /// Request: `program 1 asks for a page`.
    pub request: String,
    /// Actions of the allocator, a sentence each.
    pub actions: Vec<String>,
    /// A character per frame, as the terminal shows it: `.` free, else a letter; the first frame of a block
    /// has a capital letter.
    pub frames: String,
    /// Owner list of each pageblock.
    pub owners: Vec<u8>,
    /// Free blocks by list and order: the first frames, in the order of the list.
    pub free: Vec<Vec<Vec<u32>>>,
    /// F_u by order, from 0 up, 0 to 1.
    #[serde(rename = "unusable")]
    pub unusable_by_order: Vec<f64>,
    /// Frames that this step allocated or freed.
    #[serde(rename = "touched")]
    pub touched_frames: Vec<u32>,
}

/// Part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StyledSpan {
    /// Text.
    pub text: String,
    /// Emphasis.
    pub tint: Tint,
}

/// Line.
pub type StyledLine = Vec<StyledSpan>;

fn styled_span(text: impl Into<String>, tint: Tint) -> StyledSpan {
    StyledSpan { text: text.into(), tint }
}

/// Frames in a row of a picture.
const FRAMES_PER_ROW: usize = 64;
/// First frames of blocks in a cell of the table, at most.
const BLOCKS_NAMED_MAX: usize = 3;

/// Renders a step as lines: the request, the actions, memory, and the free lists.
pub fn step_lines(demo: &Demo, trace: &PolicyTrace, step_index: usize, width: usize) -> Vec<StyledLine> {
    let Some(step) = trace.steps.get(step_index) else { return Vec::new() };
    let last = trace.steps.len().saturating_sub(1);
    let mut lines = vec![vec![
        styled_span(format!("{} policy", trace.policy), Tint::Bold),
        styled_span(format!("   step {step_index} of {last}"), Tint::Dim),
    ]];
    for (first_frame, text) in
        [("", &step.request)].into_iter().chain(step.actions.iter().map(|did| ("  - ", did)))
    {
        let tint = if first_frame.is_empty() { Tint::Bold } else { Tint::Plain };
        for line in wrap_text(&format!("{first_frame}{text}"), width, 0, first_frame.len()).lines() {
            lines.push(vec![styled_span(line, tint)]);
        }
    }
    lines.push(Vec::new());
    lines.extend(frame_lines(demo, trace, step));
    lines.push(Vec::new());
    lines.extend(free_list_lines(trace, step));
    lines
}

/// Renders all pages of a step: a character each, pageblocks separated, with the owner list below.
pub fn frame_lines(demo: &Demo, trace: &PolicyTrace, step: &RequestStep) -> Vec<StyledLine> {
    let block = (demo.block_frames as usize).max(1);
    let signs: Vec<char> = step.frames.chars().collect();
    // Without pageblocks, all frames always have the same owner.
    let first_frame = step.owners.first();
    let has_owners = trace.steps.iter().flat_map(|step| &step.owners).any(|owner| Some(owner) != first_frame);
    let mut lines = Vec::new();
    for (row, signs) in signs.chunks(FRAMES_PER_ROW).enumerate() {
        let first_frame = row * FRAMES_PER_ROW;
        let blocks = signs.len().div_ceil(block);
        let sign_row = |said: &dyn Fn(usize) -> String| -> String {
            (0..blocks).map(|at| format!("{:<1$}", said(at), block + 1)).collect()
        };
        lines.push(vec![styled_span(
            format!("  {}", sign_row(&|at| (first_frame + at * block).to_string())),
            Tint::Dim,
        )]);
        let mut pages = vec![styled_span("  ", Tint::Plain)];
        for (at, signs) in signs.chunks(block).enumerate() {
            if at > 0 {
                pages.push(styled_span("|", Tint::Dim));
            }
            pages.extend(signs.iter().map(|&sign| styled_span(sign, sign_tint(sign))));
        }
        lines.push(pages);
        let is_touched = |at: usize| step.touched_frames.contains(&((first_frame + at) as u32));
        if (0..signs.len()).any(is_touched) {
            let marks: String = (0..signs.len())
                .map(|at| {
                    let gap = if at > 0 && at % block == 0 { " " } else { "" };
                    format!("{gap}{}", if is_touched(at) { "^" } else { " " })
                })
                .collect();
            lines.push(vec![styled_span(format!("  {}", marks.trim_end()), Tint::Bold)]);
        }
        if has_owners {
            let owner =
                |at: usize| step.owners.get(first_frame / block + at).map_or("", |&of| list_name(trace, of));
            let short = |name: &str| match name.len() > block {
                true => format!("{}.", name.chars().take(block - 1).collect::<String>()),
                false => name.to_owned(),
            };
            lines.push(vec![styled_span(format!("  {}", sign_row(&|at| short(owner(at)))), Tint::Dim)]);
        }
    }
    lines
}

fn list_name(trace: &PolicyTrace, list: u8) -> &str {
    trace.lists.get(usize::from(list)).map_or("", String::as_str)
}

/// Returns the colour that repeats a character of a picture.
pub fn sign_tint(sign: char) -> Tint {
    match sign.to_ascii_uppercase() {
        'A' => Tint::Cyan,
        'B' => Tint::Green,
        'H' => Tint::Blue,
        'K' => Tint::Yellow,
        'N' => Tint::Magenta,
        _ => Tint::Dim,
    }
}

/// Renders free blocks by list and order, named by their first pages in the order of the list, and F_u.
fn free_list_lines(trace: &PolicyTrace, step: &RequestStep) -> Vec<StyledLine> {
    let orders = step.unusable_by_order.len();
    let pages = |order: usize| match 1u64 << order {
        1 => "1 page".to_owned(),
        pages => format!("{pages} pages"),
    };
    let titles = ["free blocks of".to_owned()].into_iter().chain((0..orders).map(pages)).collect();
    let mut rows: Vec<Vec<String>> = vec![titles];
    for (list, blocks) in step.free.iter().enumerate() {
        let cells = blocks.iter().map(|blocks| match blocks.len() {
            0 => "-".to_owned(),
            // One more number is no wider than the note that replaces it.
            few if few <= BLOCKS_NAMED_MAX + 1 => join_frames(blocks),
            more => format!("{} +{}", join_frames(&blocks[..BLOCKS_NAMED_MAX]), more - BLOCKS_NAMED_MAX),
        });
        let name = trace.lists.get(list).map_or_else(|| list.to_string(), Clone::clone);
        rows.push([name].into_iter().chain(cells).collect());
    }
    let shares = step.unusable_by_order.iter().map(|share| format!("{share:.2}"));
    rows.push(["F_u".to_owned()].into_iter().chain(shares).collect());
    let leans = vec![Alignment::Left; orders + 1];
    let text = align_columns(&rows, &leans, 2);
    text.into_iter()
        .enumerate()
        .map(|(at, line)| vec![styled_span(line.trim_end(), if at == 0 { Tint::Dim } else { Tint::Plain })])
        .collect()
}

fn join_frames(blocks: &[u32]) -> String {
    blocks.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

/// Renders the same step under another policy in two lines: its pages, and the usable share of its free
/// memory.
pub fn other_policies_lines(demo: &Demo, trace: &PolicyTrace, step_index: usize) -> Vec<StyledLine> {
    let Some(step) = trace.steps.get(step_index) else { return Vec::new() };
    let of_goal = step.unusable_by_order.get(usize::from(demo.huge_page_order)).copied().unwrap_or_default();
    let goal = 1u32 << demo.huge_page_order.min(31);
    let says = format!(
        "same step under {}: F_u({}) {of_goal:.2}, for {goal} pages",
        trace.policy, demo.huge_page_order
    );
    let pages = frame_lines(demo, trace, step);
    let is_pages = |line: &&StyledLine| line.len() > 1;
    [vec![styled_span(says, Tint::Dim)]].into_iter().chain(pages.iter().filter(is_pages).cloned()).collect()
}

/// Joins lines to text.
pub fn to_text(lines: &[StyledLine], style: TextStyle) -> String {
    let mut text = String::new();
    for line in lines {
        for (at, span) in line.iter().enumerate() {
            let said = style.to_displayable(&span.text);
            let said = if at + 1 == line.len() { said.trim_end() } else { &said };
            text.push_str(&style.paint_tint(said, span.tint));
        }
        text.push('\n');
    }
    text
}

/// Returns the legend, for display before the first step.
pub fn legend_lines(demo: &Demo, width: usize) -> Vec<StyledLine> {
    let mut lines = vec![vec![styled_span(demo.title.as_str(), Tint::Bold)]];
    // A short fact stays on one line: `seed 1`.
    let fact = |fact: &String| if fact.len() > 20 { fact.clone() } else { fact.replace(' ', "\u{a0}") };
    let facts = demo.facts.iter().map(fact).collect::<Vec<_>>().join(", ");
    lines.extend(wrap_text(&facts, width, 2, 2).lines().map(|line| vec![styled_span(line, Tint::Dim)]));
    let says = "A, B: user pages; K: kernel pages; N: dentry cache; H: huge pages; dot: free. A capital \
                letter marks the first page of a block; ^ marks the changes of a step. Free blocks are \
                listed by their first page, in list order; +2: two more. F_u: share of the free memory \
                unusable for blocks of that size.";
    lines.extend(wrap_text(says, width, 2, 2).lines().map(|line| vec![styled_span(line, Tint::Plain)]));
    lines
}

/// Returns the result: the number of huge pages under each policy at the end.
pub fn ending_lines(demo: &Demo, width: usize) -> Vec<StyledLine> {
    let goal = usize::from(demo.huge_page_order);
    let mut lines = Vec::new();
    for trace in &demo.policies {
        let Some(step) = trace.steps.last() else { continue };
        let got = step.frames.matches('H').count();
        let refused =
            trace.steps.iter().flat_map(|step| &step.actions).filter(|did| did.contains("refused")).count();
        let free = step.frames.matches('.').count();
        let f_u = step.unusable_by_order.get(goal).copied().unwrap_or_default();
        let says = format!(
            "{}: {got} huge pages allocated, {refused} requests failed; {free} pages free, {:.0} % of them \
             unusable for another huge page (F_u({goal}) {f_u:.2}).",
            trace.policy,
            f_u * 100.0
        );
        lines.extend(wrap_text(&says, width, 0, 2).lines().map(|line| vec![styled_span(line, Tint::Bold)]));
    }
    lines
}
