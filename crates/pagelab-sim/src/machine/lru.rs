//! LRU lists: two for each zone, the newest in front. Links are kept by handle.

#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    prev: u32,
}

/// Numbers from here on are the heads of lists.
const HEADS: u32 = 1 << 31;

/// The lists.
#[derive(Clone, Debug)]
pub struct Lru {
    links: Vec<Link>,
    heads: Vec<Link>,
    counts: Vec<u32>,
}

impl Lru {
    /// Empty lists of so many zones.
    pub fn new(zones: usize) -> Lru {
        let heads = (0..2 * zones as u32).map(|list| Link { next: HEADS + list, prev: HEADS + list });
        Lru { links: Vec::new(), heads: heads.collect(), counts: vec![0; 2 * zones] }
    }

    /// Makes room for so many handles.
    pub fn grow(&mut self, handles: usize) {
        self.links.resize(handles, Link { next: 0, prev: 0 });
    }

    fn link(&mut self, at: u32) -> &mut Link {
        if at >= HEADS { &mut self.heads[(at - HEADS) as usize] } else { &mut self.links[at as usize] }
    }

    fn list(zone: usize, is_active: bool) -> usize {
        2 * zone + usize::from(is_active)
    }

    /// Puts a handle in front of a list.
    pub fn add(&mut self, zone: usize, is_active: bool, handle: u32) {
        let list = Lru::list(zone, is_active);
        let head = HEADS + list as u32;
        let next = self.heads[list].next;
        self.links[handle as usize] = Link { next, prev: head };
        self.heads[list].next = handle;
        self.link(next).prev = handle;
        self.counts[list] += 1;
    }

    /// Takes a handle off its list.
    pub fn remove(&mut self, zone: usize, is_active: bool, handle: u32) {
        let Link { next, prev } = self.links[handle as usize];
        self.link(next).prev = prev;
        self.link(prev).next = next;
        self.counts[Lru::list(zone, is_active)] -= 1;
    }

    /// The oldest handle of a list.
    pub fn last(&self, zone: usize, is_active: bool) -> Option<u32> {
        let last = self.heads[Lru::list(zone, is_active)].prev;
        (last < HEADS).then_some(last)
    }

    /// How many are on a list.
    pub fn count(&self, zone: usize, is_active: bool) -> u32 {
        self.counts[Lru::list(zone, is_active)]
    }
}
