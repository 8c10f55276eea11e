//! Build of kernel objects: a source tree is extracted, its objects are compiled by make, and all of it is
//! removed, as in the kernel builds with which Gorman and Whitcroft compared kernels (OLS 2006).
//!
//! The checksum is that of the objects that were built, by name: their bytes depend on the compiler of the
//! machine. That each of them is a relocatable object is checked.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use pagelab_model::source_tree::TREE_DEVICE;
use pagelab_sys::clock;
use pagelab_sys::wait::Rusage;

use crate::kernel_builds::{check_success, check_tree, extract_tree, make_command, read_objects};
use crate::options::{OptionSpec, WorkloadOptions, number_option, path_option};
use crate::phase::MeasuredPhase;
use crate::private_dir::{FOLDER_OPTION, PrivateDir};
use crate::{
    Figure, GuestPart, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mix_checksum,
};

/// The build as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "kbuild",
    description: "Extracts a kernel source tree and compiles some objects of it with make and gcc",
    generator: "tar extracts the archive, then make compiles each object with the command that kbuild \
                recorded; the tree is removed at the end",
    options: &[
        TREE_OPTION,
        number_option("jobs", 1, 1024, "1", "Objects compiled at a time (make -j)"),
        number_option("objects", 0, 100_000, "0", "Number of objects, the first of the tree; 0: all"),
        FOLDER_OPTION,
    ],
    forks_processes: true,
    guest_parts: &[GuestPart::Tools, GuestPart::SourceTree],
    run: run_build,
};

/// The option of workloads that build a source tree.
pub const TREE_OPTION: OptionSpec = path_option(
    "tree",
    "Archive of the source tree; default: /dev/pagelab-tree, that of guest run --linux-source",
);

/// The archive that the option names, or that of the guest.
pub fn tree_path(options: &WorkloadOptions) -> PathBuf {
    match options.get_text(TREE_OPTION.name) {
        "" => PathBuf::from(TREE_DEVICE),
        named => PathBuf::from(named),
    }
}

/// Start of an ELF file, and the offset and value of the type of a relocatable one (elf.h, `e_type`).
const ELF_MAGIC: &[u8] = b"\x7fELF";
const ELF_TYPE_OFFSET: usize = 16;
const ELF_RELOCATABLE: u8 = 1;

fn run_build(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let tree = tree_path(options);
    let tree_bytes = check_tree(&tree)?;
    let dir = PrivateDir::new(options, "kbuild")?;
    let (extracted, extract_ns, _) = phase.measure_times(|| extract_tree(&tree, dir.path()));
    extracted?;
    let objects = choose_objects(read_objects(dir.path())?, options.get_number("objects"))?;
    let jobs = options.get_number("jobs");
    let mut make = make_command(dir.path());
    make.arg(format!("-j{jobs}")).args(&objects);
    let cpu_before = cpu_ns();
    let (built, build_ns, _) = phase.measure_times(|| make.output());
    let build_cpu_ns = cpu_ns().saturating_sub(cpu_before);
    let built = built.map_err(|error| WorkloadError::system_error("cannot run make", error))?;
    check_success("build the objects", &built)?;
    let (mut object_bytes, mut checksum) = (0, 0u64);
    for object in &objects {
        object_bytes += check_object(dir.path(), object)?;
        checksum = object.bytes().fold(checksum, |sum, byte| mix_checksum(sum, u64::from(byte)));
    }
    let before_ns = clock::monotonic_ns();
    drop(dir);
    let remove_ns = clock::monotonic_ns().saturating_sub(before_ns);
    Ok(WorkloadResult {
        figure_of_merit: Figure::time("build time", build_ns as f64),
        working_set: tree_bytes,
        checksum,
        latencies: None,
        hot_regions: Vec::new(),
        figures: vec![
            Figure::time("extract", extract_ns as f64),
            Figure::time("build", build_ns as f64),
            Figure::time("build_cpu", build_cpu_ns as f64),
            Figure::time("remove", remove_ns as f64),
            Figure::neutral("objects", "count", objects.len() as f64),
            Figure::neutral("object_bytes", "bytes", object_bytes as f64),
        ],
        phases: PhaseResults::default(),
        generated_input: format!(
            "{} objects from an archive of {} bytes, {jobs} at a time: {}",
            objects.len(),
            tree_bytes.0,
            objects.join(" ")
        ),
    })
}

/// CPU time of this process and of its children that have ended, ns.
fn cpu_ns() -> u64 {
    let usage = Rusage::for_this_process();
    usage.utime_ns.saturating_add(usage.stime_ns)
}

/// The first `count` of all objects; 0 is all.
fn choose_objects(mut objects: Vec<String>, count: u64) -> Result<Vec<String>, WorkloadError> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count > objects.len() {
        let text = format!("objects: expected at most {}, those of the tree, found {count}", objects.len());
        return Err(WorkloadError::InvalidOptions(text));
    }
    if count > 0 {
        objects.truncate(count);
    }
    Ok(objects)
}

/// Bytes of an object, which must be a relocatable one.
fn check_object(dir: &Path, object: &str) -> Result<u64, WorkloadError> {
    let path = dir.join(object);
    let mut head = [0; ELF_TYPE_OFFSET + 1];
    let bytes = File::open(&path).and_then(|mut file| {
        file.read_exact(&mut head)?;
        file.metadata().map(|meta| meta.len())
    });
    let bytes =
        bytes.map_err(|error| WorkloadError::WrongResult(format!("cannot read {object}: {error}")))?;
    match head.starts_with(ELF_MAGIC) && head[ELF_TYPE_OFFSET] == ELF_RELOCATABLE {
        true => Ok(bytes),
        false => Err(WorkloadError::WrongResult(format!("{object} is no relocatable object"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_builds::tests::{GOOD_MAKEFILE, write_tree};

    fn options(changes: &[(&str, &str)]) -> WorkloadOptions {
        let mut options = WorkloadOptions::with_defaults(WORKLOAD.options);
        for (name, typed) in changes {
            options.set_value(name, typed).unwrap();
        }
        options
    }

    fn run(changes: &[(&str, &str)]) -> WorkloadOutcome {
        run_build(&options(changes), &mut MeasuredPhase::without_observer())
    }

    #[test]
    fn a_tree_is_built_as_a_whole_or_in_part_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let Some(tree) = write_tree(folder.path(), GOOD_MAKEFILE) else { return };
        let place = folder.path().join("place");
        std::fs::create_dir(&place).unwrap();
        let always = [("tree", tree.to_str().unwrap()), ("folder", place.to_str().unwrap())];
        let with = |more: &[(&str, &str)]| run(&[&always, more].concat());
        let whole = with(&[]).unwrap();
        let figure = |name: &str| whole.figures.iter().find(|figure| figure.name == name).unwrap().value;
        assert!(figure("extract") > 0.0 && figure("build") > 0.0 && figure("object_bytes") > 100.0);
        assert_eq!(whole.figure_of_merit.value, figure("build"));
        assert_eq!(figure("objects"), 2.0);
        assert_eq!(with(&[("jobs", "2")]).unwrap().checksum, whole.checksum);
        let part = with(&[("objects", "1")]).unwrap();
        assert!(part.generated_input.ends_with(": lib/a.o"), "{}", part.generated_input);
        assert_ne!(part.checksum, whole.checksum);
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
        let error = with(&[("objects", "3")]).unwrap_err();
        assert!(
            matches!(&error, WorkloadError::InvalidOptions(text) if text.contains("at most 2")),
            "{error:?}"
        );
    }

    #[test]
    fn a_build_that_fails_or_makes_something_else_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        for (makefile, said) in [
            ("%.o:\n\t@echo no room >&2; false\n", "cannot build the objects: "),
            ("%.o:\n\t@true\n", "wrong result: cannot read lib/a.o: "),
            ("%.o:\n\t@cp lib/a.c $@\n", "wrong result: lib/a.o is no relocatable object"),
            ("x:\n\ttrue\n", "cannot build the objects: "),
        ] {
            let Some(tree) = write_tree(folder.path(), makefile) else { return };
            let error = run(&[("tree", tree.to_str().unwrap())]).unwrap_err().to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
    }
}
