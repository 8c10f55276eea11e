//! Memory of several zones and nodes: the order of the zones, and their reserves (`get_page_from_freelist`,
//! `__zone_watermark_ok`).

use crate::pcp::{PcpConfig, PcpZone};
use crate::policies::Policy;
use crate::types::{AllocationType, Error, Frame, ZoneGeometry, invalid};
use crate::watermarks::Watermarks;
use crate::zone::initial_state::InitialRun;
use crate::zone::{AllocFlags, AllocatedBlock, Zone, ZoneFeatures};

/// A zone of a memory.
#[derive(Clone, Debug)]
pub struct ZoneConfig {
    /// Name.
    pub name: String,
    /// Its node.
    pub node: u16,
    /// Index among the zones of its node. A request names the highest index that it may use.
    pub zone_index: u8,
    /// Its frames.
    pub geometry: ZoneGeometry,
    /// Its watermarks.
    pub watermarks: Watermarks,
    /// Lowmem reserve by the highest permitted zone of a request.
    pub lowmem_reserve: Vec<u64>,
    /// Reserves of pageblocks, and the order of its lists.
    pub features: ZoneFeatures,
}

impl ZoneConfig {
    /// Frames reserved from a request that may use zones up to `zone_index`; 0 for a zone without reserves.
    #[inline]
    pub fn lowmem_reserve_for(&self, zone_index: u8) -> u64 {
        debug_assert!(
            self.lowmem_reserve.is_empty() || usize::from(zone_index) < self.lowmem_reserve.len(),
            "zone {} has no reserve for zone index {zone_index}",
            self.name
        );
        self.lowmem_reserve.get(usize::from(zone_index)).copied().unwrap_or(0)
    }
}

/// Watermark that must hold after an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watermark {
    /// To the low watermark: the fast path.
    Low,
    /// To the minimum: after background reclaim was woken.
    Min,
    /// To a quarter below the minimum: the caller cannot wait (`ALLOC_HARDER`). A block of more than one
    /// frame may come from the highatomic reserve.
    BelowMin,
    /// None: the caller frees memory itself.
    NoWatermark,
}

/// Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The block's order.
    pub order: u8,
    /// Its allocation type.
    pub alloc_type: AllocationType,
    /// Highest permitted zone.
    pub zone_index: u8,
    /// The node that it comes from.
    pub node: u16,
    /// The processor that asks.
    pub cpu: u16,
    /// Watermark that must hold after the allocation.
    pub watermark: Watermark,
    /// Whether kinds may be mixed in a pageblock. Under a policy that avoids it
    /// ([`Policy::is_defrag_mode`]) this is set only when reclaim and compaction have not helped.
    pub can_fragment: bool,
}

/// Properties of a request that decide whether a zone may serve it (part of `struct alloc_context`). It fits
/// in a register.
#[derive(Clone, Copy, Debug)]
struct AllocContext {
    order: u8,
    alloc_type: AllocationType,
    zone_index: u8,
    watermark: Watermark,
}

impl AllocContext {
    #[inline]
    fn of_request(request: &Request) -> AllocContext {
        let Request { order, alloc_type, zone_index, watermark, .. } = *request;
        AllocContext { order, alloc_type, zone_index, watermark }
    }
}

/// Condition on the free pages after a block is taken from a zone (`__zone_watermark_ok`).
#[derive(Clone, Copy, Debug)]
struct WatermarkCheck {
    /// Frames that must stay free.
    watermark_frames: u64,
    order: u8,
    zone_index: u8,
    /// Free frames of reserves that the request may not use.
    unusable_reserves: u32,
    /// Whether half of the watermark must also be free in the blocks of each larger order: Linux up to 4.3.
    halves_watermarks: bool,
}

/// Largest number of zones that are searched without a branch: which of them contains a freed frame cannot be
/// predicted.
const BRANCHLESS_ZONES: usize = 4;

/// A zone and its terms. Aligned so that its place among others takes no multiplication.
#[derive(Clone, Debug)]
#[repr(align(256))]
struct ManagedZone<P> {
    config: ZoneConfig,
    zone: PcpZone<P>,
    /// Free frames above which the low watermark holds for every request (as `zone_watermark_fast` has one
    /// comparison for order 0).
    ample_frames: u32,
}

const _: () = assert!(align_of::<ManagedZone<crate::machine::AnyPolicy>>() == 256);

impl<P: Policy> ManagedZone<P> {
    fn new(setup: ZoneConfig, zone: PcpZone<P>) -> ManagedZone<P> {
        let mut managed_zone = ManagedZone { config: setup, zone, ample_frames: u32::MAX };
        managed_zone.update_ample_frames(false);
        managed_zone
    }

    /// Must be called after watermarks have changed.
    fn update_ample_frames(&mut self, halves_watermarks: bool) {
        let ZoneConfig { watermarks, lowmem_reserve: reserves, geometry, .. } = &self.config;
        let reserved = reserves.iter().max().copied().unwrap_or(0);
        let ample = watermarks.low.saturating_add(reserved).saturating_add(1 << geometry.max_order);
        // With reserves, the check depends on the request.
        let needs_full_check = halves_watermarks || self.zone.zone().has_reserves();
        self.ample_frames =
            if needs_full_check { u32::MAX } else { u32::try_from(ample).unwrap_or(u32::MAX) };
    }

    /// Whether a shortcut shows that it may serve a request.
    #[inline(always)]
    fn has_ample_frames(&self, order: u8) -> bool {
        // A zone without such a block cannot serve it; pages on pcp lists do not count.
        let has_block = || order == 0 || self.zone.zone().has_block(order);
        self.zone.zone().free_frames() >= self.ample_frames && (!self.zone.has_pcp_lists() || has_block())
    }
}

/// The zones in the order in which a node asks them.
#[derive(Clone, Debug)]
struct Zonelist {
    first_zone: usize,
    zones: Vec<usize>,
}

/// All zones.
#[derive(Clone, Debug)]
pub struct Memory<P> {
    managed_zones: Vec<ManagedZone<P>>,
    /// End frame of each zone but the last one, if there are few: each call searches them.
    zone_ends: [Frame; BRANCHLESS_ZONES - 1],
    /// By node.
    zonelists: Vec<Zonelist>,
    /// Whether a watermark must also stand, halved each time, in the blocks of each larger order: Linux up to
    /// 4.3.
    halves_watermarks: bool,
    /// By how much the watermarks of each zone are raised for now.
    watermark_boosts: Vec<u64>,
}

impl<P: Policy + Clone> Memory<P> {
    /// Free memory. Zones must not overlap, and nodes are numbered from 0.
    pub fn new(configs: Vec<ZoneConfig>, policy: &P, pcp_config: PcpConfig) -> Result<Memory<P>, Error> {
        let nodes = configs.iter().map(|config| config.node + 1).max().unwrap_or(0);
        let mut zones: Vec<ManagedZone<P>> = Vec::with_capacity(configs.len());
        for setup in configs {
            setup.geometry.validate()?;
            let Watermarks { min, low, high } = setup.watermarks;
            if min > low || low > high {
                let name = &setup.name;
                return invalid(format!("zone {name}: watermarks out of order: {min}, {low}, {high}"));
            }
            let is_disjoint = |other: &ZoneGeometry| {
                setup.geometry.end() <= other.first_frame || other.end() <= setup.geometry.first_frame
            };
            if let Some(part) = zones.iter().find(|part| !is_disjoint(&part.config.geometry)) {
                return invalid(format!("zones {} and {} overlap", part.config.name, setup.name));
            }
            let zone = Zone::with_features(setup.geometry, policy.clone(), &setup.features)?;
            zones.push(ManagedZone::new(setup, PcpZone::new(zone, pcp_config)?));
        }
        if zones.is_empty() {
            return invalid("memory without zones".to_owned());
        }
        zones.sort_by_key(|ManagedZone { config: setup, .. }| setup.geometry.first_frame);
        // The own node first, from its highest zone down; then the others as they come after it.
        let fallback_rank = |zone: usize, node: u16| {
            let setup = &zones[zone].config;
            ((setup.node + nodes - node) % nodes, std::cmp::Reverse(setup.zone_index))
        };
        let zonelist_of_node = |node: u16| {
            let mut all: Vec<usize> = (0..zones.len()).collect();
            all.sort_by_key(|&zone| fallback_rank(zone, node));
            Zonelist { first_zone: all[0], zones: all }
        };
        let zonelists = (0..nodes).map(zonelist_of_node).collect();
        let mut zone_ends = [Frame::MAX; BRANCHLESS_ZONES - 1];
        zone_ends.iter_mut().zip(&zones).for_each(|(end, part)| *end = part.config.geometry.end());
        let watermark_boosts = vec![0; zones.len()];
        Ok(Memory { managed_zones: zones, zone_ends, zonelists, halves_watermarks: false, watermark_boosts })
    }

    /// Whether requests should not mix migratetypes at first ([`Policy::is_defrag_mode`]).
    pub fn is_defrag_mode(&self) -> bool {
        self.managed_zones.first().is_some_and(|part| part.zone.zone().policy().is_defrag_mode())
    }

    /// The zones by address.
    pub fn zones(&self) -> impl Iterator<Item = (&ZoneConfig, &PcpZone<P>)> {
        self.managed_zones.iter().map(|ManagedZone { config: setup, zone, .. }| (setup, zone))
    }

    /// Checks watermarks as Linux did up to 4.3: for each order below the requested one, half of the
    /// watermark must also be free in larger blocks (`zone_watermark_ok` of 2.6.16).
    pub fn halve_watermarks(&mut self) {
        self.halves_watermarks = true;
        self.managed_zones.iter_mut().for_each(|part| part.update_ample_frames(true));
    }

    /// A zone, by its number in order of address.
    ///
    /// # Panics
    /// If there is no such zone: numbers come from [`Memory::zone_count`] or from a zonelist.
    pub fn zone(&self, zone_number: usize) -> (&ZoneConfig, &PcpZone<P>) {
        let ManagedZone { config, zone, .. } = &self.managed_zones[zone_number];
        (config, zone)
    }

    /// Number of zones.
    pub fn zone_count(&self) -> usize {
        self.managed_zones.len()
    }

    /// The zone at a place in the order in which a node asks them.
    pub fn zone_in_zonelist(&self, node: u16, position: usize) -> Option<usize> {
        self.zonelists.get(usize::from(node))?.zones.get(position).copied()
    }

    /// Numbers of the zones that serve a request with this highest zone index, as a node asks them.
    pub fn zonelist(&self, node: u16, zone_index: u8) -> impl Iterator<Item = usize> {
        let zones = self.zonelists.get(usize::from(node)).into_iter().flat_map(|list| &list.zones).copied();
        zones.filter(move |&zone| self.managed_zones[zone].config.zone_index <= zone_index)
    }

    pub(crate) fn zone_mut(&mut self, zone_number: usize) -> &mut Zone<P> {
        self.pcp_zone_mut(zone_number).zone_mut()
    }

    /// A zone with its pcp lists, for callers that need no check of watermarks.
    #[inline]
    pub(crate) fn pcp_zone_mut(&mut self, zone_number: usize) -> &mut PcpZone<P> {
        &mut self.managed_zones[zone_number].zone
    }

    /// The same by a frame of it.
    #[inline(always)]
    pub(crate) fn pcp_zone_of(&mut self, frame: Frame) -> Result<&mut PcpZone<P>, Error> {
        let at = self.zone_position(frame);
        self.managed_zones.get_mut(at).map(|part| &mut part.zone).ok_or(Error::OutsideZone(frame))
    }

    /// Drains all pcp lists (`drain_all_pages`).
    pub fn drain_pcp_lists(&mut self) {
        self.managed_zones.iter_mut().for_each(|ManagedZone { zone, .. }| zone.drain_all_lists());
    }

    /// Sets the watermark boost of a zone, in frames; it replaces the previous one (`watermark_boost` of
    /// Linux since 5.0). The minimum for requests of order 0 that cannot wait is not boosted.
    pub fn set_watermark_boost(&mut self, zone_number: usize, boost: u64) {
        let previous = std::mem::replace(&mut self.watermark_boosts[zone_number], boost);
        let managed_zone = &mut self.managed_zones[zone_number];
        let Watermarks { min, low, high } = &mut managed_zone.config.watermarks;
        [min, low, high].into_iter().for_each(|frames| *frames = *frames - previous + boost);
        managed_zone.update_ample_frames(self.halves_watermarks);
    }

    /// As [`Memory::is_watermark_ok`], of the free pages in whole pageblocks.
    pub fn is_pageblock_watermark_ok(
        &self,
        zone_number: usize,
        watermark: u64,
        order: u8,
        zone_index: u8,
    ) -> bool {
        let zone = self.managed_zones[zone_number].zone.zone();
        // Free frames outside whole pageblocks do not count: the watermark is raised by them.
        let outside_pageblocks = zone.free_frames() - zone.free_frames_in_pageblocks();
        self.is_watermark_ok(zone_number, watermark + u64::from(outside_pageblocks), order, zone_index)
    }

    /// Whether a watermark holds after an allocation by a request that may use zones up to `zone_index`, and
    /// a large enough block is free.
    pub fn is_watermark_ok(&self, zone_number: usize, watermark: u64, order: u8, zone_index: u8) -> bool {
        let ManagedZone { config, zone, .. } = &self.managed_zones[zone_number];
        let zone = zone.zone();
        let check = WatermarkCheck {
            watermark_frames: watermark,
            order,
            zone_index,
            unusable_reserves: zone.highatomic_frames() + zone.cma_free_frames(),
            halves_watermarks: self.halves_watermarks,
        };
        zone_watermark_ok(config, zone, check)
    }

    /// Allocates from the first zone of the zonelist that may serve the request: the zone number and the
    /// block.
    #[inline]
    pub fn allocate_block(&mut self, request: &Request) -> Result<Option<(usize, AllocatedBlock)>, Error> {
        match self.allocate_fast(request) {
            Some((at, frame)) => Ok(Some((at, AllocatedBlock { frame, fallback: None }))),
            None => self.allocate_slow(*request),
        }
    }

    /// Most requests: the first zone may serve it, and its own list has a block. `None`: it is for
    /// [`Memory::allocate_slow`] to say.
    #[inline(always)]
    pub(crate) fn allocate_fast(&mut self, request: &Request) -> Option<(usize, Frame)> {
        if request.watermark == Watermark::BelowMin {
            return None;
        }
        let at = self.zonelists.get(usize::from(request.node))?.first_zone;
        let part = self.managed_zones.get_mut(at)?;
        if part.config.zone_index > request.zone_index {
            return None;
        }
        if !part.has_ample_frames(request.order) {
            let context = AllocContext::of_request(request);
            if !can_allocate(&part.config, part.zone.zone(), context, 0, self.halves_watermarks) {
                return None;
            }
        }
        let zone = &mut part.zone;
        Some((at, zone.allocate_fast(request.cpu, request.order, request.alloc_type)?))
    }

    /// Asks all zones.
    #[cold]
    #[inline(never)]
    pub(crate) fn allocate_slow(
        &mut self,
        request: Request,
    ) -> Result<Option<(usize, AllocatedBlock)>, Error> {
        let zonelist = self.zonelists.get(usize::from(request.node));
        let zonelist = zonelist.ok_or_else(|| Error::InvalidConfig(format!("no node {}", request.node)))?;
        let context = AllocContext::of_request(&request);
        let is_atomic = request.watermark == Watermark::BelowMin;
        let flags = AllocFlags { can_fragment: request.can_fragment, is_atomic, ..AllocFlags::DEFAULT };
        for &zone_number in &zonelist.zones {
            let ManagedZone { config, zone, .. } = &mut self.managed_zones[zone_number];
            let ignored_boost =
                if is_atomic && request.order == 0 { self.watermark_boosts[zone_number] } else { 0 };
            if config.zone_index > request.zone_index
                || !can_allocate(config, zone.zone(), context, ignored_boost, self.halves_watermarks)
            {
                continue;
            }
            if let Some(allocated) =
                zone.allocate_with_flags(request.cpu, request.order, request.alloc_type, flags)?
            {
                return Ok(Some((zone_number, allocated)));
            }
        }
        Ok(None)
    }

    /// Frees a block.
    #[inline(always)]
    pub fn free_block(&mut self, cpu: u16, frame: Frame) -> Result<u8, Error> {
        let at = self.zone_position(frame);
        let ManagedZone { zone, .. } = self.managed_zones.get_mut(at).ok_or(Error::OutsideZone(frame))?;
        zone.free_block(cpu, frame)
    }

    /// The first zone that does not end below a frame.
    #[inline]
    pub(crate) fn zone_position(&self, frame: Frame) -> usize {
        match self.managed_zones.len() {
            ..=BRANCHLESS_ZONES => self.zone_ends.iter().map(|&end| usize::from(frame >= end)).sum(),
            _ => self.managed_zones.partition_point(|part| part.config.geometry.end() <= frame),
        }
    }

    /// The zone of a frame.
    #[inline]
    pub fn zone_containing(&self, frame: Frame) -> Option<&Zone<P>> {
        self.managed_zones.get(self.zone_position(frame)).map(|ManagedZone { zone, .. }| zone.zone())
    }

    /// Checks all metadata.
    pub fn validate(&self) -> Result<(), Error> {
        self.managed_zones.iter().try_for_each(|ManagedZone { zone, .. }| zone.validate())
    }
}

/// Whether the request's watermark holds in a zone, and a large enough block is free. `ignored_boost` is the
/// part of the boosted minimum that does not apply to the request.
#[inline(never)]
fn can_allocate<P: Policy>(
    config: &ZoneConfig,
    zone: &Zone<P>,
    context: AllocContext,
    ignored_boost: u64,
    halves_watermarks: bool,
) -> bool {
    let AllocContext { order, alloc_type, zone_index, watermark } = context;
    let watermark_frames = match watermark {
        Watermark::Low => config.watermarks.low,
        Watermark::Min => config.watermarks.min,
        Watermark::BelowMin => {
            (config.watermarks.min - ignored_boost) - (config.watermarks.min - ignored_boost) / 4
        }
        Watermark::NoWatermark => return true,
    };
    // Reserves that are not for this request (`__zone_watermark_unusable_free`).
    let unusable_reserves = match zone.has_reserves() {
        false => 0,
        true => {
            let highatomic = if watermark == Watermark::BelowMin { 0 } else { zone.highatomic_frames() };
            let cma = if alloc_type == AllocationType::Movable { 0 } else { zone.cma_free_frames() };
            highatomic + cma
        }
    };
    let check = WatermarkCheck { watermark_frames, order, zone_index, unusable_reserves, halves_watermarks };
    zone_watermark_ok(config, zone, check)
}

fn zone_watermark_ok<P: Policy>(config: &ZoneConfig, zone: &Zone<P>, check: WatermarkCheck) -> bool {
    let WatermarkCheck { watermark_frames, order, zone_index, unusable_reserves, halves_watermarks } = check;
    // Of the block itself all frames but the last count as used.
    let unusable = (1 << order) - 1 + u64::from(unusable_reserves);
    let usable_free = u64::from(zone.free_frames()).saturating_sub(unusable);
    if usable_free <= watermark_frames + config.lowmem_reserve_for(zone_index) {
        return false;
    }
    if !halves_watermarks {
        return order == 0 || zone.has_block(order);
    }
    let (mut free_above, mut required_frames) = (usable_free, watermark_frames);
    zone.free_blocks().iter().take(usize::from(order)).enumerate().all(|(size, &blocks)| {
        free_above = free_above.saturating_sub(u64::from(blocks) << size);
        required_frames /= 2;
        free_above > required_frames
    })
}

/// Initial state of a zone.
#[derive(Clone, Debug)]
pub struct ZoneInitialState {
    /// The allocation type that each of its pageblocks belongs to.
    pub owners: Vec<AllocationType>,
    /// All of its frames.
    pub frame_runs: Vec<InitialRun>,
    /// Configuration of its pcp lists.
    pub pcp_config: PcpConfig,
    /// Blocks on pcp lists; `frame_runs` has them as allocated. The block that is allocated first is in
    /// front.
    pub pcp_blocks: Vec<PcpBlock>,
}

/// A block on a per-CPU list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcpBlock {
    /// Its first frame.
    pub frame: Frame,
    /// Its order.
    pub order: u8,
    /// The processor.
    pub cpu: u16,
    /// The allocation type that it is kept for.
    pub alloc_type: AllocationType,
}

impl<P: Policy + Clone> Memory<P> {
    /// Memory in the state of `initial_states`, zone by zone.
    pub fn with_initial_state(
        configs: Vec<ZoneConfig>,
        policy: &P,
        initial_states: Vec<ZoneInitialState>,
    ) -> Result<Memory<P>, Error> {
        let keep = PcpConfig::with_batch(1, 1, 1);
        if configs.len() != initial_states.len() {
            return invalid(format!("{} initial states for {} zones", initial_states.len(), configs.len()));
        }
        let mut begins: Vec<(Frame, ZoneInitialState)> =
            configs.iter().map(|config| config.geometry.first_frame).zip(initial_states).collect();
        begins.sort_by_key(|(first, _)| *first);
        let mut memory = Memory::new(configs, policy, keep)?;
        let zones = std::mem::take(&mut memory.managed_zones);
        let initialize_zone = |(part, (_, begin)): (ManagedZone<P>, (Frame, ZoneInitialState))| {
            let mut zone = part.zone.into_zone();
            zone.set_initial_state(&begin.owners, begin.frame_runs)?;
            let mut zone = PcpZone::new(zone, begin.pcp_config)?;
            for PcpBlock { frame, order, cpu, alloc_type: kind } in begin.pcp_blocks {
                if !zone.add_initial_block(cpu, frame, order, kind) {
                    for frame in Frame::range(frame..frame + (1 << order)) {
                        zone.zone_mut().free_block(frame)?;
                    }
                }
            }
            zone.init_pcp_high();
            Ok(ManagedZone { zone, ..part })
        };
        memory.managed_zones =
            zones.into_iter().zip(begins).map(initialize_zone).collect::<Result<_, Error>>()?;
        Ok(memory)
    }

    /// Starts `kswapd` of a traced machine; [`Memory::update_reclaim`] reports its end.
    pub fn start_reclaim(&mut self) {
        self.managed_zones.iter_mut().for_each(|ManagedZone { zone, .. }| zone.set_reclaiming(true));
    }

    /// Whether `kswapd` is still reclaiming: in a zone it ends as soon as the free pages are above the high
    /// watermark.
    pub fn update_reclaim(&mut self) -> bool {
        let mut is_reclaiming = false;
        for ManagedZone { config: setup, zone, .. } in &mut self.managed_zones {
            let is_below_high = u64::from(zone.zone().free_frames()) < setup.watermarks.high;
            zone.set_reclaiming(is_below_high);
            is_reclaiming |= is_below_high;
        }
        is_reclaiming
    }

    /// A second has passed: processors may free pages that they have kept for a long time. Whether another
    /// second would do anything.
    pub fn decay_pcp_lists(&mut self) -> bool {
        self.managed_zones.iter_mut().fold(false, |goes_on, part| part.zone.decay_lists() | goes_on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::GroupByMobility;

    const KEEP: PcpConfig = PcpConfig::with_batch(1, 1, 1);

    fn setup(name: &str, node: u16, zone_index: u8, first: u32, min: u64, reserves: &[u64]) -> ZoneConfig {
        ZoneConfig {
            name: name.to_owned(),
            node,
            zone_index,
            geometry: ZoneGeometry {
                first_frame: Frame::new(first),
                frames: 256,
                max_order: 6,
                pageblock_order: 4,
            },
            watermarks: Watermarks { min, low: min + 8, high: min + 16 },
            lowmem_reserve: reserves.to_vec(),
            features: ZoneFeatures::default(),
        }
    }

    fn two_nodes() -> Memory<GroupByMobility> {
        let setups = vec![
            setup("Movable", 1, 1, 1024, 4, &[]),
            setup("Normal", 0, 0, 0, 8, &[0, 40]),
            setup("Movable", 0, 1, 256, 4, &[]),
            setup("Normal", 1, 0, 512, 8, &[0, 40]),
        ];
        Memory::new(setups, &GroupByMobility, KEEP).unwrap()
    }

    fn request(kind: AllocationType, zone_index: u8, node: u16, watermark: Watermark) -> Request {
        Request { order: 0, alloc_type: kind, zone_index, node, cpu: 0, watermark, can_fragment: true }
    }

    /// The shortcut agrees with the full check of the watermarks, also after they were raised.
    #[test]
    fn a_zone_with_plenty_is_one_that_may_give() {
        let mut memory = two_nodes();
        let (mut at_a_glance, mut by_a_look) = (0, 0);
        for step in 0..3 {
            memory.set_watermark_boost(1, step * 20);
            while memory.managed_zones[1]
                .zone
                .zone_mut()
                .allocate_block(0, AllocationType::Movable)
                .unwrap()
                .is_some()
            {
                for (order, zone_index) in [(0, 0), (0, 1), (3, 1), (6, 1)] {
                    let part = &memory.managed_zones[1];
                    let context = AllocContext {
                        order,
                        alloc_type: AllocationType::Movable,
                        zone_index,
                        watermark: Watermark::Low,
                    };
                    let may_give = can_allocate(&part.config, part.zone.zone(), context, 0, false);
                    assert!(may_give || !part.has_ample_frames(order), "order {order}, step {step}");
                    at_a_glance += u32::from(part.has_ample_frames(order));
                    by_a_look += u32::from(may_give);
                }
            }
            let geometry = memory.managed_zones[1].config.geometry;
            for frame in Frame::range(geometry.first_frame..geometry.end()) {
                memory.managed_zones[1].zone.zone_mut().free_block(frame).unwrap();
            }
        }
        assert!(at_a_glance > 400 && by_a_look > at_a_glance, "{at_a_glance} and {by_a_look}");
        memory.halve_watermarks();
        assert!(!memory.managed_zones[1].has_ample_frames(0));
    }

    /// Frames that each zone gives, by address, until all fail.
    fn drained(memory: &mut Memory<GroupByMobility>, request: &Request) -> (Vec<usize>, Vec<u32>) {
        let (mut order, mut given) = (Vec::new(), vec![0; 4]);
        while let Some((zone, _)) = memory.allocate_block(request).unwrap() {
            if order.last() != Some(&zone) {
                order.push(zone);
            }
            given[zone] += 1;
        }
        memory.validate().unwrap();
        (order, given)
    }

    #[test]
    fn zones_are_asked_from_the_highest_down_and_the_own_node_first() {
        let mut memory = two_nodes();
        let all = request(AllocationType::Movable, 1, 0, Watermark::Low);
        let (order, given) = drained(&mut memory, &all);
        assert_eq!(order, [1, 0, 3, 2]);
        // Watermarks of 12 and of 16, and 40 kept from those who may go higher.
        assert_eq!(given, [256 - 16 - 40, 256 - 12, 256 - 16 - 40, 256 - 12]);
        // The kernel itself is kept from nothing.
        assert_eq!(
            drained(&mut memory, &request(AllocationType::Unmovable, 0, 1, Watermark::Low)),
            (vec![2, 0], vec![40, 0, 40, 0])
        );
        let (_, given) = drained(&mut memory, &request(AllocationType::Unmovable, 0, 1, Watermark::Min));
        assert_eq!(given, [8, 0, 8, 0]);
        let (_, given) = drained(&mut memory, &request(AllocationType::Unmovable, 0, 1, Watermark::BelowMin));
        assert_eq!(given, [2, 0, 2, 0]);
        let (_, given) =
            drained(&mut memory, &request(AllocationType::Unmovable, 1, 0, Watermark::NoWatermark));
        assert_eq!(given, [6, 12, 6, 12]);
    }

    #[test]
    fn a_large_block_needs_a_whole_one_and_the_watermark_above_it() {
        let mut memory = two_nodes();
        let mut large = request(AllocationType::Unmovable, 0, 0, Watermark::Low);
        large.order = 6;
        let (_, given) = drained(&mut memory, &large);
        assert_eq!(given, [3, 0, 3, 0], "the fourth block of 64 would reach below the watermark");
        let frame = memory
            .allocate_block(&request(AllocationType::Unmovable, 0, 0, Watermark::Low))
            .unwrap()
            .unwrap()
            .1
            .frame;
        assert_eq!(memory.free_block(0, frame), Ok(0));
        assert!(
            memory.free_block(0, Frame::new(1 << 20)).is_err()
                && memory.free_block(0, Frame::new(800)).is_err()
        );
    }

    #[test]
    fn reserves_do_not_count_for_those_who_may_not_use_them() {
        let mut normal = setup("Normal", 0, 0, 0, 8, &[]);
        let cma = std::iter::once(Frame::new(0)..Frame::new(64)).collect();
        normal.features = ZoneFeatures { has_highatomic: true, cma_areas: cma, ..ZoneFeatures::default() };
        let mut memory = Memory::new(vec![normal], &GroupByMobility, KEEP).unwrap();
        let mut atomic = request(AllocationType::Unmovable, 0, 0, Watermark::BelowMin);
        atomic.order = 1;
        assert!(memory.allocate_block(&atomic).unwrap().is_some());
        // Of 256 frames 2 are taken and 2 kept by the processor, 64 are CMA's, and 16 set aside. All of these
        // count as used, and the watermark of 16 stays.
        let count = |memory: &mut Memory<GroupByMobility>, kind: AllocationType| {
            std::iter::from_fn(|| memory.allocate_block(&request(kind, 0, 0, Watermark::Low)).unwrap())
                .count()
        };
        assert_eq!(count(&mut memory, AllocationType::Unmovable), 256 - 4 - 64 - 16 - 16);
        assert_eq!(count(&mut memory, AllocationType::Movable), 64);
        assert!(memory.allocate_block(&atomic).unwrap().is_some(), "its reserve is left");
        memory.validate().unwrap();
    }

    #[test]
    fn contradicting_zones_are_refused() {
        let two = |first: u32| {
            Memory::new(
                vec![setup("a", 0, 0, 0, 1, &[]), setup("b", 0, 1, first, 1, &[])],
                &GroupByMobility,
                KEEP,
            )
        };
        assert!(two(256).is_ok());
        assert!(two(240).unwrap_err().to_string().contains("zones a and b overlap"));
        let mut turned = setup("c", 0, 0, 0, 1, &[]);
        turned.watermarks = Watermarks { min: 5, low: 4, high: 9 };
        assert!(
            Memory::new(vec![turned], &GroupByMobility, KEEP)
                .unwrap_err()
                .to_string()
                .contains("out of order")
        );
        assert!(Memory::new(Vec::new(), &GroupByMobility, KEEP).is_err());
    }
}
