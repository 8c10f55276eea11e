//! Benchmark of predicted gains: many programs without huge pages, with those of a plan, and with all. The
//! first and the last time are the pair from which `pagelab plan` lays its shares, with the CPU time in the
//! kernel of both; a second arm without huge pages gives the noise floor. Before each run as much memory as
//! it takes is touched once, as trials do where the host takes free memory back.
//!
//! Runs in parts: `--only chase,hash` takes some programs, `--rounds N`, `--profiles FOLDER` keeps profiles
//! there and takes those that are there already (they take longest, and need no quiet machine),
//! `--profile-only` ends after them. A program that is not on this machine is said and left out.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a bench panics to fail, and prints what it measured"
)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pagelab_contig::host_warming::warm_host_memory;
use pagelab_host::root::Root;
use pagelab_model::Bytes;
use serde_json::Value;

mod arms;

use arms::{Arm, median, print_bar, run_pagelab};

const PAGELAB: &str = env!("CARGO_BIN_EXE_pagelab");
/// The plan's share of the modelled gain: neither all nor next to nothing.
const SHARE: &str = "0.6";

const LINES: &str = "seq 1 700000 | shuf --random-source=/dev/zero > lines.txt; \
                     seq 1 2000000 | shuf --random-source=/dev/zero > more.txt";
const DICT: &str = "n=1500000\nd={}\nfor i in range(n): d[i*7919%n]=i\ns=0\n\
                    for i in range(n): s+=d[i*104729%n]\nprint(s)";
const JOIN: &str = "create table t(a integer primary key,b); with recursive c(i) as (select 1 union all select \
                    i+1 from c where i<1200000) insert into t select i,(i*7919)%1200007 from c; create index x \
                    on t(b); select sum(u.a) from t join t u on u.b=t.a;";
const JAVA: &str = "public class G{static class N{N n;int v;}public static void main(String[] x){int c=2000000;N[] \
                    a=new N[c];for(int i=0;i<c;i++){a[i]=new N();a[i].v=i;}java.util.Random r=new \
                    java.util.Random(1);for(int i=0;i<c;i++)a[i].n=a[r.nextInt(c)];long s=0;N \
                    p=a[0];for(int i=0;i<2*c;i++){p=p.n;s+=p.v;p=a[(int)((p.v*2654435761L+i)%c)];}\
                    System.out.println(s);}}";

/// A server without a disk that runs its load in itself, and the clients that begin and end it.
const REDIS: &str = "rm -f r.sock; redis-server --port 0 --unixsocket $PWD/r.sock --save '' --appendonly no \
                     --disable-thp no --daemonize no >/dev/null 2>&1 & until redis-cli -s r.sock ping \
                     >/dev/null 2>&1; do sleep 0.02; done; redis-cli -s r.sock eval \"local n=200000 for i=1,n \
                     do redis.call('SET','key:'..i,'value:'..i..('x'):rep(64)) end local s=0 local k=1 for \
                     i=1,n*2 do k=(k*16807)%2147483647 s=s+#redis.call('GET','key:'..(k%n+1)) end return s\" \
                     0; redis-cli -s r.sock shutdown nosave; wait";

/// A name, the command behind `--`, of which the first word `workload` is one of our own, and MiB that it
/// takes.
const PROGRAMS: [(&str, &[&str], u64); 15] = [
    ("chase", &["workload", "chase", "--size", "512M", "--steps", "3000000"], 540),
    ("zipf", &["workload", "chase", "--pattern", "zipf", "--steps", "4000000"], 1060),
    ("hot-read", &["workload", "hot-regions", "--first", "read", "--rounds", "10000000"], 1060),
    ("hot-write", &["workload", "hot-regions", "--size", "512M", "--rounds", "5000000"], 540),
    ("gather", &["workload", "gups", "--size", "256M", "--updates", "1"], 270),
    ("hash", &["workload", "hash", "--size", "256M", "--lookups", "4000000"], 270),
    ("btree", &["workload", "btree", "--size", "64M", "--lookups", "1000000"], 70),
    ("bfs", &["workload", "bfs", "--size", "256M", "--roots", "2"], 160),
    ("canneal", &["workload", "canneal", "--size", "256M"], 280),
    ("python", &["python3", "-c", DICT], 230),
    ("java", &["java", "-XX:+UseSerialGC", "-Xms400m", "-Xmx400m", "-XX:TieredStopAtLevel=1", "G"], 450),
    ("sqlite", &["sqlite3", ":memory:", JOIN], 60),
    ("redis", &["redis-server", "-c", REDIS], 120),
    ("xz", &["xz", "-9", "-T1", "-k", "-c", "lines.txt"], 100),
    ("sort", &["sort", "-S", "512M", "--parallel=1", "more.txt"], 150),
];

/// Predicted and measured gains of one program.
struct PredictionResult {
    name: &'static str,
    /// Time saved by the plan, of the time without huge pages.
    measured: f64,
    predicted: f64,
    /// What two arms without huge pages are apart, at 95 %.
    floor: f64,
    /// Whether the interval that `plan` prints contains the measured speed-up.
    is_inside: bool,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let value = |name: &str, usual: &str| {
        let place = words.iter().position(|word| word == name);
        place.and_then(|at| words.get(at + 1)).map_or(usual.to_owned(), Clone::clone)
    };
    let (only, rounds) = (value("--only", ""), value("--rounds", "8").parse().unwrap());
    let scratch = tempfile::tempdir().unwrap();
    let kept = value("--profiles", "");
    let folder = if kept.is_empty() { scratch.path().to_owned() } else { PathBuf::from(kept) };
    std::fs::create_dir_all(&folder).unwrap();
    run_shell(&folder, &format!("test -e more.txt || ({LINES})"));
    let is_asked = |name: &str| only.is_empty() || only.split(',').any(|of| of == name);
    let mut all = Vec::new();
    for (name, command, mib) in PROGRAMS.into_iter().filter(|of| is_asked(of.0)) {
        match ensure_profile(&folder, name, command) {
            Ok(command) if !words.iter().any(|word| word == "--profile-only") => {
                all.extend(measure_program(&folder, (name, mib), &command, rounds));
            }
            Ok(_) => {}
            Err(why) => println!("{name:<10} left out: {why}"),
        }
    }
    if !all.is_empty() {
        print_bars(&all);
    }
}

fn run_shell(folder: &Path, script: &str) -> bool {
    let mut sh = Command::new("sh");
    sh.args(["-c", script]).current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
    sh.status().is_ok_and(|status| status.success())
}

/// Creates the profile if it is absent. Returns the complete command.
fn ensure_profile(folder: &Path, name: &str, command: &[&str]) -> Result<Vec<String>, String> {
    let mut whole: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    match command[0] {
        "workload" => whole.insert(0, PAGELAB.to_owned()),
        "java" => {
            std::fs::write(folder.join("G.java"), JAVA).unwrap();
            if !run_shell(folder, "test -e G.class || javac G.java") {
                return Err("javac is not here".to_owned());
            }
        }
        tool if !run_shell(folder, &format!("command -v {tool}")) => {
            return Err(format!("{tool} is not here"));
        }
        // Its name may be that of a script which looks for it.
        "python3" => whole[0] = find_python(folder),
        "redis-server" => whole[0] = "sh".to_owned(),
        _ => {}
    }
    let file = format!("{name}.pagelab");
    if !folder.join(&file).exists() {
        let mut profile = Command::new(PAGELAB);
        profile.args(["profile", "--source", "exact", "-o", &file, "--"]).args(&whole).current_dir(folder);
        let status =
            profile.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        if !status.success() {
            return Err(format!("profile ended with {status}"));
        }
    }
    Ok(whole)
}

fn find_python(folder: &Path) -> String {
    let asked = Command::new("python3")
        .args(["-c", "import os,sys; print(os.path.realpath(sys.executable))"])
        .current_dir(folder)
        .output()
        .unwrap();
    String::from_utf8(asked.stdout).unwrap().trim().to_owned()
}

fn measure_program(
    folder: &Path,
    (name, mib): (&'static str, u64),
    command: &[String],
    rounds: usize,
) -> Option<PredictionResult> {
    let (file, plan) = (format!("{name}.pagelab"), format!("{name}.toml"));
    if !run_shell(folder, &format!("{PAGELAB} plan {file} --share {SHARE} -o {plan}")) {
        println!("{name:<10} left out: nothing to plan");
        return None;
    }
    let mut arms = vec![
        Arm::new("none", "none", None),
        Arm::new("again", "none", None),
        Arm::new("plan", &plan, None),
        Arm::new("all", "all", None),
    ];
    let kernel: RefCell<BTreeMap<String, Vec<f64>>> = RefCell::default();
    arms::run_interleaved(&mut arms, rounds, |arm| {
        warm_host_memory(&Root::live(), Bytes((mib * 9 / 8 + 32) << 20), &|| false);
        let (wall, in_kernel) = measure_times_ns(folder, &arm.plan, command);
        kernel.borrow_mut().entry(arm.name.clone()).or_default().push(in_kernel);
        wall
    });
    let [none, again, with, all] = [0, 1, 2, 3].map(|at| arms[at].median());
    let two = |base: f64, huge: f64| format!("{:.3}ms,{:.3}ms", base / 1e6, huge / 1e6);
    let pair = two(f64::midpoint(none, again), all);
    let [k_none, k_again, k_all] = ["none", "again", "all"].map(|name| median(&kernel.borrow()[name]));
    let of_kernel = two(f64::midpoint(k_none, k_again), k_all);
    let native = ["--pair", &pair, "--kernel", &of_kernel];
    let text = run_pagelab(folder, &[&["plan", &file, "--share", SHARE, "--json"], &native[..]].concat());
    let made: Value = serde_json::from_str(&text).unwrap();
    let number = |key: &str| made["chosen"][key].as_f64();
    let (likely, low, high) = (number("speedup")?, number("speedup_low")?, number("speedup_high")?);
    let base = f64::midpoint(none, again);
    let apart = arms[1].interval(&arms[0]);
    let floor = (apart.high - 1.0).abs().max((1.0 - apart.low).abs());
    let gain = arms[2].interval(&arms[0]);
    let found = PredictionResult {
        name,
        measured: 1.0 - with / base,
        predicted: 1.0 - 1.0 / likely,
        floor,
        is_inside: gain.high >= low && gain.low <= high,
    };
    println!(
        "{name:<10} none {:8.1} ms  plan {:.3}× ({:.3} to {:.3})  all {:.3}×  predicted {likely:.3}× ({low:.3} to \
         {high:.3})  saved {:6.1} % of {:6.1} %  floor {:.1} %",
        base / 1e6,
        base / with,
        gain.low,
        gain.high,
        base / all,
        100.0 * found.measured,
        100.0 * found.predicted,
        100.0 * floor
    );
    Some(found)
}

/// Wall time of the program under a plan, and its CPU time in the kernel, as its shell has them: a supervisor
/// waits for the program by itself, so that processes above it do not see these times.
fn measure_times_ns(folder: &Path, plan: &str, command: &[String]) -> (f64, f64) {
    let timed = "TIMEFORMAT='%3R %3S'; time \"$@\" >/dev/null 2>/dev/null";
    let mut apply = Command::new(PAGELAB);
    apply.args(["apply", plan, "--", "bash", "-c", timed, "bash"]).args(command).current_dir(folder);
    let output = apply.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{command:?}: {said}");
    let two = |line: &str| {
        let (wall, kernel) = line.split_once(' ')?;
        Some((wall.parse::<f64>().ok()? * 1e9, kernel.parse::<f64>().ok()? * 1e9))
    };
    said.lines().rev().find_map(two).unwrap()
}

fn print_bars(results: &[PredictionResult]) {
    let error =
        |of: &PredictionResult| (of.predicted - of.measured).abs() / of.measured.abs().max(f64::MIN_POSITIVE);
    let (told, others): (Vec<&PredictionResult>, Vec<&PredictionResult>) =
        results.iter().partition(|of| of.measured > of.floor);
    let errors: Vec<f64> = told.iter().map(|of| error(of)).collect();
    let beyond = others.iter().filter(|of| of.predicted.abs() > of.floor);
    beyond.clone().for_each(|of| println!("{}: predicted beyond its noise floor", of.name));
    print_bar("gain_prediction_programs", told.len() as f64, "programs whose gain exceeds their noise floor");
    if !errors.is_empty() {
        print_bar("gain_prediction_median_error", median(&errors), "of the time saved");
        let worst = errors.iter().copied().fold(0.0, f64::max);
        print_bar("gain_prediction_worst_error", worst, "of the time saved");
    }
    print_bar("gain_prediction_beyond_floor", beyond.count() as f64, "of the other programs");
    let inside = results.iter().filter(|of| of.is_inside).count() as f64 / results.len() as f64;
    print_bar("gain_interval_holds", inside, "measured intervals that meet the predicted one");
}
