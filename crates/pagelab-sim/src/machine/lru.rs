//! LRU lists, newest first. Links are kept by handle; lists count pages.
//!
//! An area is a part of memory with its own lists: a zone in 2.6.16, a node in 6.1.

#[derive(Clone, Copy, Debug)]
struct LruNode {
    next: u32,
    prev: u32,
}

/// Numbers from here on are the heads of lists.
const HEAD_BASE: u32 = 1 << 31;

/// LRU list (`enum lru_list`; the last one represents the shrinkers' lists).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LruKind {
    /// Anonymous pages; in 2.6.16 pages of files too.
    Anonymous,
    /// Pages of files.
    File,
    /// Pages of the kernel's caches.
    Slab,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LruList {
    /// Its area.
    pub lruvec: usize,
    /// Its pages.
    pub kind: LruKind,
    /// Whether it is the active one of its sort.
    pub is_active: bool,
}

impl LruList {
    /// All lists of an area.
    pub fn all_of_area(lruvec: usize) -> impl Iterator<Item = LruList> {
        let kinds = [LruKind::Anonymous, LruKind::File, LruKind::Slab].into_iter();
        kinds.flat_map(move |kind| [false, true].map(|is_active| LruList { lruvec, kind, is_active }))
    }

    /// The other list of its sort.
    pub fn counterpart(self) -> LruList {
        LruList { is_active: !self.is_active, ..self }
    }

    fn index(self) -> usize {
        6 * self.lruvec + 2 * self.kind as usize + usize::from(self.is_active)
    }
}

#[derive(Clone, Debug)]
pub struct LruLists {
    nodes: Vec<LruNode>,
    heads: Vec<LruNode>,
    page_counts: Vec<u32>,
}

impl LruLists {
    /// Empty lists of a number of areas.
    pub fn new(lruvecs: usize) -> LruLists {
        let heads =
            (0..6 * lruvecs as u32).map(|list| LruNode { next: HEAD_BASE + list, prev: HEAD_BASE + list });
        LruLists { nodes: Vec::new(), heads: heads.collect(), page_counts: vec![0; 6 * lruvecs] }
    }

    /// Grows the links to a number of handles.
    pub fn grow_to(&mut self, handles: usize) {
        self.nodes.resize(handles, LruNode { next: 0, prev: 0 });
    }

    fn node_mut(&mut self, index: u32) -> &mut LruNode {
        if index >= HEAD_BASE {
            &mut self.heads[(index - HEAD_BASE) as usize]
        } else {
            &mut self.nodes[index as usize]
        }
    }

    /// Adds a handle with a number of pages at the head of a list.
    pub fn add_newest(&mut self, list: LruList, handle: u32, pages: u32) {
        let head = HEAD_BASE + list.index() as u32;
        self.insert(list, handle, pages, LruNode { next: self.heads[list.index()].next, prev: head });
    }

    /// Adds a handle with a number of pages at the tail of a list.
    pub fn add_oldest(&mut self, list: LruList, handle: u32, pages: u32) {
        let head = HEAD_BASE + list.index() as u32;
        self.insert(list, handle, pages, LruNode { next: head, prev: self.heads[list.index()].prev });
    }

    fn insert(&mut self, list: LruList, handle: u32, pages: u32, node: LruNode) {
        self.nodes[handle as usize] = node;
        self.node_mut(node.prev).next = handle;
        self.node_mut(node.next).prev = handle;
        self.page_counts[list.index()] += pages;
    }

    /// Removes a handle from its list.
    pub fn remove_handle(&mut self, list: LruList, handle: u32, pages: u32) {
        let LruNode { next, prev } = self.nodes[handle as usize];
        self.node_mut(next).prev = prev;
        self.node_mut(prev).next = next;
        self.page_counts[list.index()] -= pages;
    }

    /// The oldest handle of a list.
    pub fn oldest(&self, list: LruList) -> Option<u32> {
        let last = self.heads[list.index()].prev;
        (last < HEAD_BASE).then_some(last)
    }

    /// Number of pages on a list.
    pub fn page_count(&self, list: LruList) -> u32 {
        self.page_counts[list.index()]
    }

    /// The handles of a list, the newest first.
    pub fn handles(&self, list: LruList) -> impl Iterator<Item = u32> + '_ {
        let mut next = self.heads[list.index()].next;
        std::iter::from_fn(move || {
            let handle = (next < HEAD_BASE).then_some(next)?;
            next = self.nodes[handle as usize].next;
            Some(handle)
        })
    }
}
