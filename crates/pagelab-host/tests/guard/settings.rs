//! Settings changed and put back in one process: nesting, refusals, lies, dry runs.

use std::fs;

use pagelab_host::guard::{Applied, ErrorKind, Fate, Guard, Knob, Options, Watched};
use rustix::io::Errno;

use crate::machine::{
    CGROUPS, COMPACT, DEFRAG, ENABLED, Fault, Ground, MIN_FREE, Machine, POOL, SURPLUS, SWAPPINESS,
};

fn knob(path: &str) -> Knob {
    Knob::at(path).unwrap()
}

#[test]
fn a_change_lasts_as_long_as_its_guard() {
    let cases = [(ENABLED, "never"), (DEFRAG, "defer+madvise"), (POOL, "4"), (SWAPPINESS, "10")];
    for (path, value) in cases {
        let ground = Ground::new();
        let before = ground.everything();
        let guard = ground.guard();
        let applied = guard.set(&knob(path), value).unwrap();
        assert_eq!(ground.value(path), value);
        assert!(applied.is_exact() && applied.opinions_agree, "{applied:?}");
        assert_eq!(ground.journal_names().len(), 1);
        let outcomes = guard.finish();
        assert_eq!(outcomes.iter().map(|o| o.fate).collect::<Vec<_>>(), [Fate::Restored]);
        assert_eq!(ground.everything(), before);
        assert!(!ground.journals().exists(), "the last journal takes the directory with it");
    }
}

#[test]
fn drop_and_panic_restore_too() {
    let ground = Ground::new();
    let before = ground.everything();
    let panicked = std::panic::catch_unwind(|| {
        let guard = ground.guard();
        guard.set(&Knob::thp_enabled(), "always").unwrap();
        guard.set(&Knob::vm("swappiness").unwrap(), "1").unwrap();
        assert_eq!(ground.value(SWAPPINESS), "0", "the panic of this test");
    });
    assert!(panicked.is_err());
    assert_eq!(ground.everything(), before);
    assert!(ground.journal_names().is_empty());
}

#[test]
fn owners_nest_and_end_in_any_order() {
    // Each guard in turn sets one mode; then they end in the given order, and after each end the mode
    // must be the one of the innermost guard that is left.
    let modes = ["never", "always", "madvise", "never"];
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1], [0, 3, 1, 2]] {
        let ground = Ground::new();
        let before = ground.everything();
        let mut guards: Vec<Option<Guard>> = Vec::new();
        for mode in modes {
            let guard = ground.guard();
            guard.set(&Knob::thp_enabled(), mode).unwrap();
            guards.push(Some(guard));
        }
        for ended in order {
            guards[ended].take().unwrap().finish();
            let innermost = guards.iter().rposition(Option::is_some);
            let expected = innermost.map_or("madvise", |index| modes[index]);
            assert_eq!(ground.value(ENABLED), expected, "{order:?} after {ended}");
        }
        assert_eq!(ground.everything(), before, "{order:?}");
        assert!(ground.journal_names().is_empty());
    }
}

#[test]
fn one_guard_may_change_a_setting_often() {
    let ground = Ground::new();
    let guard = ground.guard();
    for mode in ["never", "always", "always", "never", "madvise", "never"] {
        guard.set(&Knob::thp_enabled(), mode).unwrap();
    }
    guard.finish();
    assert_eq!(ground.value(ENABLED), "madvise");
}

#[test]
fn what_somebody_set_since_stays() {
    let ground = Ground::new();
    let (outer, inner) = (ground.guard(), ground.guard());
    outer.set(&Knob::thp_enabled(), "never").unwrap();
    outer.set(&Knob::thp_defrag(), "never").unwrap();
    inner.set(&Knob::thp_enabled(), "madvise").unwrap();
    ground.put(ENABLED, "always");
    let outcomes = inner.finish();
    assert_eq!(outcomes[0].fate, Fate::LeftAlone);
    assert_eq!(outcomes[0].found.as_deref(), Some("always"));
    let fates: Vec<Fate> = outer.finish().iter().map(|o| o.fate).collect();
    assert_eq!(fates, [Fate::Restored, Fate::LeftAlone], "defrag is ours still, enabled is not");
    assert_eq!((ground.value(ENABLED), ground.value(DEFRAG)), ("always".into(), "madvise".into()));
    assert!(ground.journal_names().is_empty());
}

#[test]
fn min_free_kbytes_does_not_stay_moved() {
    // An administrator's small value: each write of a THP mode recomputes it, as the kernel does.
    let ground = Ground::new();
    ground.put(MIN_FREE, "9000");
    let guard = ground.guard();
    guard.set(&Knob::thp_enabled(), "never").unwrap();
    assert_ne!(ground.value(MIN_FREE), "9000", "the fake kernel moves it, as the real one does");
    let outcomes = guard.finish();
    assert_eq!((ground.value(ENABLED), ground.value(MIN_FREE)), ("madvise".into(), "9000".into()));
    assert!(outcomes[0].detail.contains("9000"), "{outcomes:?}");

    // A value that somebody sets meanwhile is kept, although undoing moves it once more.
    let guard = ground.guard();
    guard.set(&Knob::thp_enabled(), "never").unwrap();
    ground.put(MIN_FREE, "12000");
    guard.finish();
    assert_eq!(ground.value(MIN_FREE), "12000");
}

#[test]
fn a_pool_may_fall_short_and_surplus_is_not_made_to_stay() {
    let ground = Ground::new();
    let guard = ground.guard_with(Machine::fake(ground.base()).with(Fault::PoolHolds(3)));
    let applied = guard.set(&knob(POOL), "8").unwrap();
    let expected = Applied {
        old: "0".into(),
        asked: "8".into(),
        got: "3".into(),
        second_opinion: Some("HugePages_Total 3".into()),
        opinions_agree: true,
    };
    assert_eq!(applied, expected);
    assert!(!applied.is_exact());
    guard.finish();
    assert_eq!(ground.value(POOL), "0");

    // Seven pages, two of them surplus: five are configured, and five is what comes back.
    let ground = Ground::new();
    ground.put(SURPLUS, "2");
    ground.put(POOL, "5");
    assert_eq!(ground.value(POOL), "7");
    let guard = ground.guard();
    let applied = guard.set(&knob(POOL), "9").unwrap();
    assert_eq!((applied.old.as_str(), applied.got.as_str()), ("5", "9"));
    guard.finish();
    assert_eq!(ground.value(POOL), "7");
}

#[test]
fn a_success_code_is_no_proof() {
    let ground = Ground::new();
    let guard = ground.guard_with(Machine::fake(ground.base()).with(Fault::Lies(ENABLED)));
    let error = guard.set(&Knob::thp_enabled(), "never").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("without an error"), "{error}");
    assert!(ground.journal_names().is_empty());
}

#[test]
fn refusals_say_what_stood_in_the_way() {
    let cases = [
        (Errno::INVAL, "always", ErrorKind::Refused, "it can be always madvise never"),
        (Errno::ACCESS, "always", ErrorKind::NotAvailable, "ermission denied"),
        (Errno::BUSY, "always", ErrorKind::Refused, "busy"),
        (Errno::BUSY, "a b", ErrorKind::Usage, "cannot be"),
        (Errno::BUSY, "", ErrorKind::Usage, "cannot be"),
    ];
    for (errno, value, kind, words) in cases {
        let ground = Ground::new();
        let before = ground.everything();
        let fault = Fault::Refuses(ENABLED, errno);
        let guard = ground.guard_with(Machine::fake(ground.base()).with(fault));
        let error = guard.set(&Knob::thp_enabled(), value).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        drop(guard);
        assert_eq!(ground.everything(), before);
        assert!(ground.journal_names().is_empty());
    }
    let absent = Ground::new();
    let error = absent.guard().set(&Knob::vm("defrag_mode").unwrap(), "1").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAvailable, "{error}");
}

#[test]
fn what_cannot_be_undone_now_is_undone_later() {
    let ground = Ground::new();
    let site = ground.site_with(Machine::fake(ground.base()).with(Fault::PoolHolds(6)));
    ground.put(POOL, "10");
    let guard = Guard::begin(&site, Watched::left_to_restore(), Options::default()).unwrap();
    guard.set(&knob(POOL), "2").unwrap();
    // Ten pages cannot be had again: six come.
    let outcomes = guard.finish();
    assert_eq!(outcomes[0].fate, Fate::Failed, "{outcomes:?}");
    assert_eq!(ground.value(POOL), "6");
    assert_eq!(ground.journal_names().len(), 1, "the journal still knows of it");

    // The next guard that ends tries again, now that there is memory: here by somebody's four pages.
    let next = Guard::begin(&site, Watched::left_to_restore(), Options::default()).unwrap();
    next.set(&Knob::thp_enabled(), "never").unwrap();
    fs::write(ground.base().join(&POOL[1..]), "10\n").unwrap();
    let fates: Vec<Fate> = next.finish().iter().map(|o| o.fate).collect();
    assert_eq!(fates, [Fate::Restored, Fate::AlreadyBack]);
    assert!(ground.journal_names().is_empty());
}

#[test]
fn created_and_one_way() {
    let ground = Ground::new();
    let before = ground.everything();
    let guard = ground.guard();
    let parent = guard.cgroup_parent("memory").unwrap();
    assert_eq!(parent, CGROUPS);
    let cgroup = guard.create_cgroup(&parent, "test").unwrap();
    assert!(cgroup.path.starts_with("/sys/fs/cgroup/memory/pagelab-test-"), "{}", cgroup.path);
    assert!(ground.base().join(&cgroup.path[1..]).is_dir());
    assert_eq!(guard.create_cgroup(&parent, "test").unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(guard.create_cgroup("/etc", "test").unwrap_err().kind(), ErrorKind::NotAvailable);
    guard.compact_memory().unwrap();
    assert_eq!(ground.value(COMPACT), "1");
    assert_eq!(guard.drop_caches(4).unwrap_err().kind(), ErrorKind::Usage);
    let journal = fs::read_to_string(ground.journals().join(&ground.journal_names()[0])).unwrap();
    let position = |word: &str| journal.find(word).unwrap_or_else(|| panic!("{word} in {journal}"));
    assert!(position("one-way") < position("\"done\""));
    let outcomes = guard.finish();
    assert_eq!(outcomes.len(), 1, "the cgroup; what is done is not undone: {outcomes:?}");
    assert_eq!(ground.everything(), before);
}

#[test]
fn a_dry_run_lists_and_changes_nothing() {
    let ground = Ground::new();
    let before = ground.everything();
    let options = Options { dry_run: true, ..Options::default() };
    let guard = Guard::begin(&ground.site(), Watched::left_to_restore(), options).unwrap();
    guard.set(&Knob::thp_enabled(), "never").unwrap();
    guard.set(&Knob::thp_enabled(), "always").unwrap();
    guard.set(&knob(POOL), "4").unwrap();
    guard.create_cgroup(CGROUPS, "x").unwrap();
    guard.compact_memory().unwrap();
    let planned: Vec<(String, Option<String>, Option<String>)> =
        guard.planned().into_iter().map(|p| (p.what, p.from, p.to)).collect();
    let some = |text: &str| Some(text.to_owned());
    let expected = [
        ("THP enabled".to_owned(), some("madvise"), some("never")),
        ("THP enabled".to_owned(), some("never"), some("always")),
        ("2 MiB pool".to_owned(), some("0"), some("4")),
        ("cgroup".to_owned(), None, None),
        ("compact_memory 1".to_owned(), None, None),
    ];
    assert_eq!(planned, expected);
    drop(guard);
    assert_eq!(ground.everything(), before);
    assert_eq!(ground.value(COMPACT), "");
    assert!(!ground.journals().exists());
}
