//! The source `exact`: the program runs in QEMU's user mode, and a plugin of ours feeds every access to a
//! model of the TLBs (`pagelab_tlb::engine`).

pub mod account;
mod profile;
pub mod qemu;
mod read;
mod run;
mod what_if;

use std::ffi::OsString;
use std::path::PathBuf;

use pagelab_model::machine::Tlb;
use pagelab_model::{Bytes, HugePlan, PageSize, Profile};
use pagelab_packages::apt::Watcher;
use pagelab_tlb::engine::layout::head;
use pagelab_tlb::engine::tlb::Window;
use pagelab_tlb::modelled;

use crate::error::{Error, ErrorKind};

/// Passes behind the one of base pages, at most.
pub const WHAT_IFS_MOST: usize = 16;

/// Notes that stand first in every profile of this source; those behind are of the one run.
pub const NOTES_ALWAYS: usize = 2;

/// What is to be profiled, and how.
#[derive(Debug)]
pub struct Ask {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The TLBs that are modelled.
    pub tlb: Tlb,
    /// The base page.
    pub page_size: PageSize,
    /// The huge page of PMD size.
    pub huge: Bytes,
    /// Sets of huge pages, by name, that are modelled too.
    pub what_ifs: Vec<(String, Set)>,
    /// Which stretches of accesses are looked at; `None`: all.
    pub window: Option<Window>,
    /// Where QEMU and the plugin are kept; `None`: there is no such place.
    pub cache: Option<PathBuf>,
}

/// What is on huge pages.
#[derive(Clone, Debug)]
pub enum Set {
    /// All private anonymous memory and the heap.
    All,
    /// The regions of a plan.
    Plan(HugePlan),
    /// Huge pages at these addresses.
    Addresses(Vec<u64>),
}

/// Runs the program and gives what was found. Its standard streams are ours.
pub fn profile(ask: &Ask, watcher: &mut dyn Watcher) -> Result<Profile, Error> {
    if ask.what_ifs.len() > WHAT_IFS_MOST {
        let (given, most) = (ask.what_ifs.len(), WHAT_IFS_MOST);
        let message = format!("{given} sets of huge pages were given, {most} can be modelled at once");
        return Err(Error::new(ErrorKind::BadInput, message));
    }
    let geometry = modelled::geometry(&ask.tlb, ask.page_size).ok_or_else(|| {
        let message = "the TLBs hold no base pages: give a geometry that does with --tlb, such as \
                       l1d=64x4:4K,32x4:2M,l2=2048x16:4K+2M";
        Error::new(ErrorKind::BadInput, message)
    })?;
    let program = run::Program::find(&ask.command)?;
    let qemu = qemu::Qemu::at_hand(ask.cache.as_deref(), watcher)?;
    let sets = ask.what_ifs.iter().flat_map(|(_, set)| what_if::encode(set, ask.huge)).collect::<Vec<u64>>();
    let account = account::Account::create(&geometry, &sets, ask.what_ifs.len() + 1, |head| {
        head[head::HUGE_SHIFT as usize] = u64::from(ask.huge.0.trailing_zeros());
        if let Some(window) = ask.window {
            head[head::WATCHED as usize] = window.watched;
            head[head::PERIOD as usize] = window.period;
        }
    })?;
    let ran = run::run(&program, &qemu, &account, watcher)?;
    let images = read::images(&account);
    if images.is_empty() {
        return Err(run::nothing_seen(&program, &ran));
    }
    Ok(profile::of(ask, &program, &ran, &account, &images, &geometry))
}
