//! Settings of the kernel of a guest: sysctls and the multi-generational LRU. They are written before a
//! trial, read back, and never restored: the guest is discarded.

use std::fs;
use std::path::{Path, PathBuf};

use pagelab_host::paths;

use crate::recipe::{LRU_GEN, is_enabled};

/// Writes each setting and reads back what the kernel made of it. The error names the first that differs.
pub fn apply(settings: &[(String, String)]) -> Result<(), String> {
    settings.iter().try_for_each(|(name, value)| apply_at(&setting_file(name), name, value))
}

/// Switches features of pagelab's kernel module, and reads back what the module says of them.
pub fn switch_features(features: &[(String, String)]) -> Result<(), String> {
    let file = Path::new(paths::MODULE_CONTROL);
    features.iter().try_for_each(|(name, state)| switch_feature(file, name, state))
}

fn switch_feature(control: &Path, name: &str, state: &str) -> Result<(), String> {
    let cannot = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("{name}: the guest has not loaded the kernel module of pagelab (docs/kmod.md)")
        }
        _ => format!("cannot switch {name} {state}: {error}"),
    };
    let read = || fs::read_to_string(control).map_err(cannot);
    let find = |text: &str| {
        let states = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        states.map(str::to_owned).next()
    };
    let before = find(&read()?).ok_or_else(|| format!("{name}: this module does not have it"))?;
    if before.starts_with("unavailable") {
        return Err(format!("{name} {before}"));
    }
    if before != state {
        fs::write(control, format!("{name} {state}\n")).map_err(cannot)?;
    }
    match find(&read()?) {
        Some(found) if found == state => Ok(()),
        found => {
            Err(format!("{name} {state} was written, but the module says {:?}", found.unwrap_or_default()))
        }
    }
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
        (LRU_GEN, value) if is_enabled(value) => "y",
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
    fn a_feature_of_the_module_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let control = folder.path().join("control");
        let switch = |state| switch_feature(&control, "grouping", state);
        assert!(switch("off").unwrap_err().contains("the guest has not loaded the kernel module"));
        fs::write(&control, "grouping on\n").unwrap();
        switch("off").unwrap();
        assert_eq!(fs::read_to_string(&control).unwrap(), "grouping off\n");
        fs::write(&control, "grouping unavailable: no symbol x\n").unwrap();
        assert_eq!(switch("off").unwrap_err(), "grouping unavailable: no symbol x");
        fs::write(&control, "other on\n").unwrap();
        assert_eq!(switch("off").unwrap_err(), "grouping: this module does not have it");
        assert!(switch_feature(Path::new("/dev/null"), "x", "on").unwrap_err().contains("does not have it"));
    }

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
