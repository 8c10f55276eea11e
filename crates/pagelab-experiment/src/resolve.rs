//! Resolution of a recipe and the command line to a complete plan.

use std::collections::BTreeSet;
use std::time::Duration;

use pagelab_host::paths;
use pagelab_model::Bytes;
use pagelab_model::experiment::{EarlyEnd, Plan, PlannedVariant, PlannedWorkload, measures};
use pagelab_model::guest_size;

pub use crate::gate::PAGELAB;
use crate::recipe::table_fields::ProblemList;
use crate::recipe::{
    HogKind, Recipe, RecipeError, SupervisedPlan, TrialPlace, Variant, Workload, WorkloadCommand,
};
use crate::schedule::build_schedule;

/// How many times longer a program takes in an emulated guest, about (docs/guests.md): times of a recipe are
/// those of a machine.
const GUEST_SLOWDOWN: u32 = 10;

/// The share of a trial's time that probes may take in a guest, in multiples of that on a machine: times of
/// an emulated processor are not the result, and with the share of a machine huge pages are hardly ever seen.
const GUEST_PROBE_FACTOR: u64 = 20;

/// What is said of no rounds.
pub const NO_REPEATS: &str = "--repeats: expected an integer from 1 to 10000, found 0";
/// The line of problems of the command line.
const COMMAND_LINE: usize = 0;

/// `pagelab apply PLAN -- COMMAND`.
fn supervised_command(plan: &SupervisedPlan, overrides: bool, mut command: Vec<String>) -> Vec<String> {
    // The supervisor starts its program by its path, which is that of pagelab.
    if let Some(first) = command.first_mut().filter(|first| *first == PAGELAB) {
        paths::SELF_EXE.clone_into(first);
    }
    let before = [PAGELAB, "apply", plan.argument()].into_iter();
    let before = before.chain(overrides.then_some("--override")).chain(["--"]);
    before.map(str::to_owned).chain(command).collect()
}

/// Changes of a recipe on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExperimentOverrides {
    /// Smaller and fewer: it shows that everything works, and gives no verdict.
    pub quick: bool,
    /// Measured rounds.
    pub repeats: Option<u32>,
    /// Limit on the time of all trials.
    pub time_budget: Option<Duration>,
    /// Run this instead of the recipe's workloads.
    pub command: Option<Vec<String>>,
    /// Where trials run.
    pub place: Option<TrialPlace>,
    /// Kernels of guests.
    pub kernels: Vec<String>,
    /// Compares several kernels alone: of the variants only the baseline runs, with each of them.
    pub compares_kernels: bool,
    /// Memory of guests whose variant states none.
    pub guest_memory: Option<Bytes>,
    /// CPUs of guests.
    pub guest_cpus: Option<u32>,
    /// The seed of the trial that is to run, where it is not that of the recipe.
    pub seed: Option<u64>,
}

/// An experiment that can run.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedExperiment {
    /// The recipe with all changes of the command line.
    pub recipe: Recipe,
    /// The plan in the run file.
    pub plan: Plan,
    /// The variant of the recipe that alone runs, with several kernels, instead of all of them.
    pub compared_with: Option<String>,
    /// How many times longer trials take than the recipe says, which states the times of a machine.
    slowdown: u32,
}

impl ResolvedExperiment {
    /// Parses a recipe and resolves it. The error has the problems of its text and those with the command
    /// line and the place.
    pub fn parse(
        origin: &str,
        text: &str,
        overrides: &ExperimentOverrides,
    ) -> Result<ResolvedExperiment, RecipeError> {
        let (recipe, problems) = Recipe::read(origin, text)?;
        resolve_read(recipe, problems, overrides)
    }

    /// Resolves it. An error names the impossible combinations.
    pub fn resolve(
        recipe: Recipe,
        overrides: &ExperimentOverrides,
    ) -> Result<ResolvedExperiment, RecipeError> {
        resolve_read(recipe, ProblemList::default(), overrides)
    }

    /// Options of a built-in workload under a variant.
    pub fn workload_options(&self, workload: usize, variant: usize) -> Vec<(String, String)> {
        let (workload, variant) = (&self.recipe.workloads[workload], &self.recipe.variants[variant]);
        let mut options = workload.given_options().to_vec();
        crate::recipe::merge_options(&mut options, &variant.options);
        if let Some(advise) = variant.advise.as_ref().filter(|_| workload.has_option("advise")) {
            crate::recipe::merge_options(&mut options, &[("advise".to_owned(), advise.clone())]);
        }
        options
    }

    /// The command line of a trial, with [`PAGELAB`] for this program, its supervisor first if a plan is
    /// given.
    pub fn trial_command(&self, workload: usize, variant: usize) -> Vec<String> {
        let words = self.workload_command(workload, variant);
        let of_variant = &self.recipe.variants[variant];
        match &of_variant.supervised_plan {
            Some(plan) => supervised_command(plan, of_variant.overrides_advice, words),
            None => words,
        }
    }

    /// The same without a supervisor.
    pub fn workload_command(&self, workload: usize, variant: usize) -> Vec<String> {
        let (workload_recipe, variant_recipe) =
            (&self.recipe.workloads[workload], &self.recipe.variants[variant]);
        let mut words =
            command_words(&self.recipe, workload_recipe, &self.workload_options(workload, variant));
        if let WorkloadCommand::Command { .. } = workload_recipe.command {
            words.extend(variant_recipe.arguments.iter().cloned());
        }
        words
    }

    /// Whether a trial requests huge pages.
    pub fn asks_for_huge_pages(&self, workload: usize, variant: usize) -> bool {
        self.recipe.variants[variant].asks_for_huge_pages(&self.workload_options(workload, variant))
    }

    /// The same experiment in guests that run on the processor of a machine (KVM), at nearly its speed.
    pub fn with_native_speed(self) -> ResolvedExperiment {
        ResolvedExperiment { slowdown: 1, ..self }
    }

    /// Time limit of a trial of a workload.
    pub fn time_limit(&self, workload: usize) -> Duration {
        let limit = self.recipe.workloads[workload].time_limit.unwrap_or(self.recipe.time_limit);
        limit.saturating_mul(self.slowdown)
    }

    /// Duration of a trial of a workload, if the recipe states it.
    pub fn expected_time(&self, workload: usize) -> Option<Duration> {
        let stated = self.recipe.workloads.get(workload)?.duration?;
        Some(stated.saturating_mul(self.slowdown))
    }

    /// Duration of the experiment: an estimate, if the recipe has the durations of its workloads, and the
    /// upper limit.
    pub fn estimate_duration(&self) -> (Option<Duration>, Duration) {
        let slots = &self.plan.schedule;
        let duration_max = slots.iter().map(|slot| self.time_limit(slot.workload)).sum();
        (slots.iter().map(|slot| self.expected_time(slot.workload)).sum(), duration_max)
    }
}

/// Resolves a recipe that has these problems so far.
fn resolve_read(
    mut recipe: Recipe,
    mut problems: ProblemList,
    overrides: &ExperimentOverrides,
) -> Result<ResolvedExperiment, RecipeError> {
    if let Some(command) = &overrides.command {
        recipe = recipe.with_command(command.clone());
        // Settings for the recipe's own workloads make no sense with another program.
        recipe.quick_overrides.workloads = None;
        let has_thread = |variant: &&Variant| variant.hog.is_some_and(|hog| hog.kind == HogKind::Thread);
        if let Some(variant) = recipe.variants.iter().find(has_thread) {
            let text = format!(
                "variant {:?} has a hog with how = \"thread\", which works only with built-in workloads; \
                 hint: use how = \"process\"",
                variant.name
            );
            problems.add(variant.line.max(1), text);
        }
    }
    if overrides.quick {
        recipe = recipe.into_quick();
    }
    recipe.repeats = overrides.repeats.unwrap_or(recipe.repeats);
    recipe.seed = overrides.seed.unwrap_or(recipe.seed);
    recipe.time_budget = overrides.time_budget.or(recipe.time_budget);
    if recipe.repeats == 0 {
        problems.add(COMMAND_LINE, NO_REPEATS);
    }
    let compared_with = apply_guest(&mut recipe, overrides, &mut problems);
    recipe.check_for_place(recipe.place, &mut problems);
    problems.into_result(&recipe.origin)?;
    let is_guest = recipe.place == TrialPlace::Guest;
    if is_guest {
        recipe.cross_kernels();
        recipe.probes.share_permille = recipe.probes.share_permille.saturating_mul(GUEST_PROBE_FACTOR);
    }
    let plan = build_plan(&recipe);
    let slowdown = if is_guest { GUEST_SLOWDOWN } else { 1 };
    Ok(ResolvedExperiment { recipe, plan, compared_with, slowdown })
}

/// Applies the place, and the guest of the command line. Returns the variant that alone runs if kernels are
/// compared.
fn apply_guest(
    recipe: &mut Recipe,
    overrides: &ExperimentOverrides,
    problems: &mut ProblemList,
) -> Option<String> {
    recipe.place = overrides.place.unwrap_or(recipe.place);
    let guest = &mut recipe.guest;
    if let Some(memory) = overrides.guest_memory {
        guest.memory = Some(memory);
        if let Err(why) = guest_size::check_memory(memory) {
            problems.add(COMMAND_LINE, format!("--memory: {why}"));
        }
    }
    guest.cpus = overrides.guest_cpus.or(guest.cpus);
    if !overrides.kernels.is_empty() {
        guest.kernels.clone_from(&overrides.kernels);
        guest.lines.kernel = COMMAND_LINE;
    }
    if !overrides.compares_kernels || guest.kernels.len() < 2 || recipe.variants.len() < 2 {
        return None;
    }
    let baseline = recipe.baseline.min(recipe.variants.len() - 1);
    recipe.variants = recipe.variants.drain(..).skip(baseline).take(1).collect();
    recipe.baseline = 0;
    recipe.variants.first().map(|variant| variant.name.clone())
}

fn build_plan(recipe: &Recipe) -> Plan {
    let variant = |(at, variant): (usize, &Variant)| {
        let combined = recipe.workloads.iter().enumerate().filter(|(of, _)| recipe.is_combined(*of, at));
        let asks_for_huge_pages =
            combined.map(|(_, workload)| variant.asks_for_huge_pages(workload.given_options()));
        PlannedVariant {
            name: variant.name.clone(),
            settings: variant.settings.clone(),
            asks_for_huge_pages: asks_for_huge_pages.into_iter().any(|asks| asks),
            lists: Vec::new(),
        }
    };
    Plan {
        name: recipe.name.clone(),
        question: recipe.question.clone(),
        explanation: String::new(),
        origin: recipe.origin.clone(),
        recipe: recipe.text.clone(),
        place: match recipe.place {
            TrialPlace::Host => Plan::HOST.to_owned(),
            TrialPlace::Guest => Plan::GUEST.to_owned(),
        },
        simulator: None,
        workloads: recipe.workloads.iter().map(|workload| plan_workload(recipe, workload)).collect(),
        variants: recipe.variants.iter().enumerate().map(variant).collect(),
        baseline: Some(recipe.baseline),
        sequence: recipe.sequence,
        seed: recipe.seed,
        loss: recipe.acceptable_loss,
        schedule: build_schedule(recipe).into(),
        sweep: None,
        pictures: 0,
        early_end: (recipe.has_looks || recipe.time_budget.is_some()).then(|| EarlyEnd {
            rounds_max: recipe.repeats,
            has_looks: recipe.has_looks,
            time_budget_ns: recipe.time_budget.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
        }),
        dropped_variants: BTreeSet::new(),
    }
}

fn plan_workload(recipe: &Recipe, workload: &Workload) -> PlannedWorkload {
    let (generator, has_merit) = match &workload.command {
        WorkloadCommand::BuiltIn { name, .. } => {
            (pagelab_workloads::find_workload(name).map_or("", |of| of.generator).to_owned(), true)
        }
        WorkloadCommand::External { manifest, options } => {
            let options = manifest.resolve_options(false, options);
            (options.map_or_else(|why| why, |options| manifest.describe_input(&options)), true)
        }
        WorkloadCommand::Command { input, metric, .. } => (input.clone(), metric.is_some()),
    };
    PlannedWorkload {
        name: workload.name.clone(),
        command: command_words(recipe, workload, workload.given_options()),
        generator,
        merit: has_merit.then(|| measures::MERIT.to_owned()),
        simulated: None,
    }
}

fn command_words(recipe: &Recipe, workload: &Workload, options: &[(String, String)]) -> Vec<String> {
    let name = match &workload.command {
        WorkloadCommand::Command { command, .. } => return command.clone(),
        WorkloadCommand::BuiltIn { name, .. } => name.clone(),
        WorkloadCommand::External { manifest, .. } => manifest.requested_as.clone(),
    };
    let mut words = vec![PAGELAB.to_owned(), "workload".to_owned(), name];
    // The seed of the experiment is the default seed of its workloads.
    if workload.has_option("seed") && !options.iter().any(|(name, _)| name == "seed") {
        words.extend(["--seed".to_owned(), recipe.seed.to_string()]);
    }
    words.extend(options.iter().flat_map(|(name, value)| [format!("--{name}"), value.clone()]));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve_with(overrides: &ExperimentOverrides) -> ResolvedExperiment {
        let text = "name = \"a\"\nquestion = \"b\"\nseed = 9\nrepeats = 4\n\
                    [[workload]]\nbuilt_in = \"chase\"\noptions = { size = \"64M\" }\ntakes = \"2s\"\n\
                    [[workload]]\nname = \"x\"\ncommand = [\"pagelab\", \"frag\"]\ntakes = \"1s\"\n\
                    [[variant]]\nname = \"base\"\n\
                    [[variant]]\nname = \"huge\"\nthp = \"madvise\"\nadvise = \"huge\"\n";
        ResolvedExperiment::resolve(Recipe::parse("test", text).unwrap(), overrides).unwrap()
    }

    #[test]
    fn times_of_guests_are_longer_only_where_they_are_emulated() {
        let text = "name = \"a\"\nquestion = \"b\"\ntime_limit = \"30s\"\n\
                    [[workload]]\nbuilt_in = \"chase\"\ntakes = \"2s\"\n[[variant]]\nname = \"base\"\n";
        let times =
            |of: &ResolvedExperiment| (of.time_limit(0).as_secs(), of.expected_time(0).unwrap().as_secs());
        let resolve = |place| {
            let overrides = ExperimentOverrides { place: Some(place), ..ExperimentOverrides::default() };
            ResolvedExperiment::parse("test", text, &overrides).unwrap()
        };
        assert_eq!(times(&resolve(TrialPlace::Host)), (30, 2));
        let emulated = resolve(TrialPlace::Guest);
        assert_eq!(times(&emulated), (300, 20));
        assert_eq!(times(&emulated.with_native_speed()), (30, 2));
    }

    #[test]
    fn commands_have_seed_options_and_advice() {
        let resolved = resolve_with(&ExperimentOverrides::default());
        let text = |workload, variant| resolved.trial_command(workload, variant).join(" ");
        assert_eq!(text(0, 0), "pagelab workload chase --seed 9 --size 64M");
        assert_eq!(text(0, 1), "pagelab workload chase --seed 9 --size 64M --advise huge");
        assert_eq!(text(1, 1), "pagelab frag", "no workload in this recipe has an option `advise`");
        assert!(resolved.asks_for_huge_pages(0, 1) && !resolved.asks_for_huge_pages(0, 0));
        assert!(resolved.plan.variants[1].asks_for_huge_pages);
        // Two workloads × (a warm-up and four rounds of two variants, and a twin each).
        assert_eq!(resolved.plan.schedule.len(), 2 * (2 + 4 * 3));
        assert_eq!(resolved.estimate_duration().0, Some(Duration::from_secs(3 * (2 + 4 * 3))));
    }

    #[test]
    fn a_plan_puts_a_supervisor_before_the_command() {
        let text = "name = \"a\"\nquestion = \"b\"\nseed = 9\n\
                    [[workload]]\nbuilt_in = \"chase\"\n\
                    [[workload]]\nname = \"x\"\ncommand = [\"sort\", \"--\", \"y\"]\n\
                    [[variant]]\nname = \"base\"\nplan = \"none\"\n\
                    [[variant]]\nname = \"plan\"\nplan = \"x.toml\"\n\
                    [[variant]]\nname = \"all\"\nplan = \"all\"\noverride = true\n";
        let resolved = ResolvedExperiment::resolve(
            Recipe::parse("test", text).unwrap(),
            &ExperimentOverrides::default(),
        )
        .unwrap();
        let text = |workload, variant| resolved.trial_command(workload, variant).join(" ");
        assert_eq!(text(0, 0), format!("pagelab apply none -- {} workload chase --seed 9", paths::SELF_EXE));
        assert_eq!(text(1, 1), "pagelab apply x.toml -- sort -- y");
        assert_eq!(text(1, 2), "pagelab apply all --override -- sort -- y");
        assert_eq!(resolved.workload_command(1, 1).join(" "), "sort -- y");
        assert!(resolved.plan.variants[1].asks_for_huge_pages);
        assert!(!resolved.plan.variants[0].asks_for_huge_pages);
    }

    #[test]
    fn a_command_takes_the_place_of_the_workloads() {
        let overrides = ExperimentOverrides {
            quick: true,
            repeats: Some(7),
            command: Some(vec!["/bin/sort".to_owned(), "x".to_owned()]),
            ..ExperimentOverrides::default()
        };
        let resolved = resolve_with(&overrides);
        assert_eq!(resolved.plan.workloads.len(), 1);
        assert_eq!((resolved.plan.workloads[0].name.as_str(), resolved.recipe.repeats), ("sort", 7));
        assert_eq!(resolved.plan.workloads[0].merit, None);
        assert_eq!(resolved.plan.variants[1].settings, [("thp".to_owned(), "madvise".to_owned())]);
        assert_eq!(resolved.estimate_duration().0, None, "its duration is unknown");
    }
}
