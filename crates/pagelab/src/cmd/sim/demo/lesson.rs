//! What is asked of the allocator: a lesson, and after it whatever a seed brings.

use pagelab_model::seed::SplitMix64;
use pagelab_sim::words::Kind;

/// Somebody who asks for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// In the middle of a sentence.
    pub name: &'static str,
    /// Their pages in a picture.
    pub letter: char,
    /// What the allocator knows of them.
    pub kind: Kind,
}

/// A program, whose pages could be moved.
pub const PROGRAM: Who = Who { name: "program A", letter: 'A', kind: Kind::Movable };
/// Another one.
pub const OTHER: Who = Who { name: "program B", letter: 'B', kind: Kind::Movable };
/// Somebody who wants huge pages.
pub const HUGE: Who = Who { name: "the pool of huge pages", letter: 'H', kind: Kind::Movable };
/// The kernel, whose own pages stay where they are.
pub const KERNEL: Who = Who { name: "the kernel", letter: 'K', kind: Kind::Unmovable };
/// A cache of the kernel, which can be shrunk.
pub const NAMES: Who = Who { name: "the kernel's cache of names", letter: 'N', kind: Kind::Reclaimable };

/// One thing that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A block of an order. Blocks are known by their place among all that were asked for.
    Take { who: Who, order: u8 },
    /// A block given back, by that place.
    Free { block: usize },
}

/// One step: what is said of it, and what is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// A sentence.
    pub says: String,
    /// In this order.
    pub ops: Vec<Op>,
}

/// A list of requests under construction.
#[derive(Debug, Default)]
struct Script {
    requests: Vec<Request>,
    /// Who has the blocks that were asked for and not given back, by place.
    held: Vec<(usize, Who)>,
    asked: usize,
}

impl Script {
    fn take(&mut self, who: Who, orders: &[u8], says: impl Into<String>) {
        let ops = orders
            .iter()
            .map(|&order| {
                self.held.push((self.asked, who));
                self.asked += 1;
                Op::Take { who, order }
            })
            .collect();
        self.requests.push(Request { says: says.into(), ops });
    }

    fn free(&mut self, blocks: &[usize], says: impl Into<String>) {
        self.held.retain(|(block, _)| !blocks.contains(block));
        let ops = blocks.iter().map(|&block| Op::Free { block }).collect();
        self.requests.push(Request { says: says.into(), ops });
    }

    fn held_by(&self, who: Who) -> Vec<usize> {
        self.held.iter().filter(|(_, holder)| *holder == who).map(|&(block, _)| block).collect()
    }
}

/// So many requests over a memory of so many pageblocks: the lesson, and then draws. `None`: the lesson.
pub fn requests(pageblocks: u32, block_order: u8, steps: Option<usize>, seed: u64) -> Vec<Request> {
    let mut script = Script::default();
    lesson(&mut script, pageblocks, block_order);
    let mut random = SplitMix64::new(seed);
    while steps.is_some_and(|steps| script.requests.len() < steps) {
        draw(&mut script, &mut random);
    }
    script.requests.truncate(steps.unwrap_or(usize::MAX));
    script.requests
}

/// Halving and merging first. Then a program and the kernel fill memory in turns, the program ends, and
/// huge pages are asked for: what the kernel's few pages have spoiled is seen.
fn lesson(script: &mut Script, pageblocks: u32, block_order: u8) {
    script.take(PROGRAM, &[0], "Program A starts and touches its first page.");
    script.take(PROGRAM, &[0], "Program A touches another page.");
    script.take(KERNEL, &[0], "The kernel needs a page for itself: it will stay where it is.");
    script.free(&[0], "Program A gives its first page back.");
    script.free(&[1], "Program A gives its second page back.");
    // As many pages of the program as are left of a pageblock with one page of the kernel in it.
    let parts: Vec<u8> = (0..block_order).rev().collect();
    for turn in 1..pageblocks {
        script.take(PROGRAM, &parts, "Program A grows.");
        match turn % 3 {
            0 => script.take(NAMES, &[0], "A file is opened: its name goes into the kernel's cache."),
            _ => script.take(KERNEL, &[0], "Program A starts a thread: the kernel keeps a page for it."),
        }
    }
    let blocks = script.held_by(PROGRAM);
    script.free(&blocks, "Program A ends and gives everything back. The kernel's pages stay.");
    for turn in ["a", "another", "a third"] {
        script.take(HUGE, &[block_order], format!("Somebody wants {turn} huge page, a whole pageblock."));
    }
}

/// Something at random: as likely a block given back as one asked for.
fn draw(script: &mut Script, random: &mut SplitMix64) {
    let gives_back = random.below(2) == 0 && !script.held.is_empty();
    if gives_back {
        let (block, who) = script.held[random.below(script.held.len() as u64) as usize];
        script.free(&[block], sentence(&format!("{} gives a block back", who.name)));
        return;
    }
    let who = [PROGRAM, PROGRAM, OTHER, OTHER, KERNEL, NAMES][random.below(6) as usize];
    let order = [0, 0, 0, 1, 1, 2][random.below(6) as usize];
    script.take(who, &[order], sentence(&format!("{} asks for {}", who.name, pages(1 << order))));
}

/// A phrase with a capital and a dot.
pub fn sentence(phrase: &str) -> String {
    let mut signs = phrase.chars();
    let first = signs.next().map_or(String::new(), |sign| sign.to_uppercase().collect());
    format!("{first}{}.", signs.as_str())
}

/// So many pages, in words.
pub fn pages(count: u32) -> String {
    if count == 1 { "a page".to_owned() } else { format!("{count} pages") }
}
