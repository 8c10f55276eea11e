//! Selection of the probes of a trial.

use pagelab_model::names;

/// Names of probes in recipes, with their measures. Time, CPU, peak memory, rusage and the counters of the
/// control group are always measured.
pub const PROBE_NAMES: [(&str, &str); 7] = [
    ("hardware", "cycles, instructions, caches, TLBs and page walks, as the processor supports them"),
    ("software", "page faults, context switches and migrations, as counted by perf"),
    ("huge", "bytes in huge pages of each kind, and the huge zero page"),
    ("page-tables", "bytes of page tables"),
    ("fragmentation", "F_u of the largest zone before and after"),
    ("pressure", "time stalled for memory, IO and CPU"),
    ("vmstat", "kernel counters during the trial: faults, huge pages, compaction, reclaim, swap"),
];

/// Selected probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeSelection {
    /// Processor counters.
    pub hardware: bool,
    /// Kernel counters by perf.
    pub software: bool,
    /// Tracepoints, each `system:event` as perf names it.
    pub tracepoints: Vec<String>,
    /// Bytes in huge pages.
    pub huge: bool,
    /// Bytes of page tables.
    pub page_tables: bool,
    /// F_u before and after.
    pub fragmentation: bool,
    /// Pressure.
    pub pressure: bool,
    /// Differences of vmstat, and of the counters by huge page size.
    pub vmstat: bool,
    /// Thousandths of the trial's time that scans of the running trial may take; each kind of walk over its
    /// page tables, smaps_rollup and PAGEMAP_SCAN, may take half of that. With 1 all probes together stay
    /// within half a percent of ten seconds.
    pub share_permille: u64,
}

/// Default share of readings.
const SHARE_PERMILLE: u64 = 1;

impl Default for ProbeSelection {
    /// All but tracepoints, which need a name.
    fn default() -> ProbeSelection {
        ProbeSelection::with_all(true)
    }
}

impl ProbeSelection {
    /// Only the probes that are always active.
    pub fn always_on() -> ProbeSelection {
        ProbeSelection::with_all(false)
    }

    fn with_all(selected: bool) -> ProbeSelection {
        ProbeSelection {
            hardware: selected,
            software: selected,
            tracepoints: Vec::new(),
            huge: selected,
            page_tables: selected,
            fragmentation: selected,
            pressure: selected,
            vmstat: selected,
            share_permille: SHARE_PERMILLE,
        }
    }

    /// The probes with these names: words of [`PROBE_NAMES`], `all`, and tracepoints as `system:event`. The
    /// error lists the valid names.
    pub fn from_names<'w>(requested: impl IntoIterator<Item = &'w str>) -> Result<ProbeSelection, String> {
        let mut selection = ProbeSelection::always_on();
        for word in requested {
            match word {
                "hardware" => selection.hardware = true,
                "software" => selection.software = true,
                "huge" => selection.huge = true,
                "page-tables" => selection.page_tables = true,
                "fragmentation" => selection.fragmentation = true,
                "pressure" => selection.pressure = true,
                "vmstat" => selection.vmstat = true,
                "all" => {
                    selection =
                        ProbeSelection { tracepoints: selection.tracepoints, ..ProbeSelection::default() }
                }
                event if is_tracepoint(event) => {
                    if !selection.tracepoints.iter().any(|known| known == event) {
                        selection.tracepoints.push(event.to_owned());
                    }
                }
                _ => {
                    let names: Vec<&str> = PROBE_NAMES.iter().map(|(name, _)| *name).collect();
                    let hint = names::suggest(word, &names).map(|hint| format!("; hint: {hint}"));
                    return Err(format!(
                        "unknown probe `{}`; expected all, {}, or a tracepoint as system:event, for example \
                         kmem:mm_page_alloc{}",
                        word.escape_debug(),
                        names.join(", "),
                        hint.unwrap_or_default()
                    ));
                }
            }
        }
        Ok(selection)
    }
}

/// `system:event`, each a valid file name of tracefs that cannot leave its directory.
fn is_tracepoint(event_name: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    event_name.split_once(':').is_some_and(|(system, event)| is_name(system) && is_name(event))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_switches_its_probe_on_and_all_switches_on_all() {
        let names: Vec<&str> = PROBE_NAMES.iter().map(|(name, _)| *name).collect();
        assert_eq!(ProbeSelection::from_names(names.clone()).unwrap(), ProbeSelection::default());
        for name in &names {
            let one = ProbeSelection::from_names([*name]).unwrap();
            assert!(one != ProbeSelection::always_on() && one != ProbeSelection::default(), "{name}");
        }
        let traced = ProbeSelection::from_names(["kmem:mm_page_alloc", "all", "kmem:mm_page_alloc"]).unwrap();
        assert_eq!(traced.tracepoints, ["kmem:mm_page_alloc"]);
        assert!(traced.vmstat);
    }

    #[test]
    fn what_is_no_probe_is_refused_with_what_there_is() {
        for word in ["", "Huge", "kmem:", ":x", "kmem:../../id", "a:b:c", "kmem:a b"] {
            let error = ProbeSelection::from_names([word]).unwrap_err();
            assert!(error.contains("expected all, hardware, software"), "{error}");
        }
    }
}
