//! The recipe of a tuning: what stands in its run file, and is gone on with.

use std::path::{Path, PathBuf};

use pagelab_model::run::Unit;
use pagelab_model::tune::{Arm, On};

use super::Args;

/// Bytes of a word that may be a unit.
const UNIT_MAX: usize = 12;

/// Where it is from, in the run file and in complaints.
pub const ORIGIN: &str = "pagelab tune";

/// What of a command line stands in the recipe.
pub struct Told {
    /// The text around the program's own figure.
    pub figure: Option<String>,
    /// More of it is better.
    pub higher: bool,
    /// Rounds that count, and those before.
    pub rounds: (u32, u32),
    /// Seed of the order.
    pub seed: u64,
    /// How long a trial may take.
    pub time_limit: std::time::Duration,
    /// Exit codes that are no failure.
    pub exit_codes: Vec<u8>,
}

impl Told {
    /// Of this command line.
    pub fn of(args: &Args) -> Told {
        Told {
            figure: args.figure.clone(),
            higher: args.higher,
            rounds: if args.quick { (2, 0) } else { (args.repeats, 1) },
            seed: args.seed,
            time_limit: args.time_limit,
            exit_codes: args.exit_codes.clone(),
        }
    }
}

/// The recipe's text. `files` are the plans of the arms, where they have one.
pub fn text(told: &Told, name: &str, words: &[String], arms: &[Arm], files: &[Option<PathBuf>]) -> String {
    let program = words.first().map_or("", String::as_str);
    let question = format!("Do huge pages help {}, and how many?", plain(program));
    // More arms than three lie far apart there and back; by chance no arm has a place of its own.
    let order = if arms.len() > 3 { "blocks" } else { "abba" };
    let (repeats, warm_up) = told.rounds;
    let mut text = format!(
        "name = {}\nquestion = {}\norder = {order:?}\nrepeats = {repeats}\nwarm_up = {warm_up}\nseed = {}\n\
         time_limit = \"{}s\"\nbaseline = {}\n\n[[workload]]\nname = {}\ncommand = [{}]\n",
        quoted(name),
        quoted(&question),
        told.seed,
        told.time_limit.as_secs().max(1),
        quoted(arms.first().map_or("none", |arm| arm.name.as_str())),
        quoted(&plain(program)),
        words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(", "),
    );
    if told.exit_codes != [0] {
        let codes: Vec<String> = told.exit_codes.iter().map(u8::to_string).collect();
        text.push_str(&format!("exit_codes = [{}]\n", codes.join(", ")));
    }
    if let Some(figure) = &told.figure {
        let better = if told.higher { "higher" } else { "lower" };
        let unit = unit_of(figure);
        let figure = quoted(figure);
        text.push_str(&format!(
            "metric = {{ pattern = {figure}, unit = {}, better = \"{better}\" }}\n",
            quoted(unit)
        ));
    }
    for (arm, file) in arms.iter().zip(files) {
        let plan = match (arm.on, file) {
            (On::Nothing, _) => "none".to_owned(),
            (On::All, _) | (_, None) => "all".to_owned(),
            (_, Some(file)) => path_word(file),
        };
        text.push_str(&format!("\n[[variant]]\nname = {}\nplan = {}\n", quoted(&arm.name), quoted(&plan)));
    }
    text
}

/// The unit of a figure: the word behind its number, as in `took {} s`, or `count`.
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

/// A path that is none of the words of `plan`.
fn path_word(path: &Path) -> String {
    let text = path.display().to_string();
    if matches!(text.as_str(), "none" | "all") { format!("./{text}") } else { text }
}

/// The program's name as a part of file names.
pub fn plain(program: &str) -> String {
    let name = program.rsplit('/').find(|part| !part.is_empty()).unwrap_or("program");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect()
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
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
    use clap::Parser;
    use pagelab_experiment::recipe::{Recipe, Runs, Supervised};

    use super::super::arms::arm;
    use super::*;
    use crate::cli::{Cli, Command};

    fn args(words: &[&str]) -> Box<Args> {
        let all = ["pagelab", "tune"].iter().chain(words).chain(&["--", "x"]);
        let Ok(Cli { command: Command::Tune(args) }) = Cli::try_parse_from(all) else { panic!("{words:?}") };
        args
    }

    /// Whatever a program and its words are called, the recipe has them back.
    #[test]
    fn the_recipe_has_the_command_and_the_arms() {
        let words = ["/opt/a b/ser\"ver", "--x=\\n", "tab\there", "line\nend", "ü", ""].map(str::to_owned);
        let arms = [arm("none", On::Nothing), arm("plan", On::Plan), arm("all", On::All)];
        let files = [None, Some(PathBuf::from("all")), None];
        let args = args(&["--figure", "took {} s", "--seed", "5", "--exit-codes", "0,1"]);
        let text = text(&Told::of(&args), "tune-x", &words, &arms, &files);
        let recipe = Recipe::parse("test", &text).unwrap_or_else(|bad| panic!("{bad}\n{text}"));
        let Runs::Command { command, metric: Some(metric), .. } = &recipe.workloads[0].runs else { panic!() };
        assert!(text.contains("\nexit_codes = [0, 1]\n"), "{text}");
        assert_eq!(command[..], words);
        assert_eq!((metric.before.as_str(), metric.behind.as_str()), ("took ", " s"));
        assert_eq!(metric.unit, "s");
        assert_eq!((recipe.repeats, recipe.warm_up, recipe.seed, recipe.baseline), (7, 1, 5, 0));
        let plans: Vec<_> = recipe.variants.iter().map(|variant| variant.plan.clone()).collect();
        assert_eq!(
            plans,
            [Some(Supervised::Nothing), Some(Supervised::Plan("./all".to_owned())), Some(Supervised::All)]
        );
        assert_eq!(plain("/opt/a b/ser\"ver"), "ser_ver");
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
