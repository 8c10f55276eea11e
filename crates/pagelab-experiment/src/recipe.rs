//! Recipes: an experiment as a TOML file, parsed, checked and typed. `docs/recipes.md` lists every key.

use std::fmt;
use std::time::Duration;

use pagelab_formats::toml_document::{self, TomlTable};
use pagelab_metrics::effect::PAIRS_DEFAULT;
use pagelab_model::experiment::{DEFAULT_LOSS, Sequence};
use pagelab_model::names;
use pagelab_workloads::options::WorkloadOptions;

use crate::probe::ProbeSelection;
use table_fields::{ProblemList, TableFields};

pub(crate) use guest::is_enabled;
pub use guest::{
    BootPolicy, GuestLines, GuestOverrides, GuestTable, KERNEL_DEFAULT, LRU_GEN, RequiredGuest, TrialPlace,
};
pub use variant::{
    FragmentationTarget, HogKind, MemoryHog, PageCacheState, PinPolicy, SupervisedPlan, ThpMode, Variant,
};
pub use workload::{OutputMetric, Workload, WorkloadCommand};
pub(crate) use workload::{merge_options, size_argument};

mod guest;
pub(crate) mod table_fields;
#[cfg(test)]
mod tests;
mod variant;
pub(crate) mod workload;

const TIME_LIMIT_DEFAULT: Duration = Duration::from_secs(600);
/// Default number of repeats: enough for a verdict, and even, so that the two orders balance.
const REPEATS_DEFAULT: u32 = PAIRS_DEFAULT as u32;
/// Repeats of a quick run: it shows that everything works, and gives no verdict.
const REPEATS_QUICK: u32 = 2;
const REPEATS_MAX: u64 = 10_000;

/// An experiment as specified by its file.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Its origin: `built in` or a path.
    pub origin: String,
    /// Its text.
    pub text: String,
    /// Its short name.
    pub name: String,
    /// The question that it answers.
    pub question: String,
    /// Description, and how to read its numbers.
    pub explanation: String,
    /// Seed of the order and of the workloads.
    pub seed: u64,
    /// Whether each round has a seed of its own: `seed`, `seed` + 1 …
    pub has_seed_by_round: bool,
    /// Order of the trials.
    pub sequence: Sequence,
    /// Measured rounds.
    pub repeats: u32,
    /// Warm-up rounds.
    pub warm_up: u32,
    /// Whether each round has the baseline twice, which gives the noise floor.
    pub has_twins: bool,
    /// Whether it ends after 6, 9 or 13 rounds if every variant has an effect.
    pub has_looks: bool,
    /// Limit on the time of all trials.
    pub time_budget: Option<Duration>,
    /// Time limit of a trial.
    pub time_limit: Duration,
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// The compared settings.
    pub variants: Vec<Variant>,
    /// Index of the baseline variant.
    pub baseline: usize,
    /// Acceptable loss: the share of time that less memory may cost.
    pub acceptable_loss: f64,
    /// The probes.
    pub probes: ProbeSelection,
    /// Changes of a quick run.
    pub quick_overrides: QuickOverrides,
    /// Where its trials run.
    pub place: TrialPlace,
    /// The guest, if that is their place.
    pub guest: GuestTable,
}

/// Changes of a quick run; absent values stay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuickOverrides {
    /// Measured rounds.
    pub repeats: Option<u32>,
    /// Warm-up rounds.
    pub warm_up: Option<u32>,
    /// Time limit of a trial.
    pub time_limit: Option<Duration>,
    /// The workloads of a quick run.
    pub workloads: Option<Vec<String>>,
    /// The variants of a quick run.
    pub variants: Option<Vec<String>>,
}

/// One problem of a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeProblem {
    /// The line, from 1; 0 is the command line.
    pub line: usize,
    /// The problem and the expected value, in one phrase.
    pub text: String,
}

/// Error of an invalid recipe, with all its problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeError {
    /// The file, or `built in`.
    pub origin: String,
    /// The problems, by line; never empty.
    pub problems: Vec<RecipeProblem>,
}

/// Parses a text as TOML, whose keys are listed in `docs/recipes.md` or another document.
pub(crate) fn parse_table(origin: &str, text: &str, document: &str) -> Result<TomlTable, RecipeError> {
    toml_document::parse_document(text).map_err(|error| {
        let text = format!("{}; expected TOML, see {document}", error.message);
        RecipeError { origin: origin.to_owned(), problems: vec![RecipeProblem { line: error.line, text }] }
    })
}

impl fmt::Display for RecipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.problems.iter().enumerate() {
            let gap = if number > 0 { "\n" } else { "" };
            match problem.line {
                0 => write!(f, "{gap}{}", problem.text)?,
                line => write!(f, "{gap}{}:{line}: {}", self.origin, problem.text)?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for RecipeError {}

impl Recipe {
    /// Parses a text from `origin`, and checks all of it.
    pub fn parse(origin: &str, text: &str) -> Result<Recipe, RecipeError> {
        let (recipe, problems) = Recipe::read(origin, text)?;
        problems.into_result(origin).map(|()| recipe)
    }

    /// Parses a text, and returns its problems beside what could be read. An error: it is not TOML.
    pub(crate) fn read(origin: &str, text: &str) -> Result<(Recipe, ProblemList), RecipeError> {
        let document = parse_table(origin, text, "docs/recipes.md")?;
        let mut problems = ProblemList::default();
        let recipe = read_recipe(&document, origin, text, &mut problems);
        // Cross checks need valid parts, so that one mistake is not reported twice.
        if problems.0.is_empty() {
            check_recipe(&recipe, &mut problems);
        }
        Ok((recipe, problems))
    }

    /// The recipe with the changes of a quick run.
    pub fn into_quick(mut self) -> Recipe {
        let quick = self.quick_overrides.clone();
        self.repeats = quick.repeats.unwrap_or(REPEATS_QUICK.min(self.repeats));
        self.warm_up = quick.warm_up.unwrap_or(self.warm_up.min(1));
        self.has_looks = false;
        self.guest.boot = self.guest.boot.or(Some(BootPolicy::Round));
        self.time_limit = quick.time_limit.unwrap_or(self.time_limit);
        if let Some(names) = &quick.workloads {
            self.workloads.retain(|workload| names.contains(&workload.name));
        }
        if let Some(names) = &quick.variants {
            let baseline = self.variants.get(self.baseline).map(|variant| variant.name.clone());
            self.variants.retain(|variant| names.contains(&variant.name));
            let baseline_index =
                self.variants.iter().position(|variant| Some(&variant.name) == baseline.as_ref());
            self.baseline = baseline_index.unwrap_or(0);
        }
        self.workloads.iter_mut().for_each(Workload::apply_quick);
        self
    }

    /// The recipe's variants over one program instead of its workloads.
    pub fn with_command(mut self, command: Vec<String>) -> Recipe {
        self.workloads = vec![Workload::from_command(command)];
        for variant in &mut self.variants {
            // These are for the recipe's own workloads, not for an external program.
            variant.only_workloads = None;
            variant.options.clear();
            variant.arguments.clear();
            variant.advise = None;
            variant
                .settings
                .retain(|(key, _)| key != "advise" && key != "arguments" && !key.starts_with("options."));
        }
        self
    }

    /// Whether a variant runs with a workload.
    pub fn is_combined(&self, workload: usize, variant: usize) -> bool {
        let allowed_workloads =
            self.variants.get(variant).and_then(|variant| variant.only_workloads.as_ref());
        allowed_workloads
            .is_none_or(|only| self.workloads.get(workload).is_some_and(|w| only.contains(&w.name)))
    }
}

fn read_recipe(table: &TomlTable, origin: &str, text: &str, problems: &mut ProblemList) -> Recipe {
    let mut fields = TableFields::new(table, "", 1);
    let [name, question, explanation] = read_head(problems, &mut fields);
    let place = guest::read_place(problems, &mut fields);
    let guest = guest::read_guest(problems, &mut fields);
    let sequences = [("abba", Sequence::Abba), ("blocks", Sequence::Blocks)];
    let sequence = fields.read_choice(problems, "order", &sequences).unwrap_or(Sequence::Abba);
    let workloads = fields.read_tables(problems, "workload");
    let variants = fields.read_tables(problems, "variant");
    if workloads.is_empty() {
        problems.add(1, "no workload: expected at least one [[workload]]");
    }
    if variants.is_empty() {
        problems.add(1, "no variant: expected at least one [[variant]]");
    }
    let workloads: Vec<Workload> =
        workloads.into_iter().map(|(table, line)| workload::read_workload(table, line, problems)).collect();
    let variants: Vec<Variant> =
        variants.into_iter().map(|(table, line)| variant::read_variant(table, line, problems)).collect();
    let baseline = read_baseline(problems, &mut fields, &variants);
    let recipe = Recipe {
        origin: origin.to_owned(),
        text: text.to_owned(),
        name,
        question,
        explanation,
        seed: fields.read_number(problems, "seed", (0, i64::MAX as u64)).unwrap_or(1),
        has_seed_by_round: fields.read_bool(problems, "seed_by_round").unwrap_or(false),
        sequence,
        repeats: fields.read_count(problems, "repeats", (1, REPEATS_MAX)).unwrap_or(REPEATS_DEFAULT),
        warm_up: fields.read_count(problems, "warm_up", (0, REPEATS_MAX)).unwrap_or(1),
        has_twins: fields.read_bool(problems, "twins").unwrap_or(true),
        has_looks: read_looks(problems, &mut fields, sequence),
        time_budget: fields.read_duration(problems, "time_budget"),
        time_limit: fields.read_duration(problems, "time_limit").unwrap_or(TIME_LIMIT_DEFAULT),
        workloads,
        variants,
        baseline,
        acceptable_loss: read_loss(problems, &mut fields),
        probes: read_probes(problems, &mut fields),
        quick_overrides: fields
            .read_table(problems, "quick")
            .map(|quick| read_quick_overrides(quick, problems))
            .unwrap_or_default(),
        place,
        guest,
    };
    fields.report_unknown_keys(problems);
    recipe
}

impl Recipe {
    /// The seed of the workloads of a round.
    pub fn seed_of_round(&self, round: u32) -> u64 {
        if self.has_seed_by_round { self.seed.saturating_add(u64::from(round)) } else { self.seed }
    }
}

/// Whether there are looks, which require that pairs are independent.
fn read_looks(problems: &mut ProblemList, fields: &mut TableFields<'_>, sequence: Sequence) -> bool {
    let has_looks = fields.read_bool(problems, "looks").unwrap_or(false);
    if has_looks && sequence != Sequence::Blocks {
        problems.add(fields.line_of("looks"), "looks: requires order = \"blocks\"");
    }
    has_looks
}

fn read_quick_overrides(mut fields: TableFields<'_>, problems: &mut ProblemList) -> QuickOverrides {
    let quick = QuickOverrides {
        repeats: fields.read_count(problems, "repeats", (1, REPEATS_MAX)),
        warm_up: fields.read_count(problems, "warm_up", (0, REPEATS_MAX)),
        time_limit: fields.read_duration(problems, "time_limit"),
        workloads: fields.read_texts(problems, "workloads"),
        variants: fields.read_texts(problems, "variants"),
    };
    fields.report_unknown_keys(problems);
    quick
}

/// Name, question and explanation. The name becomes part of file names.
pub(crate) fn read_head(problems: &mut ProblemList, fields: &mut TableFields<'_>) -> [String; 3] {
    let name = fields.read_name(problems, "name");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !name.is_empty() && !name.chars().all(is_plain) {
        problems.add(fields.line_of("name"), format!("name: {name:?}: expected letters, digits, - _ and ."));
    }
    let question = fields.read_name(problems, "question");
    [name, question, fields.read_string(problems, "explanation").unwrap_or_default()]
}

fn read_probes(problems: &mut ProblemList, fields: &mut TableFields<'_>) -> ProbeSelection {
    let Some(words) = fields.read_texts(problems, "probes") else { return ProbeSelection::default() };
    let selection = ProbeSelection::from_names(words.iter().map(String::as_str));
    selection.unwrap_or_else(|why| {
        problems.add(fields.line_of("probes"), format!("probes: {why}"));
        ProbeSelection::default()
    })
}

fn read_loss(problems: &mut ProblemList, fields: &mut TableFields<'_>) -> f64 {
    let share = fields.read_share(problems, "loss");
    if share == Some(0.0) {
        problems.add(
            fields.line_of("loss"),
            "loss: 0 cannot be distinguished from no loss; hint: use for example 0.05 for 5 %",
        );
    }
    share.unwrap_or(DEFAULT_LOSS)
}

fn read_baseline(problems: &mut ProblemList, fields: &mut TableFields<'_>, variants: &[Variant]) -> usize {
    let Some((name, line)) = fields.read_text(problems, "baseline") else { return 0 };
    variants.iter().position(|variant| variant.name == name).unwrap_or_else(|| {
        let names: Vec<&str> = variants.iter().map(|variant| variant.name.as_str()).collect();
        problems.add(line, format!("baseline: {}", names::describe_unknown("variant", name, &names)));
        0
    })
}

/// A built-in recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuiltInRecipe {
    /// Its name, which is that of its file.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! embed_recipes {
    ($($name:literal),*) => {
        &[$(BuiltInRecipe {
            name: $name,
            text: include_str!(concat!("../../../recipes/", $name, ".toml")),
        }),*]
    };
}
pub(crate) use embed_recipes;

/// In the order of the list.
pub const BUILT_IN_RECIPES: &[BuiltInRecipe] = embed_recipes![
    "thp",
    "mmap-lab",
    "memory-size",
    "memory-size-programs",
    "fragmentation-cost",
    "fragment-compact",
    "external",
    "reclaim-references"
];

fn check_recipe(recipe: &Recipe, problems: &mut ProblemList) {
    check_names(recipe, problems);
    for (place, variant) in recipe.variants.iter().enumerate() {
        check_contradictions(variant, problems);
        let combined = |(at, _): &(usize, &Workload)| recipe.is_combined(*at, place);
        let workloads: Vec<&Workload> =
            recipe.workloads.iter().enumerate().filter(combined).map(|(_, workload)| workload).collect();
        check_workloads(variant, &workloads, problems);
    }
    if let Some(baseline) = recipe.variants.get(recipe.baseline)
        && baseline.only_workloads.is_some()
    {
        let text = "`workloads` cannot restrict the baseline: every workload is compared with it";
        baseline.add_problem(problems, text);
    }
    check_quick(recipe, problems);
}

fn check_names(recipe: &Recipe, problems: &mut ProblemList) {
    let workloads = recipe.workloads.iter().map(|workload| ("workload", &workload.name, workload.line));
    let variants = recipe.variants.iter().map(|variant| ("variant", &variant.name, variant.line));
    let all: Vec<_> = workloads.chain(variants).collect();
    for (at, (kind, name, line)) in all.iter().enumerate() {
        if all[..at].iter().any(|(other, known, _)| other == kind && known == name) {
            problems.add(*line, format!("{kind} {name:?} is defined twice"));
        }
    }
    for variant in &recipe.variants {
        for name in variant.only_workloads.iter().flatten() {
            if !recipe.workloads.iter().any(|workload| workload.name == *name) {
                let known: Vec<&String> = recipe.workloads.iter().map(|workload| &workload.name).collect();
                let text = names::describe_unknown("workload", name, &known);
                variant.add_problem(problems, format_args!("workloads: {text}"));
            }
        }
    }
}

fn check_contradictions(variant: &Variant, problems: &mut ProblemList) {
    let asks_for_huge_pages = variant.advise.as_deref() == Some("huge")
        || variant.options.iter().any(|(name, value)| name == "advise" && value == "huge");
    let disables_thp = matches!(variant.thp_mode, Some(ThpMode::NeverPrctl | ThpMode::Never));
    if let (true, true, Some(thp)) = (asks_for_huge_pages, disables_thp, variant.thp_mode)
        && (thp == ThpMode::NeverPrctl || variant.mthp_modes.is_empty())
    {
        variant.add_problem(
            problems,
            format_args!(
                "thp = {:?} disables huge pages even for advised memory, so advise = \"huge\" has no effect; \
                 hint: use thp = \"madvise\" or \"advised-only\"",
                thp.name()
            ),
        );
    }
    if variant.thp_mode == Some(ThpMode::NeverPrctl)
        && variant.mthp_modes.iter().any(|(_, mode)| mode != "never")
    {
        let text = "thp = \"never-prctl\" disables all sizes for the process, so mthp has no effect; hint: \
                    remove thp, or use thp = \"never\"";
        variant.add_problem(problems, text);
    }
    check_supervised(variant, problems);
    if variant.options.iter().any(|(name, _)| name == "advise") && variant.advise.is_some() {
        variant.add_problem(problems, "advise is set twice, once in options");
    }
    if variant.swap_limit.is_some() && variant.memory_limit.is_none() {
        variant.add_problem(problems, "swap requires memory_limit: without a limit nothing would be swapped");
    }
    if let (Some(hog), Some(limit)) = (variant.hog, variant.memory_limit)
        && hog.kind == HogKind::Thread
        && hog.size >= limit
    {
        let text = "the hog is a thread of the workload, so its size must be below memory_limit; hint: use \
            how = \"process\"";
        variant.add_problem(problems, text);
    }
}

/// Checks for settings that conflict with the supervisor of `plan`.
fn check_supervised(variant: &Variant, problems: &mut ProblemList) {
    if variant.overrides_advice
        && !variant.supervised_plan.as_ref().is_some_and(SupervisedPlan::requests_huge_pages)
    {
        variant.add_problem(problems, "override requires plan = \"all\" or a plan file");
    }
    let Some(plan) = &variant.supervised_plan else { return };
    if let Some(thp @ (ThpMode::NeverPrctl | ThpMode::AdvisedOnly)) = variant.thp_mode {
        variant.add_problem(
            problems,
            format_args!(
                "plan = {:?} controls huge pages by advice, which conflicts with thp = {:?}; hint: \
                 remove thp",
                plan.argument(),
                thp.name()
            ),
        );
    }
    if variant.hog.is_some_and(|hog| hog.kind == HogKind::Thread) {
        let text = "with a plan, the workload runs under a supervisor, so a hog cannot be one of its \
            threads; hint: use how = \"process\"";
        variant.add_problem(problems, text);
    }
}

fn check_workloads(variant: &Variant, workloads: &[&Workload], problems: &mut ProblemList) {
    if variant.advise.is_some() && !workloads.iter().any(|workload| workload.has_option("advise")) {
        variant.add_problem(problems, "advise: no workload in this recipe has an option `advise`");
    }
    for workload in workloads {
        let mut add_problem = |text: &str| {
            let text = format!("variant {:?} with workload {:?}: {text}", variant.name, workload.name);
            problems.add(variant.line, text);
        };
        let heads = workload.option_heads();
        if let (None, Some((option, _))) = (heads, variant.options.first()) {
            add_problem(&format!(
                "options.{option} does not apply to commands; hint: restrict the variant with `workloads = \
                […]`"
            ));
        }
        if !matches!(workload.command, WorkloadCommand::BuiltIn { .. })
            && variant.hog.is_some_and(|hog| hog.kind == HogKind::Thread)
        {
            add_problem("how = \"thread\" works only with built-in workloads; hint: use how = \"process\"");
        }
        let Some(heads) = heads else { continue };
        if let Some(first) = variant.arguments.first() {
            add_problem(&format!(
                "arguments ({first:?} …) apply only to commands; hint: use `options` for other workloads"
            ));
        }
        let mut all = WorkloadOptions::with_defaults(heads);
        for (name, value) in workload.given_options().iter().chain(&variant.options) {
            if let Err(why) = all.set_value(name, value) {
                add_problem(&why);
            }
        }
    }
}

fn check_quick(recipe: &Recipe, problems: &mut ProblemList) {
    let quick = &recipe.quick_overrides;
    let workloads = recipe.workloads.iter().map(|workload| &workload.name).collect();
    let variants = recipe.variants.iter().map(|variant| &variant.name).collect();
    check_quick_lists(
        [("workloads", &quick.workloads, workloads), ("variants", &quick.variants, variants)],
        problems,
    );
    if let (Some(names), Some(baseline)) = (&quick.variants, recipe.variants.get(recipe.baseline))
        && !names.contains(&baseline.name)
    {
        problems.add(1, format!("quick: variants: expected the baseline {:?} in the list", baseline.name));
    }
}

/// Key of a list of names in `[quick]`, the names that a quick run keeps, and all names of their kind.
pub(crate) type QuickList<'a> = (&'a str, &'a Option<Vec<String>>, Vec<&'a String>);

/// A quick run keeps at least one of each.
pub(crate) fn check_quick_lists<const N: usize>(lists: [QuickList<'_>; N], problems: &mut ProblemList) {
    for (key, kept, known) in lists {
        let Some(kept) = kept else { continue };
        for name in kept.iter().filter(|name| !known.contains(name)) {
            problems.add(1, format!("quick: {key}: {}", names::describe_unknown("name", name, &known)));
        }
        if kept.is_empty() {
            problems.add(1, format!("quick: {key} is empty"));
        }
    }
}
