//! QEMU's command line for a guest. Everything of ours is a descriptor that QEMU inherits: no file has a
//! name, so that nothing is left whoever is killed.

use crate::job::{BULK_PORT, DISK, SWAP};
use crate::shape::Shape;

/// Numbers of the descriptors that QEMU inherits, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wiring {
    /// The initramfs, a file in memory.
    pub initramfs: String,
    /// A socket for the kernel's console (ttyS0).
    pub console: String,
    /// A socket for the agent (ttyS1).
    pub line: String,
    /// A socket for files, where some are wanted.
    pub bulk: Option<String>,
    /// The swap disk, a file without a name.
    pub swap: Option<String>,
    /// The ext4 disk, a file without a name.
    pub disk: Option<String>,
}

impl Wiring {
    /// What `--dry-run` shows in the place of numbers that are not known before.
    pub fn for_show(shape: &Shape, bulk: bool) -> Wiring {
        let number = |wanted: bool, name: &str| wanted.then(|| name.to_owned());
        Wiring {
            initramfs: "INITRAMFS".to_owned(),
            console: "CONSOLE".to_owned(),
            line: "LINE".to_owned(),
            bulk: number(bulk, "BULK"),
            swap: number(shape.swap.is_some(), "SWAP"),
            disk: number(shape.disk.is_some(), "DISK"),
        }
    }
}

/// What a child of QEMU or a device of the host could be asked for by a guest that broke out.
const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// The arguments behind the program's name. TCG alone: a /dev/kvm that hangs is never opened.
pub fn arguments(shape: &Shape, kernel_image: &str, wiring: &Wiring, sandbox: bool) -> Vec<String> {
    let mut line: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| line.extend(words.iter().map(|word| (*word).to_owned()));
    add(&["-accel", "tcg,thread=multi", "-machine", "q35", "-nodefaults", "-no-user-config"]);
    add(&["-display", "none", "-no-reboot"]);
    if sandbox {
        add(&["-sandbox", SANDBOX]);
    }
    add(&["-m", &format!("{}M", shape.memory.0 >> 20), "-smp", &shape.cpus.to_string()]);
    if shape.nodes > 1 {
        for (node, (memory, cpus)) in shape.spread().into_iter().enumerate() {
            let size = memory.0 >> 20;
            add(&["-object", &format!("memory-backend-ram,id=m{node},size={size}M")]);
            let cpus = match cpus.len() {
                0 => String::new(),
                1 => format!(",cpus={}", cpus.start),
                _ => format!(",cpus={}-{}", cpus.start, cpus.end - 1),
            };
            add(&["-numa", &format!("node,nodeid={node}{cpus},memdev=m{node}")]);
        }
    }
    // A comma in a value is written twice; here only in values that may have one.
    add(&["-kernel", kernel_image, "-initrd", &format!("/dev/fd/{}", wiring.initramfs)]);
    for (name, fd) in [("console", &wiring.console), ("line", &wiring.line)] {
        add(&["-chardev", &format!("socket,id={name},fd={fd}"), "-serial", &format!("chardev:{name}")]);
    }
    if let Some(fd) = &wiring.bulk {
        add(&["-chardev", &format!("socket,id=bulk,fd={fd}"), "-device", "virtio-serial-pci"]);
        add(&["-device", &format!("virtserialport,chardev=bulk,name={BULK_PORT}")]);
    }
    for (set, (name, fd)) in [(SWAP, &wiring.swap), (DISK, &wiring.disk)].into_iter().enumerate() {
        let Some(fd) = fd else { continue };
        add(&["-add-fd", &format!("fd={fd},set={set}")]);
        let file = format!("driver=file,filename=/dev/fdset/{set},locking=off");
        let cache = "cache.no-flush=on,discard=unmap";
        add(&[
            "-blockdev",
            &format!("driver=raw,node-name={name},file.{},{cache}", file.replace(',', ",file.")),
        ]);
        // An error of the host's disk is an error of the guest's, not a guest that stands still.
        let device = format!("virtio-blk-pci,drive={name},serial={name},werror=report,rerror=report");
        add(&["-device", &device]);
    }
    add(&["-append", &shape.kernel_command_line()]);
    line
}

/// A command line as a shell would take it, several words a line.
pub fn show(program: &str, arguments: &[String]) -> String {
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

    fn shape() -> Shape {
        let memory = Bytes(512 << 20);
        Shape { memory, cpus: 3, nodes: 2, append: "a=1 b".into(), swap: None, disk: None, cgroup: None }
    }

    #[test]
    fn a_shape_becomes_a_command_line() {
        let shape = Shape { swap: Some(Bytes(1 << 30)), ..shape() };
        let line = arguments(&shape, "/k", &Wiring::for_show(&shape, true), true).join(" ");
        for part in [
            "-m 512M -smp 3",
            "-numa node,nodeid=0,cpus=0-1,memdev=m0 -object memory-backend-ram,id=m1,size=256M",
            "-numa node,nodeid=1,cpus=2,memdev=m1",
            "-kernel /k -initrd /dev/fd/INITRAMFS",
            "-chardev socket,id=line,fd=LINE -serial chardev:line",
            "name=pagelab.bulk",
            "-add-fd fd=SWAP,set=0",
            "serial=swap",
            "-append console=ttyS0 quiet panic=-1 pagelab_guest=1 a=1 b",
        ] {
            assert!(line.contains(part), "{part}\n{line}");
        }
        assert!(!line.contains("DISK"), "{line}");
    }

    #[test]
    fn hardware_virtualisation_is_never_asked_for() {
        let line = arguments(&shape(), "/k", &Wiring::for_show(&shape(), false), true).join(" ");
        assert_eq!(line.matches("-accel").count(), 1);
        assert!(line.contains("-accel tcg,thread=multi") && !line.contains("kvm"), "{line}");
    }

    #[test]
    fn a_shown_line_is_one_that_a_shell_takes() {
        let words = ["-append".to_owned(), "a b".to_owned(), "it's".to_owned()];
        assert_eq!(show("qemu", &words), "qemu \\\n  -append 'a b' 'it'\\''s'");
    }
}
