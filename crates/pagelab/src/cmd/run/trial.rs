//! `pagelab trial`, internal: one trial of an experiment, in the guest that `run --place guest` booted.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::PathBuf;

use pagelab_command::setup_progress::SetupProgress;
use pagelab_contig::reserve::Reserve;
use pagelab_experiment::guest_settings;
use pagelab_experiment::host_place::HostPlace;
use pagelab_experiment::recipe::{Recipe, TrialPlace};
use pagelab_experiment::resolve::{ExperimentOverrides, ResolvedExperiment};
use pagelab_experiment::swap_file::ExperimentSwap;
use pagelab_experiment::trial::TrialContext;
use pagelab_experiment::trial_report;
use pagelab_guest::agent::runs_in_guest;
use pagelab_host::guard::GuardSite;
use pagelab_model::experiment::{Trial, TrialEnd, TrialRole};
use pagelab_model::{Bytes, size};
use pagelab_probe::machine_tlb::{known_tlb, read_snapshot};
use pagelab_study::session::watch_signals;

use crate::cmd::usage_error;
use crate::exit::{Exit, Failure, FailureKind, Outcome};
use crate::output;
use crate::value_parsers::{Choice, choice, parse_bounded};

const ROLES: [Choice<TrialRole>; 3] = [
    (&["warm_up"], "Not measured", TrialRole::WarmUp),
    (&["measured"], "Measured", TrialRole::Measured),
    (&["twin"], "The baseline again", TrialRole::Twin),
];

/// The trial, and the changes of its recipe, as on the command line of `pagelab run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Recipe file
    #[arg(value_name = "RECIPE")]
    recipe: PathBuf,
    /// Index of the workload
    #[arg(long, value_name = "N")]
    workload: usize,
    /// Index of the variant
    #[arg(long, value_name = "N")]
    variant: usize,
    /// Role of the trial
    #[arg(long, value_name = "ROLE", value_parser = choice(&ROLES))]
    role: TrialRole,
    /// As of `pagelab run`
    #[arg(long)]
    quick: bool,
    /// As of `pagelab run`
    #[arg(long, value_name = "N", value_parser = parse_bounded::<u32, 1, 10_000>)]
    repeats: Option<u32>,
    /// As of `pagelab run`
    #[arg(long, value_name = "KERNEL")]
    kernel: Vec<String>,
    /// Only the baseline variant runs, with each kernel
    #[arg(long)]
    compares_kernels: bool,
    /// As of `pagelab run`
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<Bytes>,
    /// As of `pagelab run`
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// Seed of the workload
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The guest runs on the processor of its host
    #[arg(long)]
    native_speed: bool,
    /// As of `pagelab run`
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Carries out the trial and prints its report.
pub fn run(args: &Args) -> Outcome {
    if !runs_in_guest() {
        let hint = "use `pagelab run RECIPE --place guest`";
        return Err(usage_error(&format!("this command runs in guests of pagelab only; hint: {hint}")));
    }
    let resolved = resolve(args)?;
    let slots = resolved.plan.schedule.iter();
    let slot = slots.enumerate().find(|(_, slot)| {
        (slot.workload, slot.variant, slot.role) == (args.workload, args.variant, args.role)
    });
    let Some((slot, _)) = slot else {
        return Err(usage_error("the plan of this recipe has no such trial"));
    };
    let guest = resolved.recipe.required_guest(args.workload, args.variant);
    let applied = guest_settings::apply(&guest.settings);
    let finished = match applied.and_then(|()| guest_settings::switch_features(&guest.module_features)) {
        Ok(()) => carry_out(&resolved, slot)?,
        Err(why) => Trial { end: TrialEnd::NotStarted(why), ..Trial::new(slot, 0) }.into(),
    };
    output::print(&String::from_utf8_lossy(&trial_report::encode(&finished)))?;
    Ok(Exit::Success)
}

fn resolve(args: &Args) -> Result<ResolvedExperiment, Failure> {
    let unread = |error: std::io::Error| Failure::cannot_read(args.recipe.display(), &error);
    let text = std::fs::read_to_string(&args.recipe).map_err(unread)?;
    let bad = |error: pagelab_experiment::recipe::RecipeError| {
        Failure::new(FailureKind::BadInput, error.to_string())
    };
    let recipe = Recipe::parse("recipe", &text).map_err(bad)?;
    let words = crate::cmd::parse_command(&args.command)?;
    let overrides = ExperimentOverrides {
        quick: args.quick,
        repeats: args.repeats,
        time_budget: None,
        command: (!words.is_empty()).then_some(words),
        place: Some(TrialPlace::Guest),
        kernels: args.kernel.clone(),
        compares_kernels: args.compares_kernels,
        guest_memory: args.memory,
        guest_cpus: args.cpus,
        seed: args.seed,
    };
    let resolved = ResolvedExperiment::resolve(recipe, &overrides).map_err(bad)?;
    Ok(if args.native_speed { resolved.with_native_speed() } else { resolved })
}

fn carry_out(
    resolved: &ResolvedExperiment,
    slot: usize,
) -> Result<pagelab_experiment::place::FinishedTrial, Failure> {
    let stop = watch_signals()?;
    let requested = || stop.signal();
    let snapshot = read_snapshot();
    let mut machine = snapshot.machine.clone();
    machine.tlb = known_tlb(&machine);
    let total = snapshot.meminfo.as_ref().ok().and_then(|info| info.bytes("MemTotal"));
    let mut setup = SetupProgress { stop: stop.clone(), is_verbose: false };
    let context = TrialContext {
        site: GuardSite::live().map_err(|error| error.to_string()),
        machine: &machine,
        total_memory: total.unwrap_or(Bytes(0)),
        // Nothing else needs the memory of a guest.
        reserve: Reserve::IN_GUEST,
        swap_file: ExperimentSwap::default().into(),
        resolved,
        stop_signal: &requested,
        take_snapshot: &read_snapshot,
        setup_observer: RefCell::new(&mut setup),
        peak_bytes: RefCell::default(),
        model: None,
    };
    let finished = HostPlace::in_guest(context).carry_out_alone(slot);
    finished.map_err(|lost| Failure::new(FailureKind::Bug, lost.reason))
}
