//! A long command is not silent where standard error is no terminal.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail where they stand")]

mod support;

use std::io::{BufRead, BufReader};

use support::Lab;
use support::running::KillOnDrop;

/// Each command is silent for ten seconds, all at the same time.
#[test]
fn a_command_that_is_silent_for_ten_seconds_says_what_it_does() {
    let lab = Lab::new();
    lab.write(
        "wait.toml",
        "name = \"wait\"\nquestion = \"?\"\nrepeats = 3\nwarm_up = 0\ntwins = false\n\
         [[workload]]\nname = \"sleep\"\ncommand = [\"sleep\", \"600\"]\n[[variant]]\nname = \"a\"\n",
    );
    let cases: [(&[&str], &str); 5] = [
        (&["run", "wait.toml", "-o", "r.pagelab"], ": round 1, trial 1 of 3: sleep, a"),
        (&["record", "--for", "600s", "-o", "w.pagelab"], " of 10 min 0 s   "),
        (
            &["profile", "--source", "accessed", "--for", "600s", "-o", "p.pagelab", "--", "sleep", "600"],
            ": profiling sleep, source accessed, about 9 min ",
        ),
        (&["tune", "-o", "t.pagelab", "--", "sleep", "600"], ": profiling sleep, source "),
        (&["sim", "compare", "--seeds", "1000", "--threads", "1"], ": compare: "),
    ];
    let started = cases.map(|(words, said)| {
        let mut child = KillOnDrop(lab.command(words).env("PATH", "/usr/bin:/bin").spawn().unwrap(), None);
        let lines = BufReader::new(child.0.stderr.take().unwrap()).lines();
        (child, lines, words, said)
    });
    for (child, lines, words, said) in started {
        let mut seen = Vec::new();
        let is_progress = |line: &String| line.starts_with("note: after ");
        let line = lines.map_while(Result::ok).inspect(|line| seen.push(line.clone())).find(is_progress);
        let line = line.unwrap_or_else(|| panic!("{words:?} ended: {seen:?}"));
        assert!(line.contains(said), "{words:?}: {line}");
        if words[0] == "sim" {
            let size = "note: compare: 4000 simulations: 4 configurations with 1000 seeds each; 1 at a time";
            let plain = seen[0].replace('\u{202f}', "");
            assert_eq!(plain, size, "its size comes first");
        }
        drop(child);
    }
}
