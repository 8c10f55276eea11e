//! Tests of the entire workload, in each configuration.

use super::*;

fn options_with(changes: &[(&str, &str)]) -> WorkloadOptions {
    let mut options = WorkloadOptions::with_defaults(WORKLOAD.options);
    for (name, typed) in [("size", "1M")].iter().chain(changes) {
        options.set_value(name, typed).unwrap();
    }
    options
}

fn figure(done: &WorkloadResult, name: &str) -> f64 {
    done.figures.iter().find(|figure| figure.name == name).unwrap_or_else(|| panic!("no {name}")).value
}

/// Base pages of the mapping, by what the kernel says of a populated one.
fn base_pages() -> f64 {
    let populated = run_mmap_access(
        &options_with(&[("populate", "populate-write"), ("advise", "nohuge")]),
        &mut MeasuredPhase::without_observer(),
    )
    .unwrap();
    figure(&populated, "map_minor_faults")
}

#[test]
fn the_nine_configurations_of_the_report_run() {
    let file = [("mapping", "file"), ("sharing", "shared")];
    let cases: [&[(&str, &str)]; 6] = [
        &[],
        &[("sharing", "shared")],
        &file,
        &[file[0], file[1], ("access", "random")],
        &[file[0], file[1], ("populate", "populate")],
        &[file[0], file[1], ("prefill", "memset+msync")],
    ];
    for case in cases {
        let done = run_mmap_access(&options_with(case), &mut MeasuredPhase::without_observer()).unwrap();
        // 32 windows of 16 passes over 512 lines.
        assert_eq!(figure(&done, "loads"), 32.0 * 16.0 * 448.0, "{case:?}");
        assert_eq!(figure(&done, "stores"), 32.0 * 16.0 * 64.0, "{case:?}");
        assert_eq!(
            run_mmap_access(&options_with(case), &mut MeasuredPhase::without_observer()).unwrap().checksum,
            done.checksum,
            "{case:?}"
        );
    }
    let random =
        run_mmap_access(&options_with(&[("access", "random")]), &mut MeasuredPhase::without_observer())
            .unwrap();
    assert_ne!(
        run_mmap_access(
            &options_with(&[("access", "random"), ("seed", "2")]),
            &mut MeasuredPhase::without_observer()
        )
        .unwrap()
        .checksum,
        random.checksum
    );
}

#[test]
fn private_files_keep_what_they_had_and_shared_ones_get_what_is_stored() {
    for sharing in ["private", "shared"] {
        for file in ["sparse", "prewritten", "dropped"] {
            for populate in ["none", "populate", "populate-write"] {
                let case =
                    [("mapping", "file"), ("sharing", sharing), ("file", file), ("populate", populate)];
                let done =
                    run_mmap_access(&options_with(&case), &mut MeasuredPhase::without_observer()).unwrap();
                let cached = figure(&done, "cached_before");
                match file {
                    "sparse" => assert_eq!(cached, 0.0, "{case:?}"),
                    "prewritten" => assert_eq!(cached, 1024.0 * 1024.0, "{case:?}"),
                    // In memory there is nothing to be dropped to.
                    _ => assert!(cached == 0.0 || is_in_memory(), "{case:?}: {cached}"),
                }
            }
        }
    }
}

/// Whether temporary files are on tmpfs or ramfs.
fn is_in_memory() -> bool {
    let magic = page_cache::file_system_magic(File::open(std::env::temp_dir()).unwrap()).unwrap();
    [0x0102_1994, 0x8584_58f6].contains(&magic)
}

#[test]
fn populating_a_shared_file_faults_for_reading_only() {
    let pages = base_pages();
    let case = |populate| {
        let case =
            [("mapping", "file"), ("sharing", "shared"), ("file", "prewritten"), ("populate", populate)];
        figure(
            &run_mmap_access(&options_with(&case), &mut MeasuredPhase::without_observer()).unwrap(),
            "write_faults_after_populate",
        )
    };
    // A file in memory has no write protection to find dirty pages by.
    let expected = if is_in_memory() { 0.0 } else { pages };
    let after_map = case("populate");
    assert!((after_map - expected).abs() <= pages / 10.0, "{after_map} faults, {expected} expected");
    let after_write = case("populate-write");
    assert!(after_write <= pages / 10.0, "{after_write} faults, {pages} pages");
    // Of a private mapping the pages come for writing.
    let private = [("populate", "populate"), ("advise", "none")];
    let anonymous = figure(
        &run_mmap_access(&options_with(&private), &mut MeasuredPhase::without_observer()).unwrap(),
        "write_faults_after_populate",
    );
    assert!(anonymous <= pages / 10.0, "{anonymous} faults, {pages} pages");
}

#[test]
fn a_pause_follows_the_sync_and_the_report_pattern_its_text() {
    let case = [
        ("mapping", "file"),
        ("sharing", "shared"),
        ("prefill", "memset+msync"),
        ("pause", "20ms"),
        ("pattern", "report"),
        ("size", "64K"),
    ];
    let done = run_mmap_access(&options_with(&case), &mut MeasuredPhase::without_observer()).unwrap();
    assert_eq!((figure(&done, "loads"), figure(&done, "stores")), (128.0 * 16.0 * 504.0, 128.0 * 16.0 * 8.0));
    assert!(figure(&done, "msync_wall") <= figure(&done, "prefill_wall"));
    assert!(done.generated_input.contains("20 ms pause"), "{}", done.generated_input);
    let blocks =
        run_mmap_access(&options_with(&[("blocks", "3")]), &mut MeasuredPhase::without_observer()).unwrap();
    assert_eq!(figure(&blocks, "stores"), 3.0 * 1024.0);
}

#[test]
fn crossings_that_would_do_nothing_are_refused_with_the_way_out() {
    for case in [
        &[("file", "dropped")][..],
        &[("prefill", "memset+msync")],
        &[("prefill", "memset+msync"), ("mapping", "file")],
        &[("pause", "5"), ("prefill", "memset")],
        &[("advise", "huge"), ("populate", "populate")],
        &[("size", "100"), ("pattern", "lab")],
    ] {
        let refused = run_mmap_access(&options_with(case), &mut MeasuredPhase::without_observer());
        let Err(WorkloadError::InvalidOptions(text)) = refused else { panic!("{case:?}: {refused:?}") };
        assert!(text.contains(':'), "{text}");
    }
    let nowhere = run_mmap_access(
        &options_with(&[("mapping", "file"), ("folder", "/no/such/folder")]),
        &mut MeasuredPhase::without_observer(),
    );
    assert!(matches!(nowhere, Err(WorkloadError::SystemError(_))));
}
