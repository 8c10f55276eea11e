//! What the probe measured, in words that claim no more than it did.

use pagelab_metrics::statistics::Statistics;
use pagelab_model::Bytes;
use pagelab_model::probe::{AccessPair, AccessPoint, AccessProbe, HugeProbe, ProbeResults};

use super::absent;
use crate::style::{bytes, three_digits};
use crate::text::{Column, Page};

/// The probe's section.
pub(super) fn section(page: &mut Page, results: &ProbeResults) {
    page.heading("probe");
    page.hanging("  ", &format!("allowed {} ({})", bytes(results.budget), results.budget_bound));
    match &results.huge {
        // The same words twice would say no more.
        Err(absence) if results.access.as_ref().err() == Some(absence) => {
            page.hanging("  ", &format!("nothing was measured: {}", absent(absence)));
            results.notes.iter().for_each(|note| page.hanging("  ", note));
            return;
        }
        Ok(huge) => huge_pages(page, huge),
        Err(absence) => page.hanging("  ", &format!("huge pages: {}", absent(absence))),
    }
    match &results.access {
        Ok(access) => access_times(page, access),
        Err(absence) => page.hanging("  ", &format!("access times: {}", absent(absence))),
    }
    for note in &results.notes {
        page.hanging("  ", note);
    }
}

fn huge_pages(page: &mut Page, huge: &HugeProbe) {
    let took = Statistics::of(huge.latency_ns.iter().map(|&ns| ns as f64).collect());
    let took = took.map_or(String::new(), |took| {
        let [median, worst] = [took.median, took.max].map(|ns| three_digits(ns / 1e6));
        format!("; a request took {median} ms at the median, {worst} ms at worst")
    });
    let refusal =
        huge.first_refusal.as_ref().map_or(String::new(), |words| format!("; first refusal: {words}"));
    page.hanging(
        "  ",
        &format!(
            "{} of {} pages of {} came when asked for ({} answered yes, read back by {}){took}{refusal}",
            huge.came,
            huge.asked,
            bytes(huge.page_size),
            huge.answered_yes,
            huge.read_back_by
        ),
    );
}

fn access_times(page: &mut Page, access: &AccessProbe) {
    let rows: Vec<Vec<String>> = access.pairs.iter().map(pair).collect();
    if !rows.is_empty() {
        let columns = [
            Column::right("buffer"),
            Column::right("base pages"),
            Column::right("huge pages"),
            Column::right("difference"),
            Column::left("huge pages really there"),
        ];
        page.table(2, &columns, &rows);
        for pair in &access.pairs {
            let base = pair.base.huge_backed.as_ref().err();
            let huge = match &pair.huge {
                Ok(huge) => huge.huge_backed.as_ref().err(),
                Err(absence) => Some(absence),
            };
            for (pages, absence) in [("base", base), ("huge", huge)] {
                let Some(absence) = absence else { continue };
                let what = format!("{} with {pages} pages: {}", bytes(pair.base.size), absent(absence));
                page.hanging("  ", &what);
            }
        }
        page.hanging(
            "  ",
            "ns for one dependent random read; programs that do other work between reads gain less. The \
             difference is the median of turns taken side by side, ± its standard error: drift cancels out \
             in \
             it, and not in the columns",
        );
    }
    match &access.knee {
        Ok(knee) => {
            let next = access.base_curve.iter().map(|point| point.size).find(|size| size > knee);
            let range = next.map_or(format!("above {}", bytes(*knee)), |next| {
                format!("between {} and {}", bytes(*knee), bytes(next))
            });
            let text = format!(
                "page walks begin to cost {range}: about the reach of the largest TLB, which a busy \
                 neighbour on \
                 the same core shrinks"
            );
            page.hanging("  ", &text);
        }
        Err(absence) => page.hanging("  ", &format!("the reach of the largest TLB: {}", absent(absence))),
    }
}

fn nanoseconds(point: &AccessPoint) -> Option<f64> {
    point.median_ps().map(|ps| ps as f64 / 1e3)
}

fn pair(pair: &AccessPair) -> Vec<String> {
    let show = |ns: Option<f64>| ns.map_or("–".to_owned(), |ns| format!("{} ns", three_digits(ns)));
    let mut row = vec![bytes(pair.base.size), show(nanoseconds(&pair.base))];
    let huge = match &pair.huge {
        Ok(huge) => huge,
        Err(_) => {
            row.extend(["–"; 3].map(str::to_owned));
            return row;
        }
    };
    row.push(show(nanoseconds(huge)));
    // What did not get its huge pages is no effect of huge pages, and what drowns in noise is no difference.
    row.push(match pair.effect() {
        Some(effect) if effect.saved.is_clear() => {
            format!("{} ± {} ns", picoseconds(effect.saved.median_ps), picoseconds(effect.saved.error_ps))
        }
        Some(_) => "none measured".to_owned(),
        None => "not shown".to_owned(),
    });
    row.push(
        huge.huge_backed
            .as_ref()
            .map_or("–".to_owned(), |backed: &Bytes| format!("{} of {}", bytes(*backed), bytes(huge.size))),
    );
    row
}

fn picoseconds(ps: i64) -> String {
    three_digits(ps as f64 / 1e3)
}
