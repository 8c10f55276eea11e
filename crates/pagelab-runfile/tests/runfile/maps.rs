//! Maps of physical memory in a file: each comes back, and what is missing is said.

use std::process::Command;

use pagelab_model::run::Ending;
use pagelab_runfile::{ErrorKind, MapEncoder, Reader, Writer};

use crate::made;

const MAPS: u64 = 130;

#[test]
fn each_map_is_read_alone_and_a_delta_is_small() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("maps.pagelab");
    let mut writer = Writer::create(&path, &made::manifest()).unwrap();
    let (mut encoder, mut bytes) = (MapEncoder::default(), Vec::new());
    for number in 0..MAPS {
        let map = encoder.encode(&made::map(200_000, number)).unwrap();
        bytes.push(map.bytes());
        writer.map(map).unwrap();
    }
    writer.close(Ending::Complete { after_ns: 1 }).unwrap();
    let reader = Reader::open(&path).unwrap();
    let run = reader.run().unwrap();
    assert!(run.not_shown.is_empty(), "{:?}", run.not_shown);
    assert_eq!(run.maps.len() as u64, MAPS);
    for place in [0, 1, 59, 60, 61, 119, 120, 129] {
        let map = reader.map(place).unwrap();
        assert!(map == made::map(200_000, place as u64), "map {place}");
        assert_eq!(run.maps[place].at_ns, map.started_ns);
        assert_eq!(run.maps[place].is_key, place % 60 == 0);
    }
    // Ascending or not, again or in another stretch: the same maps.
    for places in [&[0, 1, 2, 61, 62, 119, 129][..], &[129, 5, 5, 4, 60, 3], &[]] {
        let mut found = Vec::new();
        let each = |place: usize, map| {
            assert!(map == made::map(200_000, place as u64), "map {place}");
            found.push(place);
        };
        reader.each_map(places, each).unwrap();
        assert_eq!(found, places);
    }
    let mut found = 0;
    let error = reader.each_map(&[3, MAPS as usize], |_, _| found += 1).unwrap_err();
    assert_eq!((error.kind(), found), (ErrorKind::Damaged, 1));
    assert!(bytes[1] * 2 < bytes[0], "a delta of {} bytes, a key frame of {}", bytes[1], bytes[0]);
    assert_eq!(reader.map(MAPS as usize).unwrap_err().kind(), ErrorKind::Damaged);
}

#[test]
fn a_map_whose_base_was_taken_out_is_refused_and_the_rest_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("maps.pagelab");
    let mut writer = Writer::create(&path, &made::manifest()).unwrap();
    let mut encoder = MapEncoder::default();
    for number in 0..62 {
        writer.map(encoder.encode(&made::map(5_000, number)).unwrap()).unwrap();
    }
    writer.close(Ending::Complete { after_ns: 1 }).unwrap();
    for (sql, readable, refused) in [
        ("DELETE FROM blob WHERE id = 3", &[0, 1, 59][..], &[2, 10][..]),
        ("DELETE FROM blob WHERE id = 1", &[58], &[0, 5]),
        ("UPDATE blob SET name = 'delta'", &[], &[0, 58]),
    ] {
        assert!(Command::new("sqlite3").arg(&path).arg(sql).status().unwrap().success());
        let reader = Reader::open(&path).unwrap();
        for &place in readable {
            reader.map(place).unwrap();
        }
        for &place in refused {
            assert_eq!(reader.map(place).unwrap_err().kind(), ErrorKind::Damaged, "{sql}: map {place}");
        }
    }
}
