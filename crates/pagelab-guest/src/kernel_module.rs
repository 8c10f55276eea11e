//! pagelab's own kernel module for guests (`kmod/`): its sources, and the cache of what was built from them.
//!
//! `modules/RELEASE_KERNEL_SOURCE/` holds `pagelab.ko`, and `module.json` beside it. The second part of the
//! name is a checksum of the kernel's version text, which no other build has: without CONFIG_MODVERSIONS a
//! kernel would load a module of another build with the same release. The third is one of the sources.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pagelab_formats::checksum::crc32;
use pagelab_model::Failure;
use pagelab_packages::store::DirectoryStore;
use serde::{Deserialize, Serialize};

use crate::kernel::GuestKernel;

/// File name of the module.
pub const MODULE_FILE: &str = "pagelab.ko";
const RECORD_FILE: &str = "module.json";

/// The sources, by file name.
pub const SOURCES: [(&str, &str); 11] = [
    ("Kbuild", include_str!("../../../kmod/Kbuild")),
    ("attempts.c", include_str!("../../../kmod/attempts.c")),
    ("compaction.c", include_str!("../../../kmod/compaction.c")),
    ("counters.c", include_str!("../../../kmod/counters.c")),
    ("grouping.c", include_str!("../../../kmod/grouping.c")),
    ("hooks.c", include_str!("../../../kmod/hooks.c")),
    ("linear.c", include_str!("../../../kmod/linear.c")),
    ("main.c", include_str!("../../../kmod/main.c")),
    ("pagelab.h", include_str!("../../../kmod/pagelab.h")),
    ("reclaim.c", include_str!("../../../kmod/reclaim.c")),
    ("symbols.c", include_str!("../../../kmod/symbols.c")),
];

/// A module that was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltModule {
    /// Its file.
    pub path: PathBuf,
    /// What it was built for.
    pub record: ModuleRecord,
}

/// What a module of the cache was built for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleRecord {
    /// The kernel's release.
    pub release: String,
    /// The kernel's version text, from its image.
    pub kernel_version: String,
    /// The module's own word for the kernels that may load it.
    pub vermagic: String,
    /// Checksum of the sources, see [`source_checksum`].
    pub source_checksum: String,
    /// Bytes of the module, to detect truncation.
    pub module_bytes: u64,
}

/// The folder of built modules.
#[derive(Clone, Debug)]
pub struct ModuleCache(DirectoryStore);

impl ModuleCache {
    /// The cache below `dir`, which is pagelab's own folder for what can be made again.
    pub fn in_dir(dir: &Path) -> ModuleCache {
        ModuleCache(DirectoryStore::new(dir.join("modules")))
    }

    /// The store of the modules.
    pub fn store(&self) -> &DirectoryStore {
        &self.0
    }

    /// The module of these sources for this build of a kernel, if there is a whole one.
    pub fn find_module(&self, kernel: &GuestKernel) -> Result<Option<BuiltModule>, Failure> {
        let version = kernel.version()?;
        let dir = self.0.dir().join(entry_name(&kernel.release, &version, &source_checksum(&SOURCES)));
        Ok(read_module(&dir).filter(|module| module.record.kernel_version == version))
    }
}

/// Checksum of names and texts, in hexadecimal.
pub fn source_checksum(sources: &[(&str, &str)]) -> String {
    let all: Vec<u8> = sources
        .iter()
        .flat_map(|(name, text)| [name.as_bytes(), b"\0", text.as_bytes(), b"\0"])
        .flatten()
        .copied()
        .collect();
    format!("{:08x}", crc32(&all))
}

/// Adds the record to a folder that has the module, and returns the name of its entry.
pub fn write_record(dir: &Path, record: &ModuleRecord) -> io::Result<String> {
    fs::write(dir.join(RECORD_FILE), serde_json::to_vec_pretty(record)?)?;
    Ok(entry_name(&record.release, &record.kernel_version, &record.source_checksum))
}

/// The module in a folder of the cache, if it is whole.
pub fn read_module(dir: &Path) -> Option<BuiltModule> {
    let record: ModuleRecord = serde_json::from_slice(&fs::read(dir.join(RECORD_FILE)).ok()?).ok()?;
    let path = dir.join(MODULE_FILE);
    let is_whole = fs::metadata(&path).is_ok_and(|meta| meta.len() == record.module_bytes);
    is_whole.then_some(BuiltModule { path, record })
}

/// Name of the entry of a kernel and of sources.
fn entry_name(release: &str, kernel_version: &str, source_checksum: &str) -> String {
    format!("{release}_{:08x}_{source_checksum}", crc32(kernel_version.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::module_features::FEATURES;

    #[test]
    fn a_module_is_found_for_its_kernel_and_its_sources_alone() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("vmlinuz");
        let kernel = |version: &str| {
            let mut header = vec![0; 0x400];
            header[0x202..0x206].copy_from_slice(b"HdrS");
            header[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
            header[0x300..0x300 + version.len()].copy_from_slice(version.as_bytes());
            fs::write(&image, header).unwrap();
            GuestKernel::open(&image, None).unwrap()
        };
        let first = kernel("6.1.7-x (who) #1 SMP");
        let cache = ModuleCache::in_dir(dir.path());
        assert_eq!(cache.find_module(&first).unwrap(), None);
        let record = ModuleRecord {
            release: first.release.clone(),
            kernel_version: first.version().unwrap(),
            vermagic: "6.1.7-x SMP".into(),
            source_checksum: source_checksum(&SOURCES),
            module_bytes: 3,
        };
        let partial = dir.path().join("partial");
        fs::create_dir(&partial).unwrap();
        fs::write(partial.join(MODULE_FILE), "elf").unwrap();
        let entry = cache.store().dir().join(write_record(&partial, &record).unwrap());
        fs::create_dir(cache.store().dir()).unwrap();
        fs::rename(&partial, &entry).unwrap();
        let module = cache.find_module(&first).unwrap().unwrap();
        assert_eq!((module.record, module.path), (record, entry.join(MODULE_FILE)));
        // Another build of the same release, and a module that was cut off.
        assert_eq!(cache.find_module(&kernel("6.1.7-x (who) #2 SMP")).unwrap(), None);
        fs::write(entry.join(MODULE_FILE), "el").unwrap();
        assert_eq!(cache.find_module(&kernel("6.1.7-x (who) #1 SMP")).unwrap(), None);
    }

    /// The names are those of the sources, in their order.
    #[test]
    fn features_and_their_states_are_those_of_the_sources() {
        let texts: String = SOURCES.iter().map(|(_, text)| *text).collect();
        for (name, states) in FEATURES {
            assert!(texts.contains(&format!("\t.name = \"{name}\",\n")), "{name}");
            let at = |state: &&str| texts.find(&format!("] = {{ \"{state}\" }},\n"));
            let places: Option<Vec<usize>> = states.iter().map(at).collect();
            assert!(places.is_some_and(|places| places.is_sorted()), "{name}: {states:?}");
        }
        let files = SOURCES.iter().filter(|(_, text)| text.contains("\nstruct pagelab_feature pagelab_"));
        assert_eq!(files.count(), FEATURES.len());
    }

    #[test]
    fn every_change_of_a_source_changes_the_checksum() {
        let sums = [
            source_checksum(&[("a", "b"), ("c", "d")]),
            source_checksum(&[("a", "b"), ("c", "e")]),
            source_checksum(&[("a", "b"), ("x", "d")]),
            source_checksum(&[("a", "bc"), ("", "d")]),
            source_checksum(&[("a", "b")]),
        ];
        let distinct: std::collections::BTreeSet<&String> = sums.iter().collect();
        assert_eq!(distinct.len(), sums.len(), "{sums:?}");
        assert_eq!(sums[0], source_checksum(&[("a", "b"), ("c", "d")]));
        let mut names: Vec<&str> = SOURCES.iter().map(|(name, _)| *name).collect();
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kmod");
        let mut files: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        files.sort_unstable();
        assert_eq!(names, files, "every file of kmod/ is embedded");
    }
}
