//! Allocator of the demonstration: each request goes to the simulator's zone, and the description is derived
//! from the zone's metadata before and after.

use std::collections::BTreeMap;

use pagelab_metrics::fragmentation_index::unusable_index;
use pagelab_model::{FreeAreas, Order};
use pagelab_report::sim::demo::{PolicyTrace, RequestStep};
use pagelab_sim::machine::AnyPolicy;
use pagelab_sim::policies::Policy as _;
use pagelab_sim::policies::PolicyEntry;
use pagelab_sim::types::{AllocationType, Error, Frame, ZoneGeometry, ZoneOffset};
use pagelab_sim::zone::Zone;

use super::{DemoOp, LessonStep, Requester, to_sentence};
use crate::catalogue::types_on_list;

/// Zone whose steps are described.
struct TracedZone {
    zone: Zone<AnyPolicy>,
    lists: Vec<String>,
    /// First frame and owner of each block, by allocation index; `None` if it was not allocated or is freed.
    blocks: Vec<Option<(Frame, Requester)>>,
    /// Letter of each frame.
    frame_signs: Vec<char>,
    /// Descriptions of the current step, and the frames that it has touched.
    sentences: Vec<String>,
    touched: Vec<u32>,
}

/// Free blocks and owners of pageblocks at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ZoneState {
    /// Free blocks by first frame: order and list.
    free: BTreeMap<Frame, (u8, u8)>,
    pageblock_lists: Vec<u8>,
}

/// Names of a policy's lists, after the allocation types that use them.
fn list_names(policy: AnyPolicy) -> Vec<String> {
    let name = |list: u8| match types_on_list(policy, list).as_slice() {
        [] => format!("list {list}"),
        [name] => (*name).to_owned(),
        names if names.len() == AllocationType::ALL.len() => "free".to_owned(),
        _ => "kernel".to_owned(),
    };
    (0..policy.list_count()).map(name).collect()
}

/// Pages in words: `page 5`, `pages 4-7`.
fn page_range(first: Frame, order: u8) -> String {
    match first.number() {
        first if order == 0 => format!("page {first}"),
        first => format!("pages {first}-{}", first + (1 << order) - 1),
    }
}

/// Ranges in a sentence: `pages 8-15, pages 4-7 and page 1`.
fn join_ranges(ranges: &[String]) -> String {
    match ranges {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => ranges.concat(),
    }
}

/// The verb that goes with a [`page_range`].
fn verb_for<'w>(order: u8, singular: &'w str, plural: &'w str) -> &'w str {
    if order == 0 { singular } else { plural }
}

/// Runs all requests under a policy.
pub(super) fn run_policy(
    shape: ZoneGeometry,
    entry: &PolicyEntry,
    requests: &[LessonStep],
) -> Result<PolicyTrace, Error> {
    let mut watched = TracedZone::new(shape, entry.policy)?;
    let largest = 1u32 << shape.max_order;
    watched.sentences.push(format!("All {} pages are free, in blocks of {largest}.", shape.frames));
    let mut steps = vec![watched.finish_step("No request yet.".to_owned())];
    for request in requests {
        request.ops.iter().try_for_each(|op| watched.apply(op))?;
        watched.zone.validate()?;
        steps.push(watched.finish_step(request.sentence.clone()));
    }
    Ok(PolicyTrace { policy: entry.name.to_owned(), lists: watched.lists, steps })
}

impl TracedZone {
    /// A zone with all memory free.
    fn new(shape: ZoneGeometry, policy: AnyPolicy) -> Result<TracedZone, Error> {
        Ok(TracedZone {
            lists: list_names(policy),
            frame_signs: vec!['.'; shape.frames as usize],
            zone: Zone::new(shape, policy)?,
            blocks: Vec::new(),
            sentences: Vec::new(),
            touched: Vec::new(),
        })
    }

    fn zone_state(&self) -> ZoneState {
        let geometry = self.zone.geometry();
        let mut free = BTreeMap::new();
        for list in 0..self.zone.policy().list_count() {
            for order in 0..=geometry.max_order {
                let blocks = self.zone.free_lists().blocks(list, order);
                free.extend(blocks.map(|offset| (geometry.frame_at(offset), (order, list))));
            }
        }
        ZoneState { free, pageblock_lists: self.zone.pageblock_owners().to_vec() }
    }

    fn list_name(&self, list: u8) -> &str {
        self.lists.get(usize::from(list)).map_or("", String::as_str)
    }

    fn apply(&mut self, op: &DemoOp) -> Result<(), Error> {
        match *op {
            DemoOp::Allocate { who, order } => self.allocate(who, order),
            DemoOp::Free { block } => match self.blocks.get_mut(block).and_then(Option::take) {
                Some((frame, who)) => self.free_block(frame, who),
                None => {
                    self.sentences.push("Nothing to free: the allocation had failed.".to_owned());
                    Ok(())
                }
            },
        }
    }

    fn allocate(&mut self, who: Requester, order: u8) -> Result<(), Error> {
        let state_before = self.zone_state();
        let Some(taken) = self.zone.allocate_block(order, who.allocation_type)? else {
            self.sentences.push(self.explain_failure(order));
            self.blocks.push(None);
            return Ok(());
        };
        let own_list = self.zone.policy().allocation_list(who.allocation_type);
        if !state_before.free.values().any(|&(size, list)| list == own_list && size >= order) {
            let lacks = match order {
                0 => "is empty".to_owned(),
                _ => format!("has no block of {}", super::count_pages(1 << order)),
            };
            self.sentences.push(format!("The {} list {lacks}.", self.list_name(own_list)));
        }
        self.describe_changes(&state_before, taken.frame, order);
        let (pages, goes) = (page_range(taken.frame, order), verb_for(order, "goes", "go"));
        self.sentences.push(to_sentence(&format!("{pages} {goes} to {}", who.name)));
        self.set_sign(taken.frame, order, who.letter);
        self.blocks.push(Some((taken.frame, who)));
        Ok(())
    }

    fn explain_failure(&self, order: u8) -> String {
        let free = self.zone.free_frames();
        let largest = self.zone.free_blocks().iter().rposition(|&blocks| blocks > 0);
        let pages_needed = 1u32 << order;
        match largest {
            None => format!("The request fails: no page is free, {pages_needed} were requested."),
            Some(largest) if largest >= usize::from(order) => {
                format!(
                    "The request fails: the policy reserves the free blocks of {} pages for other requests.",
                    1u32 << largest
                )
            }
            Some(largest) => format!(
                "The request fails: {free} pages are free, but no {pages_needed} of them are contiguous: the \
                largest block has {}.",
                1u32 << largest
            ),
        }
    }

    /// Describes the changes of free lists and pageblock owners after an allocation.
    fn describe_changes(&mut self, before: &ZoneState, taken: Frame, order: u8) {
        let state_after = self.zone_state();
        // The free block that contained it.
        let source =
            before.free.range(..=taken).next_back().map(|(&first, &(size, list))| (first, size, list));
        let (first, size, list) = source.unwrap_or((taken, order, 0));
        let block_frames = first..first + (1 << size);
        let remainders: Vec<(Frame, u8, u8)> = state_after
            .free
            .range(block_frames.clone())
            .map(|(&frame, &(size, list))| (frame, size, list))
            .collect();
        for (&frame, &(size, from)) in &before.free {
            let remainder_text = match frame == first {
                true => remainders
                    .first()
                    .map(|&(_, _, list)| list)
                    .filter(|&now| remainders.iter().all(|of| of.2 == now)),
                false => {
                    state_after.free.get(&frame).filter(|(known, _)| *known == size).map(|&(_, list)| list)
                }
            };
            if let Some(to) = remainder_text.filter(|&now| now != from) {
                let (pages, verb) = (page_range(frame, size), verb_for(size, "moves", "move"));
                let (from, to) = (self.list_name(from), self.list_name(to));
                let sentence = to_sentence(&format!("{pages} {verb} from the {from} list to the {to} list"));
                self.sentences.push(sentence);
            }
        }
        let is_new = |frame: Frame, size: u8| before.free.get(&frame).is_none_or(|(known, _)| *known != size);
        for (&frame, &(size, list)) in &state_after.free {
            if !block_frames.contains(&frame) && is_new(frame, size) {
                let (pages, is) = (page_range(frame, size), verb_for(size, "is", "are"));
                self.sentences.push(format!("Now {pages} {is} free on the {} list.", self.list_name(list)));
            }
        }
        self.describe_owner_changes(before, &state_after);
        self.sentences.push(self.describe_split(first, size, list, taken, order, &remainders));
    }

    fn describe_owner_changes(&mut self, before: &ZoneState, after: &ZoneState) {
        let shape = self.zone.geometry();
        let lists = before.pageblock_lists.iter().zip(&after.pageblock_lists).enumerate();
        for (at, (&old, &new)) in lists.filter(|(_, (old, new))| old != new) {
            let pages = page_range(shape.pageblock_start(at as u32), shape.pageblock_order);
            let (old, new) = (self.list_name(old), self.list_name(new));
            let sentence = format!("Pageblock {at}, {pages}, changes from {old} to {new}.");
            self.sentences.push(sentence);
        }
    }

    /// Describes the split of the source block: it is used entirely, or halved, and its `remainders` stay
    /// free.
    fn describe_split(
        &self,
        first: Frame,
        size: u8,
        list: u8,
        taken: Frame,
        order: u8,
        remainders: &[(Frame, u8, u8)],
    ) -> String {
        if remainders.is_empty() {
            let is = verb_for(order, "is", "are");
            let (pages, list) = (page_range(taken, order), self.list_name(list));
            return to_sentence(&format!("{pages} {is} free on the {list} list, exactly the requested size"));
        }
        let times = match size - order {
            1 => "halved".to_owned(),
            2 => "halved twice".to_owned(),
            more => format!("halved {more} times"),
        };
        let stay = if remainders.len() == 1 && remainders[0].1 == 0 { "stays" } else { "stay" };
        let mut lists: Vec<u8> = remainders.iter().map(|&(_, _, list)| list).collect();
        lists.sort_unstable();
        lists.dedup();
        let parts: Vec<String> = lists
            .into_iter()
            .map(|list| {
                // The largest first, in the order of splitting.
                let of = remainders.iter().rev().filter(|&&(_, _, known)| known == list);
                let ranges: Vec<String> = of.map(|&(frame, size, _)| page_range(frame, size)).collect();
                format!("{} {stay} free on the {} list", join_ranges(&ranges), self.list_name(list))
            })
            .collect();
        to_sentence(&format!("{} are {times}: {}", page_range(first, size), parts.join("; ")))
    }

    fn free_block(&mut self, frame: Frame, who: Requester) -> Result<(), Error> {
        let state_before = self.zone_state();
        let order = self.zone.free_block(frame)?;
        self.set_sign(frame, order, '.');
        let (pages, comes) = (page_range(frame, order), verb_for(order, "comes", "come"));
        self.sentences.push(to_sentence(&format!("{pages} {comes} back from {}", who.name)));
        let state_after = self.zone_state();
        let Some((&first, &(size, list))) = state_after.free.range(..=frame).next_back() else {
            return Err(Error::Corrupted(format!("{frame:?} was freed, but is on no list")));
        };
        let (mut from, mut so_far) = (frame, order);
        while so_far < size {
            let buddy = from.buddy(so_far);
            if state_before.free.get(&buddy).is_none_or(|&(known, _)| known != so_far) {
                return Err(Error::Corrupted(format!("{buddy:?} was merged, but was not free")));
            }
            let (their, buddies) = (verb_for(so_far, "Its", "Their"), page_range(buddy, so_far));
            (from, so_far) = (from.min(buddy), so_far + 1);
            let pages = page_range(from, so_far);
            self.sentences.push(format!("{their} buddy, {buddies}, is free: they merge into {pages}."));
        }
        self.describe_owner_changes(&state_before, &state_after);
        self.sentences.push(self.describe_placement(first, size, list));
        Ok(())
    }

    /// Describes the list and position of a freed block.
    fn describe_placement(&self, first: Frame, size: u8, list: u8) -> String {
        let reason = if size == self.zone.geometry().max_order {
            "the largest block size".to_owned()
        } else {
            let buddy = first.buddy(size);
            let (their, is) =
                (verb_for(size, "its", "their"), verb_for(size, "is not free", "is not entirely free"));
            match self.zone.geometry().contains(buddy) {
                true => format!("{their} buddy, {}, {is}", page_range(buddy, size)),
                false => "the end of memory".to_owned(),
            }
        };
        let listed: Vec<ZoneOffset> = self.zone.free_lists().blocks(list, size).collect();
        let offset = self.zone.geometry().offset_of(first);
        let position_text = match listed.iter().position(|&other| other == offset) {
            _ if listed.len() < 2 => "to",
            Some(0) => "to the front of",
            _ => "to the end of",
        };
        let goes = verb_for(size, "goes", "go");
        to_sentence(&format!(
            "{} {goes} {position_text} the {} list: {reason}",
            page_range(first, size),
            self.list_name(list)
        ))
    }

    fn set_sign(&mut self, frame: Frame, order: u8, sign: char) {
        let first = self.zone.geometry().first_frame;
        for at in Frame::range(frame..frame + (1 << order)) {
            let sign = if at == frame { sign } else { sign.to_ascii_lowercase() };
            if let Some(known) = self.frame_signs.get_mut((at - first) as usize) {
                *known = sign;
            }
            self.touched.push(at - first);
        }
    }

    /// Ends the step of a request: its description, and the state after it.
    fn finish_step(&mut self, request: String) -> RequestStep {
        let mut touched_frames = std::mem::take(&mut self.touched);
        touched_frames.sort_unstable();
        touched_frames.dedup();
        let actions = std::mem::take(&mut self.sentences);
        let shape = self.zone.geometry();
        let blocks = |list: u8, order: u8| {
            self.zone.free_lists().blocks(list, order).map(ZoneOffset::number).collect()
        };
        let of_list = |list: u8| (0..=shape.max_order).map(|order| blocks(list, order)).collect();
        let counts = self.zone.free_blocks().iter().map(|&blocks| u64::from(blocks)).collect();
        let areas = FreeAreas::new(counts);
        let of_order = |order: u8| areas.as_ref().map_or(1.0, |areas| unusable_index(areas, Order(order)));
        RequestStep {
            request,
            actions,
            frames: self.frame_signs.iter().collect(),
            owners: self.zone.pageblock_owners().to_vec(),
            free: (0..self.zone.policy().list_count()).map(of_list).collect(),
            unusable_by_order: (0..=shape.max_order).map(of_order).collect(),
            touched_frames,
        }
    }
}
