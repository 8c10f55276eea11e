//! In which order trials run. Variants never follow each other plainly as A B A B, where whatever drifts
//! meanwhile would be taken for a difference.

use pagelab_model::experiment::{Role, Sequence, Slot};
use pagelab_model::seed::SplitMix64;

use crate::recipe::Recipe;

/// All trials of a recipe in order: rounds, in each round the workloads, for each workload the variants.
///
/// There and back ([`Sequence::Abba`]) turns every second round round, so that over each two rounds all
/// variants have the same mean place: a drift that is straight in time cancels. Blocks draw the order of each
/// round from the seed. Warm-up rounds come first and are forgotten.
pub fn schedule(recipe: &Recipe) -> Vec<Slot> {
    let mut random = SplitMix64::new(recipe.seed);
    let mut slots = Vec::new();
    for round in 0..recipe.warm_up {
        slots.extend(self::round(recipe, round, false));
    }
    for round in 0..recipe.repeats {
        let mut order = self::round(recipe, round, true);
        match recipe.sequence {
            Sequence::Abba if round % 2 == 1 => order.reverse(),
            Sequence::Abba => {}
            Sequence::Blocks => shuffle_within_workloads(&mut order, &mut random),
        }
        slots.append(&mut order);
    }
    slots
}

/// The first slot of each pairing of a workload with a variant.
pub fn first_of_each(schedule: &[Slot]) -> Vec<Slot> {
    let mut first: Vec<Slot> = Vec::new();
    for slot in schedule {
        if !first.iter().any(|known| (known.workload, known.variant) == (slot.workload, slot.variant)) {
            first.push(*slot);
        }
    }
    first
}

/// One round, workload by workload: the variants, the baseline first and its twin last, so that there and
/// back holds for the pair of equals too.
fn round(recipe: &Recipe, round: u32, is_measured: bool) -> Vec<Slot> {
    let mut slots = Vec::new();
    for workload in 0..recipe.workloads.len() {
        let slot = |variant, role| Slot { workload, variant, round, role };
        let role = if is_measured { Role::Measured } else { Role::WarmUp };
        let others = (0..recipe.variants.len()).filter(|&variant| variant != recipe.baseline);
        let variants = [recipe.baseline].into_iter().chain(others);
        slots.extend(
            variants.filter(|&variant| recipe.crosses(workload, variant)).map(|variant| slot(variant, role)),
        );
        if is_measured && recipe.twins {
            slots.push(slot(recipe.baseline, Role::Twin));
        }
    }
    slots
}

/// Each workload's trials stay together; within them every order is as likely (Fisher and Yates).
fn shuffle_within_workloads(slots: &mut [Slot], random: &mut SplitMix64) {
    for block in slots.chunk_by_mut(|a, b| a.workload == b.workload) {
        for last in (1..block.len()).rev() {
            block.swap(last, random.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// A recipe of so many workloads and variants.
    fn recipe(workloads: usize, variants: usize, order: &str, repeats: u32, seed: u64) -> Recipe {
        let mut text = format!(
            "name = \"a\"\nquestion = \"b\"\norder = \"{order}\"\nrepeats = {repeats}\nseed = {seed}\n\
             baseline = \"v{}\"\n",
            variants / 2
        );
        for at in 0..workloads {
            text.push_str(&format!("[[workload]]\nname = \"w{at}\"\ncommand = [\"true\"]\n"));
        }
        for at in 0..variants {
            text.push_str(&format!("[[variant]]\nname = \"v{at}\"\nenvironment = {{ A = {at} }}\n"));
        }
        Recipe::parse("test", &text).unwrap()
    }

    #[test]
    fn every_pairing_comes_once_a_round_whatever_the_order() {
        let mut random = SplitMix64::new(11);
        for _ in 0..200 {
            let [workloads, variants] = [1 + random.below(4), 1 + random.below(5)].map(|n| n as usize);
            let order = if random.below(2) == 0 { "abba" } else { "blocks" };
            let mut recipe =
                recipe(workloads, variants, order, 1 + random.below(6) as u32, random.draw() >> 1);
            recipe.warm_up = random.below(3) as u32;
            recipe.twins = random.below(2) == 0;
            let slots = schedule(&recipe);
            let is_measured = |slot: &&Slot| slot.role == Role::Measured;
            let measured: BTreeSet<_> =
                slots.iter().filter(is_measured).map(|s| (s.round, s.workload, s.variant)).collect();
            assert_eq!(measured.len(), workloads * variants * recipe.repeats as usize);
            assert_eq!(slots.iter().filter(is_measured).count(), measured.len(), "none twice");
            let twins: Vec<_> = slots.iter().filter(|slot| slot.role == Role::Twin).collect();
            let of_round = if recipe.twins { workloads } else { 0 };
            assert_eq!(twins.len(), of_round * recipe.repeats as usize);
            assert!(twins.iter().all(|slot| slot.variant == recipe.baseline));
            let first = slots.iter().position(|slot| slot.role != Role::WarmUp).unwrap();
            assert_eq!(first, workloads * variants * recipe.warm_up as usize, "warm-up comes first");
            assert!(slots[first..].iter().all(|slot| slot.role != Role::WarmUp));
            assert_eq!(schedule(&recipe), slots, "the seed decides");
        }
    }

    /// A drift that is straight in time adds the same to every variant.
    #[test]
    fn there_and_back_balances_a_straight_drift() {
        for (workloads, variants) in [(1, 2), (1, 3), (3, 4), (2, 1)] {
            let slots = schedule(&recipe(workloads, variants, "abba", 6, 1));
            let mut places: BTreeMap<_, Vec<usize>> = BTreeMap::new();
            let measured = slots.iter().filter(|slot| slot.role != Role::WarmUp);
            for (place, slot) in measured.enumerate() {
                let is_twin = slot.role == Role::Twin;
                places.entry((slot.workload, slot.variant, is_twin)).or_default().push(place);
            }
            let sums: BTreeSet<usize> = places.values().map(|places| places.iter().sum()).collect();
            assert_eq!(sums.len(), 1, "{places:?}");
            let order = |round: u32| {
                let of = slots.iter().filter(move |slot| slot.role != Role::WarmUp && slot.round == round);
                of.map(|slot| (slot.workload, slot.variant)).collect::<Vec<_>>()
            };
            let back: Vec<_> = order(1).into_iter().rev().collect();
            assert_eq!(order(0), back);
        }
    }

    #[test]
    fn blocks_differ_from_round_to_round_and_by_seed() {
        let order = |seed| {
            let slots = schedule(&recipe(1, 4, "blocks", 40, seed));
            slots.iter().filter(|s| s.role != Role::WarmUp).map(|s| (s.variant, s.role)).collect::<Vec<_>>()
        };
        assert_ne!(order(1), order(2));
        let firsts: BTreeSet<usize> = order(3).chunks(5).map(|round| round[0].0).collect();
        assert_eq!(firsts.len(), 4, "every variant is first at some time");
    }

    #[test]
    fn a_variant_runs_only_over_its_workloads() {
        let mut recipe = recipe(2, 2, "abba", 2, 1);
        recipe.variants[0].only = Some(vec!["w1".to_owned()]);
        let slots = schedule(&recipe);
        assert!(slots.iter().all(|slot| slot.variant != 0 || slot.workload == 1));
        assert!(slots.iter().any(|slot| slot.variant == 0));
    }
}
