//! Order of the trials. Variants never simply alternate as A B A B, in which a drift would appear as a
//! difference.

use pagelab_model::experiment::{Schedule, ScheduleSlot, Sequence, TrialRole};
use pagelab_model::random::SplitMix64;

use crate::recipe::Recipe;

/// All trials of a recipe in order: rounds, in each round the workloads, for each workload the variants.
///
/// [`Sequence::Abba`] reverses every second round, so that over each two rounds all variants have the same
/// mean position: a linear drift cancels. Blocks have a random order in each round, from the seed. Warm-up
/// rounds come first and are discarded.
pub fn build_schedule(recipe: &Recipe) -> Vec<ScheduleSlot> {
    let mut random = SplitMix64::new(recipe.seed);
    let mut slots = Vec::new();
    for round in 0..recipe.warm_up {
        slots.extend(build_round(recipe, round, false));
    }
    for round in 0..recipe.repeats {
        let mut order = build_round(recipe, round, true);
        match recipe.sequence {
            Sequence::Abba if round % 2 == 1 => order.reverse(),
            Sequence::Abba | Sequence::BySeed => {}
            Sequence::Blocks => shuffle_within_workloads(&mut order, &mut random),
        }
        slots.append(&mut order);
    }
    slots
}

/// The first slot of each workload with a variant.
pub fn first_of_each_pair(schedule: &Schedule) -> Vec<ScheduleSlot> {
    let mut first: Vec<ScheduleSlot> = Vec::new();
    for slot in schedule.iter() {
        if !first.iter().any(|known| (known.workload, known.variant) == (slot.workload, slot.variant)) {
            first.push(slot);
        }
    }
    first
}

/// One round, workload by workload: the variants, the baseline first and its twin last, so that reversal
/// holds for the pair of twins too.
fn build_round(recipe: &Recipe, round: u32, is_measured: bool) -> Vec<ScheduleSlot> {
    let mut slots = Vec::new();
    for workload in 0..recipe.workloads.len() {
        let slot = |variant, role| ScheduleSlot { workload, variant, round, role };
        let role = if is_measured { TrialRole::Measured } else { TrialRole::WarmUp };
        let other_variants = (0..recipe.variants.len()).filter(|&variant| variant != recipe.baseline);
        let variants = [recipe.baseline].into_iter().chain(other_variants);
        slots.extend(
            variants
                .filter(|&variant| recipe.is_combined(workload, variant))
                .map(|variant| slot(variant, role)),
        );
        if is_measured && recipe.has_twins {
            slots.push(slot(recipe.baseline, TrialRole::Twin));
        }
    }
    slots
}

/// Each workload's trials stay together; within them every order is equally likely.
fn shuffle_within_workloads(slots: &mut [ScheduleSlot], random: &mut SplitMix64) {
    for block in slots.chunk_by_mut(|a, b| a.workload == b.workload) {
        random.shuffle(block);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

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
            let [workloads, variants] =
                [1 + random.next_below(4), 1 + random.next_below(5)].map(|n| n as usize);
            let order = if random.next_below(2) == 0 { "abba" } else { "blocks" };
            let mut recipe =
                recipe(workloads, variants, order, 1 + random.next_below(6) as u32, random.next_u64() >> 1);
            recipe.warm_up = random.next_below(3) as u32;
            recipe.has_twins = random.next_below(2) == 0;
            let slots = build_schedule(&recipe);
            let is_measured = |slot: &&ScheduleSlot| slot.role == TrialRole::Measured;
            let measured: BTreeSet<_> =
                slots.iter().filter(is_measured).map(|s| (s.round, s.workload, s.variant)).collect();
            assert_eq!(measured.len(), workloads * variants * recipe.repeats as usize);
            assert_eq!(slots.iter().filter(is_measured).count(), measured.len(), "none twice");
            let twins: Vec<_> = slots.iter().filter(|slot| slot.role == TrialRole::Twin).collect();
            let of_round = if recipe.has_twins { workloads } else { 0 };
            assert_eq!(twins.len(), of_round * recipe.repeats as usize);
            assert!(twins.iter().all(|slot| slot.variant == recipe.baseline));
            let first = slots.iter().position(|slot| slot.role != TrialRole::WarmUp).unwrap();
            assert_eq!(first, workloads * variants * recipe.warm_up as usize, "warm-up comes first");
            assert!(slots[first..].iter().all(|slot| slot.role != TrialRole::WarmUp));
            assert_eq!(build_schedule(&recipe), slots, "the seed decides");
        }
    }

    /// A linear drift adds the same to every variant.
    #[test]
    fn there_and_back_balances_a_straight_drift() {
        for (workloads, variants) in [(1, 2), (1, 3), (3, 4), (2, 1)] {
            let slots = build_schedule(&recipe(workloads, variants, "abba", 6, 1));
            let mut places: BTreeMap<_, Vec<usize>> = BTreeMap::new();
            let measured = slots.iter().filter(|slot| slot.role != TrialRole::WarmUp);
            for (place, slot) in measured.enumerate() {
                let is_twin = slot.role == TrialRole::Twin;
                places.entry((slot.workload, slot.variant, is_twin)).or_default().push(place);
            }
            let sums: BTreeSet<usize> = places.values().map(|places| places.iter().sum()).collect();
            assert_eq!(sums.len(), 1, "{places:?}");
            let order = |round: u32| {
                let of =
                    slots.iter().filter(move |slot| slot.role != TrialRole::WarmUp && slot.round == round);
                of.map(|slot| (slot.workload, slot.variant)).collect::<Vec<_>>()
            };
            let back: Vec<_> = order(1).into_iter().rev().collect();
            assert_eq!(order(0), back);
        }
    }

    #[test]
    fn blocks_differ_from_round_to_round_and_by_seed() {
        let order = |seed| {
            let slots = build_schedule(&recipe(1, 4, "blocks", 40, seed));
            slots
                .iter()
                .filter(|s| s.role != TrialRole::WarmUp)
                .map(|s| (s.variant, s.role))
                .collect::<Vec<_>>()
        };
        assert_ne!(order(1), order(2));
        let firsts: BTreeSet<usize> = order(3).chunks(5).map(|round| round[0].0).collect();
        assert_eq!(firsts.len(), 4, "every variant is first at some time");
    }

    #[test]
    fn a_variant_runs_only_over_its_workloads() {
        let mut recipe = recipe(2, 2, "abba", 2, 1);
        recipe.variants[0].only_workloads = Some(vec!["w1".to_owned()]);
        let slots = build_schedule(&recipe);
        assert!(slots.iter().all(|slot| slot.variant != 0 || slot.workload == 1));
        assert!(slots.iter().any(|slot| slot.variant == 0));
    }
}
