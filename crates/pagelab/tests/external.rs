//! Tests of external workloads: set-up with stand-ins for apt and dpkg, runs that are killed or lie, and real
//! runs of installed ones.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail where they stand")]
#![allow(clippy::print_stderr, reason = "a skipped check says so")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

use pagelab_model::experiment::TrialEnd;
use serde_json::Value;
use support::Lab;
use support::running::wait_until;

/// What apt would install for `made-up`: one package that is there and one that it needs.
const GET: &str = r#"#!/bin/sh
case "$*" in
*--simulate*)
    echo "Inst made-up-data (2.0 Debian:1 [all])"
    echo "Inst made-up (1:2.5-1 Debian:1 [amd64])" ;;
*)
    for last; do :; done
    echo x >>"$STAGE/fetched"
    echo package >"${last%%=*}.deb" ;;
esac
"#;

const CACHE: &str = r#"#!/bin/sh
shift
for name; do
    echo "Package: ${name%%=*}"
    echo "Version: ${name#*=}"
    echo "Size: 8"
    echo "SHA256: ab"
    echo
done
"#;

const UNPACK: &str = r#"#!/bin/sh
mkdir -p "$3/usr/bin"
cat >"$3/usr/bin/made-up" <<'PROGRAM'
#!/bin/sh
case "$1" in
--version) echo "made-up 2.5" ;;
*) cat "$1/data"; echo "rate 12.5 1/s"; echo "sum abc" ;;
esac
PROGRAM
chmod +x "$3/usr/bin/made-up"
"#;

const MADE_UP: &str = r#"
name = "mine"
about = "a program that no machine has"
input = "{keys} keys"
packages = ["made-up"]
data_options = ["keys"]
prepare = ["sh", "{files}/prepare.sh", "{keys}"]
command = ["made-up", "{data}"]
metric_name = "rate"
metric = { pattern = "rate {} 1/s", unit = "1/s", better = "higher" }
checksum = "sum "
quick = { keys = 3 }
[[program]]
name = "made-up"
least = "2.1"
[[option]]
name = "keys"
kind = "number"
default = "7"
help = "How many"
"#;

/// A directory with stand-ins for programs of the distribution.
struct Stage(Lab);

impl Stage {
    fn new() -> Stage {
        let stage = Stage(Lab::new());
        for (name, script) in [("apt-get", GET), ("apt-cache", CACHE), ("dpkg-deb", UNPACK)] {
            stage.program(name, script);
        }
        stage.0.write("mine.toml", MADE_UP);
        stage.0.write("mine/prepare.sh", "echo \"$1 keys\" >data\n");
        stage
    }

    fn program(&self, name: &str, script: &str) {
        self.0.write(&format!("bin/{name}"), script);
        let path = self.0.path().join("bin").join(name);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.0.command(arguments);
        let path = format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", self.0.path().join("bin").display());
        command.env("PATH", path).env("STAGE", self.0.path()).env("XDG_CACHE_HOME", self.cache());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn cache(&self) -> PathBuf {
        self.0.path().join("cache")
    }

    /// Entries of a workload's directory, except locks.
    fn entries(&self, of: &str) -> Vec<String> {
        let folder = self.cache().join("pagelab/external").join(of);
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name != ".lock").collect();
        names.sort();
        names
    }
}

fn check(output: &Output, code: i32, said: &str) -> String {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    assert!(out.contains(said) || err.contains(said), "{said}:\n{out}{err}");
    out
}

fn signal(child: &Child, signal: &str) {
    let killed = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
}

/// Whether a process has this word in its command line.
fn lives(word: &str) -> bool {
    let pids = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path().join("cmdline"));
    let has = |path: PathBuf| {
        let line = fs::read(path).unwrap_or_default();
        line.split(|&byte| byte == 0).any(|found| found == word.as_bytes())
    };
    pids.into_iter().any(has)
}

#[test]
fn missing_programs_are_fetched_unpacked_and_run_after_the_setup() {
    let stage = Stage::new();
    let hint = "error: the workload is not set up\nhint: run `pagelab workload setup ./mine.toml`\n";
    check(&stage.run(&["workload", "./mine.toml"]), 4, hint);
    check(&stage.run(&["workload", "setup", "./mine.toml"]), 0, "mine: ready, 2 packages");
    assert_eq!(fs::read_to_string(stage.0.path().join("fetched")).unwrap(), "x\nx\n");
    assert_eq!(stage.entries("mine/data").len(), 2, "for the default and the quick options");
    let out = check(&stage.run(&["workload", "./mine.toml", "--quick"]), 0, "3 keys");
    let said: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((said["merit"]["value"].as_f64(), said["checksum"].as_str()), (Some(12.5), Some("abc")));
    assert_eq!((said["options"]["keys"].as_u64(), said["generated"].as_str()), (Some(3), Some("3 keys")));
    assert_eq!(said["packages"][1]["version"], "1:2.5-1");
    check(&stage.run(&["workload", "./mine.toml", "--keys", "5"]), 0, "5 keys");
    assert_eq!(stage.entries("mine/data").len(), 3);
    assert_eq!(stage.entries("mine/trials"), Vec::<String>::new());
    // Nothing is downloaded twice, unless requested or after a change of the manifest.
    check(&stage.run(&["workload", "setup", "./mine.toml"]), 0, "ready");
    assert_eq!(fs::read_to_string(stage.0.path().join("fetched")).unwrap(), "x\nx\n");
    check(&stage.run(&["workload", "setup", "./mine.toml", "--again", "--json"]), 0, "workload_setup");
    assert_eq!(fs::read_to_string(stage.0.path().join("fetched")).unwrap(), "x\nx\nx\nx\n");
    stage.0.write("mine/prepare.sh", "echo \"$1 other keys\" >data\n");
    check(&stage.run(&["workload", "./mine.toml"]), 4, "not set up");
}

#[test]
fn programs_in_path_are_used_if_they_are_new_enough() {
    let stage = Stage::new();
    let program = |version: &str| {
        format!("#!/bin/sh\n[ \"$1\" = --version ] && echo made-up {version} || echo 'rate 3 1/s\nsum x'\n")
    };
    stage.program("made-up", &program("2.0.9"));
    check(&stage.run(&["workload", "setup", "./mine.toml"]), 0, "2 packages");
    stage.program("made-up", &program("2.1"));
    check(&stage.run(&["workload", "setup", "./mine.toml", "--again"]), 0, "installed programs");
    check(&stage.run(&["workload", "./mine.toml"]), 0, "\"value\":3.0");
}

#[test]
fn a_killed_setup_is_discarded_and_repeated() {
    let stage = Stage::new();
    stage.program("dpkg-deb", "#!/bin/sh\ntouch \"$STAGE/unpacking\"\nsleep 600\n");
    let mut child = stage.command(&["workload", "setup", "./mine.toml"]).spawn().unwrap();
    wait_until("the unpacking", || stage.0.path().join("unpacking").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(stage.entries("mine/programs").iter().all(|name| name.starts_with(".partial-")));
    check(&stage.run(&["workload", "./mine.toml"]), 4, "not set up");
    stage.program("dpkg-deb", UNPACK);
    // The data are cut off as well.
    stage.0.write("mine/prepare.sh", "echo half >data\ntouch \"$STAGE/preparing\"\nsleep 600\n");
    let mut child = stage.command(&["workload", "setup", "./mine.toml"]).spawn().unwrap();
    wait_until("the preparation", || stage.0.path().join("preparing").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(stage.entries("mine/data").iter().all(|name| name.starts_with(".partial-")));
    stage.0.write("mine/prepare.sh", "echo whole >data\n");
    check(&stage.run(&["workload", "setup", "./mine.toml"]), 0, "ready");
    check(&stage.run(&["workload", "./mine.toml"]), 0, "whole");
    let left = [stage.entries("mine/programs"), stage.entries("mine/data")].concat();
    assert!(left.iter().all(|name| !name.starts_with('.')), "{left:?}");
}

#[test]
fn failures_of_a_setup_are_reported_with_a_hint() {
    let stage = Stage::new();
    let fails = |program: &str, script: &str, code: i32, said: &str| {
        let before = fs::read_to_string(stage.0.path().join("bin").join(program)).unwrap();
        stage.program(program, &format!("#!/bin/sh\n{script}\n"));
        let output = stage.run(&["workload", "setup", "./mine.toml"]);
        stage.program(program, &before);
        check(&output, code, said);
        assert_eq!(stage.entries("mine/programs"), Vec::<String>::new(), "{script}");
    };
    fails(
        "apt-get",
        "echo 'E: Unable to locate package made-up' >&2; exit 100",
        4,
        "`apt-get update` as root",
    );
    let get = GET.trim_start_matches("#!/bin/sh\n");
    let no_network = get.replace("echo package", "echo 'E: Could not connect to mirror' >&2; exit 100; echo");
    fails("apt-get", &no_network, 4, "Could not connect to mirror\nhint: check the network, or");
    let full = "echo 'tar: No space left on device' >&2; exit 2";
    fails("dpkg-deb", full, 5, "move the cache with XDG_CACHE_HOME");
    fails("dpkg-deb", "true", 4, "made-up");
    fails("apt-cache", "true", 4, "apt-get would install it, but apt-cache does not list it");
    let mut nowhere = stage.command(&["workload", "setup", "./mine.toml"]);
    check(&nowhere.env("XDG_CACHE_HOME", "/dev/null/x").output().unwrap(), 5, "cannot use /dev/null/x");
    let mut nowhere = stage.command(&["workload", "setup", "./mine.toml"]);
    let nowhere = nowhere.env_remove("XDG_CACHE_HOME").output().unwrap();
    check(&nowhere, 4, "neither XDG_CACHE_HOME nor HOME is set");
    stage.0.write("huge.toml", format!("space = \"900000000G\"\n{MADE_UP}"));
    check(&stage.run(&["workload", "setup", "./huge.toml"]), 5, "B free\nhint: free disk space");
    fs::remove_file(stage.0.path().join("bin/apt-get")).unwrap();
    let mut without = stage.command(&["workload", "setup", "./mine.toml"]);
    let bin = stage.0.path().join("bin");
    check(&without.env("PATH", &bin).output().unwrap(), 4, "cannot find apt-get");
    stage.0.write("mine/prepare.sh", "echo oh no >&2; exit 3\n");
    stage.program("apt-get", GET);
    check(&stage.run(&["workload", "setup", "./mine.toml"]), 4, "cannot create the data for mine: oh no");
    check(&stage.run(&["workload", "setup", "no-such-one"]), 2, "unknown external workload");
    check(&stage.run(&["workload", "no-such-one"]), 2, "unknown workload `no-such-one`");
    check(&stage.run(&["workload", "./none.toml"]), 3, "cannot read the manifest ./none.toml");
    stage.0.write("bad.toml", "name = 3\n");
    check(&stage.run(&["workload", "./bad.toml"]), 3, "./bad.toml:1: name: expected");
}

/// A manifest of one shell script.
fn scripted(stage: &Stage, script: &str) {
    let manifest = "name = \"scripted\"\nabout = \"a script\"\ncommand = [\"sh\", \"{files}/run.sh\"]\n\
                    metric_name = \"rate\"\nmetric = { pattern = \"rate {}\", unit = \"1/s\" }\n\
                    [[program]]\nname = \"sh\"\n";
    stage.0.write("scripted.toml", manifest);
    stage.0.write("scripted/run.sh", script);
}

#[test]
fn runs_that_lie_fail_or_leave_processes_are_reported() {
    let stage = Stage::new();
    for (script, code, said) in [
        ("echo rate 7", 0, "\"value\":7.0"),
        ("echo rate 7; exit 3", 5, "failed with exit code 3"),
        ("echo rate 7; kill -SEGV $$", 5, "was killed: signal: 11"),
        ("echo rate fast", 5, "no rate: expected a number, found \"fast\""),
        ("true", 5, "no rate: no line of its output matches"),
        ("echo rate 7; exit 70", 70, "wrong result"),
        ("sleep 83.25 & setsid sleep 83.25 & echo rate 7", 5, "left 2 processes, which were killed"),
        ("yes | head -c 300000; echo; echo rate 8 >&2", 0, "\"value\":8.0"),
    ] {
        scripted(&stage, script);
        check(&stage.run(&["workload", "./scripted.toml"]), code, said);
        assert_eq!(stage.entries("scripted/trials"), Vec::<String>::new(), "{script}");
    }
    assert!(!lives("83.25"));
}

#[test]
fn a_run_that_is_ended_leaves_nothing() {
    let stage = Stage::new();
    let tied = "setpriv --pdeathsig KILL sleep";
    scripted(&stage, &format!("touch data\n{tied} 84.125 &\n{tied} 84.125\necho rate 1\n"));
    let begin = || {
        let child = stage.command(&["workload", "./scripted.toml"]).spawn().unwrap();
        wait_until("the run", || lives("84.125") && stage.entries("scripted/trials").len() == 2);
        child
    };
    let child = begin();
    signal(&child, "-TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    assert!(!lives("84.125"), "all that it started is ended before it says so");
    assert_eq!(stage.entries("scripted/trials"), Vec::<String>::new());
    let child = begin();
    signal(&child, "-KILL");
    assert_eq!(child.wait_with_output().unwrap().status.signal(), Some(9));
    wait_until("the end of its children", || !lives("84.125"));
    assert_eq!(stage.entries("scripted/trials").len(), 2, "no process was left to remove it");
    scripted(&stage, "echo rate 2");
    check(&stage.run(&["workload", "./scripted.toml"]), 0, "\"value\":2.0");
    assert_eq!(stage.entries("scripted/trials"), Vec::<String>::new(), "the next one did");
}

const RECIPE: &str = r#"
name = "two"
question = "Does the one run without the other?"
repeats = 1
warm_up = 0
twins = false
[[workload]]
external = "./mine.toml"
[[workload]]
external = "./scripted.toml"
[[variant]]
name = "never"
thp = "never-prctl"
"#;

#[test]
fn an_experiment_skips_a_program_that_is_not_set_up() {
    let stage = Stage::new();
    scripted(&stage, "echo rate 7");
    stage.0.write("two.toml", RECIPE);
    let reason = "the workload is not set up; hint: run `pagelab workload setup ./mine.toml`";
    check(&stage.run(&["run", "two.toml", "--dry-run"]), 0, "its trials would be skipped");
    check(&stage.run(&["run", "two.toml", "--dry-run", "--json"]), 0, reason);
    let output = stage.run(&["run", "two.toml", "-o", "two.pagelab"]);
    check(&output, 5, "mine: the workload is not set up");
    check(&output, 5, "skipping its 1 trials");
    let run = pagelab_runfile::read_run_file(&stage.0.path().join("two.pagelab")).unwrap();
    let ends: Vec<&TrialEnd> = run.experiment.as_ref().unwrap().trials.iter().map(|of| &of.end).collect();
    assert_eq!(ends, [&TrialEnd::NotStarted(reason.to_owned()), &TrialEnd::Done]);
    check(&stage.run(&["workload", "setup", "./mine.toml"]), 0, "ready");
    let output = stage.run(&["run", "two.toml", "-o", "three.pagelab"]);
    check(&output, 0, "");
    let run = pagelab_runfile::read_run_file(&stage.0.path().join("three.pagelab")).unwrap();
    let trials = &run.experiment.as_ref().unwrap().trials;
    let merit = trials[0].measures.iter().find(|measure| measure.name == "merit").unwrap();
    assert_eq!((merit.value.as_ref().ok(), merit.unit.0.as_str()), (Some(&12.5), "1/s"));
    assert!(run.events.iter().any(|event| event.kind == "checksum" && event.text.ends_with(": abc")));
}

#[test]
fn programs_are_searched_in_the_given_directory() {
    let stage = Stage::new();
    for (name, variable, program) in [
        ("parsec-canneal", "PARSEC_DIR", "pkgs/kernels/canneal/inst/amd64-linux.gcc/bin/canneal"),
        ("parsec-streamcluster", "PARSEC_DIR", "pkgs/kernels/streamcluster/inst/x/bin/streamcluster"),
        ("splash2-fmm", "SPLASH_DIR", "apps/fmm/FMM"),
    ] {
        let run = |set: bool| {
            let mut command = stage.command(&["workload", name, "--quick"]);
            if set {
                command.env(variable, stage.0.path().join("theirs"));
            }
            command.output().unwrap()
        };
        check(&run(false), 4, &format!("{variable} is not set"));
        check(&run(true), 4, "which has no ");
        // A stand-in that accepts the options of the real program, and prints them.
        let script = "#!/bin/sh\necho \"with $*\"\nfor last; do :; done\n[ $# -lt 8 ] || echo 1 >\"$8\"\n\
                      [ $# -gt 0 ] || cat\n";
        stage.0.write(&format!("theirs/{program}"), script);
        let path = stage.0.path().join("theirs").join(program);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        if name == "parsec-canneal" {
            check(&run(true), 5, "PARSEC's inputs are archives of their own");
            stage.0.write("400000.nets", "x");
            let inputs = stage.0.path().join("theirs/pkgs/kernels/canneal/inputs");
            fs::create_dir_all(&inputs).unwrap();
            let mut tar = Command::new("tar");
            tar.arg("-cf").arg(inputs.join("input_simlarge.tar")).arg("-C").arg(stage.0.path());
            assert!(tar.arg("400000.nets").status().unwrap().success());
        }
        let output = run(true);
        check(&output, 0, "\"merit\":{\"name\":\"time\"");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let words = match name {
            "parsec-canneal" => "with 1 15000 2000 400000.nets 128",
            "parsec-streamcluster" => "with 10 20 128 16384 16384 1000 none centres.txt 1",
            _ => "",
        };
        assert!(said.contains(words), "{said}");
    }
}

/// Whether a program is in PATH.
fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A small run of a real one, whose document is given.
fn real(name: &str, options: &[&str]) -> Value {
    let stage = Stage(Lab::new());
    fs::create_dir(stage.0.path().join("bin")).unwrap();
    let output = stage.run(&[&["workload", name], options].concat());
    let said: Value = serde_json::from_str(&check(&output, 0, "merit")).unwrap();
    assert!(said["merit"]["value"].as_f64().unwrap() > 0.0, "{said}");
    assert_eq!(stage.entries(&format!("{name}/trials")), Vec::<String>::new());
    said
}

#[test]
fn the_installed_sort_and_xz_run_with_equal_checksums() {
    for (name, options) in
        [("sort", &["--lines", "3000"][..]), ("xz", &["--size", "200K", "--level", "0"][..])]
    {
        if !is_there(name) || !is_there("awk") {
            eprintln!("skipped: sort-or-xz-absent: {name} or awk is not there");
            continue;
        }
        let checksums = [1, 1, 2].map(|seed| {
            let said = real(name, &[options, &["--seed", &seed.to_string()]].concat());
            said["checksum"].as_str().unwrap().to_owned()
        });
        assert_eq!(checksums[0], checksums[1], "{name}");
        assert_ne!(checksums[0], checksums[2], "{name}");
    }
}

#[test]
fn a_wrong_result_of_an_installed_program_is_detected() {
    if !is_there("sort") || !is_there("awk") {
        eprintln!("skipped: sort-or-xz-absent: sort or awk is not there");
        return;
    }
    // A sort that forgets a line.
    let stage = Stage(Lab::new());
    stage.program(
        "sort",
        "#!/bin/sh\ncase \"$*\" in *-c*) exec /usr/bin/sort \"$@\" ;; esac\n/usr/bin/sort \"$@\" | sed 1d\n",
    );
    check(&stage.run(&["workload", "sort", "--lines", "3000"]), 70, "wrong result");
}

#[test]
fn the_installed_redis_runs() {
    if !is_there("redis-server") || !is_there("redis-benchmark") {
        eprintln!("skipped: redis-absent: redis-server is not in PATH");
        return;
    }
    let said = real("redis", &["--keys", "2000", "--requests", "20000"]);
    assert_eq!(said["merit"]["unit"], "1/s");
}

#[test]
fn the_installed_sqlite_runs() {
    if !is_there("sqlite3") {
        eprintln!("skipped: sqlite3-absent: sqlite3 is not in PATH");
        return;
    }
    let said = real("sqlite", &["--rows", "2000", "--lookups", "5000"]);
    assert!(said["checksum"].as_str().unwrap().starts_with("5000-"), "{said}");
}

/// Whether PostgreSQL is installed; else the skip is printed.
fn has_postgres() -> bool {
    let has_server = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut has_server = has_server.map(|version| version.path().join("bin/postgres"));
    let is_installed = has_server.any(|path| path.is_file()) && is_there("setpriv");
    if !is_installed {
        eprintln!("skipped: postgres-absent: no server below /usr/lib/postgresql");
    }
    is_installed
}

/// No machine of a test has a pool of half a TiB.
#[test]
fn a_pool_that_is_too_small_for_postgres_is_reported_with_its_size() {
    if !has_postgres() {
        return;
    }
    let stage = Stage(Lab::new());
    fs::create_dir(stage.0.path().join("bin")).unwrap();
    let size = ["--scale", "1", "--time", "1s", "--shared_buffers", "512G", "--huge_pages", "on"];
    let output = stage.run(&[&["workload", "pgbench"][..], &size].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("FATAL:") {
        // Before 15 the server does not tell how many pages it needs: its own messages are shown.
        check(&output, 5, "huge pages");
        return;
    }
    check(&output, 5, "cannot start PostgreSQL with huge_pages = on: it needs 2");
    assert!(said.contains("hint: enlarge the pool: sysctl vm.nr_hugepages="), "{said}");
}

#[test]
fn a_server_that_ends_before_it_is_ready_leaves_its_reason() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/shared.sh");
    let folder = tempfile::tempdir().unwrap();
    let script = "set -- \"$0\"; . \"$1\"; (echo 'FATAL: no memory' >log; exit 1) & await $! log false";
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", script]).arg(shared).current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("FATAL: no memory\nthe server ended before it was ready"), "{said}");
}

#[test]
fn the_installed_postgres_runs() {
    if !has_postgres() {
        return;
    }
    let said = real("pgbench", &["--scale", "1", "--time", "1s", "--shared_buffers", "16M"]);
    assert_eq!(said["merit"]["name"], "transaction rate");
}

#[test]
fn every_field_of_the_json_is_documented() {
    let stage = Stage::new();
    check(&stage.run(&["workload", "setup", "./mine.toml"]), 0, "ready");
    let documents = [
        check(&stage.run(&["workload", "./mine.toml"]), 0, ""),
        check(&stage.run(&["workload", "--json"]), 0, ""),
        check(&stage.run(&["workload", "setup", "./mine.toml", "--json"]), 0, ""),
    ];
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let page = fs::read_to_string(docs.join("json.md")).unwrap();
    let about: Vec<&str> = page
        .split("\n## ")
        .filter(|section| section.starts_with("`workload`") || section.starts_with("External workloads"))
        .collect();
    assert_eq!(about.len(), 2);
    for text in &documents {
        let document: Value = serde_json::from_str(text).unwrap();
        for name in names(&document).iter().filter(|name| !name.ends_with("_absent_reason")) {
            let is_general = ["pagelab_json", "kind", "keys"].contains(&name.as_str());
            assert!(
                is_general || about.concat().contains(&format!("`{name}`")),
                "{name} is not in docs/json.md"
            );
        }
    }
    let list: Value = serde_json::from_str(&documents[1]).unwrap();
    let manual = fs::read_to_string(docs.join("external.md")).unwrap();
    for of in list["external"].as_array().unwrap() {
        assert!(manual.contains(&format!("`{}`", of["name"].as_str().unwrap())), "{of}");
        let help = stage.run(&["workload", of["name"].as_str().unwrap(), "--help"]);
        check(&help, 0, "Working set:");
    }
}

fn names(value: &Value) -> Vec<String> {
    match value {
        Value::Object(map) => {
            map.iter().flat_map(|(name, of)| [vec![name.clone()], names(of)].concat()).collect()
        }
        Value::Array(items) => items.iter().flat_map(names).collect(),
        _ => Vec::new(),
    }
}
