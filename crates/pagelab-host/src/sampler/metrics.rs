//! Metrics of a recording, and the parser of a list of them.

use pagelab_model::names;

use crate::paths;
use crate::tracepoints::StackDepth;

/// Source of repeated readings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metric {
    /// `/proc/meminfo`.
    Meminfo,
    /// `/proc/vmstat`.
    Vmstat,
    /// `/proc/buddyinfo`.
    Buddyinfo,
    /// Pressure of memory, io and cpu.
    Pressure,
    /// Counters of transparent huge pages by size, and khugepaged's.
    Thp,
    /// Fallbacks, compaction and reclaim, counted by tracepoints; call stacks of fallbacks to this depth.
    Tracepoints(StackDepth),
    /// `/proc/pagetypeinfo`, at its own cadence.
    Pagetypeinfo,
    /// Watermarks and sizes of zones.
    Zoneinfo,
    /// The largest slab caches.
    Slab,
    /// Memory and huge pages of control groups: those that the pattern matches, or the first ones.
    Cgroups(Option<String>),
    /// Huge pages of processes, at their own cadence.
    Processes(ProcessFilter),
}

/// Selected processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessFilter {
    /// The processes with the most resident memory.
    Largest,
    /// One process.
    Pid(u32),
    /// The largest of those whose names match a pattern with `*`.
    ByName(String),
}

/// Every metric, its description, and whether it is a default.
static METRICS: [(Metric, &str, bool); 11] = [
    (Metric::Meminfo, "total memory", true),
    (Metric::Vmstat, "memory-management counters", true),
    (Metric::Buddyinfo, "free blocks by zone and order", true),
    (Metric::Pressure, "time tasks stalled for memory, io, cpu", true),
    (Metric::Thp, "huge pages by size: allocated, fell back, split; khugepaged", true),
    (Metric::Tracepoints(StackDepth::None), "fallbacks, compaction, reclaim as they happen; root", true),
    (Metric::Pagetypeinfo, "free blocks by migratetype, at most once a minute; root", false),
    (Metric::Zoneinfo, "watermarks and sizes of zones", false),
    (Metric::Slab, "the largest slab caches; root", false),
    (Metric::Cgroups(None), "memory of cgroups; cgroups=PATTERN", false),
    (Metric::Processes(ProcessFilter::Largest), "huge pages of processes; processes=PATTERN|PID", false),
];

impl Metric {
    /// Its name, the source of its values, and the minimum nanoseconds between two reads.
    fn facts(&self) -> (&'static str, &'static str, u64) {
        const SECOND_NS: u64 = 1_000_000_000;
        match self {
            Metric::Meminfo => ("meminfo", paths::MEMINFO, 0),
            Metric::Vmstat => ("vmstat", paths::VMSTAT, 0),
            Metric::Buddyinfo => ("buddyinfo", paths::BUDDYINFO, 0),
            Metric::Pressure => ("pressure", paths::PRESSURE, 0),
            Metric::Thp => ("thp", paths::THP, 0),
            Metric::Tracepoints(_) => ("tracepoints", "perf_event_open", 0),
            Metric::Pagetypeinfo => ("pagetypeinfo", paths::PAGETYPEINFO, 60 * SECOND_NS),
            Metric::Zoneinfo => ("zoneinfo", paths::ZONEINFO, SECOND_NS),
            Metric::Slab => ("slab", paths::SLABINFO, SECOND_NS),
            Metric::Cgroups(_) => ("cgroups", "memory controller of control groups", SECOND_NS),
            Metric::Processes(_) => ("processes", paths::PROC, 10 * SECOND_NS),
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.facts().0
    }

    /// Source of its values.
    pub fn source(&self) -> &'static str {
        self.facts().1
    }

    /// Minimum nanoseconds between two reads, for any tick interval.
    pub fn interval_ns(&self) -> u64 {
        self.facts().2
    }

    /// Every metric with its description and whether it is a default, for help texts.
    pub fn table() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
        METRICS.iter().map(|(metric, description, is_default)| (metric.name(), *description, *is_default))
    }

    fn parse(word: &str) -> Result<Metric, String> {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let known = METRICS.iter().map(|(metric, ..)| metric).find(|metric| metric.name() == name);
        match (name, value) {
            ("cgroups" | "processes", Some("")) => Err(format!("`{name}=`: no pattern given")),
            ("cgroups", Some(pattern)) => Ok(Metric::Cgroups(Some(pattern.to_owned()))),
            ("processes", Some(value)) => Ok(Metric::Processes(match value.parse() {
                Ok(pid) => ProcessFilter::Pid(pid),
                Err(_) => ProcessFilter::ByName(value.to_owned()),
            })),
            (_, None) => known.cloned().ok_or_else(|| unknown_metric(name)),
            (_, Some(_)) if known.is_some() => {
                Err(format!("`{}`: only cgroups and processes accept a pattern", word.escape_debug()))
            }
            (_, Some(_)) => Err(unknown_metric(name)),
        }
    }
}

fn unknown_metric(name: &str) -> String {
    let known = METRICS.iter().map(|(metric, ..)| metric.name());
    names::describe_unknown("metric", name, &known.chain(["default", "all"]).collect::<Vec<_>>())
}

/// Metrics, each at most once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics(Vec<Metric>);

impl Default for Metrics {
    fn default() -> Metrics {
        let default = METRICS.iter().filter(|(.., is_default)| *is_default);
        Metrics(default.map(|(metric, ..)| metric.clone()).collect())
    }
}

impl From<Vec<Metric>> for Metrics {
    fn from(list: Vec<Metric>) -> Metrics {
        let mut metrics = Metrics(Vec::new());
        list.into_iter().for_each(|metric| metrics.add(metric));
        metrics
    }
}

impl Metrics {
    /// A comma-separated list: names, `cgroups=PATTERN`, `processes=PATTERN|PID`, and `default` or `all` for
    /// several. The error is a phrase.
    pub fn parse(list: &str) -> Result<Metrics, String> {
        let mut metrics = Metrics(Vec::new());
        for word in list.split(',').map(str::trim) {
            match word {
                "" => return Err("empty name in the list".to_owned()),
                "default" => Metrics::default().0.into_iter().for_each(|metric| metrics.add(metric)),
                "all" => METRICS.iter().for_each(|(metric, ..)| metrics.add(metric.clone())),
                word => metrics.add(Metric::parse(word)?),
            }
        }
        Ok(metrics)
    }

    /// The processes selected by PID.
    pub fn process_ids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().filter_map(|metric| match metric {
            Metric::Processes(ProcessFilter::Pid(pid)) => Some(*pid),
            _ => None,
        })
    }

    /// Adds tracepoints, with call stacks to this depth.
    pub fn with_stacks(mut self, depth: StackDepth) -> Metrics {
        self.0.retain(|metric| !matches!(metric, Metric::Tracepoints(_)));
        self.0.push(Metric::Tracepoints(depth));
        self
    }

    /// Adds one. A metric of the same name with a pattern replaces one without.
    fn add(&mut self, metric: Metric) {
        let same = self.0.iter().position(|known| known.name() == metric.name());
        match (same, &metric) {
            (None, _) => self.0.push(metric),
            (
                Some(at),
                Metric::Cgroups(Some(_))
                | Metric::Processes(ProcessFilter::Pid(_) | ProcessFilter::ByName(_)),
            ) => {
                let is_general =
                    matches!(self.0[at], Metric::Cgroups(None) | Metric::Processes(ProcessFilter::Largest));
                if is_general {
                    self.0[at] = metric;
                } else if self.0[at] != metric {
                    self.0.push(metric);
                }
            }
            (Some(_), _) => {}
        }
    }

    /// Whether it contains this metric.
    pub fn contains(&self, metric: &Metric) -> bool {
        self.0.contains(metric)
    }

    /// All of them, in the requested order.
    pub fn iter(&self) -> impl Iterator<Item = &Metric> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> String {
        match Metrics::parse(list) {
            Ok(metrics) => metrics.iter().map(Metric::name).collect::<Vec<_>>().join(" "),
            Err(error) => error,
        }
    }

    #[test]
    fn lists_of_metrics() {
        for (list, want) in [
            ("meminfo", "meminfo"),
            ("slab, meminfo ,slab", "slab meminfo"),
            ("default", "meminfo vmstat buddyinfo pressure thp tracepoints"),
            ("default,processes=42", "meminfo vmstat buddyinfo pressure thp tracepoints processes"),
            ("cgroups=/a,cgroups=/b,cgroups", "cgroups cgroups"),
            ("", "empty name in the list"),
            ("cgroups=", "`cgroups=`: no pattern given"),
            ("meminfo=3", "`meminfo=3`: only cgroups and processes accept a pattern"),
        ] {
            assert_eq!(names(list), want, "{list}");
        }
        assert!(
            names("mem\u{7}info")
                .starts_with("unknown metric `mem\\u{7}info`; expected one of meminfo, vmstat,")
        );
        assert_eq!(Metrics::parse("all").unwrap().iter().count(), METRICS.len());
        let replaced = Metrics::parse("all,processes=java*").unwrap();
        assert!(replaced.contains(&Metric::Processes(ProcessFilter::ByName("java*".into()))));
        assert_eq!(replaced.iter().count(), METRICS.len());
    }
}
