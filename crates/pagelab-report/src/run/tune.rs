//! What huge pages bring to a program: the verdict first, then what it rests on.

mod counters;
mod curve;
mod regions;
mod sentence;

use pagelab_metrics::effect::Interval;
use pagelab_metrics::tune::{ArmFound, Says, Tuned};
use pagelab_model::experiment::{Experiment, measures};
use pagelab_model::run::{Ending, Run, Unit};
use pagelab_model::tune::{On, Tune};
use pagelab_model::{Bytes, PageSize};

use super::{View, clipped, experiment};
use crate::effects::{floor, interval_or_none, measure_name, ratio};
use crate::quantity::Scale;
use crate::style::{Style, bytes, count};
use crate::text::{Column, Page};

pub(crate) use regions::name as mapping_name;
pub(crate) use sentence::verdict;

/// Columns that a name may take.
const NAME_MAX: usize = 20;

pub(super) fn applies(run: &Run) -> bool {
    run.tune.is_some() && run.experiment.is_some()
}

pub(super) fn show(run: &Run, view: View, style: Style) -> String {
    let (Some(tune), Some(experiment)) = (&run.tune, &run.experiment) else { return String::new() };
    let mut page = Page::new(style);
    let Some(tuned) = Tuned::of(experiment, tune) else { return String::new() };
    page.hanging_bold("", &style.one_line(&verdict(&tuned, tune)));
    table(&mut page, tune, &tuned);
    for text in sentence::beside(&tuned, tune) {
        page.hanging("  ", &style.one_line(&text));
    }
    curve::show(&mut page, tune, &tuned);
    counters::show(&mut page, run, experiment, tune, view);
    regions::show(&mut page, run, tune, view);
    for note in &tune.notes {
        page.hanging_dim("  note  ", &style.one_line(note));
    }
    page.gap();
    experiment::footing(&mut page, experiment, view);
    hints(&mut page, run, experiment, tune, tuned.says, view);
    page.finish()
}

/// A line an arm; the arms of a curve have a table of their own.
fn table(page: &mut Page, tune: &Tune, tuned: &Tuned) {
    let shown: Vec<usize> = [On::Nothing, On::Plan, On::All].iter().filter_map(|on| tune.arm(*on)).collect();
    let of = |at: &usize| tuned.arms.get(*at);
    let scale = |unit: &str, value: fn(&ArmFound) -> Option<f64>| {
        let largest = shown.iter().filter_map(|at| value(of(at)?)).fold(0.0, f64::max);
        Scale::of(&Unit::from(unit), PageSize::USUAL, false, largest)
    };
    let (cpu, wall) = (scale(Unit::NANOSECONDS, |of| of.cpu_ns), scale(Unit::NANOSECONDS, |of| of.wall_ns));
    let faults = scale(Unit::COUNT, |of| of.faults);
    let own = scale(&tuned.unit.0, |of| of.value);
    // The speed-up stands behind what it is of: the program's own figure, or else its time.
    let is_own = tuned.by == measures::MERIT;
    let titles = [
        "arm".to_owned(),
        titled("figure", &own),
        if is_own { String::new() } else { titled("time", &wall) },
        "speed-up".to_owned(),
        "95 % interval".to_owned(),
        titled("time", &wall),
        titled("CPU", &cpu),
        titled("user", &cpu),
        titled("kernel", &cpu),
        titled("page faults", &faults),
        "huge pages".to_owned(),
        "memory".to_owned(),
        "predicted".to_owned(),
    ];
    let cell =
        |value: Option<f64>, scale: &Scale| value.map_or("–".to_owned(), |value| scale.number(value));
    let base = tune.arm(On::Nothing).and_then(|at| tuned.arms.get(at)?.memory);
    let row = |at: &usize| {
        let found = of(at)?;
        let arm = tune.arms.get(*at)?;
        let (speed, within) = speed_up(found.speed_up);
        let is_base = arm.on == On::Nothing;
        Some(vec![
            clipped(&arm.name, NAME_MAX),
            cell(found.value.filter(|_| is_own), &own),
            cell(found.wall_ns.filter(|_| !is_own), &wall),
            if is_base { "1".to_owned() } else { speed },
            if is_base { String::new() } else { within },
            cell(found.wall_ns.filter(|_| is_own), &wall),
            cell(found.cpu_ns, &cpu),
            cell(found.user_ns, &cpu),
            cell(found.system_ns, &cpu),
            cell(found.faults, &faults),
            pages(found),
            memory(found.memory, base.filter(|_| !is_base)),
            found.predicted.map_or(String::new(), times),
        ])
    };
    let rows: Vec<Vec<String>> = shown.iter().filter_map(row).collect();
    fitting(page, &titles, &rows);
    page.hanging_dim("  ", &by_what(tuned));
}

/// The table with as many columns as the width takes, the least needed left out first; columns that hold
/// nothing are left out anyway.
fn fitting(page: &mut Page, titles: &[String], rows: &[Vec<String>]) {
    let is_filled = |at: usize| rows.iter().any(|row| !matches!(row[at].as_str(), "" | "–"));
    let mut kept: Vec<usize> = (0..titles.len()).filter(|at| *at == 0 || is_filled(*at)).collect();
    // Page faults, kernel and user time, CPU time: the sentences have their differences. Then time where a
    // figure of its own judges, memory, and the interval.
    for dropped in [usize::MAX, 9, 8, 7, 6, 5, 11, 4] {
        kept.retain(|at| *at != dropped);
        let column = |at: &usize| match at {
            0 => Column::left(&titles[0]),
            _ => Column::right(&titles[*at]),
        };
        let columns: Vec<Column<'_>> = kept.iter().map(column).collect();
        let cells: Vec<Vec<String>> =
            rows.iter().map(|row| kept.iter().map(|at| row[*at].clone()).collect()).collect();
        if page.table_if_it_fits(2, &columns, &cells) {
            return;
        }
    }
    for row in rows {
        page.facts("  ", &kept.iter().map(|at| row[*at].clone()).collect::<Vec<_>>(), "  ");
    }
}

/// What the speed-ups are of, and how far equal arms lie apart.
fn by_what(tuned: &Tuned) -> String {
    let by = match tuned.by.as_str() {
        measures::MERIT => "the program's own figure".to_owned(),
        by => measure_name(by),
    };
    let noise = match &tuned.floor {
        Some(found) => format!("noise floor {} ({} pairs of equals)", floor(found), found.pairs),
        None => "noise floor unknown".to_owned(),
    };
    format!(
        "speed-up by {by}: geometric mean of the ratios of pairs of trials; the other columns: medians of \
         the arms; {noise}"
    )
}

fn titled(name: &str, scale: &Scale) -> String {
    if scale.unit.is_empty() { name.to_owned() } else { format!("{name} [{}]", scale.unit) }
}

/// `80.0 MiB` of the first arm, `+31 %` of the others.
fn memory(of: Option<f64>, base: Option<f64>) -> String {
    match (of, base.filter(|base| *base > 0.0)) {
        (None, _) => "–".to_owned(),
        (Some(of), None) => bytes(Bytes(of as u64)),
        (Some(of), Some(base)) => format!("{:+.0} %", (of / base - 1.0) * 100.0),
    }
}

/// `96`, or `95 of 96` where not all came.
fn pages(found: &ArmFound) -> String {
    match (found.regions, found.huge_pages) {
        (Some((wanted, got)), _) if got < wanted => {
            format!("{} of {}", count(got as u128), count(wanted as u128))
        }
        (_, Some(pages)) => count(pages.round() as u128),
        (Some((_, got)), None) => count(got as u128),
        (None, None) => "–".to_owned(),
    }
}

fn speed_up(found: Option<(f64, Option<Interval>)>) -> (String, String) {
    match found {
        Some((value, interval)) => (format!("{}×", ratio(value, interval)), interval_or_none(interval)),
        None => ("–".to_owned(), "–".to_owned()),
    }
}

/// `1.24×`
fn times(value: f64) -> String {
    format!("{}×", ratio(value, None))
}

/// What can be done next: a run that was stopped goes on; what won is applied; there is more of it to read.
fn hints(page: &mut Page, run: &Run, experiment: &Experiment, tune: &Tune, says: Says, view: View) {
    let style = page.style();
    let is_whole = matches!(run.ending, Ending::Complete { .. });
    let mut facts = Vec::new();
    if !is_whole && tune.pid.is_none() {
        facts.push(format!("→ pagelab tune --resume {}", run.name));
    }
    let plan = match says {
        Says::All | Says::AllOnly => "all",
        Says::Yes => tune.plan_file.as_str(),
        _ => "",
    };
    if is_whole && !plan.is_empty() {
        let words = experiment.plan.workloads.first().map(|of| of.command.join(" ")).unwrap_or_default();
        let apply = match tune.pid {
            Some(pid) => format!("pagelab apply {plan} --pid {pid}"),
            None => format!("pagelab apply {plan} -- {words}"),
        };
        facts.push(format!("→ {}", clipped(&apply, 200)));
    }
    if is_whole && !view.verbose {
        facts.push(format!("→ pagelab report -v {}", run.name));
    }
    let facts: Vec<String> = facts.iter().map(|fact| style.one_line(fact)).collect();
    if !facts.is_empty() {
        page.facts("", &facts, "   ");
    }
}

#[cfg(test)]
mod tests;
