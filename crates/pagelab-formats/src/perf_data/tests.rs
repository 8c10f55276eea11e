//! Tests of perf files in both byte orders, and of malformed ones. That real files are read right is shown in
//! `tests/perf_data.rs` and against perf itself in pagelab-target; a file that is made here cannot show it.

use super::*;

/// A file of words, in one byte order.
struct Words(Endian, Vec<u8>);

impl Words {
    fn new(endian: Endian) -> Words {
        Words(endian, Vec::new())
    }

    fn push_bytes(mut self, bytes: [u8; 8], count: usize) -> Words {
        match self.0 {
            Endian::Little => self.1.extend(&bytes[..count]),
            Endian::Big => self.1.extend(bytes[..count].iter().rev()),
        }
        self
    }

    fn u64s(self, words: &[u64]) -> Words {
        words.iter().fold(self, |of, word| of.push_bytes(word.to_le_bytes(), 8))
    }

    fn u32s(self, words: &[u32]) -> Words {
        words.iter().fold(self, |of, word| of.push_bytes(u64::from(*word).to_le_bytes(), 4))
    }

    fn raw(mut self, bytes: &[u8]) -> Words {
        self.1.extend(bytes);
        self
    }

    fn record(self, kind: u32, misc: u16, body: &Words) -> Words {
        let size = (8 + body.1.len()) as u64;
        let of = self.u32s(&[kind]).push_bytes(u64::from(misc).to_le_bytes(), 2);
        of.push_bytes(size.to_le_bytes(), 2).raw(&body.1)
    }
}

const SAMPLE_TYPE: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 8 | 1 << 15 | 1 << 24;

/// `sample_id_all`, in the bit field of each byte order.
fn flags(endian: Endian) -> u64 {
    let flags: u64 = 1 << 18 | 1 << 10;
    if endian == Endian::Big { flags.reverse_bits() } else { flags }
}

fn attr(endian: Endian) -> Words {
    let words = [4000, SAMPLE_TYPE, 0, flags(endian), 0, 0, 0];
    Words::new(endian).u32s(&[4, 96]).u64s(&[0x1cd]).u64s(&words).u64s(&[0, 0, 0])
}

fn sample(endian: Endian, frames: u64) -> Words {
    let of = Words::new(endian).u32s(&[7, 8]).u64s(&[50, 0x40_1010, 100, frames, 1, 2]);
    of.u64s(&[3 << 32 | 30, 0x14 << 26])
}

fn records(endian: Endian) -> Words {
    let trailer = |of: Words, time: u64| of.u32s(&[7, 7]).u64s(&[time]);
    let name = trailer(Words::new(endian).u32s(&[7, 7]).raw(b"prog\0\0\0\0"), 10);
    let mapping = Words::new(endian).u32s(&[7, 7]).u64s(&[0x40_0000, 0x2000, 0x1000]);
    let mapping = trailer(mapping.u64s(&[0, 0, 0, 0]).raw(b"/bin/prog\0\0\0\0\0\0\0"), 60);
    let lost = trailer(Words::new(endian).u64s(&[1, 12]), 70);
    Words::new(endian)
        .record(10, 2, &mapping)
        .record(3, 1 << 13, &name)
        .record(9, 2, &sample(endian, 2))
        .record(68, 0, &Words::new(endian))
        .record(2, 0, &lost)
}

const DATA_AT: u64 = 104 + 112;

fn file(endian: Endian, data: &Words) -> Vec<u8> {
    let bytes = data.1.len() as u64;
    let magic = Words::new(endian).push_bytes(*b"PERFILE2", 8);
    let head = magic.u64s(&[104, 112, 104, 112, DATA_AT, bytes, 0, 0, 1 << 6, 0, 0, 0]);
    let features_at = DATA_AT + bytes;
    let arch = Words::new(endian).u32s(&[8]).raw(b"aarch64\0");
    head.raw(&attr(endian).1).u64s(&[0, 0]).raw(&data.1).u64s(&[features_at + 16, 12]).raw(&arch.1).1
}

fn copy(packed: &[u8], room: &mut [u8]) -> Result<(usize, usize), String> {
    let count = packed.len().min(room.len());
    room[..count].copy_from_slice(&packed[..count]);
    Ok((count, count))
}

fn events(mut bytes: &[u8]) -> Result<(FileInfo, ReadSummary, Vec<Event>), ParseError> {
    let mut events = Vec::new();
    let (about, tally) = read_perf_data(&mut bytes, &mut copy, &mut |_, event| events.push(event))?;
    Ok((about, tally, events))
}

#[test]
fn both_byte_orders_say_the_same_in_the_order_of_time() {
    let both = [Endian::Little, Endian::Big].map(|endian| events(&file(endian, &records(endian))).unwrap());
    assert_eq!(both[0], both[1]);
    let (about, tally, events) = &both[0];
    assert_eq!((about.arch.as_str(), tally.records), ("aarch64", 5));
    assert!(about.events[0].attr.is_frequency() && about.events[0].attr.has_sample_id_all());
    let Event::Named { is_exec: true, .. } = &events[0] else { panic!("{events:?}") };
    let Event::Sample(sample) = &events[1] else { panic!("{events:?}") };
    assert_eq!((sample.pid, sample.tid, sample.time_ns, sample.address), (7, 8, Some(50), 0x40_1010));
    assert_eq!((sample.period, sample.weight), (Some(100), Some(30)));
    assert_eq!(DataSource::from_data_src(sample.data_src.unwrap()).tlb_outcome(false), TlbOutcome::PageWalk);
    let Event::Mapped(mapping) = &events[2] else { panic!("{events:?}") };
    assert_eq!((mapping.start, mapping.offset, mapping.name.as_str()), (0x40_0000, 0x1000, "/bin/prog"));
    assert_eq!(events[3], Event::Lost { records: 12 });
}

#[test]
fn a_pipe_and_packed_records_say_the_same_as_a_file() {
    let little = Endian::Little;
    let (.., expected) = events(&file(little, &records(little))).unwrap();
    let head = Words::new(little).raw(b"PERFILE2").u64s(&[16]).record(64, 0, &attr(little));
    let data = records(little).1;
    let plain = head.raw(&data);
    assert_eq!(events(&plain.1).unwrap().2, expected);
    // Cut anywhere, since packed records end where they like.
    for cut in 1..data.len() {
        let (first, second) = data.split_at(cut);
        let of = Words::new(little).raw(b"PERFILE2").u64s(&[16]).record(64, 0, &attr(little));
        let of = of.record(81, 0, &Words::new(little).raw(first));
        let padded = [second, &[0; 7][..second.len().wrapping_neg() % 8]].concat();
        let of = of.record(83, 0, &Words::new(little).u64s(&[second.len() as u64]).raw(&padded));
        assert_eq!(events(&of.1).unwrap().2, expected, "{cut}");
    }
}

#[test]
fn every_cut_is_an_error_at_a_byte_and_nothing_runs_over() {
    for endian in [Endian::Little, Endian::Big] {
        let whole = file(endian, &records(endian));
        for end in 0..whole.len() {
            let error = events(&whole[..end]).unwrap_err().message_in_file("f");
            assert!(error.starts_with("f: byte "), "{end}: {error}");
        }
        // Every word set to what a liar would say.
        for place in (0..whole.len() - 8).step_by(4) {
            for lie in [u64::MAX, 1 << 40, 1 << 63, 10 << 30, 0] {
                let mut lying = whole.clone();
                lying[place..place + 8].copy_from_slice(&lie.to_le_bytes());
                let _ = events(&lying);
            }
        }
    }
}

#[test]
fn lies_are_named() {
    let little = Endian::Little;
    let check = |bytes: &[u8], message: &str| {
        let error = events(bytes).unwrap_err().message_in_file("f");
        assert!(error.contains(message), "{error}");
    };
    let with = |data: &Words| file(little, data);
    let long = Words::new(little).record(9, 2, &sample(little, 1 << 40));
    check(&with(&long), "byte 216: truncated sample of 80 bytes");
    check(&with(&Words::new(little).u64s(&[9, 0])), "byte 216: invalid record size of 0 bytes");
    let mut big = with(&records(little));
    big[32..40].copy_from_slice(&(10u64 << 30).to_le_bytes());
    check(&big, "more than 8192 events");
    let mut far = with(&records(little));
    far[24..32].copy_from_slice(&(1u64 << 62).to_le_bytes());
    check(&far, "the file ends in the middle of the list of events");
    check(b"PERFFILE and so on", "2009");
    check(b"#!/bin/sh\necho hello\n", "does not start with PERFILE2");
    let nested = Words::new(little).record(81, 0, &records(little));
    let twice = Words::new(little).record(81, 0, &nested);
    check(&with(&twice), "invalid record in compressed data: type 81");
    let trace = Words::new(little).record(71, 0, &Words::new(little).u64s(&[10 << 30, 0, 0, 0, 0]));
    check(&with(&trace), "bytes are missing at the end");
    let half = Words::new(little).record(81, 0, &Words::new(little).u64s(&[9]));
    check(&with(&half), "invalid record in compressed data: type 9, 0 bytes");
}

#[test]
fn a_killed_perf_leaves_what_it_had_written() {
    let whole = file(Endian::Little, &records(Endian::Little));
    let mut killed = whole[..whole.len() - 28 - 5].to_vec();
    killed[48..56].copy_from_slice(&[0; 8]);
    let (_, tally, events) = events(&killed).unwrap();
    assert!(tally.is_unfinished);
    assert_eq!(events.len(), 3, "the loss is cut off");
}

#[test]
fn what_comes_late_is_told() {
    let mut out = Vec::new();
    let mut queue = EventQueue::default();
    let lost = |records| Event::Lost { records };
    for (time, of) in [(0, 0), (30, 3), (10, 1)] {
        queue.push(time, lost(of), &mut |event| out.push(event));
    }
    assert_eq!(out, [lost(0)], "what has no time was there before");
    queue.end_round(&mut |event| out.push(event));
    assert_eq!(out.len(), 1, "the first round lets nothing out");
    queue.push(20, lost(2), &mut |event| out.push(event));
    queue.end_round(&mut |event| out.push(event));
    queue.push(25, lost(9), &mut |event| out.push(event));
    queue.finish(&mut |event| out.push(event));
    assert_eq!((out, queue.late_events()), (vec![lost(0), lost(1), lost(2), lost(3), lost(9)], 1));
}
