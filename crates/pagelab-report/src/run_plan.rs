//! Text of an experiment before it begins: trials in their order, expected time, and changes of settings.

use pagelab_model::Bytes;
use pagelab_model::experiment::{Plan, PlannedVariant, ScheduleSlot, Sequence, TrialRole};

use crate::quantity_format::format_duration;
use crate::style::{TextStyle, format_bytes, format_plural};
use crate::text_report::TextReport;

const SLOTS_SHOWN_MAX: usize = 12;

/// An experiment on a host before it begins.
#[derive(Clone, Debug)]
pub struct RunPlanView<'p> {
    /// The plan.
    pub plan: &'p Plan,
    /// Number of warm-up rounds.
    pub warm_up: u32,
    /// Number of measured rounds.
    pub repeats: u32,
    /// Whether each round has the baseline twice.
    pub has_twins: bool,
    /// Expected duration, if the recipe states that of each workload.
    pub expected_ns: Option<u64>,
    /// Duration after which all trials have reached their time limits.
    pub at_most_ns: u64,
    /// For each workload, why it cannot run.
    pub missing: Vec<Option<String>>,
    /// For each variant, the changes of settings.
    pub changes: Vec<Vec<String>>,
    /// The command of each trial.
    pub commands: Vec<Vec<String>>,
    /// Whether a model of the TLBs is requested.
    pub has_model: bool,
    /// Guests, if they are the place.
    pub guests: Option<GuestPlan>,
}

/// Guests of an experiment before it begins.
#[derive(Clone, Debug)]
pub struct GuestPlan {
    /// How many are booted, if none is lost.
    pub boots: usize,
    /// How many run at the same time, and the memory of all of these with QEMU; or why they cannot run here.
    pub lanes: Result<(usize, Bytes), String>,
    /// Duration with these lanes and boots, emulated, if the recipe states that of each workload.
    pub expected_ns: Option<u64>,
    /// The run file.
    pub file: String,
}

fn guests_text(guests: &GuestPlan) -> String {
    let boots = format_plural(guests.boots, "boot");
    let takes = match guests.expected_ns {
        Some(takes) => format!("about {} if emulated", format_duration(takes)),
        None => "duration unknown".to_owned(),
    };
    let lanes = match &guests.lanes {
        Ok((1, memory)) => format!("one guest at a time with {} including QEMU", format_bytes(*memory)),
        Ok((lanes, memory)) => {
            format!("{lanes} guests at a time with {} in all including QEMU", format_bytes(*memory))
        }
        Err(why) => format!("cannot run here: {why}"),
    };
    format!("{boots}, {takes}; {lanes}; run file: {}", guests.file)
}

fn settings_text(variant: &PlannedVariant) -> String {
    let text = |(key, value): &(String, String)| match key.as_str() {
        "nothing" => value.clone(),
        key => format!("{key} {value}"),
    };
    let pairs = variant.settings.iter().map(text);
    pairs.collect::<Vec<_>>().join(", ")
}

/// Renders the plan.
pub fn render(view: &RunPlanView<'_>, style: TextStyle) -> String {
    let plan = view.plan;
    let mut output = TextReport::new(style);
    output.add_text(&format!("{}: {}", plan.name, plan.question));
    output.add_text(&outline_text(view));
    if let Some(guests) = &view.guests {
        output.add_paragraph("guests  ", &guests_text(guests));
    }
    output.add_gap();
    for (workload, missing) in plan.workloads.iter().zip(&view.missing) {
        output.add_paragraph(&format!("workload {}  ", workload.name), &workload.command.join(" "));
        if !workload.generator.is_empty() {
            output.add_indented(&workload.generator);
        }
        if let Some(why) = missing {
            output.add_paragraph("  its trials would be skipped  ", why);
        }
    }
    output.add_gap();
    let is_guest = plan.place == Plan::GUEST;
    for (at, variant) in plan.variants.iter().enumerate() {
        let what = if Some(at) == plan.baseline { ", the baseline" } else { "" };
        output.add_paragraph(&format!("variant {}{what}  ", variant.name), &settings_text(variant));
        for change in view.changes.get(at).into_iter().flatten() {
            output.add_paragraph(if is_guest { "  runs in  " } else { "  would change  " }, change);
        }
    }
    output.add_text(match is_guest {
        true => "Guests are discarded, and this machine is not changed.",
        false => "Changes apply during a trial and are restored after it.",
    });
    output.add_gap();
    for (number, slot) in plan.schedule.iter().enumerate().take(SLOTS_SHOWN_MAX) {
        output.add_paragraph(&format!("{:>4}  ", number + 1), &trial_text(plan, &slot));
    }
    if plan.schedule.len() > SLOTS_SHOWN_MAX {
        output.add_text(&format!("      … {} more (--json has all)", plan.schedule.len() - SLOTS_SHOWN_MAX));
    }
    if view.has_model {
        let runs = plan.workloads.len() * plan.variants.len();
        let text = format!(
            "{runs} more runs: each workload once per variant in QEMU user mode, about 26 times as long as a \
             trial; skipped if hardware counters are available"
        );
        output.add_paragraph("model ", &text);
    }
    output.into_text()
}

fn outline_text(view: &RunPlanView<'_>) -> String {
    let plan = view.plan;
    let order = match plan.sequence {
        Sequence::Abba => "interleaved (abba)",
        Sequence::Blocks => "random order in each round (blocks)",
        Sequence::BySeed => "all points of one seed before the next",
    };
    // Guests run side by side: their line has the duration.
    let takes = match view.expected_ns {
        _ if view.guests.is_some() => String::new(),
        Some(takes) => format!("about {}, ", format_duration(takes)),
        None => "duration unknown: it depends on the programs, ".to_owned(),
    };
    format!(
        "{} trials, {takes}at most {}: {} warm-up and {} measured rounds{}, {order}, seed {}; recipe {}; \
         place: {}",
        plan.schedule.len(),
        format_duration(view.at_most_ns),
        view.warm_up,
        view.repeats,
        if view.has_twins { " with the baseline twice" } else { "" },
        plan.seed,
        plan.origin,
        plan.place
    )
}

fn trial_text(plan: &Plan, slot: &ScheduleSlot) -> String {
    let role = match slot.role {
        TrialRole::WarmUp => "warm-up".to_owned(),
        TrialRole::Measured => format!("round {}", slot.round + 1),
        TrialRole::Twin => format!("round {}, second baseline", slot.round + 1),
    };
    format!("{}, {}: {role}", plan.workloads[slot.workload].name, plan.variants[slot.variant].name)
}
