//! Memory that a trial will take, touched once before its gate opens, where the host takes free memory back.
//!
//! Without it the first trial after a pause pays for the host, and with huge pages more than with base pages:
//! huge pages come from the blocks that are reported. All variants are warmed alike.

use pagelab_contig::warm::{Warmed, warm};
use pagelab_formats::size;
use pagelab_host::page_reporting;
use pagelab_host::root::Root;
use pagelab_model::experiment::{Better, Flag, Measure, measures};
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsentWhy, Bytes, Reading};

use super::{Bench, flag};

/// Where nothing is known of a program yet, as much is warmed, less on a small machine.
const UNKNOWN: u64 = 2 << 30;
/// Of the memory that came, the share that may be cold in silence.
const COLD_MAX: f64 = 0.1;

/// What was warmed before a trial.
#[derive(Debug)]
pub(super) struct Warming {
    warmed: Warmed,
    reported: Reading<Bytes>,
    /// How much was known of what it takes.
    known: &'static str,
}

impl Warming {
    /// Warms as much as the trial takes, as far as that is known; `None` where the host leaves free memory
    /// alone.
    pub(super) fn before(bench: &Bench<'_>, workload: usize, variant: usize) -> Option<Warming> {
        let reporting = bench.machine.page_reporting.as_ref()?;
        let root = Root::live();
        let reported = reporting.order.and_then(|order| {
            // Orders 0 to 10, as nearly all kernels have them.
            let orders = usize::from(order.0.max(10)) + 1;
            page_reporting::reported(&root, bench.machine.page_size, order, orders)
        });
        let reported = reported.ok_or_else(|| {
            Absence::new("kpageflags", AbsentWhy::NotPermitted, "it could not be read").or("run as root")
        });
        let (wanted, known) = wanted(bench, workload, variant);
        let warmed = warm(&root, wanted, &|| (bench.stop)().is_some());
        Some(Warming { warmed, reported, known })
    }

    /// What is told of it, and whether it was enough for what the trial took.
    pub(super) fn tell(self, measures: &mut Vec<Measure>, flags: &mut Vec<Flag>) {
        let value = |name: &str| {
            let found = measures.iter().find(|measure| measure.name == name)?;
            found.value.as_ref().ok().copied()
        };
        let (peak, late) = (value(measures::PEAK), value("memory.late").unwrap_or(0.0));
        flags.extend(self.missing(peak, late).map(|text| flag(Flag::NOT_WARMED, text)));
        let Warming { warmed, reported, .. } = self;
        let mut put = |name: &str, unit: &str, value: Reading<f64>, source: &str| {
            let (name, unit, source) = (name.to_owned(), Unit::from(unit), source.to_owned());
            measures.push(Measure { name, unit, better: Better::Neither, value, source });
        };
        let reported = reported.map(|bytes| bytes.0 as f64);
        put("warm.bytes", Unit::BYTES, Ok(warmed.warmed.0 as f64), "pagelab itself, before the gate opened");
        put(
            "warm.cpu",
            Unit::NANOSECONDS,
            Ok(warmed.cpu_ns as f64),
            "pagelab itself, before the gate opened",
        );
        put(
            "warm.small",
            Unit::BYTES,
            Ok(warmed.small.0 as f64),
            "buddyinfo: free in blocks below a huge page, not warmed; cold where a reported block was cut up",
        );
        put("warm.reported", Unit::BYTES, reported, "kpageflags: free memory with the host before warming");
    }

    /// In words what stayed cold of what the trial took.
    fn missing(&self, peak: Option<f64>, late: f64) -> Option<String> {
        let mib = |bytes: f64| format!("{:.0} MiB", bytes / f64::from(1 << 20));
        let (warmed, wanted) = (self.warmed.warmed.0 as f64, self.warmed.wanted.0 as f64);
        let peak = peak.filter(|&peak| peak > 0.0)?;
        let cold = peak - warmed;
        if let Some(why) = self.warmed.short.as_ref().filter(|_| cold > peak * COLD_MAX) {
            return Some(format!("{} of {} were warmed before it: {why}", mib(warmed), mib(peak)));
        }
        if peak - wanted > peak * COLD_MAX {
            let known = self.known;
            return Some(format!("{} of {} were warmed before it, by {known}", mib(wanted), mib(peak)));
        }
        (late > peak * COLD_MAX).then(|| {
            format!(
                "{} of {} came later than 2 s after it began, when the host had free memory again",
                mib(late),
                mib(peak)
            )
        })
    }
}

/// How much a trial takes, and how that is known.
fn wanted(bench: &Bench<'_>, workload: usize, variant: usize) -> (Bytes, &'static str) {
    let more = |bytes: u64| Bytes(bytes.saturating_add(bytes / 8).saturating_add(32 << 20));
    if let Some(&peak) = bench.peaks.borrow().get(&workload) {
        return (more(peak), "the peak of trials before");
    }
    if let Some(size) = said_size(&bench.resolved.program(workload, variant)) {
        return (more(size), "the size that it is called with");
    }
    match bench.resolved.recipe.variants[variant].memory_limit {
        Some(limit) => (limit, "its memory limit"),
        None => (Bytes(UNKNOWN.min(bench.total.0 / 8)), "a bound, since nothing is known of it yet"),
    }
}

/// `--size 1G`, `--size=1G` among the words of a command.
fn said_size(words: &[String]) -> Option<u64> {
    let at = words.iter().position(|word| word == "--size" || word.starts_with("--size="))?;
    let word = words[at].strip_prefix("--size=").or(words.get(at + 1).map(String::as_str))?;
    size::parse_suffixed(word.as_bytes()).ok().map(|bytes| bytes.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(wanted: u64, warmed: u64, short: Option<&str>, peak: f64, late: f64) -> Option<String> {
        let mib = |count: u64| Bytes(count << 20);
        let short = short.map(str::to_owned);
        let (wanted, warmed) = (mib(wanted), mib(warmed));
        let warmed = Warmed { wanted, warmed, small: Bytes(0), cpu_ns: 1, short };
        let warming = Warming { warmed, reported: Ok(Bytes(0)), known: "a bound" };
        let mib = f64::from(1 << 20);
        warming.missing((peak > 0.0).then_some(peak * mib), late * mib)
    }

    #[test]
    fn what_stayed_cold_is_told_and_what_is_small_is_not() {
        assert_eq!(missing(100, 100, None, 100.0, 0.0), None);
        assert_eq!(missing(100, 95, Some("reserve"), 100.0, 0.0), None);
        let reserve = missing(100, 50, Some("reserve"), 100.0, 0.0);
        assert_eq!(reserve.as_deref(), Some("50 MiB of 100 MiB were warmed before it: reserve"));
        // The rest lies in smaller blocks, of which nobody knows.
        assert_eq!(missing(100, 50, None, 100.0, 0.0), None);
        let bound = missing(100, 100, None, 300.0, 0.0);
        assert_eq!(bound.as_deref(), Some("100 MiB of 300 MiB were warmed before it, by a bound"));
        assert!(missing(400, 400, None, 300.0, 200.0).is_some_and(|text| text.starts_with("200 MiB of 300")));
        assert_eq!(missing(400, 0, Some("reserve"), 0.0, 0.0), None, "without a peak nothing is known");
    }

    #[test]
    fn a_size_is_found_in_a_command() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(said_size(&words("pagelab workload chase --size 1G --seed 2")), Some(1 << 30));
        assert_eq!(said_size(&words("x --size=64M")), Some(64 << 20));
        for none in ["x", "x --size", "x --size many", "x --sized 1G"] {
            assert_eq!(said_size(&words(none)), None, "{none}");
        }
    }
}
