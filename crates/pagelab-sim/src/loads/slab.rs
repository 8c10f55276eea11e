//! Slabs: objects smaller than a page. A page is freed with the last object on it, so few objects with a long
//! lifetime keep many pages (mm/slab.c of Linux 2.6.16).

use crate::machine::{AllocRequest, BlockHandle, Machine, PageUse};
use crate::types::Error;

/// An object, as the page of its slab.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlabObject(u32);

#[derive(Clone, Copy, Debug)]
struct SlabPage {
    held: Option<BlockHandle>,
    used_objects: u16,
    /// Whether it is in the list of partial slabs.
    is_listed: bool,
}

/// One cache of objects of one size.
#[derive(Clone, Debug)]
pub(super) struct SlabCache {
    class: PageUse,
    objects_per_page: u16,
    pages: Vec<SlabPage>,
    partial_pages: Vec<u32>,
    free_indexes: Vec<u32>,
}

impl SlabCache {
    pub(super) fn new(class: PageUse, per_page: u16) -> SlabCache {
        SlabCache {
            class,
            objects_per_page: per_page,
            pages: Vec::new(),
            partial_pages: Vec::new(),
            free_indexes: Vec::new(),
        }
    }

    /// Allocates an object; `None`: no page for it.
    pub(super) fn allocate_object(
        &mut self,
        machine: &mut Machine,
        cpu: u16,
    ) -> Result<Option<SlabObject>, Error> {
        while let Some(&at) = self.partial_pages.last() {
            let page = &mut self.pages[at as usize];
            if let Some(held) = page.held
                && machine.frame_of_block(held)?.is_some()
                && page.used_objects < self.objects_per_page
            {
                page.used_objects += 1;
                machine.touch_block(held)?;
                return Ok(Some(SlabObject(at)));
            }
            page.is_listed = false;
            self.partial_pages.pop();
            if page.held.is_none() {
                self.free_indexes.push(at);
            }
        }
        let request = AllocRequest { cpu, ..AllocRequest::for_base_page(self.class) };
        let Some(held) = machine.allocate_block(&request)? else { return Ok(None) };
        let page = SlabPage { held: Some(held), used_objects: 1, is_listed: true };
        let at = match self.free_indexes.pop() {
            Some(at) => {
                self.pages[at as usize] = page;
                at
            }
            None => {
                self.pages.push(page);
                self.pages.len() as u32 - 1
            }
        };
        self.partial_pages.push(at);
        Ok(Some(SlabObject(at)))
    }

    /// Frees an object, and its page if that was the last object on it.
    pub(super) fn free_object(&mut self, machine: &mut Machine, object: SlabObject) -> Result<(), Error> {
        let page = &mut self.pages[object.0 as usize];
        debug_assert!(page.used_objects > 0, "double free of an object in page {}", object.0);
        page.used_objects -= 1;
        if page.used_objects == 0 {
            if let Some(held) = page.held.take() {
                machine.free_block(held)?;
            }
            if !page.is_listed {
                self.free_indexes.push(object.0);
            }
        } else if !page.is_listed {
            page.is_listed = true;
            self.partial_pages.push(object.0);
        }
        Ok(())
    }

    /// Accesses an object; returns whether its page is resident. An object whose page was reclaimed is freed.
    pub(super) fn touch_object(&self, machine: &mut Machine, object: SlabObject) -> Result<bool, Error> {
        match self.pages[object.0 as usize].held {
            Some(held) => machine.touch_block(held),
            None => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::simulation::SimulatedWorkload;

    use super::*;
    use crate::loads::machine_model::build_machine;
    use crate::policies;
    use crate::study::SimulationSpec;

    #[test]
    fn a_page_goes_with_its_last_object_and_a_hole_is_filled_first() {
        let workload = SimulatedWorkload {
            machine: "64M".to_owned(),
            kernelcore: None,
            load: String::new(),
            parameters: Vec::new(),
        };
        let spec = SimulationSpec::new(workload, "standard", 0, 0).unwrap();
        let (config, _) = build_machine(&spec).unwrap();
        let mut machine = Machine::new(config, policies::TABLE[0].policy).unwrap();
        let mut slab = SlabCache::new(PageUse::Kernel, 4);
        let pages = |machine: &Machine| machine.stats().allocations_served[0];
        let mut objects: Vec<SlabObject> =
            (0..12).map(|_| slab.allocate_object(&mut machine, 0).unwrap().unwrap()).collect();
        assert_eq!(pages(&machine), 3);
        // An object of the middle page is freed and allocated again: no new page.
        slab.free_object(&mut machine, objects.remove(5)).unwrap();
        let again = slab.allocate_object(&mut machine, 0).unwrap().unwrap();
        assert_eq!((pages(&machine), again.0), (3, 1));
        objects.push(again);
        // An object of each page stays: no page is freed.
        let used = |machine: &Machine| machine.memory().zones().map(|(_, zone)| free(zone)).sum::<u64>();
        let before = used(&machine);
        for page in 0..3 {
            for _ in 0..3 {
                let at = objects.iter().position(|object| object.0 == page).unwrap();
                slab.free_object(&mut machine, objects.remove(at)).unwrap();
            }
        }
        assert_eq!(used(&machine), before);
        for object in objects {
            slab.free_object(&mut machine, object).unwrap();
        }
        assert_eq!(used(&machine), before + 3);
        machine.validate().unwrap();
        // Reclaimed pages are not reused.
        slab.allocate_object(&mut machine, 0).unwrap().unwrap();
        assert_eq!(pages(&machine), 4);
    }

    fn free(zone: &crate::pcp::PcpZone<crate::machine::AnyPolicy>) -> u64 {
        u64::from(zone.zone().free_frames()) + u64::from(zone.pcp_frames())
    }
}
