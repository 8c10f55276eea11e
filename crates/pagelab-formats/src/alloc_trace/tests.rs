//! Tests of blocks: round trips, truncated blocks, corrupted blocks.

use pagelab_model::alloc_trace::{FrameRun, FrameState, TraceEvent, TraceEventKind};
use pagelab_model::random::SplitMix64;

use super::*;
use super::{read_varint, unzigzag, write_varint, zigzag};

/// Any event, every field of it over its whole range now and then.
fn event(random: &mut SplitMix64, at_ns: u64) -> TraceEvent {
    let mut number = |small: u64| match random.next_below(8) {
        0 => random.next_u64(),
        _ => random.next_below(small),
    };
    let (pfn, order, gfp) = (number(1 << 22) as u32, number(11) as u8, number(40) as u32);
    let [migratetype, from] = [number(6) as u8, number(6) as u8];
    let (tid, cpu, kind) = (number(30) as u32, number(4) as u16, number(12) % 12);
    let what = match kind {
        0..=3 => TraceEventKind::Alloc { pfn: (kind > 0).then_some(pfn), order, migratetype, gfp_flags: gfp },
        4 | 5 => TraceEventKind::Free { pfn, order },
        6 => {
            let (taken_order, wanted) = (order, migratetype);
            TraceEventKind::Fallback {
                pfn,
                alloc_order: from,
                fallback_order: taken_order,
                alloc_migratetype: wanted,
                fallback_migratetype: from,
                change_ownership: pfn % 2 == 1,
            }
        }
        7 => TraceEventKind::CompactionBegin,
        8 => TraceEventKind::CompactionEnd,
        9 => TraceEventKind::Migrated { moved: pfn, failed: gfp },
        10 => TraceEventKind::ReclaimEnd { freed: pfn },
        _ if order % 2 == 0 => TraceEventKind::ReclaimBegin { order },
        _ => TraceEventKind::KswapdWake { order },
    };
    TraceEvent { time_ns: at_ns, tid, cpu, kind: what }
}

fn events(seed: u64, count: usize) -> Vec<TraceEvent> {
    let mut random = SplitMix64::new(seed);
    let mut at_ns = random.next_below(1 << 50);
    let next = |_| {
        let step = 1 << random.next_below(34);
        at_ns += random.next_below(step);
        event(&mut random, at_ns)
    };
    (0..count).map(next).collect()
}

fn block(events: &[TraceEvent], shift: u8) -> Vec<u8> {
    let mut block = Vec::new();
    Encoder::new(shift).encode(events, &mut block);
    block
}

#[test]
fn numbers_come_back_and_take_a_byte_for_seven_bits() {
    for bits in 0..64 {
        for value in [1u64 << bits, (1 << bits) - 1, u64::MAX >> bits] {
            let mut bytes = Vec::new();
            write_varint(&mut bytes, value);
            let wanted = (64 - (value | 1).leading_zeros()).div_ceil(7) as usize;
            assert_eq!(bytes.len(), wanted.min(9), "{value:#x}");
            let length = bytes.len();
            bytes.extend([0xff; 8]);
            let mut at = 0;
            assert_eq!((read_varint(&bytes, &mut at), at), (Some(value), length));
            assert_eq!(read_varint(&bytes[..7], &mut 0), None);
        }
    }
    for difference in [0, 1, -1, 63, -64, i32::MAX, i32::MIN] {
        assert_eq!(unzigzag(zigzag(difference)), difference);
    }
    assert_eq!([zigzag(-1), zigzag(1), zigzag(-2)], [1, 2, 3]);
}

#[test]
fn any_events_come_back_and_one_encoder_serves_many_blocks() {
    let mut encoder = Encoder::new(0);
    let mut read = Vec::new();
    for (seed, count) in [(1, 0), (2, 1), (3, 3000), (4, 7), (5, BLOCK_EVENTS_MAX), (6, 100)] {
        let (events, mut block) = (events(seed, count), Vec::new());
        encoder.encode(&events, &mut block);
        decode(&block, &mut read).unwrap();
        assert!(events == read, "{count} events of seed {seed}");
        assert!(block.len() <= BLOCK_BYTES_MAX, "{}", block.len());
    }
}

#[test]
fn times_are_cut_to_their_unit_and_never_go_back() {
    let at = |at_ns| TraceEvent { time_ns: at_ns, tid: 1, cpu: 0, kind: TraceEventKind::CompactionEnd };
    let mut read = Vec::new();
    decode(&block(&[at(17), at(15), at(40), at(41)], 3), &mut read).unwrap();
    let times: Vec<u64> = read.iter().map(|event| event.time_ns).collect();
    assert_eq!(times, [16, 16, 40, 40]);
}

#[test]
fn a_fault_takes_four_bytes_before_compression() {
    let fault = |page: u32| TraceEvent {
        time_ns: u64::from(page) * 700,
        tid: 4121,
        cpu: 1,
        kind: TraceEventKind::Alloc {
            pfn: Some(70_000 + page),
            order: 0,
            migratetype: 1,
            gfp_flags: 0x140_dca,
        },
    };
    let events: Vec<TraceEvent> = (0..10_000).map(fault).collect();
    let bytes = block(&events, DEFAULT_SHIFT).len();
    assert!((40_000..=40_100).contains(&bytes), "who, shape, time, frame: {bytes}");
}

#[test]
fn what_was_cut_or_changed_is_an_error_or_other_events_and_never_more() {
    let whole = block(&events(9, 500), 3);
    let mut read = vec![event(&mut SplitMix64::new(1), 1); 3];
    for end in 0..whole.len() {
        let error = decode(&whole[..end], &mut read).unwrap_err();
        assert!(error.message_in_file("t").starts_with("t: byte "), "{error}");
        assert!(read.is_empty());
    }
    let mut random = SplitMix64::new(11);
    let mut refused = 0;
    for _ in 0..4000 {
        let mut changed = whole.clone();
        let at = random.next_below(changed.len() as u64) as usize;
        changed[at] ^= 1 << random.next_below(8);
        refused += usize::from(decode(&changed, &mut read).is_err());
        assert!(read.len() <= BLOCK_EVENTS_MAX);
    }
    assert!(refused > 500, "{refused}");
    let many = [put_all(&[3, BLOCK_EVENTS_MAX as u64 + 1]), vec![0; 64]].concat();
    assert!(
        decode(&many, &mut read).unwrap_err().message_in_file("t").contains("exceeds the limit of 65536")
    );
    let empty_promise = [put_all(&[3, 60_000, 0, 0, 0]), vec![0; 64]].concat();
    assert!(decode(&empty_promise, &mut read).unwrap_err().message_in_file("t").contains("truncated column"));
}

fn put_all(numbers: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    numbers.iter().for_each(|&number| write_varint(&mut bytes, number));
    bytes
}

#[test]
fn runs_come_back_in_pieces() {
    let mut random = SplitMix64::new(5);
    let (mut pfn, mut read_ns) = (0u32, 0);
    let mut runs = Vec::new();
    for place in 0..5000 {
        pfn += random.next_below(3) as u32;
        let frames = 1 + random.next_below(900) as u32;
        read_ns += random.next_below(50);
        runs.push(FrameRun { pfn, frames, state: FrameState::ALL[place % 5], read_ns });
        pfn += frames;
    }
    let mut read = Vec::new();
    for piece in runs.chunks(1999) {
        let mut bytes = Vec::new();
        encode_runs(piece, &mut bytes);
        decode_runs(&bytes, &mut read).unwrap();
    }
    assert!(runs == read);
    let mut bytes = Vec::new();
    encode_runs(&runs[..20], &mut bytes);
    for end in 0..bytes.len() {
        assert!(decode_runs(&bytes[..end], &mut Vec::new()).is_err());
    }
    let too_far = [put_all(&[1, u64::from(u32::MAX) + 1, 8, 0]), vec![0; 8]].concat();
    assert!(decode_runs(&too_far, &mut read).is_err() && read.is_empty());
}

#[test]
fn the_states_of_frames_have_the_numbers_that_are_stored() {
    assert!(FrameState::ALL.iter().enumerate().all(|(number, &was)| number == was as usize));
}

#[test]
fn the_seeds_of_the_fuzz_are_a_block_of_four_events_and_three_runs() {
    let target = crate::fuzz::TARGETS.iter().find(|target| target.name == "alloc_trace").unwrap();
    let (mut read, mut runs) = (Vec::new(), Vec::new());
    decode(target.seeds[0], &mut read).unwrap();
    assert_eq!(read[1].kind, TraceEventKind::Free { pfn: 512, order: 9 });
    assert_eq!(block(&read, 3), target.seeds[0], "as it is written");
    decode(target.seeds[1], &mut read).unwrap();
    decode_runs(target.seeds[2], &mut runs).unwrap();
    assert_eq!((read.len(), runs.len()), (0, 3));
}
