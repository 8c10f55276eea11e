//! Tests of maps in a file: each is read back, and missing ones are reported.

use std::process::Command;

use pagelab_model::run::RunEnd;
use pagelab_runfile::{ErrorKind, MapEncoder, RunReader, RunWriter};

use crate::fixtures;

const MAPS: u64 = 130;

#[test]
fn each_map_is_read_alone_and_a_delta_is_small() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("maps.pagelab");
    let mut writer = RunWriter::create(&path, &fixtures::manifest()).unwrap();
    let (mut encoder, mut bytes) = (MapEncoder::default(), Vec::new());
    for number in 0..MAPS {
        let map = encoder.encode_map(&fixtures::map(200_000, number)).unwrap();
        bytes.push(map.packed_bytes());
        writer.add_map(map).unwrap();
    }
    writer.close(RunEnd::Complete { after_ns: 1 }).unwrap();
    let reader = RunReader::open(&path).unwrap();
    let run = reader.read_run().unwrap();
    assert!(run.unknown_content.is_empty(), "{:?}", run.unknown_content);
    assert_eq!(run.maps.len() as u64, MAPS);
    for place in [0, 1, 59, 60, 61, 119, 120, 129] {
        let map = reader.read_map(place).unwrap();
        assert!(map == fixtures::map(200_000, place as u64), "map {place}");
        assert_eq!(run.maps[place].at_ns, map.started_ns);
        assert_eq!(run.maps[place].is_keyframe, place % 60 == 0);
    }
    // Ascending or not, again or in another stretch: the same maps.
    for places in [&[0, 1, 2, 61, 62, 119, 129][..], &[129, 5, 5, 4, 60, 3], &[]] {
        let mut found = Vec::new();
        let each = |place: usize, map| {
            assert!(map == fixtures::map(200_000, place as u64), "map {place}");
            found.push(place);
        };
        reader.for_each_map(places, each).unwrap();
        assert_eq!(found, places);
    }
    let mut found = 0;
    let error = reader.for_each_map(&[3, MAPS as usize], |_, _| found += 1).unwrap_err();
    assert_eq!((error.kind(), found), (ErrorKind::Damaged, 1));
    assert!(bytes[1] * 2 < bytes[0], "a delta of {} bytes, a key frame of {}", bytes[1], bytes[0]);
    assert_eq!(reader.read_map(MAPS as usize).unwrap_err().kind(), ErrorKind::Damaged);
}

#[test]
fn a_map_whose_base_was_taken_out_is_refused_and_the_rest_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("maps.pagelab");
    let mut writer = RunWriter::create(&path, &fixtures::manifest()).unwrap();
    let mut encoder = MapEncoder::default();
    for number in 0..62 {
        writer.add_map(encoder.encode_map(&fixtures::map(5_000, number)).unwrap()).unwrap();
    }
    writer.close(RunEnd::Complete { after_ns: 1 }).unwrap();
    for (sql, readable, refused) in [
        ("DELETE FROM blob WHERE id = 3", &[0, 1, 59][..], &[2, 10][..]),
        ("DELETE FROM blob WHERE id = 1", &[58], &[0, 5]),
        ("UPDATE blob SET name = 'delta'", &[], &[0, 58]),
    ] {
        assert!(Command::new("sqlite3").arg(&path).arg(sql).status().unwrap().success());
        let reader = RunReader::open(&path).unwrap();
        for &place in readable {
            reader.read_map(place).unwrap();
        }
        for &place in refused {
            assert_eq!(reader.read_map(place).unwrap_err().kind(), ErrorKind::Damaged, "{sql}: map {place}");
        }
    }
}
