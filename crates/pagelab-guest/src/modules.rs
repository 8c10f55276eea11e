//! Module files to load, in order, from `modules.dep` and `modules.builtin`.

use std::collections::{BTreeMap, BTreeSet};

/// The modules that a kernel has, by name.
#[derive(Debug, Default)]
pub struct ModuleIndex {
    /// File relative to the modules' folder, and the files that it needs.
    files: BTreeMap<String, (String, Vec<String>)>,
    builtin: BTreeSet<String>,
}

/// The name of a module from its file: without folder, without `.ko` and what follows; `-` counts as `_`.
pub(crate) fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

/// The value of `key` in the section .modinfo of an uncompressed module: `KEY=VALUE`, ended by zero bytes.
pub(crate) fn modinfo_value(module: &[u8], key: &str) -> Option<String> {
    let start = format!("\0{key}=");
    let at = module.windows(start.len()).position(|window| window == start.as_bytes())?;
    let value = module[at + start.len()..].split(|&byte| byte == 0).next().unwrap_or_default();
    Some(String::from_utf8_lossy(value).into_owned())
}

impl ModuleIndex {
    /// Reads both lists. A line of `modules.dep` is `FILE: FILE FILE…`; other lines are passed over.
    pub fn parse(dep: &str, builtin: &str) -> ModuleIndex {
        let mut modules = ModuleIndex::default();
        for (file, needs) in dep.lines().filter_map(|line| line.split_once(':')) {
            let needs = needs.split_ascii_whitespace().map(str::to_owned).collect();
            modules.files.insert(module_name(file), (file.trim().to_owned(), needs));
        }
        modules.builtin =
            builtin.lines().map(|line| module_name(line.trim())).filter(|name| !name.is_empty()).collect();
        modules
    }

    /// The files to load for `module_names` and for all that these need, each once, needed ones first.
    /// Built-in modules need no file. The error is the name of a module that this kernel does not have.
    pub fn load_order(&self, module_names: &[&str]) -> Result<Vec<String>, String> {
        let mut order = Vec::new();
        let mut visited = BTreeSet::new();
        for name in module_names {
            self.visit_dependencies(name, &mut visited, &mut order)?;
        }
        Ok(order)
    }

    fn visit_dependencies(
        &self,
        module_names: &str,
        visited: &mut BTreeSet<String>,
        order: &mut Vec<String>,
    ) -> Result<(), String> {
        if !visited.insert(module_names.to_owned()) {
            return Ok(());
        }
        let Some((file, needs)) = self.files.get(module_names) else {
            return if self.builtin.contains(module_names) { Ok(()) } else { Err(module_names.to_owned()) };
        };
        // depmod lists all dependencies of a module, each before its own dependencies.
        for needed in needs {
            self.visit_dependencies(&module_name(needed), visited, order)?;
        }
        order.push(file.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
kernel/drivers/virtio/virtio_ring.ko:
kernel/drivers/virtio/virtio.ko: kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/virtio/virtio_pci.ko: kernel/drivers/virtio/virtio_pci_modern_dev.ko kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/virtio/virtio_pci_modern_dev.ko:
kernel/drivers/block/virtio_blk.ko.xz: kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
a-b.ko: c.ko
c.ko: a-b.ko
broken.ko: gone.ko
no line at all
";

    #[test]
    fn needed_modules_come_first_and_built_in_ones_need_nothing() {
        let modules = ModuleIndex::parse(DEP, "kernel/fs/ext4/ext4.ko\n\n");
        let order = |wanted: &[&str]| {
            let order = modules
                .load_order(wanted)
                .map(|files| files.iter().map(|f| module_name(f)).collect::<Vec<_>>());
            order.map(|names| names.join(" "))
        };
        let all = order(&["virtio_pci", "virtio_blk", "ext4"]);
        assert_eq!(all.as_deref(), Ok("virtio_pci_modern_dev virtio_ring virtio virtio_pci virtio_blk"));
        assert_eq!(order(&["ext4"]).as_deref(), Ok(""));
        assert_eq!(order(&["a_b"]).as_deref(), Ok("c a_b"), "a circle ends");
        assert_eq!(order(&["nvme"]), Err("nvme".to_owned()));
        assert_eq!(order(&["broken"]), Err("gone".to_owned()));
        let files = modules.load_order(&["virtio_blk"]).unwrap();
        assert_eq!(files.last().map(String::as_str), Some("kernel/drivers/block/virtio_blk.ko.xz"));
    }
}
