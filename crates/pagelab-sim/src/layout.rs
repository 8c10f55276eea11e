//! Zones of a machine's memory.
//!
//! What the paper calls zone-based is not a list policy: it is a layout whose highest zone takes movable
//! pages alone. Any policy can be used under any layout.

use std::ops::Range;

use pagelab_model::units::{Bytes, PageSize};

use crate::machine::ZoneLimits;
use crate::memory::ZoneConfig;
use crate::types::{Error, FRAMES_MAX, Frame, ZoneGeometry, invalid};
use crate::watermarks::{
    DEFAULT_WATERMARK_SCALE_FACTOR, LOWMEM_RESERVE_RATIO_DMA, LOWMEM_RESERVE_RATIO_NORMAL,
    compute_lowmem_reserves, compute_watermarks, default_min_free_kib,
};
use crate::zone::ZoneFeatures;

/// Bytes of a base page on all machines here.
pub(crate) const PAGE_BYTES: u64 = PageSize::DEFAULT.bytes();

pub(crate) const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A zone of a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutZone {
    /// Name.
    pub name: &'static str,
    /// Its node.
    pub node: u16,
    /// Its place among the zones of a node; the same on all nodes.
    pub zone_index: u8,
    /// Its first frame.
    pub first_frame: Frame,
    /// Frames; more than 0.
    pub frames: u32,
}

impl LayoutZone {
    /// `None` for a zone without frames.
    pub(crate) fn new(
        name: &'static str,
        node: u16,
        zone_index: u8,
        Range { start, end }: Range<Frame>,
    ) -> Option<LayoutZone> {
        (start < end).then(|| LayoutZone { name, node, zone_index, first_frame: start, frames: end - start })
    }
}

/// The zones of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The zones, by first frame.
    pub zones: Vec<LayoutZone>,
    /// The order of the largest blocks.
    pub max_order: u8,
    /// The order of a pageblock.
    pub pageblock_order: u8,
    /// `lowmem_reserve_ratio` by zone index.
    pub lowmem_reserve_ratios: Vec<u64>,
    /// The highest zone, by zone index, for each use of memory. Page tables may be in high memory
    /// (`CONFIG_HIGHPT`), if there is any.
    pub zone_limits: ZoneLimits,
    /// `vm.min_free_kbytes` in frames.
    pub min_free_frames: u64,
    /// `vm.watermark_scale_factor`, in parts of 10 000; 0 before Linux 4.6.
    pub watermark_scale_factor: u64,
}

impl Layout {
    /// A machine of today: DMA to 16 MiB, DMA32 to 4 GiB, Normal above, the last `movable_percent` of each
    /// node movable alone (`movablecore=`). Nodes are of one size. There are no holes, and sizes are rounded
    /// down to the largest blocks.
    pub fn x86_64_with_movable_percent(
        bytes: Bytes,
        nodes: u16,
        movable_percent: u8,
    ) -> Result<Layout, Error> {
        if nodes == 0 || movable_percent > 100 {
            return invalid(format!("invalid layout: {nodes} nodes with {movable_percent} % movable memory"));
        }
        Layout::x86_64_with_movable(bytes, nodes, |each| {
            (u128::from(each) * u128::from(movable_percent) / 100) as u64
        })
    }

    /// The same of one node, all of it above `kernelcore` bytes movable alone (`kernelcore=`): from the next
    /// beginning of a largest block on (`find_zone_movable_pfns_for_nodes`).
    pub fn x86_64_with_kernelcore(bytes: Bytes, kernelcore: Bytes) -> Result<Layout, Error> {
        Layout::x86_64_with_movable(bytes, 1, |each| each.saturating_sub(kernelcore.0))
    }

    /// `movable` returns the bytes of a node that are for movable pages only; they are rounded down.
    fn x86_64_with_movable(bytes: Bytes, nodes: u16, movable: impl Fn(u64) -> u64) -> Result<Layout, Error> {
        const MAX_ORDER: u8 = 10;
        let max_block_bytes = PAGE_BYTES << MAX_ORDER;
        let node_bytes = bytes.0 / u64::from(nodes) / max_block_bytes * max_block_bytes;
        let end = node_bytes * u64::from(nodes);
        if node_bytes < 64 * MIB || end / PAGE_BYTES > FRAMES_MAX {
            return invalid(format!(
                "a node of {node_bytes} bytes; expected at least 64 MiB, and at most 16 TiB in total"
            ));
        }
        let kernel_zones =
            [("DMA", 0, 16 * MIB), ("DMA32", 16 * MIB, 4 * GIB), ("Normal", 4 * GIB, u64::MAX)];
        let frame_at = |byte: u64| Frame::new((byte / PAGE_BYTES) as u32);
        let mut zones: Vec<LayoutZone> = Vec::new();
        for node in 0..nodes {
            let (from, to) = (node_bytes * u64::from(node), node_bytes * u64::from(node + 1));
            let movable_start = to - movable(node_bytes) / max_block_bytes * max_block_bytes;
            // The kernel cannot do without its lowest zone.
            let movable = if node == 0 { movable_start.max(16 * MIB) } else { movable_start };
            for (zone_index, (name, start, end)) in (0..).zip(kernel_zones) {
                let frames = frame_at(start.max(from))..frame_at(end.min(movable));
                zones.extend(LayoutZone::new(name, node, zone_index, frames));
            }
            zones.extend(LayoutZone::new("Movable", node, 3, frame_at(movable)..frame_at(to)));
        }
        let of_kernel = zones.iter().filter(|zone| zone.zone_index < 3);
        let kernel_kib = of_kernel.map(|zone| u64::from(zone.frames) * PAGE_BYTES / 1024).sum();
        Ok(Layout {
            zones,
            max_order: MAX_ORDER,
            pageblock_order: 9,
            lowmem_reserve_ratios: vec![
                LOWMEM_RESERVE_RATIO_DMA,
                LOWMEM_RESERVE_RATIO_DMA,
                LOWMEM_RESERVE_RATIO_NORMAL,
                0,
            ],
            zone_limits: ZoneLimits { kernel: 2, page_tables: 2, user: 3 },
            min_free_frames: default_min_free_kib(kernel_kib) * 1024 / PAGE_BYTES,
            watermark_scale_factor: DEFAULT_WATERMARK_SCALE_FACTOR,
        })
    }

    /// All frames.
    pub fn frames(&self) -> u64 {
        self.zones.iter().map(|zone| u64::from(zone.frames)).sum()
    }

    /// Zones for [`crate::memory::Memory::new`], with the kernel's watermarks and reserves.
    pub fn zone_configs(&self) -> Vec<ZoneConfig> {
        let managed: Vec<u64> = self.zones.iter().map(|zone| u64::from(zone.frames)).collect();
        let is_kernel_zone: Vec<bool> =
            self.zones.iter().map(|zone| zone.zone_index <= self.zone_limits.kernel).collect();
        let watermarks =
            compute_watermarks(&managed, &is_kernel_zone, self.min_free_frames, self.watermark_scale_factor);
        let zone_config = |(zone, watermarks): (&LayoutZone, _)| ZoneConfig {
            name: zone.name.to_owned(),
            node: zone.node,
            zone_index: zone.zone_index,
            geometry: ZoneGeometry {
                first_frame: zone.first_frame,
                frames: zone.frames,
                max_order: self.max_order,
                pageblock_order: self.pageblock_order,
            },
            watermarks,
            lowmem_reserve: self.lowmem_reserve_of(zone),
            features: ZoneFeatures::default(),
        };
        self.zones.iter().zip(watermarks).map(zone_config).collect()
    }

    /// Reserve of a zone against requests that could be served by a higher zone of its node.
    fn lowmem_reserve_of(&self, zone: &LayoutZone) -> Vec<u64> {
        let managed_at = |zone_index: usize| {
            let is_at_index =
                |other: &&LayoutZone| other.node == zone.node && usize::from(other.zone_index) == zone_index;
            self.zones.iter().filter(is_at_index).map(|other| u64::from(other.frames)).sum()
        };
        let managed: Vec<u64> = (0..self.lowmem_reserve_ratios.len()).map(managed_at).collect();
        compute_lowmem_reserves(&managed, &self.lowmem_reserve_ratios).swap_remove(zone.zone_index.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loads::machine_model::{frame_at_mib, layout_2_6_16};
    use crate::memory::Memory;
    use crate::pcp::PcpConfig;
    use crate::policies::TABLE;

    fn names(layout: &Layout) -> Vec<(&str, u16, u64)> {
        let mib = |zone: &LayoutZone| u64::from(zone.frames) * PAGE_BYTES / MIB;
        layout.zones.iter().map(|zone| (zone.name, zone.node, mib(zone))).collect()
    }

    /// The paper's x86 machine under Linux 2.6.16, with EasyRclm from this MiB on.
    fn x86_paper(movable_start: u64) -> Layout {
        let zone = |name, index, from, to| (name, index, frame_at_mib(from), frame_at_mib(to));
        let ranges = [
            zone("DMA", 0, 0, 16),
            zone("Normal", 1, 16, 896),
            zone("HighMem", 2, 896, movable_start),
            zone("EasyRclm", 3, movable_start, 1516),
        ];
        let ratios = [LOWMEM_RESERVE_RATIO_DMA, LOWMEM_RESERVE_RATIO_NORMAL, LOWMEM_RESERVE_RATIO_NORMAL, 0];
        layout_2_6_16(&ranges, 10, &ratios, ZoneLimits { kernel: 1, page_tables: 2, user: 3 })
    }

    /// The paper's PPC64 machine, with EasyRclm from this MiB on.
    fn ppc64_paper(movable_start: u64) -> Layout {
        let [start, middle, end] = [0, movable_start, 4016].map(frame_at_mib);
        let ranges = [("DMA", 0, start, middle), ("EasyRclm", 1, middle, end)];
        let limits = ZoneLimits { kernel: 0, page_tables: 0, user: 1 };
        layout_2_6_16(&ranges, 12, &[LOWMEM_RESERVE_RATIO_DMA, 0], limits)
    }

    #[test]
    fn the_papers_machines_hold_as_many_huge_pages_as_it_says() {
        let x86 = x86_paper(1516);
        assert_eq!(names(&x86), [("DMA", 0, 16), ("Normal", 0, 880), ("HighMem", 0, 620)]);
        assert_eq!(x86.frames() >> x86.max_order, 379);
        let cut = x86_paper(1024);
        assert_eq!(
            names(&cut),
            [("DMA", 0, 16), ("Normal", 0, 880), ("HighMem", 0, 128), ("EasyRclm", 0, 492)]
        );
        assert_eq!(
            x86.min_free_frames, cut.min_free_frames,
            "memory that the kernel's data may lie in is the same"
        );
        let ppc64 = ppc64_paper(2048);
        assert_eq!(names(&ppc64), [("DMA", 0, 2048), ("EasyRclm", 0, 1968)]);
        assert_eq!(ppc64.frames() >> ppc64.max_order, 251);
    }

    #[test]
    fn kernelcore_is_what_was_asked_for_to_a_largest_block() {
        for (core, begins) in [(3 * GIB, 3072), (3 * GIB + MIB, 3076), (5000 * MIB, 5000), (8 * GIB, 8192)] {
            let layout = Layout::x86_64_with_kernelcore(Bytes(8 * GIB), Bytes(core)).unwrap();
            let below = layout.zones.iter().filter(|zone| zone.name != "Movable");
            let below: u64 = below.map(|zone| u64::from(zone.frames) * PAGE_BYTES / MIB).sum();
            assert_eq!((below, layout.frames() * PAGE_BYTES), (begins, 8 * GIB), "{core}");
        }
    }

    /// `setup_per_zone_pages_min` by hand.
    #[test]
    fn watermarks_of_the_paper_are_the_minimum_by_share() {
        let setups = x86_paper(1516).zone_configs();
        // √(16 · 917 504 KiB) = 3831 KiB = 957 frames; Normal has 880 of 896 MiB.
        assert_eq!(setups[1].watermarks.min, 957 * 880 / 896);
        assert_eq!(setups[1].watermarks.high - setups[1].watermarks.min, 2 * (957 * 880 / 896 / 4));
        assert_eq!(setups[2].watermarks.min, 128);
        // Normal keeps 1/32 of HighMem from those who may use HighMem.
        assert_eq!(setups[1].lowmem_reserve[..3], [0, 0, (620 << 8) / 32]);
    }

    #[test]
    fn a_machine_of_today_is_cut_at_16_mib_and_4_gib() {
        let one = Layout::x86_64_with_movable_percent(Bytes(16 << 30), 1, 25).unwrap();
        assert_eq!(
            names(&one),
            [("DMA", 0, 16), ("DMA32", 0, 4080), ("Normal", 0, 8192), ("Movable", 0, 4096)]
        );
        let two = Layout::x86_64_with_movable_percent(Bytes(6 << 30), 2, 0).unwrap();
        assert_eq!(
            names(&two),
            [("DMA", 0, 16), ("DMA32", 0, 3056), ("DMA32", 1, 1024), ("Normal", 1, 2048)]
        );
        // Of node 0, DMA keeps from those who may use DMA32 and more what node 0 has of them alone.
        assert_eq!(
            two.zone_configs()[0].lowmem_reserve,
            [0, (3056 << 8) / 256, (3056 << 8) / 256, (3056 << 8) / 256]
        );
    }

    #[test]
    fn every_policy_serves_every_layout() {
        let percent = Layout::x86_64_with_movable_percent(Bytes(512 << 20), 2, 50).unwrap();
        let layouts = [x86_paper(1024), ppc64_paper(4016), percent];
        for layout in layouts {
            for entry in TABLE {
                let keep = PcpConfig::with_batch(1, 31, 186);
                let memory = Memory::new(layout.zone_configs(), &entry.policy, keep).unwrap();
                let free: u64 = memory.zones().map(|(_, zone)| u64::from(zone.zone().free_frames())).sum();
                assert_eq!(free, layout.frames(), "{}", entry.name);
            }
        }
    }

    #[test]
    fn what_cannot_be_cut_so_is_refused() {
        assert!(Layout::x86_64_with_movable_percent(Bytes(1 << 20), 1, 0).is_err());
        assert!(Layout::x86_64_with_movable_percent(Bytes(1 << 30), 0, 0).is_err());
        assert!(Layout::x86_64_with_movable_percent(Bytes(1 << 30), 1, 101).is_err());
        assert!(Layout::x86_64_with_movable_percent(Bytes(32 << 40), 1, 0).is_err());
    }
}
