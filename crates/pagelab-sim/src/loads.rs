//! Loads: simulated programs that allocate and free memory.

mod base_system;
mod build;
mod files;
mod load_context;
pub(crate) mod machine_model;
mod paper;
mod process;
mod quiesced;
mod slab;
mod synthetic;
#[cfg(test)]
mod tests;

use pagelab_model::names;
use pagelab_model::simulation::SimulatedZone;

use crate::machine::Machine;
use crate::policies;
use crate::study::{SimulationOutcome, SimulationSpec};
use crate::types::{Error, invalid};
use load_context::{LoadContext, LoadError, LoadResult};

/// A parameter of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name.
    pub name: &'static str,
    /// Default value.
    pub default: u64,
    /// Maximum value.
    pub max: u64,
    /// Unit.
    pub unit: &'static str,
    /// Meaning.
    pub meaning: &'static str,
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Name.
    pub name: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    parameter_groups: &'static [&'static [Parameter]],
    run: fn(&mut LoadContext<'_>) -> LoadResult,
}

impl Load {
    /// Parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &'static Parameter> {
        self.parameter_groups.iter().copied().flatten()
    }
}

const fn parameter(
    name: &'static str,
    default: u64,
    max: u64,
    unit: &'static str,
    meaning: &'static str,
) -> Parameter {
    Parameter { name, default, max, unit, meaning }
}

/// Parameters of the base system, which precedes and accompanies all loads.
const SYSTEM: &[Parameter] = &[
    parameter("daemons", 40, 1000, "processes", "long-running programs"),
    parameter("daemon_pages", 400, 1 << 20, "pages", "memory per daemon"),
    parameter("hot", 10, 100, "%", "share of a daemon's memory that is accessed repeatedly"),
    parameter("restart", 60, 1 << 20, "s", "interval at which one daemon exits and another starts; 0: never"),
    parameter("helpers", 1, 1000, "processes", "short-lived programs started per second by scripts"),
    parameter("helper_pages", 1000, 1 << 20, "pages", "memory per short-lived program"),
    parameter("leak", 10, 100_000, "pages", "pages the kernel allocates per 10 s and never frees"),
    parameter("kernel_pages", 6000, 1 << 24, "pages", "memory the kernel allocates at boot and never frees"),
    parameter("system_pages", 10_000, 1 << 24, "pages", "pages of files read at boot"),
    parameter("drive", 100, 1 << 16, "pages", "pages the disk writes per 10 ms; 0: no limit"),
    parameter("seek", 50, 1 << 16, "pages", "time of a seek, as pages the disk could write instead"),
];

const BUILDS: &[Parameter] = &[
    parameter("units", 900, 1 << 20, "files", "source files compiled per build"),
    parameter("compiler", 100, 1000, "%", "memory of the compilers, relative to the default"),
    parameter("pace", 90, 1 << 16, "pages", "memory each compiler faults in per 10 ms"),
    parameter("slots", 3, 64, "processes", "compilers that run at the same time"),
    parameter("tree_files", 17_000, 1 << 22, "files", "files in a source tree"),
    parameter("archive_pages", 11_600, 1 << 24, "pages", "size of the source archive"),
    parameter("disk", 23, 1 << 16, "pages", "pages written per 10 ms"),
];

const PARALLEL_BUILDS: &[Parameter] =
    &[parameter("builds", 0, 64, "builds", "parallel builds; 0: one per 250 MiB of memory")];
const SINGLE_BUILD: &[Parameter] =
    &[parameter("builds", 1, 64, "builds", "parallel builds; 0: one per 250 MiB of memory")];

/// A walk over all files.
const UPDATEDB: &[Parameter] = &[
    parameter("walk", 10, 1 << 16, "files", "files that updatedb visits per 10 ms"),
    parameter("disk_files", 150_000, 1 << 26, "files", "files on the disk"),
];

const DISK: Parameter = parameter("disk", 23, 1 << 16, "pages", "pages read per 10 ms");

const STREAMING: &[Parameter] = &[
    parameter("seconds", 300, 1 << 20, "s", "duration of the load"),
    parameter("file_pages", 25_600, 1 << 24, "pages", "size of a file"),
    parameter("files", 16, 1 << 16, "files", "files kept on the disk"),
    DISK,
];

const SERVER: &[Parameter] = &[
    parameter("seconds", 300, 1 << 20, "s", "duration of the load"),
    parameter("period", 60, 1 << 20, "s", "time between peaks; a peak lasts a fifth of it"),
    parameter("workers", 20, 1 << 16, "processes", "workers between peaks"),
    parameter("peak_workers", 120, 1 << 16, "processes", "workers during a peak"),
    parameter("worker_pages", 3000, 1 << 20, "pages", "memory per worker"),
    parameter("pace", 300, 1 << 16, "pages", "memory each worker faults in per 10 ms"),
];

const DESKTOP: &[Parameter] = &[
    parameter("seconds", 3600, 1 << 20, "s", "duration of the load"),
    parameter("programs", 12, 10_000, "processes", "maximum number of open programs"),
    parameter("program_pages", 12_000, 1 << 20, "pages", "memory per program"),
    parameter("read", 200, 1 << 16, "pages", "pages of new files read per second"),
];

const CHURN: &[Parameter] = &[
    parameter("pairs", 1_000_000, 1 << 40, "pairs", "pairs of one free and one allocation"),
    parameter("full", 75, 95, "%", "memory in use"),
];

/// All loads.
pub const TABLE: &[Load] = &[
    Load {
        name: "kbuild",
        summary: "extract a kernel source tree and build it",
        parameter_groups: &[SYSTEM, BUILDS],
        run: paper::run_kbuild,
    },
    Load {
        name: "hugetlb-capability",
        summary: "grow the hugetlb pool during builds, at rest, and after reading a large file",
        parameter_groups: &[SYSTEM, BUILDS, PARALLEL_BUILDS],
        run: paper::run_hugetlb_capability,
    },
    Load {
        name: "highalloc",
        summary: "request all of memory as huge pages during builds and updatedb, and at rest",
        parameter_groups: &[SYSTEM, BUILDS, PARALLEL_BUILDS, UPDATEDB],
        run: paper::run_highalloc,
    },
    Load {
        name: "highalloc-light",
        summary: "highalloc with a single build",
        parameter_groups: &[SYSTEM, BUILDS, SINGLE_BUILD, UPDATEDB],
        run: paper::run_highalloc,
    },
    Load {
        name: "paper",
        summary: "kbuild, AIM9, hugetlb-capability, highalloc, hot remove, on one boot",
        parameter_groups: &[SYSTEM, BUILDS, PARALLEL_BUILDS, UPDATEDB],
        run: paper::run_all,
    },
    Load {
        name: "paper-light",
        summary: "paper with one build at a time",
        parameter_groups: &[SYSTEM, BUILDS, SINGLE_BUILD, UPDATEDB],
        run: paper::run_all,
    },
    Load {
        name: "updatedb",
        summary: "read the names and inodes of all files",
        parameter_groups: &[SYSTEM, UPDATEDB],
        run: synthetic::run_updatedb,
    },
    Load {
        name: "desktop",
        summary: "start and exit programs for a long time while the kernel accumulates pages",
        parameter_groups: &[SYSTEM, DESKTOP],
        run: synthetic::run_desktop,
    },
    Load {
        name: "streaming",
        summary: "read large files once each",
        parameter_groups: &[SYSTEM, STREAMING],
        run: synthetic::run_streaming,
    },
    Load {
        name: "server",
        summary: "start and exit workers and allocate buffers in peaks",
        parameter_groups: &[SYSTEM, SERVER],
        run: synthetic::run_server,
    },
    Load {
        name: "churn",
        summary: "allocate blocks of all orders with random lifetimes",
        parameter_groups: &[CHURN],
        run: synthetic::run_churn,
    },
];

/// Load by name.
pub fn find_load(name: &str) -> Result<&'static Load, Error> {
    TABLE.iter().find(|load| load.name == name).ok_or_else(|| {
        let names: Vec<&str> = TABLE.iter().map(|load| load.name).collect();
        Error::InvalidConfig(names::describe_unknown("load", name, &names))
    })
}

/// Parameters of a load, with the given values.
fn parameter_values(load: &Load, overrides: &[(String, u64)]) -> Result<Vec<(&'static str, u64)>, Error> {
    let mut values: Vec<(&'static str, u64)> =
        load.parameters().map(|parameter| (parameter.name, parameter.default)).collect();
    for (name, value) in overrides {
        let Some((at, parameter)) = load.parameters().enumerate().find(|(_, known)| known.name == name)
        else {
            let names: Vec<&str> = load.parameters().map(|parameter| parameter.name).collect();
            let text = names::describe_unknown("parameter", name, &names);
            return invalid(format!("load {}: {text}", load.name));
        };
        if *value > parameter.max {
            let most = parameter.max;
            return invalid(format!("{name}={value}: expected at most {most} {}", parameter.unit));
        }
        values[at].1 = *value;
    }
    Ok(values)
}

/// Value of a parameter; `None`: the load has no such parameter.
fn optional_parameter(values: &[(&'static str, u64)], name: &str) -> Option<u64> {
    values.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

fn parameter_count(value: u64) -> u32 {
    u32::try_from(value).expect("the table bounds counts to 32 bits")
}

fn placement_policy(name: &str) -> Result<crate::machine::AnyPolicy, Error> {
    policies::find_policy(name).map(|entry| entry.policy).ok_or_else(|| {
        let names: Vec<&str> = policies::TABLE.iter().map(|entry| entry.name).collect();
        Error::InvalidConfig(names::describe_unknown("policy", name, &names))
    })
}

/// Checks an experiment: machine, scheme, load and parameters exist and fit together. Allocates nothing for
/// it.
pub fn check_spec(spec: &SimulationSpec) -> Result<(), Error> {
    parameter_values(find_load(&spec.workload.load)?, &spec.workload.parameters)?;
    placement_policy(&spec.scheme.policy)?;
    machine_model::build_machine(spec).map(|_| ())
}

/// Zones of an experiment's machine, by address.
pub fn machine_zones(spec: &SimulationSpec) -> Result<Vec<SimulatedZone>, Error> {
    let (config, _) = machine_model::build_machine(spec)?;
    let zone = |config: crate::memory::ZoneConfig| SimulatedZone {
        name: config.name,
        first: config.geometry.first_frame.number(),
        frames: config.geometry.frames,
    };
    let mut zones: Vec<_> = config.zones.into_iter().map(zone).collect();
    zones.sort_by_key(|zone| zone.first);
    Ok(zones)
}

/// Runs the load of an experiment. `progress` receives the progress in thousandths, and returns whether to
/// continue.
pub fn run_simulation(
    spec: &SimulationSpec,
    progress: &mut dyn FnMut(u32) -> bool,
) -> Result<SimulationOutcome, Error> {
    let load = find_load(&spec.workload.load)?;
    let parameters = parameter_values(load, &spec.workload.parameters)?;
    let (config, mut model) = machine_model::build_machine(spec)?;
    // A load without these parameters has no disk to wait for.
    let optional_count = |name| optional_parameter(&parameters, name).map_or(0, parameter_count);
    model.tuning.disk_pages_per_slice = optional_count("drive");
    model.tuning.seek_pages = optional_count("seek");
    let machine = Machine::with_tuning(config, model.tuning, placement_policy(&spec.scheme.policy)?)?;
    let mut context = LoadContext::new(machine, model, parameters, spec, progress);
    match (load.run)(&mut context) {
        Ok(()) => {
            context.machine.validate()?;
            context.note_picture_count();
        }
        Err(LoadError::Cancelled) => context.outcome.notes.push("stopped early".to_owned()),
        Err(LoadError::Failed(wrong)) => return Err(wrong),
    }
    Ok(context.outcome)
}
