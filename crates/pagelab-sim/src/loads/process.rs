//! Processes: their memory, page tables and kernel stacks.

use super::load_context::LoadContext;
use super::slab::SlabObject;
use crate::machine::{AllocRequest, BlockHandle, PageUse};
use crate::types::Error;

#[derive(Clone, Debug, Default)]
pub(super) struct Process {
    /// Stack (8 KiB on i386, 16 KiB on PPC64), task and memory descriptors, page directory.
    kernel_blocks: Vec<BlockHandle>,
    vmas: Vec<SlabObject>,
    page_tables: Vec<BlockHandle>,
    anonymous_pages: Vec<BlockHandle>,
}

impl Process {
    pub(super) fn pages(&self) -> u32 {
        self.anonymous_pages.len() as u32
    }
}

impl LoadContext<'_> {
    /// Starts a process with a number of areas of address space.
    pub(super) fn start_process(&mut self, vmas: u32) -> Result<Process, Error> {
        let mut process = Process::default();
        for order in [self.model.stack_order, 0, 0] {
            let request = AllocRequest { order, ..self.page_request(PageUse::Kernel) };
            process.kernel_blocks.extend(self.allocate_counted(request)?);
        }
        for _ in 0..vmas {
            process.vmas.extend(self.vma_slab.allocate_object(&mut self.machine, self.cpu)?);
        }
        for _ in 0..self.model.initial_tables {
            let request = self.page_request(PageUse::PageTable);
            process.page_tables.extend(self.allocate_counted(request)?);
        }
        Ok(process)
    }

    pub(super) fn grow_process(&mut self, process: &mut Process, pages: u32) -> Result<(), Error> {
        for _ in 0..pages {
            let request = self.page_request(PageUse::Anonymous);
            let Some(held) = self.allocate_counted(request)? else { continue };
            process.anonymous_pages.push(held);
            if process.pages().is_multiple_of(self.model.pages_per_table) {
                let request = self.page_request(PageUse::PageTable);
                process.page_tables.extend(self.allocate_counted(request)?);
            }
        }
        Ok(())
    }

    /// Accesses random parts of a process's memory.
    pub(super) fn touch_random_pages(&mut self, process: &Process, pages: u32) -> Result<(), Error> {
        for _ in 0..pages {
            let at = self.random.next_below(u64::from(process.pages())) as usize;
            let Some(&held) = process.anonymous_pages.get(at) else { break };
            self.touch_page(held)?;
        }
        Ok(())
    }

    /// Accesses the memory that a process used first.
    pub(super) fn touch_first_pages(&mut self, process: &Process, pages: usize) -> Result<(), Error> {
        for &held in process.anonymous_pages.iter().take(pages) {
            self.touch_page(held)?;
        }
        Ok(())
    }

    /// Accesses a block; a reclaimed one is refaulted.
    pub(super) fn touch_page(&mut self, block: BlockHandle) -> Result<(), Error> {
        if !self.machine.touch_block(block)? && !self.machine.refault_block(block, self.cpu)? {
            self.failed_pages += 1;
        }
        Ok(())
    }

    pub(super) fn end_process(&mut self, process: Process) -> Result<(), Error> {
        for area in process.vmas {
            self.vma_slab.free_object(&mut self.machine, area)?;
        }
        self.free_blocks(
            process.anonymous_pages.into_iter().chain(process.page_tables).chain(process.kernel_blocks),
        )
    }
}
