//! Tests of `pagelab import perf-stat`, the report of its result, `--export perf-csv`, and `pagelab compare`.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test panics to fail, and says what it skips")]

mod support;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use pagelab_model::experiment::{Experiment, Flag, measures};
use serde_json::Value;
use support::{CommandOutput, Lab, collect_fields};

fn run_pagelab(lab: &Lab, code: i32, arguments: &[&str]) -> CommandOutput {
    let ran = lab.run(arguments);
    assert_eq!(ran.code, Some(code), "pagelab {arguments:?}\n{}{}", ran.out, ran.err);
    ran
}

fn read(lab: &Lab, file: &str) -> Experiment {
    *pagelab_runfile::read_run_file(&lab.path().join(file)).unwrap().experiment.unwrap()
}

fn json(lab: &Lab, arguments: &[&str]) -> Value {
    serde_json::from_str(&run_pagelab(lab, 0, arguments).out).unwrap()
}

/// Benchmark, then with huge pages and without: real, user and sys, misses of dTLB, iTLB and caches, and
/// nanoseconds that these were counted: the figures of section 0 of the sources.
const FIGURES: [(&str, [&str; 7], [&str; 7]); 3] = [
    (
        "canneal",
        ["3m59.511s", "3m59.059s", "0m0.452s", "524074", "243742", "12672653", "239317377674"],
        ["4m9.881s", "4m9.412s", "0m0.468s", "705221", "319231", "18212537", "250068948346"],
    ),
    (
        "fmm",
        ["1m38.981s", "1m38.764s", "0m0.218s", "231039", "110001", "5722100", "100397434915"],
        ["1m42.412s", "1m41.640s", "0m0.773s", "571794", "422157", "13047344", "103529403382"],
    ),
    (
        "streamcluster",
        ["7m9.417s", "7m9.404s", "0m0.008s", "704424", "373907", "19129316", "435749706378"],
        ["7m54.771s", "7m54.721s", "0m0.048s", "1092582", "528868", "28123182", "477740738763"],
    ),
];

/// The folder of that report: logs and results, a folder a benchmark, runs with huge pages and without.
fn figures(lab: &Lab, folder: &str) {
    for (name, with, without) in FIGURES {
        for (group, of) in [("thp", with), ("no-thp", without)] {
            let [real, user, sys, dtlb, itlb, cache, run] = of;
            lab.write(
                &format!("{folder}/logs/{name}/{group}/1.log"),
                format!("\nreal\t{real}\nuser\t{user}\nsys\t{sys}\n"),
            );
            let lines = [("dTLB-load-misses", dtlb), ("iTLB-load-misses", itlb), ("cache-misses", cache)];
            let lines = lines.map(|(event, count)| format!("{count},,{event},{run},100.00,,\n"));
            lab.write(&format!("{folder}/results/{name}/{group}/1.csv"), lines.concat());
        }
    }
}

/// `saved_percent` of a measure of a workload, as the JSON of the report has it.
fn saved(document: &Value, workload: &str, measure: &str) -> f64 {
    let effects = document["runs"][0]["experiment"]["effects"].as_array().unwrap();
    let of = effects.iter().find(|of| of["workload"] == workload).unwrap();
    let of = of["measures"].as_array().unwrap().iter().find(|of| of["name"] == measure).unwrap();
    let of = of["variants"].as_array().unwrap().iter().find(|of| of["variant"] == "thp").unwrap();
    of["effect"]["saved_percent"].as_f64().unwrap()
}

#[test]
fn the_folder_of_the_thp_report_is_imported_and_its_derived_figures_come_out() {
    let lab = Lab::new();
    figures(&lab, "hugepage");
    let said = run_pagelab(&lab, 0, &["import", "perf-stat", "hugepage", "-o", "thp.pagelab"]).out;
    assert!(said.contains("6 trials of 3 workloads under 2 variants, against no-thp"), "{said}");
    let document = json(&lab, &["report", "--json", "thp.pagelab"]);
    // Per cent faster, fewer dTLB misses, fewer iTLB misses.
    for (workload, faster, dtlb, itlb) in
        [("canneal", 4.15, 25.69, 23.65), ("fmm", 3.35, 59.59, 73.94), ("streamcluster", 9.55, 35.53, 29.30)]
    {
        for (measure, percent) in
            [("wall", faster), ("counter.dTLB-load-misses", dtlb), ("counter.iTLB-load-misses", itlb)]
        {
            let found = saved(&document, workload, measure);
            assert!((found - percent).abs() < 0.005, "{workload} {measure}: {found}, not {percent}");
        }
    }
    let text = run_pagelab(&lab, 0, &["report", "thp.pagelab"]).out;
    assert!(text.contains("too few to decide: 1 pair, at least 6 needed"), "{text}");
    assert!(text.contains("dTLB-load-misses 25.7 % fewer"), "{text}");
    for more in [&["-v"][..], &["--html", "a.html"], &["--tables", "tables"]] {
        run_pagelab(&lab, 0, &[&["report", "thp.pagelab"], more].concat());
    }
    let effects = std::fs::read_to_string(lab.path().join("tables/effects.csv")).unwrap();
    let row = "fmm,\"\",wall,ns,lower,ratio,thp,,no-thp,1,98981000000.0,1,";
    assert!(effects.lines().any(|line| line.starts_with(row)), "{effects}");
}

fn all_files(folder: &Path, found: &mut BTreeMap<PathBuf, String>, root: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all_files(&path, found, root);
        } else {
            let text = std::fs::read_to_string(&path).unwrap();
            found.insert(path.strip_prefix(root).unwrap().to_owned(), text);
        }
    }
}

#[test]
fn an_export_is_imported_unchanged() {
    let lab = Lab::new();
    figures(&lab, "hugepage");
    run_pagelab(&lab, 0, &["import", "perf-stat", "hugepage", "-o", "a.pagelab"]);
    let said = run_pagelab(&lab, 0, &["report", "--export", "perf-csv", "out", "a.pagelab"]).out;
    assert!(said.starts_with("→ out   12 files"), "{said}");
    let mut files = BTreeMap::new();
    all_files(&lab.path().join("out"), &mut files, &lab.path().join("out"));
    assert_eq!(files.len(), 12);
    let canneal = &files[Path::new("results/canneal/thp/thp-1.csv")];
    assert_eq!(
        canneal,
        "524074,,dTLB-load-misses,239317377674,100.00,,\n243742,,iTLB-load-misses,239317377674,100.00,,\n\
         12672653,,cache-misses,239317377674,100.00,,\n"
    );
    assert_eq!(
        files[Path::new("logs/streamcluster/no-thp/no-thp-1.log")],
        "real\t7m54.771s\nuser\t7m54.721s\nsys\t0m0.048s\n"
    );
    run_pagelab(&lab, 0, &["import", "perf-stat", "out", "-o", "b.pagelab"]);
    let (one, other) = (read(&lab, "a.pagelab"), read(&lab, "b.pagelab"));
    assert_eq!((one.plan.variants.len(), &one.plan.workloads), (2, &other.plan.workloads));
    let values = |of: &Experiment| {
        let mut found: Vec<(String, u64)> = Vec::new();
        for trial in &of.trials {
            let slot = of.plan.schedule.get(trial.slot).unwrap();
            let names = (&of.plan.workloads[slot.workload].name, &of.plan.variants[slot.variant].name);
            found.extend(trial.measures.iter().map(|measure| {
                let name = format!("{names:?} {} {} {}", slot.round, measure.name, measure.unit.0);
                (name, measure.value.as_ref().unwrap().to_bits())
            }));
        }
        found.sort();
        found
    };
    assert_eq!(values(&one), values(&other));
    // Nothing is overwritten, and a run that is no experiment has nothing to export.
    let again = run_pagelab(&lab, 2, &["report", "--export", "perf-csv", "out", "a.pagelab"]);
    assert!(again.err.contains("already exists"), "{}", again.err);
    let other = run_pagelab(&lab, 2, &["report", "--export", "xls", "out2", "a.pagelab"]);
    assert!(other.err.contains("expected one of perf-csv"), "{}", other.err);
    assert!(!lab.path().join("out2").exists());
}

#[test]
fn name_prefixes_distinguish_variants_of_files_without_folders() {
    let lab = Lab::new();
    lab.write("a.csv", "10,,cycles,5,100.00,,\n20,,page-faults,5,50.25,,\n");
    lab.write("b.csv", "5,,cycles,5,1.20%,100.00,,\n");
    lab.write("c.csv", "5,,cycles,1.20%,5,100.00,,\n<not supported>,,dTLB-load-misses,0,100.00,,\n");
    lab.write("bad.csv", "     0.1001,0.84,msec,task-clock,840899,100.00,0.008,CPUs utilized\n");
    let all = ["import", "perf-stat", "off=a.csv", "gups/on=c.csv", "on=c.csv", "bad.csv", "-o", "x.pagelab"];
    let said = run_pagelab(&lab, 5, &all);
    assert!(said.err.contains("bad.csv:1: interval counts at 0.1001 s"), "{}", said.err);
    let found = read(&lab, "x.pagelab");
    let names: Vec<&str> = found.plan.variants.iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, ["off", "on"]);
    assert_eq!(
        found.plan.workloads.iter().map(|of| of.name.as_str()).collect::<Vec<_>>(),
        ["program", "gups"]
    );
    assert_eq!(found.plan.workloads[0].merit.as_deref(), Some("perf.running"));
    let flags = |at: usize| found.trials[at].flags.iter().map(|flag| flag.kind.as_str()).collect::<Vec<_>>();
    assert_eq!(flags(0), [Flag::MULTIPLEXED]);
    assert_eq!(flags(1), ["averaged"]);
    let misses = found.trials[1].measures.iter().find(|of| of.name == "counter.dTLB-load-misses").unwrap();
    assert!(misses.value.as_ref().unwrap_err().reason().contains("not supported"));
    assert!(
        run_pagelab(&lab, 3, &["import", "perf-stat", "b.csv", "-o", "y.pagelab"]).err.contains("b.csv:1: ")
    );
    let wrong = ["import", "perf-stat", "off=a.csv", "-o", "y.pagelab", "--baseline", "none"];
    assert!(run_pagelab(&lab, 2, &wrong).err.contains("expected one of off"));
}

#[test]
fn folders_are_variants_if_file_names_are_workloads_and_pooling_is_reported() {
    let lab = Lab::new();
    let line = |count: u32| format!("{count},,dTLB-load-misses,5,100.00,,\n");
    lab.write("results/canneal/thp/canneal.csv", line(524_074));
    lab.write("results/canneal/no-thp/canneal.csv", line(705_221));
    let said = run_pagelab(&lab, 0, &["import", "perf-stat", "results", "-o", "a.pagelab"]).out;
    assert!(said.contains("2 trials of 1 workload under 2 variants, against no-thp"), "{said}");
    let found = read(&lab, "a.pagelab");
    let names: Vec<&str> = found.plan.variants.iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, ["no-thp", "thp"]);
    assert!(found.plan.schedule.iter().all(|slot| slot.round == 0), "{:?}", found.plan.schedule);

    lab.write("x/fmm/4k/counts.csv", line(1));
    lab.write("y/fmm/2m/counts.csv", line(2));
    let mixed = ["import", "perf-stat", "x/fmm/4k/counts.csv", "y/fmm/2m/counts.csv", "--workload", "fmm"];
    let refused = run_pagelab(&lab, 3, &[&mixed[..], &["-o", "b.pagelab"]].concat()).err;
    assert!(refused.contains("both are workload fmm and variant counts"), "{refused}");
    let words = "fmm/4k=x/fmm/4k/counts.csv fmm/2m=y/fmm/2m/counts.csv";
    assert!(refused.contains(words), "{refused}");
    assert!(!lab.path().join("b.pagelab").exists());
    // The words that it gives resolve it, both ways.
    let words: Vec<&str> = words.split(' ').collect();
    let said = run_pagelab(&lab, 0, &["import", "perf-stat", words[0], words[1], "-o", "b.pagelab"]).out;
    assert!(said.contains("2 trials of 1 workload under 2 variants"), "{said}");
    let rounds = ["fmm/counts=x/fmm/4k/counts.csv", "fmm/counts=y/fmm/2m/counts.csv"];
    let said = run_pagelab(&lab, 0, &["import", "perf-stat", rounds[0], rounds[1], "-o", "c.pagelab"]).out;
    assert!(said.contains("2 trials of 1 workload under 1 variant"), "{said}");
}

/// Folders above the layout, one a day: the same workload and variant twice, and no workload called `a`.
#[test]
fn folders_above_the_layout_are_distinguished_by_name() {
    let lab = Lab::new();
    for (day, count) in [("a", 1), ("b", 2)] {
        lab.write(&format!("r2/{day}/canneal/thp/canneal.csv"), format!("{count},,cycles,5,100.00,,\n"));
    }
    let words = "canneal/thp-a=r2/a/canneal/thp/canneal.csv canneal/thp-b=r2/b/canneal/thp/canneal.csv";
    for sources in [&["r2/a", "r2/b"][..], &["r2"]] {
        let asked = [&["import", "perf-stat", "-o", "a.pagelab"], sources].concat();
        let refused = run_pagelab(&lab, 3, &asked).err;
        assert!(refused.contains("both are workload canneal and variant thp"), "{refused}");
        assert!(refused.contains(&format!("for two variants: {words}; for two rounds:")), "{refused}");
    }
    let words: Vec<&str> = words.split(' ').collect();
    let said = run_pagelab(&lab, 0, &["import", "perf-stat", words[0], words[1], "-o", "a.pagelab"]).out;
    assert!(said.contains("2 trials of 1 workload under 2 variants"), "{said}");
}

/// Runs perf, if it is installed.
#[test]
fn output_of_the_installed_perf_is_read() {
    let lab = Lab::new();
    let file = lab.path().join("now.csv");
    let mut perf = Command::new("perf");
    perf.args(["stat", "-x,", "-o"]).arg(&file);
    perf.args(["-e", "task-clock,page-faults,duration_time,cycles,dTLB-load-misses", "true"]);
    if !perf.output().is_ok_and(|output| output.status.success()) {
        let _ = std::io::stderr().write_all(b"skipped: no-perf: `perf stat -x,` does not run here\n");
        return;
    }
    run_pagelab(&lab, 0, &["import", "perf-stat", "now.csv", "-o", "now.pagelab"]);
    let found = read(&lab, "now.pagelab");
    let text = std::fs::read_to_string(&file).unwrap();
    let field = |event: &str| {
        let line = text.lines().find(|line| line.split(',').nth(2) == Some(event)).unwrap();
        line.split(',').next().unwrap().to_owned()
    };
    let value = |name: &str| {
        let of = found.trials[0].measures.iter().find(|of| of.name == name).unwrap();
        of.value.clone()
    };
    assert_eq!(value("counter.page-faults").unwrap(), field("page-faults").parse::<f64>().unwrap());
    assert_eq!(value(measures::WALL).unwrap(), field("duration_time").parse::<f64>().unwrap());
    let clock_ms: f64 = field("task-clock").parse().unwrap();
    assert!((value("counter.task-clock").unwrap() / 1e6 - clock_ms).abs() < 1e-9);
    assert_eq!(value("counter.cycles").is_err(), field("cycles").starts_with('<'));
}

#[test]
fn imported_runs_are_compared_and_incomparable_ones_refused() {
    let lab = Lab::new();
    for (run, factor) in [("one", 100), ("two", 90), ("other", 100)] {
        for round in 1..=8 {
            let ms = |base: u64| base * factor + round * 7 % 5;
            for (variant, base) in [("off", 20), ("on", 10)] {
                let workload = if run == "other" { "sort" } else { "gups" };
                lab.write(
                    &format!("{run}/results/{workload}/{variant}-{round}.csv"),
                    format!(
                        "{},msec,task-clock,5,100.00,,\n{}000000,ns,duration_time,5,100.00,,\n",
                        ms(base),
                        ms(base)
                    ),
                );
            }
        }
        let file = format!("{run}.pagelab");
        run_pagelab(&lab, 0, &["import", "perf-stat", run, "-o", &file, "--baseline", "off"]);
    }
    let text = run_pagelab(&lab, 0, &["compare", "one.pagelab", "two.pagelab"]).out;
    assert!(text.contains("no recorded difference in machine, kernel or settings"), "{text}");
    assert!(text.lines().any(|line| line.contains("time") && line.ends_with("faster")), "{text}");
    assert!(text.lines().any(|line| line.contains("speed-up") && line.contains("2.00×")), "{text}");
    let document = json(&lab, &["compare", "--json", "one.pagelab", "two.pagelab"]);
    let cell = &document["rows"][0]["cells"][1]["against_first"];
    assert!((cell["ratio"].as_f64().unwrap() - 0.9).abs() < 0.001, "{cell}");
    assert_eq!(cell["verdict"], "better");

    let refused = run_pagelab(&lab, 3, &["compare", "one.pagelab", "other.pagelab"]).err;
    assert!(
        refused.contains("cannot compare one.pagelab (A) with other.pagelab (B): workload gups is in A but"),
        "{refused}"
    );
    run_pagelab(&lab, 0, &["checkup", "--run", "look.pagelab"]);
    let refused = run_pagelab(&lab, 3, &["compare", "one.pagelab", "look.pagelab"]).err;
    assert!(refused.contains("look.pagelab: expected an experiment, found checkup"), "{refused}");
    assert!(run_pagelab(&lab, 2, &["compare", "one.pagelab"]).err.contains("2 values"));
}

#[test]
fn every_field_of_an_experiment_and_of_a_comparison_is_documented() {
    let lab = Lab::new();
    figures(&lab, "hugepage");
    run_pagelab(&lab, 0, &["import", "perf-stat", "hugepage", "-o", "a.pagelab"]);
    let mut found = std::collections::BTreeSet::new();
    collect_fields(&json(&lab, &["report", "--json", "a.pagelab"])["runs"][0]["experiment"], &mut found);
    let compared = json(&lab, &["compare", "--json", "a.pagelab", "a.pagelab"]);
    for part in ["differences", "rows", "not_compared"] {
        assert!(compared.get(part).is_some(), "{part}");
        found.insert(part.to_owned());
        collect_fields(&compared[part], &mut found);
    }
    let docs = include_str!("../../../docs/json.md");
    let undocumented: Vec<&String> = found
        .iter()
        .filter(|name| !name.ends_with("_absent_reason") && !docs.contains(&format!("`{name}`")))
        .collect();
    assert!(undocumented.is_empty(), "not in docs/json.md: {undocumented:#?}");
}
