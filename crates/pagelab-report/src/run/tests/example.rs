//! Runs for the tests: a complete recording, a snapshot with samples, and a hostile file.

use pagelab_model::extfrag::{FallbackCounts, FallbackStack, FallbackStacks};
use pagelab_model::run::*;
use pagelab_model::{Absence, Counters, Machine, PageSize, Snapshot};

const S: u64 = 1_000_000_000;

fn manifest(kind: &str, words: &[&str]) -> Manifest {
    let mut known = Snapshot::new_unread("this machine", PageSize::DEFAULT);
    known.machine.host_name = Some("vm-17".to_owned());
    known.machine.kernel_release = Ok("6.12.1".to_owned());
    known.settings.vm = Counters::from_iter([("min_free_kbytes", 67_584)]);
    Manifest {
        kind: kind.to_owned(),
        tool_version: "0.1.0".to_owned(),
        command_line: words.iter().map(|&word| word.to_owned()).collect(),
        seed: Some(7),
        started: ClockReading { realtime_ns: 1_770_127_506 * S, boottime_ns: 1000 * S },
        machine: known.machine,
        settings: known.settings,
    }
}

fn run(name: &str, manifest: Manifest) -> Run {
    Run::new(name, manifest, RunEnd::Complete { after_ns: 10 * S })
}

fn column(name: &str, unit: &str, is_counter: bool, values: ColumnValues) -> Column {
    Column { header: ColumnHeader { name: name.to_owned(), unit: unit.into(), is_counter }, values }
}

/// Twenty readings, one every half second.
fn varying(of: impl Fn(i64) -> Option<i64>) -> ColumnValues {
    ColumnValues::Varying((0..20).map(of).collect())
}

pub fn stream(name: &str, unit: &str, labels: &[(&str, &str)], values: &[f64]) -> SampleStream {
    let labels = labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    SampleStream {
        header: StreamHeader { name: name.to_owned(), unit: unit.into(), labels },
        at_ns: (0..values.len() as u64).map(|n| n * 1_000_000).collect(),
        values: values.to_vec(),
    }
}

/// A recording of ten seconds.
pub fn record() -> Run {
    let mut run = run("day.pagelab", manifest("record", &["pagelab", "record", "--run", "day.pagelab"]));
    let at_ns: Vec<u64> = (0..20).map(|n| n * S / 2).collect();
    run.series = vec![
        Series {
            name: "meminfo".to_owned(),
            source: "/proc/meminfo".to_owned(),
            at_ns: at_ns.clone(),
            columns: vec![
                column("MemTotal", Unit::BYTES, false, ColumnValues::Constant(Some(24 << 30))),
                column("MemFree", Unit::BYTES, false, varying(|n| Some((2 << 30) - n * (50 << 20)))),
                column("Dirty", Unit::BYTES, false, varying(|n| (n % 7 != 3).then_some(n * n * 9000))),
                column("HardwareCorrupted", Unit::BYTES, false, ColumnValues::Constant(None)),
                column("some avg10", Unit::PERMILLE, false, varying(|n| Some(n / 4))),
            ],
        },
        Series {
            name: "vmstat".to_owned(),
            source: "/proc/vmstat".to_owned(),
            at_ns,
            columns: vec![
                column("nr_free_pages", Unit::PAGES, false, varying(|n| Some(524_288 - n * 12_800))),
                column("pgfault", Unit::COUNT, true, varying(|n| Some(n * n * 100_000))),
                column("thp_fault_fallback_charge", Unit::COUNT, true, varying(|n| Some(n / 15))),
                column("compact_migrate_scanned", Unit::PAGES, true, varying(|n| Some((n % 12) * 700))),
                column("oom_kill", Unit::COUNT, true, ColumnValues::Constant(Some(0))),
                column("total", Unit::MICROSECONDS, true, varying(|n| Some(n * 7000))),
            ],
        },
    ];
    let jitter: Vec<f64> = (0..400).map(|n| f64::from(n * 37 % 101) / 3.0 + 20.0).collect();
    run.streams = vec![stream("read of all files", Unit::MICROSECONDS, &[], &jitter)];
    run.events = vec![
        RunEvent { at_ns: 3 * S, kind: "missed".into(), text: "a reading came 120 ms late".into() },
        RunEvent { at_ns: 9 * S, kind: "warning".into(), text: "PSI went away".into() },
    ];
    run.stacks = Some(Box::new(stacks()));
    run.unknown_content = vec!["a blob of kind `heat`, version 3".to_owned()];
    run
}

/// Stacks of three callers.
fn stacks() -> FallbackStacks {
    let one = |comm: Option<&str>, kernel: &str, user: &str, polluting: u64, claimed: u64| FallbackStack {
        comm: comm.map(str::to_owned),
        kernel: kernel.split(' ').map(str::to_owned).collect(),
        user: user.split(' ').filter(|frame| !frame.is_empty()).map(str::to_owned).collect(),
        counts: FallbackCounts {
            events: polluting + 3,
            fragmenting: polluting,
            polluting,
            polluting_claimed: claimed,
        },
    };
    let slab = "get_page_from_freelist __alloc_frozen_pages_noprof alloc_pages_mpol allocate_slab ___slab_alloc \
                kmem_cache_alloc_lru_noprof __d_alloc d_alloc d_alloc_parallel lookup_open path_openat";
    let table = "get_page_from_freelist __alloc_frozen_pages_noprof alloc_pages_noprof pte_alloc_one __pte_alloc \
                 do_anonymous_page handle_mm_fault exc_page_fault";
    FallbackStacks {
        stacks: vec![
            one(Some("find"), slab, "/usr/bin/find+0x8f31 /usr/lib/libc.so.6+0x2724a", 790, 201),
            one(Some("tar"), slab, "", 22, 0),
            one(None, table, "", 310, 12),
            one(Some("kswapd0"), "get_page_from_freelist 0xffffffffc0401f30", "", 0, 0),
        ],
        overflow: FallbackCounts { events: 4, ..FallbackCounts::default() },
        lost: 7,
        notes: vec!["user frames are shown as file and offset; symbols are not resolved".to_owned()],
    }
}

/// A checkup with the samples of its probe.
pub fn probe_run() -> Run {
    let mut run =
        run("probe.pagelab", manifest("checkup", &["pagelab", "checkup", "--probe", "--run", "a b"]));
    let mut snapshot = Snapshot::new_unread("this machine", PageSize::DEFAULT);
    snapshot.taken.euid = Some(0);
    snapshot.machine = run.manifest.machine.clone();
    snapshot.meminfo = Err(Absence::not_read());
    run.snapshot = Some(Box::new(snapshot));
    run.streams = vec![stream("huge page latency", Unit::NANOSECONDS, &[], &[2.4e6, 2.5e6, 4.2e6])];
    for (size, shift) in [("67108864", 0.0), ("1073741824", 90.0)] {
        for (variant, ns) in [("base", 188.0 + shift), ("huge", 140.0 + shift / 2.0)] {
            let samples: Vec<f64> = (0..24).map(|n| ns + f64::from(n % 5)).collect();
            run.streams.push(stream("access time", "ns", &[("pages", variant), ("bytes", size)], &samples));
        }
    }
    run
}

/// A file in which every text is hostile.
pub fn hostile() -> Run {
    let evil = "\x1b[2J\x1b]0;title\x07\nFORGED\r\u{202e}gnp.exe\u{2066}\u{9b}31m\u{200b}\u{2028}FORGED";
    let long = "x".repeat(1_000_000);
    let mut manifest = manifest(evil, &["pagelab", evil]);
    manifest.tool_version = evil.to_owned();
    let mut machine = Machine::new_unread(PageSize::DEFAULT);
    machine.host_name = Some(evil.to_owned());
    machine.kernel_release = Ok(evil.to_owned());
    machine.kernel_version = Ok(evil.to_owned());
    manifest.machine = machine.clone();
    let mut run = run(evil, manifest);
    let mut snapshot = Snapshot::new_unread(evil, PageSize::DEFAULT);
    snapshot.machine = machine;
    snapshot.settings.vm = Counters::from_iter([(evil, 1)]);
    snapshot.pageblock_order_source = evil.to_owned();
    snapshot.meminfo = Err(Absence::new(evil, pagelab_model::AbsenceReason::Failed, evil).with_hint(evil));
    run.snapshot = Some(Box::new(snapshot));
    let at_ns = vec![0, u64::MAX];
    let wild = |name: &str, counter| {
        column(name, evil, counter, ColumnValues::Varying(vec![Some(i64::MIN), Some(i64::MAX)]))
    };
    let columns =
        vec![wild(evil, false), wild(&long, true), column(evil, evil, true, ColumnValues::Constant(Some(1)))];
    run.series.push(Series { name: evil.to_owned(), source: evil.to_owned(), at_ns, columns });
    run.series.push(Series { name: String::new(), source: String::new(), at_ns: vec![], columns: vec![] });
    run.streams = vec![
        stream(evil, evil, &[(evil, evil), (&long, &long)], &[f64::MAX, f64::MIN]),
        stream(&long, evil, &[], &[f64::MIN_POSITIVE]),
        stream("", "", &[], &[]),
    ];
    run.stacks = Some(Box::new(FallbackStacks {
        stacks: vec![FallbackStack {
            comm: Some(long.clone()),
            kernel: vec![evil.to_owned(), long.clone()],
            user: vec![evil.to_owned()],
            counts: FallbackCounts { polluting: u64::MAX, ..FallbackCounts::default() },
        }],
        notes: vec![evil.to_owned()],
        ..FallbackStacks::default()
    }));
    run.events = vec![
        RunEvent { at_ns: u64::MAX, kind: evil.to_owned(), text: evil.to_owned() },
        RunEvent { at_ns: 0, kind: long.clone(), text: long },
    ];
    run.unknown_content = vec![evil.to_owned()];
    run
}
