//! `pagelab run --place guest`: trials in disposable guests.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use pagelab_command::progress::{CommandStatus, StatusEnd};
use pagelab_command::setup_progress::SetupProgress;
use pagelab_experiment::recipe::{BootPolicy, Recipe, RequiredGuest, TrialPlace};
use pagelab_experiment::resolve::{ExperimentOverrides, ResolvedExperiment};
use pagelab_experiment::session::SessionFile;
use pagelab_guest::accelerator::{Accelerator, AcceleratorChoice};
use pagelab_guest::boot::{self, QEMU, find_qemu};
use pagelab_guest::config::GuestConfig;
use pagelab_guest::disk;
use pagelab_guest::kernel::GuestKernel;
use pagelab_guest::module_build::set_up_module;
use pagelab_guest_place::{BOOT_TIME, GuestPlace, GuestRunner, TrialGuests, VariantGuest, config_of};
use pagelab_model::Bytes;
use pagelab_model::experiment::{Plan, ScheduleSlot, TrialRole};
use pagelab_model::run::Run;
use pagelab_model::size::{self, format_argument, format_exact};
use pagelab_report::run_plan::GuestPlan;
use pagelab_report::style::format_plural;
use pagelab_study::session::watch_signals;

use super::Args;
use super::judge::JudgeRequest;
use super::start_problems::StartProblems;
use crate::cmd::guest::run::{ACCELERATORS, choose_accelerator};
use crate::cmd::guest::{
    find_kernel, find_or_fetch_kernel, find_or_make_tools, find_or_make_tree, find_own_module,
    is_kernel_path, memory, open_module_cache,
};
use crate::cmd::usage_error;
use crate::exit::{Failure, FailureKind};
use crate::output;
use crate::value_parsers::{Choice, bounded_ns, choice, parse_bounded};

const HEADING: &str = "Guests (docs/guests.md)";

const PLACES: [Choice<TrialPlace>; 2] = [
    (&[Plan::HOST], "This machine", TrialPlace::Host),
    (&[Plan::GUEST], "A disposable QEMU guest for each trial", TrialPlace::Guest),
];

/// Options of guests.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct GuestArgs {
    /// Where trials run [default: the recipe's]
    #[arg(long, value_name = "PLACE", help_heading = HEADING, value_parser = choice(&PLACES))]
    pub place: Option<TrialPlace>,
    /// Kernel: a series such as 6.1, a package, or the path of a vmlinuz; of several
    /// each runs with each variant, with --judge with the baseline variant alone
    /// [default: the recipe's]
    #[arg(long, value_name = "SERIES|PACKAGE|PATH", help_heading = HEADING)]
    kernel: Vec<String>,
    /// Directory with modules.dep, for kernels given by path
    #[arg(long, value_name = "DIR", help_heading = HEADING)]
    modules: Option<PathBuf>,
    /// Memory of each guest [default: the recipe's, else enough for its workloads]
    #[arg(long, value_name = "SIZE", help_heading = HEADING, value_parser = size::parse)]
    memory: Option<Bytes>,
    /// CPUs of each guest; a single QEMU thread emulates all of them [default: 1]
    #[arg(long, value_name = "N", help_heading = HEADING, value_parser = parse_bounded::<u32, 1, 64>)]
    cpus: Option<u32>,
    /// Guests at the same time [default: one for each CPU, if memory suffices]
    #[arg(long, value_name = "N", help_heading = HEADING, value_parser = parse_bounded::<usize, 1, 64>)]
    lanes: Option<usize>,
    /// Accelerator that runs the CPUs of guests [default: tcg]
    #[arg(long, value_name = "ACCEL", help_heading = HEADING, value_parser = choice(&ACCELERATORS))]
    accel: Option<AcceleratorChoice>,
    /// QEMU binary
    #[arg(long, value_name = "PROGRAM", help_heading = HEADING)]
    qemu: Option<PathBuf>,
    /// Kernel cache directory [default: $XDG_CACHE_HOME/pagelab or ~/.cache/pagelab]
    #[arg(long, value_name = "DIR", help_heading = HEADING)]
    cache: Option<PathBuf>,
}

impl GuestArgs {
    /// These options with those that change no result from another command line.
    pub fn with_changes(&self, now: &GuestArgs) -> GuestArgs {
        GuestArgs {
            lanes: now.lanes.or(self.lanes),
            qemu: now.qemu.clone().or_else(|| self.qemu.clone()),
            cache: now.cache.clone().or_else(|| self.cache.clone()),
            ..self.clone()
        }
    }

    /// The changes of a recipe. A judgement of several kernels is one of the baseline variant.
    pub fn overrides(&self, is_judged: bool) -> ExperimentOverrides {
        ExperimentOverrides {
            place: self.place,
            kernels: self.kernel.clone(),
            compares_kernels: is_judged,
            guest_memory: self.memory,
            guest_cpus: self.cpus,
            ..ExperimentOverrides::default()
        }
    }

    /// Reports options that do not fit the place.
    pub fn check(&self, args: &Args, is_guest: bool, problems: &mut StartProblems) {
        let of_guest = [
            ("--kernel", !self.kernel.is_empty()),
            ("--modules", self.modules.is_some()),
            ("--memory", self.memory.is_some()),
            ("--cpus", self.cpus.is_some()),
            ("--lanes", self.lanes.is_some()),
            ("--accel", self.accel.is_some()),
            ("--qemu", self.qemu.is_some()),
            ("--cache", self.cache.is_some()),
        ];
        let of_host = [("--swap-dir", args.swap_dir.is_some()), ("--model", args.model)];
        let (options, reason) = match is_guest {
            true => (&of_host[..], "does not apply to guests"),
            false => (&of_guest[..], "requires --place guest"),
        };
        for (option, _) in options.iter().filter(|(_, is_given)| *is_given) {
            problems.add(usage_error(&format!("{option} {reason}")));
        }
    }

    /// Adds kernels of the command line that cannot be used to the problems of a recipe.
    pub fn add_kernel_problems(&self, of_recipe: Failure) -> Failure {
        let mut problems = StartProblems::default();
        find_kernels(self, &self.kernel, None, &mut problems);
        problems.join_to(of_recipe)
    }

    /// The same options for the trial in the guest.
    fn to_words(&self, is_judged: bool) -> Vec<OsString> {
        let compares = is_judged.then(|| "--compares-kernels".into());
        let kernels = self.kernel.iter().flat_map(|kernel| ["--kernel".into(), OsString::from(kernel)]);
        let memory = self.memory.map(|size| ["--memory".into(), OsString::from(format_argument(size))]);
        let cpus = self.cpus.map(|cpus| ["--cpus".into(), OsString::from(cpus.to_string())]);
        let sizes = memory.into_iter().flatten().chain(cpus.into_iter().flatten());
        kernels.chain(sizes).chain(compares).collect()
    }
}

/// Describes the guest of a variant before its kernel is found.
pub fn describe(recipe: &Recipe, variant: usize) -> Vec<String> {
    let guest = recipe.required_guest(0, variant);
    let cpus = format_plural(guest.cpus, "CPU");
    let mut text = format!("a guest with kernel {}, {}, {cpus}", guest.kernel, format_exact(guest.memory));
    for (name, size) in [("swap", guest.swap), ("disk", guest.disk)] {
        text.push_str(&size.map_or_else(String::new, |size| format!(", {name} {}", format_exact(size))));
    }
    if !guest.append.is_empty() {
        text.push_str(&format!(", {}", guest.append));
    }
    let settings = guest.settings.iter().map(|(name, value)| format!("{name} = {value}"));
    if let Some(settings) = settings.reduce(|all, next| format!("{all}, {next}")) {
        text.push_str(&format!(", set to {settings}"));
    }
    vec![text]
}

/// What a plan says of its guests, before QEMU and the kernels are found. `file` is the run file.
pub fn plan_guests(args: &GuestArgs, resolved: &ResolvedExperiment, file: &Path) -> GuestPlan {
    let recipe = &resolved.recipe;
    let boots = count_boots(recipe, &resolved.plan);
    let configs = guest_configs(recipe);
    let requested = match resolved.plan.early_end {
        // Its end is decided after each round.
        Some(_) => Some(NonZero::<usize>::MIN),
        None => args.lanes.and_then(NonZero::new),
    };
    let lanes = memory::count_lanes(configs.iter(), requested);
    let lanes = lanes.map(|lanes| lanes.min(NonZero::new(boots).unwrap_or(NonZero::<usize>::MIN)));
    let by_side = lanes.as_ref().map_or(1, |lanes| lanes.get());
    let (trials, _) = resolved.estimate_duration();
    let expected = trials.map(|trials| (trials + BOOT_TIME * boots as u32) / by_side as u32);
    GuestPlan {
        boots,
        lanes: lanes.map(|lanes| (lanes.get(), memory::sum_of_lanes(configs.iter(), lanes))),
        expected_ns: expected.map(bounded_ns),
        file: file.display().to_string(),
    }
}

/// Workloads and variants that are combined, by their numbers.
fn combinations(recipe: &Recipe) -> Vec<(usize, usize)> {
    let workloads = 0..recipe.workloads.len();
    let all = workloads.flat_map(|workload| (0..recipe.variants.len()).map(move |at| (workload, at)));
    all.filter(|(workload, variant)| recipe.is_combined(*workload, *variant)).collect()
}

/// What all guests need.
fn required_guests(recipe: &Recipe) -> BTreeMap<(usize, usize), RequiredGuest> {
    let required = |key: (usize, usize)| (key, recipe.required_guest(key.0, key.1));
    combinations(recipe).into_iter().map(required).collect()
}

/// Configurations of all guests.
fn guest_configs(recipe: &Recipe) -> Vec<GuestConfig> {
    required_guests(recipe).values().map(config_of).collect()
}

/// Boots of a plan whose guests are not lost: one for each trial, or for those of a round that need the same.
fn count_boots(recipe: &Recipe, plan: &Plan) -> usize {
    if recipe.guest.boot != Some(BootPolicy::Round) {
        return plan.schedule.len();
    }
    let guest = |slot: ScheduleSlot| {
        (slot.role == TrialRole::WarmUp, slot.round, recipe.required_guest(slot.workload, slot.variant))
    };
    plan.schedule.iter().map(guest).collect::<BTreeSet<_>>().len()
}

/// Guests of the trials, and how many of them run at the same time.
pub struct FoundGuests {
    qemu: PathBuf,
    guests: TrialGuests,
    accelerator: Accelerator,
    lanes: NonZero<usize>,
}

impl FoundGuests {
    /// Why trials of an earlier session cannot be compared with those of these guests.
    pub fn check_accelerator(&self, earlier: &Run) -> Result<(), String> {
        let had_guests = earlier.events.iter().any(|event| event.kind == Run::GUEST_EVENT);
        match (earlier.has_emulated_times(), self.accelerator) {
            (true, Accelerator::Kvm) if had_guests => {
                Err("its guests were emulated, and now KVM works; hint: start a new run".to_owned())
            }
            (false, Accelerator::Tcg) if had_guests => {
                Err("its guests had KVM, which does not work now; hint: start a new run".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// Finds QEMU and the kernels, and checks all guests before the first boot. Kernels are downloaded if need be
/// and if nothing else keeps the experiment from its start. The error lists all problems.
pub fn find_guests(
    args: &GuestArgs,
    resolved: &ResolvedExperiment,
    mut problems: StartProblems,
) -> Result<FoundGuests, Failure> {
    let qemu = args.qemu.clone().unwrap_or_else(|| QEMU.into());
    problems.add_error(find_qemu(&qemu));
    let mut told = SetupProgress::start(false)?;
    let recipe = &resolved.recipe;
    let required = required_guests(recipe);
    let is_counted = required.values().any(|guest| guest.icount.is_some());
    if is_counted && args.accel.is_some_and(|accel| accel != AcceleratorChoice::Tcg) {
        let text = "--accel: instructions are counted by TCG alone (icount in the recipe)";
        problems.add(usage_error(text));
    }
    let selectors: Vec<String> = required.values().map(|guest| guest.kernel.clone()).collect();
    let download = problems.is_empty().then_some(&mut told);
    let kernels = find_kernels(args, &selectors, download, &mut problems);
    problems.exit_if_stopped();
    let modules = match required.values().any(|guest| guest.has_module) {
        true => find_modules(args, &kernels, &mut told, &mut problems),
        false => BTreeMap::new(),
    };
    problems.exit_if_stopped();
    let tools = match required.values().any(|guest| guest.has_tools) && problems.is_empty() {
        true => problems.add_error(find_or_make_tools(args.cache.as_ref(), &mut told)),
        false => None,
    };
    let tree = match required.values().any(|guest| guest.has_source_tree) && problems.is_empty() {
        true => problems.add_error(find_or_make_tree(args.cache.as_ref(), &mut told)),
        false => None,
    };
    let mut guests = TrialGuests::new();
    for (key, required) in required {
        let Some(kernel) = kernels.get(&required.kernel) else { continue };
        let module = modules.get(&required.kernel).cloned();
        let tools = tools.clone().filter(|_| required.has_tools);
        let tree = tree.clone().filter(|_| required.has_source_tree);
        let guest = VariantGuest { required, kernel: kernel.clone(), module, tools, tree };
        check_guest(&guest, &recipe.variants[key.1].name, &mut problems);
        guests.insert(key, guest);
    }
    let configs = guest_configs(recipe);
    let lanes = memory::count_lanes(configs.iter(), args.lanes.and_then(NonZero::new));
    let lanes = problems.add_error(lanes.map_err(|why| Failure::new(FailureKind::NotAvailable, why)));
    problems.into_result()?;
    let accelerator = probe_accelerator(args, &guests, &qemu, &told)?;
    Ok(FoundGuests { qemu, guests, accelerator, lanes: lanes.unwrap_or(NonZero::<usize>::MIN) })
}

/// Reports what the guest of a variant cannot have, other than the sizes that its recipe states.
fn check_guest(guest: &VariantGuest, variant: &str, problems: &mut StartProblems) {
    let config = guest.config();
    let modules = || guest.kernel.module_files(&config.required_modules()).map(drop);
    let disk = || config.disk.map_or(Ok(()), |_| disk::check_mkfs());
    let shape = config.check().map_err(|why| usage_error(&why));
    if let Err(failure) = shape.and_then(|()| modules()).and_then(|()| disk()) {
        problems.add(Failure::new(failure.kind(), format!("variant {variant:?}: {failure}")));
    }
}

/// pagelab's modules by the words that select their kernels, built if need be and if nothing else keeps the
/// experiment from its start. That of a kernel given by its path must exist: apt has no headers for it.
fn find_modules(
    args: &GuestArgs,
    kernels: &BTreeMap<String, GuestKernel>,
    told: &mut SetupProgress,
    problems: &mut StartProblems,
) -> BTreeMap<String, PathBuf> {
    let mut modules = BTreeMap::new();
    for (selector, kernel) in kernels {
        let found = if is_kernel_path(selector) || !problems.is_empty() {
            find_own_module(args.cache.as_ref(), selector, kernel)
        } else {
            let cache = open_module_cache(args.cache.as_ref());
            cache.and_then(|cache| Ok(set_up_module(&cache, kernel, None, told)?.path))
        };
        modules.extend(problems.add_error(found).map(|module| (selector.clone(), module)));
    }
    modules
}

/// The accelerator of all guests, after a probe boot of each kernel if KVM was requested: KVM only if it
/// works with all of them, since the times of two accelerators cannot be compared. The first that does not
/// work decides.
fn probe_accelerator(
    args: &GuestArgs,
    guests: &TrialGuests,
    qemu: &Path,
    told: &SetupProgress,
) -> Result<Accelerator, Failure> {
    let choice = args.accel.unwrap_or_default();
    let mut probed: Vec<&Path> = Vec::new();
    for guest in guests.values().filter(|_| choice != AcceleratorChoice::Tcg) {
        if probed.contains(&guest.kernel.image.as_path()) {
            continue;
        }
        probed.push(&guest.kernel.image);
        let mut plan = boot::GuestPlan::new(guest.kernel.clone(), guest.config(), Vec::new());
        plan.qemu = qemu.to_owned();
        choose_accelerator(choice, &mut plan, told)?;
        if plan.accelerator == Accelerator::Tcg {
            return Ok(Accelerator::Tcg);
        }
    }
    Ok(if probed.is_empty() { Accelerator::Tcg } else { Accelerator::Kvm })
}

/// The kernels by the words that select them. Without a `download` only those that are there are found.
fn find_kernels(
    args: &GuestArgs,
    selectors: &[String],
    mut download: Option<&mut SetupProgress>,
    problems: &mut StartProblems,
) -> BTreeMap<String, GuestKernel> {
    let mut kernels: BTreeMap<String, GuestKernel> = BTreeMap::new();
    let distinct = selectors.iter().enumerate().filter(|(at, selector)| !selectors[..*at].contains(selector));
    for (_, selector) in distinct {
        let (cache, modules) = (args.cache.as_ref(), args.modules.as_deref());
        let found = match download.as_deref_mut() {
            Some(told) => find_or_fetch_kernel(cache, selector, modules, told).map(Some),
            None => find_kernel(cache, selector, modules),
        };
        let Some(kernel) = problems.add_error(found).flatten() else { continue };
        let twin = kernels.iter().find(|(_, known)| known.image == kernel.image);
        if let Some((known, _)) = twin {
            let text = format!("kernels {known} and {selector} are the same: {}", kernel.release);
            problems.add(usage_error(&text));
        }
        kernels.insert(selector.clone(), kernel);
    }
    kernels
}

/// Runs the remaining trials of the plan in guests.
pub fn run_in_guests(
    args: &Args,
    (plan, resolved): (&Plan, &ResolvedExperiment),
    found: FoundGuests,
    (path, file): (&Path, SessionFile<'_>),
    (json, judge): (bool, Option<JudgeRequest>),
) -> Result<u8, Failure> {
    let stop = watch_signals()?;
    let _status = CommandStatus::start(format!("preparing {}", plan.name), StatusEnd::Unknown);
    let requested = || stop.signal();
    let mut options: Vec<OsString> = args.guest.to_words(args.judge.request().is_some());
    if args.quick {
        options.push("--quick".into());
    }
    if let Some(repeats) = args.repeats {
        options.extend(["--repeats".into(), OsString::from(repeats.to_string())]);
    }
    if !args.command.is_empty() {
        options.push("--".into());
        options.extend(args.command.iter().cloned());
    }
    let mut resolved = resolved.clone();
    match found.accelerator {
        Accelerator::Tcg => {
            output::print_note("guests    emulated (QEMU TCG): times are about ten times those of hardware");
        }
        Accelerator::Kvm => {
            resolved = resolved.with_native_speed();
            options.insert(0, "--native-speed".into());
        }
    }
    let resolved = &resolved;
    let runner = GuestRunner {
        qemu: found.qemu,
        accelerator: found.accelerator,
        lanes: found.lanes,
        trial_options: options,
    };
    let place = GuestPlace::new(resolved, found.guests, runner, &requested, file.earlier_run());
    super::run_session(plan, &place, &requested, (path, file), (json, judge.as_ref()))
}
