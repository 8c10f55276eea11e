//! Settings of the kernel of a guest: sysctls and the multi-generational LRU. They are written before a
//! trial, read back, and never restored: the guest is discarded.

use std::fs;
use std::path::{Path, PathBuf};

use pagelab_host::paths;

use crate::recipe::LRU_GEN;

/// Writes each setting and reads back what the kernel made of it. The error names the first that differs.
pub fn apply(settings: &[(String, String)]) -> Result<(), String> {
    settings.iter().try_for_each(|(name, value)| apply_at(&setting_file(name), name, value))
}

/// Names with dots are sysctls; a dot in a part of a name is not supported, as by sysctl(8) without slashes.
fn setting_file(name: &str) -> PathBuf {
    match name {
        LRU_GEN => PathBuf::from(paths::LRU_GEN_ENABLED),
        sysctl => Path::new(paths::SYSCTLS).join(sysctl.replace('.', "/")),
    }
}

fn apply_at(file: &Path, name: &str, value: &str) -> Result<(), String> {
    let cannot = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("{name}: this kernel does not have it ({})", file.display()),
        _ => format!("cannot set {name} to {value:?}: {error}"),
    };
    let written = match (name, value) {
        (LRU_GEN, "yes" | "y" | "1") => "y",
        (LRU_GEN, _) => "n",
        (_, "yes") => "1",
        (_, "no") => "0",
        (_, value) => value,
    };
    // Without O_CREAT: in a file system that can create files, a wrong name would become one.
    fs::metadata(file).map_err(cannot)?;
    fs::write(file, written).map_err(cannot)?;
    let found = fs::read_to_string(file).map_err(cannot)?;
    let found = found.trim();
    let is_same = match name {
        // A mask of its parts (mm/vmscan.c, `enabled_show`).
        LRU_GEN => (found != "0x0000") == (written == "y"),
        _ => found.split_whitespace().eq(written.split_whitespace()),
    };
    match is_same {
        true => Ok(()),
        false => Err(format!("{name}: {written:?} was written, but the kernel has {found:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x");
        assert!(apply_at(&file, "vm.x", "1").unwrap_err().contains("vm.x: this kernel does not have it"));
        fs::write(&file, "").unwrap();
        for (name, value, found) in
            [("vm.x", "5", "5"), ("vm.x", "no", "0"), ("vm.x", "4096 87380", "4096 87380")]
        {
            apply_at(&file, name, value).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), found);
        }
        // What a plain file keeps is no mask.
        assert_eq!(
            apply_at(&file, LRU_GEN, "no").unwrap_err(),
            "lru_gen: \"n\" was written, but the kernel has \"n\""
        );
        assert_eq!(setting_file("vm.swappiness"), Path::new("/proc/sys/vm/swappiness"));
        assert_eq!(setting_file(LRU_GEN), Path::new(paths::LRU_GEN_ENABLED));
        // A file that takes nothing.
        let said = apply_at(Path::new("/dev/full"), "vm.x", "1").unwrap_err();
        assert!(said.contains("cannot set vm.x to \"1\""), "{said}");
    }
}
