//! Tests: the planner against a zone of single pages, in which blocks are found by scanning each page.

use super::*;
use crate::fragmentation_index::unusable_permille;

/// A zone as one flag for each page: in use or not. Free blocks are the largest aligned runs of free pages,
/// as a buddy allocator keeps them merged.
struct Naive {
    used: Vec<bool>,
    orders: usize,
}

impl Naive {
    fn counts(&self) -> FreeAreas {
        let mut counts = vec![0; self.orders];
        let mut at = 0;
        while at < self.used.len() {
            let is_free = |order: usize| {
                let pages = 1 << order;
                at % pages == 0 && self.used.get(at..at + pages).is_some_and(|run| !run.contains(&true))
            };
            match (0..self.orders).rev().find(|&order| is_free(order)) {
                Some(order) => {
                    counts[order] += 1;
                    at += 1 << order;
                }
                None => at += 1,
            }
        }
        FreeAreas::new(counts).unwrap()
    }

    /// The first page of the unit that the allocator takes: in the smallest block that holds one.
    fn unit(&self, unit: usize) -> Option<usize> {
        let mut found = None;
        let mut at = 0;
        while at < self.used.len() {
            let is_free = |order: usize| {
                let pages = 1 << order;
                at % pages == 0 && self.used.get(at..at + pages).is_some_and(|run| !run.contains(&true))
            };
            match (0..self.orders).rev().find(|&order| is_free(order)) {
                Some(order) => {
                    if order >= unit && found.is_none_or(|(least, _)| order < least) {
                        found = Some((order, at));
                    }
                    at += 1 << order;
                }
                None => at += 1,
            }
        }
        found.map(|(_, at)| at)
    }

    fn random(random: &mut SplitMix64, orders: usize) -> Naive {
        let pages = 1 << (orders + 2);
        let mut used = vec![false; pages];
        // From nearly empty to crowded, by runs of different lengths.
        for _ in 0..random.next_below(24) {
            let start = random.next_below(pages as u64) as usize;
            let len = 1 << random.next_below(orders as u64);
            used[start..(start + len).min(pages)].fill(true);
        }
        Naive { used, orders }
    }
}

/// Takes unit after unit of random zones, and compares the free lists with the prediction after each.
#[test]
fn the_prediction_is_what_a_zone_of_pages_does() {
    let mut taken_in_all = 0;
    for seed in 0..300 {
        let mut random = SplitMix64::new(seed);
        let orders = 3 + random.next_below(6) as usize;
        let mut zone = Naive::random(&mut random, orders);
        let unit = 1 + random.next_below(orders as u64 - 1) as usize;
        let order = Order(1 + random.next_below(orders as u64 - 1) as u8);
        let shape = KeepPattern::for_aligned_units(Order(unit as u8), order);
        let before = zone.counts();
        let units = before.blocks_suitable(shape.unit_order) as u64;
        for taken in 1..=units {
            let start = zone.unit(unit).expect("a unit is free");
            for kept in shape.kept_pages(seed, taken) {
                zone.used[start + kept as usize] = true;
            }
            let found = zone.counts();
            assert_eq!(
                found,
                predict_free_areas(&before, shape, taken),
                "seed {seed} {shape:?} unit {taken}"
            );
            taken_in_all += 1;
        }
        assert!(zone.unit(unit).is_none(), "seed {seed}: no unit is left");
        assert_eq!(
            predict_free_areas(&before, shape, units + 5),
            zone.counts(),
            "seed {seed}: no more than there are"
        );
        if order.index() == unit {
            assert_eq!(unusable_permille(&zone.counts(), order), 1000, "seed {seed}");
        }
    }
    assert!(taken_in_all > 500, "only {taken_in_all} units were taken in all");
}

/// The canary: were a kept page forgotten, the comparison above would see it.
#[test]
fn a_kept_page_that_is_missing_is_seen() {
    let shape = KeepPattern::for_aligned_units(Order(3), Order(3));
    let zone = Naive { used: vec![false; 32], orders: 5 };
    assert_ne!(zone.counts(), predict_free_areas(&zone.counts(), shape, 1));
}

#[test]
fn plans_end_at_the_target_or_say_what_can_be_reached() {
    let mut met = 0;
    for seed in 0..400 {
        let mut random = SplitMix64::new(1000 + seed);
        let mut count = || {
            let bits = 1 + random.next_below(12);
            random.next_below(1 << bits)
        };
        let counts = (0..11).map(|_| count()).collect();
        let areas = FreeAreas::new(counts).unwrap();
        let order = Order(1 + random.next_below(10) as u8);
        let shape = KeepPattern::for_aligned_units(Order(9), order);
        let goal =
            FragmentationGoal { order, target: random.next_below(1001) as f64 / 1000.0, tolerance: 0.02 };
        let units_max = random.next_below(3000);
        let all = predict_free_areas(&areas, shape, units_max);
        let (least, most) = (unusable_index(&areas, order), unusable_index(&all, order));
        match plan_fragmentation(&areas, &goal, shape, units_max) {
            Ok(plan) => {
                let found = predict_free_areas(&areas, shape, plan.units);
                assert_eq!(
                    (unusable_index(&found, order), &found),
                    (plan.unusable_after, &plan.predicted_areas)
                );
                assert!(plan.units <= units_max && plan.unusable_before == least);
                let off = |units| {
                    (unusable_index(&predict_free_areas(&areas, shape, units), order) - goal.target).abs()
                };
                let next_is_no_better = off(plan.units) <= off(plan.units + 1) || plan.units + 1 > units_max;
                assert!(next_is_no_better || order > shape.unit_order, "{seed}");
                met += u32::from(goal.is_met(&found));
            }
            Err(TargetError::AboveReach { unusable_max: said }) => {
                assert!(said == most && most < goal.target - goal.tolerance, "{seed}");
            }
            Err(TargetError::BelowCurrent { unusable_min: said }) => {
                assert!(said == least && least > goal.target + goal.tolerance, "{seed}");
            }
        }
    }
    assert!(met > 50, "only {met} plans met their target");
}

/// Steps reach the target and end, even if some requests fail and other programs allocate and free memory in
/// between.
#[test]
fn steps_end_near_the_target_in_a_zone_that_moves() {
    for seed in 0..200 {
        let mut random = SplitMix64::new(seed);
        let target = random.next_below(901) as f64 / 1000.0;
        let goal = FragmentationGoal { order: Order(9), target, tolerance: FragmentationGoal::TOLERANCE };
        let shape = KeepPattern::for_aligned_units(Order(9), goal.order);
        let mut areas = FreeAreas::new(vec![3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 2000]).unwrap();
        let mut held = 0;
        let mut steps = 0;
        loop {
            steps += 1;
            assert!(steps < 1000, "seed {seed}: no end");
            match next_step(&areas, &goal, shape, held) {
                FragmentationStep::Done => break,
                FragmentationStep::Fragment(units) => {
                    let came = units.min(64) - random.next_below(units.min(64));
                    areas = predict_free_areas(&areas, shape, came);
                    held += came;
                }
                FragmentationStep::Release(units) => {
                    assert!(units <= held);
                    let counts = areas.counts_mut();
                    counts[..9].iter_mut().for_each(|count| *count -= units);
                    counts[9] += units;
                    held -= units;
                }
            }
            if steps < 50 && random.next_below(3) == 0 {
                areas.counts_mut()[10] += random.next_below(20);
            }
        }
        let reached = unusable_index(&areas, goal.order);
        assert!(goal.is_met(&areas), "seed {seed}: {reached} for {target}");
    }
}

#[test]
fn one_page_of_each_group_is_kept_and_the_seed_decides_which() {
    for (unit, order) in [(9, 9), (9, 4), (9, 1), (9, 10), (13, 9), (4, 4)] {
        let shape = KeepPattern::for_aligned_units(Order(unit), Order(order));
        let group = shape.group_order.to_pages().0;
        let kept: Vec<u64> = shape.kept_pages(7, 3).collect();
        assert_eq!(kept.len() as u64, shape.kept_pages_per_unit());
        assert!(kept.iter().enumerate().all(|(index, page)| page / group == index as u64), "{kept:?}");
        assert_eq!(kept, shape.kept_pages(7, 3).collect::<Vec<_>>());
        assert_eq!(shape.digest(7, 100), shape.digest(7, 100));
        assert_ne!(shape.digest(7, 100), shape.digest(8, 100));
        assert_ne!(shape.digest(7, 100), shape.digest(7, 101));
    }
    // All offsets come.
    let shape = KeepPattern::for_aligned_units(Order(3), Order(3));
    let seen: std::collections::BTreeSet<u64> = (0..100).flat_map(|unit| shape.kept_pages(1, unit)).collect();
    assert_eq!(seen.len(), 8);
    // A run that is not aligned contains a whole group of half the size.
    assert_eq!(KeepPattern::for_unaligned_units(Order(9), Order(9)).group_order, Order(8));
    assert_eq!(KeepPattern::for_unaligned_units(Order(9), Order(1)).group_order, Order(1));
}

#[test]
fn numbers_that_no_machine_has_do_no_harm() {
    let areas = FreeAreas::new(vec![u64::MAX / 2; FreeAreas::ORDERS_MAX]).unwrap();
    for order in [0, 1, 9, 63, 200] {
        let goal = FragmentationGoal { order: Order(order), target: 0.5, tolerance: 0.02 };
        let shape = KeepPattern::for_aligned_units(Order(9), goal.order);
        let _ = plan_fragmentation(&areas, &goal, shape, u64::MAX);
        let _ = next_step(&areas, &goal, shape, u64::MAX);
        let _ = plan_fragmentation(&FreeAreas::default(), &goal, shape, u64::MAX);
    }
    let goal = FragmentationGoal { order: Order(9), target: f64::NAN, tolerance: 0.02 };
    let _ = plan_fragmentation(&areas, &goal, KeepPattern::for_aligned_units(Order(9), Order(9)), 5);
}
