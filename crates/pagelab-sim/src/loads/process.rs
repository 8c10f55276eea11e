//! Processes: memory that they use, their page tables, their stacks in the kernel.

use super::slab::Object;
use super::world::World;
use crate::machine::{Ask, Class, Held};
use crate::words::Wrong;

/// A process.
#[derive(Clone, Debug, Default)]
pub(super) struct Process {
    /// Stack (8 KiB on i386, 16 KiB on PPC64), task and memory descriptors, page directory.
    kernel: Vec<Held>,
    areas: Vec<Object>,
    tables: Vec<Held>,
    anonymous: Vec<Held>,
}

impl Process {
    pub(super) fn pages(&self) -> u32 {
        self.anonymous.len() as u32
    }
}

impl World<'_> {
    /// Starts a process with so many areas of address space.
    pub(super) fn start(&mut self, areas: u32) -> Result<Process, Wrong> {
        let mut process = Process::default();
        for order in [self.place.stack_order, 0, 0] {
            let ask = Ask { order, ..self.page(Class::Kernel) };
            process.kernel.extend(self.got(ask)?);
        }
        for _ in 0..areas {
            process.areas.extend(self.areas.take(&mut self.machine, self.cpu)?);
        }
        for _ in 0..self.place.tables {
            let ask = self.page(Class::PageTable);
            process.tables.extend(self.got(ask)?);
        }
        Ok(process)
    }

    /// Lets a process use more memory.
    pub(super) fn grow(&mut self, process: &mut Process, pages: u32) -> Result<(), Wrong> {
        for _ in 0..pages {
            let ask = self.page(Class::Anonymous);
            let Some(held) = self.got(ask)? else { continue };
            process.anonymous.push(held);
            if process.pages().is_multiple_of(self.place.table_span) {
                let ask = self.page(Class::PageTable);
                process.tables.extend(self.got(ask)?);
            }
        }
        Ok(())
    }

    /// Lets a process use some of its memory again, drawn at random.
    pub(super) fn use_again(&mut self, process: &Process, pages: u32) -> Result<(), Wrong> {
        for _ in 0..pages {
            let at = self.random.below(u64::from(process.pages())) as usize;
            let Some(&held) = process.anonymous.get(at) else { break };
            self.use_one(held)?;
        }
        Ok(())
    }

    /// Lets a process use the memory again that it used first.
    pub(super) fn use_first(&mut self, process: &Process, pages: usize) -> Result<(), Wrong> {
        for &held in process.anonymous.iter().take(pages) {
            self.use_one(held)?;
        }
        Ok(())
    }

    fn use_one(&mut self, held: Held) -> Result<(), Wrong> {
        if !self.machine.touch(held)? && !self.machine.bring_back(held, self.cpu)? {
            self.short += 1;
        }
        Ok(())
    }

    /// Ends a process.
    pub(super) fn end(&mut self, process: Process) -> Result<(), Wrong> {
        for area in process.areas {
            self.areas.give(&mut self.machine, area)?;
        }
        for held in process.anonymous.into_iter().chain(process.tables).chain(process.kernel) {
            self.machine.release(held)?;
        }
        Ok(())
    }
}
