//! Which metrics there are, and a list of them as it is typed.

use crate::paths;
use crate::tracepoints::StackDepth;

/// Something that can be read again and again.
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
    /// `/proc/pagetypeinfo`, at a cadence of its own.
    Pagetypeinfo,
    /// Watermarks and sizes of zones.
    Zoneinfo,
    /// The largest slab caches.
    Slab,
    /// Memory and huge pages of control groups: those that the pattern matches, or the first ones.
    Cgroups(Option<String>),
    /// Huge pages of processes, at a cadence of its own.
    Processes(Which),
}

/// Which processes are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those with the most resident memory.
    Largest,
    /// One process.
    Pid(u32),
    /// The largest of those whose names match a pattern with `*`.
    Named(String),
}

/// Name, what it is, and whether it is read unless others are asked for.
struct Known {
    metric: Metric,
    what: &'static str,
    is_default: bool,
}

static KNOWN: [Known; 11] = {
    const fn known(metric: Metric, what: &'static str, is_default: bool) -> Known {
        Known { metric, what, is_default }
    }
    [
        known(Metric::Meminfo, "memory in sum", true),
        known(Metric::Vmstat, "counters of memory management", true),
        known(Metric::Buddyinfo, "free blocks by zone and order", true),
        known(Metric::Pressure, "time in which tasks waited for memory, io, cpu", true),
        known(Metric::Thp, "huge pages by size: given, refused, split; khugepaged", true),
        known(
            Metric::Tracepoints(StackDepth::None),
            "fallbacks, compaction, reclaim as they happen; root",
            true,
        ),
        known(Metric::Pagetypeinfo, "free blocks by migratetype, at most once a minute; root", false),
        known(Metric::Zoneinfo, "watermarks and sizes of zones", false),
        known(Metric::Slab, "the largest slab caches; root", false),
        known(Metric::Cgroups(None), "memory of control groups; cgroups=PATTERN", false),
        known(Metric::Processes(Which::Largest), "huge pages of processes; processes=PATTERN|PID", false),
    ]
};

impl Metric {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Metric::Meminfo => "meminfo",
            Metric::Vmstat => "vmstat",
            Metric::Buddyinfo => "buddyinfo",
            Metric::Pressure => "pressure",
            Metric::Thp => "thp",
            Metric::Tracepoints(_) => "tracepoints",
            Metric::Pagetypeinfo => "pagetypeinfo",
            Metric::Zoneinfo => "zoneinfo",
            Metric::Slab => "slab",
            Metric::Cgroups(_) => "cgroups",
            Metric::Processes(_) => "processes",
        }
    }

    /// Where its values are from.
    pub fn source(&self) -> &'static str {
        match self {
            Metric::Meminfo => paths::MEMINFO,
            Metric::Vmstat => paths::VMSTAT,
            Metric::Buddyinfo => paths::BUDDYINFO,
            Metric::Pressure => paths::PRESSURE,
            Metric::Thp => paths::THP,
            Metric::Tracepoints(_) => "perf_event_open",
            Metric::Pagetypeinfo => paths::PAGETYPEINFO,
            Metric::Zoneinfo => paths::ZONEINFO,
            Metric::Slab => paths::SLABINFO,
            Metric::Cgroups(_) => "memory controller of control groups",
            Metric::Processes(_) => paths::PROC,
        }
    }

    /// Nanoseconds between two reads at least, however fast the ticks are.
    pub fn interval_ns(&self) -> u64 {
        match self {
            Metric::Meminfo | Metric::Vmstat | Metric::Buddyinfo | Metric::Pressure => 0,
            Metric::Thp | Metric::Tracepoints(_) => 0,
            Metric::Zoneinfo | Metric::Slab | Metric::Cgroups(_) => 1_000_000_000,
            Metric::Processes(_) => 10_000_000_000,
            Metric::Pagetypeinfo => 60_000_000_000,
        }
    }

    /// Every metric with what it is and whether it is one of the default, for help texts.
    pub fn table() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
        KNOWN.iter().map(|known| (known.metric.name(), known.what, known.is_default))
    }

    fn parse(word: &str) -> Result<Metric, String> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        match (name, value) {
            ("cgroups" | "processes", Some("")) => Err(format!("`{name}=` lacks its pattern")),
            ("cgroups", Some(pattern)) => Ok(Metric::Cgroups(Some(pattern.to_owned()))),
            ("processes", Some(value)) => Ok(Metric::Processes(match value.parse() {
                Ok(pid) => Which::Pid(pid),
                Err(_) => Which::Named(value.to_owned()),
            })),
            (_, None) => KNOWN
                .iter()
                .find(|known| known.metric.name() == name)
                .map(|known| known.metric.clone())
                .ok_or_else(|| unknown(name)),
            (_, Some(_)) if KNOWN.iter().any(|known| known.metric.name() == name) => {
                Err(format!("`{}`: only cgroups and processes take a pattern", word.escape_debug()))
            }
            (_, Some(_)) => Err(unknown(name)),
        }
    }
}

fn unknown(name: &str) -> String {
    let names: Vec<&str> = KNOWN.iter().map(|known| known.metric.name()).collect();
    let names = names.join(", ");
    format!("`{}` is no metric; there are {names}, and the words default and all", name.escape_debug())
}

/// Metrics, each at most once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics(Vec<Metric>);

impl Default for Metrics {
    fn default() -> Metrics {
        let default = KNOWN.iter().filter(|known| known.is_default);
        Metrics(default.map(|known| known.metric.clone()).collect())
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
    /// A list with commas: names, `cgroups=PATTERN`, `processes=PATTERN|PID`, and `default` or `all` for
    /// many. The error is a phrase.
    pub fn parse(list: &str) -> Result<Metrics, String> {
        let mut metrics = Metrics(Vec::new());
        for word in list.split(',').map(str::trim) {
            match word {
                "" => return Err("there is an empty name in the list".to_owned()),
                "default" => Metrics::default().0.into_iter().for_each(|metric| metrics.add(metric)),
                "all" => KNOWN.iter().for_each(|known| metrics.add(known.metric.clone())),
                word => metrics.add(Metric::parse(word)?),
            }
        }
        Ok(metrics)
    }

    /// Has tracepoints among them, with call stacks to this depth.
    pub fn with_stacks(mut self, depth: StackDepth) -> Metrics {
        self.0.retain(|metric| !matches!(metric, Metric::Tracepoints(_)));
        self.0.push(Metric::Tracepoints(depth));
        self
    }

    /// Adds one. A metric of the same name with a pattern takes the place of one without.
    fn add(&mut self, metric: Metric) {
        let same = self.0.iter().position(|known| known.name() == metric.name());
        match (same, &metric) {
            (None, _) => self.0.push(metric),
            (Some(at), Metric::Cgroups(Some(_)) | Metric::Processes(Which::Pid(_) | Which::Named(_))) => {
                let is_general =
                    matches!(self.0[at], Metric::Cgroups(None) | Metric::Processes(Which::Largest));
                if is_general {
                    self.0[at] = metric;
                } else if self.0[at] != metric {
                    self.0.push(metric);
                }
            }
            (Some(_), _) => {}
        }
    }

    /// Whether this one is among them.
    pub fn has(&self, metric: &Metric) -> bool {
        self.0.contains(metric)
    }

    /// All of them, in the order in which they were asked for.
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
            ("", "there is an empty name in the list"),
            ("cgroups=", "`cgroups=` lacks its pattern"),
            ("meminfo=3", "`meminfo=3`: only cgroups and processes take a pattern"),
        ] {
            assert_eq!(names(list), want, "{list}");
        }
        assert!(
            names("mem\u{7}info").starts_with("`mem\\u{7}info` is no metric; there are meminfo, vmstat,")
        );
        assert_eq!(Metrics::parse("all").unwrap().iter().count(), KNOWN.len());
        let replaced = Metrics::parse("all,processes=java*").unwrap();
        assert!(replaced.has(&Metric::Processes(Which::Named("java*".into()))));
        assert_eq!(replaced.iter().count(), KNOWN.len());
    }
}
