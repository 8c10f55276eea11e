//! Counts that are spread, and kinds of mappings.

use super::*;

#[test]
fn a_count_is_spread_and_none_of_it_is_lost() {
    let mut cells = BTreeMap::new();
    spread(&mut cells, 10..35, 10, 101);
    assert_eq!(cells, BTreeMap::from([(1, 40), (2, 40), (3, 21)]));
    spread(&mut cells, 30..30, 10, 7);
    assert_eq!(cells.values().sum::<u64>(), 101);
}

#[test]
fn kinds_go_by_names() {
    let extent = |name: &str, is_shared| Extent {
        addresses: 0..1,
        name: name.to_owned(),
        offset: 0,
        is_shared,
        zero: Vec::new(),
    };
    for (name, is_shared, wanted) in [
        ("", false, MappingKind::Placed),
        ("[anon:heap of a runtime]", false, MappingKind::Placed),
        ("[heap]", false, MappingKind::Heap),
        ("/dev/zero (deleted)", true, MappingKind::Shared),
        ("/bin/sh", false, MappingKind::File("/bin/sh".to_owned())),
    ] {
        assert_eq!(kind(&extent(name, is_shared)), wanted, "{name}");
    }
}
