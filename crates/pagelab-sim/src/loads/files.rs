//! Files: their pages in the page cache, and what the kernel keeps beside them.

use super::slab::{Object, Slab};
use super::world::World;
use crate::machine::{Class, Held};
use crate::words::Wrong;

/// The caches of a file system.
#[derive(Clone, Debug)]
pub(super) struct Caches {
    inodes: Slab,
    names: Slab,
    /// Nodes of the trees that find the pages of a file.
    nodes: Slab,
    /// Heads of the buffers that pages were written through.
    heads: Slab,
}

impl Caches {
    /// Objects on a page: ext3 inodes of 540 bytes, names of 140, tree nodes of 276, buffer heads of 52
    /// (/proc/slabinfo of i386, Linux 2.6.16); of 64 bits 832, 240, 536 and 88 (that of x86-64).
    pub(super) fn new(is_64: bool) -> Caches {
        let [inodes, names, nodes, heads] = if is_64 { [4, 16, 7, 45] } else { [7, 28, 14, 77] };
        Caches {
            inodes: Slab::new(Class::Cache, inodes),
            names: Slab::new(Class::Cache, names),
            nodes: Slab::new(Class::Kernel, nodes),
            heads: Slab::new(Class::Kernel, heads),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Page {
    held: Held,
    /// The buffer head of a page that was written.
    head: Option<Object>,
}

/// A file.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    inode: Option<Object>,
    name: Option<Object>,
    node: Option<Object>,
    pages: Vec<Page>,
    /// Where the next look for reclaimed pages begins.
    swept: usize,
}

impl File {
    pub(super) fn pages(&self) -> u32 {
        self.pages.len() as u32
    }
}

/// Pages of one node of a file's tree (`RADIX_TREE_MAP_SIZE`).
const PER_NODE: usize = 64;

impl World<'_> {
    /// Looks a file up: its name and inode are read if they are not there.
    pub(super) fn look_up(&mut self, file: &mut File) -> Result<(), Wrong> {
        let is_there = match file.inode {
            Some(inode) => self.caches.inodes.touch(&mut self.machine, inode)?,
            None => false,
        };
        if !is_there {
            if let Some(inode) = file.inode.take() {
                self.caches.inodes.give(&mut self.machine, inode)?;
            }
            file.inode = self.caches.inodes.take(&mut self.machine, self.cpu)?;
        }
        if file.name.is_none() {
            file.name = self.caches.names.take(&mut self.machine, self.cpu)?;
        }
        // Blocks of directories and of inode tables: 32 inodes or 64 names on each.
        self.metadata += 1;
        if self.metadata.is_multiple_of(24) {
            let ask = self.page(Class::Buffer);
            if let Some(held) = self.machine.ask(&ask)? {
                self.blocks.push(held);
            }
        }
        Ok(())
    }

    /// Adds pages at the end of a file, written or read.
    pub(super) fn extend(&mut self, file: &mut File, pages: u32, is_written: bool) -> Result<(), Wrong> {
        for _ in 0..pages {
            let ask = self.page(Class::File);
            let Some(held) = self.machine.ask(&ask)? else {
                self.short += 1;
                continue;
            };
            if file.pages.len().is_multiple_of(PER_NODE) && file.node.is_none() {
                file.node = self.caches.nodes.take(&mut self.machine, self.cpu)?;
            }
            if is_written {
                self.machine.write(held)?;
            }
            let head = match is_written {
                true => self.caches.heads.take(&mut self.machine, self.cpu)?,
                false => None,
            };
            file.pages.push(Page { held, head });
        }
        Ok(())
    }

    /// Reads pages of a file; those that were reclaimed come from the disk again.
    pub(super) fn read(&mut self, file: &File, from: u32, pages: u32) -> Result<(), Wrong> {
        for page in file.pages.iter().skip(from as usize).take(pages as usize) {
            if !self.machine.touch(page.held)? && !self.machine.bring_back(page.held, self.cpu)? {
                self.short += 1;
            }
        }
        Ok(())
    }

    /// Gives back what belongs to pages of a file that were reclaimed; whether none of its pages is left.
    pub(super) fn sweep(&mut self, file: &mut File) -> Result<bool, Wrong> {
        let mut is_empty = true;
        for page in &mut file.pages {
            if self.machine.frame(page.held)?.is_some() {
                is_empty = false;
            } else if let Some(head) = page.head.take() {
                self.caches.heads.give(&mut self.machine, head)?;
            }
        }
        if is_empty && let Some(node) = file.node.take() {
            self.caches.nodes.give(&mut self.machine, node)?;
        }
        Ok(is_empty)
    }

    /// The same with the next pages of a large file, in turn.
    pub(super) fn sweep_part(&mut self, file: &mut File, pages: u32) -> Result<(), Wrong> {
        for _ in 0..pages.min(file.pages()) {
            file.swept = (file.swept + 1) % file.pages.len();
            let page = &mut file.pages[file.swept];
            if let Some(head) = page.head
                && self.machine.frame(page.held)?.is_none()
            {
                page.head = None;
                self.caches.heads.give(&mut self.machine, head)?;
            }
        }
        Ok(())
    }

    /// Deletes a file.
    pub(super) fn delete(&mut self, file: File) -> Result<(), Wrong> {
        for page in file.pages {
            if let Some(head) = page.head {
                self.caches.heads.give(&mut self.machine, head)?;
            }
            self.machine.release(page.held)?;
        }
        if let Some(node) = file.node {
            self.caches.nodes.give(&mut self.machine, node)?;
        }
        if let Some(inode) = file.inode {
            self.caches.inodes.give(&mut self.machine, inode)?;
        }
        if let Some(name) = file.name {
            self.caches.names.give(&mut self.machine, name)?;
        }
        Ok(())
    }
}
