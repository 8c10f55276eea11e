//! Zone options of a scheme: shuffled lists, FIFO lists, a CMA area, the highatomic reserve.

use pagelab_model::size::{self, format_argument};
use pagelab_model::units::Bytes;

use crate::layout::PAGE_BYTES;
use crate::machine::{Release, ZoneLimits};
use crate::memory::ZoneConfig;
use crate::types::{CatalogueEntry, Error, FreeListDiscipline, ZoneFeatures, invalid};

/// The options, by their name after a `+`, with `=SIZE` if it takes one.
pub const TABLE: &[CatalogueEntry] = &[
    CatalogueEntry {
        name: "shuffle",
        summary: "lists of the largest order are shuffled, and blocks are added at either end",
        source: "page_alloc.shuffle=1, mm/shuffle.c of Linux since 5.2",
    },
    CatalogueEntry {
        name: "fifo",
        summary: "free lists are FIFO: the most recently freed block is reused last",
        source: "none: all Linux releases reuse it first",
    },
    CatalogueEntry {
        name: "highatomic",
        summary: "pageblocks are reserved for atomic high-order requests",
        source: "reserve_highatomic_pageblock of Linux 6.1; not on x86 and ppc64",
    },
    CatalogueEntry {
        name: "cma=SIZE",
        summary: "an area of pageblocks for movable pages only",
        source: "cma= of Linux since 3.5: at the end of the kernel's highest zone",
    },
];

/// Zone options of a scheme.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneOptions {
    /// Which end of its list a freed block goes to; where it is shuffled, the seed is the experiment's.
    pub list_discipline: FreeListDiscipline,
    /// Whether there is a highatomic reserve.
    pub has_highatomic: bool,
    /// Bytes of the CMA area; 0 for none.
    pub cma_bytes: u64,
}

impl ZoneOptions {
    /// Parses a word of a scheme; `false` if it is no option.
    pub(crate) fn parse_word(&mut self, word: &str) -> Result<bool, Error> {
        let list_discipline = match word {
            "shuffle" => FreeListDiscipline::Shuffled(0),
            "fifo" => FreeListDiscipline::Fifo,
            "highatomic" => {
                self.has_highatomic = true;
                return Ok(true);
            }
            _ => {
                let is_cma = word.split_once('=').map_or(word, |(name, _)| name) == "cma";
                return if is_cma { self.parse_cma(word).map(|()| true) } else { Ok(false) };
            }
        };
        if self.list_discipline != FreeListDiscipline::Lifo {
            return invalid("shuffle and fifo are mutually exclusive; expected one of them");
        }
        self.list_discipline = list_discipline;
        Ok(true)
    }

    /// `cma=256M`
    fn parse_cma(&mut self, word: &str) -> Result<(), Error> {
        if self.cma_bytes > 0 {
            return invalid("two CMA areas; expected one per scheme");
        }
        let size = word.split_once('=').and_then(|(_, size)| size::parse_nonzero(size).ok());
        let Some(Bytes(bytes)) = size else {
            return invalid(format!("{word}: expected the size of a CMA area, for example cma=256M"));
        };
        self.cma_bytes = bytes;
        Ok(())
    }

    pub(crate) fn apply_to_zones(
        &self,
        zones: &mut [ZoneConfig],
        zone_limits: &ZoneLimits,
        release: Release,
        seed: u64,
    ) -> Result<(), Error> {
        if self.has_highatomic && release == Release::V2_6_16 {
            return invalid(
                "highatomic: this machine runs Linux 2.6.16, which has no such reserve; hint: use an x86-64 \
                 machine, for example --machine 4G",
            );
        }
        for (number, zone) in (0u64..).zip(zones.iter_mut()) {
            let list_discipline = match self.list_discipline {
                // Each zone is shuffled with a seed of its own.
                FreeListDiscipline::Shuffled(_) => FreeListDiscipline::Shuffled(seed ^ number << 32),
                ends => ends,
            };
            zone.features =
                ZoneFeatures { list_discipline, has_highatomic: self.has_highatomic, cma_areas: Vec::new() };
        }
        let kernel_zones =
            zones.iter_mut().filter(|zone| zone.zone_index <= zone_limits.kernel && self.cma_bytes > 0);
        let Some(zone) = kernel_zones.max_by_key(|zone| zone.geometry.first_frame) else { return Ok(()) };
        let (pageblock_bytes, half_bytes) =
            (PAGE_BYTES << zone.geometry.pageblock_order, u64::from(zone.geometry.frames) * PAGE_BYTES / 2);
        let max_bytes = half_bytes / pageblock_bytes * pageblock_bytes;
        if !self.cma_bytes.is_multiple_of(pageblock_bytes) || self.cma_bytes > max_bytes {
            let [asked, block, most] =
                [self.cma_bytes, pageblock_bytes, max_bytes].map(|bytes| format_argument(Bytes(bytes)));
            return invalid(format!(
                "cma={asked}: expected a multiple of {block}, at most half of zone {} ({most})",
                zone.name
            ));
        }
        let end = zone.geometry.end();
        zone.features.cma_areas = std::iter::once(end - (self.cma_bytes / PAGE_BYTES) as u32..end).collect();
        Ok(())
    }

    /// Names of the lists after those of a policy.
    pub fn extra_list_names(&self) -> &'static [&'static str] {
        if *self == ZoneOptions::default() { &[] } else { &["CMA", "highatomic"] }
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::simulation::SimulatedWorkload;

    use super::*;
    use crate::layout::Layout;
    use crate::machine::{AllocRequest, Effort, Machine, MachineConfig, PageUse};
    use crate::pcp::PcpConfig;
    use crate::study::{Scheme, SimulationSpec, check_spec, run_simulation};

    fn spec(scheme: &str, machine: &str, load: &str) -> SimulationSpec {
        let workload = SimulatedWorkload {
            machine: machine.to_owned(),
            kernelcore: None,
            load: load.to_owned(),
            parameters: Vec::new(),
        };
        SimulationSpec::new(workload, scheme, 3, 1).unwrap()
    }

    #[test]
    fn each_word_is_a_part_of_a_scheme() {
        for entry in TABLE {
            let word = entry.name.replace("SIZE", "64M");
            let scheme = Scheme::parse(&format!("mobility+{word}")).unwrap();
            assert_ne!(scheme.zone_options, ZoneOptions::default(), "{word}");
            assert_eq!(check_spec(&spec(&format!("mobility+{word}"), "1G", "churn")), Ok(()), "{word}");
            assert!(entry.summary.len() <= 80, "{word}");
        }
        for wrong in ["cma", "cma=", "cma=0", "cma=x", "cma=1X", "shuffle+fifo", "cma=1M+cma=2M"] {
            assert!(Scheme::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_bounds() {
        for (scheme, machine, said) in [
            ("list2+cma=1M", "1G", "expected a multiple of 2M"),
            ("list2+cma=600M", "1G", "at most half of zone DMA32 (504M)"),
            ("list2+cma=2M", "x86", "expected a multiple of 4M"),
            ("list2+cma=20M", "ppc64", "expected a multiple of 16M"),
            ("mobility+highatomic", "x86", "this machine runs Linux 2.6.16, which has no such reserve"),
        ] {
            let wrong = check_spec(&spec(scheme, machine, "churn")).unwrap_err().to_string();
            assert!(wrong.contains(said), "{scheme} on {machine}: {wrong}");
        }
    }

    /// Each policy runs with all of them, and the metadata agree at the end.
    #[test]
    fn machines_have_them() {
        let few = ["pairs=20000", "full=90"].map(|word| word.split_once('=').unwrap());
        for policy in crate::policies::TABLE {
            for words in ["shuffle+highatomic+cma=32M", "fifo+cma=32M+compaction"] {
                let scheme = format!("{}+{words}", policy.name);
                let mut spec = spec(&scheme, "128M", "churn");
                spec.workload.parameters =
                    few.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).to_vec();
                let outcome = run_simulation(&spec, &mut |_| true).unwrap();
                let owners = &outcome.pictures[0].owners;
                let lists = policy.policy.list_count();
                assert_eq!(owners.iter().filter(|&&owner| owner == lists).count(), 16, "{scheme}");
            }
        }
    }

    /// A request that cannot wait sets pageblocks aside when memory is short, and one that would fail gets
    /// them back.
    #[test]
    fn the_highatomic_reserve_grows_and_is_given_back() {
        let scheme = Scheme::parse("mobility+highatomic").unwrap();
        let layout = Layout::x86_64_with_movable_percent(Bytes(64 << 20), 1, 0).unwrap();
        let mut zones = layout.zone_configs();
        scheme.zone_options.apply_to_zones(&mut zones, &layout.zone_limits, Release::V6_1, 1).unwrap();
        let config = MachineConfig {
            zones,
            zone_limits: layout.zone_limits,
            pcp_config: PcpConfig::with_batch(1, 1, 1),
            reclaim_policy: scheme.reclaim_policy,
            activates_referenced: true,
            has_compaction: false,
            swap_frames: 0,
        };
        let mut machine =
            Machine::new(config, crate::policies::find_policy("mobility-6.1").unwrap().policy).unwrap();
        let aside = |machine: &Machine| -> u32 {
            machine.memory().zones().map(|(_, zone)| zone.zone().highatomic_frames()).sum()
        };
        // Reclaim tries long, since there seems to be enough to reclaim.
        for _ in 0..6000 {
            let file = machine.allocate_block(&AllocRequest::for_base_page(PageUse::File)).unwrap().unwrap();
            machine.set_pinned(file, true).unwrap();
        }
        assert_eq!(aside(&machine), 0);
        let pair =
            AllocRequest { order: 1, effort: Effort::Atomic, ..AllocRequest::for_base_page(PageUse::Kernel) };
        while aside(&machine) == 0 {
            machine.allocate_block(&pair).unwrap().expect("pairs until memory is short");
        }
        machine.validate().unwrap();
        while machine.allocate_block(&AllocRequest::for_base_page(PageUse::Kernel)).unwrap().is_some() {}
        assert_eq!(aside(&machine), 0, "no request fails while there is a reserve");
        machine.validate().unwrap();
    }
}
