//! Configuration of a guest: memory, CPUs, nodes, kernel command line, swap, disk, control groups.

use std::path::PathBuf;

use pagelab_model::Bytes;
use pagelab_model::guest_marker::{MARKER_NAME, MARKER_VALUE};
use pagelab_model::guest_size::{self, CPUS_MAX, ICOUNT_SHIFT_MAX, MEMORY_UNIT};
use pagelab_model::size::format_exact;

use crate::job::CgroupConfig;
use pagelab_model::dimms::Dimms;

/// What a guest is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestConfig {
    /// Memory that the kernel boots with.
    pub memory: Bytes,
    /// Hot-pluggable memory besides that. Of several nodes each gets a DIMM by turns.
    pub dimms: Option<Dimms>,
    /// Processors.
    pub cpus: u32,
    /// Counted instructions: each is 2 to the power of this nanoseconds of the guest's time.
    pub icount: Option<u32>,
    /// NUMA nodes; memory and processors are divided evenly, the first nodes get the remainder.
    pub nodes: u32,
    /// Words behind the kernel's command line; of two that contradict each other the later one holds.
    pub append: String,
    /// Size of the swap disk.
    pub swap: Option<Bytes>,
    /// Size of the ext4 disk.
    pub disk: Option<Bytes>,
    /// Image of a tool disk, which is only read.
    pub tools: Option<PathBuf>,
    /// Archive of a source tree, a disk without a file system, which is only read.
    pub tree: Option<PathBuf>,
    /// Cgroup version to mount.
    pub cgroup: Option<CgroupConfig>,
}

const NODES_MAX: u32 = 16;
/// Memory that each node has at least, in MiB.
const NODE_MEBIBYTES_MIN: u64 = 32;
/// The kernel's parameter for the state of memory that is hot-plugged.
const HOTPLUG_STATE: &str = "memhp_default_state";
/// Where memory above 4 GiB may appear, the kernel takes 64 MiB of the memory that it boots with for bounce
/// buffers (arch/x86/kernel/pci-dma.c, `pci_swiotlb_detect`). No device of a guest needs any: 2048 slots of 2
/// KiB are 4 MiB.
const SMALL_BOUNCE_BUFFERS: &str = "swiotlb=2048 ";
/// What makes two boots execute the same instructions. The self-tests of the kernel's ciphers run beside the
/// command for its first seconds (crypto/testmgr.c), and random addresses decide how many page tables a fork
/// copies (fs/binfmt_elf.c).
const STEADY_WORDS: &str = "cryptomgr.notests norandmaps ";

/// A guest with 1 GiB, one processor and one node, and nothing else.
impl Default for GuestConfig {
    fn default() -> GuestConfig {
        GuestConfig {
            memory: Bytes(1 << 30),
            dimms: None,
            cpus: 1,
            icount: None,
            nodes: 1,
            append: String::new(),
            swap: None,
            disk: None,
            tools: None,
            tree: None,
            cgroup: None,
        }
    }
}

impl GuestConfig {
    /// Error of the configuration, in one sentence with a hint.
    pub fn check(&self) -> Result<(), String> {
        let GuestConfig { memory, cpus, nodes, .. } = *self;
        let named =
            |option: &str, checked: Result<(), String>| checked.map_err(|why| format!("--{option}: {why}"));
        named("memory", guest_size::check_memory(memory))?;
        if !(1..=CPUS_MAX).contains(&cpus) {
            return Err(format!("--cpus: expected 1 to {CPUS_MAX}, found {cpus}"));
        }
        if let Some(shift) = self.icount {
            check_icount(shift, cpus)?;
        }
        if !(1..=NODES_MAX).contains(&nodes) {
            return Err(format!("--nodes: expected 1 to {NODES_MAX}, found {nodes}"));
        }
        if memory.0 / MEMORY_UNIT.0 < u64::from(nodes) * NODE_MEBIBYTES_MIN {
            return Err(format!(
                "memory is divided evenly in whole MiB, at least {NODE_MEBIBYTES_MIN} per node: {} is too \
                 little for {nodes} nodes",
                format_exact(memory)
            ));
        }
        if let Some(dimms) = self.dimms {
            named("dimms", dimms.check_size().and_then(|()| dimms.check_beside(memory)))?;
        }
        for (name, size) in [("swap", self.swap), ("disk", self.disk)] {
            named(name, size.map_or(Ok(()), guest_size::check_disk))?;
        }
        named("append", guest_size::check_append(&self.append))
    }

    /// Memory and DIMMs: what the host must have.
    pub fn total_memory(&self) -> Bytes {
        Bytes(self.memory.0.saturating_add(self.dimms.map_or(0, |dimms| dimms.total().0)))
    }

    /// Modules that the kernel must have, or have built in, for this shape.
    pub fn required_modules(&self) -> Vec<&'static str> {
        let mut wants = Vec::new();
        if self.swap.is_some() || self.disk.is_some() || self.tools.is_some() || self.tree.is_some() {
            wants.extend(["virtio_pci", "virtio_blk"]);
        }
        if self.disk.is_some() || self.tools.is_some() {
            wants.push("ext4");
        }
        wants
    }

    /// The kernel's command line. A panic ends the guest, and the output before it is on the console. On a
    /// busy machine QEMU's timer may come too late for the kernel's test of the IO-APIC, which panics
    /// (arch/x86/kernel/apic/io_apic.c, `check_timer`): it is left out, as the kernel itself does on KVM.
    /// DIMMs go to the zone Movable, to be taken offline, unless the appended words say otherwise. With
    /// counted instructions, nothing runs beside the command that need not.
    pub fn kernel_command_line(&self) -> String {
        let fixed = "console=ttyS0 quiet panic=-1 no_timer_check";
        let sets_state = |word: &str| word.split_once('=').is_some_and(|(name, _)| name == HOTPLUG_STATE);
        let mut words = format!("{fixed} {MARKER_NAME}={MARKER_VALUE} ");
        if self.dimms.is_some() {
            words.push_str(SMALL_BOUNCE_BUFFERS);
            if !self.append.split(' ').any(sets_state) {
                words.push_str(&format!("{HOTPLUG_STATE}=online_movable "));
            }
        }
        if self.icount.is_some() {
            words.push_str(STEADY_WORDS);
        }
        words.push_str(&self.append);
        words.trim_end().to_owned()
    }

    /// Memory and processors of each node.
    pub fn split_by_node(&self) -> Vec<(Bytes, std::ops::Range<u32>)> {
        let nodes = self.nodes.max(1);
        let mebibytes = self.memory.0 / MEMORY_UNIT.0;
        let mut cpu = 0;
        let share = |whole: u64, node: u32| {
            whole / u64::from(nodes) + u64::from(u64::from(node) < whole % u64::from(nodes))
        };
        let node = |node: u32| {
            let first = cpu;
            cpu += share(u64::from(self.cpus), node) as u32;
            (Bytes(share(mebibytes, node) * MEMORY_UNIT.0), first..cpu)
        };
        (0..nodes).map(node).collect()
    }
}

/// One thread counts the instructions of one processor: of two, QEMU would stop one while the other runs.
fn check_icount(shift: u32, cpus: u32) -> Result<(), String> {
    if shift > ICOUNT_SHIFT_MAX {
        return Err(format!("--icount: expected 0 to {ICOUNT_SHIFT_MAX}, found {shift}"));
    }
    if cpus > 1 {
        return Err(format!("--icount counts the instructions of one CPU: expected --cpus 1, found {cpus}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> GuestConfig {
        GuestConfig { memory: Bytes(512 << 20), cpus: 2, ..GuestConfig::default() }
    }

    #[test]
    fn impossible_shapes_are_refused_in_words() {
        assert_eq!(shape().check(), Ok(()));
        let mebibytes = |n: u64| Bytes(n << 20);
        for (shape, words) in [
            (
                GuestConfig { memory: mebibytes(64), ..shape() },
                "--memory: expected 96 MiB to 1 TiB, found 64 MiB",
            ),
            (GuestConfig { memory: Bytes(u64::MAX), ..shape() }, "found 18446744073709551615 bytes"),
            (GuestConfig { cpus: 0, ..shape() }, "--cpus: expected 1 to 64, found 0"),
            (GuestConfig { icount: Some(1), ..shape() }, "of one CPU: expected --cpus 1, found 2"),
            (GuestConfig { icount: Some(11), cpus: 1, ..shape() }, "--icount: expected 0 to 10, found 11"),
            (GuestConfig { nodes: 17, ..shape() }, "--nodes: expected 1 to 16, found 17"),
            (GuestConfig { memory: mebibytes(128), nodes: 8, ..shape() }, "128 MiB is too little for 8"),
            (
                GuestConfig { memory: Bytes((512 << 20) + 1), ..shape() },
                "--memory: expected a multiple of 1 MiB, found 536870913 bytes",
            ),
            (
                GuestConfig { dimms: Some(Dimms { count: 1, size: mebibytes(64) }), ..shape() },
                "--dimms: expected a size that is a multiple of 128 MiB",
            ),
            (
                GuestConfig { swap: Some(Bytes(5)), ..shape() },
                "--swap: expected 8 MiB to 1 TiB and a multiple of 512 bytes, found 5 bytes",
            ),
            (GuestConfig { append: "a\nb".into(), ..shape() }, "expected one line"),
        ] {
            let said = shape.check().unwrap_err();
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn dimms_are_movable_unless_the_user_says_otherwise() {
        let dimms = Some(Dimms { count: 2, size: Bytes(128 << 20) });
        for (append, dimms, movable) in [
            ("", None, false),
            ("", dimms, true),
            ("a=1 memhp_default_state_x=1", dimms, true),
            ("a=1 memhp_default_state=offline b", dimms, false),
        ] {
            let config = GuestConfig { append: append.into(), dimms, ..shape() };
            let line = config.kernel_command_line();
            assert_eq!(line.contains("memhp_default_state=online_movable"), movable, "{line}");
            assert_eq!((line.contains("swiotlb=2048"), line.ends_with(append)), (dimms.is_some(), true));
        }
        let config = GuestConfig { dimms, ..shape() };
        assert_eq!((config.total_memory(), shape().total_memory()), (Bytes(768 << 20), Bytes(512 << 20)));
    }

    #[test]
    fn counted_instructions_are_those_of_the_command() {
        let line = |icount| GuestConfig { icount, append: "a=1".into(), ..shape() }.kernel_command_line();
        assert!(
            line(Some(1)).ends_with(" pagelab_guest=1 cryptomgr.notests norandmaps a=1"),
            "{}",
            line(Some(1))
        );
        assert!(line(None).ends_with(" pagelab_guest=1 a=1"), "{}", line(None));
    }

    #[test]
    fn nothing_is_lost_in_the_spread() {
        for (memory, cpus, nodes) in [(512, 2, 2), (1000, 3, 7), (96, 1, 3), (4096, 5, 4)] {
            let shape = GuestConfig { memory: Bytes(memory << 20), cpus, nodes, ..shape() };
            let spread = shape.split_by_node();
            assert_eq!(spread.iter().map(|(memory, _)| memory.0).sum::<u64>(), memory << 20);
            let all: Vec<u32> = spread.iter().flat_map(|(_, cpus)| cpus.clone()).collect();
            assert_eq!(all, (0..cpus).collect::<Vec<_>>(), "{nodes} nodes");
        }
    }
}
