//! `[[variant]]`: the compared settings.

use std::fmt;

use pagelab_model::Bytes;
use pagelab_model::size::{self, format_argument};

use super::ProblemList;
use super::guest::{self, GuestOverrides};
use super::table_fields::TableFields;
use super::workload;
use pagelab_formats::toml_document::{TomlTable, TomlValue};

/// Settings of a variant, applied during a trial.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Variant {
    /// Unique in the recipe.
    pub name: String,
    /// Its line in the recipe.
    pub line: usize,
    /// Mode of transparent huge pages.
    pub thp_mode: Option<ThpMode>,
    /// Modes by size (6.8 and later).
    pub mthp_modes: Vec<(Bytes, String)>,
    /// The option `advise` of workloads that have it.
    pub advise: Option<String>,
    /// Limit of the trial's control group.
    pub memory_limit: Option<Bytes>,
    /// Swap limit of its group, in a swap file that pagelab creates for the experiment; no swap if it is 0,
    /// and the machine's default if it is absent.
    pub swap_limit: Option<Bytes>,
    /// Options of the workloads.
    pub options: Vec<(String, String)>,
    /// Arguments after the command of an external program.
    pub arguments: Vec<String>,
    /// Fragmentation that is held during the trial.
    pub fragmentation: Option<FragmentationTarget>,
    /// A competitor for memory.
    pub hog: Option<MemoryHog>,
    /// One CPU for the trial alone.
    pub pin: Option<PinPolicy>,
    /// State of the page cache at the start.
    pub page_cache: Option<PageCacheState>,
    /// Whether data cache and TLB are evicted before.
    pub evict_caches: bool,
    /// Additions to the environment.
    pub environment: Vec<(String, String)>,
    /// Plan of `pagelab apply PLAN -- COMMAND`, under which the workload is started.
    pub supervised_plan: Option<SupervisedPlan>,
    /// Whether that plan overrides the program's own advice against huge pages (`--override`).
    pub overrides_advice: bool,
    /// Its workloads; all if absent.
    pub only_workloads: Option<Vec<String>>,
    /// Its guest, where it differs from that of the experiment.
    pub guest: GuestOverrides,
    /// The settings as keys and values of the recipe, for the report.
    pub settings: Vec<(String, String)>,
}

/// The key in the settings of a variant that changes nothing.
pub(super) const NOTHING: &str = "nothing";

/// The word of [`PinPolicy::IfTwoCpus`] in a recipe.
const PIN_IF_TWO_CPUS: &str = "if-two";

/// Modes of transparent huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThpMode {
    /// Disabled for the process and its children (`PR_SET_THP_DISABLE`, 3.15).
    NeverPrctl,
    /// Disabled for the process except for memory that it advises (`PR_THP_DISABLE_EXCEPT_ADVISED`, 6.18).
    AdvisedOnly,
    /// Disabled for the entire machine.
    Never,
    /// For memory that a program advises, on the entire machine.
    Madvise,
    /// Everywhere, on the entire machine.
    Always,
}

/// Plan of the supervisor that a trial runs under (`pagelab apply`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SupervisedPlan {
    /// Huge pages are disabled, also where the program itself advises.
    Never,
    /// No plan: supervised as the others are, with huge pages only where the program itself advises.
    Nothing,
    /// All anonymous memory.
    All,
    /// The regions of this plan; its path is relative to the working directory of the run.
    Plan(String),
}

/// Fragmentation of memory during a trial.
#[derive(Clone, Debug, PartialEq)]
pub struct FragmentationTarget {
    /// Block order; the huge-page order if absent.
    pub order: Option<u8>,
    /// Target F_u, 0 to 1. 0 requests compaction only.
    pub target: f64,
}

/// Whether a trial requires an isolated CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinPolicy {
    /// It does: on a machine with one CPU it does not begin.
    Required,
    /// It does not: on a machine with one CPU it runs with a note.
    IfTwoCpus,
}

/// A competitor that writes its memory repeatedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryHog {
    /// Its size.
    pub size: Bytes,
    /// Memory left to the workload under a limit that both share; `None`: it is outside of the workload's
    /// limit, if that has one.
    pub leaves_of_limit: Option<Bytes>,
    /// Process or thread.
    pub kind: HogKind,
}

/// Type of a hog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HogKind {
    /// A separate process, outside of the trial's control group.
    Process,
    /// A thread of the workload's process: its time and faults count as the workload's.
    Thread,
}

/// State of the page cache at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCacheState {
    /// The workload's files are read before.
    Warm,
    /// The workload's files, or else all clean pages, are dropped before.
    Cold,
}

impl ThpMode {
    const NAMES: [(&'static str, ThpMode); 5] = [
        ("never-prctl", ThpMode::NeverPrctl),
        ("advised-only", ThpMode::AdvisedOnly),
        ("never", ThpMode::Never),
        ("madvise", ThpMode::Madvise),
        ("always", ThpMode::Always),
    ];

    /// Its name in a recipe.
    pub fn name(self) -> &'static str {
        name_in(&ThpMode::NAMES, self)
    }

    /// The corresponding mode of the entire machine; none if it applies only to the process, by prctl.
    pub fn machine_wide_mode(self) -> Option<&'static str> {
        match self {
            ThpMode::NeverPrctl | ThpMode::AdvisedOnly => None,
            ThpMode::Never => Some("never"),
            ThpMode::Madvise => Some("madvise"),
            ThpMode::Always => Some("always"),
        }
    }
}

impl SupervisedPlan {
    /// Its argument for `pagelab apply`, and its value in a recipe.
    pub fn argument(&self) -> &str {
        match self {
            SupervisedPlan::Never => "never",
            SupervisedPlan::Nothing => "none",
            SupervisedPlan::All => "all",
            SupervisedPlan::Plan(path) => path,
        }
    }

    /// Whether it requests huge pages.
    pub fn requests_huge_pages(&self) -> bool {
        matches!(self, SupervisedPlan::All | SupervisedPlan::Plan(_))
    }
}

impl Variant {
    pub(super) fn add_problem(&self, problems: &mut ProblemList, text: impl fmt::Display) {
        problems.add(self.line, format!("variant {:?}: {text}", self.name));
    }

    /// Whether a workload with these options requests huge pages under this variant.
    pub fn asks_for_huge_pages(&self, options: &[(String, String)]) -> bool {
        let mut all_options = self.options.iter().chain(options);
        let option = all_options.find(|(name, _)| name == "advise").map(|(_, value)| value);
        let advice = self.advise.as_ref().or(option).map(String::as_str);
        let (is_advising, is_refusing) = (advice == Some("huge"), advice == Some("nohuge"));
        match &self.supervised_plan {
            Some(plan) if plan.requests_huge_pages() => return true,
            Some(SupervisedPlan::Never) => return false,
            _ => {}
        }
        let has_mthp =
            self.mthp_modes.iter().any(|(_, mode)| mode == "always" || mode == "madvise" && is_advising);
        match self.thp_mode {
            Some(ThpMode::NeverPrctl) => false,
            Some(ThpMode::Never) => has_mthp && !is_refusing,
            Some(ThpMode::Always) => !is_refusing,
            Some(ThpMode::Madvise | ThpMode::AdvisedOnly) | None => is_advising || has_mthp && !is_refusing,
        }
    }
}

pub(super) fn read_variant(table: &TomlTable, line: usize, problems: &mut ProblemList) -> Variant {
    let mut fields = TableFields::new(table, "variant", line);
    let name = fields.read_name(problems, "name");
    fields.name = format!("variant {name:?}");
    let thp_mode = fields.read_choice(problems, "thp", &ThpMode::NAMES);
    let pairs = |pairs: Vec<(String, String, usize)>| -> Vec<(String, String)> {
        pairs.into_iter().map(|(name, value, _)| (name, value)).collect()
    };
    let memory_limit = fields.read_size(problems, "memory_limit");
    let mut variant = Variant {
        name,
        line,
        thp_mode,
        mthp_modes: read_mthp(&mut fields, problems),
        advise: fields.read_word(problems, "advise", &["none", "huge", "nohuge"]).map(str::to_owned),
        memory_limit,
        swap_limit: fields.read_size_or_none(problems, "swap"),
        options: pairs(fields.read_pairs(problems, "options")),
        arguments: fields.read_texts(problems, "arguments").unwrap_or_default(),
        fragmentation: fields
            .read_table(problems, "fragmentation")
            .and_then(|of| read_fragmentation(of, problems)),
        hog: fields.read_table(problems, "hog").and_then(|of| read_hog(of, memory_limit, problems)),
        pin: read_pin(&mut fields, problems),
        page_cache: fields.read_choice(problems, "page_cache", &PageCacheState::NAMES),
        evict_caches: fields.read_bool(problems, "evict").unwrap_or(false),
        environment: workload::read_environment(&mut fields, problems),
        supervised_plan: read_plan(&mut fields, problems),
        overrides_advice: fields.read_bool(problems, "override").unwrap_or(false),
        only_workloads: fields.read_texts(problems, "workloads"),
        guest: guest::read_overrides(problems, &mut fields),
        settings: Vec::new(),
    };
    variant.settings = list_settings(&variant, &mut fields);
    fields.report_unknown_keys(problems);
    variant
}

/// `"never"`, `"none"`, `"all"`, or a file.
fn read_plan(fields: &mut TableFields<'_>, problems: &mut ProblemList) -> Option<SupervisedPlan> {
    let (text, line) = fields.read_text(problems, "plan")?;
    match text {
        "never" => Some(SupervisedPlan::Never),
        "none" => Some(SupervisedPlan::Nothing),
        "all" => Some(SupervisedPlan::All),
        "" => {
            let expected = "expected a plan file from `pagelab plan`, \"never\", \"none\" or \"all\"";
            problems.add(line, format!("{} is empty; {expected}", fields.describe_key("plan")));
            None
        }
        path => Some(SupervisedPlan::Plan(path.to_owned())),
    }
}

fn read_mthp(fields: &mut TableFields<'_>, problems: &mut ProblemList) -> Vec<(Bytes, String)> {
    const MODES: [&str; 4] = ["always", "madvise", "inherit", "never"];
    let mut sizes = Vec::new();
    for (size, mode, line) in fields.read_pairs(problems, "mthp") {
        let named = fields.describe_key("mthp");
        match size::parse_nonzero(&size) {
            Err(_) => {
                problems.add(line, format!("{named}: expected a size, for example 64K, found {size:?}"))
            }
            Ok(_) if !MODES.contains(&mode.as_str()) => {
                problems.add(line, format!("{named}: expected one of {}, found {mode:?}", MODES.join(", ")));
            }
            Ok(size) => sizes.push((size, mode)),
        }
    }
    sizes.sort();
    sizes
}

fn read_fragmentation(
    mut fields: TableFields<'_>,
    problems: &mut ProblemList,
) -> Option<FragmentationTarget> {
    let order = fields.read_number(problems, "order", (1, 63)).and_then(|order| u8::try_from(order).ok());
    let target = fields.read_share(problems, "target");
    if target.is_none() && fields.take_item("target").is_none() {
        problems.add(
            fields.line,
            format!("{} is missing; expected an F_u from 0 to 1", fields.describe_key("target")),
        );
    }
    fields.report_unknown_keys(problems);
    Some(FragmentationTarget { order, target: target? })
}

/// `size`, or the remaining memory of the limit from `leaves`.
fn read_hog(
    mut fields: TableFields<'_>,
    limit: Option<Bytes>,
    problems: &mut ProblemList,
) -> Option<MemoryHog> {
    let (size, leaves) = (fields.read_size(problems, "size"), fields.read_size(problems, "leaves"));
    let kind = fields.read_choice(problems, "how", &HogKind::NAMES).unwrap_or(HogKind::Process);
    let is_given = [fields.take_item("size").is_some(), fields.take_item("leaves").is_some()];
    let (named, line) = (fields.describe_key("leaves"), fields.line);
    let mut add_problem = |text: &str| problems.add(line, text);
    let size = match (is_given, leaves, limit) {
        ([false, false], ..) => {
            add_problem(&format!(
                "{} is missing; expected a size, for example \"1G\"",
                fields.describe_key("size")
            ));
            None
        }
        ([true, true], ..) => {
            add_problem(&format!("{named} and size cannot be used together"));
            None
        }
        (_, Some(_), _) if kind == HogKind::Thread => {
            add_problem(&format!(
                "{named} needs how = \"process\"; threads share the workload's memory cgroup"
            ));
            None
        }
        (_, Some(_), None) => {
            add_problem(&format!("{named} requires memory_limit, which the workload and the hog share"));
            None
        }
        (_, Some(leaves), Some(limit)) if leaves.0 == 0 || leaves >= limit => {
            add_problem(&format!("{named}: expected more than 0 and less than memory_limit"));
            None
        }
        (_, Some(leaves), Some(limit)) => Some(Bytes(limit.0 - leaves.0)),
        (_, None, _) => size,
    };
    fields.report_unknown_keys(problems);
    Some(MemoryHog { size: size?, leaves_of_limit: leaves, kind })
}

/// `true`, `false`, or `"if-two"`.
fn read_pin(fields: &mut TableFields<'_>, problems: &mut ProblemList) -> Option<PinPolicy> {
    let item = fields.take_item("pin")?;
    match &item.node {
        TomlValue::Boolean(is_on) => is_on.then_some(PinPolicy::Required),
        TomlValue::Text(text) if text == PIN_IF_TWO_CPUS => Some(PinPolicy::IfTwoCpus),
        _ => {
            let expected = format!("true, false or {PIN_IF_TWO_CPUS:?}");
            fields.add_type_problem(problems, "pin", item, &expected);
            None
        }
    }
}

/// Keys and values for the report. A number that may be an axis is alone in its value.
fn list_settings(variant: &Variant, fields: &mut TableFields<'_>) -> Vec<(String, String)> {
    let mut settings: Vec<(String, String)> = Vec::new();
    let mut push = |key: &str, value: Option<String>| {
        settings.extend(value.map(|value| (key.to_owned(), value)));
    };
    push("thp", variant.thp_mode.map(|thp| thp.name().to_owned()));
    for (size, mode) in &variant.mthp_modes {
        push(&format!("mthp.{}", format_argument(*size)), Some(mode.clone()));
    }
    push("plan", variant.supervised_plan.as_ref().map(|plan| plan.argument().to_owned()));
    push("override", variant.overrides_advice.then(|| "yes".to_owned()));
    push("advise", variant.advise.clone());
    push("memory_limit", variant.memory_limit.map(format_argument));
    let swap = |limit: Bytes| if limit.0 == 0 { "none".to_owned() } else { format_argument(limit) };
    push("swap", variant.swap_limit.map(swap));
    for (name, value) in &variant.options {
        push(&format!("options.{name}"), Some(value.clone()));
    }
    push("arguments", (!variant.arguments.is_empty()).then(|| variant.arguments.join(" ")));
    let fragmentation = variant.fragmentation.as_ref();
    push("fragmentation", fragmentation.map(|of| of.target.to_string()));
    push("fragmentation.order", fragmentation.and_then(|of| of.order).map(|order| order.to_string()));
    push("hog", variant.hog.map(|hog| format_argument(hog.size)));
    push("hog.how", variant.hog.map(|hog| hog.kind.name().to_owned()));
    push("hog.leaves", variant.hog.and_then(|hog| hog.leaves_of_limit).map(format_argument));
    let pin = |pin: PinPolicy| if pin == PinPolicy::Required { "yes" } else { PIN_IF_TWO_CPUS }.to_owned();
    push("pin", variant.pin.map(pin));
    push("evict", variant.evict_caches.then(|| "yes".to_owned()));
    push("page_cache", variant.page_cache.map(|cache| name_in(&PageCacheState::NAMES, cache).to_owned()));
    for (name, value) in &variant.environment {
        push(&format!("environment.{name}"), Some(value.clone()));
    }
    settings.extend(variant.guest.list_settings());
    if settings.is_empty() && fields.take_item("workloads").is_none() {
        settings.push((NOTHING.to_owned(), "no changes".to_owned()));
    }
    settings
}

impl PageCacheState {
    const NAMES: [(&'static str, PageCacheState); 2] =
        [("warm", PageCacheState::Warm), ("cold", PageCacheState::Cold)];
}

impl HogKind {
    const NAMES: [(&'static str, HogKind); 2] = [("process", HogKind::Process), ("thread", HogKind::Thread)];

    /// Its name in a recipe.
    pub fn name(self) -> &'static str {
        name_in(&HogKind::NAMES, self)
    }
}

fn name_in<T: PartialEq>(names: &[(&'static str, T)], value: T) -> &'static str {
    names.iter().find(|(_, named)| *named == value).map_or("", |(word, _)| word)
}
