//! LRU lists, the newest in front. Links are kept by handle; lists count pages.
//!
//! An area is what has lists of its own: a zone in 2.6.16, a node in 6.1.

#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    prev: u32,
}

/// Numbers from here on are the heads of lists.
const HEADS: u32 = 1 << 31;

/// What lies on a list (`enum lru_list`; the last one stands for the lists of the shrinkers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sort {
    /// Pages of programs; in 2.6.16 those of files too.
    Anonymous,
    /// Pages of files.
    File,
    /// Pages of the kernel's caches.
    Cache,
}

/// A list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// Its area.
    pub area: usize,
    /// What lies on it.
    pub sort: Sort,
    /// Whether it is the active one of its sort.
    pub is_active: bool,
}

impl List {
    /// The other list of its sort.
    pub fn turned(self) -> List {
        List { is_active: !self.is_active, ..self }
    }

    fn number(self) -> usize {
        6 * self.area + 2 * self.sort as usize + usize::from(self.is_active)
    }
}

/// The lists.
#[derive(Clone, Debug)]
pub struct Lru {
    links: Vec<Link>,
    heads: Vec<Link>,
    pages: Vec<u32>,
}

impl Lru {
    /// Empty lists of so many areas.
    pub fn new(areas: usize) -> Lru {
        let heads = (0..6 * areas as u32).map(|list| Link { next: HEADS + list, prev: HEADS + list });
        Lru { links: Vec::new(), heads: heads.collect(), pages: vec![0; 6 * areas] }
    }

    /// Makes room for so many handles.
    pub fn grow(&mut self, handles: usize) {
        self.links.resize(handles, Link { next: 0, prev: 0 });
    }

    fn link(&mut self, at: u32) -> &mut Link {
        if at >= HEADS { &mut self.heads[(at - HEADS) as usize] } else { &mut self.links[at as usize] }
    }

    /// Puts a handle of so many pages in front of a list.
    pub fn add(&mut self, list: List, handle: u32, pages: u32) {
        let list = list.number();
        let head = HEADS + list as u32;
        let next = self.heads[list].next;
        self.links[handle as usize] = Link { next, prev: head };
        self.heads[list].next = handle;
        self.link(next).prev = handle;
        self.pages[list] += pages;
    }

    /// Puts a handle of so many pages at the end of a list.
    pub fn add_oldest(&mut self, list: List, handle: u32, pages: u32) {
        let list = list.number();
        let head = HEADS + list as u32;
        let prev = self.heads[list].prev;
        self.links[handle as usize] = Link { next: head, prev };
        self.heads[list].prev = handle;
        self.link(prev).next = handle;
        self.pages[list] += pages;
    }

    /// Takes a handle off its list.
    pub fn remove(&mut self, list: List, handle: u32, pages: u32) {
        let Link { next, prev } = self.links[handle as usize];
        self.link(next).prev = prev;
        self.link(prev).next = next;
        self.pages[list.number()] -= pages;
    }

    /// The oldest handle of a list.
    pub fn last(&self, list: List) -> Option<u32> {
        let last = self.heads[list.number()].prev;
        (last < HEADS).then_some(last)
    }

    /// How many pages are on a list.
    pub fn pages(&self, list: List) -> u32 {
        self.pages[list.number()]
    }

    /// The handles of a list, the newest first.
    pub fn handles(&self, list: List) -> impl Iterator<Item = u32> + '_ {
        let mut at = self.heads[list.number()].next;
        std::iter::from_fn(move || {
            let handle = (at < HEADS).then_some(at)?;
            at = self.links[handle as usize].next;
            Some(handle)
        })
    }
}
