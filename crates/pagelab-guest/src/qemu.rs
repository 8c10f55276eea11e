//! QEMU's command line for a guest. Everything of pagelab's is a descriptor that QEMU inherits: no file has a
//! name, so nothing is left after any kill.

use crate::config::GuestConfig;
use crate::job::{BULK_PORT, DISK_SERIAL, SWAP_SERIAL};

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
}

impl DescriptorNames {
    /// What `--dry-run` shows in the place of numbers that are not known before.
    pub fn with_placeholders(config: &GuestConfig, bulk: bool) -> DescriptorNames {
        let number = |wanted: bool, name: &str| wanted.then(|| name.to_owned());
        DescriptorNames {
            initramfs: "INITRAMFS".to_owned(),
            console: "CONSOLE".to_owned(),
            host_link: "LINE".to_owned(),
            bulk: number(bulk, "BULK"),
            swap: number(config.swap.is_some(), "SWAP"),
            disk: number(config.disk.is_some(), "DISK"),
        }
    }
}

/// Features of QEMU that a malicious guest could use to access the host.
const SANDBOX_OPTIONS: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// The arguments behind the program's name. TCG alone: a /dev/kvm that hangs is never opened. One thread
/// emulates all CPUs by turns: with a thread for each, one of them may execute code that the kernel has just
/// rewritten (docs/guests.md).
pub fn build_arguments(
    shape: &GuestConfig,
    kernel_image: &str,
    descriptors: &DescriptorNames,
    sandbox: bool,
) -> Vec<String> {
    let mut command_line: Vec<String> = Vec::new();
    let mut push = |words: &[&str]| command_line.extend(words.iter().map(|word| (*word).to_owned()));
    push(&["-accel", "tcg,thread=single", "-machine", "q35", "-nodefaults", "-no-user-config"]);
    push(&["-display", "none", "-no-reboot"]);
    if sandbox {
        push(&["-sandbox", SANDBOX_OPTIONS]);
    }
    push(&["-m", &format!("{}M", shape.memory.0 >> 20), "-smp", &shape.cpus.to_string()]);
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
    // A comma in a value is written twice; here only in values that may have one.
    push(&["-kernel", kernel_image, "-initrd", &format!("/dev/fd/{}", descriptors.initramfs)]);
    for (name, fd) in [("console", &descriptors.console), ("line", &descriptors.host_link)] {
        push(&["-chardev", &format!("socket,id={name},fd={fd}"), "-serial", &format!("chardev:{name}")]);
    }
    if let Some(fd) = &descriptors.bulk {
        push(&["-chardev", &format!("socket,id=bulk,fd={fd}"), "-device", "virtio-serial-pci"]);
        push(&["-device", &format!("virtserialport,chardev=bulk,name={BULK_PORT}")]);
    }
    for (set, (name, fd)) in
        [(SWAP_SERIAL, &descriptors.swap), (DISK_SERIAL, &descriptors.disk)].into_iter().enumerate()
    {
        let Some(fd) = fd else { continue };
        push(&["-add-fd", &format!("fd={fd},set={set}")]);
        let file = format!("driver=file,filename=/dev/fdset/{set},locking=off");
        let cache = "cache.no-flush=on,discard=unmap";
        push(&[
            "-blockdev",
            &format!("driver=raw,node-name={name},file.{},{cache}", file.replace(',', ",file.")),
        ]);
        // An error of the host's disk is reported to the guest as a disk error, and does not stop the guest.
        let device = format!("virtio-blk-pci,drive={name},serial={name},werror=report,rerror=report");
        push(&["-device", &device]);
    }
    push(&["-append", &shape.kernel_command_line()]);
    command_line
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
    use pagelab_model::Bytes;

    fn shape() -> GuestConfig {
        let (memory, append) = (Bytes(512 << 20), "a=1 b".into());
        GuestConfig { memory, cpus: 3, nodes: 2, append, ..GuestConfig::default() }
    }

    #[test]
    fn a_shape_becomes_a_command_line() {
        let config = GuestConfig { swap: Some(Bytes(1 << 30)), ..shape() };
        let command_line =
            build_arguments(&config, "/k", &DescriptorNames::with_placeholders(&config, true), true)
                .join(" ");
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
    fn hardware_virtualisation_is_never_asked_for() {
        let command_line =
            build_arguments(&shape(), "/k", &DescriptorNames::with_placeholders(&shape(), false), true)
                .join(" ");
        assert_eq!(command_line.matches("-accel").count(), 1);
        assert!(
            command_line.contains("-accel tcg,thread=single") && !command_line.contains("kvm"),
            "{command_line}"
        );
    }

    #[test]
    fn a_shown_line_is_one_that_a_shell_takes() {
        let words = ["-append".to_owned(), "a b".to_owned(), "it's".to_owned()];
        assert_eq!(format_command_line("qemu", &words), "qemu \\\n  -append 'a b' 'it'\\''s'");
    }
}
