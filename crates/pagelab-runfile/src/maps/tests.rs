//! Tests: maps through their bytes, and invalid bytes.

use super::*;
use pagelab_model::page_map::FrameSpan;
use pagelab_model::random::SplitMix64;
use pagelab_model::{Order, PageSize, Pages, Pfn};

fn layout(frames: u64) -> PageMapLayout {
    let span = |first, count| FrameSpan { first: Pfn(first), count: Pages(count) };
    PageMapLayout {
        page_size: PageSize::DEFAULT,
        pageblock_order: Order(9),
        pmd_order: Order(9),
        spans: vec![span(16, 100), span(1 << 20, frames - 100)],
        zones: Vec::new(),
        blocks: Vec::new(),
    }
}

fn map(random: &mut SplitMix64, frames: u64, at_ns: u64) -> PageMap {
    let class = |random: &mut SplitMix64| PageClass::ALL[random.next_below(15) as usize];
    let mut classes = Vec::new();
    while (classes.len() as u64) < frames {
        let run = (1 + random.next_below(600)).min(frames - classes.len() as u64);
        classes.extend(std::iter::repeat_n(class(random), run as usize));
    }
    PageMap { started_ns: at_ns, ended_ns: at_ns + 5, layout: layout(frames), classes }
}

/// A day of maps, some of which come after a change of the layout.
fn written() -> Vec<(PageMap, bool, Vec<u8>)> {
    let (mut random, mut writer) = (SplitMix64::new(4), MapEncoder::default());
    let mut all = Vec::new();
    for number in 0..150 {
        let frames = if number < 100 { 5_000 } else { 6_000 };
        let map = map(&mut random, frames, number * 60);
        let (is_key, data) = writer.encode_next(&map).unwrap();
        all.push((map, is_key, data));
    }
    all
}

#[test]
fn every_map_comes_back_and_keys_stand_where_they_should() {
    let all = written();
    let keys: Vec<usize> = (0..all.len()).filter(|&at| all[at].1).collect();
    assert_eq!(keys, [0, 60, 100], "one every {KEY_FRAME_INTERVAL} maps, and where the layout changes");
    for start in keys {
        let mut reader = MapDecoder::default();
        for (at, (map, is_key, data)) in all.iter().enumerate().skip(start) {
            assert!(reader.decode_next(*is_key, data).unwrap() == *map, "map {at} from key {start}");
        }
    }
}

#[test]
fn a_delta_without_its_map_is_refused() {
    let all = written();
    let mut reader = MapDecoder::default();
    let problem = reader.decode_next(false, &all[1].2).unwrap_err();
    assert_eq!(problem, "its reference map is not the previous map");
    reader.decode_next(true, &all[0].2).unwrap();
    assert!(reader.decode_next(false, &all[2].2).is_err(), "the one between is missing");
}

#[test]
fn damaged_bytes_are_an_error_or_another_map_and_never_a_panic() {
    let all = written();
    let mut random = SplitMix64::new(8);
    let mut refused = 0;
    for _ in 0..600 {
        let mut data = all[0].2.clone();
        if random.next_below(2) == 0 {
            data.truncate(random.next_below(data.len() as u64) as usize);
        } else {
            let at = random.next_below(data.len() as u64) as usize;
            data[at] = random.next_u64() as u8;
        }
        refused += u32::from(MapDecoder::default().decode_next(true, &data).is_err());
    }
    assert!(refused > 300, "{refused} of 600");
}

#[test]
fn what_is_no_map_is_not_stored() {
    let mut random = SplitMix64::new(1);
    let good = map(&mut random, 1_000, 7);
    let refuse = |change: &dyn Fn(&mut PageMap), said: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let problem = MapEncoder::default().encode_next(&bad).err().unwrap_or_default();
        assert!(problem.contains(said), "{problem} lacks {said}");
    };
    refuse(&|map| map.classes.truncate(10), "1000 page frames, but it contains 10 classes");
    refuse(&|map| map.ended_ns = 1, "ended before it began");
    refuse(&|map| map.layout.spans.reverse(), "not in order");
}
