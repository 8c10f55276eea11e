//! How a machine's memory is cut into zones.
//!
//! What the paper calls zone-based is not a list policy: it is a layout whose highest zone takes movable
//! pages alone. Any policy can be used under any layout.

use pagelab_model::units::{Bytes, PageSize};

use crate::machine::Heights;
use crate::marks::{RATIO_DMA, RATIO_NORMAL, SCALE_USUAL, marks, min_free_kib, reserves};
use crate::memory::Setup;
use crate::words::{FRAMES_MAX, Frame, Shape, Wrong};
use crate::zone::Extras;

/// Bytes of a base page on all machines here.
const PAGE_BYTES: u64 = PageSize::USUAL.bytes();

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A zone of a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutZone {
    /// What it is called.
    pub name: &'static str,
    /// Its node.
    pub node: u16,
    /// Its place among the zones of a node; the same on all nodes.
    pub height: u8,
    /// Its first frame.
    pub first: Frame,
    /// Frames; more than 0.
    pub frames: u32,
}

/// The zones of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a base page.
    pub page_bytes: u64,
    /// The zones, by first frame.
    pub zones: Vec<LayoutZone>,
    /// The order of the largest blocks.
    pub max_order: u8,
    /// The order of a pageblock.
    pub block_order: u8,
    /// `lowmem_reserve_ratio` by height.
    pub ratios: Vec<u64>,
    /// The highest zone, by height, that each kind of memory may lie in. Page tables may lie in high memory
    /// (`CONFIG_HIGHPT`), where there is some.
    pub heights: Heights,
    /// `vm.min_free_kbytes` in frames.
    pub min_free: u64,
    /// `vm.watermark_scale_factor`, in parts of 10 000; 0 before Linux 4.6.
    pub scale: u64,
}

impl Layout {
    /// The paper's x86 machine: 1518 MiB, huge pages of 4 MiB (order 10), of which 379 fit. The half of one
    /// that is left at the end is left out. `kernelcore` leaves so much to the kernel's zones; what is above
    /// is EasyRclm.
    pub fn x86_paper(kernelcore: Option<Bytes>) -> Result<Layout, Wrong> {
        let cuts = [("DMA", 0), ("Normal", 16 * MIB), ("HighMem", 896 * MIB)];
        paper(1518 * MIB, 10, &cuts, kernelcore, &[RATIO_DMA, RATIO_NORMAL, RATIO_NORMAL, 0])
    }

    /// The paper's PPC64 machine: 4019 MiB in one zone, huge pages of 16 MiB (order 12), of which 251 fit.
    pub fn ppc64_paper(kernelcore: Option<Bytes>) -> Result<Layout, Wrong> {
        paper(4019 * MIB, 12, &[("DMA", 0)], kernelcore, &[RATIO_DMA, 0])
    }

    /// A machine of today: DMA to 16 MiB, DMA32 to 4 GiB, Normal above, the last `movable_percent` of each
    /// node movable alone (`movablecore=`). Nodes are of one size. There are no holes, and sizes are rounded
    /// down to the largest blocks.
    pub fn x86_64(bytes: Bytes, nodes: u16, movable_percent: u8) -> Result<Layout, Wrong> {
        if nodes == 0 || movable_percent > 100 {
            return Err(Wrong::Shape(format!("{nodes} nodes with {movable_percent} % that is movable")));
        }
        Layout::x86_64_cut(bytes, nodes, |each| (u128::from(each) * u128::from(movable_percent) / 100) as u64)
    }

    /// The same of one node, all of it above `core` bytes movable alone (`kernelcore=`): from the next
    /// beginning of a largest block on (`find_zone_movable_pfns_for_nodes`).
    pub fn x86_64_core(bytes: Bytes, core: Bytes) -> Result<Layout, Wrong> {
        Layout::x86_64_cut(bytes, 1, |each| each.saturating_sub(core.0))
    }

    /// `movable` says how many bytes of a node are to be movable alone; they are rounded down.
    fn x86_64_cut(bytes: Bytes, nodes: u16, movable: impl Fn(u64) -> u64) -> Result<Layout, Wrong> {
        const MAX_ORDER: u8 = 10;
        let wrong = |what: String| Err(Wrong::Shape(what));
        let largest = PAGE_BYTES << MAX_ORDER;
        let each = bytes.0 / u64::from(nodes) / largest * largest;
        let end = each * u64::from(nodes);
        if each < 64 * MIB || end / PAGE_BYTES > FRAMES_MAX {
            return wrong(format!(
                "a node of {each} bytes: 64 MiB are the least, and 16 TiB in all the most"
            ));
        }
        let cuts = [("DMA", 0), ("DMA32", 16 * MIB), ("Normal", 4 * GIB)];
        let mut zones = Vec::new();
        for node in 0..nodes {
            let (from, to) = (each * u64::from(node), each * u64::from(node + 1));
            let movable = to - movable(each) / largest * largest;
            // The kernel cannot do without its lowest zone.
            let movable = if node == 0 { movable.max(16 * MIB) } else { movable };
            add_zones(&mut zones, node, &cuts, from, movable);
            add_zone(&mut zones, ("Movable", node, 3), movable, to);
        }
        let kernel_kib = zones.iter().filter(|zone| zone.height < 3).map(kib).sum();
        Ok(Layout {
            page_bytes: PAGE_BYTES,
            zones,
            max_order: MAX_ORDER,
            block_order: 9,
            ratios: vec![RATIO_DMA, RATIO_DMA, RATIO_NORMAL, 0],
            heights: Heights { kernel: 2, page_tables: 2, user: 3 },
            min_free: min_free_kib(kernel_kib) * 1024 / PAGE_BYTES,
            scale: SCALE_USUAL,
        })
    }

    /// All frames.
    pub fn frames(&self) -> u64 {
        self.zones.iter().map(|zone| u64::from(zone.frames)).sum()
    }

    /// The zones as [`crate::memory::Memory::new`] takes them, with the marks and reserves that the kernel
    /// would set.
    pub fn setups(&self) -> Vec<Setup> {
        let managed: Vec<u64> = self.zones.iter().map(|zone| u64::from(zone.frames)).collect();
        let is_low: Vec<bool> = self.zones.iter().map(|zone| zone.height <= self.heights.kernel).collect();
        let marks = marks(&managed, &is_low, self.min_free, self.scale);
        let kept: Vec<_> = self.zones.iter().map(|zone| self.kept(zone)).collect();
        let zones = self.zones.iter().zip(marks).zip(kept);
        let setup = |((zone, marks), reserves): ((&LayoutZone, _), _)| Setup {
            name: zone.name.to_owned(),
            node: zone.node,
            height: zone.height,
            shape: Shape {
                first: zone.first,
                frames: zone.frames,
                max_order: self.max_order,
                block_order: self.block_order,
            },
            marks,
            reserves,
            extras: Extras::default(),
        };
        zones.map(setup).collect()
    }

    /// What a zone keeps from those who may go higher on its node.
    fn kept(&self, zone: &LayoutZone) -> Vec<u64> {
        let managed = |height: usize| {
            let at = |other: &&LayoutZone| other.node == zone.node && usize::from(other.height) == height;
            self.zones.iter().filter(at).map(|other| u64::from(other.frames)).sum()
        };
        let managed: Vec<u64> = (0..self.ratios.len()).map(managed).collect();
        reserves(&managed, &self.ratios).swap_remove(zone.height.into())
    }
}

fn kib(zone: &LayoutZone) -> u64 {
    u64::from(zone.frames) * PAGE_BYTES / 1024
}

/// A zone from one byte to another, if that is anything.
fn add_zone(zones: &mut Vec<LayoutZone>, (name, node, height): (&'static str, u16, u8), from: u64, to: u64) {
    if from < to {
        let (first, end) = ((from / PAGE_BYTES) as u32, (to / PAGE_BYTES) as u32);
        zones.push(LayoutZone { name, node, height, first, frames: end - first });
    }
}

/// The part of each zone that lies between two bytes. A zone reaches up to where the next one begins.
fn add_zones(zones: &mut Vec<LayoutZone>, node: u16, cuts: &[(&'static str, u64)], from: u64, to: u64) {
    for (height, &(name, begins)) in (0..).zip(cuts) {
        let ends = cuts.get(usize::from(height) + 1).map_or(u64::MAX, |next| next.1);
        add_zone(zones, (name, node, height), begins.max(from), ends.min(to));
    }
}

/// A machine of the paper: Linux 2.6.16, one node, pageblocks as large as its huge pages.
fn paper(
    bytes: u64,
    order: u8,
    cuts: &[(&'static str, u64)],
    kernelcore: Option<Bytes>,
    ratios: &[u64],
) -> Result<Layout, Wrong> {
    let huge = PAGE_BYTES << order;
    let end = bytes / huge * huge;
    let core = kernelcore.map_or(end, |core| core.0);
    let lowest = cuts.last().map_or(0, |cut| cut.1).max(huge);
    if !core.is_multiple_of(huge) || core < lowest || core > end {
        return Err(Wrong::Shape(format!(
            "kernelcore of {core} bytes: whole huge pages of {huge} bytes, from {lowest} to {end}"
        )));
    }
    let mut zones = Vec::new();
    add_zones(&mut zones, 0, cuts, 0, core);
    let top = cuts.len() as u8;
    add_zone(&mut zones, ("EasyRclm", 0, top), core, end);
    // The kernel's data may not lie in HighMem.
    let kernel = u8::from(cuts.len() > 1);
    let low_kib = zones.iter().filter(|zone| zone.height <= kernel).map(kib).sum();
    Ok(Layout {
        page_bytes: PAGE_BYTES,
        zones,
        max_order: order,
        block_order: order,
        ratios: ratios.to_vec(),
        heights: Heights { kernel, page_tables: top - 1, user: top },
        min_free: min_free_kib(low_kib).min(64 << 10) * 1024 / PAGE_BYTES,
        scale: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::percpu::Keep;
    use crate::policies::TABLE;

    fn names(layout: &Layout) -> Vec<(&str, u16, u64)> {
        let mib = |zone: &LayoutZone| u64::from(zone.frames) * PAGE_BYTES / MIB;
        layout.zones.iter().map(|zone| (zone.name, zone.node, mib(zone))).collect()
    }

    #[test]
    fn the_papers_machines_hold_as_many_huge_pages_as_it_says() {
        let x86 = Layout::x86_paper(None).unwrap();
        assert_eq!(names(&x86), [("DMA", 0, 16), ("Normal", 0, 880), ("HighMem", 0, 620)]);
        assert_eq!(x86.frames() >> x86.max_order, 379);
        let cut = Layout::x86_paper(Some(Bytes(1024 * MIB))).unwrap();
        assert_eq!(
            names(&cut),
            [("DMA", 0, 16), ("Normal", 0, 880), ("HighMem", 0, 128), ("EasyRclm", 0, 492)]
        );
        assert_eq!(cut.heights, Heights { kernel: 1, page_tables: 2, user: 3 });
        assert_eq!(x86.min_free, cut.min_free, "memory that the kernel's data may lie in is the same");
        let ppc64 = Layout::ppc64_paper(Some(Bytes(2048 * MIB))).unwrap();
        assert_eq!(names(&ppc64), [("DMA", 0, 2048), ("EasyRclm", 0, 1968)]);
        assert_eq!(ppc64.frames() >> ppc64.max_order, 251);
        assert_eq!(ppc64.heights, Heights { kernel: 0, page_tables: 0, user: 1 });
    }

    #[test]
    fn kernelcore_is_what_was_asked_for_to_a_largest_block() {
        for (core, begins) in [(3 * GIB, 3072), (3 * GIB + MIB, 3076), (5000 * MIB, 5000), (8 * GIB, 8192)] {
            let layout = Layout::x86_64_core(Bytes(8 * GIB), Bytes(core)).unwrap();
            let below = layout.zones.iter().filter(|zone| zone.name != "Movable");
            let below: u64 = below.map(|zone| u64::from(zone.frames) * PAGE_BYTES / MIB).sum();
            assert_eq!((below, layout.frames() * PAGE_BYTES), (begins, 8 * GIB), "{core}");
        }
    }

    /// Linux 2.6.16 of the paper's x86 machine without EasyRclm: `setup_per_zone_pages_min` by hand.
    #[test]
    fn marks_of_the_paper_are_the_minimum_by_share() {
        let setups = Layout::x86_paper(None).unwrap().setups();
        // √(16 · 917 504 KiB) = 3831 KiB = 957 frames; Normal has 880 of 896 MiB.
        assert_eq!(setups[1].marks.min, 957 * 880 / 896);
        assert_eq!(setups[1].marks.high - setups[1].marks.min, 2 * (957 * 880 / 896 / 4));
        assert_eq!(setups[2].marks.min, 128);
        // Normal keeps 1/32 of HighMem from those who may use HighMem.
        assert_eq!(setups[1].reserves[..3], [0, 0, (620 << 8) / 32]);
    }

    #[test]
    fn a_machine_of_today_is_cut_at_16_mib_and_4_gib() {
        let one = Layout::x86_64(Bytes(16 << 30), 1, 25).unwrap();
        assert_eq!(
            names(&one),
            [("DMA", 0, 16), ("DMA32", 0, 4080), ("Normal", 0, 8192), ("Movable", 0, 4096)]
        );
        let two = Layout::x86_64(Bytes(6 << 30), 2, 0).unwrap();
        assert_eq!(
            names(&two),
            [("DMA", 0, 16), ("DMA32", 0, 3056), ("DMA32", 1, 1024), ("Normal", 1, 2048)]
        );
        // Of node 0, DMA keeps from those who may use DMA32 and more what node 0 has of them alone.
        assert_eq!(two.setups()[0].reserves, [0, (3056 << 8) / 256, (3056 << 8) / 256, (3056 << 8) / 256]);
    }

    #[test]
    fn every_policy_serves_every_layout() {
        let layouts = [
            Layout::x86_paper(Some(Bytes(1024 * MIB))),
            Layout::ppc64_paper(None),
            Layout::x86_64(Bytes(512 << 20), 2, 50),
        ];
        for layout in layouts.map(Result::unwrap) {
            for entry in TABLE {
                let keep = Keep::batches(1, 31, 186);
                let memory = Memory::new(layout.setups(), &entry.policy, keep).unwrap();
                let free: u64 = memory.zones().map(|(_, zone)| u64::from(zone.zone().free_frames())).sum();
                assert_eq!(free, layout.frames(), "{}", entry.name);
            }
        }
    }

    #[test]
    fn what_cannot_be_cut_so_is_refused() {
        for core in [0, 8 * MIB, 1026 * MIB, 4 * GIB] {
            let said = Layout::x86_paper(Some(Bytes(core))).unwrap_err().to_string();
            assert!(said.contains("kernelcore") && said.contains("4194304 bytes"), "{said}");
        }
        assert!(Layout::x86_64(Bytes(1 << 20), 1, 0).is_err());
        assert!(Layout::x86_64(Bytes(1 << 30), 0, 0).is_err());
        assert!(Layout::x86_64(Bytes(1 << 30), 1, 101).is_err());
        assert!(Layout::x86_64(Bytes(32 << 40), 1, 0).is_err());
    }
}
