//! Tests of `pagelab sim run`, `compare` and `list`: output, run files, rejected arguments.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand

mod support;

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use support::{CommandOutput, Lab, collect_fields};

/// A load that ends in some hundredths of a second.
const SMALL: [&str; 8] = ["--machine", "64M", "--load", "churn", "--set", "pairs=3000", "--set", "full=90"];

fn good(ran: &CommandOutput) -> &str {
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    &ran.out
}

fn compare(lab: &Lab, more: &[&str]) -> CommandOutput {
    lab.run(&[&["sim", "compare"], &SMALL[..], more].concat())
}

#[test]
fn the_same_seeds_give_the_same_bytes_on_any_number_of_threads() {
    let lab = Lab::new();
    for form in [&[][..], &["--json"]] {
        let of = |threads: &str| {
            let more = ["--schemes", "standard,list,mobility", "--seeds", "8", "--threads", threads];
            good(&compare(&lab, &[&more, form].concat())).to_owned()
        };
        let one = of("1");
        assert_eq!(one, of("4"), "threads change nothing");
        assert_eq!(one, of("3"));
    }
}

#[test]
fn schemes_stand_side_by_side_with_their_differences() {
    let lab = Lab::new();
    let ran = compare(&lab, &["--schemes", "standard,standard+noactivate,mobility", "--seeds", "7", "-v"]);
    let text = good(&ran);
    assert!(text.contains("3 configurations   seeds 1 to 7   21 runs"), "{text}");
    assert!(text.contains("difference from standard, paired by seed"), "{text}");
    // Nothing is reclaimed in this load, so that the switch of reclaim changes nothing.
    let ran = compare(&lab, &["--schemes", "standard,standard+noactivate", "--seeds", "7", "--json"]);
    let said: Value = serde_json::from_str(good(&ran)).unwrap();
    let figures = said["effects"][0]["measures"].as_array().unwrap();
    assert!(!figures.is_empty());
    for figure in figures {
        let column = &figure["variants"][1];
        assert_eq!(column["difference"]["verdict"], "same", "{figure}");
        assert_eq!(column["difference"]["pairs"], 7);
        // The oracle: the median of what the runs say, by hand.
        let mut values: Vec<f64> =
            column["values"].as_array().unwrap().iter().map(|of| of.as_f64().unwrap()).collect();
        values.sort_by(f64::total_cmp);
        assert_eq!(column["median"], values[3], "{figure}");
    }
    let few = compare(&lab, &["--schemes", "standard,mobility", "--seeds", "2"]);
    assert!(good(&few).contains("2 seeds: medians only"), "{}", few.out);
}

#[test]
fn each_field_is_documented() {
    let lab = Lab::new();
    let docs = include_str!("../../../docs/json.md");
    let compared = compare(&lab, &["--schemes", "standard,mobility", "--seeds", "6", "--json"]);
    let sweep =
        ["sim", "sweep", "--grid", "pairs=1000,2000", "--machine", "64M", "--load", "churn", "--json"];
    for ran in [compared, lab.run(&sweep), lab.run(&["sim", "list", "--json"])] {
        let said: Value = serde_json::from_str(good(&ran)).unwrap();
        let mut found = BTreeSet::new();
        collect_fields(&said, &mut found);
        // What stands beside an absent value is told at the top of that page.
        found.retain(|name| !name.ends_with("_absent_reason"));
        let missing: Vec<_> = found.iter().filter(|name| !docs.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "{} not in docs/json.md: {missing:?}", said["kind"]);
    }
}

#[test]
fn a_run_file_holds_all_of_it_for_the_report_and_for_sqlite() {
    let lab = Lab::new();
    let ran = compare(&lab, &["--schemes", "standard,mobility", "--seeds", "3", "-o", "a.pagelab"]);
    let printed = good(&ran).to_owned();
    let report = lab.run(&["report", "a.pagelab"]);
    assert!(good(&report).ends_with(&printed), "{}\n{printed}", report.out);
    let said: Value = serde_json::from_str(good(&lab.run(&["report", "--json", "a.pagelab"]))).unwrap();
    let experiment = &said["runs"][0]["experiment"];
    assert_eq!(experiment["trials"].as_array().unwrap().len(), 6);
    assert_eq!(said["runs"][0]["run"]["kind"], "sim");
    good(&lab.run(&["report", "--tables", "tables", "a.pagelab"]));
    let figures = std::fs::read_to_string(lab.path().join("tables/measures.csv")).unwrap();
    let rows = experiment["trials"].as_array().unwrap();
    let all: usize = rows.iter().map(|row| row["measures"].as_array().unwrap().len()).sum();
    assert_eq!(figures.lines().count(), all + 1);
    // The quotient and its parts, by name and in agreement.
    let head: Vec<&str> = figures.lines().next().unwrap().split(',').collect();
    assert_eq!(
        head[head.len() - 5..],
        ["value", "numerator", "denominator", "absent_reason", "source"],
        "{head:?}"
    );
    for line in figures.lines().skip(1) {
        let cells: Vec<&str> = line.rsplit(',').take(5).collect();
        let number = |at: usize| cells[at].parse::<f64>().unwrap();
        assert_eq!(number(4), number(3) / number(2), "{line}");
    }
    let effects = std::fs::read_to_string(lab.path().join("tables/effects.csv")).unwrap();
    let found = experiment["effects"][0]["measures"].as_array().unwrap();
    assert_eq!(effects.lines().count(), 2 * found.len() + 1, "each scheme");
    let middle = found[0]["variants"][1]["difference"]["middle"].as_f64().unwrap();
    let second = effects.lines().nth(2).unwrap();
    assert!(second.contains(&format!(",{middle:?},,,,")) && second.contains(",too_few,"), "{second}");
    let query = "SELECT kind, count(*) FROM blob GROUP BY kind ORDER BY kind";
    match Command::new("sqlite3").args(["-readonly", "a.pagelab", query]).current_dir(lab.path()).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(
                text,
                "experiment|1\nmeasures|1\ntrials|1\n",
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        // The file was read by our own reader; only the other tool's word is missing.
        Err(_) => eprintln_skip(),
    }
    good(&lab.run(&["report", "--html", "a.html", "a.pagelab"]));
    let page = std::fs::read_to_string(lab.path().join("a.html")).unwrap();
    assert!(page.contains("churn on 64M") && page.contains("mobility"), "the page says it without a script");
    assert!(page.contains("difference from standard, paired by seed"), "and what it comes to");
    let two = lab.run(&["report", "--html", "b.html", "a.pagelab", "a.pagelab"]);
    assert_eq!(two.code, Some(2), "{}", two.err);
    let again = compare(&lab, &["--seeds", "1", "-o", "a.pagelab"]);
    assert_eq!(again.code, Some(2), "what exists is not overwritten: {}", again.err);
    let forced = compare(&lab, &["--seeds", "1", "-o", "a.pagelab", "--force"]);
    assert_eq!(forced.code, Some(0), "{}", forced.err);
    // Statistics and export of host experiments do not apply to simulations.
    let compared = lab.run(&["compare", "a.pagelab", "a.pagelab"]);
    assert_eq!(compared.code, Some(3), "{}", compared.out);
    assert_eq!(
        compared.err,
        "error: a.pagelab: expected an experiment on a real machine, found simulations\nhint: \
         `pagelab sim compare` compares schemes\n"
    );
    let exported = lab.run(&["report", "a.pagelab", "--export", "perf-csv", "out"]);
    assert_eq!(exported.code, Some(3), "{}", exported.out);
    assert!(exported.err.contains("found simulations"), "{}", exported.err);
}

#[allow(clippy::print_stderr, reason = "a skipped check says so")]
fn eprintln_skip() {
    eprintln!("skipped: sqlite3-absent: there is no `sqlite3` to compare with");
}

#[test]
fn one_run_prints_figures_and_lists_name_workloads_and_variants() {
    let lab = Lab::new();
    let ran =
        lab.run(&["sim", "run", "churn", "--machine", "64M", "--set", "pairs=3000", "--scheme", "list"]);
    assert!(
        good(&ran).starts_with("churn on 64M, pairs 3\u{202f}000 under list   seed 1   1 run\n"),
        "{}",
        ran.out
    );
    let list = good(&lab.run(&["sim", "list"])).to_owned();
    for word in [
        "standard",
        "mobility-6.1",
        "linear",
        "ppc64",
        "highalloc",
        "churn",
        "shuffle",
        "not used by any load",
    ] {
        assert!(list.contains(word), "{word}: {list}");
    }
    assert!(good(&lab.run(&["sim", "list", "churn"])).contains("pairs"));
    // The paper's tests are found from the list, under the name of the load and as a recipe.
    for line in ["→ pagelab sim run paper ", "  anti-fragmentation  How many", "  long-use"] {
        assert!(list.contains(line), "{line}: {list}");
    }
    assert!(good(&lab.run(&["sim", "list", "paper"])).contains("→ pagelab sim run paper "));
    // Everything in the list can be explained by its name.
    for (name, said) in [
        ("zone", "--schemes standard,zone"),
        ("cma", "--schemes standard,cma=64M"),
        ("mobility", "mobility-6.18"),
        ("x86", "1518 MiB"),
        ("anti-fragmentation", "→ pagelab recipes explain anti-fragmentation"),
    ] {
        let one = good(&lab.run(&["sim", "list", name])).to_owned();
        assert!(one.starts_with(name) && one.contains(said), "{one}");
        assert!(one.lines().all(|line| line.chars().count() <= 80), "{one}");
    }
    let unknown = lab.run(&["sim", "list", "no-such"]);
    assert!(unknown.code == Some(2) && unknown.err.contains("a machine (x86"), "{}", unknown.err);
    let all = [list, good(&lab.run(&["sim", "list", "highalloc"])).to_owned()].concat();
    assert!(all.lines().all(|line| line.chars().count() <= 80), "{all}");
    assert!(all.contains("  mobility-6.10  pageblock ") && all.contains("1\u{202f}000 pages"), "{all}");
    // Memory is filled as far as requested, for any number of pairs.
    let none = lab.run(&["sim", "run", "churn", "--machine", "64M", "--set", "pairs=0", "--json"]);
    let said: Value = serde_json::from_str(good(&none)).unwrap();
    let figures = said["trials"][0]["measures"].as_array().unwrap();
    let free = figures.iter().find(|figure| figure["name"] == "pages: free").unwrap();
    let share = free["numerator"].as_f64().unwrap() / free["denominator"].as_f64().unwrap();
    assert!((0.05..0.5).contains(&share), "{share}");
}

#[test]
fn invalid_arguments_are_refused_before_anything_runs() {
    let lab = Lab::new();
    let cases: [(&[&str], &str); 32] = [
        (
            &["compare", "--schemes", "foo"],
            "unknown policy or option `foo`; expected one of the policies standard",
        ),
        (&["compare", "--schemes", "list,list"], "\"list\" is given twice"),
        (&["compare", "--schemes", "standard+list"], "two placement policies"),
        (&["compare", "--schemes", "zone+zone"], "zone twice"),
        (&["compare", "--schemes", "zone+linear+lumpy"], "linear or lumpy"),
        (&["compare", "--schemes", "list+cma"], "expected the size of a CMA area, for example cma=256M"),
        (&["compare", "--schemes", "list+cma=1M"], "expected a multiple of 4M, at most half of zone Normal"),
        (&["run", "churn", "--machine", "1G", "--scheme", "list+cma=900M"], "(504M)"),
        (
            &["compare", "--schemes", "list+highatomic"],
            "this machine runs Linux 2.6.16, which has no such reserve\nhint: use an x86-64 machine",
        ),
        (&["compare", "--schemes", "list+fifo+shuffle"], "shuffle and fifo are mutually exclusive"),
        (&["sweep", "--grid", "scheme=list,list+shuffle=3"], "unknown policy or option `shuffle=3`"),
        (&["compare", "--schemes", ""], "an empty name"),
        (&["compare", "--load", "foo"], "unknown load `foo`; expected one of kbuild"),
        (&["compare", "--machine", "12"], "expected x86, ppc64, or a size"),
        (&["compare", "--set", "foo=1"], "load highalloc: unknown parameter `foo`"),
        (&["compare", "--set", "foo"], "NAME=VALUE"),
        (&["compare", "--set", "builds=1", "--set", "builds=2"], "given twice"),
        (&["compare", "--load", ""], "unknown load ``; expected one of kbuild"),
        (&["compare", "--schemes", "standard+foo"], "unknown policy or option `foo`"),
        (&["compare", "--machine", "5K"], "too small; expected x86"),
        (
            &["compare", "--schemes", "zone", "--kernelcore", "99G"],
            "kernelcore of 99 GiB: expected more than 28 MiB",
        ),
        (&["compare", "--threads", "0"], "'--threads <N>': expected an integer from 1 to 1000"),
        (&["compare", "--seeds", "-3"], "'--seeds <N>': expected an integer from 1 to 1000"),
        (&["compare", "--kernelcore", "-1"], "a size, for example 64M"),
        (&["compare", "--seed", "-1"], "an integer from 0 to"),
        (&["compare", "--load", "churn", "-o", "/usr"], "expected a file, found a directory"),
        (&["compare", "--seeds", "0"], "expected an integer from 1 to 1000"),
        (&["compare", "--seed", "9223372036854775807", "--seeds", "2"], "expected at most"),
        (&["compare", "--kernelcore", "3K"], "aligned to 4 MiB"),
        (&["compare", "--kernelcore", "0"], "expected a size above 0"),
        (&["compare", "--schemes", "list", "--kernelcore", "1G"], "requires a scheme with a movable zone"),
        (&["compare", "--schemes", "zone", "--kernelcore", "64G"], "kernelcore of"),
    ];
    for (words, said) in cases {
        let ran = lab.run(&[&["sim"], words].concat());
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{words:?}: {}", ran.err);
        assert!(ran.err.contains(said), "{words:?}: {}", ran.err);
    }
    let ran = lab.run(&["sim", "compare", "--load", "churn", "-o", "none/such.pagelab"]);
    assert!(
        ran.code == Some(3) && ran.err.contains("no directory none\nhint: create it first"),
        "{}",
        ran.err
    );
    assert_eq!(std::fs::read_dir(lab.path()).unwrap().count(), 0, "and nothing is left");
}

#[test]
fn a_recipe_is_run_by_both_commands() {
    let lab = Lab::new();
    lab.write(
        "own.toml",
        "name = \"own\"\nquestion = \"Which?\"\nplace = \"sim\"\nschemes = [\"standard\", \"mobility\"]\nseeds = 3\n\
         [quick]\nseeds = 2\n[[machine]]\nname = \"64M\"\n[[load]]\nname = \"churn\"\nset = { pairs = 2000 }\n",
    );
    let ran = lab.run(&["sim", "run", "own.toml"]);
    let text = good(&ran).to_owned();
    assert!(ran.err.contains("→ own-1.pagelab   pagelab report own-1.pagelab"), "{}", ran.err);
    assert!(text.starts_with("Which?\n2 configurations   seeds 1 to 3   6 runs\n"), "{text}");
    assert_eq!(good(&lab.run(&["run", "own.toml"])), text);
    assert!(lab.path().join("own-2.pagelab").exists());
    let quick = lab.run(&["run", "own.toml", "--quick", "--json"]);
    let said: Value = serde_json::from_str(good(&quick)).unwrap();
    assert_eq!(said["trials"].as_array().map(Vec::len), Some(4));
    let planned = good(&lab.run(&["run", "own.toml", "--dry-run"])).to_owned();
    assert!(planned.contains("changes nothing on this machine"), "{planned}");
    let planned: Value =
        serde_json::from_str(good(&lab.run(&["run", "own.toml", "--dry-run", "--json"]))).unwrap();
    let trials = planned["trials"].as_array().map(Vec::len);
    assert_eq!((&planned["plan"]["slots"], trials), (&6.into(), Some(0)));
    lab.write("bad.toml", "name = \"own\"\nplace = \"sim\"\nschemes = 3\n");
    let bad = lab.run(&["sim", "run", "bad.toml"]);
    assert_eq!(bad.code, Some(3), "{}", bad.err);
    assert!(
        bad.err.contains("bad.toml:3: schemes: expected a list of strings, found a number"),
        "{}",
        bad.err
    );
    for (words, said) in [
        (&["sim", "run", "none"][..], "unknown load or recipe"),
        (&["sim", "run", "own.toml", "--set", "a=1"], "--set applies to loads only"),
        (&["sim", "run", "own.toml", "--machine", "x86"], "--machine applies to loads only"),
        (&["sim", "run", "churn", "--quick"], "--quick applies to recipes only"),
        (&["run", "own.toml", "--", "true"], "this recipe is simulated"),
    ] {
        let ran = lab.run(words);
        assert_eq!(ran.code, Some(2), "{words:?}: {}", ran.err);
        assert!(ran.err.contains(said), "{words:?}: {}", ran.err);
    }
}
