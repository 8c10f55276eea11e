//! What a scheme's zones have beside their lists, in the words of a scheme: shuffled lists, lists that are
//! not LIFO, a CMA area, the highatomic reserve.

use crate::machine::{Heights, Release};
use crate::memory::Setup;
use crate::words::{Ends, Extras, Wrong};

/// A word of a scheme.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// What it is called behind a `+`; with `=SIZE` behind it where it takes one.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Where it is from.
    pub source: &'static str,
}

/// All of them.
pub const TABLE: &[Entry] = &[
    Entry {
        name: "shuffle",
        summary: "the largest blocks lie in a random order, and go to either end of a list",
        source: "page_alloc.shuffle=1, mm/shuffle.c of Linux since 5.2",
    },
    Entry {
        name: "fifo",
        summary: "what was freed last is taken last",
        source: "none: every Linux takes it first",
    },
    Entry {
        name: "highatomic",
        summary: "pageblocks are set aside for blocks that are asked for and cannot wait",
        source: "reserve_highatomic_pageblock of Linux 6.1; not on x86 and ppc64",
    },
    Entry {
        name: "cma=SIZE",
        summary: "an area of whole pageblocks that only movable pages may lie in",
        source: "cma= of Linux since 3.5: at the end of the kernel's highest zone",
    },
];

/// Bytes of a base page on all machines here.
const PAGE: u64 = pagelab_model::units::PageSize::USUAL.bytes();

/// What the words of a scheme say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Besides {
    /// Which end of its list a freed block goes to; where it is shuffled, the seed is the experiment's.
    pub ends: Ends,
    /// Whether there is a highatomic reserve.
    pub has_highatomic: bool,
    /// Bytes of the CMA area; 0: there is none.
    pub cma: u64,
}

impl Besides {
    /// Takes a word of a scheme; `false`: it is none of these.
    pub(crate) fn word(&mut self, word: &str) -> Result<bool, Wrong> {
        let ends = match word {
            "shuffle" => Ends::Shuffled(0),
            "fifo" => Ends::Fifo,
            "highatomic" => {
                self.has_highatomic = true;
                return Ok(true);
            }
            _ => {
                let is_cma = word.split_once('=').map_or(word, |(name, _)| name) == "cma";
                return if is_cma { self.area(word).map(|()| true) } else { Ok(false) };
            }
        };
        if self.ends != Ends::Lifo {
            return Err(Wrong::Shape("lists are shuffled or fifo: name one of them".to_owned()));
        }
        self.ends = ends;
        Ok(true)
    }

    /// `cma=256M`
    fn area(&mut self, word: &str) -> Result<(), Wrong> {
        if self.cma > 0 {
            return Err(Wrong::Shape("two CMA areas: a scheme has one".to_owned()));
        }
        self.cma = word
            .split_once('=')
            .and_then(|(_, size)| bytes(size))
            .filter(|&size| size > 0)
            .ok_or_else(|| {
                Wrong::Shape(format!("{word}: the size of a CMA area was wanted, as in cma=256M (K, M, G)"))
            })?;
        Ok(())
    }

    /// Gives zones what they have beside their lists.
    pub(crate) fn give(
        &self,
        zones: &mut [Setup],
        heights: &Heights,
        (release, seed): (Release, u64),
    ) -> Result<(), Wrong> {
        if self.has_highatomic && release == Release::V2_6_16 {
            return Err(Wrong::Shape(
                "highatomic: this machine's Linux 2.6.16 has no such reserve; take a size of x86-64 for \
                 --machine, such as 4G"
                    .to_owned(),
            ));
        }
        for (number, zone) in (0u64..).zip(zones.iter_mut()) {
            let ends = match self.ends {
                // Each zone is shuffled by draws of its own.
                Ends::Shuffled(_) => Ends::Shuffled(seed ^ number << 32),
                ends => ends,
            };
            zone.extras = Extras { ends, has_highatomic: self.has_highatomic, cma: Vec::new() };
        }
        let kernel = zones.iter_mut().filter(|zone| zone.height <= heights.kernel && self.cma > 0);
        let Some(zone) = kernel.max_by_key(|zone| zone.shape.first) else { return Ok(()) };
        let (block, half) = (PAGE << zone.shape.block_order, u64::from(zone.shape.frames) * PAGE / 2);
        let most = half / block * block;
        if !self.cma.is_multiple_of(block) || self.cma > most {
            let [asked, block, most] = [self.cma, block, most].map(text);
            return Err(Wrong::Shape(format!(
                "cma={asked}: whole pageblocks of {block} were wanted, and half of the zone {} at most: \
                 up to {most}",
                zone.name
            )));
        }
        let end = zone.shape.end();
        zone.extras.cma = std::iter::once(end - (self.cma / PAGE) as u32..end).collect();
        Ok(())
    }

    /// Names of the lists behind those of a policy.
    pub fn lists(&self) -> &'static [&'static str] {
        if *self == Besides::default() { &[] } else { &["CMA", "highatomic"] }
    }
}

/// Bytes of a size such as `256M`.
fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(number) if text.ends_with('K') => (number, 1 << 10),
        Some(number) if text.ends_with('M') => (number, 1 << 20),
        Some(number) => (number, 1u64 << 30),
        None => (text, 1),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// A size as it is typed.
fn text(bytes: u64) -> String {
    let units = [("G", 1u64 << 30), ("M", 1 << 20), ("K", 1 << 10)];
    let unit = units.iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| bytes.to_string(), |(name, unit)| format!("{}{name}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use pagelab_model::units::Bytes;

    use super::*;
    use crate::layout::Layout;
    use crate::machine::{Ask, Class, Config, Effort, Machine};
    use crate::percpu::Keep;
    use crate::study::{Scheme, Spec, check, run};

    fn spec(scheme: &str, machine: &str, load: &str) -> Spec {
        Spec {
            machine: machine.to_owned(),
            kernelcore: None,
            scheme: Scheme::parse(scheme).unwrap(),
            load: load.to_owned(),
            parameters: Vec::new(),
            seed: 3,
            pictures: 1,
        }
    }

    #[test]
    fn each_word_is_a_part_of_a_scheme() {
        for entry in TABLE {
            let word = entry.name.replace("SIZE", "64M");
            let scheme = Scheme::parse(&format!("mobility+{word}")).unwrap();
            assert_ne!(scheme.besides, Besides::default(), "{word}");
            assert_eq!(check(&spec(&format!("mobility+{word}"), "1G", "churn")), Ok(()), "{word}");
            assert!(entry.summary.len() <= 80, "{word}");
        }
        for wrong in ["cma", "cma=", "cma=0", "cma=x", "cma=1T", "shuffle+fifo", "cma=1M+cma=2M"] {
            assert!(Scheme::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_bounds() {
        for (scheme, machine, said) in [
            ("list2+cma=1M", "1G", "whole pageblocks of 2M"),
            ("list2+cma=600M", "1G", "half of the zone DMA32 at most: up to 504M"),
            ("list2+cma=2M", "x86", "whole pageblocks of 4M"),
            ("list2+cma=20M", "ppc64", "whole pageblocks of 16M"),
            ("mobility+highatomic", "x86", "Linux 2.6.16 has no such reserve"),
        ] {
            let wrong = check(&spec(scheme, machine, "churn")).unwrap_err().to_string();
            assert!(wrong.contains(said), "{scheme} on {machine}: {wrong}");
        }
    }

    /// Each policy runs with all of them, and the books agree at the end.
    #[test]
    fn machines_have_them() {
        let few = ["pairs=20000", "full=90"].map(|word| word.split_once('=').unwrap());
        for policy in crate::policies::TABLE {
            for words in ["shuffle+highatomic+cma=32M", "fifo+cma=32M+compaction"] {
                let scheme = format!("{}+{words}", policy.name);
                let mut spec = spec(&scheme, "128M", "churn");
                spec.parameters = few.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).to_vec();
                let outcome = run(&spec, &mut |_| true).unwrap();
                let owners = &outcome.pictures[0].owners;
                let lists = policy.policy.lists();
                assert_eq!(owners.iter().filter(|&&owner| owner == lists).count(), 16, "{scheme}");
            }
        }
    }

    /// A request that cannot wait sets pageblocks aside when memory is short, and one that would fail gets
    /// them back.
    #[test]
    fn the_highatomic_reserve_grows_and_is_given_back() {
        let scheme = Scheme::parse("mobility+highatomic").unwrap();
        let layout = Layout::x86_64(Bytes(64 << 20), 1, 0).unwrap();
        let mut zones = layout.setups();
        scheme.besides.give(&mut zones, &layout.heights, (Release::V6_1, 1)).unwrap();
        let config = Config {
            zones,
            heights: layout.heights,
            keep: Keep::batches(1, 1, 1),
            reclaim: scheme.reclaim,
            keeps_referenced: true,
            compacts: false,
            swap_frames: 0,
        };
        let mut machine =
            Machine::new(config, crate::policies::find("mobility-6.1").unwrap().policy).unwrap();
        let aside = |machine: &Machine| -> u32 {
            machine.memory().zones().map(|(_, zone)| zone.zone().highatomic_frames()).sum()
        };
        // Reclaim tries long, since there seems to be enough to reclaim.
        for _ in 0..6000 {
            let file = machine.ask(&Ask::page(Class::File)).unwrap().unwrap();
            machine.pin(file, true).unwrap();
        }
        assert_eq!(aside(&machine), 0);
        let pair = Ask { order: 1, effort: Effort::Atomic, ..Ask::page(Class::Kernel) };
        while aside(&machine) == 0 {
            machine.ask(&pair).unwrap().expect("pairs until memory is short");
        }
        machine.validate().unwrap();
        while machine.ask(&Ask::page(Class::Kernel)).unwrap().is_some() {}
        assert_eq!(aside(&machine), 0, "nobody fails while there is a reserve");
        machine.validate().unwrap();
    }
}
