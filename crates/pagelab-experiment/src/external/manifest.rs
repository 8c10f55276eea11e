//! Typed manifest of an external workload.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;
use std::{fmt, io};

use pagelab_formats::checksum::crc32;
use pagelab_formats::toml_document::TomlTable;
use pagelab_model::failure::describe_io_error;
use pagelab_model::{Bytes, names};
use pagelab_workloads::options::{self, DurationSpec, OptionSpec, OptionValue, ValueKind, WorkloadOptions};

use crate::recipe::table_fields::{ProblemList, TableFields};
use crate::recipe::workload::{read_environment, read_exit_codes, read_figures, read_metric, read_options};
use crate::recipe::{OutputMetric, RecipeError, parse_table};

/// An external workload. It lives as long as the process: its options are tables like those of the built-in
/// workloads, and a process reads only a few.
#[derive(Debug, PartialEq)]
pub struct Manifest {
    /// The requested name, or the path of its file.
    pub requested_as: String,
    /// Its name.
    pub name: String,
    /// Description in one line.
    pub summary: String,
    /// Its use of memory, and the difference from the original that its name suggests.
    pub explanation: String,
    /// Its input, with options in braces.
    pub input: String,
    /// Description of the memory that it touches.
    pub working_set: String,
    /// Disk space of its installation, its default data and a run.
    pub disk_space: Option<Bytes>,
    /// Duration of a run, approximate.
    pub duration: Option<Duration>,
    /// Duration of a quick run, approximate.
    pub quick_duration: Option<Duration>,
    /// Debian packages that have its programs.
    pub packages: Vec<String>,
    /// Debian packages whose files are used in any case.
    pub data_packages: Vec<String>,
    /// Programs that it starts.
    pub programs: Vec<RequiredProgram>,
    /// Directories of programs in addition to PATH, below the root; `*` matches any one name.
    pub program_dirs: Vec<String>,
    /// Directories of libraries in addition to the default ones, below the root.
    pub library_dirs: Vec<String>,
    /// Files that the user must provide.
    pub user_dir: Option<UserDir>,
    /// Its options.
    pub options: &'static [OptionSpec],
    /// Options of a quick run.
    pub quick_options: Vec<(String, String)>,
    /// Options on which the data depend.
    pub data_options: Vec<String>,
    /// Command that prepares the data, in the directory of the data.
    pub prepare: Option<Vec<String>>,
    /// Command of one run.
    pub command: Vec<String>,
    /// Name of the figure of merit.
    pub metric_name: String,
    /// Pattern of the figure of merit.
    pub metric: OutputMetric,
    /// Further figures.
    pub figures: Vec<(String, OutputMetric)>,
    /// The text before a checksum that is the same for the same options.
    pub checksum: Option<String>,
    /// Exit codes that are not a failure.
    pub exit_codes: Vec<i32>,
    /// Additions to its environment.
    pub environment: Vec<(String, String)>,
    /// Scripts and other files of the manifest.
    pub files: Vec<(String, Cow<'static, str>)>,
    /// Hash of this text and these files.
    pub fingerprint: String,
}

/// A program that a manifest requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequiredProgram {
    /// Its name.
    pub name: String,
    /// The oldest supported version.
    pub min_version: Option<String>,
}

/// Files that no package has and that the user builds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserDir {
    /// The variable that names the directory.
    pub variable: String,
    /// A file or directory in it; `*` matches any one name.
    pub required_entry: String,
    /// Description and source.
    pub description: String,
}

impl Manifest {
    /// The input of a run, for a report.
    pub fn describe_input(&self, options: &WorkloadOptions) -> String {
        fill_placeholders(&self.input, &|name| option_value(options, name))
    }

    /// Options of a run: the defaults, then the changes of a quick run, then these.
    pub fn resolve_options(
        &self,
        quick: bool,
        overrides: &[(String, String)],
    ) -> Result<WorkloadOptions, String> {
        let mut options = WorkloadOptions::with_defaults(self.options);
        let quick = self.quick_options.iter().filter(|_| quick);
        for (name, value) in quick.chain(overrides) {
            options.set_value(name, value)?;
        }
        Ok(options)
    }

    /// Whether it has this option.
    pub fn has_option(&self, option: &str) -> bool {
        self.options.iter().any(|head| head.name == option)
    }
}

/// Size limit of manifests and their files, which are some pages of text.
const BYTES_MAX: u64 = 1 << 20;
const FILES_MAX: usize = 100;

/// A file with its text.
pub type ManifestFile = (String, Cow<'static, str>);

/// Error of loading a manifest.
#[derive(Debug)]
pub enum ManifestError {
    /// pagelab has no manifest of this name.
    Unknown {
        /// The name.
        name: String,
        /// The names that it has.
        known: Vec<&'static str>,
    },
    /// Its file, or one that belongs to it, is not readable.
    Io(String, io::Error),
    /// It is invalid.
    Invalid(RecipeError),
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ManifestError::Unknown { name, known } => {
                let listed = known.join(", ");
                write!(f, "unknown external workload `{}`; expected one of {listed}, ", name.escape_debug())?;
                write!(f, "or the path of a manifest (containing a slash or .toml)")?;
                names::suggest(name, known).map_or(Ok(()), |hint| write!(f, "; hint: {hint}"))
            }
            ManifestError::Io(path, error) => {
                write!(f, "cannot read the manifest {path}: {}", describe_io_error(error))
            }
            ManifestError::Invalid(bad) => bad.fmt(f),
        }
    }
}

impl std::error::Error for ManifestError {}

/// Reads the manifest in this file, and the files in the directory beside it.
pub(super) fn read_file(name: &str) -> Result<Manifest, ManifestError> {
    let path = Path::new(name);
    let text = read_text(path).map_err(|error| ManifestError::Io(name.to_owned(), error))?;
    let files_dir = path.with_extension("");
    let files =
        read_files(&files_dir).map_err(|error| ManifestError::Io(files_dir.display().to_string(), error))?;
    parse(name, name, &text, files).map_err(ManifestError::Invalid)
}

fn read_text(path: &Path) -> io::Result<String> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > BYTES_MAX {
        return Err(io::Error::other(format!("expected a text file of at most {BYTES_MAX} bytes")));
    }
    std::fs::read_to_string(path)
}

/// The files in the directory beside a manifest, if it exists.
fn read_files(folder: &Path) -> io::Result<Vec<ManifestFile>> {
    let mut files = Vec::new();
    if !folder.is_dir() {
        return Ok(files);
    }
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if files.len() >= FILES_MAX {
            return Err(io::Error::other(format!("more than {FILES_MAX} files in its directory")));
        }
        let text = read_text(&entry.path());
        let text = text.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
        files.push((name, Cow::Owned(text)));
    }
    files.sort();
    Ok(files)
}

/// Parses a text from `origin`, requested as `name_or_path`, and checks all of it.
pub fn parse(
    origin: &str,
    name_or_path: &str,
    text: &str,
    files: Vec<ManifestFile>,
) -> Result<Manifest, RecipeError> {
    let document = parse_table(origin, text, "docs/external.md")?;
    let mut problems = ProblemList::default();
    let mut manifest = read_manifest(&document, name_or_path, &mut problems);
    manifest.files = files;
    // Equal manifests have equal fingerprints, independent of the source of their files.
    manifest.files.sort();
    if problems.0.is_empty() {
        check_manifest(&manifest, &mut problems);
    }
    problems.into_result(origin)?;
    let mut all = text.as_bytes().to_vec();
    for (name, text) in &manifest.files {
        all.extend([name.as_bytes(), b"\0", text.as_bytes(), b"\0"].concat());
    }
    manifest.fingerprint = format!("{:08x}", crc32(&all));
    Ok(manifest)
}

fn read_manifest(table: &TomlTable, name_or_path: &str, problems: &mut ProblemList) -> Manifest {
    let mut fields = TableFields::new(table, "", 1);
    let (metric_name, metric) = read_metric_table(&mut fields, problems);
    let options = read_option_heads(&mut fields, problems);
    let quick_options = read_options(Some(options), &mut fields, problems, "quick");
    let mut texts = |key| fields.read_texts(problems, key).unwrap_or_default();
    let [packages, data_packages, program_dirs, library_dirs, data_options] =
        ["packages", "data_packages", "program_folders", "library_folders", "data_options"].map(&mut texts);
    let (command, prepare) = (fields.read_texts(problems, "command"), fields.read_texts(problems, "prepare"));
    if command.as_ref().is_none_or(|words| words.first().is_none_or(String::is_empty)) {
        problems.add(1, "command is missing; expected command = [\"PROGRAM\", …]");
    }
    let mut text = |key| fields.read_string(problems, key).unwrap_or_default().trim().to_owned();
    let [explanation, input, working_set] = ["explanation", "input", "working_set"].map(&mut text);
    let name = fields.read_name(problems, "name");
    check_name(&name, &mut fields, problems);
    let manifest = Manifest {
        requested_as: name_or_path.to_owned(),
        name,
        summary: fields.read_name(problems, "about"),
        explanation,
        input,
        working_set,
        disk_space: fields.read_size(problems, "space"),
        duration: fields.read_duration(problems, "takes"),
        quick_duration: fields.read_duration(problems, "quick_takes"),
        packages,
        data_packages,
        programs: read_programs(&mut fields, problems),
        program_dirs,
        library_dirs,
        user_dir: fields.read_table(problems, "user_folder").map(|of| read_user_dir(of, problems)),
        options,
        quick_options,
        data_options,
        prepare: prepare.filter(|words| !words.is_empty()),
        command: command.unwrap_or_default(),
        metric_name,
        metric,
        figures: read_figures(&mut fields, problems),
        checksum: fields.read_string(problems, "checksum"),
        exit_codes: read_exit_codes(&mut fields, problems),
        environment: read_environment(&mut fields, problems),
        files: Vec::new(),
        fingerprint: String::new(),
    };
    fields.report_unknown_keys(problems);
    manifest
}

/// The name becomes a directory name.
fn check_name(name: &str, fields: &mut TableFields<'_>, problems: &mut ProblemList) {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let line = fields.line_of("name");
    if !name.is_empty() && !name.chars().all(is_plain) {
        problems.add(line, format!("name: {name:?}: expected letters, digits, - and _"));
    }
    if ["setup", "all"].contains(&name) || pagelab_workloads::find_workload(name).is_some() {
        problems.add(line, format!("name: {name:?} is already used"));
    }
}

fn read_metric_table(fields: &mut TableFields<'_>, problems: &mut ProblemList) -> (String, OutputMetric) {
    let no_metric = || {
        let better = pagelab_model::experiment::BetterDirection::Lower;
        OutputMetric { prefix: String::new(), suffix: String::new(), unit: String::new(), better }
    };
    let name = fields.read_name(problems, "metric_name");
    let Some(metric) = fields.read_table(problems, "metric") else {
        problems.add(1, "metric is missing; expected metric = { pattern = \"done in {} s\", unit = \"s\" }");
        return (name, no_metric());
    };
    (name, read_metric(metric, problems).unwrap_or_else(no_metric))
}

fn read_programs(fields: &mut TableFields<'_>, problems: &mut ProblemList) -> Vec<RequiredProgram> {
    let program = |(table, line): (&TomlTable, usize)| {
        let mut program_fields = TableFields::new(table, "program", line);
        let program = RequiredProgram {
            name: program_fields.read_name(problems, "name"),
            min_version: program_fields.read_string(problems, "least"),
        };
        program_fields.report_unknown_keys(problems);
        program
    };
    let tables = fields.read_tables(&mut ProblemList::default(), "program");
    tables.into_iter().map(program).collect()
}

fn read_user_dir(mut fields: TableFields<'_>, problems: &mut ProblemList) -> UserDir {
    let folder = UserDir {
        variable: fields.read_name(problems, "variable"),
        required_entry: fields.read_name(problems, "has"),
        description: fields.read_name(problems, "what"),
    };
    fields.report_unknown_keys(problems);
    folder
}

/// `[[option]]`: tables like those of the built-in workloads, which are constants, so they are leaked.
fn read_option_heads(fields: &mut TableFields<'_>, problems: &mut ProblemList) -> &'static [OptionSpec] {
    let mut heads: Vec<OptionSpec> = Vec::new();
    for (table, line) in fields.read_tables(problems, "option") {
        let mut option_fields = TableFields::new(table, "option", line);
        let name = option_fields.read_name(problems, "name");
        option_fields.name = format!("option {name:?}");
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let is_duplicate = DIR_NAMES.contains(&name.as_str()) || ["quick", "json", "help"].contains(&&*name);
        if !name.chars().all(is_plain) || is_duplicate || heads.iter().any(|head| head.name == name) {
            let text = "the name is already used, or has characters other than a-z, 0-9, _";
            problems.add(line, format!("{}: {text}", option_fields.name));
        }
        let kind = read_option_kind(&mut option_fields, problems);
        let default = option_fields.read_string(problems, "default").unwrap_or_default();
        let help = option_fields.read_name(problems, "help");
        option_fields.report_unknown_keys(problems);
        let (name, default, help) = (name.leak(), default.leak(), help.leak());
        let head = OptionSpec { name, kind, default, help };
        if let Err(why) = options::parse_value(&head, head.default) {
            problems.add(line, format!("option {:?}: default: {why}", head.name));
            continue;
        }
        heads.push(head);
    }
    heads.leak()
}

/// Longest duration of an option, in seconds: ten years.
const LONGEST_SECONDS: u64 = 3650 * 86_400;

fn read_option_kind(fields: &mut TableFields<'_>, problems: &mut ProblemList) -> ValueKind {
    let kind = fields.read_word(problems, "kind", &["size", "number", "duration", "word", "switch"]);
    let min = fields.read_number(problems, "least", (0, i64::MAX as u64)).unwrap_or(0);
    let max = fields.read_number(problems, "most", (0, i64::MAX as u64)).unwrap_or(u64::MAX);
    let words = fields.read_texts(problems, "words").unwrap_or_default();
    let former_name = fields.read_string(problems, "former_name").map(|name| &*name.leak());
    match kind {
        Some("size") => ValueKind::Size,
        Some("word") => {
            let words: Vec<&'static str> = words.into_iter().map(|word| &*word.leak()).collect();
            ValueKind::Choice(words.leak())
        }
        Some("switch") => ValueKind::Switch,
        Some("duration") => {
            let seconds = |number: u64| Duration::from_secs(number.min(LONGEST_SECONDS));
            ValueKind::Duration(DurationSpec {
                least: seconds(min),
                most: seconds(max),
                bare_unit: Duration::from_secs(1),
                former_name,
            })
        }
        _ => ValueKind::Number(min, max),
    }
}

/// Checks across parts: unknown names in braces.
fn check_manifest(manifest: &Manifest, problems: &mut ProblemList) {
    let known: BTreeSet<&str> =
        DIR_NAMES.into_iter().chain(manifest.options.iter().map(|head| head.name)).collect();
    let environment = manifest.environment.iter().map(|(_, value)| value);
    let prepare = manifest.prepare.iter().flatten();
    let parts: [(&str, Vec<&String>); 4] = [
        ("command", manifest.command.iter().collect()),
        ("prepare", prepare.collect()),
        ("environment", environment.collect()),
        ("input", vec![&manifest.input]),
    ];
    for (key, texts) in parts {
        for text in texts {
            let names = placeholder_names(text).unwrap_or_else(|why| {
                problems.add(1, format!("{key}: {why}"));
                Vec::new()
            });
            for name in names.into_iter().filter(|name| !known.contains(name)) {
                let known: Vec<&str> = known.iter().copied().collect();
                problems.add(1, format!("{key}: {}", names::describe_unknown("placeholder", name, &known)));
            }
        }
    }
    for name in manifest.data_options.iter().filter(|name| !manifest.has_option(name)) {
        let known: Vec<&str> = manifest.options.iter().map(|head| head.name).collect();
        problems.add(1, format!("data_options: {}", names::describe_unknown("option", name, &known)));
    }
    if manifest.programs.is_empty() {
        problems.add(1, "no program: expected at least one [[program]] with a name");
    }
}

/// Names that are not options: the directories of a run.
pub(super) const DIR_NAMES: [&str; 4] = ["files", "root", "data", "work"];

/// The names in braces in a text; an error if a brace is not closed.
pub(super) fn placeholder_names(text: &str) -> Result<Vec<&str>, String> {
    let mut names = Vec::new();
    let mut rest = text;
    while let Some((_, behind)) = rest.split_once('{') {
        let (name, rest_after) = behind.split_once('}').ok_or_else(|| format!("{text:?}: unclosed {{"))?;
        names.push(name);
        rest = rest_after;
    }
    Ok(names)
}

/// The text with each name replaced. The manifest has no unknown names.
pub(super) fn fill_placeholders(text: &str, value_of_name: &dyn Fn(&str) -> Option<String>) -> String {
    let mut output = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('{') {
        let Some((name, after)) = behind.split_once('}') else { break };
        output.push_str(before);
        output.push_str(&value_of_name(name).unwrap_or_default());
        rest = after;
    }
    output + rest
}

/// The value of an option for a program: sizes are in bytes, durations in seconds.
pub(super) fn option_value(options: &WorkloadOptions, name: &str) -> Option<String> {
    options.iter().find(|(head, _)| head.name == name).map(|(_, value)| match value {
        OptionValue::Size(bytes) => bytes.0.to_string(),
        OptionValue::Number(number) => number.to_string(),
        OptionValue::Thousandths(thousandths) => (*thousandths as f64 / 1000.0).to_string(),
        OptionValue::Duration(time) => time.as_secs().to_string(),
        OptionValue::Text(text) => text.clone(),
        OptionValue::Switch(is_on) => if *is_on { "yes" } else { "no" }.to_owned(),
    })
}

/// Files that every manifest has.
#[cfg(test)]
const SHARED_FILES: [&str; 2] = ["shared.sh", "postgres.sh"];

/// Name of a manifest, its text, and its files.
type EmbeddedManifest = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

macro_rules! manifests {
    ($($name:literal: [$($file:literal),*]),* $(,)?) => {
        /// In the order of the list.
        const EMBEDDED: &[EmbeddedManifest] = &[$((
            $name,
            include_str!(concat!("../../../../manifests/", $name, ".toml")),
            &[
                ("shared.sh", include_str!("../../../../manifests/shared.sh")),
                ("postgres.sh", include_str!("../../../../manifests/postgres.sh")),
                $(($file, include_str!(concat!("../../../../manifests/", $name, "/", $file)))),*
            ],
        )),*];
    };
}

manifests! {
    "redis": ["run.sh"],
    "sqlite": ["run.sh"],
    "pgbench": ["prepare.sh", "run.sh"],
    "tpcc": [
        "prepare.sh", "run.sh", "schema.sql", "load.sql", "transactions.sql", "consistency.sql",
        "new-order.sql", "payment.sql", "order-status.sql", "delivery.sql", "stock-level.sql"
    ],
    "hpl": ["run.sh"],
    "kernel-build": ["prepare.sh", "run.sh"],
    "sort": ["prepare.sh", "run.sh"],
    "xz": ["prepare.sh", "run.sh"],
    "parsec-canneal": ["run.sh"],
    "parsec-streamcluster": ["run.sh"],
    "splash2-fmm": ["run.sh"],
}

/// All of them. They are constants in text form: parsed once, and covered by tests.
static MANIFESTS: LazyLock<Vec<Manifest>> =
    LazyLock::new(|| EMBEDDED.iter().filter_map(parse_embedded).collect());

fn parse_embedded((name, text, files): &EmbeddedManifest) -> Option<Manifest> {
    let files = files.iter().map(|&(name, text)| (name.to_owned(), Cow::Borrowed(text))).collect();
    parse("built in", name, text, files).ok()
}

/// All embedded manifests.
pub fn manifests() -> &'static [Manifest] {
    &MANIFESTS
}

/// The manifest with this name.
pub fn find_manifest(name: &str) -> Option<&'static Manifest> {
    MANIFESTS.iter().find(|manifest| manifest.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn names_in_braces_are_found_and_filled() {
        assert_eq!(placeholder_names("a{b}c{d}").unwrap(), ["b", "d"]);
        assert!(placeholder_names("a{b").unwrap_err().contains("unclosed {"));
        assert!(placeholder_names("plain").unwrap().is_empty());
        let value = |name: &str| (name == "b").then(|| "{x}".to_owned());
        assert_eq!(fill_placeholders("a{b}c{d}e", &value), "a{x}ce", "inserted text is not expanded again");
    }

    #[test]
    fn every_manifest_is_good_and_every_file_of_the_folder_is_embedded() {
        for (name, text, files) in EMBEDDED {
            let files = files.iter().map(|&(name, text)| (name.to_owned(), Cow::Borrowed(text))).collect();
            let manifest = parse("built in", name, text, files).unwrap_or_else(|bad| panic!("{bad}"));
            assert_eq!(manifest.name, *name);
            assert!(!manifest.input.is_empty() && !manifest.working_set.is_empty(), "{name}");
            assert!(manifest.explanation.lines().all(|line| line.chars().count() <= 80), "{name}");
            assert!(manifest.duration.is_some() && manifest.quick_duration.is_some(), "{name}");
            assert!(!manifest.packages.is_empty() || manifest.user_dir.is_some(), "{name}");
        }
        assert_eq!(manifests().len(), EMBEDDED.len());
        let embedded: BTreeSet<String> = EMBEDDED
            .iter()
            .flat_map(|(name, _, files)| {
                let of = |file: &&(&str, &str)| !SHARED_FILES.contains(&file.0);
                let files = files.iter().filter(of).map(move |(file, _)| format!("{name}/{file}"));
                files.chain([format!("{name}.toml")])
            })
            .chain(SHARED_FILES.map(str::to_owned))
            .collect();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests");
        let mut there = BTreeSet::new();
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            match entry.path().is_dir() {
                false => drop(there.insert(name)),
                true => {
                    let files = std::fs::read_dir(entry.path()).unwrap().flatten();
                    there.extend(files.map(|file| format!("{name}/{}", file.file_name().display())));
                }
            }
        }
        assert_eq!(embedded, there);
    }
}
