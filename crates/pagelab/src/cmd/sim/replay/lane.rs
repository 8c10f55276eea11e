//! One replay under one policy, whichever it is.

use pagelab_contig::asking;
use pagelab_host::root::Root;
use pagelab_model::Bytes;
use pagelab_model::alloc_trace::TraceEvent;
use pagelab_model::free_areas::BuddyInfo;
use pagelab_sim::policies;
use pagelab_sim::policies::mobility::{Mobility, Strict};
use pagelab_sim::policies::standard::Standard;
use pagelab_sim::policy::Policy;
use pagelab_sim::replay::Replay;
use pagelab_sim::replay::start::Start;
use pagelab_sim::replay::words::{Account, Misfit, Options};
use pagelab_sim::words::Wrong;
use pagelab_sys::own_memory;

use crate::cmd::sim::catalogue;
use crate::exit::Failure;

/// A replay behind a table of functions: events come in blocks, so that costs nothing.
pub trait Lane: Send {
    fn feed(&mut self, events: &[TraceEvent]) -> Result<(), Misfit>;
    fn sample(&self) -> BuddyInfo;
    fn kept_frames(&self) -> u64;
    fn account(&self) -> Account;
}

impl<P: Policy + Clone + Send> Lane for Replay<P> {
    fn feed(&mut self, events: &[TraceEvent]) -> Result<(), Misfit> {
        Replay::feed(self, events)
    }

    fn sample(&self) -> BuddyInfo {
        Replay::sample(self)
    }

    fn kept_frames(&self) -> u64 {
        Replay::kept_frames(self)
    }

    fn account(&self) -> Account {
        Replay::account(self)
    }
}

/// The size of a huge page.
const HUGE: usize = 2 << 20;

/// The policies of names, by their whole names.
pub fn known(given: &[String]) -> Result<Vec<&'static str>, Failure> {
    let found = catalogue::placements("--policy", given, "a trace is replayed without")?;
    Ok(found.into_iter().map(|entry| entry.name).collect())
}

/// A replay under a policy of the table.
pub fn begin(name: &str, start: &Start, options: Options) -> Result<Box<dyn Lane>, Wrong> {
    // What most traces are replayed under is compiled for it: calls through a table cost a tenth.
    match (name, policies::find(name)) {
        ("standard", _) => lane(start, &Standard, options),
        ("mobility-6.1", _) => lane(start, &Mobility, options),
        ("mobility-6.18", _) => lane(start, &Strict::Claims, options),
        (_, Some(entry)) => lane(start, &entry.policy, options),
        (_, None) => Err(Wrong::Shape(format!("there is no policy {name}"))),
    }
}

/// A replay whose tables lie on huge pages, as far as the kernel gives them: what it reads is all over them.
fn lane<P: Policy + Clone + Send + 'static>(
    start: &Start,
    policy: &P,
    options: Options,
) -> Result<Box<dyn Lane>, Wrong> {
    let replay = Replay::new(start, policy, options)?;
    for place in replay.places() {
        let _ = own_memory::collapse(place, HUGE);
    }
    Ok(Box::new(replay))
}

/// Memory that can be had on this machine, as far as it says so.
pub fn available() -> Option<Bytes> {
    asking::available(&Root::live()).ok()
}
