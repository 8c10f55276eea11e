//! Building of pagelab's kernel module with the headers of a distribution's kernel, which are fetched and not
//! installed: three packages, `make` and the kernel's own compiler, in a folder that is removed at the end.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pagelab_model::{Failure, FailureKind};
use pagelab_packages::apt::{self, FetchHints, FetchObserver};
use pagelab_packages::program::{self, CommandError, CommandOutput};

use crate::kernel::GuestKernel;
use crate::kernel_module::{
    BuiltModule, MODULE_FILE, ModuleCache, ModuleRecord, SOURCES, read_module, source_checksum, write_record,
};
use crate::modules::modinfo_value;

/// Hints if no download is possible.
const FETCH_HINTS: FetchHints = FetchHints {
    alternative: "use --headers DIR for existing headers of this kernel",
    manual_download: "--cache DIR or XDG_CACHE_HOME",
};

/// What to do about a cache that cannot be used.
const REMEDY: &str = "use --cache DIR or XDG_CACHE_HOME";

/// Building takes seconds.
const BUILD_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Where the headers of a distribution expect each other.
const HEADERS_ROOT: &str = "usr/src";

/// Variables of the environment by which Kbuild and make build something else.
const BUILD_VARIABLES: [&str; 10] = [
    "MAKEFLAGS",
    "MFLAGS",
    "MAKELEVEL",
    "ARCH",
    "CROSS_COMPILE",
    "KBUILD_OUTPUT",
    "KBUILD_EXTMOD",
    "KCFLAGS",
    "LLVM",
    "CC",
];

/// Builds the module for a kernel into the cache, unless it is there. The headers are those in `headers`,
/// else those that apt has for this release. With `headers` it is always built.
pub fn set_up_module(
    cache: &ModuleCache,
    kernel: &GuestKernel,
    headers: Option<&Path>,
    observer: &mut dyn FetchObserver,
) -> Result<BuiltModule, Failure> {
    let is_cached = |cache: &ModuleCache| match headers {
        Some(_) => Ok(None),
        None => cache.find_module(kernel),
    };
    if let Some(module) = is_cached(cache)? {
        return Ok(module);
    }
    require_program(&kernel.release, "make", "make")?;
    let waiting_message = "another pagelab process was building a module";
    let lock = cache.store().lock_observed(waiting_message, REMEDY, observer)?;
    if let Some(module) = is_cached(cache)? {
        return Ok(module);
    }
    let store_error = |error: io::Error| cache.store().access_error(&error, REMEDY);
    let place = cache.store().build_entry(&lock, store_error, |partial| {
        let build = partial.join("build");
        fs::create_dir(&build).map_err(store_error)?;
        let headers = match headers {
            Some(dir) => open_headers(dir)?,
            None => fetch_headers(&build, &kernel.release, observer)?,
        };
        let record = build_module(&build, &headers, kernel, partial, observer)?;
        fs::remove_dir_all(&build).map_err(store_error)?;
        write_record(partial, &record).map_err(store_error)
    })?;
    let damaged = || store_error(io::Error::other(format!("{}: incomplete", place.display())));
    read_module(&place).ok_or_else(damaged)
}

fn cannot_build(release: &str, reason: &str, hint: &str) -> Failure {
    Failure::cannot(FailureKind::NotAvailable, format_args!("build the module for {release}"), reason)
        .hint(hint)
}

fn require_program(release: &str, program: &str, package: &str) -> Result<(), Failure> {
    match program::find_program(Path::new(program)) {
        Some(_) => Ok(()),
        None => {
            let reason = format!("there is no {program}");
            Err(cannot_build(release, &reason, &format!("apt-get install {package}")))
        }
    }
}

/// A folder of headers, or a kernel's own build folder, as an absolute path.
fn open_headers(dir: &Path) -> Result<PathBuf, Failure> {
    let bad = |reason: String| {
        let action = format_args!("use the headers in {}", dir.display());
        Failure::cannot(FailureKind::BadInput, action, reason)
            .hint("give the directory that has the Makefile and .config of the kernel")
    };
    let dir = fs::canonicalize(dir).map_err(|error| bad(error.to_string()))?;
    for file in ["Makefile", ".config"] {
        if !dir.join(file).is_file() {
            return Err(bad(format!("there is no {file}")));
        }
    }
    Ok(dir)
}

/// Fetches the headers of a release, their common half and their programs, and unpacks them below `build`.
fn fetch_headers(build: &Path, release: &str, observer: &mut dyn FetchObserver) -> Result<PathBuf, Failure> {
    let name = format!("linux-headers-{release}");
    fetch_package(build, release, &name, observer)?;
    let unknown = |what: &str| {
        let reason = format!("{name} has no {what} of a known form");
        cannot_build(release, &reason, FETCH_HINTS.alternative)
    };
    let headers = build.join(HEADERS_ROOT).join(&name);
    let makefile = headers.join("Makefile");
    let text = fs::read_to_string(&makefile).map_err(|_| unknown("Makefile"))?;
    let (text, common) = relocate_makefile(&text, build).ok_or_else(|| unknown("Makefile"))?;
    let scripts = fs::read_link(headers.join("scripts")).map_err(|_| unknown("link to scripts"))?;
    let programs = package_of_scripts(&scripts).ok_or_else(|| unknown("link to scripts"))?;
    require_compiler(&headers, release)?;
    fs::write(&makefile, text)
        .map_err(|error| Failure::system_error(format!("cannot write {}", makefile.display()), error))?;
    fetch_package(build, release, &common, observer)?;
    fetch_package(build, release, &programs, observer)?;
    Ok(headers)
}

fn fetch_package(
    build: &Path,
    release: &str,
    name: &str,
    observer: &mut dyn FetchObserver,
) -> Result<(), Failure> {
    let record = apt::find_package(name, &FETCH_HINTS, observer)?.ok_or_else(|| {
        let reason = format!("apt's package lists have no {name}");
        let hint =
            "run `apt-get update` as root, or `pagelab guest setup` for a newer kernel, or use --headers DIR";
        cannot_build(release, &reason, hint)
    })?;
    let package = apt::fetch_package(build, &record, &FETCH_HINTS, observer)?;
    apt::unpack_package(build, &package, name, &FETCH_HINTS, observer)
}

/// The Makefile of a distribution's headers, which includes that of the common half by its installed path,
/// for headers below `root`; and the name of the common half's package.
fn relocate_makefile(makefile: &str, root: &Path) -> Option<(String, String)> {
    let installed = format!("include /{HEADERS_ROOT}/");
    let mut package = None;
    let lines: Vec<String> = makefile
        .lines()
        .map(|line| {
            let name = line.strip_prefix(&installed).and_then(|rest| rest.strip_suffix("/Makefile"));
            let Some(name) = name.filter(|name| is_package_name(name)) else { return line.to_owned() };
            package = Some(name.to_owned());
            format!("include {}/{HEADERS_ROOT}/{name}/Makefile", root.display())
        })
        .collect();
    package.map(|package| (lines.join("\n") + "\n", package))
}

/// The package of the programs behind the link `scripts`: `../../lib/PACKAGE/scripts`.
fn package_of_scripts(target: &Path) -> Option<String> {
    let name = target.parent()?.file_name()?.to_str()?;
    (is_package_name(name) && target.ends_with("scripts")).then(|| name.to_owned())
}

/// Whether this is a name of a kernel's package, and neither a path nor an option.
fn is_package_name(name: &str) -> bool {
    name.starts_with("linux-") && name.chars().all(|c| c.is_ascii_alphanumeric() || "+-._~".contains(c))
}

/// The compiler that the kernel was built with must be here: another one may know other options.
fn require_compiler(headers: &Path, release: &str) -> Result<(), Failure> {
    let config = fs::read_to_string(headers.join(".config")).unwrap_or_default();
    let Some(compiler) = compiler_name(&config) else { return Ok(()) };
    let package = compiler.find("gcc").map_or(compiler, |at| &compiler[at..]);
    require_program(release, compiler, package)
}

/// The program that built the kernel of a `.config`: the first word of CONFIG_CC_VERSION_TEXT (4.18).
fn compiler_name(config: &str) -> Option<&str> {
    let text = config.lines().find_map(|line| line.strip_prefix("CONFIG_CC_VERSION_TEXT=\""))?;
    text.split([' ', '"']).next().filter(|name| !name.is_empty())
}

/// Builds the module from the embedded sources and puts it into `partial`.
fn build_module(
    build: &Path,
    headers: &Path,
    kernel: &GuestKernel,
    partial: &Path,
    observer: &mut dyn FetchObserver,
) -> Result<ModuleRecord, Failure> {
    let release = &kernel.release;
    require_compiler(headers, release)?;
    let sources = build.join("kmod");
    let write_error =
        |error: io::Error| Failure::system_error(format!("cannot write {}", build.display()), error);
    fs::create_dir(&sources).map_err(write_error)?;
    for (name, text) in SOURCES {
        fs::write(sources.join(name), text).map_err(write_error)?;
    }
    observer.report_progress(&format!("building the module for {release}"));
    let output = run_make(headers, &sources, observer)?;
    let module = fs::read(sources.join(MODULE_FILE)).ok().filter(|_| output.status.success());
    let Some(module) = module else {
        let action = format!("cannot build the module for {release}");
        return Err(apt::command_error(&action, &output, "check the headers and the compiler", &FETCH_HINTS));
    };
    let vermagic = modinfo_value(&module, "vermagic").unwrap_or_default();
    if vermagic.split(' ').next() != Some(release) {
        let reason = format!("the headers are of another kernel, `{vermagic}`");
        return Err(cannot_build(release, &reason, "give the headers of this kernel"));
    }
    fs::write(partial.join(MODULE_FILE), &module).map_err(write_error)?;
    Ok(ModuleRecord {
        release: release.clone(),
        kernel_version: kernel.version()?,
        vermagic,
        source_checksum: source_checksum(&SOURCES),
        module_bytes: module.len() as u64,
    })
}

/// Kbuild for an external module. Types for BPF need pahole, and only if a vmlinux is among the headers
/// (6.12): they are left out, as are debugging symbols, which hold the names of folders.
fn run_make(
    headers: &Path,
    sources: &Path,
    observer: &mut dyn FetchObserver,
) -> Result<CommandOutput, Failure> {
    let mut make = Command::new("make");
    for name in BUILD_VARIABLES {
        make.env_remove(name);
    }
    make.arg("-C").arg(headers).arg(format!("M={}", sources.display()));
    make.args(["CONFIG_DEBUG_INFO_BTF_MODULES=", "KCFLAGS=-g0", "modules"]);
    let output = program::run_command(&mut make, BUILD_TIMEOUT, &mut || observer.stop_signal());
    output.map_err(|error| match error {
        CommandError::NotFound => Failure::not_available("cannot run make; hint: apt-get install make"),
        CommandError::RunFailed(error) => Failure::system_error("cannot run make", error),
        CommandError::TimedOut(limit) => {
            Failure::not_available(format!("cannot run make: it was killed after {} s", limit.as_secs()))
        }
        CommandError::Stopped(signal) => Failure::stopped(signal),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_half_is_included_from_where_it_was_unpacked() {
        let root = Path::new("/cache/.partial-1/build");
        let rewritten = |text: &str| relocate_makefile(text, root);
        let common = "linux-headers-6.12.117+deb12-common";
        assert_eq!(
            rewritten(&format!("include /usr/src/{common}/Makefile\n")),
            Some((format!("include /cache/.partial-1/build/usr/src/{common}/Makefile\n"), common.to_owned()))
        );
        let (text, name) = rewritten("# a\ninclude /usr/src/linux-headers-6.1.0-57-common/Makefile").unwrap();
        assert_eq!(name, "linux-headers-6.1.0-57-common");
        assert!(text.starts_with("# a\ninclude /cache/") && text.lines().count() == 2, "{text}");
        for bad in [
            "",
            "VERSION = 6\n",
            "include /usr/src/../x/Makefile\n",
            "include /usr/src/--option/Makefile\n",
            "include /usr/src/linux-x/y/Makefile\n",
            "include /usr/src/linux-x/Makefile.inc\n",
        ] {
            assert_eq!(rewritten(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_programs_and_the_compiler_of_the_headers_are_known() {
        let package = |target: &str| package_of_scripts(Path::new(target));
        assert_eq!(package("../../lib/linux-kbuild-6.1/scripts").as_deref(), Some("linux-kbuild-6.1"));
        for bad in ["scripts", "../../lib/--help/scripts", "../../lib/linux-kbuild-6.1/tools", "/"] {
            assert_eq!(package(bad), None, "{bad}");
        }
        let config = "CONFIG_X=y\nCONFIG_CC_VERSION_TEXT=\"gcc-12 (Debian 12.2.0-14) 12.2.0\"\n";
        assert_eq!(compiler_name(config), Some("gcc-12"));
        assert_eq!(compiler_name("CONFIG_CC_VERSION_TEXT=\"\"\n"), None);
        assert_eq!(compiler_name(""), None);
    }

    #[test]
    fn headers_that_are_none_are_refused_with_a_hint() {
        let dir = tempfile::tempdir().unwrap();
        let error = open_headers(dir.path()).unwrap_err().to_string();
        assert!(error.contains("there is no Makefile"), "{error}");
        fs::write(dir.path().join("Makefile"), "").unwrap();
        fs::write(dir.path().join(".config"), "").unwrap();
        assert!(open_headers(dir.path()).is_ok());
        assert!(open_headers(Path::new("/no/such/headers")).is_err());
    }
}
