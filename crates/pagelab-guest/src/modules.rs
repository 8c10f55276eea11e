//! Which module files of a kernel are to be loaded, in which order: `modules.dep`, `modules.builtin`.

use std::collections::{BTreeMap, BTreeSet};

/// The modules that a kernel has, by name.
#[derive(Debug, Default)]
pub struct Modules {
    /// File relative to the modules' folder, and the files that it needs.
    files: BTreeMap<String, (String, Vec<String>)>,
    builtin: BTreeSet<String>,
}

/// The name of a module from its file: without folder, without `.ko` and what follows; `-` counts as `_`.
pub(crate) fn name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

impl Modules {
    /// Reads both lists. A line of `modules.dep` is `FILE: FILE FILE…`; other lines are passed over.
    pub fn parse(dep: &str, builtin: &str) -> Modules {
        let mut modules = Modules::default();
        for (file, needs) in dep.lines().filter_map(|line| line.split_once(':')) {
            let needs = needs.split_ascii_whitespace().map(str::to_owned).collect();
            modules.files.insert(name(file), (file.trim().to_owned(), needs));
        }
        modules.builtin =
            builtin.lines().map(|line| name(line.trim())).filter(|name| !name.is_empty()).collect();
        modules
    }

    /// The files to load for `wanted` and for all that these need, each once, needed ones first. What is
    /// built in needs no file. The error is the name of a module that this kernel does not have.
    pub fn load_order(&self, wanted: &[&str]) -> Result<Vec<String>, String> {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        for name in wanted {
            self.visit(name, &mut seen, &mut order)?;
        }
        Ok(order)
    }

    fn visit(
        &self,
        wanted: &str,
        seen: &mut BTreeSet<String>,
        order: &mut Vec<String>,
    ) -> Result<(), String> {
        if !seen.insert(wanted.to_owned()) {
            return Ok(());
        }
        let Some((file, needs)) = self.files.get(wanted) else {
            return if self.builtin.contains(wanted) { Ok(()) } else { Err(wanted.to_owned()) };
        };
        // depmod lists all that a module needs, whatever is needed itself further to the right.
        for needed in needs {
            self.visit(&name(needed), seen, order)?;
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
        let modules = Modules::parse(DEP, "kernel/fs/ext4/ext4.ko\n\n");
        let order = |wanted: &[&str]| {
            let order =
                modules.load_order(wanted).map(|files| files.iter().map(|f| name(f)).collect::<Vec<_>>());
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
