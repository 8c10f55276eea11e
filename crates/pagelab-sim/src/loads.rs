//! Loads: what asks for memory and gives it back.

mod build;
mod churn;
mod crowd;
mod desktop;
mod files;
mod paper;
mod place;
mod process;
mod rest;
mod server;
mod slab;
mod streaming;
mod system;
#[cfg(test)]
mod tests;
mod updatedb;
mod world;

use crate::machine::Machine;
use crate::policies;
use crate::study::{Outcome, Spec};
use crate::words::Wrong;
use world::{Halt, Ran, World};

/// A number that a load goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// What it is called.
    pub name: &'static str,
    /// Its value where nobody says another.
    pub default: u64,
    /// The largest that is taken.
    pub most: u64,
    /// Its unit.
    pub unit: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// Its parameters, in groups.
    groups: &'static [&'static [Parameter]],
    run: fn(&mut World<'_>) -> Ran,
}

impl Load {
    /// Its parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &'static Parameter> {
        self.groups.iter().copied().flatten()
    }
}

const fn parameter(
    name: &'static str,
    (default, most): (u64, u64),
    unit: &'static str,
    meaning: &'static str,
) -> Parameter {
    Parameter { name, default, most, unit, meaning }
}

/// What runs before and beside all loads.
const SYSTEM: &[Parameter] = &[
    parameter("daemons", (40, 1000), "processes", "programs that run all the time"),
    parameter("daemon_pages", (400, 1 << 20), "pages", "memory of each of them"),
    parameter("hot", (10, 100), "%", "of it, what they use again and again"),
    parameter("restart", (60, 1 << 20), "s", "after which one of them ends and another begins; 0: never"),
    parameter("helpers", (1, 1000), "processes", "programs a second that scripts run, for a moment"),
    parameter("helper_pages", (1000, 1 << 20), "pages", "memory of each of them"),
    parameter("leak", (10, 100_000), "pages", "pages in 10 s that the kernel takes later, and keeps"),
    parameter(
        "kernel_pages",
        (6000, 1 << 24),
        "pages",
        "memory that the kernel takes while it boots, and keeps",
    ),
    parameter("system_pages", (10_000, 1 << 24), "pages", "files that are read at boot"),
    parameter("drive", (100, 1 << 16), "pages", "what the disk writes in 10 ms; 0: all at once"),
    parameter(
        "seek",
        (50, 1 << 16),
        "pages",
        "what it would write in the time that it takes to begin to read",
    ),
];

/// Builds of kernels.
const BUILDS: &[Parameter] = &[
    parameter("units", (900, 1 << 20), "files", "sources that one build compiles"),
    parameter("compiler", (100, 1000), "%", "memory of compilers, of what is usual"),
    parameter("pace", (90, 1 << 16), "pages", "memory that a program touches first in 10 ms"),
    parameter("slots", (3, 64), "processes", "programs that run at a time"),
    parameter("tree_files", (17_000, 1 << 22), "files", "files in a tree of sources"),
    parameter("archive_pages", (11_600, 1 << 24), "pages", "size of the archive of sources"),
    parameter("disk", (23, 1 << 16), "pages", "pages that are written in 10 ms"),
];

/// Builds beside each other.
const CROWD: &[Parameter] =
    &[parameter("builds", (0, 64), "builds", "builds at a time; 0: one for each 250 MiB")];
/// A single one.
const LIGHT: &[Parameter] =
    &[parameter("builds", (1, 64), "builds", "builds at a time; 0: one for each 250 MiB")];

/// A walk over all files.
const WALK: &[Parameter] = &[
    parameter("walk", (10, 1 << 16), "files", "files that updatedb looks at in 10 ms"),
    parameter("disk_files", (150_000, 1 << 26), "files", "files that there are to look at"),
];

const DISK: Parameter = parameter("disk", (23, 1 << 16), "pages", "pages that are read in 10 ms");

const STREAMING: &[Parameter] = &[
    parameter("seconds", (300, 1 << 20), "s", "how long files are read"),
    parameter("file_pages", (25_600, 1 << 24), "pages", "size of a file"),
    parameter("files", (16, 1 << 16), "files", "files that are kept on the disk"),
    DISK,
];

const SERVER: &[Parameter] = &[
    parameter("seconds", (300, 1 << 20), "s", "how long it serves"),
    parameter("period", (60, 1 << 20), "s", "from one peak to the next; a fifth of it is the peak"),
    parameter("workers", (20, 1 << 16), "processes", "workers outside the peaks"),
    parameter("peak_workers", (120, 1 << 16), "processes", "workers in a peak"),
    parameter("worker_pages", (3000, 1 << 20), "pages", "memory of a worker"),
    parameter("pace", (300, 1 << 16), "pages", "memory that a worker touches first in 10 ms"),
];

const DESKTOP: &[Parameter] = &[
    parameter("seconds", (3600, 1 << 20), "s", "how long it is used"),
    parameter("programs", (12, 10_000), "processes", "programs that are open at most"),
    parameter("program_pages", (12_000, 1 << 20), "pages", "memory of each"),
    parameter("read", (200, 1 << 16), "pages", "pages of new files that are read in a second"),
];

const CHURN: &[Parameter] = &[
    parameter("pairs", (1_000_000, 1 << 40), "pairs", "blocks that are freed and allocated"),
    parameter("full", (75, 95), "%", "memory in use"),
];

/// All loads.
pub const TABLE: &[Load] = &[
    Load {
        name: "kbuild",
        summary: "extract a kernel and build it",
        groups: &[SYSTEM, BUILDS],
        run: paper::kbuild,
    },
    Load {
        name: "hugetlb-capability",
        summary: "grow the hugetlb pool during builds, at rest, after a large file",
        groups: &[SYSTEM, BUILDS, CROWD],
        run: paper::capability,
    },
    Load {
        name: "highalloc",
        summary: "ask for all huge pages during builds and updatedb, and at rest",
        groups: &[SYSTEM, BUILDS, CROWD, WALK],
        run: paper::highalloc,
    },
    Load {
        name: "highalloc-light",
        summary: "the same with one build",
        groups: &[SYSTEM, BUILDS, LIGHT, WALK],
        run: paper::highalloc,
    },
    Load {
        name: "paper",
        summary: "kbuild, AIM9, hugetlb-capability, highalloc, hot remove, on one boot",
        groups: &[SYSTEM, BUILDS, CROWD, WALK],
        run: paper::all,
    },
    Load {
        name: "paper-light",
        summary: "the same with one build at a time",
        groups: &[SYSTEM, BUILDS, LIGHT, WALK],
        run: paper::all,
    },
    Load {
        name: "updatedb",
        summary: "look at names and inodes of all files",
        groups: &[SYSTEM, WALK],
        run: updatedb::run,
    },
    Load {
        name: "desktop",
        summary: "programs opened and closed for long; the kernel keeps pages",
        groups: &[SYSTEM, DESKTOP],
        run: desktop::run,
    },
    Load {
        name: "streaming",
        summary: "large files read once each",
        groups: &[SYSTEM, STREAMING],
        run: streaming::run,
    },
    Load {
        name: "server",
        summary: "workers and buffers that come and go in peaks",
        groups: &[SYSTEM, SERVER],
        run: server::run,
    },
    Load {
        name: "churn",
        summary: "blocks of all sizes that live for a random time",
        groups: &[CHURN],
        run: churn::run,
    },
];

/// The load of a name.
pub fn find(name: &str) -> Result<&'static Load, Wrong> {
    TABLE.iter().find(|load| load.name == name).ok_or_else(|| {
        let names: Vec<&str> = TABLE.iter().map(|load| load.name).collect();
        Wrong::Shape(format!("there is no load {name}; there are {}", names.join(", ")))
    })
}

/// The parameters of a load, with those that were given.
fn set(load: &Load, given: &[(String, u64)]) -> Result<Vec<(&'static str, u64)>, Wrong> {
    let mut values: Vec<(&'static str, u64)> =
        load.parameters().map(|parameter| (parameter.name, parameter.default)).collect();
    for (name, value) in given {
        let Some((at, parameter)) = load.parameters().enumerate().find(|(_, known)| known.name == name)
        else {
            let names: Vec<&str> = load.parameters().map(|parameter| parameter.name).collect();
            let names = names.join(", ");
            return Err(Wrong::Shape(format!(
                "the load {} has no parameter {name}; it has {names}",
                load.name
            )));
        };
        if *value > parameter.most {
            let most = parameter.most;
            return Err(Wrong::Shape(format!("{name}={value}: {most} {} at most", parameter.unit)));
        }
        values[at].1 = *value;
    }
    Ok(values)
}

/// The placement policy of a name.
fn policy(name: &str) -> Result<crate::machine::AnyPolicy, Wrong> {
    policies::find(name).map(|entry| entry.policy).ok_or_else(|| {
        let names: Vec<&str> = policies::TABLE.iter().map(|entry| entry.name).collect();
        Wrong::Shape(format!("there is no policy {name}; there are {}", names.join(", ")))
    })
}

/// Whether an experiment can be run: machine, scheme, load and parameters are there and fit together.
pub(crate) fn check(spec: &Spec) -> Result<(), Wrong> {
    set(find(&spec.load)?, &spec.parameters)?;
    policy(&spec.scheme.policy)?;
    place::place(spec).map(|_| ())
}

/// The zones of an experiment's machine by address: name, first frame, frames.
pub(crate) fn zones(spec: &Spec) -> Result<Vec<(String, crate::words::Frame, u32)>, Wrong> {
    let (config, _) = place::place(spec)?;
    let zone = |of: crate::memory::Setup| (of.name, of.shape.first, of.shape.frames);
    let mut zones: Vec<_> = config.zones.into_iter().map(zone).collect();
    zones.sort_by_key(|(_, first, _)| *first);
    Ok(zones)
}

/// Runs the load of an experiment.
pub(crate) fn run(spec: &Spec, progress: &mut dyn FnMut(u32) -> bool) -> Result<Outcome, Wrong> {
    let load = find(&spec.load)?;
    let parameters = set(load, &spec.parameters)?;
    let (config, mut place) = place::place(spec)?;
    let drive = parameters.iter().find(|parameter| parameter.0 == "drive").map_or(0, |parameter| parameter.1);
    place.tuning.disk = u32::try_from(drive).unwrap_or(u32::MAX);
    let seek = parameters.iter().find(|parameter| parameter.0 == "seek").map_or(0, |parameter| parameter.1);
    place.tuning.seek = u32::try_from(seek).unwrap_or(u32::MAX);
    let machine = Machine::tuned(config, place.tuning, policy(&spec.scheme.policy)?)?;
    let mut world = World::new(machine, place, parameters, (spec.seed, spec.pictures), progress);
    match (load.run)(&mut world) {
        Ok(()) => {
            world.machine.validate()?;
            world.count_pictures();
        }
        Err(Halt::Stopped) => world.outcome.notes.push("stopped before its end".to_owned()),
        Err(Halt::Wrong(wrong)) => return Err(wrong),
    }
    Ok(world.outcome)
}
