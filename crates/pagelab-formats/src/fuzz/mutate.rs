//! A seeded mutator of texts and records: the same seed and round give the same bytes on every machine.

use pagelab_model::seed::SplitMix64;

/// The largest result. Long inputs are a matter of the limits that unit tests hold.
const LARGEST: usize = 16 << 10;

/// Numbers at the edges of what a field may hold, and what is no number at all.
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
const PIECES: &[&[u8]] = &[
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

/// Places and pieces drawn from a seed.
struct Random(SplitMix64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.draw()
    }

    /// A number below `end`; 0 where there is none below.
    fn below(&mut self, end: usize) -> usize {
        self.0.below(end as u64) as usize
    }

    fn of<'a>(&mut self, list: &[&'a [u8]]) -> &'a [u8] {
        let at = self.below(list.len());
        list.get(at).copied().unwrap_or_default()
    }
}

/// One of `inputs`, changed in one to five places. `seed` and `round` decide about everything.
pub fn mutate(seed: u64, round: u64, inputs: &[&[u8]]) -> Vec<u8> {
    let mut random = Random(SplitMix64::new(seed ^ round.wrapping_mul(0xd6e8_feb8_6659_fd93)));
    let mut text = random.of(inputs).to_vec();
    for _ in 0..1 + random.below(5) {
        change(&mut random, &mut text, inputs);
        text.truncate(LARGEST);
    }
    text
}

fn change(random: &mut Random, text: &mut Vec<u8>, inputs: &[&[u8]]) {
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
            let other = random.of(inputs);
            let (from, to) = range(random, other.len());
            let at = random.below(text.len() + 1);
            text.splice(at..at, other[from..to].iter().copied());
        }
        3 => {
            let (from, to) = range(random, text.len());
            let part = text[from..to].to_vec();
            let times = 1 + random.below(40);
            text.splice(to..to, part.repeat(times));
        }
        4 | 5 => number(random, text),
        6 => drop(text.drain(line(random, text))),
        7 => {
            let part = text[line(random, text)].to_vec();
            let times = 1 + random.below(100);
            let at = line(random, text).start;
            text.splice(at..at, part.repeat(times));
        }
        8 => text.truncate(random.below(text.len() + 1)),
        9 => {
            let piece = random.of(PIECES);
            let times = if random.below(8) == 0 { 1 + random.below(1000) } else { 1 };
            let at = random.below(text.len() + 1);
            text.splice(at..at, piece.repeat(times));
        }
        _ => {
            let (from, to) = range(random, text.len());
            text.drain(from..to.min(from + 16));
        }
    }
}

/// Puts another number in the place of one that stands in the text.
fn number(random: &mut Random, text: &mut Vec<u8>) {
    let start = random.below(text.len());
    let digit = |byte: &u8| byte.is_ascii_digit();
    let Some(from) = text[start..].iter().position(digit).map(|at| start + at) else { return };
    let to = text[from..].iter().position(|byte| !digit(byte)).map_or(text.len(), |length| from + length);
    let random_number = random.next().to_string();
    let other = if random.below(4) == 0 { random_number.as_bytes() } else { random.of(NUMBERS) };
    text.splice(from..to, other.iter().copied());
}

fn range(random: &mut Random, length: usize) -> (usize, usize) {
    let (a, b) = (random.below(length + 1), random.below(length + 1));
    (a.min(b), a.max(b))
}

/// The line around a random place, with its newline.
fn line(random: &mut Random, text: &[u8]) -> std::ops::Range<usize> {
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
        assert!(all.iter().all(|text| text.len() <= LARGEST));
        let distinct: std::collections::BTreeSet<&Vec<u8>> = all.iter().collect();
        assert!(distinct.len() > 1000, "{}", distinct.len());
        assert_ne!(mutate(7, 0, inputs), mutate(8, 0, inputs));
        assert_eq!(mutate(1, 1, &[]).len(), mutate(1, 1, &[b""]).len());
    }
}
