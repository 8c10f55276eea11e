//! Tests of `pagelab plan` and `pagelab profile show` on real and synthetic profiles.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use pagelab_model::profile::{
    CellCounts, ImageProfile, ImageStart, MappingIdentity, MappingKind, MappingProfile, MissScenario,
    ProfileSource, ProfilingCost, Program, ReuseHistograms, ScenarioPageSize, TlbProfile, UnseenRange,
    UnseenReason, WalkCostCurve,
};
use pagelab_model::run::{ClockReading, Manifest, RunEnd};
use pagelab_model::settings::Settings;
use pagelab_model::{Bytes, PageSize, Snapshot};
use pagelab_runfile::RunWriter;
use serde_json::Value;
use support::{CommandOutput, Lab, collect_fields, corpus};

const HUGE: u64 = 2 << 20;
const REGIONS: u64 = 40;

fn what_if(name: &str, misses: u64) -> MissScenario {
    let sizes = vec![ScenarioPageSize { page: Bytes(HUGE), misses, reuse: vec![(2, misses)] }];
    MissScenario { name: name.to_owned(), misses, sizes, upper_reads: [0; 3], regions: Vec::new() }
}

/// Four hot regions, of which the first is hottest and cheapest, and a cold rest.
fn profile() -> TlbProfile {
    let page = PageSize::DEFAULT.bytes();
    let (mut cells, mut reuse) =
        (CellCounts::default(), ReuseHistograms { line: Bytes(8 * page), ..ReuseHistograms::default() });
    for region in 0..REGIONS {
        let (misses, bucket) = match region {
            7 => (400, 2),
            3 | 11 | 30 => (200, 10),
            _ => (4, 12),
        };
        let first = region * 512;
        cells.at.extend([first, first + 1]);
        cells.misses.extend([misses, misses]);
        cells.accesses.extend([misses * 2, misses * 2]);
        cells.written.extend([1, 0]);
        reuse.at.push(first / 8);
        reuse.counts.push(vec![(bucket, 2 * misses)]);
    }
    let mapping = MappingProfile {
        key: MappingIdentity { kind: MappingKind::Anonymous, bytes: Bytes(REGIONS * HUGE), nth: 0 },
        start: 0x7f00_0000_0000,
        bytes: Bytes(REGIONS * HUGE),
        grain: Bytes(page),
        cells,
        reuse,
        unseen: vec![UnseenRange { offset: 50 * HUGE, bytes: Bytes(3 * HUGE), why: UnseenReason::ZeroPage }],
    };
    let image = ImageProfile {
        pid: 7,
        parent: None,
        begun: ImageStart::Launched,
        program: Program { path: "/bin/prog".to_owned(), bytes: Some(Bytes(9)), identity: None },
        arguments: vec!["prog".to_owned()],
        accesses: Some(9000),
        instructions: None,
        misses: 2288,
        mappings: vec![mapping],
        advice: None,
    };
    TlbProfile {
        source: ProfileSource::Exact,
        command: vec!["prog".to_owned(), "<b>".to_owned()],
        page_size: PageSize::DEFAULT,
        huge: Bytes(HUGE),
        tlb: None,
        walk_cost: Some(WalkCostCurve {
            points: vec![(2, 10_000), (12, 150_000)],
            origin: "made".to_owned(),
        }),
        images: vec![image],
        wall_ns: 1_000_000_000,
        effort: ProfilingCost::default(),
        lost: 0,
        notes: vec!["a note".to_owned()],
        what_ifs: [("none", 2288), ("all", 40)].map(|(name, misses)| what_if(name, misses)).to_vec(),
        exit: Some(0),
    }
}

fn store(lab: &Lab, name: &str, profile: Option<&TlbProfile>) {
    let look = Snapshot::new_unread("", PageSize::DEFAULT);
    let manifest = Manifest {
        kind: "profile".to_owned(),
        tool_version: "0".to_owned(),
        command_line: Vec::new(),
        seed: None,
        started: ClockReading { realtime_ns: 0, boottime_ns: 0 },
        machine: look.machine,
        settings: Settings::clone(&look.settings),
    };
    let mut writer = RunWriter::create(&lab.path().join(name), &manifest).unwrap();
    if let Some(profile) = profile {
        writer.add_profile(1, profile).unwrap();
    }
    writer.close(RunEnd::Complete { after_ns: 1 }).unwrap();
}

fn good(lab: &Lab, args: &[&str]) -> String {
    let CommandOutput { code, out, err } = lab.run(args);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{args:?}\n{out}");
    out
}

fn read(lab: &Lab, name: &str) -> String {
    fs::read_to_string(lab.path().join(name)).unwrap()
}

#[test]
fn a_plan_takes_costly_regions_and_not_those_with_most_misses() {
    let lab = Lab::new();
    store(&lab, "p.pagelab", Some(&profile()));
    let args =
        ["plan", "p.pagelab", "-n", "3", "-o", "plan.toml", "--largepages", "l.txt", "--pair", "2s,1s"];
    let out = good(&lab, &args);
    assert!(out.contains("3 huge pages, 6 MiB") && out.contains("; all: 2.00×)"), "{out}");
    assert!(out.contains("→ pagelab apply plan.toml -- prog <b>"), "{out}");
    let plan = pagelab_formats::plan_toml::parse(read(&lab, "plan.toml").as_bytes(), Bytes(1)).unwrap();
    let mapping = &plan.programs[0].mappings[0];
    let regions: Vec<u64> = mapping.regions.iter().map(|region| region.offset / HUGE).collect();
    assert_eq!(regions, [3, 11, 30]);
    assert_eq!(plan.programs[0].program.path, "/bin/prog");
    assert!(plan.predicted.unwrap().speedup_permille > 1300, "{plan:?}");
    let list = pagelab_formats::region_list::parse(read(&lab, "l.txt").as_bytes()).unwrap();
    assert_eq!(list, [3, 11, 30].map(|region| 0x7f00_0000_0000 + region * HUGE));
    // Neither file is overwritten.
    let before = read(&lab, "plan.toml");
    for (option, file) in [("-o", "plan.toml"), ("--largepages", "l.txt")] {
        let again = lab.run(&["plan", "p.pagelab", "-n", "1", option, file]);
        assert_eq!(again.code, Some(2), "{}", again.err);
        assert!(again.err.contains(&format!("cannot write {file}: it already exists")), "{}", again.err);
    }
    assert_eq!(read(&lab, "plan.toml"), before);
    // By misses the cheap one comes first.
    let by_misses = good(&lab, &["plan", "p.pagelab", "-n", "1", "--by", "misses", "--json"]);
    let by_misses: Value = serde_json::from_str(&by_misses).unwrap();
    assert_eq!(by_misses["regions"][0]["offset"], 7 * HUGE);
    // A budget, a share, and a seed that is kept.
    assert!(good(&lab, &["plan", "p.pagelab", "--budget", "5M"]).contains("2 huge pages, 4 MiB"));
    assert!(good(&lab, &["plan", "p.pagelab", "--share", "100%"]).contains("40 huge pages, 80 MiB"));
    let random = |seed| good(&lab, &["plan", "p.pagelab", "--by", "random", "--seed", seed, "--json"]);
    assert!(random("4") == random("4") && random("4") != random("5"));
}

#[test]
fn profiles_that_cannot_be_planned_are_refused_with_the_reason() {
    let lab = Lab::new();
    let mut made = profile();
    made.images[0].mappings[0].cells.misses.fill(0);
    made.images[0].misses = 0;
    store(&lab, "hidden.pagelab", Some(&made));
    made.images[0].mappings[0].unseen.clear();
    store(&lab, "idle.pagelab", Some(&made));
    let mut file = profile();
    file.images[0].mappings[0].key.kind = MappingKind::File("/f".to_owned());
    store(&lab, "file.pagelab", Some(&file));
    let mut small = profile();
    small.images[0].mappings[0].bytes = Bytes(HUGE / 2);
    store(&lab, "small.pagelab", Some(&small));
    store(&lab, "none.pagelab", None);
    store(&lab, "good.pagelab", Some(&profile()));
    lab.write("text", "hello\n");
    lab.write("counts", "Region (Hex): 0x10, Region (Decimal): 17, L2 Misses: 1\n");
    for (line, code, words) in [
        ("hidden.pagelab", 1, "part of the memory was not visible to the source"),
        ("idle.pagelab", 1, "huge pages cannot save page walks of this program"),
        ("file.pagelab", 1, "hint: use --files"),
        ("small.pagelab", 1, "contains an aligned page"),
        ("none.pagelab", 3, "without one"),
        ("text", 3, "expected a run file of `pagelab profile` or misses by region"),
        ("counts", 3, "counts:1: "),
        ("missing", 3, "missing: no such file"),
        (".", 3, "expected a file, found a directory\nhint: create one with `pagelab profile"),
        ("good.pagelab -n 0", 2, "expected an integer from 1 to"),
        ("good.pagelab --folio-size 4K", 2, "--folio-size 4K"),
        ("good.pagelab --share 0", 2, "expected a share above 0"),
        ("good.pagelab --pair 1s", 2, "two times"),
        ("good.pagelab --pair 2s,1s --kernel 1s", 2, "two times"),
        ("good.pagelab --kernel 1s,0s", 2, "--pair"),
        ("good.pagelab -n 1 --share 0.5", 2, "cannot be used with"),
        ("", 2, "required"),
    ] {
        let args: Vec<&str> = std::iter::once("plan").chain(line.split_whitespace()).collect();
        let CommandOutput { code: found, err, .. } = lab.run(&args);
        assert!(found == Some(code) && err.contains(words), "{line}: {found:?} {err}");
    }
}

#[test]
fn a_profile_is_shown_in_every_form() {
    let lab = Lab::new();
    store(&lab, "p.pagelab", Some(&profile()));
    let text = good(&lab, &["profile", "show", "p.pagelab"]);
    for words in [
        "prog <b>",
        "exact",
        "2\u{202f}288 misses in 9\u{202f}000 accesses (25 %)",
        "anonymous 80 MiB",
        "680 ns",
        "0x600000",
        "not observed: 6 MiB in 1 place, only read",
        "//",
        "→ pagelab plan p.pagelab",
    ] {
        assert!(text.contains(words), "{words}\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let report = good(&lab, &["report", "p.pagelab"]);
    assert!(report.contains("not observed: 6 MiB") && report.contains("0x600000"), "{report}");
    let csv = good(&lab, &["profile", "show", "p.pagelab", "--csv"]);
    assert_eq!(csv.lines().count() as u64, 1 + REGIONS);
    good(&lab, &["profile", "show", "p.pagelab", "--html", "p.html"]);
    let page = read(&lab, "p.html");
    assert!(page.contains("url(#unseen)") && page.contains("prog &lt;b&gt;") && !page.contains("<b>"));
    assert!(page.contains("default-src 'none'") && !page.contains("<script"));
    let fine: Value =
        serde_json::from_str(&good(&lab, &["profile", "show", "p.pagelab", "--by", "page", "--json"]))
            .unwrap();
    assert_eq!(fine["regions"].as_array().unwrap().len() as u64, 2 * REGIONS);
}

#[test]
fn every_field_is_documented() {
    let lab = Lab::new();
    store(&lab, "p.pagelab", Some(&profile()));
    let mut found = BTreeSet::new();
    for args in [&["plan", "p.pagelab", "--json"][..], &["profile", "show", "p.pagelab", "--json"]] {
        collect_fields(&serde_json::from_str(&good(&lab, args)).unwrap(), &mut found);
    }
    let report: Value = serde_json::from_str(&good(&lab, &["report", "--json", "p.pagelab"])).unwrap();
    assert_eq!(report["runs"][0]["profile"]["source"], "exact");
    let docs = include_str!("../../../docs/json.md");
    let is_documented = |name: &&String| docs.contains(&format!("`{name}`"));
    let missing: Vec<_> =
        found.iter().filter(|name| !name.ends_with("_absent_reason") && !is_documented(name)).collect();
    assert!(missing.is_empty(), "not in docs/json.md: {missing:?}");
}

/// What a published run sampled by region: the planner finds true hot regions only.
#[test]
fn a_published_profile_gives_its_true_hot_regions() {
    let Some(corpus) = corpus() else { return };
    let path = |name: &str| corpus.join("perf").join(name);
    let truth: BTreeSet<u64> = fs::read_to_string(path("24623_hot_regions_ground_truth.txt"))
        .unwrap()
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(1)?.parse().ok())
        .collect();
    assert!(truth.len() >= 15, "{truth:?}");
    let before = path("24623_all_regions_before.txt");
    let lab = Lab::new();
    for n in ["8", "15"] {
        let list = format!("{n}.txt");
        let args = ["plan", text_of(&before), "-n", n, "--largepages", &list, "--pair", "30.608s,12.7s"];
        let out = good(&lab, &args);
        let found = pagelab_formats::region_list::parse(read(&lab, &list).as_bytes()).unwrap();
        assert_eq!(found.len().to_string(), n);
        let strange: Vec<_> = found.iter().filter(|address| !truth.contains(address)).collect();
        assert!(strange.is_empty(), "{n}: {strange:?}\n{out}");
    }
}

fn text_of(path: &Path) -> &str {
    path.to_str().unwrap()
}
