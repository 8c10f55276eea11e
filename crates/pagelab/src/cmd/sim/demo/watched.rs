//! The allocator at work: each request is put to the simulator's zone, and what it did is told from its books
//! before and after.

use std::collections::BTreeMap;

use pagelab_metrics::frag::unusable;
use pagelab_model::{FreeAreas, Order};
use pagelab_report::sim::demo::{Lane, Step};
use pagelab_sim::machine::AnyPolicy;
use pagelab_sim::policies::Entry;
use pagelab_sim::policy::Policy as _;
use pagelab_sim::words::{Frame, Kind, Shape, Wrong};
use pagelab_sim::zone::Zone;

use super::lesson::{self, Op, Request, Who, sentence};

/// A zone whose steps are told.
pub struct Watched {
    zone: Zone<AnyPolicy>,
    lists: Vec<String>,
    /// Of each block that was asked for, where it is and whose; `None`: it was not to be had, or is free
    /// again.
    held: Vec<Option<(Frame, Who)>>,
    /// The sign of each frame.
    signs: Vec<char>,
}

/// Free blocks and owners of pageblocks at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Books {
    /// Free blocks by first frame: order and list.
    free: BTreeMap<Frame, (u8, u8)>,
    owners: Vec<u8>,
}

/// What a policy calls its lists: after the kinds that take from them.
pub fn list_names(policy: AnyPolicy) -> Vec<String> {
    let kinds =
        [(Kind::Unmovable, "unmovable"), (Kind::Movable, "movable"), (Kind::Reclaimable, "reclaimable")];
    (0..policy.lists())
        .map(|list| {
            let of: Vec<&str> = kinds
                .iter()
                .filter(|(kind, _)| policy.wanted(*kind) == list)
                .map(|(_, name)| *name)
                .collect();
            match of.as_slice() {
                [] => format!("list {list}"),
                [name] => (*name).to_owned(),
                names if names.len() == kinds.len() => "free".to_owned(),
                _ => "kernel".to_owned(),
            }
        })
        .collect()
}

/// Pages in words: `page 5`, `pages 4-7`.
fn range(first: Frame, order: u8) -> String {
    if order == 0 { format!("page {first}") } else { format!("pages {first}-{}", first + (1 << order) - 1) }
}

/// Ranges in a sentence: `pages 8-15, pages 4-7 and page 1`.
fn join(ranges: &[String]) -> String {
    match ranges {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => ranges.concat(),
    }
}

/// The verb that goes with a [`range`].
fn verb<'w>(order: u8, one: &'w str, several: &'w str) -> &'w str {
    if order == 0 { one } else { several }
}

/// All requests under a policy.
pub fn lane(shape: Shape, entry: &Entry, requests: &[Request]) -> Result<Lane, Wrong> {
    let mut watched = Watched::new(shape, entry.policy)?;
    let largest = 1u32 << shape.max_order;
    let start = vec![format!("All {} pages are free, in blocks of {largest}.", shape.frames)];
    let mut steps = vec![watched.step("Nothing was asked yet.".to_owned(), start, Vec::new())];
    for request in requests {
        let mut said = Vec::new();
        let mut touched = Vec::new();
        for op in &request.ops {
            watched.carry_out(op, &mut said, &mut touched)?;
        }
        watched.zone.validate()?;
        touched.sort_unstable();
        touched.dedup();
        steps.push(watched.step(request.says.clone(), said, touched));
    }
    Ok(Lane { policy: entry.name.to_owned(), lists: watched.lists, steps })
}

impl Watched {
    /// All memory free.
    pub fn new(shape: Shape, policy: AnyPolicy) -> Result<Watched, Wrong> {
        Ok(Watched {
            lists: list_names(policy),
            signs: vec!['.'; shape.frames as usize],
            zone: Zone::new(shape, policy)?,
            held: Vec::new(),
        })
    }

    fn books(&self) -> Books {
        let mut free = BTreeMap::new();
        for list in 0..self.zone.policy().lists() {
            for order in 0..=self.zone.shape().max_order {
                free.extend(self.zone.lists().blocks(list, order).map(|frame| (frame, (order, list))));
            }
        }
        Books { free, owners: self.zone.owners().to_vec() }
    }

    fn list(&self, list: u8) -> &str {
        self.lists.get(usize::from(list)).map_or("", String::as_str)
    }

    fn carry_out(&mut self, op: &Op, said: &mut Vec<String>, touched: &mut Vec<u32>) -> Result<(), Wrong> {
        match *op {
            Op::Take { who, order } => self.take(who, order, said, touched),
            Op::Free { block } => match self.held.get_mut(block).and_then(Option::take) {
                Some((frame, who)) => self.give_back(frame, who, said, touched),
                None => {
                    said.push("There is nothing to give back: the block was not to be had.".to_owned());
                    Ok(())
                }
            },
        }
    }

    fn take(
        &mut self,
        who: Who,
        order: u8,
        said: &mut Vec<String>,
        touched: &mut Vec<u32>,
    ) -> Result<(), Wrong> {
        let before = self.books();
        let Some(taken) = self.zone.take(order, who.kind)? else {
            said.push(self.refused(order));
            self.held.push(None);
            return Ok(());
        };
        let wanted = self.zone.policy().wanted(who.kind);
        if !before.free.values().any(|&(size, list)| list == wanted && size >= order) {
            let lacks = match order {
                0 => "is empty".to_owned(),
                _ => format!("has no {} in a row", lesson::pages(1 << order)),
            };
            said.push(format!("The {} list {lacks}.", self.list(wanted)));
        }
        self.tell_changes(&before, taken.frame, order, said);
        let goes = verb(order, "goes", "go");
        said.push(sentence(&format!("{} {goes} to {}", range(taken.frame, order), who.name)));
        self.mark(taken.frame, order, who.letter, touched);
        self.held.push(Some((taken.frame, who)));
        Ok(())
    }

    fn refused(&self, order: u8) -> String {
        let free = self.zone.free_frames();
        let largest = self.zone.free_blocks().iter().rposition(|&blocks| blocks > 0);
        let wanted = 1u32 << order;
        match largest {
            None => format!("It is refused: no page is free, {wanted} were wanted."),
            Some(largest) if largest >= usize::from(order) => {
                format!(
                    "It is refused: the policy keeps the free blocks of {} pages for others.",
                    1u32 << largest
                )
            }
            Some(largest) => format!(
                "It is refused: {free} pages are free, but no {wanted} side by side: \
                 the largest block has {}.",
                1u32 << largest
            ),
        }
    }

    /// What the free lists and the owners of pageblocks say of a block that was just taken.
    fn tell_changes(&self, before: &Books, taken: Frame, order: u8, said: &mut Vec<String>) {
        let after = self.books();
        // The free block that it was in.
        let source =
            before.free.range(..=taken).next_back().map(|(&first, &(size, list))| (first, size, list));
        let (first, size, list) = source.unwrap_or((taken, order, 0));
        let inside = first..first + (1 << size);
        let rest: Vec<(Frame, u8, u8)> =
            after.free.range(inside.clone()).map(|(&frame, &(size, list))| (frame, size, list)).collect();
        for (&frame, &(size, from)) in &before.free {
            let now = match frame == first {
                true => {
                    rest.first().map(|&(_, _, list)| list).filter(|&now| rest.iter().all(|of| of.2 == now))
                }
                false => after.free.get(&frame).filter(|(known, _)| *known == size).map(|&(_, list)| list),
            };
            if let Some(to) = now.filter(|&now| now != from) {
                let (pages, verb) = (range(frame, size), verb(size, "moves", "move"));
                let (from, to) = (self.list(from), self.list(to));
                said.push(sentence(&format!("{pages} {verb} from the {from} list to the {to} list")));
            }
        }
        let is_new = |frame: Frame, size: u8| before.free.get(&frame).is_none_or(|(known, _)| *known != size);
        for (&frame, &(size, list)) in &after.free {
            if !inside.contains(&frame) && is_new(frame, size) {
                let is = verb(size, "is", "are");
                said.push(format!("Now {} {is} free on the {} list.", range(frame, size), self.list(list)));
            }
        }
        self.tell_owners(&before.owners, &after.owners, said);
        said.push(self.tell_source(first, size, list, taken, order, &rest));
    }

    fn tell_owners(&self, before: &[u8], after: &[u8], said: &mut Vec<String>) {
        let shape = self.zone.shape();
        for (at, (&old, &new)) in before.iter().zip(after).enumerate().filter(|(_, (old, new))| old != new) {
            let pages = range(shape.first + ((at as u32) << shape.block_order), shape.block_order);
            let (old, new) = (self.list(old), self.list(new));
            said.push(format!("Pageblock {at}, {pages}, changes hands: it was {old}, it is {new} now."));
        }
    }

    /// What was done to the free block that a block is taken from: it is taken whole, or halved, and its
    /// `rest` stays free.
    fn tell_source(
        &self,
        first: Frame,
        size: u8,
        list: u8,
        taken: Frame,
        order: u8,
        rest: &[(Frame, u8, u8)],
    ) -> String {
        if rest.is_empty() {
            let is = verb(order, "is", "are");
            let (pages, list) = (range(taken, order), self.list(list));
            return sentence(&format!("{pages} {is} free and just as large as wanted, on the {list} list"));
        }
        let times = match size - order {
            1 => "halved".to_owned(),
            2 => "halved twice".to_owned(),
            more => format!("halved {more} times"),
        };
        let stay = if rest.len() == 1 && rest[0].1 == 0 { "stays" } else { "stay" };
        let mut lists: Vec<u8> = rest.iter().map(|&(_, _, list)| list).collect();
        lists.sort_unstable();
        lists.dedup();
        let parts: Vec<String> = lists
            .into_iter()
            .map(|list| {
                // The largest one first, as they were cut off.
                let of = rest.iter().rev().filter(|&&(_, _, known)| known == list);
                let ranges: Vec<String> = of.map(|&(frame, size, _)| range(frame, size)).collect();
                format!("{} {stay} free on the {} list", join(&ranges), self.list(list))
            })
            .collect();
        sentence(&format!("{} are {times}: {}", range(first, size), parts.join("; ")))
    }

    fn give_back(
        &mut self,
        frame: Frame,
        who: Who,
        said: &mut Vec<String>,
        touched: &mut Vec<u32>,
    ) -> Result<(), Wrong> {
        let before = self.books();
        let order = self.zone.free(frame)?;
        self.mark(frame, order, '.', touched);
        let comes = verb(order, "comes", "come");
        said.push(sentence(&format!("{} {comes} back from {}", range(frame, order), who.name)));
        let after = self.books();
        let Some((&first, &(size, list))) = after.free.range(..=frame).next_back() else {
            return Err(Wrong::Books(format!("frame {frame} was freed and is on no list")));
        };
        let (mut from, mut so_far) = (frame, order);
        while so_far < size {
            let buddy = from ^ (1 << so_far);
            if before.free.get(&buddy).is_none_or(|&(known, _)| known != so_far) {
                return Err(Wrong::Books(format!("frame {buddy} was merged and was not free")));
            }
            let their = verb(so_far, "Its", "Their");
            let buddies = range(buddy, so_far);
            from = from.min(buddy);
            so_far += 1;
            said.push(format!(
                "{their} buddy, {buddies}, is free: together they are {}.",
                range(from, so_far)
            ));
        }
        self.tell_owners(&before.owners, &after.owners, said);
        said.push(self.tell_place(first, size, list));
        Ok(())
    }

    /// On which list, and where on it, a freed block is.
    fn tell_place(&self, first: Frame, size: u8, list: u8) -> String {
        let why = if size == self.zone.shape().max_order {
            "the largest size there is".to_owned()
        } else {
            let buddy = first ^ (1 << size);
            let (their, is) = (verb(size, "its", "their"), verb(size, "is not free", "is not all free"));
            match self.zone.shape().has(buddy) {
                true => format!("{their} buddy, {}, {is}", range(buddy, size)),
                false => "the end of memory".to_owned(),
            }
        };
        let listed: Vec<Frame> = self.zone.lists().blocks(list, size).collect();
        let place = match listed.iter().position(|&frame| frame == first) {
            _ if listed.len() < 2 => "to",
            Some(0) => "to the front of",
            _ => "to the end of",
        };
        let goes = verb(size, "goes", "go");
        sentence(&format!("{} {goes} {place} the {} list: {why}", range(first, size), self.list(list)))
    }

    fn mark(&mut self, frame: Frame, order: u8, sign: char, touched: &mut Vec<u32>) {
        let first = self.zone.shape().first;
        for at in frame..frame + (1 << order) {
            let sign = if at == frame { sign } else { sign.to_ascii_lowercase() };
            if let Some(known) = self.signs.get_mut((at - first) as usize) {
                *known = sign;
            }
            touched.push(at - first);
        }
    }

    /// The state after a request.
    fn step(&self, asked: String, did: Vec<String>, touched: Vec<u32>) -> Step {
        let shape = self.zone.shape();
        let blocks = |list: u8, order: u8| self.zone.lists().blocks(list, order).collect();
        let of_list = |list: u8| (0..=shape.max_order).map(|order| blocks(list, order)).collect();
        let counts = self.zone.free_blocks().iter().map(|&blocks| u64::from(blocks)).collect();
        let areas = FreeAreas::new(counts);
        let of_order = |order: u8| areas.as_ref().map_or(1.0, |areas| unusable(areas, Order(order)));
        Step {
            asked,
            did,
            frames: self.signs.iter().collect(),
            owners: self.zone.owners().to_vec(),
            free: (0..self.zone.policy().lists()).map(of_list).collect(),
            unusable: (0..=shape.max_order).map(of_order).collect(),
            touched,
        }
    }
}
