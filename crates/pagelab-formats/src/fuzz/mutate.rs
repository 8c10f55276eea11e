//! A seeded mutator of texts and records: the same seed and round give the same bytes on every machine.

use pagelab_model::random::SplitMix64;

/// The largest result. Long inputs are a matter of the limits that unit tests hold.
const OUTPUT_BYTES_MAX: usize = 16 << 10;

/// Numbers at the limits of a field, and texts that are no numbers.
const NUMBERS: &[&[u8]] = &[
    b"0",
    b"1",
    b"-1",
    b"63",
    b"64",
    b"65",
    b"100000",
    b"2147483648",
    b"4294967295",
    b"4294967296",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775808",
    b"-9223372036854775809",
    b"18446744073709551615",
    b"18446744073709551616",
    b"99999999999999999999999999999999999999",
    b"007",
    b"1.5",
    b"",
    b"x",
];

/// Pieces that mean something to one parser or another.
const FRAGMENTS: &[&[u8]] = &[
    b"\n",
    b"\n\n",
    b"\r\n",
    b"\0",
    b"\xff\xfe",
    b" ",
    b"\t",
    b":",
    b",",
    b"-",
    b">",
    b"[",
    b"]",
    b"(",
    b")",
    b"=",
    b"#",
    b" kB",
    b"Node 0, zone ",
    b"\x1b[2J",
    b"\xc3\xa9",
];

/// Random positions and pieces from a seed.
struct MutationRandom(SplitMix64);

impl MutationRandom {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `end`; 0 if there is none.
    fn below(&mut self, end: usize) -> usize {
        self.0.next_below(end as u64) as usize
    }

    fn choose<'a>(&mut self, list: &[&'a [u8]]) -> &'a [u8] {
        let at = self.below(list.len());
        list.get(at).copied().unwrap_or_default()
    }
}

/// One of `inputs`, changed in one to five places. `seed` and `round` decide about everything.
pub fn mutate(seed: u64, round: u64, inputs: &[&[u8]]) -> Vec<u8> {
    let mut random = MutationRandom(SplitMix64::new(seed ^ round.wrapping_mul(0xd6e8_feb8_6659_fd93)));
    let mut text = random.choose(inputs).to_vec();
    for _ in 0..1 + random.below(5) {
        mutate_once(&mut random, &mut text, inputs);
        text.truncate(OUTPUT_BYTES_MAX);
    }
    text
}

fn mutate_once(random: &mut MutationRandom, text: &mut Vec<u8>, inputs: &[&[u8]]) {
    match random.below(11) {
        0 => {
            let at = random.below(text.len());
            let bit = random.below(8);
            text.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << bit);
        }
        1 => {
            let at = random.below(text.len());
            let byte = random.next() as u8;
            text.get_mut(at).into_iter().for_each(|old| *old = byte);
        }
        2 => {
            let other = random.choose(inputs);
            let (from, to) = random_range(random, other.len());
            let at = random.below(text.len() + 1);
            text.splice(at..at, other[from..to].iter().copied());
        }
        3 => {
            let (from, to) = random_range(random, text.len());
            let part = text[from..to].to_vec();
            let times = 1 + random.below(40);
            text.splice(to..to, part.repeat(times));
        }
        4 | 5 => replace_number(random, text),
        6 => drop(text.drain(random_line(random, text))),
        7 => {
            let part = text[random_line(random, text)].to_vec();
            let times = 1 + random.below(100);
            let at = random_line(random, text).start;
            text.splice(at..at, part.repeat(times));
        }
        8 => text.truncate(random.below(text.len() + 1)),
        9 => {
            let piece = random.choose(FRAGMENTS);
            let times = if random.below(8) == 0 { 1 + random.below(1000) } else { 1 };
            let at = random.below(text.len() + 1);
            text.splice(at..at, piece.repeat(times));
        }
        _ => {
            let (from, to) = random_range(random, text.len());
            text.drain(from..to.min(from + 16));
        }
    }
}

/// Replaces a number in the text by another one.
fn replace_number(random: &mut MutationRandom, text: &mut Vec<u8>) {
    let start = random.below(text.len());
    let digit = |byte: &u8| byte.is_ascii_digit();
    let Some(from) = text[start..].iter().position(digit).map(|at| start + at) else { return };
    let to = text[from..].iter().position(|byte| !digit(byte)).map_or(text.len(), |length| from + length);
    let random_number = random.next().to_string();
    let other = if random.below(4) == 0 { random_number.as_bytes() } else { random.choose(NUMBERS) };
    text.splice(from..to, other.iter().copied());
}

fn random_range(random: &mut MutationRandom, length: usize) -> (usize, usize) {
    let (a, b) = (random.below(length + 1), random.below(length + 1));
    (a.min(b), a.max(b))
}

/// The line around a random place, with its newline.
fn random_line(random: &mut MutationRandom, text: &[u8]) -> std::ops::Range<usize> {
    let at = random.below(text.len());
    let start = text[..at].iter().rposition(|&b| b == b'\n').map_or(0, |newline| newline + 1);
    let end = text[at..].iter().position(|&b| b == b'\n').map_or(text.len(), |length| at + length + 1);
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_round_give_the_same_bytes_and_others_give_others() {
        let inputs: &[&[u8]] = &[b"Node 0, zone DMA 1 2 3\n", b"MemTotal: 4 kB\n", b""];
        let all: Vec<Vec<u8>> = (0..2000).map(|round| mutate(7, round, inputs)).collect();
        assert!((0..2000).all(|round| mutate(7, round, inputs) == all[round as usize]));
        assert!(all.iter().all(|text| text.len() <= OUTPUT_BYTES_MAX));
        let distinct: std::collections::BTreeSet<&Vec<u8>> = all.iter().collect();
        assert!(distinct.len() > 1000, "{}", distinct.len());
        assert_ne!(mutate(7, 0, inputs), mutate(8, 0, inputs));
        assert_eq!(mutate(1, 1, &[]).len(), mutate(1, 1, &[b""]).len());
    }
}
