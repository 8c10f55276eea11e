//! Error messages of the real binary: one row for each command and kind of error.
#![allow(clippy::unwrap_used, reason = "a test panics to fail")]

mod support;

use expect_test::expect_file;
use support::Lab;

/// Command lines; the machine does not matter to their errors.
const LINES: [&str; 38] = [
    // A missing input file.
    "report none.pagelab",
    "compare none.pagelab other.pagelab",
    "usage none.pagelab",
    "watch --once none.pagelab",
    "frag --from none",
    "can 1 --from none.pagelab",
    "checkup --root none",
    "plan none.pagelab",
    "apply none.toml -- true",
    "import -o i.pagelab none",
    "run none/recipe.toml",
    "run --resume none.pagelab",
    "sim replay none.pagelab",
    "trace info none.pagelab",
    "profile show none.pagelab",
    "map none.pagelab@first",
    // A file of another kind.
    "report text",
    "plan text",
    "compare text text",
    // An output that exists, and a directory that does not.
    "checkup -o text",
    "checkup --html text",
    "record -o text --for 1s",
    "sim demo --html text",
    "sim compare --load churn -o text",
    "apply none --summary text -- true",
    "sim demo --html none/a.html",
    "record -o none/a.pagelab --for 1s",
    "sim demo --html -",
    "sim demo --html .",
    // A process that does not exist.
    "map --pid 4194305",
    "map --pid 4194305 --explain",
    "apply none --pid 4194305",
    "record -o a.pagelab --metrics processes=4194305",
    // A program that does not exist.
    "apply none -- /none/such",
    // A missing word.
    "apply none",
    "tune",
    "checkup -o a --html a",
    "compare text",
];

/// Each option of each command with a value that it does not take.
const BAD_VALUES: &str = include_str!("error_lines.txt");

#[test]
fn errors_have_one_grammar() {
    let lab = Lab::new();
    lab.write("text", "no run file\n");
    let mut all = String::new();
    for line in LINES.into_iter().chain(BAD_VALUES.lines()) {
        let ran = lab.run(&line.split(' ').collect::<Vec<_>>());
        // A user without rights is warned of what is not recorded.
        let errors: Vec<&str> = ran.err.lines().filter(|line| !line.contains(" is not recorded: ")).collect();
        let errors = errors.iter().map(|line| format!("{line}\n")).collect::<String>();
        all.push_str(&format!("$ pagelab {line}\n{}{errors}exit {}\n\n", ran.out, ran.code.unwrap()));
    }
    expect_file!["snapshots/error_messages.txt"].assert_eq(&all);
    assert_eq!(std::fs::read_dir(lab.path()).unwrap().count(), 1, "nothing is left");
}

/// Commands that change nothing, need no file and end soon; others are only parsed (`src/cli.rs`).
const RUN: &[&str] = &[
    "pagelab checkup",
    "pagelab frag",
    "pagelab can ",
    "pagelab recipes",
    "pagelab workload",
    "pagelab sim list",
    "pagelab run thp --dry-run",
    "pagelab compact --dry-run",
    "pagelab fragment --target",
    "pagelab restore --dry-run",
    "pagelab map",
    "pagelab sim demo",
];
/// What runs longer, changes the machine, or reads a file that an empty directory has not.
const NOT_RUN: &[&str] = &[
    "--probe",
    "--really",
    ".tar",
    "--from",
    "--root",
    "--pid",
    "@",
    ".pagelab",
    ".toml",
    "--hold",
    "--unmovable",
    " -- ",
    "--interactive",
    "workload ",
    "|",
];

#[test]
fn examples_of_the_help_run_in_an_empty_directory() {
    let help = include_str!("snapshots/help.txt");
    let examples =
        help.lines().filter(|line| line.starts_with("  pagelab ")).map(|line| line[2..].split("  ").next());
    let mut examples: Vec<&str> = examples.flatten().map(str::trim_end).collect();
    examples.sort_unstable();
    examples.dedup();
    let is_run = |example: &&&str| {
        let is_dry = !example.starts_with("pagelab fragment") || example.contains("--dry-run");
        RUN.iter().any(|start| example.starts_with(start))
            && is_dry
            && !NOT_RUN.iter().any(|word| example.contains(word))
    };
    let run: Vec<&str> = examples.iter().filter(is_run).copied().collect();
    assert!(run.len() >= 12, "{run:?}");
    for example in run {
        let lab = Lab::new();
        let ran = lab.run(&example.split(' ').skip(1).collect::<Vec<_>>());
        // A denied answer is one; without root some sources are not available.
        assert!(matches!(ran.code, Some(0 | 1 | 4)), "{example}: {:?}\n{}", ran.code, ran.err);
        assert!(!ran.out.is_empty() || !ran.err.is_empty(), "{example} says nothing");
    }
}
