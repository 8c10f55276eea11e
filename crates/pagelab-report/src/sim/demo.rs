//! The demonstration of an allocator, step by step, as a terminal and a page show it.

use crate::grid::{Lean, align, wrap};
use crate::style::{Style, Tint};

/// The same requests under one or several policies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Demo {
    /// What it shows, in a phrase.
    pub title: String,
    /// Phrases for the first lines: pages, orders, seed.
    pub facts: Vec<String>,
    /// One for each policy; all have the same requests.
    pub lanes: Vec<Lane>,
    /// Frames of a pageblock.
    pub block_frames: u32,
    /// The order of the block that the lesson wants at its end.
    pub goal_order: u8,
}

/// A policy at work.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lane {
    /// The policy's name.
    pub policy: String,
    /// Names of its lists, by number.
    pub lists: Vec<String>,
    /// What happened, the start with nothing asked first.
    pub steps: Vec<Step>,
}

/// One request, what the allocator did, and memory after it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// What was asked for: `program 1 asks for a page`.
    pub asked: String,
    /// What the allocator did, sentence by sentence.
    pub did: Vec<String>,
    /// One sign for each frame, as the terminal shows it: `.` free, else a letter; the first frame of a block
    /// is a capital.
    pub frames: String,
    /// The list that each pageblock belongs to.
    pub owners: Vec<u8>,
    /// Free blocks by list and order: the first frames, in the order in which they stand on the list.
    pub free: Vec<Vec<Vec<u32>>>,
    /// F_u by order, from 0 up, 0 to 1.
    pub unusable: Vec<f64>,
    /// Frames that this step gave or took back.
    pub touched: Vec<u32>,
}

/// A part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// What it says.
    pub text: String,
    /// How it is set off.
    pub tint: Tint,
}

/// A line.
pub type Line = Vec<Span>;

fn span(text: impl Into<String>, tint: Tint) -> Span {
    Span { text: text.into(), tint }
}

/// Frames in a row of a picture.
const ROW: usize = 64;
/// First frames of blocks that a cell of the table names, at most.
const NAMED: usize = 3;

/// A step as lines: what was asked, what was done, memory, and the free lists.
pub fn lines(demo: &Demo, lane: &Lane, at: usize, width: usize) -> Vec<Line> {
    let Some(step) = lane.steps.get(at) else { return Vec::new() };
    let last = lane.steps.len().saturating_sub(1);
    let mut lines = vec![vec![
        span(format!("{} policy", lane.policy), Tint::Bold),
        span(format!("   step {at} of {last}"), Tint::Dim),
    ]];
    for (first, text) in [("", &step.asked)].into_iter().chain(step.did.iter().map(|did| ("  - ", did))) {
        let tint = if first.is_empty() { Tint::Bold } else { Tint::Plain };
        for line in wrap(&format!("{first}{text}"), width, 0, first.len()).lines() {
            lines.push(vec![span(line, tint)]);
        }
    }
    lines.push(Vec::new());
    lines.extend(picture(demo, lane, step));
    lines.push(Vec::new());
    lines.extend(free_lists(lane, step));
    lines
}

/// All pages of a step: a sign each, pageblocks apart, and beneath each the list that it belongs to.
pub fn picture(demo: &Demo, lane: &Lane, step: &Step) -> Vec<Line> {
    let block = (demo.block_frames as usize).max(1);
    let signs: Vec<char> = step.frames.chars().collect();
    // Without pageblocks all have the same owner, always.
    let first = step.owners.first();
    let has_owners = lane.steps.iter().flat_map(|step| &step.owners).any(|owner| Some(owner) != first);
    let mut lines = Vec::new();
    for (row, signs) in signs.chunks(ROW).enumerate() {
        let first = row * ROW;
        let blocks = signs.len().div_ceil(block);
        let each = |said: &dyn Fn(usize) -> String| -> String {
            (0..blocks).map(|at| format!("{:<1$}", said(at), block + 1)).collect()
        };
        lines.push(vec![span(format!("  {}", each(&|at| (first + at * block).to_string())), Tint::Dim)]);
        let mut pages = vec![span("  ", Tint::Plain)];
        for (at, signs) in signs.chunks(block).enumerate() {
            if at > 0 {
                pages.push(span("|", Tint::Dim));
            }
            pages.extend(signs.iter().map(|&sign| span(sign, tint_of(sign))));
        }
        lines.push(pages);
        let is_touched = |at: usize| step.touched.contains(&((first + at) as u32));
        if (0..signs.len()).any(is_touched) {
            let marks: String = (0..signs.len())
                .map(|at| {
                    let gap = if at > 0 && at % block == 0 { " " } else { "" };
                    format!("{gap}{}", if is_touched(at) { "^" } else { " " })
                })
                .collect();
            lines.push(vec![span(format!("  {}", marks.trim_end()), Tint::Bold)]);
        }
        if has_owners {
            let owner = |at: usize| step.owners.get(first / block + at).map_or("", |&of| list_name(lane, of));
            let short = |name: &str| match name.len() > block {
                true => format!("{}.", name.chars().take(block - 1).collect::<String>()),
                false => name.to_owned(),
            };
            lines.push(vec![span(format!("  {}", each(&|at| short(owner(at)))), Tint::Dim)]);
        }
    }
    lines
}

fn list_name(lane: &Lane, list: u8) -> &str {
    lane.lists.get(usize::from(list)).map_or("", String::as_str)
}

/// The colour that repeats a sign of a picture.
pub fn tint_of(sign: char) -> Tint {
    match sign.to_ascii_uppercase() {
        'A' => Tint::Cyan,
        'B' => Tint::Green,
        'H' => Tint::Blue,
        'K' => Tint::Yellow,
        'N' => Tint::Magenta,
        _ => Tint::Dim,
    }
}

/// Free blocks by list and order, named by their first pages in the order in which they stand there, and F_u.
fn free_lists(lane: &Lane, step: &Step) -> Vec<Line> {
    let orders = step.unusable.len();
    let pages = |order: usize| match 1u64 << order {
        1 => "1 page".to_owned(),
        pages => format!("{pages} pages"),
    };
    let titles = ["free blocks of".to_owned()].into_iter().chain((0..orders).map(pages)).collect();
    let mut rows: Vec<Vec<String>> = vec![titles];
    for (list, blocks) in step.free.iter().enumerate() {
        let cells = blocks.iter().map(|blocks| match blocks.len() {
            0 => "-".to_owned(),
            // A number more is no wider than the word for it.
            few if few <= NAMED + 1 => join(blocks),
            more => format!("{} +{}", join(&blocks[..NAMED]), more - NAMED),
        });
        let name = lane.lists.get(list).map_or_else(|| list.to_string(), Clone::clone);
        rows.push([name].into_iter().chain(cells).collect());
    }
    let shares = step.unusable.iter().map(|share| format!("{share:.2}"));
    rows.push(["F_u".to_owned()].into_iter().chain(shares).collect());
    let leans = vec![Lean::Left; orders + 1];
    let text = align(&rows, &leans, 2);
    text.into_iter()
        .enumerate()
        .map(|(at, line)| vec![span(line.trim_end(), if at == 0 { Tint::Dim } else { Tint::Plain })])
        .collect()
}

fn join(blocks: &[u32]) -> String {
    blocks.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

/// The same moment under another policy, in two lines: its pages, and how much of what is free is of use.
pub fn beside(demo: &Demo, lane: &Lane, at: usize) -> Vec<Line> {
    let Some(step) = lane.steps.get(at) else { return Vec::new() };
    let of_goal = step.unusable.get(usize::from(demo.goal_order)).copied().unwrap_or_default();
    let goal = 1u32 << demo.goal_order.min(31);
    let says =
        format!("the same under {}: F_u({}) {of_goal:.2}, for {goal} pages", lane.policy, demo.goal_order);
    let pages = picture(demo, lane, step);
    let is_pages = |line: &&Line| line.len() > 1;
    [vec![span(says, Tint::Dim)]].into_iter().chain(pages.iter().filter(is_pages).cloned()).collect()
}

/// Lines as text.
pub fn text(lines: &[Line], style: Style) -> String {
    let mut text = String::new();
    for line in lines {
        for (at, span) in line.iter().enumerate() {
            let said = style.signs(&span.text);
            let said = if at + 1 == line.len() { said.trim_end() } else { &said };
            text.push_str(&style.tint(said, span.tint));
        }
        text.push('\n');
    }
    text
}

/// What the signs mean, before the first step.
pub fn legend(demo: &Demo, width: usize) -> Vec<Line> {
    let mut lines = vec![vec![span(demo.title.as_str(), Tint::Bold)]];
    // A short fact stays on its line: `seed 1`.
    let fact = |fact: &String| if fact.len() > 20 { fact.clone() } else { fact.replace(' ', "\u{a0}") };
    let facts = demo.facts.iter().map(fact).collect::<Vec<_>>().join(", ");
    lines.extend(wrap(&facts, width, 2, 2).lines().map(|line| vec![span(line, Tint::Dim)]));
    let says = "A, B: pages of programs; K: the kernel's own; N: its cache of names; H: huge pages; a dot: \
                free. The first page of a block is a capital letter, and ^ marks what a step changed. Free \
                blocks are named by their first page, in the order in which they stand on their list; \
                +2: so many more. F_u: \
                the share of free memory that is of no use for blocks of that size.";
    lines.extend(wrap(says, width, 2, 2).lines().map(|line| vec![span(line, Tint::Plain)]));
    lines
}

/// What came of it: how many huge pages there are under each policy at the end.
pub fn ending(demo: &Demo, width: usize) -> Vec<Line> {
    let goal = usize::from(demo.goal_order);
    let mut lines = Vec::new();
    for lane in &demo.lanes {
        let Some(step) = lane.steps.last() else { continue };
        let got = step.frames.matches('H').count();
        let refused =
            lane.steps.iter().flat_map(|step| &step.did).filter(|did| did.contains("refused")).count();
        let free = step.frames.matches('.').count();
        let f_u = step.unusable.get(goal).copied().unwrap_or_default();
        let says = format!(
            "{}: {got} huge pages are there, {refused} requests were refused; {free} pages are free, {:.0} % \
             of them of no use for another huge page (F_u({goal}) {f_u:.2}).",
            lane.policy,
            f_u * 100.0
        );
        lines.extend(wrap(&says, width, 0, 2).lines().map(|line| vec![span(line, Tint::Bold)]));
    }
    lines
}
