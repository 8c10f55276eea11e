//! Recipes of the simulator (`place = "sim"`): machines times loads times schemes times seeds, as a TOML
//! file. What machines, loads and schemes there are is known to whoever runs them.

use pagelab_model::Bytes;

use crate::recipe::fields::{Fields, Problems, bytes};
use crate::recipe::{Bad, BuiltIn, check_name, document, table};

/// Seeds where a recipe does not say: enough for narrow intervals.
const SEEDS: u32 = 20;
/// Seeds of a quick run.
const QUICK_SEEDS: u32 = 2;
/// More seeds than anybody waits for.
const SEEDS_MAX: u64 = 1000;
/// Pictures of one trial at most.
const PICTURES_MAX: u64 = 1000;

/// The recipes that come with pagelab.
pub const BUILT_IN: &[BuiltIn] = &[
    BuiltIn { name: "anti-fragmentation", text: include_str!("../../../recipes/anti-fragmentation.toml") },
    BuiltIn { name: "long-use", text: include_str!("../../../recipes/long-use.toml") },
];

/// The recipe of this name.
pub fn find(name: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|recipe| recipe.name == name)
}

/// A study as its file asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Simulated {
    /// Where it is from: `built in` or a path.
    pub origin: String,
    /// Its short name.
    pub name: String,
    /// The question that it answers.
    pub question: String,
    /// What it does and how its numbers are to be read.
    pub explanation: String,
    /// The first seed; the others follow it.
    pub seed: u64,
    /// How many seeds.
    pub seeds: u32,
    /// Pictures of memory that are kept of each cell's first seed.
    pub pictures: u32,
    /// Machines.
    pub machines: Vec<Machine>,
    /// Loads.
    pub loads: Vec<Load>,
    /// Schemes; the others are compared with the first.
    pub schemes: Vec<String>,
    /// The line of them.
    pub schemes_line: usize,
    /// What a quick run changes.
    pub quick: Quick,
}

/// A machine of a study.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// What `kernelcore=` is, for schemes with a movable zone.
    pub kernelcore: Option<Bytes>,
    /// The lines of the machine and of its `kernelcore`.
    pub lines: (usize, usize),
}

/// A load of a study.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Its name.
    pub name: String,
    /// Parameters that are not as usual.
    pub parameters: Vec<(String, u64)>,
    /// The lines of the load and of its `set`.
    pub lines: (usize, usize),
}

/// What a quick run changes; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quick {
    /// How many seeds.
    pub seeds: Option<u32>,
    /// The machines that are simulated.
    pub machines: Option<Vec<String>>,
    /// The loads that run.
    pub loads: Option<Vec<String>>,
    /// The schemes that are compared.
    pub schemes: Option<Vec<String>>,
}

/// Whether a text is a recipe for the simulator. One that is no TOML is none.
pub fn is_simulated(text: &str) -> bool {
    let Ok(table) = document::parse(text, "") else { return false };
    Fields::new(&table, "", 1)
        .text(&mut Problems::default(), "place")
        .is_some_and(|(place, _)| place == PLACE)
}

const PLACE: &str = "sim";

impl Simulated {
    /// Reads a text that came from `origin`, and checks all of it but the names of what there is.
    pub fn parse(origin: &str, text: &str) -> Result<Simulated, Bad> {
        let document = table(origin, text)?;
        let mut problems = Problems::default();
        let recipe = read(&document, origin, &mut problems);
        if problems.0.is_empty() { Ok(recipe) } else { Err(Bad::of(origin, problems.0)) }
    }

    /// The refusal of what stands at a line.
    pub fn wrong_at(&self, line: usize, text: String) -> Bad {
        let mut problems = Problems::default();
        problems.say(line, text);
        Bad::of(&self.origin, problems.0)
    }

    /// The recipe as a quick run has it.
    pub fn quick(mut self) -> Simulated {
        let quick = std::mem::take(&mut self.quick);
        self.seeds = quick.seeds.unwrap_or(QUICK_SEEDS.min(self.seeds));
        let is_in = |names: &Option<Vec<String>>, name: &String| {
            names.as_ref().is_none_or(|names| names.contains(name))
        };
        self.machines.retain(|machine| is_in(&quick.machines, &machine.name));
        self.loads.retain(|load| is_in(&quick.loads, &load.name));
        self.schemes.retain(|scheme| is_in(&quick.schemes, scheme));
        self
    }
}

fn read(table: &document::Table, origin: &str, problems: &mut Problems) -> Simulated {
    let mut fields = Fields::new(table, "", 1);
    let name = fields.name(problems, "name");
    check_name(problems, &mut fields, &name);
    let question = fields.name(problems, "question");
    let explanation = fields.text(problems, "explanation").map_or("", |(text, _)| text).to_owned();
    fields.word(problems, "place", &[PLACE]);
    let machines = fields.tables(problems, "machine");
    let machines: Vec<Machine> = machines.into_iter().map(|(of, line)| machine(of, line, problems)).collect();
    let loads = fields.tables(problems, "load");
    let loads: Vec<Load> = loads.into_iter().map(|(of, line)| load(of, line, problems)).collect();
    let schemes = fields.texts(problems, "schemes").unwrap_or_default();
    for (what, count) in [
        ("machine is given: at least one [[machine]]", machines.len()),
        ("load is given: at least one [[load]]", loads.len()),
        ("scheme is given: schemes = [\"…\", …]", schemes.len()),
    ] {
        if count == 0 {
            problems.say(1, format!("no {what} was wanted"));
        }
    }
    twice(problems, &mut fields, &schemes);
    let schemes_line = fields.item("schemes").map_or(1, |item| item.line);
    let quick = fields.table(problems, "quick").map(|of| quick(of, problems)).unwrap_or_default();
    let recipe = Simulated {
        origin: origin.to_owned(),
        name,
        question,
        explanation,
        seed: fields.number(problems, "seed", (0, i64::MAX as u64 / 2)).unwrap_or(1),
        seeds: seeds(problems, &mut fields).unwrap_or(SEEDS),
        pictures: fields
            .number(problems, "pictures", (0, PICTURES_MAX))
            .and_then(|number| u32::try_from(number).ok())
            .unwrap_or(0),
        machines,
        loads,
        schemes,
        schemes_line,
        quick,
    };
    check_quick(problems, &recipe);
    fields.finish(problems);
    recipe
}

fn seeds(problems: &mut Problems, fields: &mut Fields<'_>) -> Option<u32> {
    fields.number(problems, "seeds", (1, SEEDS_MAX)).and_then(|number| u32::try_from(number).ok())
}

fn twice(problems: &mut Problems, fields: &mut Fields<'_>, schemes: &[String]) {
    let line = fields.item("schemes").map_or(1, |item| item.line);
    for (at, scheme) in schemes.iter().enumerate() {
        if schemes[..at].contains(scheme) {
            problems.say(line, format!("schemes: {scheme:?} is there twice"));
        }
    }
}

fn machine(table: &document::Table, line: usize, problems: &mut Problems) -> Machine {
    let mut fields = Fields::new(table, "machine", line);
    let name = fields.name(problems, "name");
    let kernelcore = fields.size(problems, "kernelcore");
    let of_core = fields.item("kernelcore").map_or(line, |item| item.line);
    let machine = Machine { name, kernelcore, lines: (line, of_core) };
    fields.finish(problems);
    machine
}

fn load(table: &document::Table, line: usize, problems: &mut Problems) -> Load {
    let mut fields = Fields::new(table, "load", line);
    let name = fields.name(problems, "name");
    let mut parameters = Vec::new();
    for (name, text, line) in fields.pairs(problems, "set") {
        match text.parse().ok().or_else(|| bytes(&text).map(|size| size.0)) {
            Some(value) => parameters.push((name, value)),
            None => problems.say(line, format!("load: set: {name} is {text:?}; a whole number was wanted")),
        }
    }
    let of_set = fields.item("set").map_or(line, |item| item.line);
    fields.finish(problems);
    Load { name, parameters, lines: (line, of_set) }
}

fn quick(mut fields: Fields<'_>, problems: &mut Problems) -> Quick {
    let quick = Quick {
        seeds: seeds(problems, &mut fields),
        machines: fields.texts(problems, "machines"),
        loads: fields.texts(problems, "loads"),
        schemes: fields.texts(problems, "schemes"),
    };
    fields.finish(problems);
    quick
}

/// A quick run keeps something of each.
fn check_quick(problems: &mut Problems, recipe: &Simulated) {
    let quick = &recipe.quick;
    let machines: Vec<&String> = recipe.machines.iter().map(|of| &of.name).collect();
    let loads: Vec<&String> = recipe.loads.iter().map(|of| &of.name).collect();
    let schemes: Vec<&String> = recipe.schemes.iter().collect();
    for (key, kept, there) in [
        ("machines", &quick.machines, machines),
        ("loads", &quick.loads, loads),
        ("schemes", &quick.schemes, schemes),
    ] {
        let Some(kept) = kept else { continue };
        if kept.is_empty() {
            problems.say(1, format!("quick: {key} is empty: nothing would run"));
        }
        for name in kept.iter().filter(|name| !there.contains(name)) {
            problems.say(1, format!("quick: {key}: {name:?} is not one of the recipe's"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name = \"a\"\nquestion = \"b?\"\nplace = \"sim\"\nschemes = [\"list\", \"zone\"]\n\
        [[machine]]\nname = \"x86\"\nkernelcore = \"1024M\"\n\
        [[load]]\nname = \"kbuild\"\nset = { builds = 7, cache = \"2M\" }\n";

    #[test]
    fn a_recipe_is_read_whole() {
        let recipe = Simulated::parse("t", GOOD).unwrap();
        let machine = Machine { name: "x86".to_owned(), kernelcore: Some(Bytes(1 << 30)), lines: (5, 7) };
        assert_eq!(recipe.machines, [machine]);
        assert_eq!((recipe.schemes_line, recipe.loads[0].lines), (4, (8, 10)));
        assert_eq!(recipe.wrong_at(7, "no".to_owned()).to_string(), "t:7: no");
        let parameters = [("builds".to_owned(), 7), ("cache".to_owned(), 2 << 20)];
        assert_eq!(recipe.loads[0].parameters, parameters);
        assert_eq!((recipe.seed, recipe.seeds, recipe.pictures), (1, 20, 0));
        assert_eq!(recipe.quick().seeds, 2);
        assert!(is_simulated(GOOD) && !is_simulated("place = \"host\"") && !is_simulated("="));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (from, to, said) in [
            ("place = \"sim\"", "place = \"host\"", "t:3: place: \"host\" is none of sim"),
            ("[\"list\", \"zone\"]", "[]", "t:1: no scheme is given"),
            ("\"zone\"]", "\"list\"]", "t:4: schemes: \"list\" is there twice"),
            ("1024M", "3Q", "t:7: machine: kernelcore: \"3Q\" is no size"),
            ("\"x86\"", "\"\"", "machine: name is empty"),
            ("builds = 7", "builds = -7", "load: set: builds is \"-7\""),
            ("question", "seeds = 0\nquestion", "seeds: a whole number from 1 to 1000"),
            ("question", "repeats = 2\nquestion", "repeats is no key that there is"),
            ("question", "quick = { schemes = [\"x\"] }\nquestion", "\"x\" is not one of the recipe's"),
            ("question", "quick = { loads = [] }\nquestion", "nothing would run"),
            ("name = \"a\"", "name = \"a/b\"", "becomes part of file names"),
        ] {
            let bad = Simulated::parse("t", &GOOD.replace(from, to)).unwrap_err();
            assert!(bad.to_string().contains(said), "{to}: {bad}");
        }
    }

    #[test]
    fn what_comes_with_pagelab_is_good() {
        for built_in in BUILT_IN {
            let recipe = Simulated::parse(built_in.name, built_in.text).unwrap();
            assert_eq!(recipe.name, built_in.name);
            assert!(!recipe.explanation.is_empty() && is_simulated(built_in.text));
            assert!(crate::recipe::find(built_in.name).is_none());
        }
    }

    #[test]
    fn the_papers_comparison_is_its_whole_sequence_and_the_desktop_has_a_recipe() {
        let loads = |name: &str| {
            let recipe = Simulated::parse(name, find(name).unwrap().text).unwrap();
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
