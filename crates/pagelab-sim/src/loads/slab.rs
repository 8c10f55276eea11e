//! Slabs: objects that are smaller than a page. A page goes back when the last object on it does, so that
//! few objects that live long keep many pages (mm/slab.c of Linux 2.6.16).

use crate::machine::{Ask, Class, Held, Machine};
use crate::words::Wrong;

/// An object: the page of its slab that it lies on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object(u32);

#[derive(Clone, Copy, Debug)]
struct Page {
    held: Option<Held>,
    used: u16,
    /// Whether its number is among those with room.
    is_listed: bool,
}

/// One cache of objects of one size.
#[derive(Clone, Debug)]
pub(super) struct Slab {
    class: Class,
    per_page: u16,
    pages: Vec<Page>,
    with_room: Vec<u32>,
    unused: Vec<u32>,
}

impl Slab {
    pub(super) fn new(class: Class, per_page: u16) -> Slab {
        Slab { class, per_page, pages: Vec::new(), with_room: Vec::new(), unused: Vec::new() }
    }

    /// An object; `None`: no page for it.
    pub(super) fn take(&mut self, machine: &mut Machine, cpu: u16) -> Result<Option<Object>, Wrong> {
        while let Some(&at) = self.with_room.last() {
            let page = &mut self.pages[at as usize];
            let is_there = match page.held {
                Some(held) => machine.frame(held)?.is_some(),
                None => false,
            };
            if is_there && page.used < self.per_page {
                page.used += 1;
                if let Some(held) = page.held {
                    machine.touch(held)?;
                }
                return Ok(Some(Object(at)));
            }
            page.is_listed = false;
            self.with_room.pop();
            if page.held.is_none() {
                self.unused.push(at);
            }
        }
        let ask = Ask { cpu, ..Ask::page(self.class) };
        let Some(held) = machine.ask(&ask)? else { return Ok(None) };
        let page = Page { held: Some(held), used: 1, is_listed: true };
        let at = match self.unused.pop() {
            Some(at) => {
                self.pages[at as usize] = page;
                at
            }
            None => {
                self.pages.push(page);
                self.pages.len() as u32 - 1
            }
        };
        self.with_room.push(at);
        Ok(Some(Object(at)))
    }

    /// Gives an object back, and its page if that was the last one on it.
    pub(super) fn give(&mut self, machine: &mut Machine, object: Object) -> Result<(), Wrong> {
        let page = &mut self.pages[object.0 as usize];
        page.used = page.used.saturating_sub(1);
        if page.used == 0 {
            if let Some(held) = page.held.take() {
                machine.release(held)?;
            }
            if !page.is_listed {
                self.unused.push(object.0);
            }
        } else if !page.is_listed {
            page.is_listed = true;
            self.with_room.push(object.0);
        }
        Ok(())
    }

    /// Uses an object; whether its page is still there. One whose page was reclaimed is gone.
    pub(super) fn touch(&self, machine: &mut Machine, object: Object) -> Result<bool, Wrong> {
        match self.pages[object.0 as usize].held {
            Some(held) => machine.touch(held),
            None => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loads::place::place;
    use crate::policies;
    use crate::study::{Scheme, Spec};

    #[test]
    fn a_page_goes_with_its_last_object_and_a_hole_is_filled_first() {
        let spec = Spec {
            machine: "64M".to_owned(),
            kernelcore: None,
            scheme: Scheme::parse("standard").unwrap(),
            load: String::new(),
            parameters: Vec::new(),
            seed: 0,
            pictures: 0,
        };
        let (config, _) = place(&spec).unwrap();
        let mut machine = Machine::new(config, policies::TABLE[0].policy).unwrap();
        let mut slab = Slab::new(Class::Kernel, 4);
        let pages = |machine: &Machine| machine.stats().served[0];
        let mut objects: Vec<Object> =
            (0..12).map(|_| slab.take(&mut machine, 0).unwrap().unwrap()).collect();
        assert_eq!(pages(&machine), 3);
        // Of the middle page one goes and comes again: no new page.
        slab.give(&mut machine, objects.remove(5)).unwrap();
        let again = slab.take(&mut machine, 0).unwrap().unwrap();
        assert_eq!((pages(&machine), again.0), (3, 1));
        objects.push(again);
        // Of each page one stays: no page goes back.
        let used = |machine: &Machine| machine.memory().zones().map(|(_, zone)| free(zone)).sum::<u64>();
        let before = used(&machine);
        for page in 0..3 {
            for _ in 0..3 {
                let at = objects.iter().position(|object| object.0 == page).unwrap();
                slab.give(&mut machine, objects.remove(at)).unwrap();
            }
        }
        assert_eq!(used(&machine), before);
        for object in objects {
            slab.give(&mut machine, object).unwrap();
        }
        assert_eq!(used(&machine), before + 3);
        machine.validate().unwrap();
        // Pages that are gone are not handed out again.
        slab.take(&mut machine, 0).unwrap().unwrap();
        assert_eq!(pages(&machine), 4);
    }

    fn free(zone: &crate::percpu::PerCpu<crate::machine::AnyPolicy>) -> u64 {
        u64::from(zone.zone().free_frames()) + u64::from(zone.kept_frames())
    }
}
