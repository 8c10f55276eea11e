//! The reads against a count by brute force, and the options end to end.

use super::*;
use crate::options::typed;

/// A buffer small enough for a test, at an address that no other test uses.
fn options(set: &[(&str, &str)]) -> Options {
    let small = [("size", "6M"), ("region", "64K"), ("rounds", "2000"), ("base", "0")];
    typed(WORKLOAD.options, &small, set)
}

#[test]
fn the_hot_set_of_the_default_is_drawn_with_repetition() {
    let hot = drawn(1, 16, 512);
    assert_eq!(hot.len(), 16);
    assert!(hot.iter().all(|&region| region < 512));
    assert_ne!(hot, drawn(2, 16, 512));
    // 16 draws of 4 must repeat.
    let few = distinct(&drawn(1, 16, 4));
    assert_eq!(few.iter().map(|(_, times)| times).sum::<usize>(), 16);
    assert!(few.windows(2).all(|pair| pair[0].1 >= pair[1].1));
    let told = told(&hot, 512, Bytes(2 << 20), 0x187_8000_0000);
    let shares: f64 = told.iter().map(|region| region.share).sum();
    assert!((shares - 0.3 - 0.7 * told.len() as f64 / 512.0).abs() < 1e-12, "{shares}");
    assert!(told.iter().all(|region| region.address == 0x187_8000_0000 + region.offset));
}

#[test]
fn reads_fall_where_they_are_said_to_fall() {
    let (size, region) = (Bytes(1 << 20), Bytes(1 << 14));
    let hot = vec![3, 17, 17, 40];
    let mut counts = vec![0u64; 64];
    let seen = std::cell::RefCell::new(&mut counts);
    let mut reads = Reads::new(1, &hot, size, region);
    reads.go(20_000, |at| {
        seen.borrow_mut()[(at >> 14) as usize] += 1;
        1
    });
    assert_eq!(reads.sum, 200_000);
    for told in told(&hot, 64, region, 0) {
        let ratio = counts[(told.offset >> 14) as usize] as f64 / 200_000.0 / told.share;
        assert!((0.95..1.05).contains(&ratio), "{told:?}: {ratio}");
    }
    let cold = counts[5] as f64 / 200_000.0 / (0.7 / 64.0);
    assert!((0.9..1.1).contains(&cold), "{cold}");
}

#[test]
fn runs_are_checked_and_repeatable() {
    let done = |set: &[(&str, &str)]| run(&options(set), &mut Phase::unwatched()).unwrap();
    let (one, two) = (done(&[]), done(&[]));
    assert_eq!(one.checksum, two.checksum);
    assert_eq!(one.working_set, Bytes(6 << 20));
    assert_eq!(one.hot_regions.len(), distinct(&drawn(1, 16, 96)).len());
    assert_ne!(one.checksum, done(&[("seed", "2")]).checksum);
    assert_ne!(one.checksum, done(&[("rounds", "2001")]).checksum);
    // What was never written is zeros: only the register's state is left in the checksum.
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
    let plain = run(&options(&listed[..1]), &mut Phase::unwatched()).unwrap();
    assert!(plain.hot_regions.iter().all(|region| region.address >= BASE));
    let advised = run(&options(&[&listed[..], &[("backing", "thp")]].concat()), &mut Phase::unwatched());
    // A kernel without transparent huge pages says so.
    if let Ok(done) = &advised {
        assert_eq!(done.figures[2].value, 2.0);
    } else {
        assert!(matches!(advised, Err(Failed::System(_))), "{advised:?}");
    }
    // The pool may be empty, and the kernel may have none.
    match run(&options(&listed), &mut Phase::unwatched()) {
        Ok(done) => assert_eq!(done.checksum, advised.unwrap().checksum, "contents do not depend on pages"),
        Err(Failed::System(text)) => assert!(text.contains("pool") && text.contains("of 2 are"), "{text}"),
        Err(other) => panic!("{other}"),
    }
    let anywhere = run(&options(&[("largepages", list)]), &mut Phase::unwatched());
    assert!(matches!(anywhere, Err(Failed::Options(_))), "{anywhere:?}");
    let missing = run(&options(&[("base", &base), ("largepages", "no such file")]), &mut Phase::unwatched());
    assert!(matches!(missing, Err(Failed::Input(_))), "{missing:?}");
}
