//! `pagelab fragment procedure`: runs a published procedure and compares its scores with the published ones.

use std::time::{Duration, Instant};

use pagelab_command::exit::{Exit, Failure, FailureKind};
use pagelab_command::output;
use pagelab_command::progress::{CommandStatus, StatusEnd};
use pagelab_contig::fragment::inputs::FragmentInputs;
use pagelab_contig::procedure::{ProcedureActions, ProcedurePass, run_pass};
use pagelab_contig::random_walk::RandomWalkPlan;
use pagelab_contig::{random_walk as walk, readback};
use pagelab_host::root::Root;
use pagelab_metrics::fragmentation_index::format_kernel_decimal;
use pagelab_metrics::published_scores::{
    PUBLISHED, ProcedurePhase, PublishedScores, ShapeCheck, compare_shapes, unusable_permille_by_order,
};
use pagelab_model::{BuddyInfo, Bytes, Snapshot};
use pagelab_report::json::CONTRACT_VERSION;
use serde_json::{Value, json};

use super::bounded_allocation::BoundedAllocation;
use crate::options::ProcedureOptions;
use crate::phase_output::{format_permille_columns, print_lines};
use crate::random;
use crate::recording::record_score;

/// One pass, and the report of its fragmenter.
struct PassReport {
    pass: ProcedurePass,
    lines: Vec<String>,
}

/// Carries it out.
pub fn run(args: &ProcedureOptions, snapshot: &Snapshot) -> Result<u8, Failure> {
    let facts = FragmentInputs::from_snapshot(snapshot, None)?;
    let (plan, reserve) = args.options.resolve_plan(&facts, false)?;
    let passes: &[bool] = match (args.thp, args.no_thp) {
        (true, _) => &[true],
        (_, true) => &[false],
        _ => &[false, true],
    };
    random::check_thp_available(&facts, passes.contains(&true))?;
    let mut taking = BoundedAllocation::begin(&facts, reserve, random::held_max(&plan, &facts, reserve))?;
    taking.start_recording(args.output.as_ref(), plan.seed, snapshot)?;
    let (held_pages, lines) = (None, Vec::new());
    let status = CommandStatus::start("fragmenting memory", StatusEnd::Unknown);
    let mut machine =
        ProcedureMachine { allocation: taking, facts: &facts, plan, held_pages, lines, thp: false, status };
    let mut reports = Vec::new();
    let mut ended = Ok(());
    for &thp in passes {
        machine.thp = thp;
        match run_pass(&mut machine, thp, args.settle) {
            Ok(pass) => reports.push(PassReport { pass, lines: std::mem::take(&mut machine.lines) }),
            Err(error) => {
                ended = Err(error);
                break;
            }
        }
    }
    let signal = machine.allocation.stop.signal();
    let is_clean = machine.allocation.finish(false);
    // Measurements before a failure are printed too.
    let is_same = if reports.is_empty() { false } else { print_passes(&reports, &facts, args.json)? };
    if let (Err(failure), Some(_)) = (&ended, signal) {
        output::warn(&format!("warning: {failure}"));
    } else {
        ended?;
    }
    Ok(match (signal, is_clean, is_same) {
        (Some(signal), ..) => Exit::code_after_signal(signal),
        (None, false, _) => Exit::Partial as u8,
        (None, true, true) => Exit::Success as u8,
        (None, true, false) => Exit::NegativeAnswer as u8,
    })
}

/// Actions of the procedure on this machine.
struct ProcedureMachine<'a> {
    allocation: BoundedAllocation,
    facts: &'a FragmentInputs,
    plan: RandomWalkPlan,
    held_pages: Option<walk::FragmentedMemory>,
    lines: Vec<String>,
    thp: bool,
    status: CommandStatus,
}

impl ProcedureMachine<'_> {
    fn record_event(&mut self, text: &str) {
        let with = if self.thp { "with huge pages" } else { "without huge pages" };
        output::print_note(&format!("{with}: {text}"));
        self.status.update(&format!("{with}: {text}"), StatusEnd::Unknown);
        self.allocation.record_event("procedure", &format!("{with}: {text}"));
        self.allocation.sample();
    }
}

impl ProcedureActions for ProcedureMachine<'_> {
    type Error = Failure;

    fn compact(&mut self) -> Result<(), Failure> {
        self.allocation.check_signal()?;
        self.record_event("compacting");
        self.allocation.changes.compact_memory()
    }

    fn wait(&mut self, time: Duration) -> Result<(), Failure> {
        self.record_event("waiting");
        let began = Instant::now();
        while began.elapsed() < time {
            self.allocation
                .check_room(Bytes(0))
                .map_err(|why| Failure::cannot(FailureKind::Partial, "run the procedure", why))?;
            std::thread::sleep(Duration::from_millis(250).min(time));
        }
        Ok(())
    }

    fn read_free_blocks(&mut self, phase: ProcedurePhase) -> Result<BuddyInfo, Failure> {
        let free = self.allocation.read_free_blocks()?;
        self.record_event(phase.name());
        if let Some(recording) = &mut self.allocation.recording {
            record_score(recording, phase, self.thp, &free);
        }
        Ok(free)
    }

    fn fragment(&mut self, thp: bool) -> Result<(), Failure> {
        self.record_event("fragmenting");
        self.plan.thp = thp;
        let held = random::fill_and_walk(&self.plan, self.facts, &mut self.allocation)?;
        self.allocation.check_signal()?;
        let whole = readback::count_unsplit_thps(
            &Root::live(),
            held.filled_addresses(),
            self.facts.page_size,
            self.facts.unit_order,
        );
        self.lines = random::filled_text(&self.plan, &held, &whole, self.facts);
        self.held_pages = Some(held);
        for line in self.lines.clone() {
            self.record_event(line.trim());
        }
        Ok(())
    }

    fn release(&mut self) -> Result<(), Failure> {
        self.held_pages = None;
        self.record_event("released");
        Ok(())
    }
}

/// Comparison of a pass with a published procedure.
struct PublishedComparison {
    published: &'static PublishedScores,
    checks: Vec<ShapeCheck>,
}

impl PublishedComparison {
    fn is_same(&self) -> bool {
        self.checks.iter().all(|check| check.holds)
    }
}

/// Prints all passes. Returns whether each has the shape of a published result.
fn print_passes(reports: &[PassReport], facts: &FragmentInputs, as_json: bool) -> Result<bool, Failure> {
    let mut is_same = true;
    let mut lines = Vec::new();
    let mut documents = Vec::new();
    for report in reports {
        let curves = pass_curves(report, facts);
        let compared: Vec<PublishedComparison> = PUBLISHED
            .iter()
            .filter(|published| published.thp == report.pass.thp)
            .map(|published| PublishedComparison { published, checks: compare_shapes(&curves, published) })
            .collect();
        is_same &= compared.iter().any(PublishedComparison::is_same);
        lines.extend(pass_text(report, facts, &curves, &compared));
        documents.push(pass_json(report, &curves, &compared));
    }
    if as_json {
        let document = json!({
            "pagelab_json": CONTRACT_VERSION,
            "kind": "fragment_procedure",
            "node": facts.zone.node.0,
            "zone": facts.zone.zone,
            "passes": documents,
        });
        output::print_json(&document)?;
    } else {
        print_lines(lines.iter(), false)?;
    }
    Ok(is_same)
}

/// Returns F_u of the largest zone, by phase.
fn pass_curves(report: &PassReport, facts: &FragmentInputs) -> [Vec<u16>; 3] {
    ProcedurePhase::ALL.map(|phase| {
        let free = report.pass.scores.iter().find(|(of, _)| *of == phase);
        free.and_then(|(_, free)| free.zone(&facts.zone)).map(unusable_permille_by_order).unwrap_or_default()
    })
}

fn pass_text(
    report: &PassReport,
    facts: &FragmentInputs,
    curves: &[Vec<u16>; 3],
    comparisons: &[PublishedComparison],
) -> Vec<String> {
    let mut lines = vec![verdict(report, comparisons)];
    lines.extend(report.lines.iter().map(|line| format!("  {line}")));
    let head: String = (0..curves[0].len()).map(|order| format!("{order:>6}")).collect();
    lines.push(format!("  F_u by order          {head}"));
    for (phase, curve) in ProcedurePhase::ALL.into_iter().zip(curves) {
        lines.push(format!("  {:<16}here  {}", phase.name(), format_permille_columns(curve)));
        for compared in comparisons {
            let PublishedScores { authors, permille, .. } = compared.published;
            let their = format_permille_columns(&permille[phase as usize]);
            lines.push(format!("  {:<16}{authors:<6}{their}", ""));
        }
    }
    // One number per phase, which the recipe fragment-compact reads.
    let unit = facts.unit_order;
    if let [Some(first), Some(second), Some(third)] = [0, 1, 2].map(|at| curves[at].get(unit.index())) {
        let share = |permille: &u16| format_kernel_decimal(i64::from(*permille));
        lines.push(format!(
            "  F_u({}) is {} compacted, {} fragmented, {} compacted again",
            unit.0,
            share(first),
            share(second),
            share(third)
        ));
    }
    let zone = format!("node {}, zone {}", facts.zone.node.0, facts.zone.zone);
    lines.push(format!("  here: {zone}; golden and report: published, zone Normal of 62.8 GiB"));
    for compared in comparisons {
        lines.push(format!("  shape compared with {} (here, published):", compared.published.authors));
        for check in &compared.checks {
            let answer = if check.holds { "yes" } else { "no " };
            let numbers = match check.numbers.as_str() {
                "" => String::new(),
                numbers => format!(": {numbers}"),
            };
            lines.push(format!("    {answer} {}{numbers}", check.question));
        }
    }
    lines.push(String::new());
    lines
}

fn verdict(report: &PassReport, comparisons: &[PublishedComparison]) -> String {
    let with = if report.pass.thp { "with huge pages" } else { "without huge pages" };
    let same = comparisons.iter().filter(|compared| compared.is_same());
    let same: Vec<&str> = same.map(|compared| compared.published.authors).collect();
    if !same.is_empty() {
        return format!("{with}: the same shape as {}", same.join(" and "));
    }
    let one = |compared: &PublishedComparison| {
        let failed = compared.checks.iter().filter(|check| !check.holds).count();
        format!("{} in {failed} of {} checks", compared.published.authors, compared.checks.len())
    };
    format!("{with}: differs from {}", comparisons.iter().map(one).collect::<Vec<_>>().join(", from "))
}

fn pass_json(report: &PassReport, curves: &[Vec<u16>; 3], comparisons: &[PublishedComparison]) -> Value {
    let phases = |curves: &dyn Fn(usize) -> Value| -> Value {
        let name = |phase: ProcedurePhase| phase.name().replace(' ', "_");
        Value::Object(
            ProcedurePhase::ALL.map(|phase| (name(phase), curves(phase as usize))).into_iter().collect(),
        )
    };
    let check = |check: &ShapeCheck| {
        let (question, holds, numbers) = (&check.question, &check.holds, &check.numbers);
        json!({ "question": question, "holds": holds, "numbers": numbers })
    };
    let comparison_json = |compared: &PublishedComparison| {
        json!({
            "authors": compared.published.authors,
            "unusable_permille": phases(&|phase| json!(compared.published.permille[phase])),
            "checks": compared.checks.iter().map(check).collect::<Value>(),
            "same_shape": compared.is_same(),
        })
    };
    json!({
        "thp": report.pass.thp,
        "fragmenter": report.lines,
        "unusable_permille": phases(&|phase| json!(curves[phase])),
        "published": comparisons.iter().map(comparison_json).collect::<Value>(),
    })
}
