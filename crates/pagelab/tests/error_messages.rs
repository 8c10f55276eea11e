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

#[test]
fn errors_have_one_grammar() {
    let lab = Lab::new();
    lab.write("text", "no run file\n");
    let mut all = String::new();
    for line in LINES {
        let ran = lab.run(&line.split(' ').collect::<Vec<_>>());
        // A user without rights is warned of what is not recorded.
        let errors: Vec<&str> = ran.err.lines().filter(|line| !line.contains(" is not recorded: ")).collect();
        let errors = errors.iter().map(|line| format!("{line}\n")).collect::<String>();
        all.push_str(&format!("$ pagelab {line}\n{}{errors}exit {}\n\n", ran.out, ran.code.unwrap()));
    }
    expect_file!["snapshots/error_messages.txt"].assert_eq(&all);
    assert_eq!(std::fs::read_dir(lab.path()).unwrap().count(), 1, "nothing is left");
}
