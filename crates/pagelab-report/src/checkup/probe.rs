//! Results of the probe, with claims limited to what it measured.

use pagelab_metrics::statistics::SampleStatistics;
use pagelab_model::probe::{AccessPair, AccessPoint, AccessProbe, HugePageProbe, ProbeResults};

use super::absence_text;
use crate::style::{format_bytes, format_three_digits};
use crate::text_report::{RowTable, TextReport};

pub(super) fn write_section(output: &mut TextReport, results: &ProbeResults) {
    output.add_heading("probe");
    output.add_indented(&format!("budget {} ({})", format_bytes(results.budget), results.budget_limit));
    match &results.huge {
        // The same text twice adds nothing.
        Err(absence) if results.access.as_ref().err() == Some(absence) => {
            output.add_indented(&format!("nothing was measured: {}", absence_text(absence)));
            results.notes.iter().for_each(|note| output.add_indented(note));
            return;
        }
        Ok(huge) => write_huge_pages(output, huge),
        Err(absence) => output.add_indented(&format!("huge pages: {}", absence_text(absence))),
    }
    match &results.access {
        Ok(access) => write_access_times(output, access),
        Err(absence) => output.add_indented(&format!("access times: {}", absence_text(absence))),
    }
    for note in &results.notes {
        output.add_indented(note);
    }
}

fn write_huge_pages(output: &mut TextReport, huge: &HugePageProbe) {
    let took = SampleStatistics::from_samples(huge.latency_ns.iter().map(|&ns| ns as f64).collect());
    let took = took.map_or(String::new(), |took| {
        let [median, worst] = [took.median, took.max].map(|ns| format_three_digits(ns / 1e6));
        format!("; requests took {median} ms (median), {worst} ms (maximum)")
    });
    let refusal =
        huge.first_error.as_ref().map_or(String::new(), |words| format!("; first failure: {words}"));
    output.add_indented(&format!(
        "{} of {} requested {} pages were allocated ({} calls succeeded, verified by {}){took}{refusal}",
        huge.allocated,
        huge.requested,
        format_bytes(huge.page_size),
        huge.succeeded,
        huge.read_back_by
    ));
}

fn write_access_times(output: &mut TextReport, access: &AccessProbe) {
    if !access.pairs.is_empty() {
        RowTable::<&AccessPair>::new()
            .right("buffer", |pair| format_bytes(pair.base.size))
            .right("base pages", |pair| access_time_text(&pair.base))
            .right("huge pages", |pair| pair.huge.as_ref().map_or("–".to_owned(), access_time_text))
            .right("difference", |pair| difference_text(pair))
            .left("huge pages verified", |pair| {
                let backed =
                    pair.huge.as_ref().ok().and_then(|huge| Some((huge, huge.huge_backed.as_ref().ok()?)));
                backed.map_or("–".to_owned(), |(huge, backed)| {
                    format!("{} of {}", format_bytes(*backed), format_bytes(huge.size))
                })
            })
            .add_to(output, 2, &access.pairs);
        for pair in &access.pairs {
            let base = pair.base.huge_backed.as_ref().err();
            let huge = match &pair.huge {
                Ok(huge) => huge.huge_backed.as_ref().err(),
                Err(absence) => Some(absence),
            };
            for (pages, absence) in [("base", base), ("huge", huge)] {
                let Some(absence) = absence else { continue };
                let what =
                    format!("{} with {pages} pages: {}", format_bytes(pair.base.size), absence_text(absence));
                output.add_indented(&what);
            }
        }
        output.add_indented(
            "times are per dependent random read; programs that do other work between reads gain less. The \
             difference is the median of interleaved measurements ± its standard error: drift cancels out in \
             it, but not in the other columns",
        );
    }
    match &access.knee {
        Ok(knee) => {
            let next = access.base_curve.iter().map(|point| point.size).find(|size| size > knee);
            let range = next.map_or(format!("above {}", format_bytes(*knee)), |next| {
                format!("between {} and {}", format_bytes(*knee), format_bytes(next))
            });
            let text = format!(
                "page walks become visible {range}: about the reach of the largest TLB; a busy SMT sibling \
                 reduces it"
            );
            output.add_indented(&text);
        }
        Err(absence) => {
            output.add_indented(&format!("the reach of the largest TLB: {}", absence_text(absence)))
        }
    }
}

fn access_time_text(point: &AccessPoint) -> String {
    point.median_ps().map_or("–".to_owned(), |ps| format!("{} ns", format_three_digits(ps as f64 / 1e3)))
}

/// Without huge pages there is no effect of huge pages, and a difference below the noise does not count.
fn difference_text(pair: &AccessPair) -> String {
    match (&pair.huge, pair.compare()) {
        (Err(_), _) => "–".to_owned(),
        (Ok(_), Some(effect)) if effect.saved.is_significant() => {
            let [saved, error] = [effect.saved.median_ps, effect.saved.error_ps]
                .map(|ps| format_three_digits(ps as f64 / 1e3));
            format!("{saved} ± {error} ns")
        }
        (Ok(_), Some(_)) => "within noise".to_owned(),
        (Ok(_), None) => "not shown".to_owned(),
    }
}
