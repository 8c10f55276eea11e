//! `[[workload]]`: a built-in with options, an external one by its manifest, or any command.

use std::time::Duration;

use pagelab_model::experiment::Better;
use pagelab_workloads::options::{OptionHead, Options};
use pagelab_workloads::table;

use super::document::{Item, Node, Table};
use super::fields::{Fields, Problems};
use crate::external::{self, Manifest};

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
    /// A workload that is not ours, by its manifest.
    External {
        /// What it is.
        manifest: &'static Manifest,
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

    /// Whether it has this option. A program that is only a command has none.
    pub fn takes_option(&self, option: &str) -> bool {
        self.option_heads().is_some_and(|heads| heads.iter().any(|head| head.name == option))
    }

    /// The options that it has; `None` for a program that is only a command.
    pub fn option_heads(&self) -> Option<&'static [OptionHead]> {
        match &self.runs {
            Runs::BuiltIn { name, .. } => table::find(name).map(|of| of.options),
            Runs::External { manifest, .. } => Some(manifest.options),
            Runs::Command { .. } => None,
        }
    }

    /// Its options as they are given.
    pub fn options(&self) -> &[(String, String)] {
        match &self.runs {
            Runs::BuiltIn { options, .. } | Runs::External { options, .. } => options,
            Runs::Command { .. } => &[],
        }
    }

    /// Takes what a quick run has instead.
    pub(super) fn make_quick(&mut self) {
        match &mut self.runs {
            Runs::BuiltIn { options, .. } | Runs::External { options, .. } => merge(options, &self.quick),
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

/// What of a workload depends on what it starts.
struct Started {
    runs: Runs,
    quick: Vec<(String, String)>,
    quick_command: Option<Vec<String>>,
    takes: Option<Duration>,
    quick_takes: Option<Duration>,
}

pub(super) fn read(table: &Table, line: usize, problems: &mut Problems) -> Workload {
    let mut fields = Fields::new(table, "workload", line);
    let built_in = fields.text(problems, "built_in").map(|(text, _)| text.to_owned());
    let external = fields.text(problems, "external").map(|(text, _)| text.to_owned());
    // A name that is not given is that of what runs; a path gives the name in its manifest.
    let manifest = external.as_ref().map(|asked| external::named(asked));
    let usual = match &manifest {
        Some(manifest) => manifest.as_ref().ok().map(|of| of.name.clone()).or(external.clone()),
        None => built_in.clone(),
    };
    let name = match (fields.item("name"), usual) {
        (None, Some(usual)) => usual,
        _ => fields.name(problems, "name"),
    };
    fields.what = format!("workload {name:?}");
    let has_command = fields.item("command").is_some();
    let started = match (built_in, manifest, has_command) {
        (Some(of), None, false) => started_built_in(of, &mut fields, problems),
        (None, Some(manifest), false) => started_external(manifest, &mut fields, problems),
        (None, None, _) => started_command(&mut fields, problems),
        _ => {
            let what = &fields.what;
            let text = format!("{what} has more than one of built_in, external, command: one of them does");
            problems.say(line, text);
            fields.item("external");
            started_command(&mut fields, &mut Problems::default())
        }
    };
    let Started { runs, quick, quick_command, takes, quick_takes } = started;
    let workload = Workload {
        name,
        line,
        runs,
        time_limit: fields.duration(problems, "time_limit"),
        takes: fields.duration(problems, "takes").or(takes),
        files: fields.texts(problems, "files").unwrap_or_default(),
        environment: environment(&mut fields, problems),
        quick,
        quick_command,
        quick_takes: fields.duration(problems, "quick_takes").or(quick_takes),
    };
    fields.finish(problems);
    workload
}

fn started_built_in(of: String, fields: &mut Fields<'_>, problems: &mut Problems) -> Started {
    let heads = table::find(&of).map(|of| of.options);
    let chosen = options(heads, fields, problems, "options");
    let quick = options(heads, fields, problems, "quick");
    known_workload(&of, fields, problems);
    let runs = Runs::BuiltIn { name: of, options: chosen };
    Started { runs, quick, quick_command: None, takes: None, quick_takes: None }
}

fn started_external(
    manifest: Result<&'static Manifest, external::Unread>,
    fields: &mut Fields<'_>,
    problems: &mut Problems,
) -> Started {
    let manifest = manifest.map_err(|why| {
        let line = fields.item("external").map_or(fields.line, |item| item.line);
        problems.say(line, format!("{}: {why}", fields.named("external")));
    });
    let heads = manifest.ok().map(|of| of.options);
    let chosen = options(heads, fields, problems, "options");
    let quick = options(heads, fields, problems, "quick");
    let Ok(manifest) = manifest else {
        let runs = Runs::of(Vec::new());
        return Started { runs, quick, quick_command: None, takes: None, quick_takes: None };
    };
    // What the recipe says of a quick run stands over what the manifest says.
    let mut all_quick = manifest.quick.clone();
    merge(&mut all_quick, &chosen);
    merge(&mut all_quick, &quick);
    let (takes, quick_takes) = (manifest.takes, manifest.quick_takes);
    let runs = Runs::External { manifest, options: chosen };
    Started { runs, quick: all_quick, quick_command: None, takes, quick_takes }
}

fn started_command(fields: &mut Fields<'_>, problems: &mut Problems) -> Started {
    let command = fields.texts(problems, "command");
    if command.as_ref().is_none_or(|words| words.first().is_none_or(String::is_empty)) {
        let what = &fields.what;
        let wanted = "built_in = \"NAME\" or command = [\"PROGRAM\", …] or external = \"NAME\" is wanted";
        problems.say(fields.line, format!("{what}: {wanted}"));
    }
    let quick_command = fields.texts(problems, "quick_command");
    let runs = Runs::Command {
        command: command.unwrap_or_default(),
        metric: fields.table(problems, "metric").and_then(|metric| read_metric(metric, problems)),
        figures: figures(fields, problems),
        good_codes: good_codes(fields, problems),
        input: fields.text(problems, "input").map_or("", |(text, _)| text).to_owned(),
    };
    Started { runs, quick: Vec::new(), quick_command, takes: None, quick_takes: None }
}

/// Pairs of `environment`, whose names must be names.
pub(crate) fn environment(fields: &mut Fields<'_>, problems: &mut Problems) -> Vec<(String, String)> {
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

/// Options of a workload, checked against its table.
fn options(
    heads: Option<&'static [OptionHead]>,
    fields: &mut Fields<'_>,
    problems: &mut Problems,
    key: &'static str,
) -> Vec<(String, String)> {
    let pairs = fields.pairs(problems, key);
    let Some(heads) = heads else { return Vec::new() };
    let mut options = Options::defaults(heads);
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
pub(crate) fn good_codes(fields: &mut Fields<'_>, problems: &mut Problems) -> Vec<i32> {
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
pub(crate) fn figures(fields: &mut Fields<'_>, problems: &mut Problems) -> Vec<(String, Metric)> {
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

pub(crate) fn read_metric(mut fields: Fields<'_>, problems: &mut Problems) -> Option<Metric> {
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
