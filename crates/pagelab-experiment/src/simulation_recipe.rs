//! Recipes of the simulator (`place = "sim"`): machines × loads × schemes × seeds, as a TOML file. The caller
//! knows the existing machines, loads and schemes.

use pagelab_model::{Bytes, size};

use crate::recipe::table_fields::{ProblemList, TableFields};
use crate::recipe::{BuiltInRecipe, RecipeError, RecipeProblem};
use crate::recipe::{check_quick_lists, embed_recipes, parse_table, read_head};
use pagelab_formats::toml_document::{self, TomlTable};

/// Default number of seeds: enough for narrow intervals.
const SEEDS_DEFAULT: u32 = 20;
const SEEDS_QUICK: u32 = 2;
const SEEDS_MAX: u64 = 1000;
const PICTURES_MAX: u64 = 1000;

/// Built-in recipes.
pub const BUILT_IN_SIMULATIONS: &[BuiltInRecipe] = embed_recipes!["anti-fragmentation", "long-use"];

/// The recipe of this name.
pub fn find_simulation(name: &str) -> Option<&'static BuiltInRecipe> {
    BUILT_IN_SIMULATIONS.iter().find(|recipe| recipe.name == name)
}

/// A study as specified by its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulationRecipe {
    /// Its origin: `built in` or a path.
    pub origin: String,
    /// Its short name.
    pub name: String,
    /// The question that it answers.
    pub question: String,
    /// Description, and how to read its numbers.
    pub explanation: String,
    /// The first seed; the others follow it.
    pub seed: u64,
    /// Number of seeds.
    pub seeds: u32,
    /// Number of memory pictures of each cell's first seed.
    pub pictures: u32,
    /// Machines.
    pub machines: Vec<SimulatedMachine>,
    /// Loads.
    pub loads: Vec<SimulatedLoad>,
    /// Schemes; the first is the baseline.
    pub schemes: Vec<String>,
    /// Their line.
    pub schemes_line: usize,
    /// Changes of a quick run.
    pub quick_overrides: SimulationQuickOverrides,
}

/// A machine of a study.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedMachine {
    /// Its name.
    pub name: String,
    /// Value of `kernelcore=`, for schemes with a movable zone.
    pub kernelcore: Option<Bytes>,
    /// The lines of the machine and of its `kernelcore`.
    pub lines: (usize, usize),
}

/// A load of a study.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedLoad {
    /// Its name.
    pub name: String,
    /// Parameters other than the defaults.
    pub parameters: Vec<(String, u64)>,
    /// The lines of the load and of its `set`.
    pub lines: (usize, usize),
}

/// Changes of a quick run; absent values stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimulationQuickOverrides {
    /// Number of seeds.
    pub seeds: Option<u32>,
    /// The machines of a quick run.
    pub machines: Option<Vec<String>>,
    /// The loads of a quick run.
    pub loads: Option<Vec<String>>,
    /// The schemes of a quick run.
    pub schemes: Option<Vec<String>>,
}

/// Whether a text is a recipe for the simulator; false for invalid TOML.
pub fn is_simulation_recipe(text: &str) -> bool {
    let Ok(table) = toml_document::parse_document(text) else { return false };
    TableFields::new(&table, "", 1)
        .read_text(&mut ProblemList::default(), "place")
        .is_some_and(|(place, _)| place == SIMULATION_PLACE)
}

const SIMULATION_PLACE: &str = "sim";

impl SimulationRecipe {
    /// Parses a text from `origin`, and checks all of it except the names of machines, loads and schemes.
    pub fn parse(origin: &str, text: &str) -> Result<SimulationRecipe, RecipeError> {
        let document = parse_table(origin, text, "docs/recipes.md")?;
        let mut problems = ProblemList::default();
        let recipe = read_recipe(&document, origin, &mut problems);
        problems.into_result(origin).map(|()| recipe)
    }

    /// The error for a problem at a line.
    pub fn error_at(&self, line: usize, text: String) -> RecipeError {
        RecipeError { origin: self.origin.clone(), problems: vec![RecipeProblem { line, text }] }
    }

    /// The recipe with the changes of a quick run.
    pub fn into_quick(mut self) -> SimulationRecipe {
        let quick = std::mem::take(&mut self.quick_overrides);
        self.seeds = quick.seeds.unwrap_or(SEEDS_QUICK.min(self.seeds));
        let is_in = |names: &Option<Vec<String>>, name: &String| {
            names.as_ref().is_none_or(|names| names.contains(name))
        };
        self.machines.retain(|machine| is_in(&quick.machines, &machine.name));
        self.loads.retain(|load| is_in(&quick.loads, &load.name));
        self.schemes.retain(|scheme| is_in(&quick.schemes, scheme));
        self
    }
}

fn read_recipe(table: &TomlTable, origin: &str, problems: &mut ProblemList) -> SimulationRecipe {
    let mut fields = TableFields::new(table, "", 1);
    let [name, question, explanation] = read_head(problems, &mut fields);
    fields.read_word(problems, "place", &[SIMULATION_PLACE]);
    let machines = fields.read_tables(problems, "machine");
    let machines: Vec<SimulatedMachine> =
        machines.into_iter().map(|(of, line)| read_machine(of, line, problems)).collect();
    let loads = fields.read_tables(problems, "load");
    let loads: Vec<SimulatedLoad> =
        loads.into_iter().map(|(of, line)| read_load(of, line, problems)).collect();
    let schemes = fields.read_texts(problems, "schemes").unwrap_or_default();
    for (requirement, count) in [
        ("at least one [[machine]]", machines.len()),
        ("at least one [[load]]", loads.len()),
        ("at least one scheme: schemes = [\"…\", …]", schemes.len()),
    ] {
        if count == 0 {
            problems.add(1, format!("expected {requirement}"));
        }
    }
    let schemes_line = fields.line_of("schemes");
    for (at, scheme) in schemes.iter().enumerate() {
        if schemes[..at].contains(scheme) {
            problems.add(schemes_line, format!("schemes: {scheme:?} is given twice"));
        }
    }
    let quick =
        fields.read_table(problems, "quick").map(|of| read_quick_overrides(of, problems)).unwrap_or_default();
    let recipe = SimulationRecipe {
        origin: origin.to_owned(),
        name,
        question,
        explanation,
        seed: fields.read_number(problems, "seed", (0, i64::MAX as u64 / 2)).unwrap_or(1),
        seeds: fields.read_count(problems, "seeds", (1, SEEDS_MAX)).unwrap_or(SEEDS_DEFAULT),
        pictures: fields.read_count(problems, "pictures", (0, PICTURES_MAX)).unwrap_or(0),
        machines,
        loads,
        schemes,
        schemes_line,
        quick_overrides: quick,
    };
    let quick = &recipe.quick_overrides;
    let machines = recipe.machines.iter().map(|machine| &machine.name).collect();
    let loads = recipe.loads.iter().map(|load| &load.name).collect();
    let lists = [
        ("machines", &quick.machines, machines),
        ("loads", &quick.loads, loads),
        ("schemes", &quick.schemes, recipe.schemes.iter().collect()),
    ];
    check_quick_lists(lists, problems);
    fields.report_unknown_keys(problems);
    recipe
}

fn read_machine(table: &TomlTable, line: usize, problems: &mut ProblemList) -> SimulatedMachine {
    let mut fields = TableFields::new(table, "machine", line);
    let name = fields.read_name(problems, "name");
    let kernelcore = fields.read_size(problems, "kernelcore");
    let machine = SimulatedMachine { name, kernelcore, lines: (line, fields.line_of("kernelcore")) };
    fields.report_unknown_keys(problems);
    machine
}

fn read_load(table: &TomlTable, line: usize, problems: &mut ProblemList) -> SimulatedLoad {
    let mut fields = TableFields::new(table, "load", line);
    let name = fields.read_name(problems, "name");
    let mut parameters = Vec::new();
    for (name, text, line) in fields.read_pairs(problems, "set") {
        match size::parse(&text) {
            Ok(Bytes(value)) => parameters.push((name, value)),
            Err(_) => problems.add(line, format!("load: set: {name}: expected an integer, found {text:?}")),
        }
    }
    let set_line = fields.line_of("set");
    fields.report_unknown_keys(problems);
    SimulatedLoad { name, parameters, lines: (line, set_line) }
}

fn read_quick_overrides(mut fields: TableFields<'_>, problems: &mut ProblemList) -> SimulationQuickOverrides {
    let quick = SimulationQuickOverrides {
        seeds: fields.read_count(problems, "seeds", (1, SEEDS_MAX)),
        machines: fields.read_texts(problems, "machines"),
        loads: fields.read_texts(problems, "loads"),
        schemes: fields.read_texts(problems, "schemes"),
    };
    fields.report_unknown_keys(problems);
    quick
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::BUILT_IN_RECIPES;

    const GOOD: &str = "name = \"a\"\nquestion = \"b?\"\nplace = \"sim\"\nschemes = [\"list\", \"zone\"]\n\
        [[machine]]\nname = \"x86\"\nkernelcore = \"1024M\"\n\
        [[load]]\nname = \"kbuild\"\nset = { builds = 7, cache = \"2M\" }\n";

    #[test]
    fn a_recipe_is_read_whole() {
        let recipe = SimulationRecipe::parse("t", GOOD).unwrap();
        let machine =
            SimulatedMachine { name: "x86".to_owned(), kernelcore: Some(Bytes(1 << 30)), lines: (5, 7) };
        assert_eq!(recipe.machines, [machine]);
        assert_eq!((recipe.schemes_line, recipe.loads[0].lines), (4, (8, 10)));
        assert_eq!(recipe.error_at(7, "no".to_owned()).to_string(), "t:7: no");
        let parameters = [("builds".to_owned(), 7), ("cache".to_owned(), 2 << 20)];
        assert_eq!(recipe.loads[0].parameters, parameters);
        assert_eq!((recipe.seed, recipe.seeds, recipe.pictures), (1, 20, 0));
        assert_eq!(recipe.into_quick().seeds, 2);
        assert!(
            is_simulation_recipe(GOOD)
                && !is_simulation_recipe("place = \"host\"")
                && !is_simulation_recipe("=")
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (from, to, said) in [
            ("place = \"sim\"", "place = \"host\"", "t:3: place: expected one of sim, found \"host\""),
            ("[\"list\", \"zone\"]", "[]", "t:1: expected at least one scheme"),
            ("\"zone\"]", "\"list\"]", "t:4: schemes: \"list\" is given twice"),
            ("1024M", "3Q", "t:7: machine: kernelcore: unknown unit; expected a size"),
            ("\"x86\"", "\"\"", "machine: name is empty"),
            ("builds = 7", "builds = -7", "load: set: builds: expected"),
            ("question", "seeds = 0\nquestion", "seeds: expected an integer from 1 to 1000"),
            ("question", "repeats = 2\nquestion", "unknown key `repeats`"),
            ("question", "quick = { schemes = [\"x\"] }\nquestion", "unknown name `x`"),
            ("question", "quick = { loads = [] }\nquestion", "is empty"),
            ("name = \"a\"", "name = \"a/b\"", "expected letters, digits"),
        ] {
            let bad = SimulationRecipe::parse("t", &GOOD.replace(from, to)).unwrap_err();
            assert!(bad.to_string().contains(said), "{to}: {bad}");
        }
    }

    #[test]
    fn what_comes_with_pagelab_is_good() {
        for built_in in BUILT_IN_SIMULATIONS {
            let recipe = SimulationRecipe::parse(built_in.name, built_in.text).unwrap();
            assert_eq!(recipe.name, built_in.name);
            assert!(!recipe.explanation.is_empty() && is_simulation_recipe(built_in.text));
            assert!(BUILT_IN_RECIPES.iter().all(|recipe| recipe.name != built_in.name));
        }
    }

    #[test]
    fn the_papers_comparison_is_its_whole_sequence_and_the_desktop_has_a_recipe() {
        let loads = |name: &str| {
            let recipe = SimulationRecipe::parse(name, find_simulation(name).unwrap().text).unwrap();
            (
                recipe.loads.iter().map(|load| load.name.clone()).collect::<Vec<_>>(),
                recipe.seeds,
                recipe.machines,
            )
        };
        let (paper, seeds, machines) = loads("anti-fragmentation");
        // docs/fidelity.md has its x86 part over as many seeds.
        assert_eq!((paper, seeds), (vec!["paper".to_owned()], 12));
        assert_eq!(machines[0].kernelcore, Some(Bytes(1024 << 20)));
        assert_eq!(loads("long-use").0, ["desktop"]);
    }
}
