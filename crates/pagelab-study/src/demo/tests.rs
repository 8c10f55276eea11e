//! Tests that execute the sentences of each step and compare the result with the engine's state.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// State according to the sentences: free blocks by first page, with size and list; and owners.
struct DescribedState<'l> {
    lane: &'l PolicyTrace,
    block: usize,
    free: BTreeMap<u32, (u32, String)>,
    owners: Vec<String>,
    used: BTreeSet<u32>,
}

/// `pages 4-7` or `page 5` at the beginning of a text: first page, count, and what follows.
fn range(text: &str) -> Option<(u32, u32, &str)> {
    let lower = text.strip_prefix(['P', 'p'])?;
    let (rest, several) = match lower.strip_prefix("ages ") {
        Some(rest) => (rest, true),
        None => (lower.strip_prefix("age ")?, false),
    };
    let end = rest.find(|sign: char| !sign.is_ascii_digit() && sign != '-').unwrap_or(rest.len());
    let (numbers, rest) = rest.split_at(end);
    let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
    let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
    assert_eq!(several, last > first, "{text}");
    Some((first, last - first + 1, rest))
}

/// The list in `… on the movable list`.
fn list_after<'t>(text: &'t str, before: &str) -> Option<&'t str> {
    text.split_once(before)?.1.split_once(" list").map(|(name, _)| name)
}

impl DescribedState<'_> {
    fn take_off(&mut self, first: u32, count: u32) -> (u32, String) {
        let found = self.free.remove(&first).unwrap_or_else(|| panic!("page {first} is on no list"));
        assert_eq!(found.0, count, "the block at page {first}");
        found
    }

    fn apply(&mut self, sentence: &str) {
        let is_word = sentence.starts_with("The") && !sentence.starts_with("Their");
        let is_failure = sentence.contains("request fails") || sentence.starts_with("Nothing to free");
        if is_failure || is_word || sentence.starts_with("All ") {
            return;
        }
        if let Some(rest) = sentence.strip_prefix("Now ") {
            let (first, count, rest) = range(rest).unwrap();
            let list = list_after(rest, "free on the ").unwrap();
            self.free.retain(|&at, (size, _)| at + *size <= first || at >= first + count);
            self.free.insert(first, (count, list.to_owned()));
        } else if let Some(rest) = sentence.strip_prefix("Pageblock ") {
            let (number, rest) = rest.split_once(", ").unwrap();
            let number: usize = number.parse().unwrap();
            let (first, count, rest) = range(rest).unwrap();
            assert_eq!((first as usize, count as usize), (number * self.block, self.block));
            let (old, new) = rest.split_once("changes from ").unwrap().1.split_once(" to ").unwrap();
            assert_eq!(self.owners[number], old);
            self.owners[number] = new.strip_suffix('.').unwrap().to_owned();
        } else if let Some(rest) = sentence.strip_prefix("Its ").or(sentence.strip_prefix("Their ")) {
            let (buddy, count, rest) = range(rest.strip_prefix("buddy, ").unwrap()).unwrap();
            self.take_off(buddy, count);
            let (first, both, _) = range(rest.split_once("they merge into ").unwrap().1).unwrap();
            assert_eq!(both, 2 * count);
            assert!(first == buddy || first + count == buddy, "{sentence}");
        } else {
            let (first, count, rest) = range(sentence).unwrap_or_else(|| panic!("{sentence}"));
            self.apply_range(first, count, rest);
        }
    }

    fn apply_range(&mut self, first: u32, count: u32, rest: &str) {
        if rest.starts_with(" move") {
            let (_, from) = self.take_off(first, count);
            assert_eq!(list_after(rest, "from the ").unwrap(), from);
            self.free.insert(first, (count, list_after(rest, "to the ").unwrap().to_owned()));
        } else if let Some((_, parts)) = rest.split_once("halved").and_then(|(_, rest)| rest.split_once(": "))
        {
            self.take_off(first, count);
            for part in parts.split("; ") {
                let list = list_after(part, "free on the ").unwrap();
                for piece in part.split(" stay").next().unwrap().split(", ").flat_map(|of| of.split(" and "))
                {
                    let (at, size, _) = range(piece).unwrap();
                    self.free.insert(at, (size, list.to_owned()));
                }
            }
        } else if rest.contains("exactly the requested size") {
            let (_, list) = self.take_off(first, count);
            assert_eq!(list_after(rest, "on the ").unwrap(), list);
        } else if rest.contains("back from") {
            assert!((first..first + count).all(|page| self.used.remove(&page)), "{first}{rest}");
        } else if let Some(list) = list_after(rest, " the ").filter(|_| rest.contains(" list: ")) {
            let list = list.rsplit(' ').next().unwrap();
            self.free.insert(first, (count, list.to_owned()));
        } else {
            assert!(rest.starts_with(" go"), "{first}{rest}");
            assert!((first..first + count).all(|page| self.used.insert(page)), "{first}{rest}");
        }
    }

    /// Compares the described state with the shown one.
    fn check(&self, at: usize) {
        let step = &self.lane.steps[at];
        let shown: BTreeMap<u32, (u32, String)> = step
            .free
            .iter()
            .enumerate()
            .flat_map(|(list, orders)| {
                let name = &self.lane.lists[list];
                let of_order = move |(order, blocks): (usize, &Vec<u32>)| -> Vec<_> {
                    blocks.iter().map(|&first| (first, (1u32 << order, name.clone()))).collect()
                };
                orders.iter().enumerate().flat_map(of_order)
            })
            .collect();
        assert_eq!(self.free, shown, "{} step {at}: {:?}", self.lane.policy, step.actions);
        let owners: Vec<String> =
            step.owners.iter().map(|&owner| self.lane.lists[usize::from(owner)].clone()).collect();
        assert_eq!(self.owners, owners, "{} step {at}", self.lane.policy);
        let used: BTreeSet<u32> =
            (0..).zip(step.frames.chars()).filter(|(_, c)| *c != '.').map(|(p, _)| p).collect();
        assert_eq!(self.used, used, "{} step {at}", self.lane.policy);
    }
}

fn demo_of(pages: u32, steps: Option<u32>, seed: u64) -> Demo {
    build_demo(DemoRequest { pages, steps, seed }, &select_policies(&[], true).unwrap()).unwrap()
}

#[test]
fn the_sentences_carried_out_give_the_picture() {
    for (pages, steps, seed) in [(64, None, 1), (64, Some(300), 1), (32, Some(300), 2), (256, Some(400), 3)] {
        let demo = demo_of(pages, steps, seed);
        assert_eq!(demo.policies.len(), TABLE.len());
        for lane in &demo.policies {
            let mut state = DescribedState {
                lane,
                block: demo.block_frames as usize,
                free: BTreeMap::new(),
                owners: lane.steps[0].owners.iter().map(|&of| lane.lists[usize::from(of)].clone()).collect(),
                used: BTreeSet::new(),
            };
            for (list, orders) in lane.steps[0].free.iter().enumerate() {
                for (order, blocks) in orders.iter().enumerate() {
                    state.free.extend(blocks.iter().map(|&at| (at, (1 << order, lane.lists[list].clone()))));
                }
            }
            state.check(0);
            for at in 1..lane.steps.len() {
                lane.steps[at].actions.iter().for_each(|sentence| state.apply(sentence));
                state.check(at);
            }
        }
    }
}

#[test]
fn marks_show_what_changed_and_shares_add_up() {
    for lane in demo_of(64, Some(200), 5).policies {
        for pair in lane.steps.windows(2) {
            let [before, after] = pair else { continue };
            let changed = before.frames.chars().zip(after.frames.chars()).enumerate();
            for (at, _) in changed.filter(|(_, (old, new))| old != new) {
                assert!(after.touched_frames.contains(&(at as u32)), "{}: page {at}", lane.policy);
            }
            let free = after.frames.matches('.').count();
            let listed: usize = after
                .free
                .iter()
                .flatten()
                .enumerate()
                .map(|(at, blocks)| blocks.len() << (at % (usize::from(MAX_ORDER) + 1)))
                .sum();
            assert_eq!(free, listed);
            assert!(
                after.unusable_by_order.is_sorted()
                    && after.unusable_by_order[0] == f64::from(u8::from(free == 0))
            );
        }
    }
}

#[test]
fn the_lesson_shows_what_the_policies_are_for() {
    let demo = demo_of(64, None, 1);
    let huge = |name: &str| {
        let lane = demo.policies.iter().find(|lane| lane.policy == name).unwrap();
        lane.steps.last().unwrap().frames.matches('H').count()
    };
    assert_eq!((huge("standard"), huge("list2"), huge("list3"), huge("mobility-6.18")), (0, 3, 3, 3));
}

#[test]
fn lines_fit_and_say_the_same_without_colour() {
    let demo = demo_of(256, Some(120), 9);
    let plain = demo_text(&demo, TextStyle { width: 100, ..TextStyle::PLAIN });
    assert!(plain.lines().all(|line| line.chars().count() <= 100));
    let colour = demo_text(&demo, TextStyle { width: 100, colour: true, unicode: true });
    let mut stripped = String::new();
    let mut parts = colour.split("\x1b[");
    stripped.push_str(parts.next().unwrap());
    parts.for_each(|part| stripped.push_str(part.split_once('m').unwrap().1));
    let differs = stripped.lines().zip(plain.lines()).find(|(one, other)| one != other);
    assert!(differs.is_none() && stripped.len() == plain.len(), "{differs:?}");
}
