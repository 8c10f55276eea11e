//! `cargo xtask bench`: runs the benches of the workspace and holds what they measured against the bars.
//!
//! A bench is a program without libtest (`harness = false`) that prints one JSON line for each bar:
//! `{"bar":"NAME","value":1.2,"unit":"ratio","samples":[…],"how":"…"}`, or `"value":null` and `"why"`
//! where it could not be measured. Other lines are shown as they are.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bars::{BARS, Bar, Change, processors};
use crate::built::{self, Program};
use crate::child::{self, Show};
use crate::facts::{self, Condition};
use crate::tally::Failed;
use crate::{tree, web};

const LIMIT: Duration = Duration::from_secs(3600);
const CHECKUP_RUNS: usize = 5;
const GUEST_BOOTS: usize = 3;

/// What was found out about one bar.
#[derive(Clone, Debug, PartialEq)]
struct Measured {
    bar: String,
    /// The value, or why there is none.
    value: Result<f64, String>,
    unit: String,
    samples: Vec<f64>,
    how: String,
}

/// The command: all that there is, or the benches of these names alone.
pub fn run(words: &[&str]) -> Result<(), Failed> {
    let began = Instant::now();
    let check = words.contains(&"--check");
    let names: Vec<&str> = words.iter().copied().filter(|word| *word != "--check").collect();
    if let Some(unknown) = names.iter().find(|name| name.starts_with('-')) {
        return Err(Failed::Usage(format!("`bench` does not know `{unknown}`")));
    }
    let mut found = Found::default();
    let programs = benches(&names)?;
    for name in &names {
        if programs.iter().all(|program| program.target != *name) {
            return Err(Failed::Usage(format!("there is no bench `{name}`")));
        }
    }
    programs.iter().for_each(|program| found.run(program));
    if names.is_empty() {
        let binary = release_binary();
        found.all_of("checkups", &["checkup_wall_s", "checkup_probe_wall_s"], || checkups(binary.as_ref()));
        found.all_of("a zoom in the page", &["page_zoom_ms"], || Ok(vec![zoom()]));
        found.all_of("guests", &GUEST_BARS.map(|(bar, _)| bar), || guests(binary.as_ref()));
        found.all_of("a cold build", &["cold_release_build_s"], || Ok(vec![cold_build()?]));
    }
    let Found { measured, mut broken } = found;
    println!();
    let is_asked = |bar: &&Bar| names.is_empty() || measured.iter().any(|found| found.bar == bar.name);
    for bar in BARS.iter().filter(is_asked) {
        let (line, fault) = judge(bar, &measured, &facts::here);
        println!("{line}");
        for of in processors::ON_PROCESSORS.iter().filter(|of| of.bar == bar.name) {
            println!("    on {}: {}, measured {}", of.processor, of.limit, of.measured);
        }
        for Change { old, new, why } in bar.changes {
            println!("    was {old}, became {new}: {why}");
        }
        broken.extend(fault);
    }
    for found in measured.iter().filter(|found| BARS.iter().all(|bar| bar.name != found.bar)) {
        println!("{:<36}{:>9}  {:<14}no bar", found.bar, show(&found.value), found.unit);
    }
    println!("{} in all", minutes(began.elapsed()));
    if broken.is_empty() {
        return Ok(());
    }
    println!();
    broken.iter().for_each(|line| println!("{line}"));
    if check { Err(Failed::Said) } else { Ok(()) }
}

/// What was measured, and what went wrong. One part that fails takes no other with it.
#[derive(Debug, Default)]
struct Found {
    measured: Vec<Measured>,
    broken: Vec<String>,
}

impl Found {
    /// Runs a bench program.
    fn run(&mut self, program: &Program) {
        println!("{}", program.name());
        let ran = match child::run(program.command(&[]).arg("--bench"), Show::Progress, LIMIT) {
            Ok(ran) => ran,
            Err(failed) => return self.broken.push(format!("{}: {}", program.name(), failed)),
        };
        for line in &ran.stdout {
            match read(line) {
                Some(Ok(found)) => self.measured.push(found),
                Some(Err(problem)) => self.broken.push(format!("{}: {problem}: {line}", program.name())),
                None => println!("  {line}"),
            }
        }
        println!("  took {}", minutes(ran.took));
        if !ran.ok {
            self.broken.push(format!("{}: {}", program.name(), ran.ending));
        }
    }

    /// What is no program of its own; if it cannot be begun, its bars have no value.
    fn all_of(&mut self, name: &str, bars: &[&str], measure: impl FnOnce() -> Result<Vec<Measured>, Failed>) {
        println!("{name}");
        let began = Instant::now();
        let found = measure().unwrap_or_else(|failed| {
            let why = why(failed);
            bars.iter().map(|bar| nothing(bar, &why)).collect()
        });
        self.measured.extend(found);
        println!("  took {}", minutes(began.elapsed()));
    }
}

/// A bar without a value.
fn nothing(bar: &str, why: &str) -> Measured {
    let (bar, value) = (bar.to_owned(), Err(why.to_owned()));
    Measured { bar, value, unit: String::new(), samples: Vec::new(), how: String::new() }
}

fn why(failed: Failed) -> String {
    match failed {
        Failed::Usage(why) | Failed::Because(why) => why,
        Failed::Said => "the program said why".to_owned(),
    }
}

/// `12 min 5 s`
fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 {
        format!("{:.1} s", time.as_secs_f64())
    } else {
        format!("{} min {} s", seconds / 60, seconds % 60)
    }
}

/// Builds and names the bench programs, or those of these names; none is no error.
fn benches(names: &[&str]) -> Result<Vec<Program>, Failed> {
    let asked = ["metadata", "--no-deps", "--format-version=1"];
    let ran = child::run(built::cargo().args(asked), Show::Progress, LIMIT)?;
    let metadata: Value =
        serde_json::from_str(&ran.stdout.concat()).map_err(|error| format!("cargo metadata: {error}"))?;
    let targets = metadata["packages"].as_array().into_iter().flatten();
    let mut targets = targets.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    if !targets.any(|target| target["kind"][0] == "bench") {
        return Ok(Vec::new());
    }
    let mut arguments = vec!["bench", "--workspace", "--no-run"];
    let every = ["*"];
    for name in if names.is_empty() { &every[..] } else { names } {
        arguments.extend(["--bench", name]);
    }
    let programs = built::build(&arguments, LIMIT)?;
    Ok(programs.into_iter().filter(|program| program.kind == "bench").collect())
}

fn read(line: &str) -> Option<Result<Measured, String>> {
    let line = line.trim();
    if !line.starts_with('{') || !line.contains("\"bar\"") {
        return None;
    }
    Some(measured(line))
}

fn measured(line: &str) -> Result<Measured, String> {
    let json: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let text = |key: &str| json[key].as_str().unwrap_or("").to_owned();
    let value = match &json["value"] {
        Value::Number(number) => number.as_f64().ok_or("`value` is out of range")?,
        Value::Null => {
            let why = text("why");
            if why.is_empty() {
                return Err("`value` is null and `why` says nothing".to_owned());
            }
            let (bar, unit, how) = (text("bar"), text("unit"), text("how"));
            return Ok(Measured { bar, value: Err(why), unit, samples: vec![], how });
        }
        _ => return Err("`value` is not a number".to_owned()),
    };
    let samples = json["samples"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    let how = text("how");
    Ok(Measured { bar: text("bar"), value: Ok(value), unit: text("unit"), samples, how })
}

/// The line of one bar, and what is wrong with it.
fn judge(bar: &Bar, measured: &[Measured], ask: &dyn Fn(&facts::Fact) -> bool) -> (String, Option<String>) {
    let bar = &processors::limited(bar, ask);
    let excused = Condition::parse(bar.absent_where)
        .is_ok_and(|condition| condition.holds(ask))
        .then_some(bar.absent_where);
    let mut found = measured.iter().filter(|found| found.bar == bar.name);
    let (value, verdict, more) = match (found.next(), found.next()) {
        (Some(_), Some(_)) => (None, "broken", "measured twice".to_owned()),
        (Some(one), None) if one.unit != bar.unit && one.value.is_ok() => {
            (None, "broken", format!("measured in `{}`", one.unit))
        }
        (Some(one), None) => match (&one.value, excused) {
            (Ok(value), _) => {
                let verdict = if bar.holds(*value) { "holds" } else { "broken" };
                (Some(*value), verdict, spread(one))
            }
            (Err(why), Some(_)) => (None, "not here", why.clone()),
            (Err(why), None) => (None, "broken", format!("not measured: {why}")),
        },
        (None, _) => match excused {
            Some(condition) => (None, "not here", condition.to_owned()),
            None => (None, "broken", "not measured".to_owned()),
        },
    };
    let shown = value.map_or_else(|| "–".to_owned(), |value| format!("{value:.3}"));
    let line = format!("{:<36}{shown:>9}  {:<14}{verdict:<10}{more}", bar.name, bar.promise());
    let fault = (verdict == "broken").then(|| {
        format!("{}: {shown}, promised {} ({}; {}): {more}", bar.name, bar.promise(), bar.what, bar.source)
    });
    (line, fault)
}

fn show(value: &Result<f64, String>) -> String {
    value.as_ref().map_or_else(|_| "–".to_owned(), |value| format!("{value:.3}"))
}

/// `1.100 to 1.230 in 5 samples; how`
fn spread(found: &Measured) -> String {
    let (min, max) = found.samples.iter().fold((f64::MAX, f64::MIN), |(a, b), &s| (a.min(s), b.max(s)));
    match found.samples.len() {
        0 => found.how.clone(),
        count => format!("{min:.3} to {max:.3} in {count} samples; {}", found.how),
    }
}

/// The time of a zoom in the report page.
fn zoom() -> Measured {
    let line = web::zoom_line(LIMIT).and_then(|line| Ok(measured(&line)?));
    line.unwrap_or_else(|failed| nothing("page_zoom_ms", &why(failed)))
}

fn release_binary() -> Result<Program, Failed> {
    let products = built::build(&["build", "--release"], LIMIT)?;
    let binary = products.into_iter().find(|program| program.target == "pagelab");
    binary.ok_or_else(|| Failed::Because("there is no pagelab".to_owned()))
}

/// The bars of guests, and their kernels.
const GUEST_BARS: [(&str, &str); 2] =
    [("guest_first_line_cpu_s", "6.1"), ("guest_6_12_first_line_cpu_s", "6.12")];

/// What it costs until a guest says its first line, as the release binary itself measures it.
fn guests(binary: Result<&Program, &Failed>) -> Result<Vec<Measured>, Failed> {
    let binary = built(binary)?;
    GUEST_BARS.into_iter().map(|(bar, kernel)| guest(binary, bar, kernel)).collect()
}

/// The release binary, or why there is none.
fn built<'a>(binary: Result<&'a Program, &Failed>) -> Result<&'a Program, Failed> {
    binary.map_err(|_| Failed::Because("the release binary was not built".to_owned()))
}

fn guest(binary: &Program, bar: &str, kernel: &str) -> Result<Measured, Failed> {
    let mut samples = Vec::new();
    let mut value = Ok(0.0);
    for _ in 0..GUEST_BOOTS {
        let shape = ["guest", "run", "--kernel", kernel, "--memory", "512M", "--cpus", "2"];
        let mut command = Command::new(&binary.file);
        command.args(shape).args(["--json", "--", "frag"]);
        let ran = child::run(&mut command, Show::Nothing, LIMIT)?;
        let json: Value = serde_json::from_str(&ran.stdout.join("\n")).unwrap_or_default();
        match json["first_line_host_cpu_ns"].as_f64() {
            Some(ns) => samples.push(ns / 1e9),
            None => value = Err(ran.stderr.last().cloned().unwrap_or(ran.ending)),
        }
    }
    samples.sort_by(f64::total_cmp);
    let middle = samples.get(GUEST_BOOTS / 2).copied();
    let value = value.and_then(|_| middle.ok_or_else(|| "a boot was lost".to_owned()));
    let how = format!("kernel {kernel}, --memory 512M, --cpus 2; a busy machine costs more");
    Ok(Measured { bar: bar.to_owned(), value, unit: "s".to_owned(), samples, how })
}

/// The time of whole runs of the release binary.
fn checkups(binary: Result<&Program, &Failed>) -> Result<Vec<Measured>, Failed> {
    let binary = built(binary)?;
    let commands: [(&str, &[&str]); 2] =
        [("checkup_wall_s", &["checkup"]), ("checkup_probe_wall_s", &["checkup", "--probe"])];
    commands.into_iter().map(|(bar, arguments)| checkup(binary, bar, arguments)).collect()
}

fn checkup(binary: &Program, bar: &str, arguments: &[&str]) -> Result<Measured, Failed> {
    let mut samples = Vec::new();
    let mut value = Ok(0.0);
    for _ in 0..CHECKUP_RUNS {
        let ran = child::run(Command::new(&binary.file).args(arguments), Show::Nothing, LIMIT)?;
        if !ran.ok {
            let said = ran.stderr.iter().find(|line| !line.trim().is_empty());
            value = Err(format!("pagelab {}: {}", arguments.join(" "), said.unwrap_or(&ran.ending)));
            break;
        }
        samples.push(ran.took.as_secs_f64());
        value = value.map(|slowest: f64| slowest.max(ran.took.as_secs_f64()));
    }
    let how = "release binary, output to a pipe".to_owned();
    Ok(Measured { bar: bar.to_owned(), value, unit: "s".to_owned(), samples, how })
}

/// Builds the binary as a new machine would, dependencies and all, in a folder of its own.
fn cold_build() -> Result<Measured, Failed> {
    let folder = std::env::temp_dir().join(format!("pagelab-cold-build-{}", std::process::id()));
    let mut command = Command::new("cargo");
    command.args(["build", "--release", "--quiet", "--target-dir"]).arg(&folder).current_dir(tree::root());
    let ran = child::run(&mut command, Show::Nothing, LIMIT)?;
    let removed = std::fs::remove_dir_all(&folder);
    let value = match (ran.ok, removed) {
        (true, Ok(())) => Ok(ran.took.as_secs_f64()),
        (true, Err(error)) => Err(format!("{} is left behind: {error}", folder.display())),
        (false, _) => Err(ran.ending),
    };
    let samples = value.iter().copied().collect();
    let how = "cargo build --release into an empty folder, crates downloaded before".to_owned();
    Ok(Measured { bar: "cold_release_build_s".to_owned(), value, unit: "s".to_owned(), samples, how })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bars::Good;

    const LINE: &str = r#"{"bar":"b","value":1.5,"unit":"ratio","samples":[1.4,1.6],"how":"in turn"}"#;

    fn bar(absent_where: &'static str) -> Bar {
        let (name, limit, unit) = ("b", 1.5, "ratio");
        Bar { name, good: Good::AtMost, limit, unit, what: "w", source: "s", absent_where, changes: &[] }
    }

    #[test]
    fn a_bar_holds_breaks_or_is_excused() {
        let check = |absent_where, lines: &[&str], verdict: &str, fault: Option<&str>| {
            let found: Vec<_> = lines.iter().map(|line| read(line).unwrap().unwrap()).collect();
            let (line, wrong) = judge(&bar(absent_where), &found, &|_| false);
            assert!(line.contains(verdict), "{line}");
            assert_eq!(wrong.is_some(), fault.is_some(), "{wrong:?}");
            assert!(wrong.unwrap_or_default().contains(fault.unwrap_or("")));
        };
        let slow = LINE.replace("1.5", "1.51");
        let null = LINE.replace("1.5", "null").replace("\"how\"", "\"why\":\"dark\",\"how\"");
        check("", &[LINE], "1.400 to 1.600 in 2 samples; in turn", None);
        check("", &[&slow], "broken", Some("1.510, promised ≤ 1.5 ratio"));
        check("not root", &[&slow], "broken", Some("1.510"));
        check("", &[], "broken", Some("not measured"));
        check("not root", &[], "not here", None);
        check("", &[&null], "broken", Some("not measured: dark"));
        check("not root", &[&null], "not here", None);
        check("root", &[&null], "broken", Some("dark"));
        check("", &[LINE, LINE], "broken", Some("measured twice"));
        check("", &[&LINE.replace("ratio", "s")], "broken", Some("measured in `s`"));
    }

    #[test]
    fn a_part_that_cannot_be_begun_leaves_the_others() {
        let mut found = Found::default();
        found.all_of("lost", &["b", "c"], || Err(Failed::Because("no room on the disk".to_owned())));
        found.all_of("made", &["d"], || Ok(vec![read(&LINE.replace("\"b\"", "\"d\"")).unwrap().unwrap()]));
        assert_eq!(found.measured.len(), 3);
        let (line, wrong) = judge(&bar(""), &found.measured, &|_| false);
        assert!(line.contains("broken") && wrong.unwrap().contains("not measured: no room on the disk"));
        // Where its instrument is missing, that is all there is to say.
        let (line, wrong) = judge(&bar("not root"), &found.measured, &|_| false);
        assert!(line.contains("not here") && wrong.is_none(), "{line}");
        assert_eq!(
            [Duration::from_millis(1500), Duration::from_secs(725)].map(minutes),
            ["1.5 s", "12 min 5 s"]
        );
    }

    #[test]
    fn lines_that_are_no_measurement_are_told_apart_from_bad_ones() {
        assert_eq!(read("hello {\"bar\"}"), None);
        assert_eq!(read("{\"x\":1}"), None);
        for bad in ["{\"bar\":\"b\"}", "{\"bar\":", "{\"bar\":\"b\",\"value\":\"1\"}"] {
            assert!(read(bad).unwrap().is_err(), "{bad}");
        }
    }
}
