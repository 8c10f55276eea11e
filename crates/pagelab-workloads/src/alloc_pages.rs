//! Requests to the page allocator for pages of one order, through pagelab's kernel module in a guest
//! (`kmod/attempts.c`): how many succeed, how long each takes, how fragmented the zones are and how much was
//! reclaimed for it.

use pagelab_formats::alloc_attempts::{AllocAttempt, AttemptResult, AttemptTable};
use pagelab_host::machine;
use pagelab_model::experiment::BetterDirection;
use pagelab_model::{Bytes, PageSize, order_statistics};

use crate::options::{OptionSpec, ValueKind, WorkloadOptions, choice_option, number_option};
use crate::phase::MeasuredPhase;
use crate::{
    Figure, GuestPart, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mix_checksum,
    module_attempts,
};

/// The requests as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "alloc-pages",
    description: "Requests pages of one order from the page allocator, through the module in a guest",
    generator: "requests one after the other, made by the kernel module in this process; all pages stay \
                held until the last request, and nothing touches them",
    options: &[
        number_option("order", 0, 10, "9", "Order of each request: 2^order pages"),
        choice_option(
            "gfp",
            &["movable", "reclaimable", "unmovable", "kernel", "atomic"],
            "movable",
            "GFP flags; kernel is unmovable by another name, atomic neither waits nor reclaims",
        ),
        number_option("count", 1, 100_000, "100", "Number of requests"),
        OptionSpec {
            name: "retry",
            kind: ValueKind::Switch,
            default: "yes",
            help: "Reclaim and compact repeatedly (__GFP_RETRY_MAYFAIL), or once (__GFP_NORETRY)",
        },
        OptionSpec {
            name: "release",
            kind: ValueKind::Switch,
            default: "yes",
            help: "Release the pages at the end; otherwise the module holds them",
        },
    ],
    forks_processes: false,
    guest_parts: &[GuestPart::Module],
    run: run_requests,
};

/// GFP flags that do not reclaim, so that nothing is repeated.
const ATOMIC: &str = "atomic";

fn run_requests(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let (order, count) = (options.get_number("order"), options.get_number("count"));
    let gfp = options.get_text("gfp");
    let retry = if options.get_switch("retry") && gfp != ATOMIC { " retry" } else { "" };
    let line = format!("{order} {gfp} {count}{retry}");
    module_attempts::write_line("clear")?;
    let done = phase.measure(|| module_attempts::write_line(&line));
    let table = done.and_then(|()| module_attempts::read_table());
    // Whatever happened, no pages are left behind.
    if options.get_switch("release") {
        module_attempts::write_line("release")?;
    }
    let table = table?;
    if table.attempts.len() as u64 != count {
        let text = format!("{count} requests were made, and the module reports {}", table.attempts.len());
        return Err(WorkloadError::WrongResult(text));
    }
    Ok(summarize(&table, &line))
}

/// The figures of a table with at least one attempt.
fn summarize(table: &AttemptTable, line: &str) -> WorkloadResult {
    let attempts = &table.attempts;
    let (ok, failed): (Vec<&AllocAttempt>, Vec<_>) = attempts.iter().partition(|attempt| attempt.is_ok());
    let count = attempts.len().max(1) as f64;
    let share_ok = ok.len() as f64 / count;
    let mean =
        |pages: fn(&AllocAttempt) -> u64| attempts.iter().map(|of| pages(of) as f64).sum::<f64>() / count;
    let time = |name, of: &[&AllocAttempt]| {
        let ns = median(of.iter().map(|attempt| attempt.elapsed_ns as f64));
        ns.map(|ns| Figure::time(name, ns))
    };
    let index = |name, value: Option<f64>| {
        value.map(|thousandths| Figure::new(name, "1", BetterDirection::Lower, thousandths / 1000.0))
    };
    let unusable = |attempt: &AllocAttempt| f64::from(attempt.unusable_before);
    let fragmentation = failed.iter().filter_map(|attempt| match attempt.result {
        AttemptResult::Failed { fragmentation } => Some(f64::from(fragmentation)),
        AttemptResult::Pages { .. } => None,
    });
    let figures = [
        Some(Figure::neutral("attempts", "count", attempts.len() as f64)),
        Some(Figure::new("ok", "count", BetterDirection::Higher, ok.len() as f64)),
        time("ok_time", &ok),
        time("failed_time", &failed),
        index("f_u_before", median(attempts.iter().map(unusable))),
        index("f_u_before_last", attempts.last().map(unusable)),
        // Neither good nor bad: towards 1 fragmentation is the cause, towards 0 the lack of memory.
        median(fragmentation).map(|value| Figure::neutral("f_i_failed", "1", value / 1000.0)),
        Some(Figure::neutral("reclaimed", "pages per attempt", mean(|attempt| attempt.reclaimed_pages))),
        Some(Figure::neutral("scanned", "pages per attempt", mean(|attempt| attempt.scanned_pages))),
    ];
    let order = attempts.first().map_or(0, |attempt| attempt.order);
    let page_size = machine::live_page_size().unwrap_or(PageSize::DEFAULT);
    WorkloadResult {
        figure_of_merit: Figure::new("share ok", "1", BetterDirection::Higher, share_ok),
        working_set: Bytes((ok.len() as u64 * page_size.bytes()) << order),
        // How many succeed is the machine's; what was requested is not.
        checksum: line.bytes().fold(0, |sum, byte| mix_checksum(sum, u64::from(byte))),
        latencies: None,
        figures: figures.into_iter().flatten().collect(),
        hot_regions: Vec::new(),
        phases: PhaseResults::default(),
        generated_input: format!("the line `{line}`"),
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    order_statistics::median(&mut values.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use pagelab_formats::alloc_attempts;

    use super::*;

    const TABLE: &str = "number order gfp ok pfn zone ns f_u_before f_i free reclaimed scanned retry\n\
                         0 9 movable 1 9728 DMA32 400 100 - 1784 10 30 1\n\
                         1 9 movable 1 9729 DMA32 200 300 - 1784 0 0 1\n\
                         2 9 movable 0 - - 3000 900 971 2897 82 720 1\n\
                         3 9 movable 0 - - 1000 500 -1000 2897 0 0 1\n\
                         pages_held 1024\n";

    fn figure(done: &WorkloadResult, name: &str) -> Option<f64> {
        done.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }

    #[test]
    fn figures_are_those_of_the_table() {
        let table = alloc_attempts::parse(TABLE.as_bytes()).unwrap();
        let done = summarize(&table, "9 movable 4 retry");
        assert_eq!(done.figure_of_merit.value, 0.5);
        assert_eq!(done.working_set.0, (2 * machine::live_page_size().unwrap().bytes()) << 9);
        for (name, value) in [
            ("attempts", 4.0),
            ("ok", 2.0),
            ("ok_time", 300.0),
            ("failed_time", 2000.0),
            ("f_u_before", 0.4),
            ("f_u_before_last", 0.5),
            ("f_i_failed", -0.0145),
            ("reclaimed", 23.0),
            ("scanned", 187.5),
        ] {
            assert_eq!(figure(&done, name), Some(value), "{name}");
        }
        // Without a failure there is no index, and no time of failures.
        let only_ok = AttemptTable { attempts: table.attempts[..2].to_vec(), pages_held: 1024 };
        let done = summarize(&only_ok, "9 movable 2");
        assert_eq!((figure(&done, "f_i_failed"), figure(&done, "failed_time")), (None, None));
        assert_eq!(done.figure_of_merit.value, 1.0);
    }

    #[test]
    fn a_median_of_two_is_their_mean() {
        assert_eq!(median([].into_iter()), None);
        assert_eq!(median([3.0].into_iter()), Some(3.0));
        assert_eq!(median([4.0, 1.0].into_iter()), Some(2.5));
        assert_eq!(median([9.0, 1.0, 2.0].into_iter()), Some(2.0));
    }
}
