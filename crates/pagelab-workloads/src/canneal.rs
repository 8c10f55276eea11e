//! Annealing of a netlist: elements are put on a grid so that the wires between them become short, by
//! swapping two at a time. After canneal of PARSEC (Bienia et al., PACT 2008), which chases pointers at
//! random through a netlist that is larger than any cache.
//!
//! Every element has five fan-ins, uniformly drawn from all others; its fan-outs are the elements that it
//! feeds. The cost is the sum of the Manhattan lengths of all wires. A move takes the element of the move
//! before and one drawn anew, looks up where all elements wired to the two are (element, then location: two
//! reads, the second at the address that the first gives), and swaps the two if that makes the wires shorter,
//! or with probability exp(-delta / temperature). The temperature falls by a third after each step, as there.
//!
//! In PARSEC an element is an object of vectors and pointers; here it is a record of 32 bytes whose
//! references are numbers, a list of fan-outs, and a table of locations. What is kept is the chain of random
//! reads.
//!
//! First touch: laying out writes everything.
//!
//! All arithmetic is of integers, but for the exponential, which is made of sums and products that IEEE 754
//! defines to the last bit: the moves are the same on every machine.

use pagelab_model::Bytes;
use pagelab_model::experiment::Better;
use pagelab_model::seed::SplitMix64;
use pagelab_sys::clock;

use crate::options::{Kind, OptionHead, Options, SEED, size};
use crate::phase::Phase;
use crate::{Done, Failed, Figure, Merit, Workload, memory};

/// The annealing as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "canneal",
    about: "Anneals a netlist by swapping elements: random reads through fan-ins, fan-outs and locations",
    generator: "elements of five fan-ins each, uniformly drawn from the seed, put on a square grid in random \
                order; each move reads the locations of about twenty elements, two random reads each of \
                which \
                the second depends on the first; every element is written before the first move",
    options: &[
        size("64M", "Bytes of the netlist: 60 an element"),
        SEED,
        memory::ADVISE,
        STEPS,
        SWAPS,
        TEMPERATURE,
    ],
    forks: false,
    run,
};

const STEPS: OptionHead = OptionHead {
    name: "steps",
    kind: Kind::Number(1, 1 << 20),
    default: "32",
    help: "How many temperatures; each is two thirds of the one before",
};
const SWAPS: OptionHead = OptionHead {
    name: "swaps",
    kind: Kind::Number(1, 1 << 40),
    default: "15000",
    help: "Moves that are tried at each temperature",
};
const TEMPERATURE: OptionHead = OptionHead {
    name: "temperature",
    kind: Kind::Number(1, 1 << 30),
    default: "2000",
    help: "First temperature, in units of the wires' length",
};

/// Fan-ins of each element.
const FAN_INS: usize = 5;
/// Bytes an element: its record (eight numbers), its location (two), its share of the fan-outs (five).
const BYTES_PER_ELEMENT: u64 = 60;
/// From one temperature to the next, as in PARSEC.
const COOLING: f64 = 1.5;

fn run(options: &Options, phase: &mut Phase<'_>) -> Result<Done, Failed> {
    let elements = options.size("size").0 / BYTES_PER_ELEMENT;
    // The numbers of fan-outs are 32 bits wide.
    let most = u32::MAX / FAN_INS as u32;
    let count = u32::try_from(elements).ok().filter(|count| (2..=most).contains(count));
    let count = count.ok_or_else(|| {
        Failed::Options(format!("size: a netlist has from 2 to {most} elements of 60 bytes each"))
    })?;
    let working_set = Bytes(elements * BYTES_PER_ELEMENT);
    let mut mapping = memory::map(options, working_set)?;
    let mut random = SplitMix64::new(options.number("seed"));
    let before = clock::thread_cpu_ns();
    let mut netlist = Netlist::lay_out(mapping.values_mut::<u32>(), count, &mut random);
    let laid_out_ns = clock::thread_cpu_ns().saturating_sub(before);
    let cost_before = netlist.cost();
    let (steps, swaps) = (options.number("steps"), options.number("swaps"));
    phase.begin();
    let before = clock::thread_cpu_ns();
    let annealed = anneal(&mut netlist, &mut random, steps, swaps, options.number("temperature") as f64);
    let spent_ns = clock::thread_cpu_ns().saturating_sub(before);
    phase.end();
    let cost = cost_before + annealed.delta;
    let again = netlist.cost();
    if again != cost {
        return Err(Failed::Wrong(format!(
            "the wires kept in step have length {cost}, counted anew {again}"
        )));
    }
    netlist.is_permutation().map_err(Failed::Wrong)?;
    let moves = steps * swaps;
    Ok(Done {
        merit: Merit {
            name: "move time",
            unit: "ns",
            better: Better::Lower,
            value: spent_ns as f64 / moves as f64,
        },
        working_set,
        checksum: netlist.checksum(),
        latencies: None,
        hot_regions: Vec::new(),
        figures: vec![
            Figure::new("lay_out_cpu", "ns", Better::Lower, laid_out_ns as f64),
            Figure::neutral("accepted", "moves", annealed.accepted as f64),
            Figure::neutral("cost_before", "lengths", cost_before as f64),
            Figure::neutral("cost_after", "lengths", cost as f64),
        ],
        generated: format!(
            "{count} elements of {FAN_INS} fan-ins, {steps} temperatures of {swaps} moves from {}, seed {}",
            options.number("temperature"),
            options.number("seed")
        ),
    })
}

/// What annealing did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Annealed {
    /// Change of the cost.
    delta: i64,
    /// Moves that were made.
    accepted: u64,
}

fn anneal(
    netlist: &mut Netlist<'_>,
    random: &mut SplitMix64,
    steps: u64,
    swaps: u64,
    first: f64,
) -> Annealed {
    let (mut done, mut temperature) = (Annealed { delta: 0, accepted: 0 }, first);
    let count = u64::from(netlist.count());
    let mut other = random.below(count) as u32;
    for _ in 0..steps {
        for _ in 0..swaps {
            let one = std::mem::replace(&mut other, random.below(count) as u32);
            if one == other {
                continue;
            }
            let delta = netlist.delta(one, other);
            if delta <= 0 || is_accepted(delta, temperature, random.draw()) {
                netlist.swap(one, other);
                done.delta += delta;
                done.accepted += 1;
            }
        }
        temperature /= COOLING;
    }
    done
}

/// Whether a move that makes the wires longer is made: with probability exp(-delta / temperature).
fn is_accepted(delta: i64, temperature: f64, drawn: u64) -> bool {
    // The 53 bits that a float has: a number from 0 to below 1.
    let chance = (drawn >> 11) as f64 / (1u64 << 53) as f64;
    chance < exp_minus(delta as f64 / temperature)
}

/// exp(-x) for x >= 0, by sums and products alone, so that it is the same on every machine: that of a library
/// may differ in its last bit from one processor to the next.
fn exp_minus(x: f64) -> f64 {
    const UNDERFLOW: f64 = 700.0;
    if x.is_nan() || x > UNDERFLOW {
        return 0.0;
    }
    let halvings = (x * std::f64::consts::LOG2_E).round();
    let rest = halvings * std::f64::consts::LN_2 - x;
    // exp(rest) by Taylor's series: |rest| <= 0.35, so the 14th term is below 1e-17.
    let series = (1..=14).rev().fold(1.0, |sum, n| 1.0 + sum * rest / f64::from(n));
    (0..halvings as u32).fold(series, |value, _| value * 0.5)
}

/// An element: where it is, where its fan-outs begin, how many they are, its fan-ins.
type Element = [u32; 3 + FAN_INS];
const LOCATION: usize = 0;
const START: usize = 1;
const NUMBER: usize = 2;
const FIRST_IN: usize = 3;

/// Elements, where they are, and who is wired to whom.
struct Netlist<'a> {
    elements: &'a mut [Element],
    /// Column and row of each location.
    locations: &'a mut [[u32; 2]],
    /// Elements that an element feeds, those of one element side by side.
    fan_outs: &'a mut [u32],
}

impl<'a> Netlist<'a> {
    /// A netlist of `count` elements in `words`, of which there are at least 15 an element.
    fn lay_out(words: &'a mut [u32], count: u32, random: &mut SplitMix64) -> Netlist<'a> {
        let n = count as usize;
        let (elements, rest) = words.split_at_mut(n * size_of::<Element>() / size_of::<u32>());
        let (locations, rest) = rest.split_at_mut(2 * n);
        let elements = elements.as_chunks_mut().0;
        let locations = locations.as_chunks_mut().0;
        let mut netlist = Netlist { elements, locations, fan_outs: &mut rest[..FAN_INS * n] };
        netlist.wire(random);
        netlist.place(random);
        netlist
    }

    /// Draws the fan-ins and collects the fan-outs from them.
    fn wire(&mut self, random: &mut SplitMix64) {
        let count = u64::from(self.count());
        for at in 0..self.elements.len() {
            for place in FIRST_IN..FIRST_IN + FAN_INS {
                // Any element but this one.
                let drawn = random.below(count - 1) as u32;
                let fan_in = drawn + u32::from(drawn >= at as u32);
                self.elements[at][place] = fan_in;
                self.elements[fan_in as usize][NUMBER] += 1;
            }
        }
        let mut start = 0u32;
        for element in self.elements.iter_mut() {
            element[START] = start;
            start += std::mem::take(&mut element[NUMBER]);
        }
        for at in 0..self.elements.len() {
            for place in FIRST_IN..FIRST_IN + FAN_INS {
                let fed_by = &mut self.elements[self.elements[at][place] as usize];
                self.fan_outs[(fed_by[START] + fed_by[NUMBER]) as usize] = at as u32;
                fed_by[NUMBER] += 1;
            }
        }
    }

    /// Puts the elements on the locations of a square grid, in random order.
    fn place(&mut self, random: &mut SplitMix64) {
        let width = u64::from(self.count()).isqrt().max(1);
        for (at, place) in self.locations.iter_mut().enumerate() {
            *place = [(at as u64 % width) as u32, (at as u64 / width) as u32];
        }
        for at in 0..self.elements.len() {
            self.elements[at][LOCATION] = at as u32;
        }
        for at in (1..self.elements.len()).rev() {
            let other = random.below(at as u64 + 1) as usize;
            let there = self.elements[other][LOCATION];
            self.elements[other][LOCATION] = std::mem::replace(&mut self.elements[at][LOCATION], there);
        }
    }

    fn count(&self) -> u32 {
        self.elements.len() as u32
    }

    fn fan_outs_of(&self, element: &Element) -> &[u32] {
        let start = element[START] as usize;
        &self.fan_outs[start..start + element[NUMBER] as usize]
    }

    /// How much longer the wires would be if the two changed places.
    fn delta(&self, one: u32, other: u32) -> i64 {
        let [from, to] = [one, other].map(|element| self.elements[element as usize][LOCATION] as usize);
        let (here, there) = (self.locations[from], self.locations[to]);
        self.moved(one, other, here, there) + self.moved(other, one, there, here)
    }

    /// How much longer the wires of one element would be elsewhere. A wire between the two that change places
    /// keeps its length.
    fn moved(&self, element: u32, partner: u32, from: [u32; 2], to: [u32; 2]) -> i64 {
        let record = &self.elements[element as usize];
        let fan_ins = record[FIRST_IN..].iter();
        fan_ins
            .chain(self.fan_outs_of(record))
            .filter(|&&wired| wired != partner)
            .map(|&wired| {
                let place = self.locations[self.elements[wired as usize][LOCATION] as usize];
                length(to, place) - length(from, place)
            })
            .sum()
    }

    fn swap(&mut self, one: u32, other: u32) {
        let there = self.elements[other as usize][LOCATION];
        let here = std::mem::replace(&mut self.elements[one as usize][LOCATION], there);
        self.elements[other as usize][LOCATION] = here;
    }

    /// Length of all wires, counted from the fan-ins.
    fn cost(&self) -> i64 {
        let place = |element: u32| self.locations[self.elements[element as usize][LOCATION] as usize];
        let wires = |element: &Element| -> i64 {
            let here = self.locations[element[LOCATION] as usize];
            element[FIRST_IN..].iter().map(|&fan_in| length(here, place(fan_in))).sum()
        };
        self.elements.iter().map(wires).sum()
    }

    /// Whether each location has exactly one element.
    fn is_permutation(&self) -> Result<(), String> {
        let mut is_taken = vec![false; self.locations.len()];
        for element in self.elements.iter() {
            let location = element[LOCATION] as usize;
            if std::mem::replace(&mut is_taken[location], true) {
                return Err(format!("two elements are at location {location}"));
            }
        }
        Ok(())
    }

    /// Where every element is, as one number.
    fn checksum(&self) -> u64 {
        let places = self.elements.iter().map(|element| u64::from(element[LOCATION]));
        places.fold(0, |sum, place| (sum ^ place).wrapping_mul(0x0000_0100_0000_01b3))
    }
}

/// Manhattan length.
fn length(from: [u32; 2], to: [u32; 2]) -> i64 {
    i64::from(from[0].abs_diff(to[0])) + i64::from(from[1].abs_diff(to[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(count: u32) -> Vec<u32> {
        vec![0; count as usize * BYTES_PER_ELEMENT as usize / size_of::<u32>()]
    }

    #[test]
    fn wires_have_two_ends() {
        let mut words = words(100);
        let netlist = Netlist::lay_out(&mut words, 100, &mut SplitMix64::new(3));
        let mut ins: Vec<(u32, u32)> = Vec::new();
        let mut outs: Vec<(u32, u32)> = Vec::new();
        for (at, element) in (0..).zip(netlist.elements.iter()) {
            ins.extend(element[FIRST_IN..].iter().map(|&from| (from, at)));
            outs.extend(netlist.fan_outs_of(element).iter().map(|&to| (at, to)));
            assert!(!element[FIRST_IN..].contains(&at), "no element feeds itself");
        }
        ins.sort_unstable();
        outs.sort_unstable();
        assert_eq!(ins, outs);
        netlist.is_permutation().unwrap();
    }

    #[test]
    fn each_delta_is_the_difference_of_the_whole_costs() {
        for count in [2, 3, 10, 97] {
            let mut words = words(count);
            let mut random = SplitMix64::new(u64::from(count));
            let mut netlist = Netlist::lay_out(&mut words, count, &mut random);
            for _ in 0..200 {
                let [one, other] = [0; 2].map(|_| random.below(u64::from(count)) as u32);
                if one == other {
                    continue;
                }
                let (before, delta) = (netlist.cost(), netlist.delta(one, other));
                netlist.swap(one, other);
                assert_eq!(netlist.cost(), before + delta, "{one} and {other} of {count}");
            }
        }
    }

    /// The least cost of all ways to place seven elements.
    fn least(netlist: &mut Netlist<'_>, from: usize) -> i64 {
        if from + 1 == netlist.elements.len() {
            return netlist.cost();
        }
        (from..netlist.elements.len())
            .map(|other| {
                let swapped = |netlist: &mut Netlist<'_>| {
                    if other != from {
                        netlist.swap(from as u32, other as u32);
                    }
                };
                swapped(netlist);
                let found = least(netlist, from + 1);
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
            let mut words = words(7);
            let mut random = SplitMix64::new(seed);
            let mut netlist = Netlist::lay_out(&mut words, 7, &mut random);
            let best = least(&mut netlist, 0);
            let before = netlist.cost();
            let annealed = anneal(&mut netlist, &mut random, 30, 500, 50.0);
            assert_eq!(netlist.cost(), before + annealed.delta);
            let cost = netlist.cost();
            assert!(cost >= best && cost * 10 <= best * 11, "{cost} for {best}, the least of all");
            found += u32::from(netlist.cost() == best);
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
        let mut options = Options::defaults(WORKLOAD.options);
        for (name, typed) in [("size", "64K"), ("steps", "20"), ("swaps", "200")] {
            options.set(name, typed).unwrap();
        }
        let done = run(&options, &mut Phase::unwatched()).unwrap();
        assert_eq!(run(&options, &mut Phase::unwatched()).unwrap().checksum, done.checksum);
        let figure = |name: &str| done.figures.iter().find(|figure| figure.name == name).unwrap().value;
        assert!(figure("cost_after") < figure("cost_before"), "annealing shortens the wires");
        assert!(figure("accepted") > 0.0);
        assert!(done.working_set.0 <= 64 << 10 && done.working_set.0 > 63 << 10);
        options.set("seed", "2").unwrap();
        assert_ne!(run(&options, &mut Phase::unwatched()).unwrap().checksum, done.checksum);
        options.set("size", "119").unwrap();
        assert!(matches!(run(&options, &mut Phase::unwatched()), Err(Failed::Options(_))));
    }
}
