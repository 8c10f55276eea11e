//! Which probes a trial wants.

/// The names by which a recipe asks for probes, and what each gives. Time, CPU, peak memory, rusage and the
/// control group's own counts are always there.
pub const PROBES: [(&str, &str); 7] = [
    ("hardware", "cycles, instructions, caches, TLBs, page walks, as far as the processor shows them"),
    ("software", "page faults, context switches and migrations as perf counts them"),
    ("huge", "bytes in huge pages of each kind, and the huge zero page"),
    ("page-tables", "bytes of page tables"),
    ("fragmentation", "F_u of the largest zone before and after"),
    ("pressure", "time stalled for memory, IO and CPU"),
    ("vmstat", "what the kernel counted meanwhile: faults, huge pages, compaction, reclaim, swap"),
];

/// Which probes are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Counters of the processor.
    pub hardware: bool,
    /// Counters of the kernel's own, by perf.
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
    /// Differences of vmstat, and of the counters of huge pages by size.
    pub vmstat: bool,
    /// Thousandths of the trial's time that looks at the running trial may take; each kind of walk over its
    /// page tables, smaps_rollup and PAGEMAP_SCAN, may take half of that. With 1 all probes together stay
    /// within half a percent of ten seconds.
    pub share_permille: u64,
}

/// What a look may take where nobody says otherwise.
const SHARE_PERMILLE: u64 = 1;

impl Default for Wanted {
    /// All but tracepoints, which nobody can guess.
    fn default() -> Wanted {
        Wanted {
            hardware: true,
            software: true,
            tracepoints: Vec::new(),
            huge: true,
            page_tables: true,
            fragmentation: true,
            pressure: true,
            vmstat: true,
            share_permille: SHARE_PERMILLE,
        }
    }
}

impl Wanted {
    /// None but those that are always there.
    pub fn none() -> Wanted {
        Wanted {
            hardware: false,
            software: false,
            tracepoints: Vec::new(),
            huge: false,
            page_tables: false,
            fragmentation: false,
            pressure: false,
            vmstat: false,
            share_permille: SHARE_PERMILLE,
        }
    }

    /// The probes with these names: words of [`PROBES`], `all`, and tracepoints as `system:event`. The error
    /// says what a name can be.
    pub fn named<'w>(words: impl IntoIterator<Item = &'w str>) -> Result<Wanted, String> {
        let mut wanted = Wanted::none();
        for word in words {
            match word {
                "hardware" => wanted.hardware = true,
                "software" => wanted.software = true,
                "huge" => wanted.huge = true,
                "page-tables" => wanted.page_tables = true,
                "fragmentation" => wanted.fragmentation = true,
                "pressure" => wanted.pressure = true,
                "vmstat" => wanted.vmstat = true,
                "all" => wanted = Wanted { tracepoints: wanted.tracepoints, ..Wanted::default() },
                event if is_tracepoint(event) => {
                    if !wanted.tracepoints.iter().any(|known| known == event) {
                        wanted.tracepoints.push(event.to_owned());
                    }
                }
                _ => {
                    let names: Vec<&str> = PROBES.iter().map(|(name, _)| *name).collect();
                    return Err(format!(
                        "`{}` is no probe; there are all, {}, and tracepoints as system:event, such as \
                         kmem:mm_page_alloc",
                        word.escape_debug(),
                        names.join(", ")
                    ));
                }
            }
        }
        Ok(wanted)
    }
}

/// `system:event`, each a name as a file of tracefs can have: nothing that leads out of its folder.
fn is_tracepoint(word: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    word.split_once(':').is_some_and(|(system, event)| is_name(system) && is_name(event))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_switches_its_probe_on_and_all_switches_on_all() {
        let names: Vec<&str> = PROBES.iter().map(|(name, _)| *name).collect();
        assert_eq!(Wanted::named(names.clone()).unwrap(), Wanted::default());
        for name in &names {
            let one = Wanted::named([*name]).unwrap();
            assert!(one != Wanted::none() && one != Wanted::default(), "{name}");
        }
        let traced = Wanted::named(["kmem:mm_page_alloc", "all", "kmem:mm_page_alloc"]).unwrap();
        assert_eq!(traced.tracepoints, ["kmem:mm_page_alloc"]);
        assert!(traced.vmstat);
    }

    #[test]
    fn what_is_no_probe_is_refused_with_what_there_is() {
        for word in ["", "Huge", "kmem:", ":x", "kmem:../../id", "a:b:c", "kmem:a b"] {
            let error = Wanted::named([word]).unwrap_err();
            assert!(error.contains("is no probe; there are all, hardware, software"), "{error}");
        }
    }
}
