//! The events of this machine that record addresses of TLB misses.

use std::io;

use pagelab_formats::{cpuinfo, setting};
use pagelab_host::paths::{self, PMUS};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::Failure;
use pagelab_model::machine::Cpu;
use pagelab_sys::perf_ring::{AccessSampling, PerfEvent};
use rustix::io::Errno;

use super::intel;
use crate::sampling::tlb_info::{ADDR, DATA_SRC, RAW};

/// Bits of `sample_type` beside those of [`crate::sampling::tlb_info`].
const TID: u64 = 1 << 1;
const TIME: u64 = 1 << 2;
const CPU: u64 = 1 << 7;
const PERIOD: u64 = 1 << 8;
const IDENTIFIER: u64 = 1 << 16;
/// The fields of every sample. Its first number identifies the event.
pub const COMMON_SAMPLE_TYPE: u64 = IDENTIFIER | TID | TIME | ADDR | CPU | PERIOD;

/// Samples a second, perf's default.
const SAMPLE_FREQUENCY: u64 = 4000;
/// Micro-operations between two samples of AMD IBS; a multiple of 16 (arch/x86/events/amd/ibs.c).
const IBS_PERIOD: u64 = 0x2_0000;
/// Minimum cycles of a sampled load, if the machine does not state them: as in perf mem.
const LOAD_LATENCY_MIN: u64 = 30;

/// One event that is sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampler {
    /// Its name, for messages and for what its samples mean.
    pub name: String,
    /// Attributes with which it is opened.
    pub sampling: AccessSampling,
    /// Another event that must lead its group: `mem-loads-aux` on Sapphire Rapids and later.
    pub leader: Option<AccessSampling>,
}

/// Sampling hardware of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplingHardware {
    /// The PMU: `cpu`, `ibs_op`.
    pub pmu: String,
    /// Its number.
    pub kind: u32,
    /// The processor as files of perf name it: `GenuineIntel,6,85,4`.
    pub cpuid: String,
    /// The events.
    pub samplers: Vec<Sampler>,
}

/// Opens an event of this process for a moment, or returns the reason why it cannot.
pub type TryOpen<'a> = dyn Fn(&AccessSampling, Option<&AccessSampling>) -> io::Result<()> + 'a;

/// Opens it on the first CPU for this process, not enabled.
pub fn try_open_here(sampling: &AccessSampling, leader: Option<&AccessSampling>) -> io::Result<()> {
    let leader = leader.map(|leader| PerfEvent::open_accesses(0, 0, leader, None)).transpose()?;
    PerfEvent::open_accesses(0, 0, sampling, leader.as_ref()).map(drop)
}

/// Sampling method of the machine under this root, or the reason why there is none, with a hint.
pub fn find_hardware(root: &Root, try_open: &TryOpen<'_>) -> Result<SamplingHardware, Failure> {
    let reader = Reader::new(root);
    let found = list_hardware(&reader).map_err(|why| {
        let hint = "use --source accessed (accessed bits, works on any machine) or --source exact (QEMU)";
        Failure::not_available(format!("cannot sample TLB misses: {why}; hint: {hint}"))
    })?;
    let mut refusals = Vec::new();
    for hardware in found {
        match keep_openable_events(&hardware, try_open) {
            Ok(hardware) => return Ok(hardware),
            Err(error) => refusals.push((hardware, error)),
        }
    }
    let (hardware, error) = refusals.remove(0);
    Err(open_error(&reader, &hardware, &error))
}

/// Methods to try, best first, or the reason why there is none. A name in the list of PMUs is presence
/// enough.
fn list_hardware(reader: &Reader<'_>) -> Result<Vec<SamplingHardware>, String> {
    let pmus = reader.root().list_dir(PMUS).map_err(|_| {
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
        found.extend(find_ibs_events(reader, cpu.as_ref()));
    }
    match core {
        Some(pmu) if read_max_precise(reader, pmu) == Some(0) => {
            missing.push(format!("`{pmu}` does not support precise sampling (a VM without PEBS)"));
        }
        Some(pmu) => {
            found.extend(find_stlb_miss_events(reader, pmu, cpu.as_ref()));
            found.extend(find_load_events(reader, pmu, cpu.as_ref()));
            if found.is_empty() {
                missing.push(format!("`{pmu}` has no mem-loads event, and there is no ibs_op PMU"));
            }
        }
        None if found.is_empty() => {
            let in_guest = cpu.as_ref().is_some_and(|cpu| cpu.flags.iter().any(|flag| flag == "hypervisor"));
            let why = if in_guest { " (a virtual machine without a virtual PMU)" } else { "" };
            missing
                .push(format!("no hardware counters{why}: no cpu/events/mem-loads, no ibs_op, no arm_spe_0"));
        }
        None => {}
    }
    if let Some(spe) = pmus.iter().find(|pmu| pmu.starts_with("arm_spe")) {
        missing = vec![format!(
            "this machine has Arm SPE ({spe}), but pagelab cannot decode its trace; hint: use perf mem \
             record, and pass the output of `perf script --itrace=M -F +addr,+data_src` to --source perf-data"
        )];
    }
    if found.is_empty() { Err(missing.join("; ")) } else { Ok(found) }
}

fn pmu_file(pmu: &str, file: &str) -> String {
    format!("{PMUS}/{pmu}/{file}")
}

fn read_pmu_type(reader: &Reader<'_>, pmu: &str) -> Option<u32> {
    reader.read_line(&pmu_file(pmu, "type")).ok()?.trim().parse().ok()
}

fn read_max_precise(reader: &Reader<'_>, pmu: &str) -> Option<u64> {
    reader.parse(&pmu_file(pmu, "caps/max_precise"), setting::parse_u64).ok()
}

fn format_cpuid(cpu: Option<&Cpu>) -> String {
    let part = |field: fn(&Cpu) -> Option<u32>| cpu.and_then(field).unwrap_or(0);
    let vendor = cpu.map_or("", |cpu| cpu.vendor.as_str());
    format!("{vendor},{},{},{}", part(|cpu| cpu.family), part(|cpu| cpu.model), part(|cpu| cpu.stepping))
}

/// Samples a second, at most what the kernel allows at the moment.
fn read_sample_frequency(reader: &Reader<'_>) -> u64 {
    let rate_max = reader.parse(paths::PERF_EVENT_SAMPLE_RATE, setting::parse_u64);
    rate_max.map_or(SAMPLE_FREQUENCY, |most| SAMPLE_FREQUENCY.min(most)).max(1)
}

/// An event of Intel with precise samples of user accesses, with these fields beside the common ones.
fn sample_precisely(reader: &Reader<'_>, event: AccessSampling, fields: u64) -> AccessSampling {
    AccessSampling {
        sample_type: COMMON_SAMPLE_TYPE | fields,
        period_or_frequency: read_sample_frequency(reader),
        is_frequency: true,
        precise: 2,
        is_user_only: true,
        ..event
    }
}

/// Intel: events that count misses of the second-level TLB, with the address of each that is sampled.
fn find_stlb_miss_events(reader: &Reader<'_>, pmu: &str, cpu: Option<&Cpu>) -> Option<SamplingHardware> {
    let intel_cpu = cpu.filter(|cpu| cpu.vendor == "GenuineIntel" && cpu.family == Some(6))?;
    intel::find_pebs_constraints(intel_cpu.model?)?;
    let kind = read_pmu_type(reader, pmu)?;
    let sampler = |name: &str, config| {
        let event = AccessSampling { kind, config, ..AccessSampling::default() };
        Sampler { name: name.to_owned(), sampling: sample_precisely(reader, event, 0), leader: None }
    };
    let samplers = vec![
        sampler("mem_inst_retired.stlb_miss_loads", intel::STLB_MISS_LOADS),
        sampler("mem_inst_retired.stlb_miss_stores", intel::STLB_MISS_STORES),
    ];
    Some(SamplingHardware { pmu: pmu.to_owned(), kind, cpuid: format_cpuid(cpu), samplers })
}

/// Intel: loads that take longer than a limit, with their data source. Stores have no such event with more
/// detail.
fn find_load_events(reader: &Reader<'_>, pmu: &str, cpu: Option<&Cpu>) -> Option<SamplingHardware> {
    let kind = read_pmu_type(reader, pmu)?;
    let event = |name: &str| {
        let text = reader.read_line(&pmu_file(pmu, &format!("events/{name}"))).ok()?;
        intel::parse_event(&text, kind)
    };
    let loads = event("mem-loads")?;
    let loads = AccessSampling { config1: loads.config1.max(LOAD_LATENCY_MIN), ..loads };
    let sampling = sample_precisely(reader, loads, DATA_SRC);
    let leader = event("mem-loads-aux").map(|leader| AccessSampling { is_user_only: true, ..leader });
    let samplers = vec![Sampler { name: format!("{pmu}/mem-loads/"), sampling, leader }];
    Some(SamplingHardware { pmu: pmu.to_owned(), kind, cpuid: format_cpuid(cpu), samplers })
}

/// AMD: one micro-operation per period is tagged. First with the data source (6.2 and later), then with the
/// raw registers; users alone where the kernel can filter them (6.14 and later, `swfilt`), else all.
fn find_ibs_events(reader: &Reader<'_>, cpu: Option<&Cpu>) -> Vec<SamplingHardware> {
    const PMU: &str = "ibs_op";
    let Some(kind) = read_pmu_type(reader, PMU) else { return Vec::new() };
    let bit = |format: &str| {
        let text = reader.read_line(&pmu_file(PMU, &format!("format/{format}"))).ok()?;
        intel::parse_format_bit(&text)
    };
    let counts_ops = bit("cnt_ctl").filter(|(word, _)| *word == 0).map_or(0, |(_, bit)| 1 << bit);
    let filter = bit("swfilt").filter(|(word, _)| *word == 2).map(|(_, bit)| 1 << bit);
    let hardware = |extra_sample_type: u64| {
        let sampling = AccessSampling {
            kind,
            config: counts_ops,
            config2: filter.unwrap_or(0),
            sample_type: COMMON_SAMPLE_TYPE | extra_sample_type,
            period_or_frequency: IBS_PERIOD,
            is_user_only: filter.is_some(),
            ..AccessSampling::default()
        };
        let samplers = vec![Sampler { name: "ibs_op//".to_owned(), sampling, leader: None }];
        SamplingHardware { pmu: PMU.to_owned(), kind, cpuid: format_cpuid(cpu), samplers }
    };
    vec![hardware(DATA_SRC), hardware(RAW)]
}

/// The same with those events that the kernel opens; the error of the first if it opens none.
fn keep_openable_events(hardware: &SamplingHardware, try_open: &TryOpen<'_>) -> io::Result<SamplingHardware> {
    let mut first = None;
    let mut openable = Vec::new();
    for sampler in &hardware.samplers {
        match try_open(&sampler.sampling, sampler.leader.as_ref()) {
            Ok(()) => openable.push(sampler.clone()),
            Err(error) => first = first.or(Some(error)),
        }
    }
    match first {
        Some(error) if openable.is_empty() => Err(error),
        _ => Ok(SamplingHardware { samplers: openable, ..hardware.clone() }),
    }
}

/// Why the kernel opens no event of hardware that is there.
fn open_error(reader: &Reader<'_>, hardware: &SamplingHardware, error: &io::Error) -> Failure {
    let name = hardware.samplers.first().map_or("", |sampler| sampler.name.as_str());
    let level = reader.read_line(paths::PERF_EVENT_PARANOID).unwrap_or_else(|_| "unknown".to_owned());
    let samples_kernel = hardware.samplers.iter().any(|sampler| !sampler.sampling.is_user_only);
    let why = match Errno::from_io_error(error) {
        Some(Errno::ACCESS | Errno::PERM) if samples_kernel => format!(
            "not permitted: this kernel cannot exclude kernel accesses from samples of {} \
             (kernel.perf_event_paranoid is {level}); hint: run as root, give pagelab CAP_PERFMON, or sysctl \
             kernel.perf_event_paranoid=1",
            hardware.pmu
        ),
        Some(Errno::ACCESS | Errno::PERM) => format!(
            "not permitted (kernel.perf_event_paranoid is {level}): users can sample their own processes at \
             2 or less; hint: run as root, give pagelab CAP_PERFMON, or sysctl kernel.perf_event_paranoid=2"
        ),
        Some(Errno::BUSY) => {
            "the counter is in use, possibly by the NMI watchdog; hint: stop whatever else uses it".to_owned()
        }
        _ => format!("{error}; hint: use --source accessed"),
    };
    Failure::not_available(format!("cannot sample TLB misses with {name}: {why}"))
}
