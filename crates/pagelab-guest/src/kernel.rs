//! A kernel that can be booted: its image, its release, its modules.

mod unlisted;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind};
use crate::modules::Modules;

/// A kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// What `uname -r` will say, from the image's own head.
    pub release: String,
    /// The image (bzImage).
    pub image: PathBuf,
    /// The folder of its modules, with `modules.dep`; a kernel with all built in needs none.
    pub modules: Option<PathBuf>,
    /// The package that it is from, where it is from one.
    pub package: Option<Package>,
}

/// Where a kernel in the cache is from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
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
    /// Bytes of the image, to tell that it is whole.
    pub image_bytes: u64,
}

/// Bytes of an image that hold its head.
const HEAD: u64 = 64 << 10;

/// The release in a bzImage's head (Documentation/arch/x86/boot.rst): `HdrS` at 0x202, at 0x20e the place
/// of the version's text less 0x200.
pub fn release_of(head: &[u8]) -> Option<String> {
    if head.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let place = usize::from(u16::from_le_bytes([*head.get(0x20e)?, *head.get(0x20f)?]));
    let text = head.get(place.checked_add(0x200)?..)?;
    let end = text.iter().take(256).position(|&byte| byte == 0 || byte == b' ')?;
    let release = std::str::from_utf8(&text[..end]).ok()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "+-._~".contains(c);
    (!release.is_empty() && release.chars().all(is_plain)).then(|| release.to_owned())
}

/// Whether a release belongs to a series such as `6.1`: the numbers are the same, and no digit goes on.
pub fn is_of_series(release: &str, series: &str) -> bool {
    release.strip_prefix(series).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

impl Kernel {
    /// The kernel in a file, or in a folder with `boot/vmlinuz-*` in it. Its modules are those of its release
    /// in `modules`, beside it (`../lib/modules/RELEASE`), or on this machine.
    pub fn at(path: &Path, modules: Option<&Path>) -> Result<Kernel, Error> {
        let no = |why: String| {
            let way_out = "name a vmlinuz that is there, or a series such as 6.1, which is fetched";
            Error::new(Kind::Input, format!("{}: {why}; {way_out}", path.display()))
        };
        let image = if path.is_dir() { image_below(path).map_err(no)? } else { path.to_owned() };
        let image = fs::canonicalize(&image).map_err(|error| no(error.to_string()))?;
        if image.as_os_str().to_str().is_none_or(|text| text.contains(',')) {
            return Err(no("QEMU takes no path with a comma, or with bytes that are no text".to_owned()));
        }
        let mut head = Vec::new();
        let file = File::open(&image).map_err(|error| no(error.to_string()))?;
        file.take(HEAD).read_to_end(&mut head).map_err(|error| no(error.to_string()))?;
        let release = release_of(&head)
            .ok_or_else(|| no("is no Linux kernel image for x86 (a vmlinuz was wanted)".to_owned()))?;
        let has_list = |folder: &PathBuf| {
            ["modules.dep", "modules.builtin"].iter().any(|list| folder.join(list).is_file())
        };
        let modules = match modules {
            Some(folder) => {
                let folders =
                    [folder.to_owned(), folder.join(&release), folder.join("lib/modules").join(&release)];
                let found = folders.into_iter().find(has_list);
                let why = || {
                    let (folder, way_out) = (folder.display(), "the folder with its modules.dep is wanted");
                    Error::new(Kind::Input, format!("--modules {folder}: no modules of {release}; {way_out}"))
                };
                Some(found.ok_or_else(why)?)
            }
            None => {
                let beside = image.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
                [beside, Path::new("/")]
                    .map(|root| root.join("lib/modules").join(&release))
                    .into_iter()
                    .find(has_list)
            }
        };
        Ok(Kernel { release, image, modules, package: None })
    }

    /// The files of the modules `wanted` and of what they need, in the order to load them.
    pub fn module_files(&self, wanted: &[&str]) -> Result<Vec<PathBuf>, Error> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let no = |why: String| Error::new(Kind::NotAvailable, format!("kernel {}: {why}", self.release));
        let Some(folder) = &self.modules else {
            let why = "its modules were not found; a way out: --modules DIR, the folder with its modules.dep";
            return Err(no(format!("this shape wants {}, and {why}", wanted.join(", "))));
        };
        let builtin = fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
        let modules = match fs::read_to_string(folder.join("modules.dep")) {
            Ok(dep) => Modules::parse(&dep, &builtin),
            // A package has no such list: `depmod` writes it when the package is installed.
            Err(_) => Modules::parse(&unlisted::needs(folder, wanted), &builtin),
        };
        let files = modules.load_order(wanted).map_err(|name| {
            no(format!("it has no {name}, neither built in nor as a module: another kernel?"))
        })?;
        Ok(files.iter().map(|file| folder.join(file)).collect())
    }
}

/// The one image in a folder, or in its `boot`.
fn image_below(folder: &Path) -> Result<PathBuf, String> {
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
        [] => Err("no vmlinuz in it, nor in its boot folder".to_owned()),
        several => Err(format!("{} kernels in it; name one", several.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(release: &str) -> Vec<u8> {
        let mut head = vec![0; 0x400];
        head[0x202..0x206].copy_from_slice(b"HdrS");
        head[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        head[0x300..0x300 + release.len()].copy_from_slice(release.as_bytes());
        head
    }

    #[test]
    fn the_release_stands_in_the_image() {
        let release = |text: &str| release_of(&image(text));
        assert_eq!(release("6.1.0-56-cloud-amd64 (debian@x) #1").as_deref(), Some("6.1.0-56-cloud-amd64"));
        assert_eq!(release("6.12.117+deb12-cloud-amd64 (x)").as_deref(), Some("6.12.117+deb12-cloud-amd64"));
        for bad in ["", "../x ", "a\n "] {
            assert_eq!(release(bad), None, "{bad:?}");
        }
        for length in 0..0x400 {
            release_of(&image("6.1 ")[..length]);
        }
        assert_eq!(release_of(&[0xff; 4000]), None);
    }

    #[test]
    fn series() {
        for (release, series, is) in [
            ("6.1.0-56-cloud-amd64", "6.1", true),
            ("6.12.117+deb12", "6.1", false),
            ("6.12.117+deb12", "6.12", true),
            ("6.1.0-56", "6.1.0-5", false),
        ] {
            assert_eq!(is_of_series(release, series), is, "{release} {series}");
        }
    }

    #[test]
    fn a_kernel_is_found_with_its_modules_and_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let said = |path: &Path, modules: Option<&Path>| Kernel::at(path, modules).unwrap_err().to_string();
        assert!(said(root, None).contains("no vmlinuz in it"));
        fs::create_dir_all(root.join("boot")).unwrap();
        fs::write(root.join("boot/vmlinuz-x"), image("6.1.7-x ")).unwrap();
        let kernel = Kernel::at(root, None).unwrap();
        assert_eq!((kernel.release.as_str(), &kernel.modules), ("6.1.7-x", &None));
        assert!(kernel.module_files(&["virtio_blk"]).unwrap_err().to_string().contains("--modules DIR"));
        assert_eq!(kernel.module_files(&[]).unwrap(), Vec::<PathBuf>::new());
        assert!(said(&root.join("boot/vmlinuz-x"), Some(root)).contains("no modules of 6.1.7-x"));
        let modules = root.join("lib/modules/6.1.7-x");
        fs::create_dir_all(&modules).unwrap();
        fs::write(modules.join("modules.dep"), "a/b.ko:\n").unwrap();
        let kernel = Kernel::at(&root.join("boot/vmlinuz-x"), None).unwrap();
        assert_eq!(kernel.module_files(&["b"]).unwrap().len(), 1);
        assert!(kernel.module_files(&["c"]).unwrap_err().to_string().contains("it has no c"));
        fs::write(root.join("boot/vmlinuz-y"), "no").unwrap();
        assert!(said(root, None).contains("2 kernels in it"));
        assert!(said(&root.join("boot/vmlinuz-y"), None).contains("is no Linux kernel image"));
    }
}
