//! Tests: the reads against a brute-force count, and the options end to end.

use super::*;
use crate::options::options_with;

/// A buffer small enough for a test, at an address that no other test uses.
fn options(set: &[(&str, &str)]) -> WorkloadOptions {
    let small = [("size", "6M"), ("region", "64K"), ("rounds", "2000"), ("base", "0")];
    options_with(WORKLOAD.options, &small, set)
}

#[test]
fn the_hot_set_of_the_default_is_drawn_with_repetition() {
    let hot = draw_hot_set(1, 16, 512);
    assert_eq!(hot.len(), 16);
    assert!(hot.iter().all(|&region| region < 512));
    assert_ne!(hot, draw_hot_set(2, 16, 512));
    // 16 draws of 4 must repeat.
    let few = count_draws(&draw_hot_set(1, 16, 4));
    assert_eq!(few.iter().map(|(_, times)| times).sum::<usize>(), 16);
    assert!(few.windows(2).all(|pair| pair[0].1 >= pair[1].1));
    let regions = to_hot_regions(&hot, 512, Bytes(2 << 20), 0x187_8000_0000);
    let shares: f64 = regions.iter().map(|region| region.share).sum();
    assert!((shares - 0.3 - 0.7 * regions.len() as f64 / 512.0).abs() < 1e-12, "{shares}");
    assert!(regions.iter().all(|region| region.address == 0x187_8000_0000 + region.offset));
}

#[test]
fn reads_fall_where_they_are_said_to_fall() {
    let (size, region) = (Bytes(1 << 20), Bytes(1 << 14));
    let hot = vec![3, 17, 17, 40];
    let mut counts = vec![0u64; 64];
    let seen = std::cell::RefCell::new(&mut counts);
    let mut reads = ReadGenerator::new(1, &hot, size, region);
    reads.advance(20_000, |at| {
        seen.borrow_mut()[(at >> 14) as usize] += 1;
        1
    });
    assert_eq!(reads.byte_sum, 200_000);
    for region in to_hot_regions(&hot, 64, region, 0) {
        let ratio = counts[(region.offset >> 14) as usize] as f64 / 200_000.0 / region.share;
        assert!((0.95..1.05).contains(&ratio), "{region:?}: {ratio}");
    }
    let cold = counts[5] as f64 / 200_000.0 / (0.7 / 64.0);
    assert!((0.9..1.1).contains(&cold), "{cold}");
}

#[test]
fn runs_are_checked_and_repeatable() {
    let done = |set: &[(&str, &str)]| {
        run_hot_regions(&options(set), &mut MeasuredPhase::without_observer()).unwrap()
    };
    let (one, two) = (done(&[]), done(&[]));
    assert_eq!(one.checksum, two.checksum);
    assert_eq!(one.working_set, Bytes(6 << 20));
    assert_eq!(one.hot_regions.len(), count_draws(&draw_hot_set(1, 16, 96)).len());
    assert_ne!(one.checksum, done(&[("seed", "2")]).checksum);
    assert_ne!(one.checksum, done(&[("rounds", "2001")]).checksum);
    // Memory that was never written is zero: the checksum depends on the register's state only.
    let read = done(&[("first", "read"), ("advise", "nohuge")]);
    assert_ne!(read.checksum, one.checksum);
}

#[test]
fn a_list_backs_its_regions_at_their_addresses() {
    const BASE: u64 = 0x1878_0000_0000;
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("largepages.txt");
    std::fs::write(&list, format!("{}\n{}\n", BASE + (4 << 20), BASE)).unwrap();
    let list = list.to_str().unwrap();
    let base = BASE.to_string();
    let listed = [("base", base.as_str()), ("largepages", list), ("region", "2M"), ("advise", "nohuge")];
    let plain = run_hot_regions(&options(&listed[..1]), &mut MeasuredPhase::without_observer()).unwrap();
    assert!(plain.hot_regions.iter().all(|region| region.address >= BASE));
    let advised = run_hot_regions(
        &options(&[&listed[..], &[("backing", "thp")]].concat()),
        &mut MeasuredPhase::without_observer(),
    );
    // A kernel without transparent huge pages says so.
    if let Ok(done) = &advised {
        assert_eq!(done.figures[2].value, 2.0);
    } else {
        assert!(matches!(advised, Err(WorkloadError::SystemError(_))), "{advised:?}");
    }
    // The pool may be empty, and the kernel may have none.
    match run_hot_regions(&options(&listed), &mut MeasuredPhase::without_observer()) {
        Ok(done) => assert_eq!(done.checksum, advised.unwrap().checksum, "contents do not depend on pages"),
        Err(WorkloadError::SystemError(text)) => {
            assert!(text.contains("pool") && text.contains("of 2 are"), "{text}")
        }
        Err(other) => panic!("{other}"),
    }
    let anywhere = run_hot_regions(&options(&[("largepages", list)]), &mut MeasuredPhase::without_observer());
    assert!(matches!(anywhere, Err(WorkloadError::InvalidOptions(_))), "{anywhere:?}");
    let missing = run_hot_regions(
        &options(&[("base", &base), ("largepages", "no such file")]),
        &mut MeasuredPhase::without_observer(),
    );
    assert!(matches!(missing, Err(WorkloadError::InvalidInput(_))), "{missing:?}");
}

const BUFFER: Range<u64> = 0x187_8000_0000..0x187_8000_0000 + (1 << 30);
const REGION: u64 = 2 << 20;

#[test]
fn lists_are_those_of_the_assignment() {
    // Its own two addresses: the top region before, and the top region after.
    let text = "1682368888832\n\n# a comment\n0x187b1400000 # another\r\n1682368888832\n";
    let found = parse_list("l.txt", text, BUFFER, REGION).unwrap();
    let wanted = [0x187_b140_0000u64, 0x187_b500_0000].map(|address| address - BUFFER.start);
    assert_eq!(Vec::from_iter(found), wanted);
}

#[test]
fn what_is_no_list_is_refused_by_file_and_line() {
    let long = "9".repeat(500);
    for (text, line, word) in [
        ("1682368888832\nabc", "l.txt:2:", "expected one address"),
        ("-5", "l.txt:1:", "expected one address"),
        (&long, "l.txt:1:", "expected one address"),
        ("1", "l.txt:1:", "outside"),
        ("0x187c0000000", "l.txt:1:", "outside"),
        ("0x18780001000", "l.txt:1:", "not the start"),
        ("# nothing\n", "l.txt:", "no address"),
    ] {
        let Err(WorkloadError::InvalidInput(said)) = parse_list("l.txt", text, BUFFER, REGION) else {
            panic!("{text}")
        };
        assert!(said.starts_with(line) && said.contains(word) && said.len() < 200, "{said}");
    }
}
