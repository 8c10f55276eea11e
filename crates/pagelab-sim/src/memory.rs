//! Memory of several zones and nodes: who is asked first, and who keeps what for whom
//! (`get_page_from_freelist`, `__zone_watermark_ok`).

use crate::marks::Marks;
use crate::percpu::{Keep, PerCpu};
use crate::policy::Policy;
use crate::words::{Frame, Kind, Shape, Wrong};
use crate::zone::{Taken, Zone};

/// A zone of a memory.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What it is called.
    pub name: String,
    /// Its node.
    pub node: u16,
    /// Its place among the zones of its node: requests say up to which they may go.
    pub height: u8,
    /// Its frames.
    pub shape: Shape,
    /// Its watermarks.
    pub marks: Marks,
    /// What it keeps from a request that may go up to each height.
    pub reserves: Vec<u64>,
}

/// Which mark must stand after an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// To the low mark: the fast path.
    ToLow,
    /// To the minimum: after background reclaim was woken.
    ToMin,
    /// To a quarter below the minimum: the caller cannot wait (`ALLOC_HARDER`).
    BelowMin,
    /// To nothing: the caller frees memory itself.
    ToNothing,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The block's order.
    pub order: u8,
    /// What it is for.
    pub kind: Kind,
    /// The highest zone that it may lie in.
    pub height: u8,
    /// The node that it comes from.
    pub node: u16,
    /// The processor that asks.
    pub cpu: u16,
    /// How far down it may go.
    pub down: Down,
}

/// All zones.
#[derive(Clone, Debug)]
pub struct Memory<P> {
    zones: Vec<(Setup, PerCpu<P>)>,
    /// For each node the zones in the order in which they are asked.
    lists: Vec<Vec<usize>>,
}

impl<P: Policy + Clone> Memory<P> {
    /// Free memory. Zones must not overlap, and nodes are numbered from 0.
    pub fn new(setups: Vec<Setup>, policy: &P, keep: Keep) -> Result<Memory<P>, Wrong> {
        let wrong = |what: String| Err(Wrong::Shape(what));
        let nodes = setups.iter().map(|setup| setup.node + 1).max().unwrap_or(0);
        let mut zones: Vec<(Setup, PerCpu<P>)> = Vec::with_capacity(setups.len());
        for setup in setups {
            setup.shape.check()?;
            let Marks { min, low, high } = setup.marks;
            if min > low || low > high {
                return wrong(format!("zone {} with marks out of order: {min}, {low}, {high}", setup.name));
            }
            let is_beside =
                |other: &Shape| setup.shape.end() <= other.first || other.end() <= setup.shape.first;
            if let Some((other, _)) = zones.iter().find(|(other, _)| !is_beside(&other.shape)) {
                return wrong(format!("zones {} and {} overlap", other.name, setup.name));
            }
            let zone = Zone::new(setup.shape, policy.clone())?;
            zones.push((setup, PerCpu::new(zone, keep)?));
        }
        if zones.is_empty() {
            return wrong("a memory without a zone".to_owned());
        }
        zones.sort_by_key(|(setup, _)| setup.shape.first);
        // The own node first, from its highest zone down; then the others as they come after it.
        let rank = |zone: usize, node: u16| {
            let setup = &zones[zone].0;
            ((setup.node + nodes - node) % nodes, std::cmp::Reverse(setup.height))
        };
        let order = |node: u16| {
            let mut order: Vec<usize> = (0..zones.len()).collect();
            order.sort_by_key(|&zone| rank(zone, node));
            order
        };
        let lists = (0..nodes).map(order).collect();
        Ok(Memory { zones, lists })
    }

    /// The zones by address.
    pub fn zones(&self) -> impl Iterator<Item = (&Setup, &PerCpu<P>)> {
        self.zones.iter().map(|(setup, zone)| (setup, zone))
    }

    /// Allocates from the first zone that may give: which one, and the block.
    pub fn take(&mut self, request: &Request) -> Result<Option<(usize, Taken)>, Wrong> {
        let list = self.lists.get(usize::from(request.node));
        let list = list.ok_or_else(|| Wrong::Shape(format!("there is no node {}", request.node)))?;
        for &at in list {
            let (setup, zone) = &mut self.zones[at];
            if setup.height > request.height || !may_give(setup, zone.zone(), request) {
                continue;
            }
            if let Some(taken) = zone.take(request.cpu, request.order, request.kind)? {
                return Ok(Some((at, taken)));
            }
        }
        Ok(None)
    }

    /// Frees a block.
    pub fn free(&mut self, cpu: u16, frame: Frame) -> Result<u8, Wrong> {
        let at = self.zones.partition_point(|(setup, _)| setup.shape.end() <= frame);
        let (_, zone) = self.zones.get_mut(at).ok_or(Wrong::Outside(frame))?;
        zone.free(cpu, frame)
    }

    /// Checks all books.
    pub fn validate(&self) -> Result<(), Wrong> {
        self.zones.iter().try_for_each(|(_, zone)| zone.validate())
    }
}

/// Whether a zone stays above its mark, and has a block that is large enough.
fn may_give<P: Policy>(setup: &Setup, zone: &Zone<P>, request: &Request) -> bool {
    let mark = match request.down {
        Down::ToLow => setup.marks.low,
        Down::ToMin => setup.marks.min,
        Down::BelowMin => setup.marks.min - setup.marks.min / 4,
        Down::ToNothing => return true,
    };
    // Of the block itself all frames but the last count as gone.
    let left = u64::from(zone.free_frames()).saturating_sub((1 << request.order) - 1);
    let kept = setup.reserves.get(usize::from(request.height)).copied().unwrap_or(0);
    left > mark + kept
        && (request.order == 0
            || zone.free_blocks().iter().skip(usize::from(request.order)).any(|&blocks| blocks > 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Mobility;

    const KEEP: Keep = Keep { cpus: 1, batch: 1, high: 1 };

    fn setup(name: &str, node: u16, height: u8, first: Frame, min: u64, reserves: &[u64]) -> Setup {
        Setup {
            name: name.to_owned(),
            node,
            height,
            shape: Shape { first, frames: 256, max_order: 6, block_order: 4 },
            marks: Marks { min, low: min + 8, high: min + 16 },
            reserves: reserves.to_vec(),
        }
    }

    fn two_nodes() -> Memory<Mobility> {
        let setups = vec![
            setup("Movable", 1, 1, 1024, 4, &[]),
            setup("Normal", 0, 0, 0, 8, &[0, 40]),
            setup("Movable", 0, 1, 256, 4, &[]),
            setup("Normal", 1, 0, 512, 8, &[0, 40]),
        ];
        Memory::new(setups, &Mobility, KEEP).unwrap()
    }

    fn request(kind: Kind, height: u8, node: u16, down: Down) -> Request {
        Request { order: 0, kind, height, node, cpu: 0, down }
    }

    /// How many frames each zone gives, by address, until none gives any more.
    fn drained(memory: &mut Memory<Mobility>, request: &Request) -> (Vec<usize>, Vec<u32>) {
        let (mut order, mut given) = (Vec::new(), vec![0; 4]);
        while let Some((zone, _)) = memory.take(request).unwrap() {
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
        let all = request(Kind::Movable, 1, 0, Down::ToLow);
        let (order, given) = drained(&mut memory, &all);
        assert_eq!(order, [1, 0, 3, 2]);
        // Marks of 12 and of 16, and 40 kept from those who may go higher.
        assert_eq!(given, [256 - 16 - 40, 256 - 12, 256 - 16 - 40, 256 - 12]);
        // The kernel itself is kept from nothing.
        assert_eq!(
            drained(&mut memory, &request(Kind::Unmovable, 0, 1, Down::ToLow)),
            (vec![2, 0], vec![40, 0, 40, 0])
        );
        let (_, given) = drained(&mut memory, &request(Kind::Unmovable, 0, 1, Down::ToMin));
        assert_eq!(given, [8, 0, 8, 0]);
        let (_, given) = drained(&mut memory, &request(Kind::Unmovable, 0, 1, Down::BelowMin));
        assert_eq!(given, [2, 0, 2, 0]);
        let (_, given) = drained(&mut memory, &request(Kind::Unmovable, 1, 0, Down::ToNothing));
        assert_eq!(given, [6, 12, 6, 12]);
    }

    #[test]
    fn a_large_block_needs_one_that_is_whole_and_the_mark_above_it() {
        let mut memory = two_nodes();
        let mut large = request(Kind::Unmovable, 0, 0, Down::ToLow);
        large.order = 6;
        let (_, given) = drained(&mut memory, &large);
        assert_eq!(given, [3, 0, 3, 0], "the fourth block of 64 would reach below the mark");
        let frame = memory.take(&request(Kind::Unmovable, 0, 0, Down::ToLow)).unwrap().unwrap().1.frame;
        assert_eq!(memory.free(0, frame), Ok(0));
        assert!(memory.free(0, 1 << 20).is_err() && memory.free(0, 800).is_err());
    }

    #[test]
    fn contradicting_zones_are_refused() {
        let two = |first: Frame| {
            Memory::new(vec![setup("a", 0, 0, 0, 1, &[]), setup("b", 0, 1, first, 1, &[])], &Mobility, KEEP)
        };
        assert!(two(256).is_ok());
        assert!(two(240).unwrap_err().to_string().contains("zones a and b overlap"));
        let mut turned = setup("c", 0, 0, 0, 1, &[]);
        turned.marks = Marks { min: 5, low: 4, high: 9 };
        assert!(Memory::new(vec![turned], &Mobility, KEEP).unwrap_err().to_string().contains("out of order"));
        assert!(Memory::new(Vec::new(), &Mobility, KEEP).is_err());
    }
}
