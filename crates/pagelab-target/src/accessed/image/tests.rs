//! Tests of the distribution of counts, of mapping kinds, and of the detection of an exec.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::*;

#[test]
fn a_count_is_spread_and_none_of_it_is_lost() {
    let mut builder = MappingBuilder::default();
    builder.add_walks(10..35, 10, 101);
    assert_eq!(builder.cells, BTreeMap::from([(1, 40), (2, 40), (3, 21)]));
    builder.add_walks(30..30, 10, 7);
    assert_eq!(builder.cells.values().sum::<u64>(), 101);
}

#[test]
fn kinds_go_by_names() {
    let extent = |name: &str, is_shared| Extent {
        addresses: 0..1,
        name: name.to_owned(),
        offset: 0,
        is_shared,
        zero_parts: Vec::new(),
    };
    for (name, is_shared, wanted) in [
        ("", false, MappingKind::Placed),
        ("[anon:heap of a runtime]", false, MappingKind::Placed),
        ("[heap]", false, MappingKind::Heap),
        ("/dev/zero (deleted)", true, MappingKind::Shared),
        ("/bin/sh", false, MappingKind::File("/bin/sh".to_owned())),
    ] {
        assert_eq!(mapping_kind(&extent(name, is_shared)), wanted, "{name}");
    }
}

#[test]
fn an_exec_replaces_the_image_and_an_exit_or_an_unfinished_exec_does_not() {
    let script = "echo ready; read line; exec cat";
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    output.read_exact(&mut [0; 6]).unwrap();
    let root = Root::live();
    let open_image = || {
        let process = ProcessIdentity::from_pid(&root, child.id()).unwrap();
        let clear_refs = sweep::open_clear_refs(child.id()).unwrap();
        SweptImage::new(&root, process, ImageStart::Launched, None, clear_refs)
    };
    let mut first = open_image();
    assert!(!first.was_replaced(&root));
    // As if it was first seen in the middle of its exec.
    first.exec_mark.vdso_start = None;
    first.arguments.clear();
    assert!(!first.was_replaced(&root) && !first.was_replaced(&root));
    assert_eq!(first.arguments, ["/bin/sh", "-c", script]);
    input.write_all(b"line\nline\n").unwrap();
    output.read_exact(&mut [0; 5]).unwrap();
    assert!(first.was_replaced(&root));
    let mut second = open_image();
    drop(input);
    // Not reaped yet.
    let pid = Pid::from_child(&child);
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    assert!(!second.was_replaced(&root));
    child.wait().unwrap();
}
