//! `pagelab apply --dry-run`, and plans that are refused before anything is started.

use std::io::Write;

use pagelab_model::huge_plan::HugePlan;
use pagelab_report::style;
use pagelab_target::identity;
use pagelab_target::outside::Outside;
use pagelab_target::supervise::{Choice, Match, Spec, find};

use crate::exit::{Exit, Failure};
use crate::out;

/// A plan for another build of the very program that is to be started is refused.
pub fn refuse_stale(spec: &Spec) -> Result<(), Failure> {
    let Choice::Plan(plan) = &spec.choice else { return Ok(()) };
    let program = identity::of(&spec.program.canonicalize().unwrap_or_else(|_| spec.program.clone()));
    match find(plan, &program) {
        Match::Stale(_) if !spec.stale => {
            let message = format!(
                "the plan is for another build of {}: profile this one and plan again, or carry it out \
                 anyway with --stale",
                spec.program.display()
            );
            Err(Failure::new(Exit::BadInput, message))
        }
        _ => Ok(()),
    }
}

/// What would be advised in a program that is started.
pub fn launched(spec: &Spec) -> Result<u8, Failure> {
    let mut out = out::stdout();
    let program = spec.program.display();
    match &spec.choice {
        Choice::Nothing => writeln!(out, "{program} would be started, and nothing advised")?,
        Choice::All => {
            let least = style::bytes(pagelab_model::Bytes(spec.huge));
            writeln!(out, "{program} would be started, and all anonymous memory advised in mappings of")?;
            writeln!(out, "{least} and more when they are made, and its heap as it grows")?;
        }
        Choice::Plan(plan) => {
            writeln!(out, "{program} would be started, and advised when the program makes them:")?;
            list(&mut out, plan)?;
        }
    }
    out.flush()?;
    Ok(Exit::Done as u8)
}

/// What would be collapsed in a process that runs.
pub fn running(outside: Outside) -> Result<u8, Failure> {
    let mut out = out::stdout();
    let summary = outside.summary();
    writeln!(out, "process {} would be given huge pages where it holds memory:", outside.pid())?;
    match outside.choice() {
        Choice::Nothing => writeln!(out, "  none")?,
        Choice::All => writeln!(out, "  all anonymous memory that is mostly touched")?,
        Choice::Plan(plan) => list(&mut out, plan)?,
    }
    for note in &summary.notes {
        writeln!(out, "{note}")?;
    }
    out.flush()?;
    Ok(Exit::Done as u8)
}

fn list(out: &mut impl Write, plan: &HugePlan) -> std::io::Result<()> {
    for program in &plan.programs {
        let name = if program.program.path.is_empty() { "any program" } else { &program.program.path };
        for mapping in &program.mappings {
            let bytes: u64 = mapping.regions.iter().map(|region| region.page.0).sum();
            let bytes = style::bytes(pagelab_model::Bytes(bytes));
            let what = pagelab_target::supervise::describe(&mapping.key);
            writeln!(out, "  {name}: {what}: {} regions, {bytes}", mapping.regions.len())?;
        }
    }
    Ok(())
}
