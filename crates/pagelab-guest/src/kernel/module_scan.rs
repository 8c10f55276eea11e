//! Dependencies of modules, read from the modules if `depmod` has not written a list.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::modules::{modinfo_value, module_name};

/// What the compressed modules of the virtio family need, since their own word cannot be read without
/// unpacking them. A kernel has some of these built in.
const VIRTIO_DEPENDENCIES: [(&str, &[&str]); 4] = [
    ("virtio", &["virtio_ring"]),
    ("virtio_pci", &["virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio", "virtio_ring"]),
    ("virtio_blk", &["virtio", "virtio_ring"]),
    ("virtio_console", &["virtio", "virtio_ring"]),
];

/// Folders below a modules' folder at most; Debian's has 6.
const DEPTH_MAX: usize = 12;

/// Lines as in `modules.dep` for `module_names` and their dependencies, if they are files in `dir`.
pub fn list_dependencies(dir: &Path, module_names: &[&str]) -> String {
    let mut files = BTreeMap::new();
    collect_modules(dir, "kernel", 0, &mut files);
    let mut lines: BTreeMap<String, String> = BTreeMap::new();
    let mut open: Vec<String> = module_names.iter().map(|name| (*name).to_owned()).collect();
    while let Some(module) = open.pop() {
        let Some(file) = files.get(&module).filter(|_| !lines.contains_key(&module)) else { continue };
        let needs = read_dependencies(&module, &dir.join(file));
        // Built-in modules have no file, and the loader has its own list of them.
        let needed: Vec<&str> = needs.iter().filter_map(|name| files.get(name).map(String::as_str)).collect();
        lines.insert(module, format!("{file}: {}\n", needed.join(" ")));
        open.extend(needs);
    }
    lines.into_values().collect()
}

fn collect_modules(dir: &Path, relative_path: &str, depth: usize, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir.join(relative_path)).into_iter().flatten().flatten() {
        let path = format!("{relative_path}/{}", entry.file_name().to_string_lossy());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth < DEPTH_MAX => collect_modules(dir, &path, depth + 1, files),
            Ok(kind) if kind.is_file() && path.contains(".ko") => {
                drop(files.insert(module_name(&path), path))
            }
            _ => {}
        }
    }
}

/// The names in the module's own `depends=` (section .modinfo), or of the family that we know.
fn read_dependencies(module: &str, file: &Path) -> Vec<String> {
    let bytes = match file.extension().is_some_and(|extension| extension == "ko") {
        true => fs::read(file).unwrap_or_default(),
        false => Vec::new(),
    };
    if let Some(names) = modinfo_value(&bytes, "depends") {
        return names.split(',').filter(|name| !name.is_empty()).map(module_name).collect();
    }
    let known = VIRTIO_DEPENDENCIES.iter().find(|(name, _)| *name == module);
    known.map(|(_, needs)| needs.iter().map(|name| (*name).to_owned()).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_say_what_they_need_and_compressed_ones_are_known() {
        let dir = tempfile::tempdir().unwrap();
        let drivers = dir.path().join("kernel/drivers");
        fs::create_dir_all(&drivers).unwrap();
        fs::write(drivers.join("a.ko"), b"\x7fELF\0license=GPL\0depends=b,c-d\0name=a\0").unwrap();
        fs::write(drivers.join("b.ko"), b"\0depends=\0").unwrap();
        fs::write(drivers.join("c_d.ko"), b"\0depends=a\0").unwrap();
        fs::write(drivers.join("virtio_blk.ko.xz"), b"\xfd7zXZ").unwrap();
        fs::write(drivers.join("virtio_ring.ko.xz"), b"").unwrap();
        let needs = |wanted: &[&str]| list_dependencies(dir.path(), wanted).replace("kernel/drivers/", "");
        assert_eq!(needs(&["a"]), "a.ko: b.ko c_d.ko\nb.ko: \nc_d.ko: a.ko\n");
        let blk = "virtio_blk.ko.xz: virtio_ring.ko.xz\nvirtio_ring.ko.xz: \n";
        assert_eq!(needs(&["virtio_blk", "none"]), blk);
        assert_eq!(list_dependencies(&dir.path().join("none"), &["a"]), "");
    }
}
