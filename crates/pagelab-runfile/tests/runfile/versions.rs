//! Tests of files of every schema version.

use std::path::{Path, PathBuf};

use pagelab_model::Snapshot;
use pagelab_model::run::RunEvent;
use pagelab_model::tune::HugePageSelection;
use pagelab_runfile::{ErrorKind, RunReader, read_run_file};

use crate::fixtures;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// A snapshot of a machine, written by the pagelab that wrote schema version 1.
#[test]
fn version_1_is_read() {
    let path = fixture("version-1.pagelab");
    let run = read_run_file(&path).unwrap();
    fixtures::check(&run);
    assert_eq!(run.events, []);
    assert_eq!((&*run.manifest.kind, run.manifest.seed), ("record", Some(u64::MAX)));
    let snapshot = run.snapshot.unwrap();
    assert_eq!(run.manifest.machine, snapshot.machine);
    assert_eq!(snapshot.machine.cpu.as_ref().unwrap().model, Some(207));
    assert_eq!(snapshot.census.as_ref().unwrap().zones[0].key.zone, "DMA");
    let reader = RunReader::open(&path).unwrap();
    let blobs = reader.read_blob_headers().unwrap();
    assert_eq!(reader.read_blob(&blobs[0]).unwrap(), b"0123456789");
    // Although the records have changed since, no stored value is lost in reading.
    let stored: serde_json::Value = serde_json::from_slice(&reader.read_blob(&blobs[1]).unwrap()).unwrap();
    let known: Snapshot = *snapshot;
    is_kept(&stored, &serde_json::to_value(known).unwrap(), "");
}

/// Asserts that everything in `stored` is in `known`, which may have more.
fn is_kept(stored: &serde_json::Value, known: &serde_json::Value, at: &str) {
    use serde_json::Value::{Array, Null, Object, String};
    match (stored, known) {
        (Object(stored), Object(known)) => {
            for (key, value) in stored {
                let known = known.get(key).or_else(|| known.get(present_name(key))).unwrap_or(&Null);
                is_kept(value, known, &format!("{at}.{key}"));
            }
        }
        (Array(stored), Array(known)) => {
            assert_eq!(stored.len(), known.len(), "{at}");
            stored.iter().zip(known).for_each(|(stored, known)| is_kept(stored, known, at));
        }
        // A number that is a reading now.
        (_, Object(known)) if known.contains_key("Ok") => is_kept(stored, &known["Ok"], at),
        (String(stored), String(known)) if stored != known => assert_eq!(present_name(stored), known, "{at}"),
        _ => assert_eq!(stored, known, "{at}"),
    }
}

/// The present name of a field or a word of version 1.
fn present_name(name: &str) -> &str {
    match name {
        "NotAsked" => "NotRequested",
        "block_order" => "pageblock_order",
        "budget_spent" => "is_budget_spent",
        "from" => "source",
        "over_budget" => "skipped_over_budget",
        "way_out" => "hint",
        same => same,
    }
}

/// Results of `checkup --probe`, under the names of version 1 of the snapshot.
#[test]
fn a_probe_of_snapshot_version_1_is_read() {
    let snapshot = read_run_file(&fixture("checkup-probe-1.pagelab")).unwrap().snapshot.unwrap();
    let probe = snapshot.probe.unwrap();
    let huge = probe.huge.unwrap();
    assert_eq!((huge.requested, huge.succeeded, huge.allocated), (64, 64, 64));
    assert_eq!((huge.latency_ns.len(), huge.first_error), (64, None));
    assert_eq!(probe.budget_limit, "free memory less the reserve of 1205 MiB");
    assert!(!probe.access.unwrap().base_curve.is_empty());
}

/// Fallbacks and their call stacks, under the names of version 1 of the stacks.
#[test]
fn a_recording_of_stacks_version_1_is_read() {
    let run = read_run_file(&fixture("stacks-1.pagelab")).unwrap();
    let series = run.series.iter().find(|series| series.name == "tracepoints").unwrap();
    let last = |name: &str| {
        let column = series.columns.iter().find(|column| column.header.name == name);
        let column = column.unwrap_or_else(|| panic!("{name}: {:?}", series.columns));
        column.values.value_at(series.at_ns.len() - 1).unwrap()
    };
    let (polluting, claimed) = (last("extfrag.polluting"), last("extfrag.polluting_claimed"));
    assert!(polluting >= claimed && claimed > 0, "{polluting} {claimed}");
    let stacks = run.stacks.unwrap();
    let sum = stacks.stacks.iter().map(|stack| stack.counts.polluting).sum::<u64>();
    assert!(sum > 0 && stacks.stacks.iter().any(|stack| stack.comm.as_deref() == Some("find")), "{stacks:?}");
    assert_eq!(stacks.overflow.events, 0);
}

/// A profile, a plan and arms, under the names of version 1 of the arms.
#[test]
fn a_tuning_of_version_1_is_read() {
    let run = read_run_file(&fixture("tune-1.pagelab")).unwrap();
    let tune = run.tune.unwrap();
    assert_eq!((&*tune.plan_arguments, &*tune.plan_file), ("--share 0.9", "tune.plan.toml"));
    let arms: Vec<_> = tune.arms.iter().map(|arm| arm.selection).collect();
    use HugePageSelection as S;
    assert_eq!(arms[..3], [S::None, S::Plan, S::All]);
    assert_eq!(arms[3..6], [S::Costliest, S::Random, S::MostUsed]);
    let (plan, profile) = (tune.plan, run.profile.unwrap());
    assert!(!plan.programs.is_empty() && !profile.images[0].mappings[0].cells.at.is_empty());
    let trials = run.experiment.unwrap().trials;
    let has = |name: &str| trials.iter().any(|trial| trial.measures.iter().any(|of| of.name == name));
    assert_eq!(trials.len(), 20);
    for (earlier, present) in [("plan.wanted", "plan.requested"), ("probe.looks", "probe.scans")] {
        assert!(has(present) && !has(earlier), "{present}");
    }
}

#[test]
fn the_newest_version_has_events() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a run?#%.pagelab");
    fixtures::file(&path);
    let run = read_run_file(&path).unwrap();
    fixtures::check(&run);
    assert_eq!(run.manifest, fixtures::manifest());
    assert_eq!(*run.snapshot.unwrap(), fixtures::snapshot());
    assert_eq!(run.events, [RunEvent { at_ns: 9, kind: "missed".to_owned(), text: "two ticks".to_owned() }]);
    assert_eq!(run.name, path.display().to_string());
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_newer_version_is_refused_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pagelab");
    fixtures::file(&path);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[60..64].copy_from_slice(&3u32.to_be_bytes());
    std::fs::write(&path, bytes).unwrap();
    let error = read_run_file(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NewerVersion);
    let version = env!("CARGO_PKG_VERSION");
    let said = format!(
        "cannot read {}: a newer pagelab wrote it with schema version 3; this one ({version}) reads \
         versions 1 to 2; hint: use a newer pagelab",
        path.display()
    );
    assert_eq!(error.to_string(), said);
}
