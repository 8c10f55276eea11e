//! `[guest]`: the disposable guest in which trials run, and the keys of a variant for it.

use pagelab_model::Bytes;
use pagelab_model::dimms::Dimms;
use pagelab_model::experiment::Plan;
use pagelab_model::guest_size::{self, CPUS_MAX};
use pagelab_model::module_features::{FEATURES, RECLAIM, UNREFERENCED};
use pagelab_model::size::format_argument;
use pagelab_workloads::GuestPart;

use super::table_fields::{ProblemList, TableFields};
use super::{Recipe, Variant, WorkloadCommand};
use crate::gate::PAGELAB;
use crate::recipe::variant::{PinPolicy, SupervisedPlan};

/// The kernel of a guest if nothing else is said: the long-term kernel of the distribution.
pub const KERNEL_DEFAULT: &str = "6.1";
/// Memory of a guest, unless its workloads need more.
const MEMORY_DEFAULT: Bytes = Bytes(1 << 30);
/// Memory of a guest beside its workload and the workload's competitor.
const MEMORY_BESIDE: Bytes = Bytes(256 << 20);
/// Memory for the buffer that evicts the caches, which must leave as much.
const MEMORY_TO_EVICT: Bytes = Bytes(192 << 20);
/// Memory is given in multiples of this.
const MEMORY_STEP: u64 = 32 << 20;
/// Size of the disk, of which only what is written takes space on the host.
const DISK_DEFAULT: Bytes = Bytes(8 << 30);
/// The key of the multi-generational LRU among the settings, which is no sysctl.
pub const LRU_GEN: &str = "lru_gen";

/// Where trials run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrialPlace {
    /// This machine.
    #[default]
    Host,
    /// A disposable guest.
    Guest,
}

/// The trials that share a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootPolicy {
    /// None: each trial has its own.
    Trial,
    /// Those of one round that need the same guest.
    Round,
}

/// The guest of an experiment (`[guest]`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GuestTable {
    /// Its kernels: a series such as 6.1, a package, or a path.
    pub kernels: Vec<String>,
    /// Memory.
    pub memory: Option<Bytes>,
    /// CPUs.
    pub cpus: Option<u32>,
    /// Words of the kernel's command line.
    pub append: String,
    /// Size of the swap disk.
    pub swap: Option<Bytes>,
    /// Size of the ext4 disk; `Some(0)`: none.
    pub disk: Option<Bytes>,
    /// Hot-pluggable memory devices.
    pub dimms: Option<Dimms>,
    /// The trials that share a boot.
    pub boot: Option<BootPolicy>,
    /// Sysctls, and `lru_gen`.
    pub settings: Vec<(String, String)>,
    /// Lines of its keys.
    pub lines: GuestLines,
}

/// Lines of keys that are checked together with others; 0: from the command line, or absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestLines {
    /// That of `kernel`.
    pub kernel: usize,
    /// That of `dimms`.
    pub dimms: usize,
}

/// The guest of a variant, where it differs from that of the experiment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GuestOverrides {
    /// Kernel.
    pub kernel: Option<String>,
    /// Memory.
    pub memory: Option<Bytes>,
    /// Further words of the kernel's command line.
    pub append: String,
    /// Memory outside of ZONE_MOVABLE (kernelcore=).
    pub kernelcore: Option<Bytes>,
    /// Further sysctls.
    pub settings: Vec<(String, String)>,
    /// Features of pagelab's kernel module, and their states.
    pub module_features: Vec<(String, String)>,
}

/// The guest that a variant needs. Trials that need the same one may share a boot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequiredGuest {
    /// Kernel: a series, a package, or a path.
    pub kernel: String,
    /// Memory.
    pub memory: Bytes,
    /// Whether a guest out of memory is a result: where the variant is about the memory, or about the kernel,
    /// which may need more of it.
    pub is_oom_result: bool,
    /// CPUs.
    pub cpus: u32,
    /// Words of the kernel's command line.
    pub append: String,
    /// Size of the swap disk.
    pub swap: Option<Bytes>,
    /// Size of the ext4 disk.
    pub disk: Option<Bytes>,
    /// Hot-pluggable memory devices.
    pub dimms: Option<Dimms>,
    /// Sysctls and `lru_gen`, which a trial sets and nothing restores.
    pub settings: Vec<(String, String)>,
    /// Whether pagelab's kernel module is loaded: in all guests if a variant or a workload uses it.
    pub has_module: bool,
    /// Counted instructions: each takes 2 to the power of this nanoseconds.
    pub icount: Option<u32>,
    /// Whether there is a tool disk.
    pub has_tools: bool,
    /// Whether there are the sources of a kernel.
    pub has_source_tree: bool,
    /// Features of the module, and their states.
    pub module_features: Vec<(String, String)>,
}

impl TrialPlace {
    /// Words in a recipe.
    const NAMES: [(&'static str, TrialPlace); 2] =
        [(Plan::HOST, TrialPlace::Host), (Plan::GUEST, TrialPlace::Guest)];
}

impl BootPolicy {
    const NAMES: [(&'static str, BootPolicy); 2] =
        [("trial", BootPolicy::Trial), ("round", BootPolicy::Round)];
}

impl GuestOverrides {
    /// Its keys and values for the report.
    pub(super) fn list_settings(&self) -> Vec<(String, String)> {
        let mut settings = Vec::new();
        let mut push = |key: &str, value: Option<String>| {
            settings.extend(value.map(|value| (key.to_owned(), value)));
        };
        push("kernel", self.kernel.clone());
        push("memory", self.memory.map(format_argument));
        push("kernelcore", self.kernelcore.map(format_argument));
        push("append", Some(self.append.clone()).filter(|words| !words.is_empty()));
        for (name, value) in &self.settings {
            push(&format!("settings.{name}"), Some(value.clone()));
        }
        for (name, value) in &self.module_features {
            push(name, Some(value.clone()));
        }
        settings
    }

    /// The first key that it has.
    fn first_key(&self) -> Option<String> {
        self.list_settings().into_iter().next().map(|(key, _)| key)
    }
}

impl Recipe {
    /// The guest that a workload needs under a variant. Its size is that of all workloads: variants are
    /// compared in guests of one size.
    pub fn required_guest(&self, workload: usize, variant: usize) -> RequiredGuest {
        let (table, of_variant) = (&self.guest, self.variants.get(variant));
        let own = of_variant.map(|variant| variant.guest.clone()).unwrap_or_default();
        let kernelcore = own.kernelcore.map(|size| format!("kernelcore={}", format_argument(size)));
        let append: Vec<&str> = [table.append.as_str(), own.append.as_str()]
            .into_iter()
            .chain(kernelcore.as_deref())
            .filter(|words| !words.is_empty())
            .collect();
        let mut settings = table.settings.clone();
        super::merge_options(&mut settings, &own.settings);
        let is_oom_result = own.memory.is_some() || own.kernel.is_some();
        let kernel = own.kernel.or_else(|| table.kernels.first().cloned());
        let has_part = |at: usize, part| self.workloads.get(at).is_some_and(|of| of.needs_part(part));
        let uses_module = (0..self.workloads.len()).any(|at| has_part(at, GuestPart::Module))
            || self.variants.iter().any(|variant| !variant.guest.module_features.is_empty());
        RequiredGuest {
            kernel: kernel.unwrap_or_else(|| KERNEL_DEFAULT.to_owned()),
            memory: own.memory.or(table.memory).unwrap_or_else(|| self.default_guest_memory()),
            is_oom_result,
            cpus: self.guest_cpus(),
            append: append.join(" "),
            swap: table.swap,
            dimms: table.dimms,
            disk: table.disk.or_else(|| self.default_guest_disk()).filter(|size| size.0 > 0),
            settings,
            has_module: uses_module,
            icount: self.workloads.get(workload).and_then(|workload| workload.icount),
            has_tools: has_part(workload, GuestPart::Tools),
            has_source_tree: has_part(workload, GuestPart::SourceTree),
            module_features: own.module_features,
        }
    }

    /// CPUs of all guests.
    fn guest_cpus(&self) -> u32 {
        let needs_two = |variant: &Variant| variant.pin == Some(PinPolicy::Required);
        self.guest.cpus.unwrap_or(if self.variants.iter().any(needs_two) { 2 } else { 1 })
    }

    /// Enough for the largest workload with its competitor, and at least [`MEMORY_DEFAULT`].
    fn default_guest_memory(&self) -> Bytes {
        let mut most = MEMORY_DEFAULT.0;
        for (at, workload) in self.workloads.iter().enumerate() {
            for (number, variant) in self.variants.iter().enumerate() {
                if !self.is_combined(at, number) {
                    continue;
                }
                let size = workload.memory_size(&variant.options).map_or(0, |size| size.0);
                let hog = variant.hog.map_or(0, |hog| hog.size.0);
                let evict = if variant.evict_caches { MEMORY_TO_EVICT.0 } else { 0 };
                let beside = MEMORY_BESIDE.0 + evict;
                let sum = size.saturating_add(hog).saturating_add(beside);
                most = most.max(sum.div_ceil(MEMORY_STEP).saturating_mul(MEMORY_STEP));
            }
        }
        Bytes(most)
    }

    /// A disk for workloads with files and for swap files: the other file systems of a guest are in memory.
    fn default_guest_disk(&self) -> Option<Bytes> {
        let has_files = self.workloads.iter().filter_map(|workload| workload.built_in_name()).any(|name| {
            let workload = pagelab_workloads::find_workload(name);
            workload.is_some_and(|workload| workload.options.iter().any(|option| option.name == "folder"))
        });
        let swap = self.variants.iter().filter_map(|variant| variant.swap_limit).max().unwrap_or(Bytes(0));
        let size = Bytes(DISK_DEFAULT.0.saturating_add(swap.0));
        (has_files || swap.0 > 0).then_some(size)
    }

    /// Why trials cannot run at the place: keys that only a host or only a guest knows.
    pub(crate) fn check_for_place(&self, place: TrialPlace, problems: &mut ProblemList) {
        match place {
            TrialPlace::Host => self.check_for_host(problems),
            TrialPlace::Guest => self.check_for_guest(problems),
        }
    }

    fn check_for_host(&self, problems: &mut ProblemList) {
        if self.has_seed_by_round {
            problems.add(1, "seed_by_round is for trials in guests; hint: use --place guest");
        }
        for workload in self.workloads.iter().filter(|workload| workload.icount.is_some()) {
            let text = format!(
                "workload {:?}: icount is a property of a guest; hint: use --place guest",
                workload.name
            );
            problems.add(workload.line.max(1), text);
        }
        for variant in &self.variants {
            if let Some(key) = variant.guest.first_key() {
                let text = format!("{key} is a property of a guest; hint: use --place guest");
                variant.add_problem(problems, text);
            }
        }
    }

    fn check_for_guest(&self, problems: &mut ProblemList) {
        for workload in &self.workloads {
            if workload.icount.is_some() && self.guest_cpus() > 1 {
                let text = format!(
                    "workload {:?}: icount: counted instructions are those of one CPU; hint: remove cpus",
                    workload.name
                );
                problems.add(workload.line.max(1), text);
            }
            let reason = match &workload.command {
                WorkloadCommand::BuiltIn { .. } => None,
                WorkloadCommand::External { .. } => Some("its program is not in the guest".to_owned()),
                WorkloadCommand::Command { command, .. } => command.first().and_then(|program| {
                    (program != PAGELAB).then(|| format!("{program} is not in the guest"))
                }),
            };
            let hint = "a guest contains pagelab and its built-in workloads only";
            if let Some(reason) = reason {
                problems.add(workload.line.max(1), format!("workload {:?}: {reason}: {hint}", workload.name));
            }
            if let Some(file) = workload.files.first() {
                let text = format!("workload {:?}: files: {file} is not in the guest", workload.name);
                problems.add(workload.line.max(1), text);
            }
        }
        for (at, variant) in self.variants.iter().enumerate() {
            self.check_variant_for_guest(at, variant, problems);
        }
        for (at, kernel) in self.guest.kernels.iter().enumerate() {
            if self.guest.kernels[..at].contains(kernel) {
                problems.add(self.guest.lines.kernel, format!("guest: kernel {kernel} is given twice"));
            }
        }
    }

    fn check_variant_for_guest(&self, at: usize, variant: &Variant, problems: &mut ProblemList) {
        if let Some(SupervisedPlan::Plan(path)) = &variant.supervised_plan {
            variant.add_problem(problems, format!("plan: the file {path} is not in the guest"));
        }
        let guest = self.required_guest(0, at);
        if guest.disk.is_none() && variant.swap_limit.is_some_and(|swap| swap.0 > 0) {
            variant.add_problem(problems, "swap requires a guest with a disk; hint: remove disk = \"none\"");
        }
        if variant.pin == Some(PinPolicy::Required) && guest.cpus < 2 {
            variant.add_problem(problems, "pin = true requires a guest with 2 CPUs; hint: use --cpus 2");
        }
        let has_memory = guest_size::check_memory(guest.memory).is_ok();
        if let Some(kernelcore) = variant.guest.kernelcore.filter(|size| has_memory && *size >= guest.memory)
        {
            let (size, memory) = (format_argument(kernelcore), format_argument(guest.memory));
            let text = format!("kernelcore: expected less than the guest's memory ({memory}), found {size}");
            variant.add_problem(problems, text);
        }
        self.check_sizes(variant, &guest, problems);
        // It does not call folio_referenced() (mm/vmscan.c, lru_gen_look_around()).
        let ignores = |(name, state): &(String, String)| name == RECLAIM && state == UNREFERENCED;
        let is_lru_gen_off = guest.settings.iter().any(|(name, value)| name == LRU_GEN && !is_enabled(value));
        if guest.module_features.iter().any(ignores) && !is_lru_gen_off {
            let text = "reclaim = \"unreferenced\" requires the multi-generational LRU to be off; hint: add \
                        settings = { lru_gen = false } to [guest]";
            variant.add_problem(problems, text);
        }
        if variant.guest.kernel.is_some() && self.guest.kernels.len() > 1 {
            let text =
                "kernel: the experiment already compares kernels; hint: remove kernel or use one --kernel";
            variant.add_problem(problems, text);
        }
    }

    /// Sizes that depend on each other, or on the workloads. Those of one key were checked when it was read.
    fn check_sizes(&self, variant: &Variant, guest: &RequiredGuest, problems: &mut ProblemList) {
        let is_stated = self.guest.memory.is_some() || variant.guest.memory.is_some();
        if let Err(why) = guest_size::check_memory(guest.memory)
            && !is_stated
        {
            variant.add_problem(problems, format!("memory for its workloads: {why}"));
        }
        let is_each_valid =
            [&self.guest.append, &variant.guest.append].iter().all(|of| guest_size::check_append(of).is_ok());
        if let Err(why) = guest_size::check_append(&guest.append)
            && is_each_valid
        {
            variant.add_problem(problems, format!("append, together with that of [guest]: {why}"));
        }
        let has_memory = guest_size::check_memory(guest.memory).is_ok();
        if let Some(dimms) = self.guest.dimms.filter(|dimms| has_memory && dimms.check_size().is_ok())
            && let Err(why) = dimms.check_beside(guest.memory)
        {
            let named = format!("guest: dimms: with variant {:?}: {why}", variant.name);
            problems.add(self.guest.lines.dimms, named);
        }
    }

    /// Compares kernels: each variant once with each kernel, and the baseline is that of the first. One
    /// kernel is the kernel of all variants.
    pub(crate) fn cross_kernels(&mut self) {
        if self.guest.kernels.len() < 2 {
            return;
        }
        let variants = std::mem::take(&mut self.variants);
        for kernel in &self.guest.kernels {
            self.variants.extend(variants.iter().map(|variant| variant.with_kernel(kernel, variants.len())));
        }
    }
}

impl Variant {
    /// The variant with this kernel, named by it.
    fn with_kernel(&self, kernel: &str, variants: usize) -> Variant {
        let mut own = self.clone();
        own.guest.kernel = Some(kernel.to_owned());
        own.name = if variants == 1 { kernel.to_owned() } else { format!("{} {kernel}", self.name) };
        own.settings.retain(|(key, _)| key != super::variant::NOTHING);
        own.settings.insert(0, ("kernel".to_owned(), kernel.to_owned()));
        own
    }
}

/// `place = "guest"`, or this machine.
pub(super) fn read_place(problems: &mut ProblemList, fields: &mut TableFields<'_>) -> TrialPlace {
    fields.read_choice(problems, "place", &TrialPlace::NAMES).unwrap_or_default()
}

/// `[guest]`.
pub(super) fn read_guest(problems: &mut ProblemList, fields: &mut TableFields<'_>) -> GuestTable {
    let Some(mut fields) = fields.read_table(problems, "guest") else { return GuestTable::default() };
    let table = GuestTable {
        kernels: fields.read_one_or_more(problems, "kernel"),
        memory: read_memory(problems, &mut fields),
        cpus: fields.read_count(problems, "cpus", (1, u64::from(CPUS_MAX))),
        append: read_append(problems, &mut fields),
        swap: fields.read_size(problems, "swap"),
        disk: fields.read_size_or_none(problems, "disk"),
        dimms: read_dimms(problems, &mut fields),
        boot: fields.read_choice(problems, "boot", &BootPolicy::NAMES),
        settings: read_settings(problems, &mut fields),
        lines: GuestLines { kernel: fields.line_of("kernel"), dimms: fields.line_of("dimms") },
    };
    for (key, size) in [("swap", table.swap), ("disk", table.disk.filter(|size| size.0 > 0))] {
        fields.report_value(problems, key, size.map_or(Ok(()), guest_size::check_disk));
    }
    fields.report_unknown_keys(problems);
    table
}

fn read_memory(problems: &mut ProblemList, fields: &mut TableFields<'_>) -> Option<Bytes> {
    let memory = fields.read_size(problems, "memory")?;
    fields.report_value(problems, "memory", guest_size::check_memory(memory));
    Some(memory)
}

fn read_append(problems: &mut ProblemList, fields: &mut TableFields<'_>) -> String {
    let words = fields.read_string(problems, "append").unwrap_or_default();
    fields.report_value(problems, "append", guest_size::check_append(&words));
    words
}

/// `"8x128M"`.
fn read_dimms(problems: &mut ProblemList, fields: &mut TableFields<'_>) -> Option<Dimms> {
    let dimms = fields.read_parsed(problems, "dimms", Dimms::parse)?;
    fields.report_value(problems, "dimms", dimms.check_size());
    Some(dimms)
}

/// The keys of a variant for its guest.
pub(super) fn read_overrides(problems: &mut ProblemList, fields: &mut TableFields<'_>) -> GuestOverrides {
    GuestOverrides {
        kernel: fields.read_string(problems, "kernel"),
        memory: read_memory(problems, fields),
        append: read_append(problems, fields),
        kernelcore: fields.read_size(problems, "kernelcore"),
        settings: read_settings(problems, fields),
        module_features: FEATURES
            .into_iter()
            .filter_map(|(name, states)| {
                let state = fields.read_word(problems, name, states)?;
                Some((name.to_owned(), state.to_owned()))
            })
            .collect(),
    }
}

/// Whether a value of [`LRU_GEN`] switches it on.
pub(crate) fn is_enabled(value: &str) -> bool {
    matches!(value, "yes" | "y" | "1")
}

/// Names as `sysctl` prints them, with their values.
fn read_settings(problems: &mut ProblemList, fields: &mut TableFields<'_>) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    for (name, value, line) in fields.read_pairs(problems, "settings") {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let is_sysctl = name.split('.').count() > 1 && name.split('.').all(|part| !part.is_empty());
        let expected = match name.as_str() {
            LRU_GEN if ["yes", "no", "y", "n", "0", "1"].contains(&value.as_str()) => None,
            LRU_GEN => Some("true or false"),
            _ if is_sysctl && name.chars().all(is_plain) && !value.chars().any(char::is_control) => None,
            _ => Some("a sysctl such as \"vm.compaction_proactiveness\", or lru_gen"),
        };
        match expected {
            Some(expected) => {
                let key = fields.describe_key("settings");
                problems.add(line, format!("{key}: expected {expected}, found {name} = {value:?}"));
            }
            None => settings.push((name, value)),
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::{ExperimentOverrides, ResolvedExperiment};

    const HEAD: &str = "name = \"t\"\nquestion = \"?\"\n[[workload]]\nbuilt_in = \"chase\"\n\
                        options = { size = \"64M\" }\n";

    fn in_guest() -> ExperimentOverrides {
        ExperimentOverrides { place: Some(TrialPlace::Guest), ..ExperimentOverrides::default() }
    }

    fn resolve(text: &str, overrides: &ExperimentOverrides) -> Result<ResolvedExperiment, String> {
        let recipe = Recipe::parse("x", text).map_err(|error| error.to_string())?;
        ResolvedExperiment::resolve(recipe, overrides).map_err(|error| error.to_string())
    }

    #[test]
    fn a_guest_is_that_of_the_experiment_with_the_changes_of_the_variant() {
        let text = format!(
            "{HEAD}[guest]\nkernel = \"6.12\"\ncpus = 2\nappend = \"a=1\"\ndimms = \"2x128M\"\n\
             settings = {{ \"vm.swappiness\" = 1 }}\n[[variant]]\nname = \"plain\"\n\
             [[variant]]\nname = \"other\"\nmemory = \"2G\"\nappend = \"b\"\n\
             kernelcore = \"512M\"\nkernel = \"6.1\"\n\
             settings = {{ \"vm.swappiness\" = 60, lru_gen = false }}\n\
             grouping = \"off\"\n"
        );
        let resolved = resolve(&text, &in_guest()).unwrap();
        assert_eq!(resolved.plan.place, "guest");
        let plain = resolved.recipe.required_guest(0, 0);
        let settings = vec![("vm.swappiness".to_owned(), "1".to_owned())];
        let expected = RequiredGuest {
            kernel: "6.12".to_owned(),
            memory: Bytes(1 << 30),
            is_oom_result: false,
            cpus: 2,
            append: "a=1".to_owned(),
            swap: None,
            disk: None,
            dimms: Some(Dimms { count: 2, size: Bytes(128 << 20) }),
            settings,
            has_module: true,
            icount: None,
            has_tools: false,
            has_source_tree: false,
            module_features: Vec::new(),
        };
        assert_eq!(plain, expected);
        let other = resolved.recipe.required_guest(0, 1);
        let words = "a=1 b kernelcore=512M";
        assert_eq!((other.kernel.as_str(), other.append.as_str()), ("6.1", words));
        assert_eq!((other.memory, other.is_oom_result), (Bytes(2 << 30), true));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(other.settings, [pair("vm.swappiness", "60"), pair("lru_gen", "no")]);
        assert_eq!((other.has_module, other.module_features), (true, vec![pair("grouping", "off")]));
        let of_plan: Vec<&str> =
            resolved.plan.variants[1].settings.iter().map(|(key, _)| key.as_str()).collect();
        let keys = [
            "kernel",
            "memory",
            "kernelcore",
            "append",
            "settings.lru_gen",
            "settings.vm.swappiness",
            "grouping",
        ];
        assert_eq!(of_plan, keys);
    }

    #[test]
    fn a_workload_has_the_guest_that_it_needs() {
        let text = format!(
            "seed = 5\nseed_by_round = true\n{HEAD}icount = 1\n[[workload]]\nbuilt_in = \"kbuild\"\n\
             [[workload]]\nbuilt_in = \"alloc-pages\"\n[[variant]]\nname = \"a\"\n"
        );
        let recipe = resolve(&text, &in_guest()).unwrap().recipe;
        let guests = [0, 1, 2].map(|workload| recipe.required_guest(workload, 0));
        assert_eq!(guests.each_ref().map(|guest| guest.icount), [Some(1), None, None]);
        assert_eq!(guests.each_ref().map(|guest| guest.has_tools), [false, true, false]);
        assert_eq!(guests.each_ref().map(|guest| guest.has_source_tree), [false, true, false]);
        assert!(guests.iter().all(|guest| guest.has_module), "a workload needs the module");
        assert_eq!([0, 2].map(|round| recipe.seed_of_round(round)), [5, 7]);
        let said = resolve(&text, &ExperimentOverrides::default()).unwrap_err();
        for line in [
            "seed_by_round is for trials in guests; hint: use --place guest",
            "workload \"chase\": icount is a property of a guest; hint: use --place guest",
        ] {
            assert!(said.contains(line), "{line}\n{said}");
        }
        let two = text.replace("[[variant]]", "[guest]\ncpus = 2\n[[variant]]");
        let said = resolve(&two, &in_guest()).unwrap_err();
        assert!(said.contains("icount: counted instructions are those of one CPU"), "{said}");
    }

    #[test]
    fn memory_holds_the_largest_workload_with_its_competitor() {
        let text = format!(
            "{HEAD}[[workload]]\nname = \"large\"\nbuilt_in = \"chase\"\noptions = {{ size = \"1G\" }}\n\
             [[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"\nhog = {{ size = \"1G\" }}\n\
             workloads = [\"chase\"]\n"
        );
        let recipe = resolve(&text, &in_guest()).unwrap().recipe;
        // 64 MiB beside a competitor of 1 GiB are more than 1 GiB alone.
        assert_eq!(recipe.required_guest(0, 0).memory, Bytes((1024 + 64 + 256) << 20));
        assert_eq!(recipe.required_guest(0, 0).disk, None);
        let files = text.replace("name = \"large\"\nbuilt_in = \"chase\"", "built_in = \"mmap-access\"");
        assert_eq!(
            resolve(&files, &in_guest()).unwrap().recipe.required_guest(0, 1).disk,
            Some(Bytes(8 << 30))
        );
    }

    #[test]
    fn kernels_are_compared_by_variants() {
        let text =
            format!("{HEAD}[[variant]]\nname = \"base\"\n[[variant]]\nname = \"huge\"\nadvise = \"huge\"\n");
        let kernels = vec!["6.1".to_owned(), "6.12".to_owned()];
        let overrides = ExperimentOverrides { kernels: kernels.clone(), ..in_guest() };
        let resolved = resolve(&text, &overrides).unwrap();
        let names: Vec<&str> = resolved.plan.variants.iter().map(|variant| variant.name.as_str()).collect();
        assert_eq!(names, ["base 6.1", "huge 6.1", "base 6.12", "huge 6.12"]);
        assert_eq!(resolved.plan.baseline, Some(0));
        assert_eq!(resolved.recipe.required_guest(0, 3).kernel, "6.12");
        let judged = ExperimentOverrides { compares_kernels: true, ..overrides.clone() };
        let plan = resolve(&text, &judged).unwrap().plan;
        assert_eq!(plan.variants.iter().map(|of| of.name.as_str()).collect::<Vec<_>>(), kernels);
        let one = text.replace("[[variant]]\nname = \"huge\"\nadvise = \"huge\"\n", "");
        let resolved = resolve(&one, &overrides).unwrap();
        assert_eq!(resolved.plan.variants[1].name, "6.12");
        assert_eq!(resolved.plan.variants[1].settings, [("kernel".to_owned(), "6.12".to_owned())]);
        let single = ExperimentOverrides { kernels: kernels[1..].to_vec(), ..in_guest() };
        let resolved = resolve(&one, &single).unwrap();
        assert_eq!(
            (resolved.plan.variants.len(), resolved.recipe.required_guest(0, 0).kernel.as_str()),
            (1, "6.12")
        );
    }

    #[test]
    fn all_that_a_guest_cannot_have_is_told_at_once() {
        let text = "name = \"t\"\nquestion = \"?\"\n[[workload]]\nname = \"sort\"\n\
                    command = [\"/bin/sort\"]\n\
                    files = [\"x\"]\n[[workload]]\nname = \"own\"\ncommand = [\"pagelab\", \"frag\"]\n\
                    [guest]\nkernel = [\"6.1\", \"6.1\"]\ncpus = 1\n\
                    [[variant]]\nname = \"a\"\npin = true\nplan = \"x.toml\"\n\
                    reclaim = \"unreferenced\"\n\
                    [[variant]]\nname = \"b\"\nkernelcore = \"2G\"\nmemory = \"1G\"\nkernel = \"5\"\n";
        let said = resolve(text, &in_guest()).unwrap_err();
        for line in [
            "x:3: workload \"sort\": /bin/sort is not in the guest: a guest contains pagelab",
            "x:3: workload \"sort\": files: x is not in the guest",
            "guest: kernel 6.1 is given twice",
            "variant \"a\": plan: the file x.toml is not in the guest",
            "variant \"a\": pin = true requires a guest with 2 CPUs",
            "variant \"a\": reclaim = \"unreferenced\" requires the multi-generational LRU to be off",
            "variant \"b\": kernelcore: expected less than the guest's memory (1G), found 2G",
            "variant \"b\": kernel: the experiment already compares kernels",
        ] {
            assert!(said.contains(line), "{line}\n{said}");
        }
        assert_eq!(said.lines().count(), 8, "{said}");
        let on_host = resolve(
            &text.replace("pin = true\nplan = \"x.toml\"\nreclaim = \"unreferenced\"", ""),
            &ExperimentOverrides::default(),
        );
        assert!(
            on_host
                .unwrap_err()
                .contains("variant \"b\": kernel is a property of a guest; hint: use --place")
        );
    }

    #[test]
    fn wrong_sizes_are_told_all_at_once_with_line_and_key() {
        let text = format!(
            "{HEAD}[guest]\nmemory = \"64M\"\nswap = \"4M\"\ndisk = \"2T\"\ndimms = \"2x100M\"\n\
             [[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"\nmemory = \"2T\"\n\
             [[variant]]\nname = \"c\"\nmemory = \"128.5M\"\n"
        );
        let said = Recipe::parse("x", &text).unwrap_err().to_string();
        let expected = [
            "x:7: guest: memory: expected 96 MiB to 1 TiB, found 64 MiB",
            "x:8: guest: swap: expected 8 MiB to 1 TiB and a multiple of 512 bytes, found 4 MiB",
            "x:9: guest: disk: expected 8 MiB to 1 TiB and a multiple of 512 bytes, found 2 TiB",
            "x:10: guest: dimms: expected a size that is a multiple of 128 MiB, the size of a memory block, \
             found 100 MiB",
            "x:15: variant \"b\": memory: expected 96 MiB to 1 TiB, found 2 TiB",
            "x:18: variant \"c\": memory: expected a multiple of 1 MiB, found 131584 KiB",
        ];
        assert_eq!(said.lines().collect::<Vec<_>>(), expected);
        // Together with what the place adds.
        let text = format!(
            "{HEAD}[guest]\nswap = \"4M\"\ndimms = \"256x256M\"\n[[variant]]\nname = \"a\"\n\
             kernelcore = \"3T\"\n"
        );
        let said = ResolvedExperiment::parse("x", &text, &in_guest()).unwrap_err().to_string();
        let expected = [
            "x:7: guest: swap: expected 8 MiB to 1 TiB and a multiple of 512 bytes, found 4 MiB",
            "x:8: guest: dimms: with variant \"a\": the kernel needs 1 GiB of memory for 64 GiB of DIMMs; hint: \
             use 2G of memory or more",
            "x:9: variant \"a\": kernelcore: expected less than the guest's memory (1G), found 3T",
        ];
        assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn wrong_values_name_key_and_line() {
        for (keys, said) in [
            ("place = \"moon\"\n", "place: expected one of host, guest, found \"moon\""),
            ("[guest]\nboot = \"never\"\n", "guest: boot: expected one of trial, round"),
            ("[guest]\ndimms = \"128M\"\n", "x:4: guest: dimms: expected COUNTxSIZE, for example 8x128M"),
            ("[guest]\nkernel = 6\n", "guest: kernel: expected a string or a list of strings"),
            ("[guest]\nsettings = { swappiness = 1 }\n", "settings: expected a sysctl such as"),
            ("[guest]\nsettings = { \"vm..x\" = 1 }\n", "settings: expected a sysctl such as"),
            ("[guest]\nsettings = { lru_gen = 5 }\n", "settings: expected true or false, found lru_gen"),
            (
                "[guest]\nboot = \"round\"\n[[variant]]\nname = \"x\"\ngrouping = \"no\"\n",
                "expected one of on, off",
            ),
            (
                "[[variant]]\nname = \"x\"\nreclaim = \"none\"\n",
                "expected one of stock, unreferenced, linear",
            ),
            ("[guest]\nmemory_limit = \"1G\"\n", "guest: "),
        ] {
            let text = format!(
                "{}[[variant]]\nname = \"a\"\n",
                HEAD.replace("[[workload]]", &format!("{keys}[[workload]]"))
            );
            let error = Recipe::parse("x", &text).unwrap_err().to_string();
            assert!(error.contains(said), "{keys}: {error}");
        }
    }
}
