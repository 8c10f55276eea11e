//! `[[workload]]`: a built-in with options, or any command.

use std::time::Duration;

use pagelab_model::experiment::Better;
use pagelab_workloads::options::Options;
use pagelab_workloads::table;

use super::document::{Item, Node, Table};
use super::fields::{Fields, Problems};

/// What runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Unique in the recipe.
    pub name: String,
    /// Its line in the recipe; 0 if it is not from one.
    pub line: usize,
    /// What is started.
    pub runs: Runs,
    /// How long a trial may take, where that differs from the recipe's.
    pub time_limit: Option<Duration>,
    /// How long a trial takes, about: for the estimate before anything has run.
    pub takes: Option<Duration>,
    /// Files that it reads, which are made warm or cold in the page cache.
    pub files: Vec<String>,
    /// Added to its environment.
    pub environment: Vec<(String, String)>,
    quick: Vec<(String, String)>,
    quick_command: Option<Vec<String>>,
    quick_takes: Option<Duration>,
}

/// What a workload starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Runs {
    /// A workload of pagelab's own.
    BuiltIn {
        /// Its name in the table of workloads.
        name: String,
        /// Options that are not at their default, as they would be typed.
        options: Vec<(String, String)>,
    },
    /// Any program.
    Command {
        /// The program first.
        command: Vec<String>,
        /// Where its own figure of merit stands in its output; else its time is judged.
        metric: Option<Metric>,
        /// Further numbers in its output, by name.
        figures: Vec<(String, Metric)>,
        /// Exit codes that are no failure.
        good_codes: Vec<i32>,
        /// What it works on, for the report.
        input: String,
    },
}

/// A number in the output of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// The text before the number.
    pub before: String,
    /// The text behind it; may be empty.
    pub behind: String,
    /// Its unit.
    pub unit: String,
    /// Which direction is good.
    pub better: Better,
}

impl Runs {
    /// A program without a metric.
    fn of(command: Vec<String>) -> Runs {
        Runs::Command {
            command,
            metric: None,
            figures: Vec::new(),
            good_codes: vec![0],
            input: String::new(),
        }
    }
}

impl Workload {
    /// A program that was given on the command line.
    pub fn of_command(command: Vec<String>) -> Workload {
        let program = command.first().map(String::as_str).unwrap_or_default();
        let name = program.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("command");
        Workload {
            name: name.to_owned(),
            line: 0,
            runs: Runs::of(command),
            time_limit: None,
            takes: None,
            files: Vec::new(),
            environment: Vec::new(),
            quick: Vec::new(),
            quick_command: None,
            quick_takes: None,
        }
    }

    /// Whether it is one of ours that takes this option.
    pub fn takes_option(&self, option: &str) -> bool {
        let Runs::BuiltIn { name, .. } = &self.runs else { return false };
        table::find(name).is_some_and(|of| of.options.iter().any(|head| head.name == option))
    }

    /// Options of a built-in as they are given.
    pub fn options(&self) -> &[(String, String)] {
        match &self.runs {
            Runs::BuiltIn { options, .. } => options,
            Runs::Command { .. } => &[],
        }
    }

    /// Takes what a quick run has instead.
    pub(super) fn make_quick(&mut self) {
        match &mut self.runs {
            Runs::BuiltIn { options, .. } => merge(options, &self.quick),
            Runs::Command { command, .. } => {
                if let Some(quick) = self.quick_command.take() {
                    *command = quick;
                }
            }
        }
        self.takes = self.quick_takes.or(self.takes);
    }
}

/// Later options take the place of earlier ones.
pub(crate) fn merge(options: &mut Vec<(String, String)>, later: &[(String, String)]) {
    for (name, value) in later {
        match options.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => value.clone_into(old),
            None => options.push((name.clone(), value.clone())),
        }
    }
}

pub(super) fn read(table: &Table, line: usize, problems: &mut Problems) -> Workload {
    let mut fields = Fields::new(table, "workload", line);
    let built_in = fields.text(problems, "built_in").map(|(text, _)| text.to_owned());
    let name = match (fields.item("name"), &built_in) {
        (None, Some(built_in)) => built_in.clone(),
        _ => fields.name(problems, "name"),
    };
    fields.what = format!("workload {name:?}");
    let command = fields.texts(problems, "command");
    let mut quick_command = None;
    let mut quick = Vec::new();
    let runs = match (built_in, command) {
        (Some(_), Some(_)) => {
            problems.say(line, format!("{} has both built_in and command: one of them does", fields.what));
            Runs::of(Vec::new())
        }
        (Some(of), None) => {
            let options = options(&of, &mut fields, problems, "options");
            quick = self::options(&of, &mut fields, problems, "quick");
            known_workload(&of, &mut fields, problems);
            Runs::BuiltIn { name: of, options }
        }
        (None, command) => {
            if command.as_ref().is_none_or(|words| words.first().is_none_or(String::is_empty)) {
                let what = &fields.what;
                problems.say(
                    line,
                    format!("{what}: built_in = \"NAME\" or command = [\"PROGRAM\", …] is wanted"),
                );
            }
            quick_command = fields.texts(problems, "quick_command");
            Runs::Command {
                command: command.unwrap_or_default(),
                metric: fields.table(problems, "metric").and_then(|metric| read_metric(metric, problems)),
                figures: figures(&mut fields, problems),
                good_codes: good_codes(&mut fields, problems),
                input: fields.text(problems, "input").map_or("", |(text, _)| text).to_owned(),
            }
        }
    };
    let workload = Workload {
        name,
        line,
        runs,
        time_limit: fields.duration(problems, "time_limit"),
        takes: fields.duration(problems, "takes"),
        files: fields.texts(problems, "files").unwrap_or_default(),
        environment: environment(&mut fields, problems),
        quick,
        quick_command,
        quick_takes: fields.duration(problems, "quick_takes"),
    };
    fields.finish(problems);
    workload
}

/// Pairs of `environment`, whose names must be names.
pub(super) fn environment(fields: &mut Fields<'_>, problems: &mut Problems) -> Vec<(String, String)> {
    let pairs = fields.pairs(problems, "environment");
    for (name, value, line) in &pairs {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            problems
                .say(*line, format!("{}: {name:?} cannot be a variable's name", fields.named("environment")));
        }
    }
    pairs.into_iter().map(|(name, value, _)| (name, value)).collect()
}

fn known_workload(name: &str, fields: &mut Fields<'_>, problems: &mut Problems) {
    if table::find(name).is_none() {
        let line = fields.item("built_in").map_or(fields.line, |item| item.line);
        let names: Vec<&str> = table::WORKLOADS.iter().map(|workload| workload.name).collect();
        let text = format!("{}: {name:?} is none; there are {}", fields.named("built_in"), names.join(", "));
        problems.say(line, text);
    }
}

/// Options of a built-in, checked against its table.
fn options(
    of: &str,
    fields: &mut Fields<'_>,
    problems: &mut Problems,
    key: &'static str,
) -> Vec<(String, String)> {
    let pairs = fields.pairs(problems, key);
    let Some(of) = table::find(of) else { return Vec::new() };
    let mut options = Options::defaults(of.options);
    let mut good = Vec::new();
    for (name, value, line) in pairs {
        match options.set(&name, &value) {
            Ok(()) => good.push((name, value)),
            Err(why) => problems.say(line, format!("{}: {why}", fields.named(key))),
        }
    }
    good
}

/// Exit codes that are no failure: 0 where none are given.
fn good_codes(fields: &mut Fields<'_>, problems: &mut Problems) -> Vec<i32> {
    let Some(item) = fields.item("exit_codes") else { return vec![0] };
    let code = |item: &Item| match &item.node {
        Node::Number(text) => text.parse().ok().filter(|code| (0..=255).contains(code)),
        _ => None,
    };
    let codes: Option<Vec<i32>> = match &item.node {
        Node::List(items) if !items.is_empty() => items.iter().map(code).collect(),
        _ => None,
    };
    codes.unwrap_or_else(|| {
        let text =
            format!("{}: a list of numbers from 0 to 255 was wanted, [0, 1]", fields.named("exit_codes"));
        problems.say(item.line, text);
        vec![0]
    })
}

/// Figures by name: `figures = [{ name = "…", pattern = "…", unit = "…" }, …]`.
fn figures(fields: &mut Fields<'_>, problems: &mut Problems) -> Vec<(String, Metric)> {
    let mut figures: Vec<(String, Metric)> = Vec::new();
    for (table, line) in fields.tables(problems, "figures") {
        let mut of = Fields::new(table, fields.named("figures"), line);
        let name = of.name(problems, "name");
        if figures.iter().any(|(known, _)| *known == name) {
            problems.say(line, format!("{}: {name:?} stands twice", of.what));
        }
        figures.extend(read_metric(of, problems).map(|metric| (name, metric)));
    }
    figures
}

fn read_metric(mut fields: Fields<'_>, problems: &mut Problems) -> Option<Metric> {
    let pattern = fields.text(problems, "pattern");
    let unit = fields.name(problems, "unit");
    let better = fields.word(problems, "better", &["lower", "higher", "neither"]);
    let (line, what) = (fields.line, fields.what.clone());
    fields.finish(problems);
    let Some((pattern, at)) = pattern else {
        problems.say(line, format!("{what}: pattern is missing: pattern = \"done in {{}} s\""));
        return None;
    };
    let parts: Vec<&str> = pattern.split("{}").collect();
    let [before, behind] = parts[..] else {
        let text = format!("{what}: pattern: {pattern:?} needs exactly one {{}}, where the number stands");
        problems.say(at, text);
        return None;
    };
    if before.contains('\n') || behind.contains('\n') {
        problems.say(at, format!("{what}: pattern: it is looked for in one line, and cannot have two"));
    }
    Some(Metric {
        before: before.to_owned(),
        behind: behind.to_owned(),
        unit,
        better: match better {
            Some("higher") => Better::Higher,
            Some("neither") => Better::Neither,
            _ => Better::Lower,
        },
    })
}
