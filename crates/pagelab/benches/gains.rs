//! How well the gain of a plan is foretold: programs of many kinds, without huge pages, with those of a plan,
//! and with all of their memory on them. The first and the last time are the pair from which `pagelab plan`
//! lays its shares; a second arm without huge pages gives the noise floor.
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

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

mod arms;

use arms::{Arm, median, pagelab, say};

const PAGELAB: &str = env!("CARGO_BIN_EXE_pagelab");
/// The plan's share of the modelled gain: neither all nor next to nothing.
const SHARE: &str = "0.6";

const LINES: &str = "seq 1 700000 | shuf --random-source=/dev/zero > lines.txt";
const DICT: &str = "n=1500000\nd={}\nfor i in range(n): d[i*7919%n]=i\ns=0\n\
                    for i in range(n): s+=d[i*104729%n]\nprint(s)";
const JOIN: &str = "create table t(a integer primary key,b); with recursive c(i) as (select 1 union all select \
                    i+1 from c where i<400000) insert into t select i,(i*7919)%400009 from c; create index x \
                    on t(b); select sum(u.a) from t join t u on u.b=t.a;";
const JAVA: &str = "public class G{static class N{N n;int v;}public static void main(String[] x){int c=2000000;N[] \
                    a=new N[c];for(int i=0;i<c;i++){a[i]=new N();a[i].v=i;}java.util.Random r=new \
                    java.util.Random(1);for(int i=0;i<c;i++)a[i].n=a[r.nextInt(c)];long s=0;N \
                    p=a[0];for(int i=0;i<2*c;i++){p=p.n;s+=p.v;p=a[(int)((p.v*2654435761L+i)%c)];}\
                    System.out.println(s);}}";

/// A name, and the command behind `--`; the first word `workload` is one of our own.
const PROGRAMS: [(&str, &[&str]); 14] = [
    ("chase", &["workload", "chase", "--size", "512M", "--steps", "4000000"]),
    ("zipf", &["workload", "chase", "--pattern", "zipf", "--steps", "4000000"]),
    ("hot-read", &["workload", "hot-regions", "--first", "read", "--rounds", "2500000"]),
    ("hot-write", &["workload", "hot-regions", "--size", "512M", "--rounds", "2500000"]),
    ("gather", &["workload", "gups", "--size", "256M"]),
    ("hash", &["workload", "hash", "--size", "256M"]),
    ("btree", &["workload", "btree", "--size", "256M"]),
    ("bfs", &["workload", "bfs", "--size", "256M"]),
    ("canneal", &["workload", "canneal", "--size", "256M"]),
    ("python", &["python3", "-c", DICT]),
    ("java", &["java", "-XX:+UseSerialGC", "-Xms400m", "-Xmx400m", "-XX:TieredStopAtLevel=1", "G"]),
    ("sqlite", &["sqlite3", ":memory:", JOIN]),
    ("xz", &["xz", "-9", "-T1", "-k", "-c", "lines.txt"]),
    ("sort", &["sort", "-S", "256M", "--parallel=1", "lines.txt"]),
];

/// What is foretold of one program, and what came.
struct Found {
    name: &'static str,
    /// Time saved by the plan, of the time without huge pages.
    measured: f64,
    predicted: f64,
    /// What two arms without huge pages are apart, at 95 %.
    floor: f64,
    /// Whether the measured speed-up lies in the interval that `plan` prints.
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
    shell(&folder, &format!("test -e lines.txt || {LINES}"));
    let is_asked = |name: &str| only.is_empty() || only.split(',').any(|of| of == name);
    let mut all = Vec::new();
    for (name, command) in PROGRAMS.into_iter().filter(|of| is_asked(of.0)) {
        match profiled(&folder, name, command) {
            Ok(command) if !words.iter().any(|word| word == "--profile-only") => {
                all.extend(measure(&folder, name, &command, rounds));
            }
            Ok(_) => {}
            Err(why) => println!("{name:<10} left out: {why}"),
        }
    }
    if !all.is_empty() {
        judge(&all);
    }
}

fn shell(folder: &Path, script: &str) -> bool {
    let mut sh = Command::new("sh");
    sh.args(["-c", script]).current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
    sh.status().is_ok_and(|status| status.success())
}

/// Makes the profile if it is not there; the whole command.
fn profiled(folder: &Path, name: &str, command: &[&str]) -> Result<Vec<String>, String> {
    let mut whole: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    match command[0] {
        "workload" => whole.insert(0, PAGELAB.to_owned()),
        "java" => {
            std::fs::write(folder.join("G.java"), JAVA).unwrap();
            if !shell(folder, "test -e G.class || javac G.java") {
                return Err("javac is not here".to_owned());
            }
        }
        tool if !shell(folder, &format!("command -v {tool}")) => return Err(format!("{tool} is not here")),
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

fn measure(folder: &Path, name: &'static str, command: &[String], rounds: usize) -> Option<Found> {
    let (file, plan) = (format!("{name}.pagelab"), format!("{name}.toml"));
    if !shell(folder, &format!("{PAGELAB} plan {file} --share {SHARE} -o {plan}")) {
        println!("{name:<10} left out: nothing to plan");
        return None;
    }
    let mut arms = vec![
        Arm::new("none", "none", None),
        Arm::new("again", "none", None),
        Arm::new("plan", &plan, None),
        Arm::new("all", "all", None),
    ];
    arms::run(&mut arms, rounds, |arm| wall_ns(folder, &arm.plan, command));
    let [none, again, with, all] = [0, 1, 2, 3].map(|at| arms[at].median());
    let pair = format!("{:.3}ms,{:.3}ms", f64::midpoint(none, again) / 1e6, all / 1e6);
    let text = pagelab(folder, &["plan", &file, "--share", SHARE, "--pair", &pair, "--json"]);
    let made: Value = serde_json::from_str(&text).unwrap();
    let number = |key: &str| made["chosen"][key].as_f64();
    let (likely, low, high) = (number("speedup")?, number("speedup_low")?, number("speedup_high")?);
    let base = f64::midpoint(none, again);
    let apart = arms[1].interval(&arms[0]);
    let floor = (apart.high - 1.0).abs().max((1.0 - apart.low).abs());
    let gain = arms[2].interval(&arms[0]);
    let found = Found {
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

/// Wall time of the program under a plan: a supervisor waits for the program by itself, so that the CPU time
/// of its own children is not told.
fn wall_ns(folder: &Path, plan: &str, command: &[String]) -> f64 {
    let mut apply = Command::new(PAGELAB);
    apply.args(["apply", plan, "--"]).args(command).current_dir(folder);
    let began = Instant::now();
    let status = apply.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert!(status.success(), "{command:?}");
    began.elapsed().as_nanos() as f64
}

fn judge(all: &[Found]) {
    let error = |of: &Found| (of.predicted - of.measured).abs() / of.measured.abs().max(f64::MIN_POSITIVE);
    let (told, others): (Vec<&Found>, Vec<&Found>) = all.iter().partition(|of| of.measured > of.floor);
    let errors: Vec<f64> = told.iter().map(|of| error(of)).collect();
    let beyond = others.iter().filter(|of| of.predicted.abs() > of.floor);
    beyond.clone().for_each(|of| println!("{}: predicted beyond its noise floor", of.name));
    say("gain_prediction_programs", told.len() as f64, "programs whose gain exceeds their noise floor");
    if !errors.is_empty() {
        say("gain_prediction_median_error", median(&errors), "of the time saved");
        let worst = errors.iter().copied().fold(0.0, f64::max);
        say("gain_prediction_worst_error", worst, "of the time saved");
    }
    say("gain_prediction_beyond_floor", beyond.count() as f64, "of the other programs");
    let inside = all.iter().filter(|of| of.is_inside).count() as f64 / all.len() as f64;
    say("gain_interval_holds", inside, "measured intervals that meet the predicted one");
}
