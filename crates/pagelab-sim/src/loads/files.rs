//! Files: their pages in the page cache, and the kernel's metadata of them.

use super::load_context::LoadContext;
use super::slab::{SlabCache, SlabObject};
use crate::machine::{BlockHandle, PageUse};
use crate::types::Error;

/// The caches of a file system.
#[derive(Clone, Debug)]
pub(super) struct FsCaches {
    inodes: SlabCache,
    dentries: SlabCache,
    /// Nodes of the radix trees of the page cache.
    radix_tree_nodes: SlabCache,
    /// Buffer heads of written pages.
    buffer_heads: SlabCache,
}

impl FsCaches {
    /// Objects per page: ext3 inodes of 540 bytes, names of 140, tree nodes of 276, buffer heads of 52
    /// (/proc/slabinfo of i386, Linux 2.6.16); on 64 bits 832, 240, 536 and 88 (x86-64).
    pub(super) fn new(is_64: bool) -> FsCaches {
        let [inodes, names, nodes, heads] = if is_64 { [4, 16, 7, 45] } else { [7, 28, 14, 77] };
        FsCaches {
            inodes: SlabCache::new(PageUse::Slab, inodes),
            dentries: SlabCache::new(PageUse::Slab, names),
            radix_tree_nodes: SlabCache::new(PageUse::Kernel, nodes),
            buffer_heads: SlabCache::new(PageUse::Kernel, heads),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct CachedPage {
    block: BlockHandle,
    /// Buffer head of a written page.
    buffer_head: Option<SlabObject>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct CachedFile {
    inode: Option<SlabObject>,
    dentry: Option<SlabObject>,
    radix_tree_node: Option<SlabObject>,
    pages: Vec<CachedPage>,
    /// Index of the next page to check for reclaim.
    sweep_position: usize,
}

impl CachedFile {
    pub(super) fn pages(&self) -> u32 {
        self.pages.len() as u32
    }
}

/// Pages of one node of a file's tree (`RADIX_TREE_MAP_SIZE`).
const RADIX_TREE_MAP_SIZE: usize = 64;

impl LoadContext<'_> {
    /// Looks up a file; its name and inode are read if they are not cached.
    pub(super) fn look_up_file(&mut self, file: &mut CachedFile) -> Result<(), Error> {
        let is_resident = match file.inode {
            Some(inode) => self.caches.inodes.touch_object(&mut self.machine, inode)?,
            None => false,
        };
        if !is_resident {
            if let Some(inode) = file.inode.take() {
                self.caches.inodes.free_object(&mut self.machine, inode)?;
            }
            file.inode = self.caches.inodes.allocate_object(&mut self.machine, self.cpu)?;
        }
        if file.dentry.is_none() {
            file.dentry = self.caches.dentries.allocate_object(&mut self.machine, self.cpu)?;
        }
        // Blocks of directories and of inode tables: 32 inodes or 64 names on each.
        self.lookup_count += 1;
        if self.lookup_count.is_multiple_of(24) {
            let request = self.page_request(PageUse::BlockDevice);
            if let Some(held) = self.machine.allocate_block(&request)? {
                self.metadata_blocks.push(held);
            }
        }
        Ok(())
    }

    /// A new file with a number of pages, written or read.
    pub(super) fn create_file(&mut self, pages: u32, is_written: bool) -> Result<CachedFile, Error> {
        let mut file = CachedFile::default();
        self.look_up_file(&mut file)?;
        self.extend_file(&mut file, pages, is_written)?;
        Ok(file)
    }

    /// Adds pages at the end of a file, written or read.
    pub(super) fn extend_file(
        &mut self,
        file: &mut CachedFile,
        pages: u32,
        is_written: bool,
    ) -> Result<(), Error> {
        for _ in 0..pages {
            let request = self.page_request(PageUse::File);
            let Some(held) = self.machine.allocate_block(&request)? else {
                self.failed_pages += 1;
                continue;
            };
            if file.pages.len().is_multiple_of(RADIX_TREE_MAP_SIZE) && file.radix_tree_node.is_none() {
                file.radix_tree_node =
                    self.caches.radix_tree_nodes.allocate_object(&mut self.machine, self.cpu)?;
            }
            if is_written {
                self.machine.write_block(held)?;
            }
            let buffer_head = match is_written {
                true => self.caches.buffer_heads.allocate_object(&mut self.machine, self.cpu)?,
                false => None,
            };
            file.pages.push(CachedPage { block: held, buffer_head });
        }
        Ok(())
    }

    /// Reads pages of a file; reclaimed ones are read from the disk again.
    pub(super) fn read_file(&mut self, file: &CachedFile, from: u32, pages: u32) -> Result<(), Error> {
        for page in file.pages.iter().skip(from as usize).take(pages as usize) {
            self.touch_page(page.block)?;
        }
        Ok(())
    }

    /// Frees the metadata of reclaimed pages of a file; returns whether no page is left.
    pub(super) fn sweep_file(&mut self, file: &mut CachedFile) -> Result<bool, Error> {
        let mut is_empty = true;
        for page in &mut file.pages {
            if self.machine.frame_of_block(page.block)?.is_some() {
                is_empty = false;
            } else if let Some(head) = page.buffer_head.take() {
                self.caches.buffer_heads.free_object(&mut self.machine, head)?;
            }
        }
        if is_empty && let Some(node) = file.radix_tree_node.take() {
            self.caches.radix_tree_nodes.free_object(&mut self.machine, node)?;
        }
        Ok(is_empty)
    }

    /// Frees the metadata of reclaimed pages among the next pages of a large file, in turn.
    pub(super) fn sweep_file_part(&mut self, file: &mut CachedFile, pages: u32) -> Result<(), Error> {
        for _ in 0..pages.min(file.pages()) {
            file.sweep_position = (file.sweep_position + 1) % file.pages.len();
            let page = &mut file.pages[file.sweep_position];
            if let Some(head) = page.buffer_head
                && self.machine.frame_of_block(page.block)?.is_none()
            {
                page.buffer_head = None;
                self.caches.buffer_heads.free_object(&mut self.machine, head)?;
            }
        }
        Ok(())
    }

    pub(super) fn delete_file(&mut self, file: CachedFile) -> Result<(), Error> {
        for page in file.pages {
            if let Some(head) = page.buffer_head {
                self.caches.buffer_heads.free_object(&mut self.machine, head)?;
            }
            self.machine.free_block(page.block)?;
        }
        let FsCaches { inodes, dentries, radix_tree_nodes, .. } = &mut self.caches;
        let objects =
            [(radix_tree_nodes, file.radix_tree_node), (inodes, file.inode), (dentries, file.dentry)];
        for (cache, object) in objects {
            object.map_or(Ok(()), |object| cache.free_object(&mut self.machine, object))?;
        }
        Ok(())
    }
}
