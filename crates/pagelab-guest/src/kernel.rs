//! Bootable kernel: its image, release and modules.

mod module_scan;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use pagelab_model::failure::describe_io_error;
use pagelab_model::{Failure, FailureKind};
use serde::{Deserialize, Serialize};

use crate::modules::ModuleIndex;

/// A kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestKernel {
    /// What `uname -r` will say, from the image's own head.
    pub release: String,
    /// The image (bzImage).
    pub image: PathBuf,
    /// The folder of its modules, with `modules.dep`; a kernel with all built in needs none.
    pub modules: Option<PathBuf>,
    /// The package that it is from, where it is from one.
    pub package: Option<KernelPackage>,
}

/// Where a kernel in the cache is from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelPackage {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of the package in hexadecimal, as the distribution's signed list has it; apt checked it.
    pub sha256: String,
    /// Bytes of the package.
    pub package_bytes: u64,
    /// The kernel's release.
    pub release: String,
    /// Bytes of the image, to detect truncation.
    pub image_bytes: u64,
}

/// Bytes of an image that hold its head.
const IMAGE_HEADER_BYTES: u64 = 64 << 10;

/// The release in a bzImage's head (Documentation/arch/x86/boot.rst): `HdrS` at 0x202, at 0x20e the place
/// of the version's text less 0x200.
pub fn parse_release(header: &[u8]) -> Option<String> {
    let text = version_bytes(header)?;
    let end = text.iter().take(VERSION_BYTES_MAX).position(|&byte| byte == 0 || byte == b' ')?;
    let release = std::str::from_utf8(&text[..end]).ok()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "+-._~".contains(c);
    (!release.is_empty() && release.chars().all(is_plain)).then(|| release.to_owned())
}

/// The whole version text in a bzImage's head: the release, who built it, the number of the build, its date.
/// Two builds of one release differ in it.
fn parse_version(header: &[u8]) -> Option<String> {
    let text = version_bytes(header)?;
    let end = text.iter().take(VERSION_BYTES_MAX).position(|&byte| byte == 0)?;
    Some(String::from_utf8_lossy(&text[..end]).into_owned())
}

/// Bytes of a version text at most (COMPILE_STRING is shorter).
const VERSION_BYTES_MAX: usize = 256;

fn version_bytes(header: &[u8]) -> Option<&[u8]> {
    if header.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let place = usize::from(u16::from_le_bytes([*header.get(0x20e)?, *header.get(0x20f)?]));
    header.get(place.checked_add(0x200)?..)
}

/// Whether a release belongs to a series such as `6.1`: the numbers are equal, and no further digit follows.
pub fn matches_series(release: &str, series: &str) -> bool {
    release.strip_prefix(series).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

impl GuestKernel {
    /// The kernel in a file, or in a folder with `boot/vmlinuz-*` in it. Its modules are those of its release
    /// in `modules`, beside it (`../lib/modules/RELEASE`), or on this machine.
    pub fn open(path: &Path, modules: Option<&Path>) -> Result<GuestKernel, Failure> {
        let cannot_use = |kind: FailureKind, why: String| {
            let hint = "use an existing vmlinuz, or a series such as 6.1, which is downloaded";
            Failure::new(kind, format!("cannot use the kernel {}: {why}; hint: {hint}", path.display()))
        };
        let input_error = |why: String| cannot_use(FailureKind::BadInput, why);
        let unread = |error: io::Error| {
            cannot_use(FailureKind::of_read_error(error.kind()), describe_io_error(&error))
        };
        let image = if path.is_dir() { find_image(path).map_err(input_error)? } else { path.to_owned() };
        let image = fs::canonicalize(&image).map_err(unread)?;
        if image.as_os_str().to_str().is_none_or(|text| text.contains(',')) {
            return Err(input_error("QEMU does not accept paths with commas or non-UTF-8 bytes".to_owned()));
        }
        let header = read_header(&image).map_err(unread)?;
        let release = parse_release(&header)
            .ok_or_else(|| input_error("expected a Linux kernel image for x86 (vmlinuz)".to_owned()))?;
        let has_modules_dep = |folder: &PathBuf| {
            ["modules.dep", "modules.builtin"].iter().any(|list| folder.join(list).is_file())
        };
        let modules = match modules {
            Some(folder) => {
                let folders =
                    [folder.to_owned(), folder.join(&release), folder.join("lib/modules").join(&release)];
                let found = folders.into_iter().find(has_modules_dep);
                let why = || {
                    let (folder, hint) = (folder.display(), "give the directory with modules.dep");
                    let message =
                        format!("cannot use the modules in {folder}: none for {release}; hint: {hint}");
                    Failure::new(FailureKind::BadInput, message)
                };
                Some(found.ok_or_else(why)?)
            }
            None => {
                let beside = image.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
                [beside, Path::new("/")]
                    .map(|root| root.join("lib/modules").join(&release))
                    .into_iter()
                    .find(has_modules_dep)
            }
        };
        Ok(GuestKernel { release, image, modules, package: None })
    }

    /// The version text of the image, which no other build has: `6.1.0-9-amd64 (who@where) #1 SMP … DATE`.
    pub fn version(&self) -> Result<String, Failure> {
        let header =
            read_header(&self.image).map_err(|error| Failure::cannot_read(self.image.display(), &error))?;
        Ok(parse_version(&header).unwrap_or_else(|| self.release.clone()))
    }

    /// Files of the modules `module_names` and their dependencies, in load order.
    pub fn module_files(&self, module_names: &[&str]) -> Result<Vec<PathBuf>, Failure> {
        if module_names.is_empty() {
            return Ok(Vec::new());
        }
        let input_error = |why: String| {
            Failure::new(FailureKind::NotAvailable, format!("cannot use the kernel {}: {why}", self.release))
        };
        let Some(folder) = &self.modules else {
            let why = "its modules were not found; hint: --modules DIR, the directory with modules.dep";
            return Err(input_error(format!("it needs {}, and {why}", module_names.join(", "))));
        };
        let builtin = fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
        let modules = match fs::read_to_string(folder.join("modules.dep")) {
            Ok(dep) => ModuleIndex::parse(&dep, &builtin),
            // A package has no such list: `depmod` writes it when the package is installed.
            Err(_) => ModuleIndex::parse(&module_scan::list_dependencies(folder, module_names), &builtin),
        };
        let files = modules.load_order(module_names).map_err(|name| {
            input_error(format!(
                "it has no {name}, neither built in nor as a module; hint: use another kernel"
            ))
        })?;
        Ok(files.iter().map(|file| folder.join(file)).collect())
    }
}

fn read_header(image: &Path) -> io::Result<Vec<u8>> {
    let mut header = Vec::new();
    File::open(image)?.take(IMAGE_HEADER_BYTES).read_to_end(&mut header)?;
    Ok(header)
}

/// The one image in a folder, or in its `boot`.
fn find_image(folder: &Path) -> Result<PathBuf, String> {
    let images = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_image = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("vmlinuz"))
        };
        let mut images: Vec<PathBuf> = entries.filter(is_image).collect();
        images.sort();
        images
    };
    let found = [images(&folder.join("boot")), images(folder)].concat();
    match &found[..] {
        [image] => Ok(image.clone()),
        [] => Err("no vmlinuz in it or in its boot directory".to_owned()),
        several => Err(format!("expected one kernel in it, found {}", several.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(release: &str) -> Vec<u8> {
        let mut header = vec![0; 0x400];
        header[0x202..0x206].copy_from_slice(b"HdrS");
        header[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        header[0x300..0x300 + release.len()].copy_from_slice(release.as_bytes());
        header
    }

    #[test]
    fn the_release_stands_in_the_image() {
        let release = |text: &str| parse_release(&image(text));
        assert_eq!(release("6.1.0-56-cloud-amd64 (debian@x) #1").as_deref(), Some("6.1.0-56-cloud-amd64"));
        assert_eq!(release("6.12.117+deb12-cloud-amd64 (x)").as_deref(), Some("6.12.117+deb12-cloud-amd64"));
        for bad in ["", "../x ", "a\n "] {
            assert_eq!(release(bad), None, "{bad:?}");
        }
        for length in 0..0x400 {
            parse_release(&image("6.1 ")[..length]);
        }
        assert_eq!(parse_release(&[0xff; 4000]), None);
        let text = "6.1.0-56-cloud-amd64 (debian@x) #1 SMP Debian 6.1.192-2 (2026-05-01)";
        assert_eq!(parse_version(&image(text)).as_deref(), Some(text));
        assert_eq!(parse_version(&[0xff; 4000]), None);
    }

    #[test]
    fn series() {
        for (release, series, is) in [
            ("6.1.0-56-cloud-amd64", "6.1", true),
            ("6.12.117+deb12", "6.1", false),
            ("6.12.117+deb12", "6.12", true),
            ("6.1.0-56", "6.1.0-5", false),
        ] {
            assert_eq!(matches_series(release, series), is, "{release} {series}");
        }
    }

    #[test]
    fn a_kernel_is_found_with_its_modules_and_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let said =
            |path: &Path, modules: Option<&Path>| GuestKernel::open(path, modules).unwrap_err().to_string();
        assert!(said(root, None).contains("no vmlinuz in it"));
        fs::create_dir_all(root.join("boot")).unwrap();
        fs::write(root.join("boot/vmlinuz-x"), image("6.1.7-x ")).unwrap();
        let kernel = GuestKernel::open(root, None).unwrap();
        assert_eq!((kernel.release.as_str(), &kernel.modules), ("6.1.7-x", &None));
        assert!(kernel.module_files(&["virtio_blk"]).unwrap_err().to_string().contains("--modules DIR"));
        assert_eq!(kernel.module_files(&[]).unwrap(), Vec::<PathBuf>::new());
        assert!(said(&root.join("boot/vmlinuz-x"), Some(root)).contains("none for 6.1.7-x"));
        let modules = root.join("lib/modules/6.1.7-x");
        fs::create_dir_all(&modules).unwrap();
        fs::write(modules.join("modules.dep"), "a/b.ko:\n").unwrap();
        let kernel = GuestKernel::open(&root.join("boot/vmlinuz-x"), None).unwrap();
        assert_eq!(kernel.module_files(&["b"]).unwrap().len(), 1);
        assert!(kernel.module_files(&["c"]).unwrap_err().to_string().contains("it has no c"));
        fs::write(root.join("boot/vmlinuz-y"), "no").unwrap();
        assert!(said(root, None).contains("expected one kernel in it, found 2"));
        assert!(said(&root.join("boot/vmlinuz-y"), None).contains("expected a Linux kernel image"));
    }
}
