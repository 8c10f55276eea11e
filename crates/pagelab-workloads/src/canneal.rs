//! Annealing of a netlist: elements are placed on a grid so that the wires between them become short, by
//! swapping two at a time. After canneal of PARSEC (Bienia et al., PACT 2008), which chases pointers at
//! random through a netlist that is larger than any cache.
//!
//! Every element has five random fan-ins, uniform over all others; its fan-outs are the elements that it
//! feeds. The cost is the sum of the Manhattan lengths of all wires. A move takes the element of the move
//! before and a new random one, looks up the locations of all elements wired to the two (element, then
//! location: two reads, the second at the address that the first gives), and swaps the two if that makes the
//! wires shorter, or with probability exp(-delta / temperature). The temperature falls by a third after each
//! step, as in PARSEC.
//!
//! In PARSEC an element is an object of vectors and pointers; here it is a record of 32 bytes whose
//! references are numbers, a list of fan-outs, and a table of locations. The chain of random reads is the
//! same.
//!
//! First touch: building the netlist writes everything.
//!
//! All arithmetic is of integers, except for the exponential, which consists of sums and products that IEEE
//! 754 defines to the last bit: the moves are the same on every machine.

use pagelab_model::Bytes;
use pagelab_model::random::SplitMix64;
use pagelab_sys::clock;

use crate::options::{SEED_OPTION, WorkloadOptions, number_option, size_option};
use crate::phase::MeasuredPhase;
use crate::{
    Figure, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mapping, mix_checksum,
};

/// The annealing as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "canneal",
    description: "Anneals a netlist by swapping elements: random reads through fan-ins, fan-outs and \
                  locations",
    generator: "elements of five fan-ins each, random and uniform from the seed, placed on a square grid in \
                random order; each move reads the locations of about twenty elements, two random reads each \
                of which the second depends on the first; every element is written before the first move",
    options: &[
        size_option("64M", "Bytes of the netlist: 60 per element"),
        SEED_OPTION,
        mapping::ADVISE_OPTION,
        number_option(
            "steps",
            1,
            1 << 20,
            "32",
            "Number of temperatures; each is two thirds of the previous one",
        ),
        number_option("swaps", 1, 1 << 40, "15000", "Moves tried at each temperature"),
        number_option("temperature", 1, 1 << 30, "2000", "First temperature, in units of wire length"),
    ],
    forks_processes: false,
    guest_parts: &[],
    run: run_canneal,
};

const FAN_INS_PER_ELEMENT: usize = 5;
/// Bytes an element: its record (eight numbers), its location (two), its share of the fan-outs (five).
const BYTES_PER_ELEMENT: u64 = 60;
/// From one temperature to the next, as in PARSEC.
const COOLING_RATE: f64 = 1.5;

fn run_canneal(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let elements = options.get_size("size").0 / BYTES_PER_ELEMENT;
    // The numbers of fan-outs are 32 bits wide.
    let most = u32::MAX / FAN_INS_PER_ELEMENT as u32;
    let count = u32::try_from(elements).ok().filter(|count| (2..=most).contains(count));
    let count = count.ok_or_else(|| {
        WorkloadError::InvalidOptions(format!(
            "size: expected a netlist of 2 to {most} elements of 60 bytes each"
        ))
    })?;
    let working_set = Bytes(elements * BYTES_PER_ELEMENT);
    let mut mapping = mapping::map_anonymous(options, working_set)?;
    let mut random = SplitMix64::new(options.get_number("seed"));
    let start_ns = clock::thread_cpu_ns();
    let mut netlist = Netlist::build(mapping.values_mut::<u32>(), count, &mut random);
    let build_ns = clock::thread_cpu_ns().saturating_sub(start_ns);
    let cost_before = netlist.total_cost();
    let (steps, swaps) = (options.get_number("steps"), options.get_number("swaps"));
    let temperature = options.get_number("temperature");
    let (result, elapsed_ns) =
        phase.measure_cpu(|| anneal(&mut netlist, &mut random, steps, swaps, temperature as f64));
    let cost = cost_before + result.cost_change;
    let again = netlist.total_cost();
    if again != cost {
        return Err(WorkloadError::WrongResult(format!(
            "the incremental wire length is {cost}, the recomputed length {again}"
        )));
    }
    netlist.check_permutation().map_err(WorkloadError::WrongResult)?;
    let moves = steps * swaps;
    Ok(WorkloadResult {
        figure_of_merit: Figure::time("move time", elapsed_ns as f64 / moves as f64),
        working_set,
        checksum: netlist.checksum(),
        latencies: None,
        hot_regions: Vec::new(),
        figures: vec![
            Figure::time("lay_out_cpu", build_ns as f64),
            Figure::neutral("accepted", "moves", result.accepted_moves as f64),
            Figure::neutral("cost_before", "lengths", cost_before as f64),
            Figure::neutral("cost_after", "lengths", cost as f64),
        ],
        phases: PhaseResults::default(),
        generated_input: format!(
            "{count} elements of {FAN_INS_PER_ELEMENT} fan-ins, {steps} temperatures of {swaps} moves from \
             {temperature}, seed {}",
            options.get_number("seed")
        ),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AnnealingResult {
    cost_change: i64,
    /// Moves that were made.
    accepted_moves: u64,
}

fn anneal(
    netlist: &mut Netlist<'_>,
    random: &mut SplitMix64,
    steps: u64,
    swaps: u64,
    start_temperature: f64,
) -> AnnealingResult {
    let (mut result, mut temperature) =
        (AnnealingResult { cost_change: 0, accepted_moves: 0 }, start_temperature);
    let count = u64::from(netlist.element_count());
    let mut second = random.next_below(count) as u32;
    for _ in 0..steps {
        for _ in 0..swaps {
            let one = std::mem::replace(&mut second, random.next_below(count) as u32);
            if one == second {
                continue;
            }
            let delta = netlist.swap_delta(one, second);
            if delta <= 0 || is_accepted(delta, temperature, random.next_u64()) {
                netlist.swap_elements(one, second);
                result.cost_change += delta;
                result.accepted_moves += 1;
            }
        }
        temperature /= COOLING_RATE;
    }
    result
}

/// Whether a move that makes the wires longer is made: with probability exp(-delta / temperature).
fn is_accepted(delta: i64, temperature: f64, random_word: u64) -> bool {
    // The 53 bits that a float has: a number from 0 to below 1.
    let chance = (random_word >> 11) as f64 / (1u64 << 53) as f64;
    chance < exp_minus(delta as f64 / temperature)
}

/// exp(-x) for x >= 0, by sums and products alone, so that it is the same on every machine: that of a library
/// may differ in its last bit from one processor to the next.
fn exp_minus(x: f64) -> f64 {
    const UNDERFLOW_X: f64 = 700.0;
    if x.is_nan() || x > UNDERFLOW_X {
        return 0.0;
    }
    let halvings = (x * std::f64::consts::LOG2_E).round();
    let rest = halvings * std::f64::consts::LN_2 - x;
    // exp(rest) by Taylor's series: |rest| <= 0.35, so the 14th term is below 1e-17.
    let series = (1..=14).rev().fold(1.0, |sum, n| 1.0 + sum * rest / f64::from(n));
    (0..halvings as u32).fold(series, |value, _| value * 0.5)
}

/// An element: where it is, where its fan-outs begin, how many they are, its fan-ins.
type Element = [u32; 3 + FAN_INS_PER_ELEMENT];
const FIELD_LOCATION: usize = 0;
const FIELD_FAN_OUT_START: usize = 1;
const FIELD_FAN_OUT_COUNT: usize = 2;
const FIELD_FIRST_FAN_IN: usize = 3;

/// Elements, their positions and their connections.
struct Netlist<'a> {
    elements: &'a mut [Element],
    /// Column and row of each location.
    locations: &'a mut [[u32; 2]],
    /// Elements that an element feeds, those of one element side by side.
    fan_outs: &'a mut [u32],
}

impl<'a> Netlist<'a> {
    /// A netlist of `count` elements in `words`, of which there are at least 15 an element.
    fn build(words: &'a mut [u32], count: u32, random: &mut SplitMix64) -> Netlist<'a> {
        let n = count as usize;
        let (elements, rest) = words.split_at_mut(n * size_of::<Element>() / size_of::<u32>());
        let (locations, rest) = rest.split_at_mut(2 * n);
        let elements = elements.as_chunks_mut().0;
        let locations = locations.as_chunks_mut().0;
        let mut netlist = Netlist { elements, locations, fan_outs: &mut rest[..FAN_INS_PER_ELEMENT * n] };
        netlist.draw_wires(random);
        netlist.place_randomly(random);
        netlist
    }

    /// Draws the fan-ins and collects the fan-outs from them.
    fn draw_wires(&mut self, random: &mut SplitMix64) {
        let count = u64::from(self.element_count());
        for at in 0..self.elements.len() {
            for place in FIELD_FIRST_FAN_IN..FIELD_FIRST_FAN_IN + FAN_INS_PER_ELEMENT {
                // Any element but this one.
                let random_word = random.next_below(count - 1) as u32;
                let fan_in = random_word + u32::from(random_word >= at as u32);
                self.elements[at][place] = fan_in;
                self.elements[fan_in as usize][FIELD_FAN_OUT_COUNT] += 1;
            }
        }
        let mut start = 0u32;
        for element in self.elements.iter_mut() {
            element[FIELD_FAN_OUT_START] = start;
            start += std::mem::take(&mut element[FIELD_FAN_OUT_COUNT]);
        }
        for at in 0..self.elements.len() {
            for place in FIELD_FIRST_FAN_IN..FIELD_FIRST_FAN_IN + FAN_INS_PER_ELEMENT {
                let fed_by = &mut self.elements[self.elements[at][place] as usize];
                self.fan_outs[(fed_by[FIELD_FAN_OUT_START] + fed_by[FIELD_FAN_OUT_COUNT]) as usize] =
                    at as u32;
                fed_by[FIELD_FAN_OUT_COUNT] += 1;
            }
        }
    }

    /// Puts the elements on the locations of a square grid, in random order.
    fn place_randomly(&mut self, random: &mut SplitMix64) {
        let width = u64::from(self.element_count()).isqrt().max(1);
        for (at, place) in self.locations.iter_mut().enumerate() {
            *place = [(at as u64 % width) as u32, (at as u64 / width) as u32];
        }
        for at in 0..self.elements.len() {
            self.elements[at][FIELD_LOCATION] = at as u32;
        }
        for at in (1..self.elements.len()).rev() {
            let second = random.next_below(at as u64 + 1) as usize;
            let there = self.elements[second][FIELD_LOCATION];
            self.elements[second][FIELD_LOCATION] =
                std::mem::replace(&mut self.elements[at][FIELD_LOCATION], there);
        }
    }

    fn element_count(&self) -> u32 {
        self.elements.len() as u32
    }

    fn fan_outs_of(&self, element: &Element) -> &[u32] {
        let start = element[FIELD_FAN_OUT_START] as usize;
        &self.fan_outs[start..start + element[FIELD_FAN_OUT_COUNT] as usize]
    }

    /// How much longer the wires would be if the two changed places.
    fn swap_delta(&self, first: u32, second: u32) -> i64 {
        let [from, to] =
            [first, second].map(|element| self.elements[element as usize][FIELD_LOCATION] as usize);
        let (here, there) = (self.locations[from], self.locations[to]);
        self.move_delta(first, second, here, there) + self.move_delta(second, first, there, here)
    }

    /// How much longer the wires of one element would be elsewhere. A wire between the two that change places
    /// keeps its length.
    fn move_delta(&self, element: u32, partner: u32, from: [u32; 2], to: [u32; 2]) -> i64 {
        let record = &self.elements[element as usize];
        let fan_ins = record[FIELD_FIRST_FAN_IN..].iter();
        fan_ins
            .chain(self.fan_outs_of(record))
            .filter(|&&wired| wired != partner)
            .map(|&wired| {
                let place = self.locations[self.elements[wired as usize][FIELD_LOCATION] as usize];
                manhattan_length(to, place) - manhattan_length(from, place)
            })
            .sum()
    }

    fn swap_elements(&mut self, first: u32, second: u32) {
        let there = self.elements[second as usize][FIELD_LOCATION];
        let here = std::mem::replace(&mut self.elements[first as usize][FIELD_LOCATION], there);
        self.elements[second as usize][FIELD_LOCATION] = here;
    }

    /// Length of all wires, counted from the fan-ins.
    fn total_cost(&self) -> i64 {
        let place = |element: u32| self.locations[self.elements[element as usize][FIELD_LOCATION] as usize];
        let wires = |element: &Element| -> i64 {
            let here = self.locations[element[FIELD_LOCATION] as usize];
            element[FIELD_FIRST_FAN_IN..].iter().map(|&fan_in| manhattan_length(here, place(fan_in))).sum()
        };
        self.elements.iter().map(wires).sum()
    }

    /// Whether each location has exactly one element.
    fn check_permutation(&self) -> Result<(), String> {
        let mut is_taken = vec![false; self.locations.len()];
        for element in self.elements.iter() {
            let location = element[FIELD_LOCATION] as usize;
            if std::mem::replace(&mut is_taken[location], true) {
                return Err(format!("two elements are at location {location}"));
            }
        }
        Ok(())
    }

    /// Where every element is, as one number.
    fn checksum(&self) -> u64 {
        let places = self.elements.iter().map(|element| u64::from(element[FIELD_LOCATION]));
        places.fold(0, mix_checksum)
    }
}

fn manhattan_length(from: [u32; 2], to: [u32; 2]) -> i64 {
    i64::from(from[0].abs_diff(to[0])) + i64::from(from[1].abs_diff(to[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeroed_words(count: u32) -> Vec<u32> {
        vec![0; count as usize * BYTES_PER_ELEMENT as usize / size_of::<u32>()]
    }

    #[test]
    fn wires_have_two_ends() {
        let mut words = zeroed_words(100);
        let netlist = Netlist::build(&mut words, 100, &mut SplitMix64::new(3));
        let mut ins: Vec<(u32, u32)> = Vec::new();
        let mut outs: Vec<(u32, u32)> = Vec::new();
        for (at, element) in (0..).zip(netlist.elements.iter()) {
            ins.extend(element[FIELD_FIRST_FAN_IN..].iter().map(|&from| (from, at)));
            outs.extend(netlist.fan_outs_of(element).iter().map(|&to| (at, to)));
            assert!(!element[FIELD_FIRST_FAN_IN..].contains(&at), "no element feeds itself");
        }
        ins.sort_unstable();
        outs.sort_unstable();
        assert_eq!(ins, outs);
        netlist.check_permutation().unwrap();
    }

    #[test]
    fn each_delta_is_the_difference_of_the_whole_costs() {
        for count in [2, 3, 10, 97] {
            let mut words = zeroed_words(count);
            let mut random = SplitMix64::new(u64::from(count));
            let mut netlist = Netlist::build(&mut words, count, &mut random);
            for _ in 0..200 {
                let [first, second] = [0; 2].map(|_| random.next_below(u64::from(count)) as u32);
                if first == second {
                    continue;
                }
                let (start_ns, delta) = (netlist.total_cost(), netlist.swap_delta(first, second));
                netlist.swap_elements(first, second);
                assert_eq!(netlist.total_cost(), start_ns + delta, "{first} and {second} of {count}");
            }
        }
    }

    /// The least cost of all ways to place seven elements.
    fn least_cost(netlist: &mut Netlist<'_>, from: usize) -> i64 {
        if from + 1 == netlist.elements.len() {
            return netlist.total_cost();
        }
        (from..netlist.elements.len())
            .map(|other| {
                let swapped = |netlist: &mut Netlist<'_>| {
                    if other != from {
                        netlist.swap_elements(from as u32, other as u32);
                    }
                };
                swapped(netlist);
                let found = least_cost(netlist, from + 1);
                swapped(netlist);
                found
            })
            .min()
            .unwrap()
    }

    #[test]
    fn annealing_finds_the_shortest_wires_of_a_small_netlist() {
        let mut found = 0;
        for seed in 0..8 {
            let mut words = zeroed_words(7);
            let mut random = SplitMix64::new(seed);
            let mut netlist = Netlist::build(&mut words, 7, &mut random);
            let best = least_cost(&mut netlist, 0);
            let start_ns = netlist.total_cost();
            let result = anneal(&mut netlist, &mut random, 30, 500, 50.0);
            assert_eq!(netlist.total_cost(), start_ns + result.cost_change);
            let cost = netlist.total_cost();
            assert!(cost >= best && cost * 10 <= best * 11, "{cost} for {best}, the least of all");
            found += u32::from(netlist.total_cost() == best);
        }
        assert!(found >= 3, "the least cost was found for {found} of 8 netlists");
    }

    #[test]
    fn the_exponential_is_that_of_the_library() {
        for step in 0..7000 {
            let x = f64::from(step) / 10.0;
            let (ours, theirs) = (exp_minus(x), (-x).exp());
            assert!((ours - theirs).abs() <= theirs * 1e-12, "{x}: {ours} {theirs}");
        }
        assert_eq!((exp_minus(0.0), exp_minus(1e9), exp_minus(f64::NAN)), (1.0, 0.0, 0.0));
        // A temperature of almost nothing takes nothing that is longer.
        assert!(!is_accepted(1, 1e-300, 0) && is_accepted(1, 1e300, u64::MAX / 2));
    }

    #[test]
    fn a_run_is_the_same_for_the_same_seed() {
        let mut options = WorkloadOptions::with_defaults(WORKLOAD.options);
        for (name, typed) in [("size", "64K"), ("steps", "20"), ("swaps", "200")] {
            options.set_value(name, typed).unwrap();
        }
        let result = run_canneal(&options, &mut MeasuredPhase::without_observer()).unwrap();
        assert_eq!(
            run_canneal(&options, &mut MeasuredPhase::without_observer()).unwrap().checksum,
            result.checksum
        );
        let figure = |name: &str| result.figures.iter().find(|figure| figure.name == name).unwrap().value;
        assert!(figure("cost_after") < figure("cost_before"), "annealing shortens the wires");
        assert!(figure("accepted") > 0.0);
        assert!(result.working_set.0 <= 64 << 10 && result.working_set.0 > 63 << 10);
        options.set_value("seed", "2").unwrap();
        assert_ne!(
            run_canneal(&options, &mut MeasuredPhase::without_observer()).unwrap().checksum,
            result.checksum
        );
        options.set_value("size", "119").unwrap();
        assert!(matches!(
            run_canneal(&options, &mut MeasuredPhase::without_observer()),
            Err(WorkloadError::InvalidOptions(_))
        ));
    }
}
