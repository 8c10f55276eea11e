//! QEMU's command line for a guest. Everything of pagelab's is a descriptor that QEMU inherits: no file has a
//! name, so nothing is left after any kill.

use pagelab_model::Bytes;

use crate::accelerator::Accelerator;
use crate::config::GuestConfig;
use crate::job::{BULK_PORT, DISK_SERIAL, SWAP_SERIAL, TOOLS_SERIAL, TREE_SERIAL};

/// Numbers of the descriptors that QEMU inherits, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptorNames {
    /// The initramfs, a file in memory.
    pub initramfs: String,
    /// A socket for the kernel's console (ttyS0).
    pub console: String,
    /// A socket for the agent (ttyS1).
    pub host_link: String,
    /// Socket for files, if requested.
    pub bulk: Option<String>,
    /// The swap disk, a file without a name.
    pub swap: Option<String>,
    /// The ext4 disk, a file without a name.
    pub disk: Option<String>,
    /// The tool disk, which is opened for reading.
    pub tools: Option<String>,
    /// The archive of a source tree, likewise.
    pub tree: Option<String>,
    /// A socket for the terminal of a shell.
    pub terminal: Option<String>,
}

impl DescriptorNames {
    /// What `--dry-run` shows in the place of numbers that are not known before.
    pub fn with_placeholders(config: &GuestConfig, bulk: bool, terminal: bool) -> DescriptorNames {
        let number = |wanted: bool, name: &str| wanted.then(|| name.to_owned());
        DescriptorNames {
            initramfs: "INITRAMFS".to_owned(),
            console: "CONSOLE".to_owned(),
            host_link: "LINE".to_owned(),
            bulk: number(bulk, "BULK"),
            swap: number(config.swap.is_some(), "SWAP"),
            disk: number(config.disk.is_some(), "DISK"),
            tools: number(config.tools.is_some(), "TOOLS"),
            tree: number(config.tree.is_some(), "TREE"),
            terminal: number(terminal, "TERMINAL"),
        }
    }
}

/// Features of QEMU that a malicious guest could use to access the host.
const SANDBOX_OPTIONS: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// The arguments for an accelerator, and no other is tried. With TCG one thread emulates all CPUs by turns:
/// with a thread for each, one of them may execute code that the kernel has just rewritten (docs/guests.md).
/// The processor of the host is passed on only to KVM: TCG has its own.
fn accelerator_arguments(accelerator: Accelerator) -> &'static [&'static str] {
    match accelerator {
        Accelerator::Tcg => &["-accel", "tcg,thread=single"],
        Accelerator::Kvm => &["-accel", "kvm", "-cpu", "host"],
    }
}

/// The arguments behind the program's name.
pub fn build_arguments(
    accelerator: Accelerator,
    shape: &GuestConfig,
    kernel_image: &str,
    descriptors: &DescriptorNames,
    sandbox: bool,
) -> Vec<String> {
    let mut command_line: Vec<String> = Vec::new();
    let mut push = |words: &[&str]| command_line.extend(words.iter().map(|word| (*word).to_owned()));
    push(accelerator_arguments(accelerator));
    if let Some(shift) = shape.icount {
        // Without a sleep, an idle guest's time jumps to its next timer and follows no clock of the host.
        push(&["-icount", &format!("shift={shift},sleep=off")]);
    }
    push(&["-machine", "q35", "-nodefaults", "-no-user-config"]);
    push(&["-display", "none", "-no-reboot"]);
    if sandbox {
        push(&["-sandbox", SANDBOX_OPTIONS]);
    }
    push(&["-m", &memory_option(shape), "-smp", &shape.cpus.to_string()]);
    push_nodes_and_dimms(shape, &mut push);
    // A comma in a value is written twice; here only in values that may have one.
    push(&["-kernel", kernel_image, "-initrd", &format!("/dev/fd/{}", descriptors.initramfs)]);
    for (name, fd) in [("console", &descriptors.console), ("line", &descriptors.host_link)] {
        push(&["-chardev", &format!("socket,id={name},fd={fd}"), "-serial", &format!("chardev:{name}")]);
    }
    push_virtio_devices(descriptors, &mut push);
    push(&["-append", &shape.kernel_command_line()]);
    command_line
}

/// Memory of nodes, and hot-pluggable memory.
fn push_nodes_and_dimms(shape: &GuestConfig, push: &mut dyn FnMut(&[&str])) {
    if shape.nodes > 1 {
        for (node, (memory, cpus)) in shape.split_by_node().into_iter().enumerate() {
            let size = memory.0 >> 20;
            push(&["-object", &format!("memory-backend-ram,id=m{node},size={size}M")]);
            let cpus = match cpus.len() {
                0 => String::new(),
                1 => format!(",cpus={}", cpus.start),
                _ => format!(",cpus={}-{}", cpus.start, cpus.end - 1),
            };
            push(&["-numa", &format!("node,nodeid={node}{cpus},memdev=m{node}")]);
        }
    }
    for (index, size) in shape.dimms.iter().flat_map(|dimms| (0..dimms.count).map(|n| (n, dimms.size))) {
        push(&["-object", &format!("memory-backend-ram,id=dimm{index},size={}M", size.0 >> 20)]);
        // QEMU accepts the number of a node only from a machine that has nodes.
        let node = match shape.nodes {
            0 | 1 => String::new(),
            nodes => format!(",node={}", index % nodes),
        };
        push(&["-device", &format!("pc-dimm,id=d{index},memdev=dimm{index}{node}")]);
    }
}

/// Channels and disks.
fn push_virtio_devices(descriptors: &DescriptorNames, push: &mut dyn FnMut(&[&str])) {
    if descriptors.bulk.is_some() || descriptors.terminal.is_some() {
        push(&["-device", "virtio-serial-pci"]);
    }
    // The first console of the bus is its port 0.
    if let Some(fd) = &descriptors.terminal {
        push(&[
            "-chardev",
            &format!("socket,id=terminal,fd={fd}"),
            "-device",
            "virtconsole,chardev=terminal",
        ]);
    }
    if let Some(fd) = &descriptors.bulk {
        push(&["-chardev", &format!("socket,id=bulk,fd={fd}")]);
        push(&["-device", &format!("virtserialport,chardev=bulk,name={BULK_PORT}")]);
    }
    let disks = [
        (SWAP_SERIAL, &descriptors.swap, "discard=unmap"),
        (DISK_SERIAL, &descriptors.disk, "discard=unmap"),
        (TOOLS_SERIAL, &descriptors.tools, "read-only=on"),
        (TREE_SERIAL, &descriptors.tree, "read-only=on"),
    ];
    for (set, (name, fd, mode)) in disks.into_iter().enumerate() {
        let Some(fd) = fd else { continue };
        push(&["-add-fd", &format!("fd={fd},set={set}")]);
        let file = format!("driver=file,filename=/dev/fdset/{set},locking=off");
        let cache = format!("cache.no-flush=on,{mode}");
        push(&[
            "-blockdev",
            &format!("driver=raw,node-name={name},file.{},{cache}", file.replace(',', ",file.")),
        ]);
        // An error of the host's disk is reported to the guest as a disk error, and does not stop the guest.
        let device = format!("virtio-blk-pci,drive={name},serial={name},werror=report,rerror=report");
        push(&["-device", &device]);
    }
}

/// The value of `-m`: with DIMMs, also their slots and the most memory that the guest can have.
fn memory_option(shape: &GuestConfig) -> String {
    let mebibytes = |size: Bytes| size.0 >> 20;
    let memory = mebibytes(shape.memory);
    match shape.dimms {
        None => format!("{memory}M"),
        Some(dimms) => {
            format!("{memory}M,slots={},maxmem={}M", dimms.count, mebibytes(shape.total_memory()))
        }
    }
}

/// A command line as a shell would take it, several words a line.
pub fn format_command_line(program: &str, arguments: &[String]) -> String {
    let quoted = |word: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=,./:+@%".contains(c);
        if !word.is_empty() && word.chars().all(is_plain) {
            word.to_owned()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    let mut text = quoted(program);
    for word in arguments {
        text.push_str(if word.starts_with('-') && !word.contains(' ') { " \\\n  " } else { " " });
        text.push_str(&quoted(word));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::dimms::Dimms;

    fn shape() -> GuestConfig {
        let (memory, append) = (Bytes(512 << 20), "a=1 b".into());
        GuestConfig { memory, cpus: 3, nodes: 2, append, ..GuestConfig::default() }
    }

    fn arguments_of(accelerator: Accelerator, config: &GuestConfig, bulk: bool) -> String {
        let descriptors = DescriptorNames::with_placeholders(config, bulk, false);
        build_arguments(accelerator, config, "/k", &descriptors, true).join(" ")
    }

    #[test]
    fn a_shape_becomes_a_command_line() {
        let config = GuestConfig { swap: Some(Bytes(1 << 30)), ..shape() };
        let command_line = arguments_of(Accelerator::Tcg, &config, true);
        for part in [
            "-m 512M -smp 3",
            "-numa node,nodeid=0,cpus=0-1,memdev=m0 -object memory-backend-ram,id=m1,size=256M",
            "-numa node,nodeid=1,cpus=2,memdev=m1",
            "-kernel /k -initrd /dev/fd/INITRAMFS",
            "-chardev socket,id=line,fd=LINE -serial chardev:line",
            "name=pagelab.bulk",
            "-add-fd fd=SWAP,set=0",
            "serial=swap",
            "-append console=ttyS0 quiet panic=-1 no_timer_check pagelab_guest=1 a=1 b",
        ] {
            assert!(command_line.contains(part), "{part}\n{command_line}");
        }
        assert!(!command_line.contains("DISK"), "{command_line}");
    }

    #[test]
    fn tools_and_sources_are_only_read_and_a_shell_has_a_console_of_its_own() {
        let config = GuestConfig { tools: Some("/t".into()), tree: Some("/s".into()), ..shape() };
        let descriptors = DescriptorNames::with_placeholders(&config, true, true);
        let command_line = build_arguments(Accelerator::Tcg, &config, "/k", &descriptors, true).join(" ");
        for part in [
            "-device virtio-serial-pci -chardev socket,id=terminal,fd=TERMINAL -device virtconsole,chardev=",
            "-add-fd fd=TOOLS,set=2 -blockdev driver=raw,node-name=tools,file.driver=file,file.filename=",
            "cache.no-flush=on,read-only=on -device virtio-blk-pci,drive=tools,serial=tools",
            "-add-fd fd=TREE,set=3 -blockdev driver=raw,node-name=tree,",
            "cache.no-flush=on,read-only=on -device virtio-blk-pci,drive=tree,serial=tree",
        ] {
            assert!(command_line.contains(part), "{part}\n{command_line}");
        }
        assert_eq!(command_line.matches("virtio-serial-pci").count(), 1, "{command_line}");
    }

    #[test]
    fn dimms_are_devices_that_are_given_to_the_nodes_by_turns() {
        let dimms = Some(Dimms { count: 3, size: Bytes(128 << 20) });
        for (nodes, parts) in [
            (1, &["-m 512M,slots=3,maxmem=896M -smp 3", "-device pc-dimm,id=d2,memdev=dimm2 -kernel"][..]),
            (
                2,
                &[
                    "-object memory-backend-ram,id=dimm0,size=128M -device pc-dimm,id=d0,memdev=dimm0,node=0",
                    "-device pc-dimm,id=d1,memdev=dimm1,node=1",
                    "-device pc-dimm,id=d2,memdev=dimm2,node=0",
                ],
            ),
        ] {
            let config = GuestConfig { nodes, dimms, ..shape() };
            let command_line = arguments_of(Accelerator::Tcg, &config, false);
            for part in parts {
                assert!(command_line.contains(part), "{part}\n{command_line}");
            }
            assert_eq!(command_line.matches("pc-dimm").count(), 3, "{command_line}");
        }
    }

    #[test]
    fn hardware_virtualisation_is_only_asked_for_by_name() {
        for (accelerator, arguments) in
            [(Accelerator::Tcg, "-accel tcg,thread=single "), (Accelerator::Kvm, "-accel kvm -cpu host ")]
        {
            let command_line = arguments_of(accelerator, &shape(), false);
            assert!(command_line.starts_with(arguments), "{command_line}");
            assert_eq!(command_line.matches("-accel").count(), 1, "no other accelerator is tried");
            let has_kvm = accelerator == Accelerator::Kvm;
            assert_eq!(command_line.contains("kvm"), has_kvm, "{command_line}");
            assert_eq!(command_line.contains("-cpu "), has_kvm, "{command_line}");
        }
    }

    #[test]
    fn counted_instructions_are_asked_for_by_name() {
        let config = GuestConfig { icount: Some(1), cpus: 1, nodes: 1, ..shape() };
        let command_line = arguments_of(Accelerator::Tcg, &config, false);
        assert!(command_line.starts_with("-accel tcg,thread=single -icount shift=1,sleep=off -machine"));
        assert!(!arguments_of(Accelerator::Tcg, &shape(), false).contains("icount"));
    }

    #[test]
    fn a_shown_line_is_one_that_a_shell_takes() {
        let words = ["-append".to_owned(), "a b".to_owned(), "it's".to_owned()];
        assert_eq!(format_command_line("qemu", &words), "qemu \\\n  -append 'a b' 'it'\\''s'");
    }
}
