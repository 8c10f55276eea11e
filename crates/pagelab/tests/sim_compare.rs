//! `pagelab sim run`, `compare` and `list`, end to end: what they print, what they keep, what they refuse.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand

mod support;

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use support::{Lab, Ran, fields};

/// A load that ends in some hundredths of a second.
const SMALL: [&str; 8] = ["--machine", "64M", "--load", "churn", "--set", "pairs=3000", "--set", "full=90"];

fn good(ran: &Ran) -> &str {
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    &ran.out
}

fn compare(lab: &Lab, more: &[&str]) -> Ran {
    lab.run(&[&["sim", "compare"], &SMALL[..], more].concat())
}

#[test]
fn the_same_seeds_give_the_same_bytes_on_any_number_of_threads() {
    let lab = Lab::new();
    for form in [&[][..], &["--json"]] {
        let of = |threads: &str| {
            let more = ["--policies", "standard,list,mobility", "--seeds", "8", "--threads", threads];
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
    let ran = compare(&lab, &["--policies", "standard,standard+noactivate,mobility", "--seeds", "7", "-v"]);
    let text = good(&ran);
    assert!(text.contains("3 configurations   seeds 1 to 7   21 runs"), "{text}");
    assert!(text.contains("difference to standard, seed by seed"), "{text}");
    // Nothing is reclaimed in this load, so that the switch of reclaim changes nothing.
    let ran = compare(&lab, &["--policies", "standard,standard+noactivate", "--seeds", "7", "--json"]);
    let said: Value = serde_json::from_str(good(&ran)).unwrap();
    let figures = said["tables"][0]["figures"].as_array().unwrap();
    assert!(!figures.is_empty());
    for figure in figures {
        let column = &figure["columns"][1];
        assert_eq!(column["difference"]["says"], "same", "{figure}");
        assert_eq!(column["difference"]["pairs"], 7);
        // The oracle: the median of what the runs say, by hand.
        let mut values: Vec<f64> =
            column["values"].as_array().unwrap().iter().map(|of| of["value"].as_f64().unwrap()).collect();
        values.sort_by(f64::total_cmp);
        assert_eq!(column["median"], values[3], "{figure}");
    }
    let few = compare(&lab, &["--policies", "standard,mobility", "--seeds", "2"]);
    assert!(good(&few).contains("2 seeds: the middle one"), "{}", few.out);
}

#[test]
fn each_field_is_documented() {
    let lab = Lab::new();
    let docs = include_str!("../../../docs/json.md");
    let compared = compare(&lab, &["--policies", "standard,mobility", "--seeds", "6", "--json"]);
    let sweep =
        ["sim", "sweep", "--grid", "pairs=1000,2000", "--machine", "64M", "--load", "churn", "--json"];
    for ran in [compared, lab.run(&sweep), lab.run(&["sim", "list", "--json"])] {
        let said: Value = serde_json::from_str(good(&ran)).unwrap();
        let mut found = BTreeSet::new();
        fields(&said, &mut found);
        // What stands beside an absent value is told at the top of that page.
        found.retain(|name| !name.ends_with("_absent_reason"));
        let missing: Vec<_> = found.iter().filter(|name| !docs.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "{} not in docs/json.md: {missing:?}", said["kind"]);
    }
}

#[test]
fn a_run_file_holds_all_of_it_for_the_report_and_for_sqlite() {
    let lab = Lab::new();
    let ran = compare(&lab, &["--policies", "standard,mobility", "--seeds", "3", "-o", "a.pagelab"]);
    let printed = good(&ran).to_owned();
    let report = lab.run(&["report", "a.pagelab"]);
    assert!(good(&report).ends_with(&printed), "{}\n{printed}", report.out);
    let said: Value = serde_json::from_str(good(&lab.run(&["report", "--json", "a.pagelab"]))).unwrap();
    assert_eq!(said["runs"][0]["study"]["runs"].as_array().unwrap().len(), 6);
    assert_eq!(said["runs"][0]["run"]["kind"], "sim");
    good(&lab.run(&["report", "--csv", "tables", "a.pagelab"]));
    let figures = std::fs::read_to_string(lab.path().join("tables/study_figures.csv")).unwrap();
    let rows = said["runs"][0]["study"]["runs"].as_array().unwrap();
    let all: usize = rows.iter().map(|row| row["figures"].as_array().unwrap().len()).sum();
    assert_eq!(figures.lines().count(), all + 1);
    // The quotient and its parts, by name and in agreement.
    let head: Vec<&str> = figures.lines().next().unwrap().split(',').collect();
    assert_eq!(head[head.len() - 4..], ["value", "unit", "numerator", "denominator"]);
    for line in figures.lines().skip(1) {
        let cells: Vec<&str> = line.rsplit(',').take(4).collect();
        let number = |at: usize| cells[at].parse::<f64>().unwrap();
        assert_eq!(number(3), number(1) / number(0), "{line}");
    }
    let differences = std::fs::read_to_string(lab.path().join("tables/study_differences.csv")).unwrap();
    let found = said["runs"][0]["study"]["tables"][0]["figures"].as_array().unwrap();
    assert_eq!(differences.lines().count(), found.len() + 1, "one scheme against the other");
    let middle = found[0]["columns"][1]["difference"]["middle"].as_f64().unwrap();
    let first = differences.lines().nth(1).unwrap();
    assert!(first.contains(&format!(",{middle},,,,")) && first.ends_with(",3,too_few"), "{first}");
    let medians = std::fs::read_to_string(lab.path().join("tables/study_medians.csv")).unwrap();
    assert_eq!(medians.lines().count(), 2 * found.len() + 1);
    let query = "SELECT kind, count(*) FROM blob GROUP BY kind ORDER BY kind";
    match Command::new("sqlite3").args(["-readonly", "a.pagelab", query]).current_dir(lab.path()).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(text, "study|1\nstudy_trial|6\n", "{}", String::from_utf8_lossy(&output.stderr));
        }
        // The file was read by our own reader; only the other tool's word is missing.
        Err(_) => eprintln_skip(),
    }
    good(&lab.run(&["report", "--html", "a.html", "a.pagelab"]));
    let page = std::fs::read_to_string(lab.path().join("a.html")).unwrap();
    assert!(page.contains("churn on 64M") && page.contains("mobility"), "the page says it without a script");
    assert!(page.contains("difference to standard, seed by seed"), "and what it comes to");
    let two = lab.run(&["report", "--html", "b.html", "a.pagelab", "a.pagelab"]);
    assert_eq!(two.code, Some(2), "{}", two.err);
    let again = compare(&lab, &["--seeds", "1", "-o", "a.pagelab"]);
    assert_eq!(again.code, Some(2), "what exists is not overwritten: {}", again.err);
}

#[allow(clippy::print_stderr, reason = "a skipped check says so")]
fn eprintln_skip() {
    eprintln!("skipped: sqlite3-absent: there is no `sqlite3` to compare with");
}

#[test]
fn one_run_shows_figures_and_lists_say_what_there_is() {
    let lab = Lab::new();
    let ran =
        lab.run(&["sim", "run", "churn", "--machine", "64M", "--set", "pairs=3000", "--policy", "list"]);
    assert!(good(&ran).starts_with("churn on 64M, pairs 3 000 under list   seed 1   1 run\n"), "{}", ran.out);
    let list = good(&lab.run(&["sim", "list"])).to_owned();
    for word in
        ["standard", "mobility-6.1", "linear", "ppc64", "highalloc", "churn", "shuffle", "no run of a load"]
    {
        assert!(list.contains(word), "{word}: {list}");
    }
    assert!(good(&lab.run(&["sim", "list", "churn"])).contains("pairs"));
    // The paper's tests are found from the list, under the name of the load and as a recipe.
    for line in ["→ pagelab sim run paper ", "  anti-fragmentation  How many", "  long-use"] {
        assert!(list.contains(line), "{line}: {list}");
    }
    assert!(good(&lab.run(&["sim", "list", "paper"])).contains("→ pagelab sim run paper "));
    // Whatever the list prints is explained by its name.
    for (name, said) in [
        ("zone", "--policies standard,zone"),
        ("cma", "--policies standard,cma=64M"),
        ("mobility", "mobility-6.18"),
        ("x86", "1518 MiB"),
        ("anti-fragmentation", "→ pagelab recipes explain anti-fragmentation"),
    ] {
        let one = good(&lab.run(&["sim", "list", name])).to_owned();
        assert!(one.starts_with(name) && one.contains(said), "{one}");
        assert!(one.lines().all(|line| line.chars().count() <= 80), "{one}");
    }
    let unknown = lab.run(&["sim", "list", "no-such"]);
    assert!(unknown.code == Some(2) && unknown.err.contains("the machines x86"), "{}", unknown.err);
    let all = [list, good(&lab.run(&["sim", "list", "highalloc"])).to_owned()].concat();
    assert!(all.lines().all(|line| line.chars().count() <= 80), "{all}");
    assert!(all.contains("  mobility-6.10  pageblocks") && all.contains("1 000 pages"), "{all}");
    // Memory is filled as far as is asked for, however few pairs follow.
    let none = lab.run(&["sim", "run", "churn", "--machine", "64M", "--set", "pairs=0", "--json"]);
    let said: Value = serde_json::from_str(good(&none)).unwrap();
    let figures = said["runs"][0]["figures"].as_array().unwrap();
    let free = figures.iter().find(|figure| figure["name"] == "pages: free").unwrap();
    let share = free["value"].as_f64().unwrap() / free["per"].as_f64().unwrap();
    assert!((0.05..0.5).contains(&share), "{share}");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_runs() {
    let lab = Lab::new();
    let cases: [(&[&str], &str); 33] = [
        (&["compare", "--policies", "foo"], "no policy is called \"foo\"; there are standard"),
        (&["compare", "--policies", "list,list"], "\"list\" is there twice"),
        (&["compare", "--policies", "standard+list"], "two placement policies"),
        (&["compare", "--policies", "zone+zone"], "zone twice"),
        (&["compare", "--policies", "zone+linear+lumpy"], "linear or lumpy"),
        (&["compare", "--policies", "list+cma"], "the size of a CMA area was wanted, as in cma=256M"),
        (
            &["compare", "--policies", "list+cma=1M"],
            "pageblocks of 4M were wanted, and half of the zone Normal",
        ),
        (&["run", "churn", "--machine", "1G", "--policy", "list+cma=900M"], "at most: up to 504M"),
        (&["compare", "--policies", "list+highatomic"], "2.6.16 has no such reserve; take a size"),
        (&["compare", "--policies", "list+fifo+shuffle"], "shuffled or fifo: name one of them"),
        (&["sweep", "--grid", "scheme=list,list+shuffle=3"], "no policy is called \"shuffle=3\""),
        (&["compare", "--policies", ""], "an empty word"),
        (&["compare", "--load", "foo"], "no load \"foo\"; there are"),
        (&["compare", "--machine", "12"], "machines are x86, ppc64"),
        (&["compare", "--set", "foo=1"], "has no parameter foo"),
        (&["compare", "--set", "foo"], "NAME=VALUE"),
        (&["compare", "--set", "builds=1", "--set", "builds=2"], "given twice"),
        (&["compare", "--load", ""], "no load \"\"; there are"),
        (&["compare", "--policies", "standard+foo"], "no policy is called \"foo\""),
        (&["compare", "--machine", "5K"], "too small; machines are"),
        (&["compare", "--policies", "zone", "--kernelcore", "99G"], "kernelcore of 99 GiB: wanted is"),
        (&["compare", "--threads", "0"], "'--threads <N>': a whole number from 1 to 1 000 is wanted"),
        (&["compare", "--seeds", "-3"], "'--seeds <N>': a whole number from 1 to 1 000 is wanted"),
        (&["compare", "--kernelcore", "-1"], "a size such as 64M"),
        (&["compare", "--seed", "-1"], "a whole number from 0 to"),
        (&["compare", "--load", "churn", "-o", "/usr"], "it is a folder; give the name of a file in it"),
        (
            &["compare", "--load", "churn", "-o", "none/such.pagelab"],
            "there is no such folder; make it first",
        ),
        (&["compare", "--seeds", "0"], "from 1 to 1 000 is wanted"),
        (&["compare", "--seed", "9223372036854775807", "--seeds", "2"], "seeds go up to"),
        (&["compare", "--kernelcore", "3K"], "cut at multiples of 4 MiB"),
        (&["compare", "--kernelcore", "0"], "a size such as"),
        (&["compare", "--policies", "list", "--kernelcore", "1G"], "no scheme has one"),
        (&["compare", "--policies", "zone", "--kernelcore", "64G"], "kernelcore of"),
    ];
    for (words, said) in cases {
        let ran = lab.run(&[&["sim"], words].concat());
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{words:?}: {}", ran.err);
        assert!(ran.err.contains(said), "{words:?}: {}", ran.err);
    }
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
    assert_eq!(said["runs_done"], 4);
    let planned = good(&lab.run(&["run", "own.toml", "--dry-run"])).to_owned();
    assert!(planned.contains("nothing of this machine is changed"), "{planned}");
    let planned: Value =
        serde_json::from_str(good(&lab.run(&["run", "own.toml", "--dry-run", "--json"]))).unwrap();
    assert_eq!((&planned["runs_planned"], &planned["runs_done"]), (&6.into(), &0.into()));
    lab.write("bad.toml", "name = \"own\"\nplace = \"sim\"\nschemes = 3\n");
    let bad = lab.run(&["sim", "run", "bad.toml"]);
    assert_eq!(bad.code, Some(3), "{}", bad.err);
    assert!(bad.err.contains("bad.toml:3: schemes is a number"), "{}", bad.err);
    for (words, said) in [
        (&["sim", "run", "none"][..], "no load and no recipe"),
        (&["sim", "run", "own.toml", "--set", "a=1"], "--set is for a load"),
        (&["sim", "run", "own.toml", "--machine", "x86"], "--machine is for a load"),
        (&["sim", "run", "churn", "--quick"], "--quick is for recipes"),
        (&["run", "own.toml", "--", "true"], "it starts no program"),
    ] {
        let ran = lab.run(words);
        assert_eq!(ran.code, Some(2), "{words:?}: {}", ran.err);
        assert!(ran.err.contains(said), "{words:?}: {}", ran.err);
    }
}
