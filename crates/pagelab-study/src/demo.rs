//! Demonstration of a buddy allocator: a scripted lesson on a small traced zone.

use pagelab_command::exit::{Failure, FailureKind, usage_error};
use pagelab_command::output;
use pagelab_model::random::SplitMix64;
use pagelab_report::json::document_header;
use pagelab_report::sim::demo as shown;
use pagelab_report::sim::demo::{Demo, PolicyTrace};
use pagelab_report::style::TextStyle;
use pagelab_sim::policies::{PolicyEntry, TABLE};
use pagelab_sim::types::{AllocationType, Frame, ZoneGeometry};
use serde_json::json;

use crate::catalogue;

mod traced_zone;

#[cfg(test)]
mod tests;

/// Size and steps of a demonstration.
#[derive(Clone, Copy, Debug)]
pub struct DemoRequest {
    /// Memory in pages.
    pub pages: u32,
    /// Number of steps; beyond the lesson they are random. `None`: the lesson.
    pub steps: Option<u32>,
    /// Seed of the random steps.
    pub seed: u64,
}

const DEFAULT_POLICY: &str = "mobility";
/// Page limit: what fits on a screen.
const PAGES_MAX: u32 = 256;
/// Blocks of up to 16 pages and pageblocks of 8, the smallest configuration that shows every event.
const MAX_ORDER: u8 = 4;
const BLOCK_ORDER: u8 = 3;
/// Text width limit, in columns.
pub const WIDTH_MAX: usize = 100;

/// The named policies, or the default ones, the best known first.
pub fn select_policies(given: &[String], all: bool) -> Result<Vec<&'static PolicyEntry>, Failure> {
    let usual = [DEFAULT_POLICY.to_owned()];
    let given = if given.is_empty() { &usual } else { given };
    let mut found = catalogue::placement_policies("--policy", given, "the demonstration has neither")?;
    if all {
        let others = TABLE.iter().filter(|entry| found.iter().all(|known| known.name != entry.name));
        found.extend(others.collect::<Vec<_>>());
    }
    Ok(found)
}

/// Carries out the lesson, and random steps after it, under each policy.
pub fn build_demo(request: DemoRequest, policies: &[&PolicyEntry]) -> Result<Demo, Failure> {
    let DemoRequest { pages: frames, steps, seed } = request;
    let largest = 1u32 << MAX_ORDER;
    if !frames.is_multiple_of(largest) || !(2 * largest..=PAGES_MAX).contains(&frames) {
        let expected = format!("expected a multiple of {largest} from {} to {PAGES_MAX}", 2 * largest);
        return Err(usage_error(&format!("--pages {frames}: {expected}")));
    }
    let shape = ZoneGeometry {
        first_frame: Frame::new(0),
        frames,
        max_order: MAX_ORDER,
        pageblock_order: BLOCK_ORDER,
    };
    let steps = steps.map(|steps| steps as usize);
    let requests = build_steps(frames >> BLOCK_ORDER, BLOCK_ORDER, steps, seed);
    let lanes: Result<Vec<PolicyTrace>, _> =
        policies.iter().map(|entry| traced_zone::run_policy(shape, entry, &requests)).collect();
    let block = 1u32 << BLOCK_ORDER;
    Ok(Demo {
        title: "A page allocator, step by step".to_owned(),
        facts: vec![
            format!("{frames} pages"),
            format!("blocks of up to {largest}"),
            format!("pageblocks of {block}, the size of a huge page here"),
            format!("seed {seed}"),
        ],
        policies: lanes.map_err(|wrong| Failure::new(FailureKind::Bug, wrong.to_string()))?,
        block_frames: block,
        huge_page_order: BLOCK_ORDER,
    })
}

/// All steps of the first policy, each followed by the same step under the others.
pub fn demo_text(demo: &Demo, style: TextStyle) -> String {
    let style = TextStyle { width: style.width.min(WIDTH_MAX), ..style };
    let mut lines: Vec<shown::StyledLine> = shown::legend_lines(demo, style.width);
    if let Some(lane) = demo.policies.first() {
        for at in 0..lane.steps.len() {
            lines.push(Vec::new());
            lines.extend(shown::step_lines(demo, lane, at, style.width));
            for other in demo.policies.iter().skip(1) {
                lines.push(Vec::new());
                lines.extend(shown::other_policies_lines(demo, other, at));
            }
        }
    }
    lines.push(Vec::new());
    lines.extend(shown::ending_lines(demo, style.width));
    shown::to_text(&lines, style)
}

/// The demonstration as JSON.
pub fn demo_json(request: DemoRequest, demo: &Demo) -> Result<String, Failure> {
    let document = document_header("sim_demo")
        .field("pages", request.pages)
        .field("seed", request.seed)
        .field("block_frames", demo.block_frames)
        .field("goal_order", demo.huge_page_order)
        .field("policies", json!(demo.policies));
    output::json_text(&document)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Requester {
    /// Name in the middle of a sentence.
    name: &'static str,
    /// Letter of its pages in the picture.
    letter: char,
    allocation_type: AllocationType,
}

const PROGRAM_A: Requester =
    Requester { name: "program A", letter: 'A', allocation_type: AllocationType::Movable };
const PROGRAM_B: Requester =
    Requester { name: "program B", letter: 'B', allocation_type: AllocationType::Movable };
const HUGETLB_POOL: Requester =
    Requester { name: "the hugetlb pool", letter: 'H', allocation_type: AllocationType::Movable };
const KERNEL: Requester =
    Requester { name: "the kernel", letter: 'K', allocation_type: AllocationType::Unmovable };
const DENTRY_CACHE: Requester =
    Requester { name: "the dentry cache", letter: 'N', allocation_type: AllocationType::Reclaimable };

/// Operation of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DemoOp {
    /// A block of an order. Blocks are known by their place among all requests.
    Allocate { who: Requester, order: u8 },
    /// A block that is freed, by that place.
    Free { block: usize },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LessonStep {
    sentence: String,
    ops: Vec<DemoOp>,
}

/// Script under construction.
#[derive(Debug, Default)]
struct LessonScript {
    requests: Vec<LessonStep>,
    /// Owners of allocated blocks, by index.
    blocks: Vec<(usize, Requester)>,
    allocation_count: usize,
}

impl LessonScript {
    fn allocate(&mut self, who: Requester, orders: &[u8], sentence: impl Into<String>) {
        let ops = orders
            .iter()
            .map(|&order| {
                self.blocks.push((self.allocation_count, who));
                self.allocation_count += 1;
                DemoOp::Allocate { who, order }
            })
            .collect();
        self.requests.push(LessonStep { sentence: sentence.into(), ops });
    }

    fn free(&mut self, blocks: &[usize], sentence: impl Into<String>) {
        self.blocks.retain(|(block, _)| !blocks.contains(block));
        let ops = blocks.iter().map(|&block| DemoOp::Free { block }).collect();
        self.requests.push(LessonStep { sentence: sentence.into(), ops });
    }

    fn blocks_of(&self, who: Requester) -> Vec<usize> {
        self.blocks.iter().filter(|(_, holder)| *holder == who).map(|&(block, _)| block).collect()
    }
}

/// Builds the steps for a memory of the given pageblocks: the lesson, then random steps. `None`: the lesson
/// alone.
fn build_steps(pageblocks: u32, block_order: u8, steps: Option<usize>, seed: u64) -> Vec<LessonStep> {
    let mut script = LessonScript::default();
    write_lesson(&mut script, pageblocks, block_order);
    let mut random = SplitMix64::new(seed);
    while steps.is_some_and(|steps| script.requests.len() < steps) {
        add_random_step(&mut script, &mut random);
    }
    script.requests.truncate(steps.unwrap_or(usize::MAX));
    script.requests
}

/// Splitting and merging first. Then a program and the kernel fill memory alternately, the program exits, and
/// huge pages are requested: the few kernel pages have polluted the pageblocks.
fn write_lesson(script: &mut LessonScript, pageblocks: u32, block_order: u8) {
    script.allocate(PROGRAM_A, &[0], "Program A starts and touches its first page.");
    script.allocate(PROGRAM_A, &[0], "Program A touches another page.");
    script.allocate(KERNEL, &[0], "The kernel allocates a page: it cannot be moved.");
    script.free(&[0], "Program A frees its first page.");
    script.free(&[1], "Program A frees its second page.");
    // As many pages of the program as are left of a pageblock with one page of the kernel in it.
    let parts: Vec<u8> = (0..block_order).rev().collect();
    for turn in 1..pageblocks {
        script.allocate(PROGRAM_A, &parts, "Program A grows.");
        match turn % 3 {
            0 => script.allocate(DENTRY_CACHE, &[0], "A file is opened: its name enters the dentry cache."),
            _ => script.allocate(
                KERNEL,
                &[0],
                "Program A starts a thread: the kernel allocates a page for it.",
            ),
        }
    }
    let blocks = script.blocks_of(PROGRAM_A);
    script.free(&blocks, "Program A exits and frees all its pages. The kernel's pages stay.");
    for turn in ["a", "another", "a third"] {
        script.allocate(
            HUGETLB_POOL,
            &[block_order],
            format!("A program requests {turn} huge page, an entire pageblock."),
        );
    }
}

/// Adds a random step: an allocation or a free with equal probability.
fn add_random_step(script: &mut LessonScript, random: &mut SplitMix64) {
    let gives_back = random.next_below(2) == 0 && !script.blocks.is_empty();
    if gives_back {
        let (block, who) = script.blocks[random.next_below(script.blocks.len() as u64) as usize];
        script.free(&[block], to_sentence(&format!("{} frees a block", who.name)));
        return;
    }
    let who =
        [PROGRAM_A, PROGRAM_A, PROGRAM_B, PROGRAM_B, KERNEL, DENTRY_CACHE][random.next_below(6) as usize];
    let order = [0, 0, 0, 1, 1, 2][random.next_below(6) as usize];
    script.allocate(
        who,
        &[order],
        to_sentence(&format!("{} requests {}", who.name, count_pages(1 << order))),
    );
}

/// Capitalises a phrase and adds a full stop.
fn to_sentence(phrase: &str) -> String {
    let mut signs = phrase.chars();
    let first = signs.next().map_or(String::new(), |sign| sign.to_uppercase().collect());
    format!("{first}{}.", signs.as_str())
}

fn count_pages(count: u32) -> String {
    if count == 1 { "a page".to_owned() } else { format!("{count} pages") }
}
