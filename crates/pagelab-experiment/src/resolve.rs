//! From a recipe and what the command line changes of it to a plan in which nothing is left open.

use std::time::Duration;

use pagelab_host::paths;
use pagelab_model::experiment::{Plan, VariantHead, WorkloadHead, measures};
use pagelab_workloads::table;

use crate::external;
use crate::recipe::{Bad, Problem, Recipe, Runs, Supervised, Workload};
use crate::schedule::schedule;

/// `pagelab apply PLAN -- COMMAND`.
fn supervised(plan: &Supervised, mut words: Vec<String>) -> Vec<String> {
    // The supervisor starts its program by its path, and is this very program.
    if let Some(first) = words.first_mut().filter(|first| *first == PAGELAB) {
        paths::SELF_EXE.clone_into(first);
    }
    let before = [PAGELAB, "apply", plan.word(), "--"];
    before.into_iter().map(str::to_owned).chain(words).collect()
}

/// The word that stands for this program as the first of a command.
pub const PAGELAB: &str = "pagelab";

/// What the command line changes of a recipe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Smaller and fewer: it shows that everything works, and decides nothing.
    pub quick: bool,
    /// Rounds that count.
    pub repeats: Option<u32>,
    /// Run this instead of the recipe's workloads.
    pub command: Option<Vec<String>>,
}

/// An experiment that can be carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The recipe with everything that the command line changed.
    pub recipe: Recipe,
    /// What is written to the run file.
    pub plan: Plan,
}

impl Resolved {
    /// Resolves it. An error says what the command line makes impossible.
    pub fn of(recipe: Recipe, overrides: &Overrides) -> Result<Resolved, Bad> {
        let mut recipe = recipe;
        if let Some(command) = &overrides.command {
            recipe = recipe.over(command.clone());
            // What is for the recipe's own workloads alone makes no sense over another program.
            recipe.quick.workloads = None;
            if let Some(variant) =
                recipe.variants.iter().find(|v| v.hog.is_some_and(|hog| hog.how.word() == "thread"))
            {
                let text = format!(
                    "variant {:?} has a hog that is a thread of the workload, which another program cannot \
                     have; take a recipe with how = \"process\"",
                    variant.name
                );
                let problem = Problem { line: variant.line.max(1), text };
                return Err(Bad { origin: recipe.origin, problems: vec![problem] });
            }
        }
        if overrides.quick {
            recipe = recipe.quick();
        }
        recipe.repeats = overrides.repeats.unwrap_or(recipe.repeats);
        let plan = plan(&recipe);
        Ok(Resolved { recipe, plan })
    }

    /// Options of a built-in under a variant.
    pub fn options(&self, workload: usize, variant: usize) -> Vec<(String, String)> {
        let (workload, variant) = (&self.recipe.workloads[workload], &self.recipe.variants[variant]);
        let mut options = workload.options().to_vec();
        crate::recipe::merge(&mut options, &variant.options);
        if let Some(advise) = variant.advise.as_ref().filter(|_| workload.takes_option("advise")) {
            crate::recipe::merge(&mut options, &[("advise".to_owned(), advise.clone())]);
        }
        options
    }

    /// The words of a trial, this program as [`PAGELAB`], its supervisor first where a plan is given.
    pub fn command(&self, workload: usize, variant: usize) -> Vec<String> {
        let words = self.program(workload, variant);
        match &self.recipe.variants[variant].plan {
            Some(plan) => supervised(plan, words),
            None => words,
        }
    }

    /// The same without a supervisor.
    pub fn program(&self, workload: usize, variant: usize) -> Vec<String> {
        let (of, under) = (&self.recipe.workloads[workload], &self.recipe.variants[variant]);
        let mut words = words(&self.recipe, of, &self.options(workload, variant));
        if let Runs::Command { .. } = of.runs {
            words.extend(under.arguments.iter().cloned());
        }
        words
    }

    /// Whether a trial asks for huge pages.
    pub fn asks_for_huge_pages(&self, workload: usize, variant: usize) -> bool {
        self.recipe.variants[variant].asks_for_huge_pages(&self.options(workload, variant))
    }

    /// How long a trial of a workload may take.
    pub fn time_limit(&self, workload: usize) -> Duration {
        self.recipe.workloads[workload].time_limit.unwrap_or(self.recipe.time_limit)
    }

    /// How long all of it takes, as far as the recipe says how long its workloads take, and at the most.
    pub fn estimate(&self) -> (Option<Duration>, Duration) {
        let slots = &self.plan.schedule;
        let most = slots.iter().map(|slot| self.time_limit(slot.workload)).sum();
        let takes = |workload: usize| self.recipe.workloads[workload].takes;
        (slots.iter().map(|slot| takes(slot.workload)).sum(), most)
    }
}

fn plan(recipe: &Recipe) -> Plan {
    let variant = |(at, variant): (usize, &crate::recipe::Variant)| {
        let crossed = recipe.workloads.iter().enumerate().filter(|(of, _)| recipe.crosses(*of, at));
        let asks = crossed.map(|(_, workload)| variant.asks_for_huge_pages(workload.options()));
        VariantHead {
            name: variant.name.clone(),
            settings: variant.settings.clone(),
            asks_for_huge_pages: asks.into_iter().any(|asks| asks),
        }
    };
    Plan {
        name: recipe.name.clone(),
        question: recipe.question.clone(),
        origin: recipe.origin.clone(),
        recipe: recipe.text.clone(),
        place: "host".to_owned(),
        workloads: recipe.workloads.iter().map(|workload| head(recipe, workload)).collect(),
        variants: recipe.variants.iter().enumerate().map(variant).collect(),
        baseline: recipe.baseline,
        sequence: recipe.sequence,
        seed: recipe.seed,
        loss: recipe.loss,
        schedule: schedule(recipe),
    }
}

fn head(recipe: &Recipe, workload: &Workload) -> WorkloadHead {
    let (generator, has_merit) = match &workload.runs {
        Runs::BuiltIn { name, .. } => (table::find(name).map_or("", |of| of.generator).to_owned(), true),
        Runs::External { manifest, options } => {
            let options = manifest.options(false, options);
            (options.map_or_else(|why| why, |options| external::run::input(manifest, &options)), true)
        }
        Runs::Command { input, metric, .. } => (input.clone(), metric.is_some()),
    };
    WorkloadHead {
        name: workload.name.clone(),
        command: words(recipe, workload, workload.options()),
        generator,
        merit: has_merit.then(|| measures::MERIT.to_owned()),
    }
}

fn words(recipe: &Recipe, workload: &Workload, options: &[(String, String)]) -> Vec<String> {
    let name = match &workload.runs {
        Runs::Command { command, .. } => return command.clone(),
        Runs::BuiltIn { name, .. } => name.clone(),
        Runs::External { manifest, .. } => manifest.asked.clone(),
    };
    let mut words = vec![PAGELAB.to_owned(), "workload".to_owned(), name];
    // The seed of the experiment is the seed of its workloads, unless one of them has its own.
    if workload.takes_option("seed") && !options.iter().any(|(name, _)| name == "seed") {
        words.extend(["--seed".to_owned(), recipe.seed.to_string()]);
    }
    words.extend(options.iter().flat_map(|(name, value)| [format!("--{name}"), value.clone()]));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(overrides: &Overrides) -> Resolved {
        let text = "name = \"a\"\nquestion = \"b\"\nseed = 9\nrepeats = 4\n\
                    [[workload]]\nbuilt_in = \"chase\"\noptions = { size = \"64M\" }\ntakes = \"2s\"\n\
                    [[workload]]\nname = \"x\"\ncommand = [\"pagelab\", \"frag\"]\ntakes = \"1s\"\n\
                    [[variant]]\nname = \"base\"\n\
                    [[variant]]\nname = \"huge\"\nthp = \"madvise\"\nadvise = \"huge\"\n";
        Resolved::of(Recipe::parse("test", text).unwrap(), overrides).unwrap()
    }

    #[test]
    fn commands_have_seed_options_and_advice() {
        let resolved = resolved(&Overrides::default());
        let text = |workload, variant| resolved.command(workload, variant).join(" ");
        assert_eq!(text(0, 0), "pagelab workload chase --seed 9 --size 64M");
        assert_eq!(text(0, 1), "pagelab workload chase --seed 9 --size 64M --advise huge");
        assert_eq!(text(1, 1), "pagelab frag", "another program asks by itself");
        assert!(resolved.asks_for_huge_pages(0, 1) && !resolved.asks_for_huge_pages(0, 0));
        assert!(resolved.plan.variants[1].asks_for_huge_pages);
        // Two workloads × (a warm-up and four rounds of two variants, and a twin each).
        assert_eq!(resolved.plan.schedule.len(), 2 * (2 + 4 * 3));
        assert_eq!(resolved.estimate().0, Some(Duration::from_secs(3 * (2 + 4 * 3))));
    }

    #[test]
    fn a_plan_puts_a_supervisor_before_the_command() {
        let text = "name = \"a\"\nquestion = \"b\"\nseed = 9\n\
                    [[workload]]\nbuilt_in = \"chase\"\n\
                    [[workload]]\nname = \"x\"\ncommand = [\"sort\", \"--\", \"y\"]\n\
                    [[variant]]\nname = \"base\"\nplan = \"none\"\n\
                    [[variant]]\nname = \"plan\"\nplan = \"x.toml\"\n";
        let resolved = Resolved::of(Recipe::parse("test", text).unwrap(), &Overrides::default()).unwrap();
        let text = |workload, variant| resolved.command(workload, variant).join(" ");
        assert_eq!(text(0, 0), format!("pagelab apply none -- {} workload chase --seed 9", paths::SELF_EXE));
        assert_eq!(text(1, 1), "pagelab apply x.toml -- sort -- y");
        assert_eq!(resolved.program(1, 1).join(" "), "sort -- y");
        assert!(resolved.plan.variants[1].asks_for_huge_pages);
        assert!(!resolved.plan.variants[0].asks_for_huge_pages);
    }

    #[test]
    fn a_command_takes_the_place_of_the_workloads() {
        let overrides = Overrides {
            quick: true,
            repeats: Some(7),
            command: Some(vec!["/bin/sort".to_owned(), "x".to_owned()]),
        };
        let resolved = resolved(&overrides);
        assert_eq!(resolved.plan.workloads.len(), 1);
        assert_eq!((resolved.plan.workloads[0].name.as_str(), resolved.recipe.repeats), ("sort", 7));
        assert_eq!(resolved.plan.workloads[0].merit, None);
        assert_eq!(resolved.plan.variants[1].settings, [("thp".to_owned(), "madvise".to_owned())]);
        assert_eq!(resolved.estimate().0, None, "nobody knows how long it takes");
    }
}
