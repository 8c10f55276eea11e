//! The source `exact`: the program runs in QEMU's user mode, and pagelab's plugin passes every access to a
//! model of the TLBs (`pagelab_tlb::engine`).

use std::ffi::OsString;
use std::path::PathBuf;

use pagelab_host::orphan_keeper::{OrphanKeeper, OrphanScope};
use pagelab_model::machine::Tlb;
use pagelab_model::profile::MappingKind;
use pagelab_model::{Bytes, HugePlan, PageSize, TlbProfile};
use pagelab_packages::apt::FetchObserver;
use pagelab_tlb::engine::account_layout::{self, events, header, sets};
use pagelab_tlb::engine::tlb::SamplingWindow;
use pagelab_tlb::model_geometry;

use pagelab_model::Failure;

pub mod account;
mod profile;
pub mod qemu;
mod run;

/// Passes after that of base pages, at most.
pub const WHAT_IFS_MAX: usize = 16;

/// The program to be profiled, and how.
#[derive(Debug)]
pub struct ExactProfileRequest {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The TLBs that are modelled.
    pub tlb: Tlb,
    /// The base page.
    pub page_size: PageSize,
    /// The huge page of PMD size.
    pub huge: Bytes,
    /// Sets of huge pages, by name, that are modelled too.
    pub what_ifs: Vec<(String, HugePageSet)>,
    /// Sampling windows; `None`: all accesses.
    pub window: Option<SamplingWindow>,
    /// Directory of QEMU and the plugin; `None`: there is none.
    pub cache: Option<PathBuf>,
}

/// Memory on huge pages.
#[derive(Clone, Debug)]
pub enum HugePageSet {
    /// All private anonymous memory and the heap.
    All,
    /// The regions of a plan.
    Plan(HugePlan),
    /// Huge pages at these addresses.
    Addresses(Vec<u64>),
}

/// Runs the program and returns its profile. It inherits the standard streams. If this process is killed, the
/// keeper kills every QEMU of the profile: only the first one dies with its parent.
pub fn profile_program(
    request: &ExactProfileRequest,
    keeper: &mut OrphanKeeper,
    observer: &mut dyn FetchObserver,
) -> Result<TlbProfile, Failure> {
    if request.what_ifs.len() > WHAT_IFS_MAX {
        let (given, most) = (request.what_ifs.len(), WHAT_IFS_MAX);
        return Err(Failure::bad_input(format!("cannot model {given} what-ifs: expected at most {most}")));
    }
    let geometry = model_geometry::build_geometry(&request.tlb, request.page_size).ok_or_else(|| {
        Failure::bad_input(
            "cannot model the TLBs: the geometry has no entries for base pages; hint: give one with --tlb, \
             for example l1d=64x4:4K,32x4:2M,l2=2048x16:4K+2M",
        )
    })?;
    let program = run::EmulatedProgram::resolve(&request.command)?;
    let qemu = qemu::Qemu::find_or_fetch(request.cache.as_deref(), observer)?;
    let sets =
        request.what_ifs.iter().flat_map(|(_, set)| encode_set(set, request.huge)).collect::<Vec<u64>>();
    let account = account::SharedAccount::create(&geometry, &sets, request.what_ifs.len() + 1, |head| {
        head[header::HUGE_SHIFT as usize] = u64::from(request.huge.0.trailing_zeros());
        if let Some(window) = request.window {
            head[header::SAMPLED as usize] = window.sampled;
            head[header::PERIOD as usize] = window.period;
        }
    })?;
    let watched = keeper.watch(&OrphanScope::Word(qemu::account_argument(&account.path())));
    watched.map_err(|error| Failure::refused(format!("cannot watch the program: {error}")))?;
    let result = run::run_program(&program, &qemu, &account, observer)?;
    let images = account::read_images(&account);
    if images.is_empty() {
        return Err(run::empty_account_error(&program, &result));
    }
    Ok(profile::build_profile(request, &program, &result, &account, &images, &geometry))
}

/// The words of a set. Regions of a plan that are smaller than a huge page are left out: no TLB of x86-64
/// holds such pages.
fn encode_set(set: &HugePageSet, huge: Bytes) -> Vec<u64> {
    match set {
        HugePageSet::All => vec![sets::ALL],
        HugePageSet::Addresses(addresses) => encode_addresses(addresses),
        HugePageSet::Plan(plan) => encode_plan(plan, huge),
    }
}

fn encode_addresses(addresses: &[u64]) -> Vec<u64> {
    let mut words = vec![sets::ADDRESSES, addresses.len() as u64];
    words.extend(addresses);
    words
}

fn encode_plan(plan: &HugePlan, huge: Bytes) -> Vec<u64> {
    let mut regions: Vec<[u64; sets::REGION as usize]> = Vec::new();
    let mut addresses = Vec::new();
    for mapping in plan.programs.iter().flat_map(|program| &program.mappings) {
        let (kind, path) = match &mapping.key.kind {
            MappingKind::Anonymous => (events::ANONYMOUS, 0),
            MappingKind::Shared => (events::SHARED, 0),
            MappingKind::File(path) => (events::FILE, account_layout::fnv1a(path.as_bytes())),
            MappingKind::Heap => (sets::HEAP, 0),
            MappingKind::Stack => (sets::STACK, 0),
            MappingKind::Placed => {
                addresses.extend(mapping.regions.iter().map(|region| region.offset));
                continue;
            }
        };
        let key = &mapping.key;
        let planned = mapping.regions.iter().filter(|region| region.page >= huge);
        regions.extend(planned.map(|at| [kind, path, key.bytes.0, key.nth.into(), at.offset]));
    }
    if regions.is_empty() && !addresses.is_empty() {
        return encode_addresses(&addresses);
    }
    let mut words = vec![sets::REGIONS, regions.len() as u64];
    words.extend(regions.iter().flatten());
    words
}
