//! Catalogue of policies, machines and loads, and validation of configurations before a run.

use pagelab_command::exit::{Failure, usage_error};
use pagelab_command::output;
use pagelab_experiment::place::FinishedTrial;
use pagelab_experiment::recipe::BuiltInRecipe;
use pagelab_experiment::simulation_recipe::{self, SimulationRecipe};
use pagelab_model::experiment::{Fraction, Measure, Trial};
use pagelab_model::simulation::{SimulatedConfiguration, SimulatedWorkload, SimulatedZone, figure_head};
use pagelab_model::{Bytes, names};
use pagelab_report::json::document_header;
use pagelab_report::json::object::{JsonObject, to_array};
use pagelab_report::style::{TextStyle, format_argument, format_bytes, format_count, format_exact};
use pagelab_report::text_report::TextReport;
use pagelab_sim::loads::{Load, Parameter};
use pagelab_sim::machine::{AnyPolicy, reclaim_policies};
use pagelab_sim::policies::{ALIASES, PolicyEntry};
use pagelab_sim::study::{Scheme, SimulatedFigure, SimulationOutcome, SimulationSpec};
use pagelab_sim::types::{AllocationType, CatalogueEntry, NamedPolicy};
use pagelab_sim::{loads, policies, study, zone_options};

fn policies() -> Vec<CatalogueEntry> {
    policies::TABLE.iter().map(catalogue_entry).collect()
}

fn catalogue_entry<P: ?Sized + 'static>(of: &NamedPolicy<P>) -> CatalogueEntry {
    CatalogueEntry { name: of.name, summary: of.summary, source: of.source }
}

/// Movable zone, added to a policy by `+`.
const ZONE: CatalogueEntry = CatalogueEntry {
    name: "zone",
    summary: "a zone for movable pages only, above kernelcore",
    source: "Gorman and Whitcroft 2006, section 6; ZONE_MOVABLE",
};

/// Keywords of compaction and reclaim, besides reclaim methods and zone options.
const COMPACTION_WORDS: [CatalogueEntry; 3] = [
    CatalogueEntry { name: "compaction", summary: "compaction for large blocks", source: "mm/compaction.c" },
    CatalogueEntry {
        name: "proactive",
        summary: "proactive compaction",
        source: "vm.compaction_proactiveness, Linux 5.9",
    },
    CatalogueEntry {
        name: "noactivate",
        summary: "reclaim ignores the accessed bit",
        source: "mm/vmscan.c without PAGEREF_ACTIVATE",
    },
];

/// Keywords that are added to a policy by `+`.
fn scheme_suffixes() -> Vec<CatalogueEntry> {
    let mut all = vec![ZONE];
    all.extend(reclaim_policies::selectable_policies().iter().map(catalogue_entry));
    all.extend(COMPACTION_WORDS);
    all.extend(zone_options::TABLE);
    all
}

/// Parts of the simulator that no run of a load uses, and where they are available.
const LIBRARY_ONLY: [CatalogueEntry; 4] = [
    CatalogueEntry {
        name: "nodes",
        summary: "NUMA machines: no load sets a memory policy or node placement",
        source: "pagelab_sim::layout::Layout::x86_64",
    },
    CatalogueEntry {
        name: "trees",
        summary: "trees of pageblocks: only in sim bench",
        source: "pagelab_sim::llfree, after LLFree",
    },
    CatalogueEntry {
        name: "large folios",
        summary: "user folios above order 0: no load allocates them",
        source: "pagelab_sim::machine::AllocRequest, with an order",
    },
    CatalogueEntry {
        name: "splits",
        summary: "splits of live blocks: only in sim replay",
        source: "pagelab_sim::zone::Zone::split_block",
    },
];

/// Machines by name; x86-64 of any size is a machine too.
const MACHINES: [CatalogueEntry; 3] = [
    CatalogueEntry {
        name: "x86",
        summary: "1518 MiB, huge pages of 4 MiB (order 10), high memory",
        source: "Gorman and Whitcroft 2006, section 7",
    },
    CatalogueEntry {
        name: "ppc64",
        summary: "4019 MiB, huge pages of 16 MiB (order 12), one zone",
        source: "Gorman and Whitcroft 2006, section 7",
    },
    CatalogueEntry { name: "16G", summary: "x86-64 of any size, huge pages of 2 MiB (order 9)", source: "" },
];

/// Part of a configuration that is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigurationPart {
    /// The scheme.
    Scheme,
    /// The machine.
    Machine,
    /// The boundary of ZONE_MOVABLE.
    Kernelcore,
    /// The load.
    Load,
    /// Parameters of the load.
    Parameters,
}

/// Validates a configuration; the error names the invalid part, and states the expected value, the obstacle
/// and the remedy.
pub fn check_configuration_parts(
    configuration: &SimulatedConfiguration,
) -> Result<(), (ConfigurationPart, String)> {
    let (workload, scheme) = (&configuration.workload, &configuration.scheme);
    let of = |part: ConfigurationPart| move |text: String| (part, text);
    check_scheme(scheme).map_err(of(ConfigurationPart::Scheme))?;
    loads::find_load(&workload.load).map_err(|wrong| of(ConfigurationPart::Load)(wrong.to_string()))?;
    check_kernelcore(workload).map_err(of(ConfigurationPart::Kernelcore))?;
    let run = |workload: &SimulatedWorkload| {
        let spec = SimulationSpec::new(workload.clone(), scheme, 0, 0).map_err(|wrong| wrong.to_string())?;
        study::check_spec(&spec).map_err(|wrong| format!("{wrong} (pagelab sim list)"))
    };
    // If the configuration is valid without a part, that part is invalid.
    let without = |part: ConfigurationPart| match part {
        ConfigurationPart::Parameters => SimulatedWorkload { parameters: Vec::new(), ..workload.clone() },
        _ => SimulatedWorkload { parameters: Vec::new(), kernelcore: None, ..workload.clone() },
    };
    run(workload).map_err(|text| {
        let parts = [ConfigurationPart::Parameters, ConfigurationPart::Kernelcore];
        let part = parts.into_iter().find(|&part| run(&without(part)).is_ok());
        (part.unwrap_or(ConfigurationPart::Machine), text)
    })
}

fn check_scheme(text: &str) -> Result<(), String> {
    let words: Vec<&str> = text.split('+').collect();
    for (at, word) in words.iter().enumerate() {
        if word.is_empty() || words[..at].contains(word) {
            let what = if word.is_empty() { "an empty name".to_owned() } else { format!("{word} twice") };
            return Err(format!("{text:?}: {what}; expected names joined by +, for example zone+linear"));
        }
    }
    let policies: Vec<&str> =
        reclaim_policies::selectable_policies().iter().map(|entry| entry.name).collect();
    if policies.iter().filter(|name| words.contains(name)).count() > 1 {
        return Err(format!("{text}: expected only one reclaim method: {}", policies.join(" or ")));
    }
    let unknown = |word: &&str| !is_scheme_suffix(word) && policies::find_policy(word).is_none();
    if let Some(word) = words.iter().find(|word| unknown(word)) {
        let added: Vec<&str> = scheme_suffixes().iter().map(|word| word.name).collect();
        let known = [&policy_names()[..], &added].concat();
        let hint = names::suggest(word, &known).unwrap_or_else(|| "run `pagelab sim list`".to_owned());
        return Err(format!(
            "{text}: unknown policy or option `{word}`; expected one of the policies {}, or the options \
             {}; hint: {hint}",
            policy_names().join(", "),
            added.join(", ")
        ));
    }
    Scheme::parse(text).map(|_| ()).map_err(|wrong| format!("{text}: {wrong} (pagelab sim list)"))
}

/// Whether a word is a suffix keyword, with a size if it takes one.
fn is_scheme_suffix(word: &str) -> bool {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    scheme_suffixes().iter().any(|of| match of.name.split_once('=') {
        Some((of, _)) => of == name,
        None => of.name == word,
    })
}

/// Names of all placement policies, short names last.
fn policy_names() -> Vec<&'static str> {
    let short = ALIASES.iter().map(|(name, _)| *name);
    policies::TABLE.iter().map(|policy| policy.name).chain(short).collect()
}

/// Placement policies of the given names, for a command that has only the allocator, no zones and no reclaim.
/// `cannot`: its limitation.
pub fn placement_policies(
    option: &str,
    given: &[String],
    cannot: &str,
) -> Result<Vec<&'static PolicyEntry>, Failure> {
    reject_duplicates(option, given)?;
    let mut policies: Vec<&'static PolicyEntry> = Vec::new();
    for name in given {
        let added = name.split('+').find(|word| is_scheme_suffix(word));
        let Some(entry) = policies::find_policy(name) else {
            let why = match added {
                Some(word) => format!(
                    "{word} requires a machine with zones and reclaim, but {cannot}; expected one of {}",
                    policy_names().join(", ")
                ),
                None => names::describe_unknown("policy", name, &policy_names()),
            };
            return Err(usage_error(&format!("{option}: {why}")));
        };
        if policies.iter().any(|known| known.name == entry.name) {
            return Err(usage_error(&format!("{option} {name:?}: {} is given twice", entry.name)));
        }
        policies.push(entry);
    }
    Ok(policies)
}

/// Bytes of a machine's largest blocks, the unit of zone sizes.
fn largest_block_bytes(machine: &str) -> u64 {
    if machine == "ppc64" { 16 << 20 } else { 4 << 20 }
}

/// Rejects sizes that are no multiple of the largest block: zones begin at one, so the size would be rounded.
fn check_kernelcore(workload: &SimulatedWorkload) -> Result<(), String> {
    let Some(size) = workload.kernelcore else { return Ok(()) };
    let largest = largest_block_bytes(&workload.machine);
    if size > 0 && size.is_multiple_of(largest) {
        return Ok(());
    }
    let near = format_argument(Bytes((size / largest * largest).max(largest)));
    Err(format!(
        "kernelcore of {}: zones of {} are aligned to {}; hint: use for example {near}",
        format_exact(Bytes(size)),
        workload.machine,
        format_bytes(Bytes(largest))
    ))
}

/// Names of the allocation types that a list of a policy serves.
pub fn types_on_list(policy: AnyPolicy, list: u8) -> Vec<&'static str> {
    let types = AllocationType::ALL.into_iter().zip(["unmovable", "movable", "reclaimable"]);
    types.filter(|&(kind, _)| policy.allocation_list(kind) == list).map(|(_, name)| name).collect()
}

/// Contents of each free list of a scheme's policy, by number; empty for an unknown scheme.
pub fn list_descriptions(scheme: &str) -> Vec<String> {
    let Ok(scheme) = Scheme::parse(scheme) else { return Vec::new() };
    let Some(policy) = policies::find_policy(&scheme.policy).map(|entry| entry.policy) else {
        return Vec::new();
    };
    let list = |list: u8| match types_on_list(policy, list).as_slice() {
        [] => format!("list {list}"),
        types if types.len() == AllocationType::ALL.len() => "all".to_owned(),
        types => types.join(", "),
    };
    let reserve_lists = scheme.zone_options.extra_list_names().iter().map(|&list| list.to_owned());
    (0..policy.list_count()).map(list).chain(reserve_lists).collect()
}

/// Zones of a configuration's machine; empty if unknown.
pub fn machine_zones(configuration: &SimulatedConfiguration) -> Vec<SimulatedZone> {
    let spec = SimulationSpec::new(configuration.workload.clone(), &configuration.scheme, 0, 0).ok();
    spec.and_then(|spec| study::machine_zones(&spec).ok()).unwrap_or_default()
}

/// Converts an outcome to a trial.
pub fn simulated_trial(slot: usize, outcome: SimulationOutcome) -> FinishedTrial {
    let measure = |of: SimulatedFigure| {
        let exact = Fraction { numerator: of.value, denominator: of.divisor.max(1) };
        Measure::from_fraction(figure_head(of.phase, of.name, of.unit).into(), exact)
    };
    let trial = Trial {
        measures: outcome.figures.into_iter().map(measure).collect(),
        series: outcome.series,
        notes: outcome.notes,
        ..Trial::new(slot, 0)
    };
    FinishedTrial { trial, events: Vec::new(), pictures: outcome.pictures }
}

/// Refuses a name that is there twice: it would be run twice, or be left out without a word.
pub fn reject_duplicates<N: PartialEq + AsRef<str>>(option: &str, names: &[N]) -> Result<(), Failure> {
    let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
    twice.map_or(Ok(()), |(_, name)| {
        Err(usage_error(&format!("{option}: {:?} is given twice", name.as_ref())))
    })
}

/// Renders the list of all entries.
pub fn list_text(style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    write_entries(
        &mut output,
        "policies: which free list a block is on, and the fallbacks if it is empty",
        &policies(),
    );
    for (short, name) in ALIASES {
        output.add_paragraph(&format!("  {short:<15}"), &format!("short for {name}"));
    }
    write_entries(&mut output, "scheme options, joined by +, as in list2+zone+linear", &scheme_suffixes());
    write_entries(&mut output, "machines", &MACHINES);
    output.add_heading("loads");
    for load in loads::TABLE {
        output.add_paragraph(&format!("  {:<20}", load.name), load.summary);
    }
    output.add_heading("recipes: built-in comparisons");
    for (name, question) in built_in_recipes() {
        output.add_paragraph(&format!("  {name:<20}"), &question);
    }
    write_entries(&mut output, "simulated, but not used by any load", &LIBRARY_ONLY);
    output.add_gap();
    output.add_line("→ pagelab sim list NAME   details   → pagelab sim compare --load LOAD");
    output.add_line("→ pagelab sim run paper   the tests of the paper, on one boot");
    output.add_line("→ pagelab sim run anti-fragmentation   the same under its five schemes");
    output.into_text()
}

/// Built-in recipes: name and question.
fn built_in_recipes() -> Vec<(&'static str, String)> {
    let question =
        |recipe: &BuiltInRecipe| Some(SimulationRecipe::parse(recipe.name, recipe.text).ok()?.question);
    let all = simulation_recipe::BUILT_IN_SIMULATIONS.iter();
    all.filter_map(|recipe| Some((recipe.name, question(recipe)?))).collect()
}

/// Renders an entry by its name.
pub fn describe_name(name: &str, style: TextStyle) -> Result<String, Failure> {
    if let Some(load) = loads::TABLE.iter().find(|load| load.name == name) {
        return Ok(parameters_text(load, style));
    }
    if let Some((name, question)) = built_in_recipes().into_iter().find(|(recipe, _)| *recipe == name) {
        return Ok(recipe_text(name, &question, style));
    }
    let long = ALIASES.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| long);
    let kinds = [
        ("policy", &policies()[..]),
        ("scheme option, joined by +", &scheme_suffixes()),
        ("machine", &MACHINES),
    ];
    let found = kinds.iter().find_map(|(kind, all)| Some((kind, all.iter().find(|of| has_name(of, long))?)));
    let Some((kind, of)) = found else {
        return Err(unknown_name(name));
    };
    let mut output = TextReport::new(style);
    let title = if long == name { name.to_owned() } else { format!("{name}, short for {long}") };
    output.add_paragraph(&format!("{title}   "), &format!("{}   ({kind})", of.summary));
    if !of.source.is_empty() {
        output.add_dim_indented(of.source);
    }
    let how = match *kind {
        "machine" => format!("--machine {name}"),
        "policy" => format!("--schemes {name}"),
        _ => format!("--schemes standard,{}", of.name.replace("SIZE", "64M")),
    };
    output.add_line(format!("→ pagelab sim compare {how}"));
    Ok(output.into_text())
}

/// Error of a name that is none of the catalogue.
fn unknown_name(name: &str) -> Failure {
    let names_of = |all: &[CatalogueEntry]| all.iter().map(|of| of.name).collect::<Vec<_>>();
    let short_names = ALIASES.iter().map(|(short, _)| *short).collect();
    let groups: [(&str, Vec<&str>); 5] = [
        ("a load", loads::TABLE.iter().map(|load| load.name).collect()),
        ("a policy", [names_of(&policies()), short_names].concat()),
        ("a scheme option", names_of(&scheme_suffixes())),
        ("a machine", names_of(&MACHINES)),
        ("a recipe", built_in_recipes().iter().map(|(name, _)| *name).collect()),
    ];
    let known: Vec<&str> = groups.iter().flat_map(|(_, names)| names).copied().collect();
    let listed: Vec<String> =
        groups.iter().map(|(kind, names)| format!("{kind} ({})", names.join(", "))).collect();
    let hint = names::suggest(name, &known).map(|hint| format!("; hint: {hint}")).unwrap_or_default();
    usage_error(&format!("unknown name `{name}`; expected {}{hint}", listed.join(", ")))
}

/// Whether an entry has this name, with or without a size.
fn has_name(entry: &CatalogueEntry, name: &str) -> bool {
    entry.name.split('=').next() == name.split('=').next()
}

/// Describes a recipe: its question and its commands.
fn recipe_text(name: &str, question: &str, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    output.add_paragraph(&format!("{name}   "), &format!("{question}   (recipe)"));
    output.add_line(format!("→ pagelab recipes explain {name}"));
    output.add_line(format!("→ pagelab sim run {name}"));
    output.into_text()
}

fn parameters_text(load: &Load, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    output.add_paragraph(&format!("{}  ", load.name), load.summary);
    output.add_heading("parameters, for --set NAME=VALUE");
    let all: Vec<&Parameter> = load.parameters().collect();
    let usual: Vec<String> = all
        .iter()
        .map(|of| format!("{} {}", format_count(of.default.into()), of.unit).trim_end().to_owned())
        .collect();
    let name_width = all.iter().map(|of| of.name.len()).max().unwrap_or(0);
    let usual_width = usual.iter().map(|text| text.chars().count()).max().unwrap_or(0);
    for (of, usual) in all.iter().zip(&usual) {
        // The maximum matters for shares; for others it only bounds the arithmetic.
        let most = match of.unit {
            "%" => format!(" (at most {})", of.max),
            _ => String::new(),
        };
        let meaning = format!("{}{most}", of.meaning);
        output.add_paragraph(&format!("  {:<name_width$}  {usual:<usual_width$}  ", of.name), &meaning);
    }
    output.add_gap();
    output.add_line(format!("→ pagelab sim run {0}   → pagelab sim compare --load {0}", load.name));
    output.into_text()
}

fn write_entries(output: &mut TextReport, title: &str, all: &[CatalogueEntry]) {
    output.add_heading(title);
    for of in all {
        output.add_paragraph(&format!("  {:<15}", of.name), of.summary);
        if !of.source.is_empty() {
            output.add_dim_paragraph(&" ".repeat(17), of.source);
        }
    }
}

/// The list as JSON.
pub fn list_json() -> Result<String, Failure> {
    let named = |of: &CatalogueEntry| {
        let source = Some(of.source).filter(|text| !text.is_empty());
        let object = JsonObject::new().field("name", of.name).field("summary", of.summary);
        object.optional("source", source, "it has no single source")
    };
    let short = |(name, of): (&str, &str)| JsonObject::new().field("name", name).field("policy", of);
    let parameter = |of: &Parameter| {
        JsonObject::new()
            .field("name", of.name)
            .field("default", of.default)
            .field("most", of.max)
            .field("unit", of.unit)
            .field("meaning", of.meaning)
    };
    let load = |of: &Load| {
        JsonObject::new()
            .field("name", of.name)
            .field("summary", of.summary)
            .field("parameters", to_array(of.parameters(), parameter))
    };
    let document = document_header("sim_list")
        .field("policies", to_array(&policies(), named))
        .field("short", to_array(ALIASES, short))
        .field("added", to_array(&scheme_suffixes(), named))
        .field("machines", to_array(&MACHINES, named))
        .field("not_in_runs", to_array(&LIBRARY_ONLY, named))
        .field("loads", to_array(loads::TABLE, load))
        .field(
            "recipes",
            to_array(built_in_recipes(), |(name, question)| {
                JsonObject::new().field("name", name).field("summary", question)
            }),
        );
    output::json_text(&document)
}
