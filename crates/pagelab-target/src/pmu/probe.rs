//! Which events of this machine tell addresses of TLB misses.

use std::io;

use pagelab_formats::{cpuinfo, scalar};
use pagelab_host::paths::{self, PMUS};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::machine::Cpu;
use pagelab_sys::perf_ring::{AccessSampling, PerfEvent};
use rustix::io::Errno;

use super::intel;
use crate::error::{Error, ErrorKind};
use crate::sampled::meaning::{ADDR, DATA_SRC, RAW};

/// Bits of `sample_type` beside those of [`crate::sampled::meaning`].
const TID: u64 = 1 << 1;
const TIME: u64 = 1 << 2;
const CPU: u64 = 1 << 7;
const PERIOD: u64 = 1 << 8;
const IDENTIFIER: u64 = 1 << 16;
/// What every sample has. The number in front tells which event it is of.
pub const COMMON: u64 = IDENTIFIER | TID | TIME | ADDR | CPU | PERIOD;

/// Samples a second that are asked for, as perf does by default.
const FREQUENCY: u64 = 4000;
/// Micro-operations between two samples of AMD IBS; a multiple of 16 (arch/x86/events/amd/ibs.c).
const IBS_PERIOD: u64 = 0x2_0000;
/// Cycles that a sampled load takes at least, where the machine does not say: as perf mem does.
const LATENCY: u64 = 30;

/// One event that is sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampler {
    /// Its name, for messages and for what its samples mean.
    pub name: String,
    /// How it is opened.
    pub sampling: AccessSampling,
    /// Another event that must lead its group: `mem-loads-aux` on Sapphire Rapids and later.
    pub leader: Option<AccessSampling>,
}

/// How this machine samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// The PMU: `cpu`, `ibs_op`.
    pub pmu: String,
    /// Its number.
    pub kind: u32,
    /// The processor as files of perf name it: `GenuineIntel,6,85,4`.
    pub cpuid: String,
    /// The events.
    pub samplers: Vec<Sampler>,
}

/// What opens an event of this process for a moment, or says why not.
pub type TryOpen<'a> = dyn Fn(&AccessSampling, Option<&AccessSampling>) -> io::Result<()> + 'a;

/// Opens it on the first CPU for this process, not enabled.
pub fn try_here(sampling: &AccessSampling, leader: Option<&AccessSampling>) -> io::Result<()> {
    let leader = leader.map(|leader| PerfEvent::accesses(0, 0, leader, None)).transpose()?;
    PerfEvent::accesses(0, 0, sampling, leader.as_ref()).map(drop)
}

/// How the machine under this root samples, or why it does not: what is missing, and the way out.
pub fn available(root: &Root, try_open: &TryOpen<'_>) -> Result<Hardware, Error> {
    let reader = Reader::new(root);
    let found = find(&reader).map_err(|why| {
        let wanted = "hardware samples of TLB misses are not available here, because";
        let out = "use --source accessed (accessed bits, any machine) or --source exact (QEMU)";
        Error::new(ErrorKind::NotAvailable, format!("{wanted} {why}; {out}"))
    })?;
    let mut tried = Vec::new();
    for hardware in found {
        match opens(&hardware, try_open) {
            Ok(hardware) => return Ok(hardware),
            Err(error) => tried.push((hardware, error)),
        }
    }
    let (hardware, error) = tried.remove(0);
    Err(refused(&reader, &hardware, &error))
}

/// What can be tried, best first; or why nothing can. A name in the list of PMUs is presence enough.
fn find(reader: &Reader<'_>) -> Result<Vec<Hardware>, String> {
    let pmus = reader.root().list(PMUS).map_err(|_| {
        "the kernel lists no performance counters (it is built without CONFIG_PERF_EVENTS, or a container \
         hides them)"
            .to_owned()
    })?;
    let cpu = reader.parse(paths::CPUINFO, cpuinfo::parse).ok();
    let has = |name: &str| pmus.iter().any(|pmu| pmu == name);
    let core = ["cpu", "cpu_core"].into_iter().find(|name| has(name));
    let mut found = Vec::new();
    let mut missing = Vec::new();
    if has("ibs_op") {
        found.extend(ibs(reader, cpu.as_ref()));
    }
    match core {
        Some(pmu) if max_precise(reader, pmu) == Some(0) => {
            missing.push(format!(
                "the counters of `{pmu}` have no precise samples (a virtual machine without PEBS)"
            ));
        }
        Some(pmu) => {
            found.extend(stlb_misses(reader, pmu, cpu.as_ref()));
            found.extend(sampled_loads(reader, pmu, cpu.as_ref()));
            if found.is_empty() {
                missing.push(format!("`{pmu}` has no event mem-loads, and there is no ibs_op"));
            }
        }
        None if found.is_empty() => {
            let in_guest = cpu.as_ref().is_some_and(|cpu| cpu.flags.iter().any(|flag| flag == "hypervisor"));
            let why = if in_guest { " (a virtual machine without a virtual PMU)" } else { "" };
            missing.push(format!(
                "the processor's counters are missing{why}: no cpu/events/mem-loads, no ibs_op, no arm_spe_0"
            ));
        }
        None => {}
    }
    if let Some(spe) = pmus.iter().find(|pmu| pmu.starts_with("arm_spe")) {
        missing = vec![format!(
            "Arm's statistical profiling ({spe}) is there, but its trace is not decoded by this build; \
             record with perf mem record, and give the text of `perf script --itrace=M -F \
             +addr,+data_src` to --source perf-data"
        )];
    }
    if found.is_empty() { Err(missing.join("; ")) } else { Ok(found) }
}

fn file(pmu: &str, file: &str) -> String {
    format!("{PMUS}/{pmu}/{file}")
}

fn kind(reader: &Reader<'_>, pmu: &str) -> Option<u32> {
    reader.line(&file(pmu, "type")).ok()?.trim().parse().ok()
}

fn max_precise(reader: &Reader<'_>, pmu: &str) -> Option<u64> {
    reader.parse(&file(pmu, "caps/max_precise"), scalar::parse_u64).ok()
}

fn cpuid(cpu: Option<&Cpu>) -> String {
    let part = |of: fn(&Cpu) -> Option<u32>| cpu.and_then(of).unwrap_or(0);
    let vendor = cpu.map_or("", |cpu| cpu.vendor.as_str());
    format!("{vendor},{},{},{}", part(|cpu| cpu.family), part(|cpu| cpu.model), part(|cpu| cpu.stepping))
}

/// Samples a second, at most what the kernel allows at the moment.
fn frequency(reader: &Reader<'_>) -> u64 {
    let most = reader.parse(paths::PERF_EVENT_SAMPLE_RATE, scalar::parse_u64);
    most.map_or(FREQUENCY, |most| FREQUENCY.min(most)).max(1)
}

/// Intel: events that count misses of the second-level TLB, with the address of each that is sampled.
fn stlb_misses(reader: &Reader<'_>, pmu: &str, cpu: Option<&Cpu>) -> Option<Hardware> {
    let of = cpu.filter(|cpu| cpu.vendor == "GenuineIntel" && cpu.family == Some(6))?;
    intel::tells_stlb_addresses(of.model?)?;
    let kind = kind(reader, pmu)?;
    let sampler = |name: &str, config| Sampler {
        name: name.to_owned(),
        sampling: AccessSampling {
            kind,
            config,
            sample_type: COMMON,
            period_or_frequency: frequency(reader),
            by_frequency: true,
            precise: 2,
            user_only: true,
            ..AccessSampling::default()
        },
        leader: None,
    };
    let samplers = vec![
        sampler("mem_inst_retired.stlb_miss_loads", intel::STLB_MISS_LOADS),
        sampler("mem_inst_retired.stlb_miss_stores", intel::STLB_MISS_STORES),
    ];
    Some(Hardware { pmu: pmu.to_owned(), kind, cpuid: cpuid(cpu), samplers })
}

/// Intel: loads that take longer than a limit, with what they met. Stores have no such event that says more.
fn sampled_loads(reader: &Reader<'_>, pmu: &str, cpu: Option<&Cpu>) -> Option<Hardware> {
    let kind = kind(reader, pmu)?;
    let event = |name: &str| {
        let text = reader.line(&file(pmu, &format!("events/{name}"))).ok()?;
        intel::event(&text, kind)
    };
    let loads = event("mem-loads")?;
    let sampling = AccessSampling {
        config1: loads.config1.max(LATENCY),
        sample_type: COMMON | DATA_SRC,
        period_or_frequency: frequency(reader),
        by_frequency: true,
        precise: 2,
        user_only: true,
        ..loads
    };
    let leader = event("mem-loads-aux").map(|leader| AccessSampling { user_only: true, ..leader });
    let samplers = vec![Sampler { name: format!("{pmu}/mem-loads/"), sampling, leader }];
    Some(Hardware { pmu: pmu.to_owned(), kind, cpuid: cpuid(cpu), samplers })
}

/// AMD: every so many micro-operations one is followed. First with the data source (6.2 and later), then with
/// the raw registers; users alone where the kernel can filter them (6.14 and later, `swfilt`), else all.
fn ibs(reader: &Reader<'_>, cpu: Option<&Cpu>) -> Vec<Hardware> {
    const PMU: &str = "ibs_op";
    let Some(kind) = kind(reader, PMU) else { return Vec::new() };
    let bit = |format: &str| {
        let text = reader.line(&file(PMU, &format!("format/{format}"))).ok()?;
        intel::one_bit(&text)
    };
    let counts_ops = bit("cnt_ctl").filter(|(word, _)| *word == 0).map_or(0, |(_, bit)| 1 << bit);
    let filter = bit("swfilt").filter(|(word, _)| *word == 2).map(|(_, bit)| 1 << bit);
    let hardware = |what: u64| {
        let sampling = AccessSampling {
            kind,
            config: counts_ops,
            config2: filter.unwrap_or(0),
            sample_type: COMMON | what,
            period_or_frequency: IBS_PERIOD,
            user_only: filter.is_some(),
            ..AccessSampling::default()
        };
        let samplers = vec![Sampler { name: "ibs_op//".to_owned(), sampling, leader: None }];
        Hardware { pmu: PMU.to_owned(), kind, cpuid: cpuid(cpu), samplers }
    };
    vec![hardware(DATA_SRC), hardware(RAW)]
}

/// The same with those events that the kernel opens; the error of the first if it opens none.
fn opens(hardware: &Hardware, try_open: &TryOpen<'_>) -> io::Result<Hardware> {
    let mut first = None;
    let mut kept = Vec::new();
    for sampler in &hardware.samplers {
        match try_open(&sampler.sampling, sampler.leader.as_ref()) {
            Ok(()) => kept.push(sampler.clone()),
            Err(error) => first = first.or(Some(error)),
        }
    }
    match first {
        Some(error) if kept.is_empty() => Err(error),
        _ => Ok(Hardware { samplers: kept, ..hardware.clone() }),
    }
}

/// Why the kernel opens no event of hardware that is there.
fn refused(reader: &Reader<'_>, hardware: &Hardware, error: &io::Error) -> Error {
    let name = hardware.samplers.first().map_or("", |sampler| sampler.name.as_str());
    let level = reader.line(paths::PERF_EVENT_PARANOID).unwrap_or_else(|_| "unknown".to_owned());
    let everybody = hardware.samplers.iter().any(|sampler| !sampler.sampling.user_only);
    let why = match Errno::from_io_error(error) {
        Some(Errno::ACCESS | Errno::PERM) if everybody => format!(
            "not permitted: this kernel samples {} with the kernel's own accesses alone \
             (kernel.perf_event_paranoid is {level}); run as root, give pagelab CAP_PERFMON, or sysctl \
             kernel.perf_event_paranoid=1",
            hardware.pmu
        ),
        Some(Errno::ACCESS | Errno::PERM) => format!(
            "not permitted (kernel.perf_event_paranoid is {level}): own processes of an ordinary user can be \
             sampled at 2 or less; run as root, give pagelab CAP_PERFMON, or sysctl \
             kernel.perf_event_paranoid=2"
        ),
        Some(Errno::BUSY) => {
            "the counter is taken by somebody else, the NMI watchdog perhaps; end the other user".to_owned()
        }
        _ => format!("the kernel does not open it: {error}; use --source accessed"),
    };
    Error::new(ErrorKind::NotAvailable, format!("hardware samples of TLB misses by {name}: {why}"))
}
