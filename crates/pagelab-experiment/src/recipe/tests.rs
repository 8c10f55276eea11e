//! Tests: valid recipes are parsed as written; invalid ones are rejected with file, line and key. Cases are
//! data.

use pagelab_model::Bytes;

use super::*;

const GOOD: &str = r#"
name = "good"
question = "Is it good?"
place = "host"
order = "blocks"
repeats = 12
time_limit = "1m30s"
baseline = "b"
loss = 0.1
probes = ["huge", "kmem:mm_page_alloc"]

[quick]
repeats = 3
workloads = ["chase"]

[[workload]]
built_in = "chase"
options = { size = "64M", steps = 1_000_000 }
quick = { steps = 1000 }
takes = "2s"

[[workload]]
name = "sort"
command = ["sort", "-n", "numbers"]
metric = { pattern = "sorted {} lines/s", unit = "1/s", better = "higher" }
input = "a million numbers"
files = ["numbers"]

[[variant]]
name = "a"
thp = "madvise"
advise = "huge"

[[variant]]
name = "b"
mthp = { 1M = "always", 64K = "madvise" }
memory_limit = "512M"
swap = "2G"
fragmentation = { order = 9, target = 0.8 }
hog = { size = "1G" }
pin = true
page_cache = "cold"
environment = { LC_ALL = "C" }
"#;

#[test]
fn a_good_recipe_is_what_it_says() {
    let recipe = Recipe::parse("good.toml", GOOD).unwrap();
    assert_eq!((recipe.name.as_str(), recipe.repeats, recipe.warm_up, recipe.seed), ("good", 12, 1, 1));
    assert_eq!((recipe.sequence, recipe.baseline, recipe.has_twins), (Sequence::Blocks, 1, true));
    assert_eq!(recipe.time_limit, Duration::from_secs(90));
    assert_eq!((recipe.acceptable_loss, recipe.variants[1].swap_limit), (0.1, Some(Bytes(2 << 30))));
    let chase = &recipe.workloads[0];
    assert_eq!(chase.name, "chase");
    assert_eq!(chase.given_options(), [("size".into(), "64M".into()), ("steps".into(), "1000000".into())]);
    let WorkloadCommand::Command { metric: Some(metric), .. } = &recipe.workloads[1].command else {
        panic!()
    };
    assert_eq!((metric.prefix.as_str(), metric.suffix.as_str()), ("sorted ", " lines/s"));
    let variant = &recipe.variants[1];
    let settings: Vec<String> =
        variant.settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(
        settings.join(" "),
        "mthp.64K=madvise mthp.1M=always memory_limit=512M swap=2G fragmentation=0.8 fragmentation.order=9 \
         hog=1G hog.how=process pin=yes page_cache=cold environment.LC_ALL=C"
    );
    let quick = recipe.clone().into_quick();
    assert_eq!((quick.repeats, quick.workloads.len()), (3, 1));
    assert_eq!(quick.workloads[0].given_options()[1].1, "1000");
    let over = recipe.with_command(vec!["/bin/true".to_owned()]);
    assert_eq!((over.workloads[0].name.as_str(), over.variants[0].advise.as_deref()), ("true", None));
}

#[test]
fn whether_huge_pages_are_asked_for_is_derived() {
    let cases = [
        ("thp = \"always\"", true),
        ("thp = \"never\"", false),
        ("thp = \"never-prctl\"", false),
        ("thp = \"madvise\"", false),
        ("thp = \"madvise\"\nadvise = \"huge\"", true),
        ("thp = \"always\"\nadvise = \"nohuge\"", false),
        ("thp = \"advised-only\"\nadvise = \"huge\"", true),
        ("thp = \"never\"\nmthp = { 64K = \"always\" }", true),
        ("options = { advise = \"huge\" }", true),
        ("pin = true", false),
        ("plan = \"none\"", false),
        ("plan = \"all\"", true),
        ("plan = \"x.plan.toml\"", true),
    ];
    for (settings, asks) in cases {
        let text = format!(
            "name = \"a\"\nquestion = \"b\"\n[[workload]]\nbuilt_in = \"chase\"\n[[variant]]\nname = \"v\"\n\
             {settings}\n"
        );
        let recipe = Recipe::parse("test", &text).unwrap();
        assert_eq!(recipe.variants[0].asks_for_huge_pages(&[]), asks, "{settings}");
    }
    let variant = Variant::default();
    assert!(variant.asks_for_huge_pages(&[("advise".to_owned(), "huge".to_owned())]));
}

/// Replaces one line of a valid recipe: the line, its replacement, and the expected error.
const BAD: &[(&str, &str, &str)] = &[
    ("name = \"good\"", "nmae = \"good\"", ":2: unknown key `nmae`; expected one of name, question"),
    ("name = \"good\"", "name = \"a/b\"", ":2: name: \"a/b\": expected letters"),
    ("name = \"good\"", "name = 7", ":2: name: expected a quoted string, found a number"),
    ("place = \"host\"", "place = \"moon\"", ":4: place: expected one of host, guest, found \"moon\""),
    ("order = \"blocks\"", "order = \"abab\"", ":5: order: expected one of abba, blocks, found \"abab\""),
    ("repeats = 12", "repeats = 0", ":6: repeats: expected an integer from 1 to 10000"),
    ("repeats = 12", "repeats = 1.5", ":6: repeats: expected an integer"),
    ("repeats = 12", "repeats = 12\nrepeats = 3", ":7: "),
    ("time_limit = \"1m30s\"", "time_limit = \"90\"", ":7: time_limit: missing unit"),
    ("baseline = \"b\"", "baseline = \"c\"", ":8: baseline: unknown variant `c`; expected one of a, b"),
    ("workloads = [\"chase\"]", "workloads = [\"x\"]", "quick: workloads: unknown name `x`"),
    (
        "built_in = \"chase\"",
        "built_in = \"chaise\"",
        "workload \"chaise\": built_in: unknown workload `chaise`; expected one of",
    ),
    ("quick = { steps = 1000 }", "quick = { steps = \"many\" }", ": steps: expected an integer"),
    ("quick = { steps = 1000 }", "quick = { stride = 8 }", "unknown option `stride`; expected one of size"),
    (
        "command = [\"sort\", \"-n\", \"numbers\"]",
        "command = []",
        "workload \"sort\": expected built_in = \"NAME\"",
    ),
    ("pattern = \"sorted {} lines/s\"", "pattern = \"sorted\"", "expected exactly one {}"),
    (
        "better = \"higher\"",
        "better = \"good\"",
        "metric: better: expected one of lower, higher, neither, found \"good\"",
    ),
    ("better = \"higher\"", "bettor = \"higher\"", "metric: unknown key `bettor`"),
    ("thp = \"madvise\"", "thp = \"sometimes\"", "variant \"a\": thp: expected one of never-prctl"),
    ("thp = \"madvise\"", "thp = \"never-prctl\"", "disables huge pages even for advised memory"),
    (
        "thp = \"madvise\"",
        "plan = \"\"",
        "variant \"a\": plan is empty; expected a plan file from `pagelab plan`",
    ),
    ("thp = \"madvise\"", "plan = [\"x\"]", "variant \"a\": plan: expected a quoted string, found a list"),
    ("thp = \"madvise\"", "thp = \"advised-only\"\nplan = \"all\"", "hint: remove thp"),
    (
        "advise = \"huge\"",
        "arguments = [\"-r\"]",
        "apply only to commands; hint: use `options` for other workloads",
    ),
    (
        "input = \"a million numbers\"",
        "exit_codes = 1",
        "exit_codes: expected a list of numbers from 0 to 255",
    ),
    (
        "input = \"a million numbers\"",
        "exit_codes = [256]",
        "exit_codes: expected a list of numbers from 0 to 255",
    ),
    ("advise = \"huge\"", "options = { steps = 7 }", "options.steps does not apply to commands"),
    ("advise = \"huge\"", "hog = { size = \"1G\", how = \"thread\" }", "works only with built-in workloads"),
    ("name = \"b\"", "name = \"a\"\nthp = \"x\"", "variant \"a\": thp: expected one of"),
    ("mthp = { 1M", "mthp = { huge", "mthp: expected a size, for example 64K, found \"huge\""),
    (
        "64K = \"madvise\"",
        "64K = \"on\"",
        "mthp: expected one of always, madvise, inherit, never, found \"on\"",
    ),
    ("memory_limit = \"512M\"", "memory_limit = 512", "memory_limit: expected a quoted string"),
    (
        "memory_limit = \"512M\"",
        "memory_limit = \"512X\"",
        "memory_limit: unknown unit; expected a size, for example 64M or 1.5GiB, found \"512X\"",
    ),
    ("swap = \"2G\"", "swap = \"much\"", "swap: expected \"none\" or a size, for example 2G, found \"much\""),
    ("swap = \"2G\"", "swap = true", "variant \"b\": swap: expected a quoted string, found true or false"),
    (
        "memory_limit = \"512M\"\n",
        "",
        "variant \"b\": swap requires memory_limit: without a limit nothing would be swapped",
    ),
    ("loss = 0.1", "loss = 5", ":9: loss: expected a share from 0 to 1"),
    ("loss = 0.1", "loss = 0", ":9: loss: 0 cannot be distinguished from no loss"),
    ("target = 0.8", "target = 8", "fragmentation: target: expected a share from 0 to 1"),
    ("order = 9, ", "order = 0, ", "fragmentation: order: expected an integer from 1 to 63"),
    ("hog = { size = \"1G\" }", "hog = {}", "variant \"b\": hog: size is missing"),
    ("hog = { size = \"1G\" }", "hog = { size = \"1G\", leaves = \"1M\" }", "cannot be used together"),
    ("hog = { size = \"1G\" }", "hog = { leaves = \"512M\" }", "less than memory_limit"),
    ("memory_limit = \"512M\"", "hgo = {}", "unknown key `hgo`"),
    ("pin = true", "pin = 1", "variant \"b\": pin: expected true, false or \"if-two\", found a number"),
    (
        "page_cache = \"cold\"",
        "page_cache = \"tepid\"",
        "page_cache: expected one of warm, cold, found \"tepid\"",
    ),
    ("page_cache = \"cold\"", "workloads = [\"sort\"]", "`workloads` cannot restrict the baseline"),
    ("LC_ALL = \"C\"", "LC_ALL = [1]", "environment: LC_ALL: expected a string or a number, found a list"),
    ("[[workload]]\nbuilt_in", "[[work]]\nbuilt_in", "unknown key `work`"),
    ("\"kmem:mm_page_alloc\"", "\"kmem\"", ":10: probes: unknown probe `kmem`; expected all, hardware"),
    ("[quick]", "[quick", "docs/recipes.md"),
];

#[test]
fn bad_recipes_are_refused_with_file_line_and_key() {
    for (line, instead, said) in BAD {
        assert!(GOOD.contains(line), "{line:?} is a line of the good one");
        let text = GOOD.replacen(line, instead, 1);
        let error = Recipe::parse("bad.toml", &text).expect_err(instead).to_string();
        assert!(error.contains(said), "{instead}:\n{error}");
        assert!(error.lines().all(|line| line.starts_with("bad.toml:")), "{error}");
    }
}

#[test]
fn all_that_is_wrong_is_told_at_once_in_the_order_of_lines() {
    let text = "name = \"x\"\nplace = \"sim\"\ntwist = 1\n[[variant]]\nname = \"v\"\nthp = \"y\"\n";
    let error = Recipe::parse("x.toml", text).unwrap_err();
    let lines: Vec<usize> = error.problems.iter().map(|problem| problem.line).collect();
    assert!(lines.is_sorted() && lines.len() >= 4, "{error}");
}

#[test]
fn what_stands_twice_is_named() {
    for (what, name) in [("workload", "chase"), ("variant", "a")] {
        let text = match what {
            "workload" => GOOD.replacen("name = \"sort\"", "name = \"chase\"", 1),
            _ => GOOD.replacen("name = \"b\"", "name = \"a\"", 1).replacen("baseline = \"b\"", "", 1),
        };
        let error = Recipe::parse("x.toml", &text).unwrap_err().to_string();
        assert!(error.contains(&format!("{what} {name:?} is defined twice")), "{error}");
    }
}

#[test]
fn recipes_that_come_with_pagelab_are_good_also_in_a_hurry() {
    for built_in in BUILT_IN_RECIPES {
        let recipe = Recipe::parse("built in", built_in.text).unwrap_or_else(|bad| panic!("{bad}"));
        assert_eq!(recipe.name, built_in.name);
        assert!(recipe.explanation.lines().count() > 3, "{}", built_in.name);
        let is_wide = |line: &&str| line.chars().count() > 80;
        assert_eq!(recipe.explanation.lines().find(is_wide), None, "a terminal has 80 columns");
        let quick = recipe.into_quick();
        assert!(!quick.workloads.is_empty() && !quick.variants.is_empty(), "{}", built_in.name);
        assert!(quick.baseline < quick.variants.len(), "{}", built_in.name);
    }
}
