//! `[[workload]]`: a built-in with options, an external one by its manifest, or any command.

use std::time::Duration;

use pagelab_model::Bytes;
use pagelab_model::experiment::BetterDirection;
use pagelab_model::{guest_size, names, size};
use pagelab_workloads::GuestPart;
use pagelab_workloads::options::{OptionSpec, WorkloadOptions};

use super::table_fields::{ProblemList, TableFields};
use crate::external::{self, Manifest};
use crate::gate::PAGELAB;
use pagelab_formats::toml_document::{TomlItem, TomlTable, TomlValue};

/// A workload of a recipe.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Unique in the recipe.
    pub name: String,
    /// Its line in the recipe; 0 if it is not from one.
    pub line: usize,
    /// Its command.
    pub command: WorkloadCommand,
    /// Its time limit, if it differs from the recipe's.
    pub time_limit: Option<Duration>,
    /// Approximate duration of a trial: for the estimate before the first trial.
    pub duration: Option<Duration>,
    /// Files that it reads, made warm or cold in the page cache.
    pub files: Vec<String>,
    /// Additions to its environment.
    pub environment: Vec<(String, String)>,
    /// In a guest, each instruction takes 2 to the power of this nanoseconds.
    pub icount: Option<u32>,
    quick_options: Vec<(String, String)>,
    quick_command: Option<Vec<String>>,
    quick_duration: Option<Duration>,
}

/// Command of a workload.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadCommand {
    /// A built-in workload.
    BuiltIn {
        /// Its name in the table of workloads.
        name: String,
        /// Options other than the defaults, as on the command line.
        options: Vec<(String, String)>,
    },
    /// An external workload, by its manifest.
    External {
        /// Its manifest.
        manifest: &'static Manifest,
        /// Options other than the defaults, as on the command line.
        options: Vec<(String, String)>,
    },
    /// Any program.
    Command {
        /// The program first.
        command: Vec<String>,
        /// Position of the figure of merit in its output; `None`: judged by its time.
        metric: Option<OutputMetric>,
        /// Further numbers in its output, by name.
        figures: Vec<(String, OutputMetric)>,
        /// Exit codes that are not a failure.
        exit_codes: Vec<i32>,
        /// Its input, for the report.
        input: String,
    },
}

impl WorkloadCommand {
    /// Whether this exit code is not a failure.
    pub fn is_success(&self, code: i32) -> bool {
        match self {
            WorkloadCommand::Command { exit_codes, .. } => exit_codes.contains(&code),
            _ => code == 0,
        }
    }
}

/// A number in the output of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputMetric {
    /// The text before the number.
    pub prefix: String,
    /// The text after it; may be empty.
    pub suffix: String,
    /// Its unit.
    pub unit: String,
    /// Direction that is better.
    pub better: BetterDirection,
}

impl Workload {
    /// A program that was given on the command line.
    pub fn from_command(command: Vec<String>) -> Workload {
        let program = command.first().map(String::as_str).unwrap_or_default();
        let name = program.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("command");
        let name = name.to_owned();
        let (metric, figures, exit_codes, input) = (None, Vec::new(), vec![0], String::new());
        let command = WorkloadCommand::Command { command, metric, figures, exit_codes, input };
        Workload { name, ..Workload::new(command, Vec::new()) }
    }

    /// A nameless workload with this command, without the keys that all kinds of commands have.
    fn new(command: WorkloadCommand, quick_options: Vec<(String, String)>) -> Workload {
        Workload {
            name: String::new(),
            line: 0,
            command,
            time_limit: None,
            duration: None,
            files: Vec::new(),
            environment: Vec::new(),
            icount: None,
            quick_options,
            quick_command: None,
            quick_duration: None,
        }
    }

    /// Whether it has this option. A command has none.
    pub fn has_option(&self, option: &str) -> bool {
        self.option_heads().is_some_and(|heads| heads.iter().any(|head| head.name == option))
    }

    /// The options that it has; `None` for a command.
    pub fn option_heads(&self) -> Option<&'static [OptionSpec]> {
        match &self.command {
            WorkloadCommand::BuiltIn { name, .. } => {
                pagelab_workloads::find_workload(name).map(|of| of.options)
            }
            WorkloadCommand::External { manifest, .. } => Some(manifest.options),
            WorkloadCommand::Command { .. } => None,
        }
    }

    /// The memory that it accesses under a variant with these options: its option `size`, with its default.
    pub fn memory_size(&self, options: &[(String, String)]) -> Option<Bytes> {
        let find = |options: &[(String, String)]| {
            options.iter().rev().find(|(name, _)| name == "size").map(|(_, value)| value.clone())
        };
        let default = || {
            let options = pagelab_workloads::find_workload(self.built_in_name()?)?.options;
            let head = options.iter().find(|head| head.name == "size")?;
            Some(head.default.to_owned())
        };
        if let WorkloadCommand::Command { command, .. } = &self.command
            && let Some(bytes) = size_argument(command)
        {
            return Some(Bytes(bytes));
        }
        let text = find(options).or_else(|| find(self.given_options())).or_else(default)?;
        size::parse(&text).ok()
    }

    /// The built-in workload that it is, also as a command.
    pub fn built_in_name(&self) -> Option<&str> {
        match &self.command {
            WorkloadCommand::BuiltIn { name, .. } => Some(name),
            WorkloadCommand::External { .. } => None,
            WorkloadCommand::Command { command, .. } => match &command[..] {
                [program, word, name, ..] if program == PAGELAB && word == "workload" => Some(name),
                _ => None,
            },
        }
    }

    /// Whether a guest must have this part for it.
    pub fn needs_part(&self, part: GuestPart) -> bool {
        let workload = self.built_in_name().and_then(pagelab_workloads::find_workload);
        workload.is_some_and(|workload| workload.guest_parts.contains(&part))
    }

    /// Its options as given.
    pub fn given_options(&self) -> &[(String, String)] {
        match &self.command {
            WorkloadCommand::BuiltIn { options, .. } | WorkloadCommand::External { options, .. } => options,
            WorkloadCommand::Command { .. } => &[],
        }
    }

    /// Applies the changes of a quick run.
    pub(super) fn apply_quick(&mut self) {
        match &mut self.command {
            WorkloadCommand::BuiltIn { options, .. } | WorkloadCommand::External { options, .. } => {
                merge_options(options, &self.quick_options)
            }
            WorkloadCommand::Command { command, .. } => {
                if let Some(quick) = self.quick_command.take() {
                    *command = quick;
                }
            }
        }
        self.duration = self.quick_duration.or(self.duration);
    }
}

/// `--size 1G`, `--size=1G` among the words of a command, in bytes.
pub(crate) fn size_argument(command: &[String]) -> Option<u64> {
    let at = command.iter().position(|word| word == "--size" || word.starts_with("--size="))?;
    let word = command[at].strip_prefix("--size=").or(command.get(at + 1).map(String::as_str))?;
    size::parse(word).ok().map(|bytes| bytes.0)
}

/// Later options replace earlier ones.
pub(crate) fn merge_options(options: &mut Vec<(String, String)>, overrides: &[(String, String)]) {
    for (name, value) in overrides {
        match options.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => value.clone_into(old),
            None => options.push((name.clone(), value.clone())),
        }
    }
}

pub(super) fn read_workload(table: &TomlTable, line: usize, problems: &mut ProblemList) -> Workload {
    let mut fields = TableFields::new(table, "workload", line);
    let built_in = fields.read_string(problems, "built_in");
    let external = fields.read_string(problems, "external");
    // The default name is that of the program; for a path, the name in its manifest.
    let manifest = external.as_ref().map(|name| external::load_manifest(name));
    let usual = match &manifest {
        Some(manifest) => manifest.as_ref().ok().map(|of| of.name.clone()).or(external.clone()),
        None => built_in.clone(),
    };
    let name = match (fields.take_item("name"), usual) {
        (None, Some(usual)) => usual,
        _ => fields.read_name(problems, "name"),
    };
    fields.name = format!("workload {name:?}");
    let has_command = fields.take_item("command").is_some();
    let kind = match (built_in, manifest, has_command) {
        (Some(of), None, false) => read_built_in(of, &mut fields, problems),
        (None, Some(manifest), false) => read_external(manifest, &mut fields, problems),
        (None, None, _) => read_command(&mut fields, problems),
        _ => {
            problems.add(line, format!("{}: expected only one of built_in, external, command", fields.name));
            fields.take_item("external");
            read_command(&mut fields, &mut ProblemList::default())
        }
    };
    let workload = Workload {
        name,
        line,
        time_limit: fields.read_duration(problems, "time_limit"),
        duration: fields.read_duration(problems, "takes").or(kind.duration),
        files: fields.read_texts(problems, "files").unwrap_or_default(),
        environment: read_environment(&mut fields, problems),
        icount: fields.read_count(problems, "icount", (0, u64::from(guest_size::ICOUNT_SHIFT_MAX))),
        quick_duration: fields.read_duration(problems, "quick_takes").or(kind.quick_duration),
        ..kind
    };
    fields.report_unknown_keys(problems);
    workload
}

fn read_built_in(name: String, fields: &mut TableFields<'_>, problems: &mut ProblemList) -> Workload {
    let heads = pagelab_workloads::find_workload(&name).map(|of| of.options);
    let options = read_options(heads, fields, problems, "options");
    let quick = read_options(heads, fields, problems, "quick");
    if heads.is_none() {
        let names: Vec<&str> = pagelab_workloads::WORKLOADS.iter().map(|workload| workload.name).collect();
        let text = names::describe_unknown("workload", &name, &names);
        problems.add(fields.line_of("built_in"), format!("{}: {text}", fields.describe_key("built_in")));
    }
    Workload::new(WorkloadCommand::BuiltIn { name, options }, quick)
}

fn read_external(
    manifest: Result<&'static Manifest, external::ManifestError>,
    fields: &mut TableFields<'_>,
    problems: &mut ProblemList,
) -> Workload {
    let manifest = manifest.map_err(|why| {
        problems.add(fields.line_of("external"), format!("{}: {why}", fields.describe_key("external")));
    });
    let heads = manifest.ok().map(|of| of.options);
    let options = read_options(heads, fields, problems, "options");
    let quick = read_options(heads, fields, problems, "quick");
    let Ok(manifest) = manifest else { return Workload::from_command(Vec::new()) };
    // The recipe's values for a quick run override those of the manifest.
    let mut all_quick = manifest.quick_options.clone();
    merge_options(&mut all_quick, &options);
    merge_options(&mut all_quick, &quick);
    Workload {
        duration: manifest.duration,
        quick_duration: manifest.quick_duration,
        ..Workload::new(WorkloadCommand::External { manifest, options }, all_quick)
    }
}

fn read_command(fields: &mut TableFields<'_>, problems: &mut ProblemList) -> Workload {
    let command = fields.read_texts(problems, "command");
    if command.as_ref().is_none_or(|words| words.first().is_none_or(String::is_empty)) {
        let required_text = "expected built_in = \"NAME\", command = [\"PROGRAM\", …] or external = \"NAME\"";
        problems.add(fields.line, format!("{}: {required_text}", fields.name));
    }
    let quick_command = fields.read_texts(problems, "quick_command");
    let command = WorkloadCommand::Command {
        command: command.unwrap_or_default(),
        metric: fields.read_table(problems, "metric").and_then(|metric| read_metric(metric, problems)),
        figures: read_figures(fields, problems),
        exit_codes: read_exit_codes(fields, problems),
        input: fields.read_string(problems, "input").unwrap_or_default(),
    };
    Workload { quick_command, ..Workload::new(command, Vec::new()) }
}

/// Pairs of `read_environment` with valid names.
pub(crate) fn read_environment(
    fields: &mut TableFields<'_>,
    problems: &mut ProblemList,
) -> Vec<(String, String)> {
    let pairs = fields.read_pairs(problems, "environment");
    for (name, value, line) in &pairs {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            let key = fields.describe_key("environment");
            problems.add(*line, format!("{key}: {name:?}: invalid variable name or value"));
        }
    }
    pairs.into_iter().map(|(name, value, _)| (name, value)).collect()
}

/// Options of a workload, checked against its table.
pub(crate) fn read_options(
    heads: Option<&'static [OptionSpec]>,
    fields: &mut TableFields<'_>,
    problems: &mut ProblemList,
    key: &'static str,
) -> Vec<(String, String)> {
    let pairs = fields.read_pairs(problems, key);
    let Some(heads) = heads else { return Vec::new() };
    let mut options = WorkloadOptions::with_defaults(heads);
    let mut valid_options = Vec::new();
    for (name, value, line) in pairs {
        match options.set_value(&name, &value) {
            Ok(()) => valid_options.push((name, value)),
            Err(why) => problems.add(line, format!("{}: {why}", fields.describe_key(key))),
        }
    }
    valid_options
}

/// Exit codes that are not a failure: 0 by default.
pub(crate) fn read_exit_codes(fields: &mut TableFields<'_>, problems: &mut ProblemList) -> Vec<i32> {
    let Some(item) = fields.take_item("exit_codes") else { return vec![0] };
    let code = |item: &TomlItem| match &item.node {
        TomlValue::Number(text) => text.parse().ok().filter(|code| (0..=255).contains(code)),
        _ => None,
    };
    let codes: Option<Vec<i32>> = match &item.node {
        TomlValue::List(items) if !items.is_empty() => items.iter().map(code).collect(),
        _ => None,
    };
    codes.unwrap_or_else(|| {
        let expected = "expected a list of numbers from 0 to 255, for example [0, 1]";
        problems.add(item.line, format!("{}: {expected}", fields.describe_key("exit_codes")));
        vec![0]
    })
}

/// Figures by name: `figures = [{ name = "…", pattern = "…", unit = "…" }, …]`.
pub(crate) fn read_figures(
    fields: &mut TableFields<'_>,
    problems: &mut ProblemList,
) -> Vec<(String, OutputMetric)> {
    let mut figures: Vec<(String, OutputMetric)> = Vec::new();
    for (table, line) in fields.read_tables(problems, "figures") {
        let mut figure_fields = TableFields::new(table, fields.describe_key("figures"), line);
        let name = figure_fields.read_name(problems, "name");
        if figures.iter().any(|(known, _)| *known == name) {
            problems.add(line, format!("{}: {name:?} is defined twice", figure_fields.name));
        }
        figures.extend(read_metric(figure_fields, problems).map(|metric| (name, metric)));
    }
    figures
}

pub(crate) fn read_metric(mut fields: TableFields<'_>, problems: &mut ProblemList) -> Option<OutputMetric> {
    let pattern = fields.read_text(problems, "pattern");
    let unit = fields.read_name(problems, "unit");
    let directions = [
        ("lower", BetterDirection::Lower),
        ("higher", BetterDirection::Higher),
        ("neither", BetterDirection::Neither),
    ];
    let better = fields.read_choice(problems, "better", &directions).unwrap_or(BetterDirection::Lower);
    let (line, what) = (fields.line, fields.name.clone());
    fields.report_unknown_keys(problems);
    let Some((pattern, at)) = pattern else {
        problems.add(line, format!("{what}: pattern is missing; expected pattern = \"done in {{}} s\""));
        return None;
    };
    let parts: Vec<&str> = pattern.split("{}").collect();
    let [before, behind] = parts[..] else {
        let text = format!("{what}: pattern: {pattern:?}: expected exactly one {{}} in place of the number");
        problems.add(at, text);
        return None;
    };
    if before.contains('\n') || behind.contains('\n') {
        problems.add(at, format!("{what}: pattern: must not contain a newline"));
    }
    Some(OutputMetric { prefix: before.to_owned(), suffix: behind.to_owned(), unit, better })
}
