//! `cargo xtask bench`: runs the benches of the workspace and compares their results with the bars.
//!
//! A bench is a program without libtest (`harness = false`) that prints one JSON line for each bar:
//! `{"bar":"NAME","value":1.2,"unit":"ratio","samples":[…],"how":"…"}`, or `"value":null` and `"why"`
//! where it could not be measured. Other lines are shown as they are.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bars::{Bar, LimitChange, all_bars, processors};
use crate::cargo_build::{self, BuiltProgram};
use crate::child::{self, OutputMode};
use crate::conditions::{self, Condition};
use crate::phases::format_duration;
use crate::tally::TaskError;
use crate::{tree, web};

const PROGRAM_TIMEOUT: Duration = Duration::from_secs(3600);
const CHECKUP_RUNS: usize = 5;
const GUEST_BOOTS: usize = 3;

#[derive(Clone, Debug, PartialEq)]
struct BarResult {
    bar: String,
    /// Value, or the reason for its absence.
    value: Result<f64, String>,
    unit: String,
    samples: Vec<f64>,
    method: String,
}

/// The command: all that there is, or the benches of these names alone.
pub fn run(words: &[&str]) -> Result<(), TaskError> {
    let began = Instant::now();
    let check = words.contains(&"--check");
    let names: Vec<&str> = words.iter().copied().filter(|word| *word != "--check").collect();
    if let Some(unknown) = names.iter().find(|name| name.starts_with('-')) {
        return Err(TaskError::Usage(format!("unknown bench `{unknown}`")));
    }
    let mut found = BenchResults::default();
    let programs = build_benches(&names)?;
    for name in &names {
        if programs.iter().all(|program| program.target != *name) {
            return Err(TaskError::Usage(format!("no bench `{name}`")));
        }
    }
    programs.iter().for_each(|program| found.run_program(program));
    if names.is_empty() {
        let built = cargo_build::build_pagelab(PROGRAM_TIMEOUT);
        let binary = || built.as_ref().map_err(|_| "the release binary was not built".to_owned());
        for (bar, arguments) in CHECKUP_BARS {
            found.measure_bar(bar, || measure_checkup(binary()?, bar, arguments));
        }
        found.measure_bar("page_zoom_ms", || Ok(parse_result(&web::measure_zoom_line(PROGRAM_TIMEOUT)?)?));
        for (bar, kernel) in GUEST_BARS {
            found.measure_bar(bar, || measure_guest(binary()?, bar, kernel));
        }
        found.measure_bar("release_binary_mb", || measure_binary_size(binary()?));
        found.measure_bar("cold_release_build_s", measure_cold_build);
    }
    let BenchResults { measured, failures: mut broken } = found;
    println!();
    let is_asked = |bar: &&Bar| names.is_empty() || measured.iter().any(|found| found.bar == bar.name);
    for bar in all_bars().filter(is_asked) {
        let (line, fault) = judge_bar(bar, &measured, &conditions::holds_here);
        println!("{line}");
        for of in processors::PROCESSOR_LIMITS.iter().filter(|of| of.bar == bar.name) {
            println!("    on {}: {}, measured {}", of.processor.name, of.limit, of.measured);
        }
        for LimitChange { old_limit: old, new_limit: new, reason: why } in bar.limit_changes {
            println!("    was {old}, became {new}: {why}");
        }
        broken.extend(fault);
    }
    for found in measured.iter().filter(|found| all_bars().all(|bar| bar.name != found.bar)) {
        println!("{:<36}{:>9}  {:<14}no bar", found.bar, format_value(&found.value), found.unit);
    }
    println!("{} in all", format_duration(began.elapsed()));
    if broken.is_empty() {
        return Ok(());
    }
    println!();
    broken.iter().for_each(|line| println!("{line}"));
    if check { Err(TaskError::Reported) } else { Ok(()) }
}

/// Results and errors. One part that fails takes no other with it.
#[derive(Debug, Default)]
struct BenchResults {
    measured: Vec<BarResult>,
    failures: Vec<String>,
}

impl BenchResults {
    fn run_program(&mut self, program: &BuiltProgram) {
        println!("{}", program.display_name());
        let ran = match child::run(program.command(&[]).arg("--bench"), OutputMode::Progress, PROGRAM_TIMEOUT)
        {
            Ok(ran) => ran,
            Err(failed) => return self.failures.push(format!("{}: {}", program.display_name(), failed)),
        };
        for line in &ran.stdout {
            match parse_line(line) {
                Some(Ok(found)) => self.add(found),
                Some(Err(problem)) => {
                    self.failures.push(format!("{}: {problem}: {line}", program.display_name()))
                }
                None => println!("  {line}"),
            }
        }
        println!("  took {}", format_duration(ran.wall_time));
        if !ran.is_success {
            self.failures.push(format!("{}: {}", program.display_name(), ran.failure));
        }
    }

    /// Keeps a result and prints it at once, for a run that is stopped before its table.
    fn add(&mut self, found: BarResult) {
        println!("  {}: {} {}", found.bar, format_value(&found.value), found.unit);
        self.measured.push(found);
    }

    /// Measures a bar that has no program of its own; if that fails, the bar has no value.
    fn measure_bar(&mut self, bar: &str, measure: impl FnOnce() -> Result<BarResult, TaskError>) {
        println!("{bar}");
        let began = Instant::now();
        let found = measure().unwrap_or_else(|failed| {
            let (bar, value) = (bar.to_owned(), Err(failed.into_reason()));
            BarResult { bar, value, unit: String::new(), samples: Vec::new(), method: String::new() }
        });
        self.add(found);
        println!("  took {}", format_duration(began.elapsed()));
    }
}

/// Builds all bench programs, or those of these names.
fn build_benches(names: &[&str]) -> Result<Vec<BuiltProgram>, TaskError> {
    let mut arguments = vec!["bench", "--workspace", "--no-run"];
    let every = ["*"];
    for name in if names.is_empty() { &every[..] } else { names } {
        arguments.extend(["--bench", name]);
    }
    let programs = cargo_build::build(&arguments, PROGRAM_TIMEOUT)?;
    Ok(programs.into_iter().filter(|program| program.kind == "bench").collect())
}

fn parse_line(line: &str) -> Option<Result<BarResult, String>> {
    let line = line.trim();
    if !line.starts_with('{') || !line.contains("\"bar\"") {
        return None;
    }
    Some(parse_result(line))
}

fn parse_result(line: &str) -> Result<BarResult, String> {
    let json: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let text = |key: &str| json[key].as_str().unwrap_or("").to_owned();
    let value = match &json["value"] {
        Value::Number(number) => Ok(number.as_f64().ok_or("`value` is out of range")?),
        Value::Null if text("why").is_empty() => {
            return Err("`value` is null and `why` is missing".to_owned());
        }
        Value::Null => Err(text("why")),
        _ => return Err("`value` is not a number".to_owned()),
    };
    let samples = json["samples"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    Ok(BarResult { bar: text("bar"), value, unit: text("unit"), samples, method: text("how") })
}

/// Line of one bar, and its problem, if any.
fn judge_bar(
    bar: &Bar,
    measured: &[BarResult],
    is_true: &dyn Fn(&conditions::Fact) -> bool,
) -> (String, Option<String>) {
    let bar = &processors::with_processor_limit(bar, is_true);
    let is_excused = Condition::parse(bar.unavailable_if).is_ok_and(|condition| condition.holds(is_true));
    let mut found = measured.iter().filter(|found| found.bar == bar.name);
    let (value, verdict, more) = match (found.next(), found.next()) {
        (Some(_), Some(_)) => (None, "broken", "measured twice".to_owned()),
        (Some(one), None) => match &one.value {
            Ok(_) if one.unit != bar.unit => (None, "broken", format!("measured in `{}`", one.unit)),
            Ok(value) => {
                let verdict = if bar.is_met_by(*value) { "holds" } else { "broken" };
                (Some(*value), verdict, format_spread(one))
            }
            Err(why) if is_excused => (None, "not here", why.clone()),
            Err(why) => (None, "broken", format!("not measured: {why}")),
        },
        (None, _) if is_excused => (None, "not here", bar.unavailable_if.to_owned()),
        (None, _) => (None, "broken", "not measured".to_owned()),
    };
    let Bar { name, comparison, source, .. } = bar;
    let limit = bar.limit_text();
    let shown = value.map_or_else(|| "–".to_owned(), |value| format!("{value:.3}"));
    let line = format!("{name:<36}{shown:>9}  {limit:<14}{verdict:<10}{more}");
    let fault = (verdict == "broken")
        .then(|| format!("{name}: {shown}, promised {limit} ({comparison}; {source}): {more}"));
    (line, fault)
}

fn format_value(value: &Result<f64, String>) -> String {
    value.as_ref().map_or_else(|_| "–".to_owned(), |value| format!("{value:.3}"))
}

/// `1.100 to 1.230 in 5 samples; how`
fn format_spread(result: &BarResult) -> String {
    let (min, max) = result.samples.iter().fold((f64::MAX, f64::MIN), |(a, b), &s| (a.min(s), b.max(s)));
    match result.samples.len() {
        0 => result.method.clone(),
        count => format!("{min:.3} to {max:.3} in {count} samples; {}", result.method),
    }
}

/// The bars of guests, and their kernels.
const GUEST_BARS: [(&str, &str); 2] =
    [("guest_first_line_cpu_s", "6.1"), ("guest_6_12_first_line_cpu_s", "6.12")];

/// Cost until a guest's first message, as measured by the release binary.
fn measure_guest(binary: &BuiltProgram, bar: &str, kernel: &str) -> Result<BarResult, TaskError> {
    let mut samples = Vec::new();
    for _ in 0..GUEST_BOOTS {
        let shape = ["guest", "run", "--kernel", kernel, "--memory", "512M", "--cpus", "2"];
        let mut command = Command::new(&binary.file);
        command.args(shape).args(["--json", "--", "frag"]);
        let ran = child::run(&mut command, OutputMode::Quiet, PROGRAM_TIMEOUT)?;
        let json: Value = serde_json::from_str(&ran.stdout.join("\n")).unwrap_or_default();
        match json["first_line_host_cpu_ns"].as_f64() {
            Some(ns) => samples.push(ns / 1e9),
            None => return Err(ran.stderr.last().cloned().unwrap_or(ran.failure).into()),
        }
    }
    samples.sort_by(f64::total_cmp);
    let value = Ok(samples[GUEST_BOOTS / 2]);
    let how = format!("kernel {kernel}, --memory 512M, --cpus 2; a busy machine costs more");
    Ok(BarResult { bar: bar.to_owned(), value, unit: "s".to_owned(), samples, method: how })
}

/// The bars of checkups, and their arguments.
const CHECKUP_BARS: [(&str, &[&str]); 2] =
    [("checkup_wall_s", &["checkup"]), ("checkup_probe_wall_s", &["checkup", "--probe"])];

/// The time of whole runs of the release binary.
fn measure_checkup(binary: &BuiltProgram, bar: &str, arguments: &[&str]) -> Result<BarResult, TaskError> {
    let mut samples = Vec::new();
    for _ in 0..CHECKUP_RUNS {
        let ran = child::run(Command::new(&binary.file).args(arguments), OutputMode::Quiet, PROGRAM_TIMEOUT)?;
        if !ran.is_success {
            let said = ran.stderr.iter().find(|line| !line.trim().is_empty());
            return Err(format!("pagelab {}: {}", arguments.join(" "), said.unwrap_or(&ran.failure)).into());
        }
        samples.push(ran.wall_time.as_secs_f64());
    }
    let value = Ok(samples.iter().copied().fold(0.0, f64::max));
    let how = "release binary, output to a pipe".to_owned();
    Ok(BarResult { bar: bar.to_owned(), value, unit: "s".to_owned(), samples, method: how })
}

/// Size of the release binary, with its symbols.
fn measure_binary_size(binary: &BuiltProgram) -> Result<BarResult, TaskError> {
    let file = std::fs::metadata(&binary.file)?;
    let (bar, how) = ("release_binary_mb".to_owned(), "unstripped".to_owned());
    let value = Ok(file.len() as f64 / 1e6);
    Ok(BarResult { bar, value, unit: "MB".to_owned(), samples: Vec::new(), method: how })
}

/// Builds the binary with all dependencies in a separate directory, as a new machine would.
fn measure_cold_build() -> Result<BarResult, TaskError> {
    let folder = tempfile::Builder::new().prefix("pagelab-cold-build-").tempdir()?;
    let mut command = Command::new("cargo");
    command
        .args(["build", "--release", "--quiet", "--target-dir"])
        .arg(folder.path())
        .current_dir(tree::root());
    let ran = child::run(&mut command, OutputMode::Quiet, PROGRAM_TIMEOUT)?;
    let value = match (ran.is_success, folder.close()) {
        (true, Ok(())) => Ok(ran.wall_time.as_secs_f64()),
        (true, Err(error)) => Err(format!("the build is left behind: {error}")),
        (false, _) => Err(ran.failure),
    };
    let samples = value.iter().copied().collect();
    let how = "cargo build --release into an empty folder, crates downloaded before".to_owned();
    let (bar, unit) = ("cold_release_build_s".to_owned(), "s".to_owned());
    Ok(BarResult { bar, value, unit, samples, method: how })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bars::LimitDirection;

    const LINE: &str = r#"{"bar":"b","value":1.5,"unit":"ratio","samples":[1.4,1.6],"how":"in turn"}"#;

    fn bar(absent_where: &'static str) -> Bar {
        let (name, limit, unit) = ("b", 1.5, "ratio");
        Bar {
            name,
            direction: LimitDirection::AtMost,
            limit,
            unit,
            comparison: "w",
            source: "s",
            unavailable_if: absent_where,
            limit_changes: &[],
        }
    }

    #[test]
    fn a_bar_holds_breaks_or_is_excused() {
        let check = |absent_where, lines: &[&str], verdict: &str, fault: Option<&str>| {
            let found: Vec<_> = lines.iter().map(|line| parse_line(line).unwrap().unwrap()).collect();
            let (line, wrong) = judge_bar(&bar(absent_where), &found, &|_| false);
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
        let mut found = BenchResults::default();
        found.measure_bar("b", || Err(TaskError::Message("no room on the disk".to_owned())));
        found.measure_bar("d", || Ok(parse_line(&LINE.replace("\"b\"", "\"d\"")).unwrap().unwrap()));
        assert_eq!(found.measured.len(), 2);
        let (line, wrong) = judge_bar(&bar(""), &found.measured, &|_| false);
        assert!(line.contains("broken") && wrong.unwrap().contains("not measured: no room on the disk"));
        // If its instrument is missing, this is the only message.
        let (line, wrong) = judge_bar(&bar("not root"), &found.measured, &|_| false);
        assert!(line.contains("not here") && wrong.is_none(), "{line}");
    }

    #[test]
    fn lines_that_are_no_measurement_are_told_apart_from_bad_ones() {
        assert_eq!(parse_line("hello {\"bar\"}"), None);
        assert_eq!(parse_line("{\"x\":1}"), None);
        for bad in ["{\"bar\":\"b\"}", "{\"bar\":", "{\"bar\":\"b\",\"value\":\"1\"}"] {
            assert!(parse_line(bad).unwrap().is_err(), "{bad}");
        }
    }
}
