//! `[[variant]]`: the settings under comparison.

use pagelab_model::Bytes;

use super::Problems;
use super::document::Table;
use super::fields::{Fields, Switched, bytes};
use super::workload;

/// Settings that hold while a trial runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Variant {
    /// Unique in the recipe.
    pub name: String,
    /// Its line in the recipe.
    pub line: usize,
    /// Mode of transparent huge pages.
    pub thp: Option<Thp>,
    /// Modes by size (6.8 and later).
    pub mthp: Vec<(Bytes, String)>,
    /// The option `advise` of workloads that have it.
    pub advise: Option<String>,
    /// Limit of the trial's control group.
    pub memory_limit: Option<Bytes>,
    /// What its group may swap: of a swap file that is made for the experiment; nothing where it is 0, and
    /// whatever the machine lets it where it is absent.
    pub swap: Option<Bytes>,
    /// Options of the workloads.
    pub options: Vec<(String, String)>,
    /// Words behind the command of a program that is not ours.
    pub arguments: Vec<String>,
    /// Fragmentation that is held meanwhile.
    pub fragmentation: Option<Fragmentation>,
    /// A competitor for memory.
    pub hog: Option<Hog>,
    /// One CPU for the trial alone.
    pub pin: Option<Pin>,
    /// State of the page cache at the start.
    pub page_cache: Option<PageCache>,
    /// Whether data cache and TLB are filled with something else before.
    pub evict: bool,
    /// Added to the environment.
    pub environment: Vec<(String, String)>,
    /// Started as `pagelab apply PLAN -- COMMAND`, where that is so.
    pub plan: Option<Supervised>,
    /// The workloads that it is for; all where absent.
    pub only: Option<Vec<String>>,
    /// What is set, as key and value of the recipe, for the report.
    pub settings: Vec<(String, String)>,
}

/// The word of [`Pin::IfTwo`] in a recipe.
const IF_TWO: &str = "if-two";

/// Modes of transparent huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thp {
    /// Switched off for the process and its children (`PR_SET_THP_DISABLE`, 3.15).
    NeverPrctl,
    /// Switched off for the process but where it asks by madvise (`PR_THP_DISABLE_EXCEPT_ADVISED`, 6.18).
    AdvisedOnly,
    /// Switched off for the whole machine.
    Never,
    /// Where a program asks by madvise, on the whole machine.
    Madvise,
    /// Everywhere, on the whole machine.
    Always,
}

/// What the supervisor that a trial runs under gives huge pages to (`pagelab apply`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Supervised {
    /// Nothing: supervised as the others are, and huge pages only where the program itself asks.
    Nothing,
    /// All anonymous memory.
    All,
    /// What this plan names; a path from the folder in which the run was begun.
    Plan(String),
}

/// Memory broken up while the trial runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Fragmentation {
    /// For blocks of this order; that of a huge page where absent.
    pub order: Option<u8>,
    /// F_u to be reached, 0 to 1. 0 asks for memory that is compacted and not broken up.
    pub target: f64,
}

/// Whether a trial may be carried out without a CPU of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// It may not: where there is one CPU it is not begun.
    Needed,
    /// It may, where there is one CPU, and says so.
    IfTwo,
}

/// A competitor that writes its memory again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hog {
    /// How much.
    pub size: Bytes,
    /// What is left to the workload of a memory limit that both share; `None`: it is outside of the
    /// workload's limit, if that has one.
    pub leaves: Option<Bytes>,
    /// As what.
    pub how: HogKind,
}

/// What a hog is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HogKind {
    /// A process of its own, outside of the trial's control group.
    Process,
    /// A thread of the workload's process: its time and faults count as the workload's.
    Thread,
}

/// State of the page cache at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCache {
    /// The workload's files are read before.
    Warm,
    /// The workload's files, or else all clean pages, are dropped before.
    Cold,
}

impl Thp {
    const WORDS: [(&'static str, Thp); 5] = [
        ("never-prctl", Thp::NeverPrctl),
        ("advised-only", Thp::AdvisedOnly),
        ("never", Thp::Never),
        ("madvise", Thp::Madvise),
        ("always", Thp::Always),
    ];

    /// Its word in a recipe.
    pub fn word(self) -> &'static str {
        Thp::WORDS.iter().find(|(_, mode)| *mode == self).map_or("", |(word, _)| word)
    }

    /// The mode of the whole machine that it is; none where only the process is told, by prctl.
    pub fn machine_mode(self) -> Option<&'static str> {
        match self {
            Thp::NeverPrctl | Thp::AdvisedOnly => None,
            Thp::Never => Some("never"),
            Thp::Madvise => Some("madvise"),
            Thp::Always => Some("always"),
        }
    }
}

impl Supervised {
    /// What `pagelab apply` is given for it, and what stands in a recipe.
    pub fn word(&self) -> &str {
        match self {
            Supervised::Nothing => "none",
            Supervised::All => "all",
            Supervised::Plan(path) => path,
        }
    }
}

impl Variant {
    /// Whether a workload with these options asks for huge pages under this variant.
    pub fn asks_for_huge_pages(&self, options: &[(String, String)]) -> bool {
        let is = |name: &str, value: &str| {
            let of = |pairs: &[(String, String)]| {
                pairs.iter().find(|(known, _)| known == name).map(|(_, given)| given == value)
            };
            of(&self.options).or_else(|| of(options)).unwrap_or(false)
        };
        let advises = self.advise.as_deref().map_or_else(|| is("advise", "huge"), |word| word == "huge");
        let refuses = self.advise.as_deref().map_or_else(|| is("advise", "nohuge"), |word| word == "nohuge");
        if matches!(self.plan, Some(Supervised::All | Supervised::Plan(_))) {
            return true;
        }
        let by_size = self.mthp.iter().any(|(_, mode)| mode == "always" || mode == "madvise" && advises);
        match self.thp {
            Some(Thp::NeverPrctl) => false,
            Some(Thp::Never) => by_size && !refuses,
            Some(Thp::Always) => !refuses,
            Some(Thp::Madvise | Thp::AdvisedOnly) | None => advises || by_size && !refuses,
        }
    }
}

pub(super) fn read(table: &Table, line: usize, problems: &mut Problems) -> Variant {
    let mut fields = Fields::new(table, "variant", line);
    let name = fields.name(problems, "name");
    fields.what = format!("variant {name:?}");
    let words: Vec<&'static str> = Thp::WORDS.iter().map(|(word, _)| *word).collect();
    let thp = fields.word(problems, "thp", &words);
    let pairs = |pairs: Vec<(String, String, usize)>| -> Vec<(String, String)> {
        pairs.into_iter().map(|(name, value, _)| (name, value)).collect()
    };
    let memory_limit = fields.size(problems, "memory_limit");
    let mut variant = Variant {
        name,
        line,
        thp: Thp::WORDS.iter().find(|(word, _)| Some(*word) == thp).map(|(_, mode)| *mode),
        mthp: mthp(&mut fields, problems),
        advise: fields.word(problems, "advise", &["none", "huge", "nohuge"]).map(str::to_owned),
        memory_limit,
        swap: swap(&mut fields, problems),
        options: pairs(fields.pairs(problems, "options")),
        arguments: fields.texts(problems, "arguments").unwrap_or_default(),
        fragmentation: fields.table(problems, "fragmentation").and_then(|of| fragmentation(of, problems)),
        hog: fields.table(problems, "hog").and_then(|of| hog(of, memory_limit, problems)),
        pin: pin(&mut fields, problems),
        page_cache: page_cache(&mut fields, problems),
        evict: fields.switch(problems, "evict").unwrap_or(false),
        environment: workload::environment(&mut fields, problems),
        plan: plan(&mut fields, problems),
        only: fields.texts(problems, "workloads"),
        settings: Vec::new(),
    };
    variant.settings = settings(&variant, &mut fields);
    fields.finish(problems);
    variant
}

/// `"none"`, `"all"`, or a file.
fn plan(fields: &mut Fields<'_>, problems: &mut Problems) -> Option<Supervised> {
    let (text, line) = fields.text(problems, "plan")?;
    match text {
        "none" => Some(Supervised::Nothing),
        "all" => Some(Supervised::All),
        "" => {
            let named = fields.named("plan");
            problems
                .say(line, format!("{named} is empty: a file of `pagelab plan`, \"none\" or \"all\" does"));
            None
        }
        path => Some(Supervised::Plan(path.to_owned())),
    }
}

/// `"2G"`, or `"none"`.
fn swap(fields: &mut Fields<'_>, problems: &mut Problems) -> Option<Bytes> {
    let (text, line) = fields.text(problems, "swap")?;
    let size = if text == "none" { Some(Bytes(0)) } else { bytes(text) };
    if size.is_none() {
        let named = fields.named("swap");
        problems.say(line, format!("{named}: {text:?} is no size; \"none\" and sizes such as 2G are"));
    }
    size
}

fn mthp(fields: &mut Fields<'_>, problems: &mut Problems) -> Vec<(Bytes, String)> {
    const MODES: [&str; 4] = ["always", "madvise", "inherit", "never"];
    let mut sizes = Vec::new();
    for (size, mode, line) in fields.pairs(problems, "mthp") {
        let named = fields.named("mthp");
        match bytes(&size) {
            None => problems.say(line, format!("{named}: {size:?} is no size; sizes are such as 64K, 1M")),
            Some(_) if !MODES.contains(&mode.as_str()) => {
                problems.say(line, format!("{named}: {mode:?} is none of {}", MODES.join(", ")));
            }
            Some(size) => sizes.push((size, mode)),
        }
    }
    sizes.sort();
    sizes
}

fn fragmentation(mut fields: Fields<'_>, problems: &mut Problems) -> Option<Fragmentation> {
    let order = fields.number(problems, "order", (1, 63)).and_then(|order| u8::try_from(order).ok());
    let target = fields.share(problems, "target");
    if target.is_none() && fields.item("target").is_none() {
        problems.say(fields.line, format!("{} is missing: F_u, 0 to 1", fields.named("target")));
    }
    fields.finish(problems);
    Some(Fragmentation { order, target: target? })
}

/// `size`, or what it `leaves` of the limit.
fn hog(mut fields: Fields<'_>, limit: Option<Bytes>, problems: &mut Problems) -> Option<Hog> {
    let (size, leaves) = (fields.size(problems, "size"), fields.size(problems, "leaves"));
    let how = fields.word(problems, "how", &["process", "thread"]);
    let how = if how == Some("thread") { HogKind::Thread } else { HogKind::Process };
    let has = [fields.item("size").is_some(), fields.item("leaves").is_some()];
    let (named, line) = (fields.named("leaves"), fields.line);
    let mut say = |text: &str| problems.say(line, text);
    let size = match (has, leaves, limit) {
        ([false, false], ..) => {
            say(&format!("{} is missing: such as \"1G\"", fields.named("size")));
            None
        }
        ([true, true], ..) => {
            say(&format!("{named} and size say the same thing twice: one of them"));
            None
        }
        (_, Some(_), _) if how == HogKind::Thread => {
            say(&format!("{named} is for a process; a thread is in the workload's limit anyway"));
            None
        }
        (_, Some(_), None) => {
            say(&format!("{named} needs memory_limit, which the workload and the hog share"));
            None
        }
        (_, Some(leaves), Some(limit)) if leaves.0 == 0 || leaves >= limit => {
            say(&format!("{named}: more than nothing and less than memory_limit was wanted"));
            None
        }
        (_, Some(leaves), Some(limit)) => Some(Bytes(limit.0 - leaves.0)),
        (_, None, _) => size,
    };
    fields.finish(problems);
    Some(Hog { size: size?, leaves, how })
}

/// `true`, `false`, or `"if-two"`.
fn pin(fields: &mut Fields<'_>, problems: &mut Problems) -> Option<Pin> {
    match fields.switch_or_word(problems, "pin", IF_TWO)? {
        Switched::On => Some(Pin::Needed),
        Switched::Off => None,
        Switched::Word => Some(Pin::IfTwo),
    }
}

fn page_cache(fields: &mut Fields<'_>, problems: &mut Problems) -> Option<PageCache> {
    match fields.word(problems, "page_cache", &["warm", "cold"])? {
        "warm" => Some(PageCache::Warm),
        _ => Some(PageCache::Cold),
    }
}

/// Keys and values for the report. A number that may be an axis stands alone in its value.
fn settings(variant: &Variant, fields: &mut Fields<'_>) -> Vec<(String, String)> {
    let mut settings: Vec<(String, String)> = Vec::new();
    let mut put = |key: String, value: String| settings.push((key, value));
    if let Some(thp) = variant.thp {
        put("thp".to_owned(), thp.word().to_owned());
    }
    for (size, mode) in &variant.mthp {
        put(format!("mthp.{}", short(*size)), mode.clone());
    }
    if let Some(plan) = &variant.plan {
        put("plan".to_owned(), plan.word().to_owned());
    }
    if let Some(advise) = &variant.advise {
        put("advise".to_owned(), advise.clone());
    }
    if let Some(limit) = variant.memory_limit {
        put("memory_limit".to_owned(), short(limit));
    }
    if let Some(swap) = variant.swap {
        put("swap".to_owned(), if swap.0 == 0 { "none".to_owned() } else { short(swap) });
    }
    for (name, value) in &variant.options {
        put(format!("options.{name}"), value.clone());
    }
    if !variant.arguments.is_empty() {
        put("arguments".to_owned(), variant.arguments.join(" "));
    }
    if let Some(fragmentation) = &variant.fragmentation {
        put("fragmentation".to_owned(), fragmentation.target.to_string());
        if let Some(order) = fragmentation.order {
            put("fragmentation.order".to_owned(), order.to_string());
        }
    }
    if let Some(hog) = variant.hog {
        put("hog".to_owned(), short(hog.size));
        put("hog.how".to_owned(), hog.how.word().to_owned());
        if let Some(leaves) = hog.leaves {
            put("hog.leaves".to_owned(), short(leaves));
        }
    }
    if let Some(pin) = variant.pin {
        let word = if pin == Pin::Needed { "yes" } else { IF_TWO };
        put("pin".to_owned(), word.to_owned());
    }
    if variant.evict {
        put("evict".to_owned(), "yes".to_owned());
    }
    if let Some(cache) = variant.page_cache {
        put("page_cache".to_owned(), if cache == PageCache::Warm { "warm" } else { "cold" }.to_owned());
    }
    for (name, value) in &variant.environment {
        put(format!("environment.{name}"), value.clone());
    }
    if settings.is_empty() && fields.item("workloads").is_none() {
        settings.push(("nothing".to_owned(), "the machine as it is".to_owned()));
    }
    settings
}

impl HogKind {
    /// Its word in a recipe.
    pub fn word(self) -> &'static str {
        match self {
            HogKind::Process => "process",
            HogKind::Thread => "thread",
        }
    }
}

/// A size with the largest suffix that leaves a whole number: `64K`, `1G`.
pub fn short(size: Bytes) -> String {
    let suffix = [(30, "G"), (20, "M"), (10, "K")].into_iter().find(|(shift, _)| {
        let unit = 1u64 << shift;
        size.0 >= unit && size.0.is_multiple_of(unit)
    });
    suffix.map_or_else(|| size.0.to_string(), |(shift, word)| format!("{}{word}", size.0 >> shift))
}
