//! Recipes: an experiment as a TOML file, read, checked and typed. `docs/recipes.md` lists every key.

mod built_in;
mod crossing;
pub(crate) mod document;
pub(crate) mod fields;
mod variant;
pub(crate) mod workload;

use std::fmt;
use std::time::Duration;

use pagelab_model::experiment::{LOSS, Sequence};

pub use built_in::{BUILT_IN, BuiltIn, find};
pub use variant::{Fragmentation, Hog, HogKind, PageCache, Pin, Supervised, Thp, Variant, short};
pub(crate) use workload::merge;
pub use workload::{Metric, Runs, Workload};

use crate::probe::Wanted;
use fields::{Fields, Problems};

/// How long a trial may take where the recipe does not say.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// Repeats where the recipe does not say: enough for a verdict, and even, so that there and back balance.
const REPEATS: u32 = 10;
/// Repeats of a quick run: it shows that everything works, and decides nothing.
const QUICK_REPEATS: u32 = 2;
/// More repeats than anybody waits for.
const REPEATS_MAX: u64 = 10_000;

/// An experiment as its file asks for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Where it is from: `built in` or a path.
    pub origin: String,
    /// Its text as it was read.
    pub text: String,
    /// Its short name.
    pub name: String,
    /// The question that it answers.
    pub question: String,
    /// What it does and how its numbers are to be read.
    pub explanation: String,
    /// Seed of the order and of the workloads.
    pub seed: u64,
    /// How trials follow each other.
    pub sequence: Sequence,
    /// Rounds that count.
    pub repeats: u32,
    /// Rounds before them that do not.
    pub warm_up: u32,
    /// Whether each round has the baseline twice, which tells the noise floor.
    pub twins: bool,
    /// How long a trial may take.
    pub time_limit: Duration,
    /// What runs.
    pub workloads: Vec<Workload>,
    /// The settings under comparison.
    pub variants: Vec<Variant>,
    /// Index of the variant that the others are compared with.
    pub baseline: usize,
    /// The share of time that less memory may cost before it is too little.
    pub loss: f64,
    /// What is watched.
    pub probes: Wanted,
    /// What a quick run changes.
    pub quick: Quick,
}

/// What a quick run changes; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quick {
    /// Rounds that count.
    pub repeats: Option<u32>,
    /// Rounds before them.
    pub warm_up: Option<u32>,
    /// How long a trial may take.
    pub time_limit: Option<Duration>,
    /// The workloads that run.
    pub workloads: Option<Vec<String>>,
    /// The variants that are compared.
    pub variants: Option<Vec<String>>,
}

/// One thing that is wrong with a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong and what would be right, in one phrase.
    pub text: String,
}

/// A recipe that cannot be used: everything that is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bad {
    /// The file, or `built in`.
    pub origin: String,
    /// What is wrong, by line; never empty.
    pub problems: Vec<Problem>,
}

impl Bad {
    /// These, by line, of a text that came from `origin`.
    pub(crate) fn of(origin: &str, mut problems: Vec<Problem>) -> Bad {
        problems.sort_by_key(|problem| problem.line);
        Bad { origin: origin.to_owned(), problems }
    }
}

/// The text of a recipe as TOML.
pub(crate) fn table(origin: &str, text: &str) -> Result<document::Table, Bad> {
    document::parse(text, "a recipe is TOML, see docs/recipes.md")
        .map_err(|problem| Bad::of(origin, vec![problem]))
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.problems.iter().enumerate() {
            let gap = if number > 0 { "\n" } else { "" };
            write!(f, "{gap}{}:{}: {}", self.origin, problem.line, problem.text)?;
        }
        Ok(())
    }
}

impl std::error::Error for Bad {}

impl Recipe {
    /// Reads a text that came from `origin`, and checks all of it.
    pub fn parse(origin: &str, text: &str) -> Result<Recipe, Bad> {
        let document = table(origin, text)?;
        let mut problems = Problems::default();
        let recipe = read(&document, origin, text, &mut problems);
        // Crossings are judged where every part is good, so that one mistake is not told twice.
        if problems.0.is_empty() {
            crossing::check(&recipe, &mut problems);
        }
        if problems.0.is_empty() { Ok(recipe) } else { Err(Bad::of(origin, problems.0)) }
    }

    /// The recipe as a quick run has it.
    pub fn quick(mut self) -> Recipe {
        let quick = self.quick.clone();
        self.repeats = quick.repeats.unwrap_or(QUICK_REPEATS.min(self.repeats));
        self.warm_up = quick.warm_up.unwrap_or(self.warm_up.min(1));
        self.time_limit = quick.time_limit.unwrap_or(self.time_limit);
        if let Some(names) = &quick.workloads {
            self.workloads.retain(|workload| names.contains(&workload.name));
        }
        if let Some(names) = &quick.variants {
            let baseline = self.variants.get(self.baseline).map(|variant| variant.name.clone());
            self.variants.retain(|variant| names.contains(&variant.name));
            let place = self.variants.iter().position(|variant| Some(&variant.name) == baseline.as_ref());
            self.baseline = place.unwrap_or(0);
        }
        self.workloads.iter_mut().for_each(Workload::make_quick);
        self
    }

    /// The recipe's variants over one program instead of its workloads.
    pub fn over(mut self, command: Vec<String>) -> Recipe {
        self.workloads = vec![Workload::of_command(command)];
        for variant in &mut self.variants {
            // These are for the recipe's own workloads: a program is not ours to be told.
            variant.only = None;
            variant.options.clear();
            variant.arguments.clear();
            variant.advise = None;
            variant
                .settings
                .retain(|(key, _)| key != "advise" && key != "arguments" && !key.starts_with("options."));
        }
        self
    }

    /// Whether a variant is tried with a workload.
    pub fn crosses(&self, workload: usize, variant: usize) -> bool {
        let only = self.variants.get(variant).and_then(|variant| variant.only.as_ref());
        only.is_none_or(|only| self.workloads.get(workload).is_some_and(|w| only.contains(&w.name)))
    }
}

fn read(table: &document::Table, origin: &str, text: &str, problems: &mut Problems) -> Recipe {
    let mut fields = Fields::new(table, "", 1);
    let name = fields.name(problems, "name");
    check_name(problems, &mut fields, &name);
    let question = fields.name(problems, "question");
    let explanation = fields.text(problems, "explanation").map_or("", |(text, _)| text).to_owned();
    place(problems, &mut fields);
    let order = fields.word(problems, "order", &["abba", "blocks"]);
    let workloads = fields.tables(problems, "workload");
    let variants = fields.tables(problems, "variant");
    if workloads.is_empty() {
        problems.say(1, "no workload is given: at least one [[workload]] was wanted");
    }
    if variants.is_empty() {
        problems.say(1, "no variant is given: at least one [[variant]] was wanted");
    }
    let workloads: Vec<Workload> =
        workloads.into_iter().map(|(table, line)| workload::read(table, line, problems)).collect();
    let variants: Vec<Variant> =
        variants.into_iter().map(|(table, line)| variant::read(table, line, problems)).collect();
    let baseline = baseline(problems, &mut fields, &variants);
    let recipe = Recipe {
        origin: origin.to_owned(),
        text: text.to_owned(),
        name,
        question,
        explanation,
        seed: fields.number(problems, "seed", (0, i64::MAX as u64)).unwrap_or(1),
        sequence: if order == Some("blocks") { Sequence::Blocks } else { Sequence::Abba },
        repeats: count(problems, &mut fields, "repeats", 1).unwrap_or(REPEATS),
        warm_up: count(problems, &mut fields, "warm_up", 0).unwrap_or(1),
        twins: fields.switch(problems, "twins").unwrap_or(true),
        time_limit: fields.duration(problems, "time_limit").unwrap_or(TIME_LIMIT),
        workloads,
        variants,
        baseline,
        loss: loss(problems, &mut fields),
        probes: probes(problems, &mut fields),
        quick: fields.table(problems, "quick").map(|quick| read_quick(quick, problems)).unwrap_or_default(),
    };
    fields.finish(problems);
    recipe
}

fn read_quick(mut fields: Fields<'_>, problems: &mut Problems) -> Quick {
    let quick = Quick {
        repeats: count(problems, &mut fields, "repeats", 1),
        warm_up: count(problems, &mut fields, "warm_up", 0),
        time_limit: fields.duration(problems, "time_limit"),
        workloads: fields.texts(problems, "workloads"),
        variants: fields.texts(problems, "variants"),
    };
    fields.finish(problems);
    quick
}

fn count(problems: &mut Problems, fields: &mut Fields<'_>, key: &'static str, least: u64) -> Option<u32> {
    fields.number(problems, key, (least, REPEATS_MAX)).and_then(|number| u32::try_from(number).ok())
}

/// The name becomes part of file names.
pub(crate) fn check_name(problems: &mut Problems, fields: &mut Fields<'_>, name: &str) {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !name.is_empty() && !name.chars().all(is_plain) {
        let line = fields.item("name").map_or(1, |item| item.line);
        problems.say(line, format!("name: {name:?} becomes part of file names: letters, digits, - _ . do"));
    }
}

fn place(problems: &mut Problems, fields: &mut Fields<'_>) {
    if let Some((place, line)) = fields.text(problems, "place")
        && place != "host"
    {
        problems.say(line, format!("place: {place:?} is not accepted; accepted are: host"));
    }
}

fn probes(problems: &mut Problems, fields: &mut Fields<'_>) -> Wanted {
    let Some(words) = fields.texts(problems, "probes") else { return Wanted::default() };
    let line = fields.item("probes").map_or(1, |item| item.line);
    let wanted = Wanted::named(words.iter().map(String::as_str));
    wanted.unwrap_or_else(|why| {
        problems.say(line, format!("probes: {why}"));
        Wanted::default()
    })
}

fn loss(problems: &mut Problems, fields: &mut Fields<'_>) -> f64 {
    let share = fields.share(problems, "loss");
    if share == Some(0.0) {
        let line = fields.item("loss").map_or(1, |item| item.line);
        problems.say(line, "loss: 0 can be told from no loss by nobody; 0.05 is five per cent");
    }
    share.unwrap_or(LOSS)
}

fn baseline(problems: &mut Problems, fields: &mut Fields<'_>, variants: &[Variant]) -> usize {
    let Some((name, line)) = fields.text(problems, "baseline") else { return 0 };
    variants.iter().position(|variant| variant.name == name).unwrap_or_else(|| {
        let names: Vec<&str> = variants.iter().map(|variant| variant.name.as_str()).collect();
        problems.say(line, format!("baseline: {name:?} is no variant; there are {}", names.join(", ")));
        0
    })
}

#[cfg(test)]
mod tests;
