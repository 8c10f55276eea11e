//! Tests with machines as directories of files, and with the kernel's own records.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pagelab_host::root::Root;
use pagelab_model::PageSize;
use pagelab_model::profile::ImageStart;
use pagelab_sys::perf_ring::AccessSampling;

use super::probe::{COMMON_SAMPLE_TYPE, Sampler, SamplingHardware, find_hardware};
use super::{RecordOptions, RecordTarget, intel, record_profile};
use crate::sampling;
use crate::sampling::tlb_info::{DATA_SRC, RAW};

const PMUS: &str = "sys/bus/event_source/devices";
const SKYLAKE: &str =
    "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nstepping\t: 4\n";
const ATOM: &str =
    "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 92\nstepping\t: 9\n";
const EPYC: &str =
    "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nstepping\t: 1\n";
const GUEST: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu hypervisor\n";

/// A machine of these files; those of PMUs are named from their folder on.
fn create_machine(cpuinfo: &str, pmus: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &Path, text: &str| {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write(&folder.path().join("proc/cpuinfo"), cpuinfo);
    write(&folder.path().join("proc/sys/kernel/perf_event_paranoid"), "2\n");
    write(&folder.path().join("proc/sys/kernel/perf_event_max_sample_rate"), "1000\n");
    write(&folder.path().join(PMUS).join("software/type"), "1\n");
    for (name, text) in pmus {
        write(&folder.path().join(PMUS).join(name), text);
    }
    folder
}

/// The probed hardware, if the kernel opens the events for which `opens` is true.
fn probe_machine(
    folder: &tempfile::TempDir,
    opens: fn(&AccessSampling) -> Result<(), i32>,
) -> Result<SamplingHardware, String> {
    let root = Root::open(folder.path()).unwrap();
    let try_open =
        |of: &AccessSampling, _: Option<&AccessSampling>| opens(of).map_err(io::Error::from_raw_os_error);
    find_hardware(&root, &try_open).map_err(|error| error.to_string())
}

const ALL: fn(&AccessSampling) -> Result<(), i32> = |_| Ok(());
const FORBIDDEN: fn(&AccessSampling) -> Result<(), i32> = |_| Err(13);

#[test]
fn intel_counts_misses_of_the_second_level_themselves() {
    let folder = create_machine(
        SKYLAKE,
        &[("cpu/type", "4\n"), ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n")],
    );
    let here = probe_machine(&folder, ALL).unwrap();
    let configs: Vec<_> = here.samplers.iter().map(|of| (of.sampling.kind, of.sampling.config)).collect();
    assert_eq!(configs, [(4, 0x11d0), (4, 0x12d0)]);
    assert_eq!(
        (here.cpuid.as_str(), here.samplers[0].sampling.period_or_frequency),
        ("GenuineIntel,6,85,4", 1000)
    );
    // Where the kernel opens no such event, sampled loads are next.
    let loads = probe_machine(&folder, |of| if of.config == 0x1cd { Ok(()) } else { Err(22) }).unwrap();
    assert_eq!((loads.samplers.len(), loads.samplers[0].sampling.config1), (1, 30));
    assert_eq!(loads.samplers[0].sampling.sample_type, COMMON_SAMPLE_TYPE | DATA_SRC);
}

#[test]
fn large_cores_of_a_hybrid_machine_have_a_number_of_their_own_and_a_leader() {
    let folder = create_machine(
        ATOM,
        &[
            ("cpu_core/type", "4\n"),
            ("cpu_atom/type", "10\n"),
            ("cpu_core/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
            ("cpu_core/events/mem-loads-aux", "event=0x03,umask=0x82\n"),
        ],
    );
    let here = probe_machine(&folder, ALL).unwrap();
    assert_eq!((here.pmu.as_str(), here.samplers.len()), ("cpu_core", 1));
    assert_eq!(here.samplers[0].leader.map(|leader| leader.config), Some(0x8203));
}

#[test]
fn amd_follows_operations_and_falls_back_to_the_raw_registers() {
    let old = [("cpu/type", "4\n"), ("ibs_op/type", "9\n"), ("ibs_op/format/cnt_ctl", "config:19\n")];
    let here = probe_machine(&create_machine(EPYC, &old), ALL).unwrap();
    let of = here.samplers[0].sampling;
    assert_eq!(
        (of.kind, of.config, of.is_user_only, of.sample_type),
        (9, 1 << 19, false, COMMON_SAMPLE_TYPE | DATA_SRC)
    );
    assert_eq!(of.period_or_frequency % 16, 0);
    let raw =
        probe_machine(
            &create_machine(EPYC, &old),
            |of| if of.sample_type & RAW != 0 { Ok(()) } else { Err(22) },
        );
    assert_eq!(raw.unwrap().samplers[0].sampling.sample_type, COMMON_SAMPLE_TYPE | RAW);
    let new = [&old[..], &[("ibs_op/format/swfilt", "config2:0\n")]].concat();
    let of = probe_machine(&create_machine(EPYC, &new), ALL).unwrap().samplers[0].sampling;
    assert_eq!((of.config2, of.is_user_only), (1, true));
    let forbidden = probe_machine(&create_machine(EPYC, &old), FORBIDDEN).unwrap_err();
    assert!(
        forbidden.contains("cannot exclude kernel accesses") && forbidden.contains("is 2"),
        "{forbidden}"
    );
}

#[test]
fn what_is_missing_is_named_with_the_way_out() {
    let check = |cpuinfo: &str, pmus: &[(&str, &str)], why: &str| {
        let error = probe_machine(&create_machine(cpuinfo, pmus), ALL).unwrap_err();
        assert!(error.starts_with("cannot sample TLB misses: "), "{error}");
        assert!(error.contains(why) && error.contains("use --source accessed"), "{error}");
    };
    check(
        GUEST,
        &[],
        "no hardware counters (a virtual machine without a virtual PMU): no cpu/events/mem-loads, no ibs_op",
    );
    check(SKYLAKE, &[], "no hardware counters: no cpu/events");
    check(SKYLAKE, &[("cpu/type", "4\n"), ("cpu/caps/max_precise", "0\n")], "without PEBS");
    check(ATOM, &[("cpu/type", "4\n")], "`cpu` has no mem-loads event, and there is no ibs_op");
    check("", &[("armv8_pmuv3_0/type", "8\n"), ("arm_spe_0/type", "9\n")], "cannot decode its trace");
    let nothing = tempfile::tempdir().unwrap();
    std::fs::create_dir(nothing.path().join("proc")).unwrap();
    std::fs::create_dir(nothing.path().join("sys")).unwrap();
    assert!(probe_machine(&nothing, ALL).unwrap_err().contains("without CONFIG_PERF_EVENTS"));
    let loads = [("cpu/type", "4\n"), ("cpu/events/mem-loads", "event=0xcd,umask=0x1\n")];
    let forbidden = probe_machine(&create_machine(SKYLAKE, &loads), FORBIDDEN).unwrap_err();
    assert!(forbidden.contains("kernel.perf_event_paranoid is 2"), "{forbidden}");
}

#[test]
fn events_are_read_as_the_kernel_lists_them() {
    let read = |text| intel::parse_event(text, 4).map(|of| (of.config, of.config1));
    assert_eq!(read("event=0xcd,umask=0x1,ldlat=3"), Some((0x1cd, 3)));
    assert_eq!(read("event=0xd0,umask=0x06"), Some((0x6d0, 0)));
    for bad in ["", "event=0x100", "event=0xcd,frontend=1", "event"] {
        assert_eq!(read(bad), None, "{bad}");
    }
    assert_eq!(
        [intel::parse_format_bit("config:19"), intel::parse_format_bit("config2:0\n")],
        [Some((0, 19)), Some((2, 0))]
    );
    assert_eq!([intel::parse_format_bit("config:0-7"), intel::parse_format_bit("config1:64")], [None, None]);
}

/// The whole path of records through the rings of all CPUs, with an event of this machine that has addresses:
/// page faults. Taken as misses here, since they say nothing about a TLB: `mem_inst_retired.stlb_miss` in the
/// name makes each sample one.
fn page_faults() -> SamplingHardware {
    let sampling = AccessSampling {
        kind: 1,
        config: 2,
        sample_type: COMMON_SAMPLE_TYPE,
        period_or_frequency: 1,
        is_user_only: true,
        ..AccessSampling::default()
    };
    let name = "page-faults as mem_inst_retired.stlb_miss_loads".to_owned();
    let samplers = vec![Sampler { name, sampling, leader: None }];
    SamplingHardware { pmu: "software".to_owned(), kind: 1, cpuid: String::new(), samplers }
}

fn options() -> RecordOptions {
    let sampled = sampling::SamplingOptions::new(PageSize::DEFAULT, None);
    RecordOptions {
        sampling_options: sampled,
        ring_bytes: 1 << 20,
        duration_max: Some(Duration::from_secs(60)),
    }
}

/// `true` if this machine lets us sample at all; else it says so.
fn can_sample() -> bool {
    let here = super::probe::try_open_here(&page_faults().samplers[0].sampling, None);
    if let Err(error) = &here {
        let line = format!("skipped: no-perf-events: {error}\n");
        let _ = io::Write::write_all(&mut io::stderr(), line.as_bytes());
    }
    here.is_ok()
}

#[test]
fn a_started_program_its_exec_and_its_child_are_told_apart() {
    if !can_sample() {
        return;
    }
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "(/bin/ls / >/dev/null; :); exec /bin/true"]);
    let ran = record_profile(&page_faults(), RecordTarget::Start(command), &options(), &|| false).unwrap();
    assert!(ran.status.unwrap().success());
    let found = ran.profile;
    let begun: Vec<_> =
        found.images.iter().map(|of| (of.begun, of.program.path.rsplit('/').next())).collect();
    // sh, its child that forked, ls in a child of that one, and true in place of sh.
    assert_eq!(found.images[0].begun, ImageStart::Launched, "{begun:?}");
    let names: Vec<_> = begun.iter().filter_map(|(_, name)| *name).collect();
    for name in ["ls", "true"] {
        assert!(names.contains(&name), "{begun:?}");
    }
    let exec = found.images.iter().filter(|of| of.begun == ImageStart::Executed);
    assert!(exec.count() >= 2, "{begun:?}");
    assert!(found.images.iter().any(|of| of.begun == ImageStart::Forked), "{begun:?}");
    assert!(
        found.lost == 0 && !found.notes.iter().any(|note| note.contains("no address")),
        "{:?}",
        found.notes
    );
    let all: u64 = found.images.iter().map(|of| of.misses).sum();
    assert!(
        found.notes[0].starts_with(&format!("{all} of ")),
        "each sample stands for one: {:?}",
        found.notes
    );
    let cells = |of: &pagelab_model::profile::MappingProfile| of.cells.misses.iter().sum::<u64>();
    let placed: u64 = found.images.iter().flat_map(|of| &of.mappings).map(cells).sum();
    assert_eq!(placed, all, "each has a place");
}

#[test]
fn a_program_that_cannot_be_started_is_an_error() {
    if !can_sample() {
        return;
    }
    let command = Command::new("/nowhere/to/be/found");
    let error =
        record_profile(&page_faults(), RecordTarget::Start(command), &options(), &|| false).unwrap_err();
    assert!(error.to_string().contains("cannot start"), "{error}");
}

#[test]
fn a_process_that_runs_is_attached_to_with_what_it_has_mapped() {
    if !can_sample() {
        return;
    }
    let mut child = Command::new("/bin/sh").args(["-c", "while :; do (:); done"]).spawn().unwrap();
    let most = Some(Duration::from_millis(1500));
    let ran = record_profile(
        &page_faults(),
        RecordTarget::Attach(child.id()),
        &RecordOptions { duration_max: most, ..options() },
        &|| false,
    );
    child.kill().unwrap();
    child.wait().unwrap();
    let ran = ran.unwrap();
    let own = ran.profile.images.iter().find(|of| of.pid == child.id()).unwrap();
    assert_eq!(own.begun, ImageStart::Attached);
    assert!(own.misses > 0 && own.mappings.iter().all(|of| of.bytes.0 > 0));
    assert!(ran.profile.images.len() > 1, "what it starts is seen too");
}
