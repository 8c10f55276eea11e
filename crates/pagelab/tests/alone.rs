//! Tests of the binary alone: copied to an empty directory, without an environment, every command works.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand

#[path = "support/binary.rs"]
mod binary;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use binary::binary;

/// How to run a command so that it changes nothing outside of the folder it runs in.
struct ReadOnly {
    /// The command's name, as `pagelab --help` lists it.
    name: &'static str,
    /// Its arguments, one run for each list.
    runs: &'static [&'static [&'static str]],
    /// The exit codes that are right on every machine.
    codes: &'static [i32],
    /// What a run leaves in the folder.
    leaves: &'static [&'static str],
}

/// Every command of pagelab. A new one gets a line here, and another where a run leaves something else.
const COMMANDS: &[ReadOnly] = &[
    ReadOnly { name: "checkup", runs: &[&[], &["-v"], &["--json"]], codes: &[0], leaves: &[] },
    ReadOnly { name: "checkup", runs: &[&["--html", "report.html"]], codes: &[0], leaves: &["report.html"] },
    ReadOnly { name: "checkup", runs: &[&["-o", "a.pagelab"]], codes: &[0], leaves: &["a.pagelab"] },
    // What it shows of a file that is there stands below.
    ReadOnly { name: "tune", runs: &[&["--dry-run", "--", "true"]], codes: &[0], leaves: &[] },
    ReadOnly {
        name: "sim",
        runs: &[&["bench", "--memory", "128M", "--pairs", "1000", "--turns", "1"], &["demo"]],
        codes: &[0],
        leaves: &[],
    },
    ReadOnly {
        name: "sim",
        runs: &[
            &["list"],
            &["list", "churn"],
            &["compare", "--machine", "64M", "--load", "churn", "--set", "pairs=500", "--seeds", "2"],
            &["run", "churn", "--machine", "64M", "--set", "pairs=500", "--json"],
        ],
        codes: &[0],
        leaves: &[],
    },
    ReadOnly {
        name: "sim",
        runs: &[&["sweep", "--machine", "64M", "--load", "churn", "--grid", "pairs=100,200"]],
        codes: &[0],
        leaves: &["sweep-1.pagelab"],
    },
    ReadOnly { name: "sim", runs: &[&["demo", "--html", "d.html"]], codes: &[0], leaves: &["d.html"] },
    ReadOnly { name: "trace", runs: &[&["info", "none.pagelab"]], codes: &[3], leaves: &[] },
    ReadOnly { name: "sim", runs: &[&["replay", "none.pagelab"]], codes: &[3], leaves: &[] },
    ReadOnly { name: "report", runs: &[&["none.pagelab"]], codes: &[3], leaves: &[] },
    ReadOnly { name: "import", runs: &[&["-o", "day.pagelab", "none"]], codes: &[3], leaves: &[] },
    ReadOnly { name: "compare", runs: &[&["none.pagelab", "no.pagelab"]], codes: &[3], leaves: &[] },
    ReadOnly { name: "usage", runs: &[&["none.pagelab"]], codes: &[3], leaves: &[] },
    ReadOnly {
        name: "map",
        runs: &[&[], &["--json"], &["--check"], &["--layout", "hilbert", "--letters"]],
        codes: &[0, 4],
        leaves: &[],
    },
    ReadOnly { name: "map", runs: &[&["-o", "m.png"]], codes: &[0, 4], leaves: &["m.png"] },
    ReadOnly {
        name: "map",
        runs: &[&["--diff", "now", "now", "-o", "m.svg"]],
        codes: &[0, 4],
        leaves: &["m.svg"],
    },
    ReadOnly { name: "frag", runs: &[&[], &["--explain"], &["--json"]], codes: &[0, 4], leaves: &[] },
    ReadOnly { name: "can", runs: &[&["1"], &["1", "--json"]], codes: &[0, 1, 4], leaves: &[] },
    ReadOnly {
        name: "compact",
        runs: &[&["--dry-run"], &["--dry-run", "--json", "--drop-caches", "page"]],
        codes: &[0, 4],
        leaves: &[],
    },
    // 2: a machine whose memory is broken up already cannot be planned for.
    ReadOnly {
        name: "fragment",
        runs: &[
            &["--target", "0.9", "--dry-run"],
            &["--target", "0.9", "--dry-run", "--json"],
            &["random", "--dry-run"],
            &["random", "--dry-run", "--json", "--thp"],
            &["procedure", "--size", "900T"],
            &["--unmovable", "5%", "--flavour", "pipes,sockets,pagetables,dentries", "--dry-run"],
        ],
        codes: &[0, 2, 4],
        leaves: &[],
    },
    ReadOnly {
        name: "capture",
        runs: &[&["saved.tar.zst", "--without-kpageflags"]],
        codes: &[0],
        leaves: &["saved.tar.zst"],
    },
    ReadOnly {
        name: "guest",
        runs: &[
            &["run", "--dry-run", "--cache", "none", "--", "checkup"],
            &["run", "--dry-run", "--json", "--cache", "none", "--", "checkup"],
        ],
        codes: &[0],
        leaves: &[],
    },
    ReadOnly {
        name: "record",
        runs: &[&["-o", "day.pagelab", "--every", "100ms", "--for", "300ms"]],
        codes: &[0],
        leaves: &["day.pagelab"],
    },
    // Without a terminal it says what to do instead; a recording that is not there is none.
    ReadOnly {
        name: "watch",
        runs: &[&["--once", "--every", "100ms"], &["--once", "--width", "200", "--height", "60"]],
        codes: &[0],
        leaves: &[],
    },
    ReadOnly { name: "watch", runs: &[&[]], codes: &[4], leaves: &[] },
    ReadOnly {
        name: "workload",
        runs: &[&[], &["--json"], &["chase", "--size", "1M", "--steps", "1000"]],
        codes: &[0],
        leaves: &[],
    },
    ReadOnly { name: "watch", runs: &[&["--once", "none.pagelab"]], codes: &[3], leaves: &[] },
    ReadOnly {
        name: "run",
        runs: &[&["thp", "--dry-run"], &["thp", "--quick", "--dry-run", "--json"]],
        codes: &[0],
        leaves: &[],
    },
    ReadOnly {
        name: "recipes",
        runs: &[&[], &["--json"], &["show", "thp"], &["explain", "fragmentation-cost"]],
        codes: &[0],
        leaves: &[],
    },
    ReadOnly { name: "profile", runs: &[&["show", "none.pagelab"]], codes: &[3], leaves: &[] },
    ReadOnly { name: "plan", runs: &[&["none.pagelab"]], codes: &[3, 4], leaves: &[] },
    // 0: nothing has to be huge for it.
    ReadOnly {
        name: "apply",
        runs: &[&["all", "--dry-run", "--", "true"], &["none", "--dry-run", "--", "true"]],
        codes: &[0],
        leaves: &[],
    },
    ReadOnly { name: "restore", runs: &[&["--dry-run"]], codes: &[0, 4], leaves: &[] },
];

/// A folder with a copy of the binary in it and nothing else.
struct Alone {
    folder: tempfile::TempDir,
}

impl Alone {
    fn new() -> Alone {
        let folder = tempfile::tempdir().unwrap();
        fs::copy(binary(), folder.path().join("pagelab")).unwrap();
        Alone { folder }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.folder.path().join("pagelab"));
        command.args(arguments).env_clear().env("PATH", "/usr/bin:/bin");
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        loop {
            match command.output() {
                // A test beside this one was just starting a program, which holds our copy open for
                // writing until it is running.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                output => return output.unwrap(),
            }
        }
    }

    /// Standard output of a run that ends with 0 and warns of nothing.
    fn good(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let (stdout, stderr) = texts(&output);
        assert_eq!(output.status.code(), Some(0), "pagelab {arguments:?}\n{stdout}{stderr}");
        assert_eq!(stderr, "", "pagelab {arguments:?}");
        stdout
    }

    /// What lies in the folder besides the binary; it is taken away.
    fn take_left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        let mut left: Vec<PathBuf> = entries.filter(|path| name(path) != "pagelab").collect();
        left.sort();
        for path in &left {
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
        }
        left.iter().map(|path| name(path)).collect()
    }

    /// The commands that `pagelab --help` lists.
    fn commands(&self) -> Vec<String> {
        let help = self.good(&["--help"]);
        // Commands are listed by task, below a heading each; options have a heading of their own.
        let listed = help.lines().take_while(|line| *line != "Options:");
        // The second line of a description is indented further.
        let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
    }
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("output is UTF-8");
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn every_command_has_help_and_runs_alone() {
    let alone = Alone::new();
    let mut commands = alone.commands();
    assert!(commands.contains(&"frag".to_owned()), "no commands found in the help: {commands:?}");
    commands.retain(|name| name != "help");
    let mut known: BTreeMap<&str, Vec<&ReadOnly>> = BTreeMap::new();
    COMMANDS.iter().for_each(|command| known.entry(command.name).or_default().push(command));
    for name in &commands {
        assert!(alone.good(&[name, "--help"]).contains("Usage: pagelab"), "{name}");
        let lines = known.get(name.as_str());
        let lines =
            lines.unwrap_or_else(|| panic!("`{name}` has no line in COMMANDS: how is it run read-only?"));
        for (command, run) in lines.iter().flat_map(|line| line.runs.iter().map(move |run| (line, run))) {
            let arguments = [&[name.as_str()], *run].concat();
            let output = alone.run(&arguments);
            let (stdout, stderr) = texts(&output);
            let code = output.status.code();
            let right = code.is_some_and(|code| command.codes.contains(&code));
            assert!(right, "pagelab {arguments:?} ended with {code:?}\n{stdout}{stderr}");
            assert!(!stdout.is_empty() || !stderr.is_empty(), "pagelab {arguments:?} says nothing");
            let leaves: &[&str] = if code == Some(0) { command.leaves } else { &[] };
            assert_eq!(alone.take_left(), leaves, "left behind by pagelab {arguments:?}");
        }
    }
    for name in known.keys() {
        assert!(
            commands.iter().any(|listed| listed == name),
            "COMMANDS has `{name}`, `pagelab --help` has not"
        );
    }
}

#[test]
fn a_run_file_is_written_and_shown_alone() {
    let alone = Alone::new();
    alone.good(&["checkup", "--run", "a.pagelab"]);
    for more in [&[][..], &["-v"], &["--json"], &["--html", "a.html"], &["--tables", "tables"]] {
        assert!(!alone.good(&[&["report", "a.pagelab"], more].concat()).is_empty(), "{more:?}");
    }
    assert_eq!(alone.take_left(), ["a.html", "a.pagelab", "tables"]);
}

#[test]
fn the_version_is_that_of_the_package() {
    let version = format!("pagelab {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(Alone::new().good(&["--version"]), version);
    assert_eq!(Alone::new().good(&["-V"]), version, "this one is the parser's");
}

#[test]
fn an_invalid_command_line_exits_with_2() {
    let alone = Alone::new();
    for arguments in [&["no-such-command"][..], &["frag", "--no-such-option"], &["--no-such-option"], &[]] {
        let output = alone.run(arguments);
        let (stdout, stderr) = texts(&output);
        assert_eq!((output.status.code(), stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(!stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn the_binary_is_self_contained() {
    let file = fs::read(binary()).unwrap();
    assert_eq!(needs(&file), Ok(vec![]), "it must be static: .cargo/config.toml sets crt-static");
    // A program of the system answers otherwise, so the question is not idle.
    if let Ok(dynamic) = fs::read("/bin/ls") {
        assert_eq!(needs(&dynamic), Ok(vec!["an interpreter", "shared libraries"]));
    }
    assert!(needs(b"\x7fELF").is_err() && needs(b"#!/bin/sh").is_err());
}

/// What an ELF file for 64 bits, little endian, wants from elsewhere.
fn needs(file: &[u8]) -> Result<Vec<&'static str>, &'static str> {
    const INTERPRETER: u64 = 3; // PT_INTERP
    const DYNAMIC: u64 = 2; // PT_DYNAMIC
    const NEEDED: u64 = 1; // DT_NEEDED
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return Err("not an ELF file of 64 bits, little endian");
    }
    let number = |at: u64, bytes: usize| {
        let at = usize::try_from(at).map_err(|_| "cut off")?;
        let bytes = file.get(at..at + bytes).ok_or("cut off")?;
        Ok::<u64, &'static str>(bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
    };
    let (table, entry, entries) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut needs = Vec::new();
    for header in (0..entries).map(|index| table + index * entry) {
        let (offset, size) = (number(header + 8, 8)?, number(header + 32, 8)?);
        match number(header, 4)? {
            INTERPRETER => needs.push("an interpreter"),
            DYNAMIC => {
                for tag in (offset..offset + size).step_by(16) {
                    if number(tag, 8)? == NEEDED {
                        needs.push("shared libraries");
                    }
                }
            }
            _ => {}
        }
    }
    needs.dedup();
    Ok(needs)
}
