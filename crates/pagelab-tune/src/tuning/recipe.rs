//! Recipe of a tuning, as stored in its run file for resuming.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pagelab_formats::duration;
use pagelab_model::run::Unit;
use pagelab_model::tune::{HugePageSelection, TuningArm};

use super::TuningRequest;
use super::time_budget::MeasurementPlan;

/// Maximum length of a unit, in bytes.
const UNIT_MAX: usize = 12;

/// Origin of the recipe, in the run file and in errors.
pub const ORIGIN: &str = "pagelab tune";

/// Returns the recipe's text. `files` are the plans of the arms that have one.
pub fn recipe_text(
    (request, measured): (&TuningRequest, &MeasurementPlan),
    name: &str,
    command_line: &[String],
    arms: &[TuningArm],
    files: &[Option<PathBuf>],
) -> String {
    let program = command_line.first().map_or("", String::as_str);
    let question = format!("Do huge pages speed up {}, and how many does it need?", file_stem(program));
    // Looks require independent pairs, which a random order in each round gives.
    let (repeats, has_looks) = if request.is_quick { (2, false) } else { (request.repeats, true) };
    let warm_up = u32::from(measured.warms_up);
    let budget = measured.time_left.map(|left| format!("time_budget = {:?}\n", format_seconds(left)));
    let takes = measured.trial_time.map(|time| format!("takes = {:?}\n", format_seconds(time)));
    let mut text = format!(
        "name = {}\nquestion = {}\norder = \"blocks\"\nrepeats = {repeats}\nwarm_up = {warm_up}\n\
         looks = {has_looks}\n{}seed = {}\ntime_limit = \"{}s\"\nbaseline = {}\n\n\
         [[workload]]\nname = {}\n{}command = [{}]\n",
        quote_toml(name),
        quote_toml(&question),
        budget.unwrap_or_default(),
        request.seed,
        request.time_limit.as_secs().max(1),
        quote_toml(arms.first().map_or("none", |arm| arm.name.as_str())),
        quote_toml(&file_stem(program)),
        takes.unwrap_or_default(),
        command_line.iter().map(|word| quote_toml(word)).collect::<Vec<_>>().join(", "),
    );
    if request.exit_codes != [0] {
        let codes: Vec<String> = request.exit_codes.iter().map(u8::to_string).collect();
        text.push_str(&format!("exit_codes = [{}]\n", codes.join(", ")));
    }
    if let Some(figure) = &request.figure {
        let better = if request.is_higher_better { "higher" } else { "lower" };
        let (unit, figure) = (quote_toml(unit_of(figure)), quote_toml(figure));
        text.push_str(&format!("metric = {{ pattern = {figure}, unit = {unit}, better = \"{better}\" }}\n"));
    }
    for (arm, file) in arms.iter().zip(files) {
        let plan = match (arm.selection, file) {
            (HugePageSelection::Never, _) => "never".to_owned(),
            (HugePageSelection::None, _) => "none".to_owned(),
            (HugePageSelection::All, _) | (_, None) => "all".to_owned(),
            (_, Some(file)) => quote_path(file),
        };
        let (name, plan) = (quote_toml(&arm.name), quote_toml(&plan));
        text.push_str(&format!("\n[[variant]]\nname = {name}\nplan = {plan}\n"));
        if arm.overrides_advice {
            text.push_str("override = true\n");
        }
    }
    text
}

/// Formats a time for a recipe, in milliseconds, at least one.
fn format_seconds(time: Duration) -> String {
    duration::format_argument(Duration::from_millis(
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1),
    ))
}

/// Returns the unit of a figure: the word after its number, as in `took {} s`, or `count`.
pub fn unit_of(figure: &str) -> &str {
    let behind = figure.split_once("{}").map_or("", |(_, behind)| behind.trim_start());
    let is_of_unit = |c: char| c.is_alphabetic() || matches!(c, '/' | '%');
    let end = behind.find(|c: char| !is_of_unit(c)).unwrap_or(behind.len());
    match &behind[..end] {
        "" => Unit::COUNT,
        "sec" | "secs" | "second" | "seconds" => "s",
        "µs" | "μs" | "usec" => Unit::MICROSECONDS,
        "msec" => "ms",
        "nsec" => Unit::NANOSECONDS,
        unit if unit.len() <= UNIT_MAX => unit,
        _ => Unit::COUNT,
    }
}

/// Quotes a path so that it is not taken for a keyword of `plan`.
fn quote_path(path: &Path) -> String {
    let text = path.display().to_string();
    if matches!(text.as_str(), "never" | "none" | "all") { format!("./{text}") } else { text }
}

/// Returns the program's name as a part of file names.
pub fn file_stem(program: &str) -> String {
    let name = program.rsplit('/').find(|part| !part.is_empty()).unwrap_or("program");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect()
}

/// Quotes a basic string of TOML.
fn quote_toml(text: &str) -> String {
    let mut out = String::from("\"");
    for sign in text.chars() {
        match sign {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            sign if sign.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(sign))),
            sign => out.push(sign),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pagelab_experiment::recipe::{Recipe, SupervisedPlan, WorkloadCommand};
    use pagelab_tlb::plan::PlanSize;

    use super::super::advice_override::AdvicePolicy;
    use super::super::arms::new_arm;
    use super::*;
    use crate::profile::MissSource;

    /// The recipe preserves any program name and arguments.
    #[test]
    fn the_recipe_has_the_command_and_the_arms() {
        let words = ["/opt/a b/ser\"ver", "--x=\\n", "tab\there", "line\nend", "ü", ""].map(str::to_owned);
        let arms = [
            new_arm("none", HugePageSelection::None),
            new_arm("plan", HugePageSelection::Plan),
            TuningArm { overrides_advice: true, ..new_arm("all", HugePageSelection::All) },
            new_arm("never", HugePageSelection::Never),
        ];
        let files = [None, Some(PathBuf::from("all")), None, None];
        let request = TuningRequest {
            size: PlanSize::Pages(1),
            source: MissSource::Auto,
            profile: None,
            repeats: 7,
            time_budget: Duration::from_secs(900),
            measures_curve: false,
            is_quick: false,
            figure: Some("took {} s".to_owned()),
            exit_codes: vec![0, 1],
            is_higher_better: false,
            time_limit: Duration::from_secs(3600),
            profile_time: Duration::ZERO,
            seed: 5,
            advice: AdvicePolicy::Auto,
            output: None,
            plan: None,
            replaces_files: false,
        };
        let measured = MeasurementPlan {
            warms_up: true,
            trial_time: Some(Duration::from_micros(12_345_678)),
            time_left: Some(Duration::from_secs(840)),
            ..MeasurementPlan::quick()
        };
        let text = recipe_text((&request, &measured), "tune-x", &words, &arms, &files);
        let recipe = Recipe::parse("test", &text).unwrap_or_else(|bad| panic!("{bad}\n{text}"));
        let WorkloadCommand::Command { command, metric: Some(metric), .. } = &recipe.workloads[0].command
        else {
            panic!()
        };
        assert!(text.contains("\nexit_codes = [0, 1]\n"), "{text}");
        assert_eq!(command[..], words);
        assert_eq!((metric.prefix.as_str(), metric.suffix.as_str()), ("took ", " s"));
        assert_eq!(metric.unit, "s");
        assert_eq!((recipe.repeats, recipe.warm_up, recipe.seed, recipe.baseline), (7, 1, 5, 0));
        assert_eq!((recipe.has_looks, recipe.time_budget), (true, Some(Duration::from_secs(840))));
        assert_eq!(recipe.workloads[0].duration, Some(Duration::from_millis(12_345)));
        let plans: Vec<_> = recipe.variants.iter().map(|variant| variant.supervised_plan.clone()).collect();
        assert_eq!(
            plans,
            [
                Some(SupervisedPlan::Nothing),
                Some(SupervisedPlan::Plan("./all".to_owned())),
                Some(SupervisedPlan::All),
                Some(SupervisedPlan::Never)
            ]
        );
        let overrides: Vec<bool> = recipe.variants.iter().map(|variant| variant.overrides_advice).collect();
        assert_eq!(overrides, [false, false, true, false]);
        assert_eq!(file_stem("/opt/a b/ser\"ver"), "ser_ver");
    }

    #[test]
    fn the_unit_of_a_figure_is_the_word_behind_it() {
        for (figure, unit) in [
            ("took {} s", "s"),
            ("took {}seconds", "s"),
            ("{} µs each", "us"),
            ("{} ns", "ns"),
            ("throughput: {} req/s.", "req/s"),
            ("\"value\":{}},\"working\"", "count"),
            ("score {}", "count"),
            ("{} internationalisations", "count"),
        ] {
            assert_eq!(unit_of(figure), unit, "{figure}");
        }
    }
}
