//! Tests of `pagelab checkup --html`: one file, complete or absent, in addition to the printed report. What
//! the page shows is tested in a browser (`web/test`).
#![allow(clippy::unwrap_used, reason = "a test panics to fail")]

mod support;

use std::fs;

use support::{CommandOutput, Lab};

/// A saved tree of a machine of 4 GiB, in a folder in which pages can be written beside it.
fn lab() -> Lab {
    let lab = Lab::new();
    lab.write(
        "tree/proc/buddyinfo",
        "Node 0, zone   Normal 90000 60000 40000 10000 3000 800 200 50 10 0 0\n",
    );
    lab.write("tree/proc/meminfo", "MemTotal:        4194304 kB\nMemFree:         2100000 kB\n");
    lab.write("tree/proc/sys/kernel/osrelease", "6.1.0-<script>alert(1)</script>\n");
    lab
}

fn run(lab: &Lab, more: &[&str]) -> CommandOutput {
    lab.run(&[&["checkup", "--root", "tree"], more].concat())
}

/// Everything that lies beside the tree.
fn beside(lab: &Lab) -> Vec<String> {
    let names = fs::read_dir(lab.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| name != "tree");
    names.sort();
    names
}

#[test]
fn the_page_is_written_besides_any_output_format() {
    let lab = lab();
    for more in [&[][..], &["-v"], &["--json"], &["--brief"]] {
        let without = run(&lab, more);
        let with = run(&lab, &[more, &["--html", "page.html", "--force"]].concat());
        assert_eq!((with.code, &with.out, &with.err), (without.code, &without.out, &without.err), "{more:?}");
        let page = fs::read_to_string(lab.path().join("page.html")).unwrap();
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"), "{more:?}");
        assert!(page.contains("default-src 'none'") && page.contains("Copyright (c)"), "{more:?}");
        assert_eq!(page.matches("<script>").count(), 1, "the kernel's name became markup");
        // Nothing in it leads out of it: neither an address that is fetched nor a place to send to.
        for outside in ["src=", "<link rel=\"stylesheet", "@import", "url(", "fetch(", "XMLHttpRequest"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(beside(&lab), ["page.html"]);
    }
}

#[test]
fn an_older_page_is_replaced_and_an_impossible_path_refused_first() {
    let lab = lab();
    lab.write("page.html", "old");
    let kept = run(&lab, &["--html", "page.html"]);
    assert_eq!((kept.code, kept.out.as_str()), (Some(2), ""), "{}", kept.err);
    assert_eq!(
        kept.err,
        "error: cannot write page.html: it already exists\nhint: choose another name, or use --force\n"
    );
    assert_eq!(run(&lab, &["--html", "page.html", "--force"]).code, Some(0));
    assert!(fs::metadata(lab.path().join("page.html")).unwrap().len() > 100_000);
    for (place, code, why) in [
        ("none/page.html", 3, "no directory none\nhint: create it first"),
        ("tree", 2, "expected a file, found a directory"),
        ("page.html/x", 3, "page.html/x"),
    ] {
        let ran = run(&lab, &["--html", place]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(code), ""), "{place}: {}", ran.err);
        assert!(ran.err.contains(why), "{}", ran.err);
    }
    assert_eq!(beside(&lab), ["page.html"]);
}

#[test]
fn only_a_plain_file_becomes_a_page() {
    let lab = lab();
    let fifo = lab.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for (option, place, why) in [
        ("--html", "fifo", "expected a file, found a FIFO"),
        ("--html", "/dev/full", "expected a file, found a device"),
        ("--html", "/dev/stdout", "cannot write /dev/stdout: expected a file, found "),
        ("--html", "-", "expected a file, found standard output\nhint: use ./- for a file of that name"),
        ("-o", "-", "expected a file, found standard output\nhint: use ./- for a file of that name"),
    ] {
        let ran = run(&lab, &[option, place]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{option} {place}: {}", ran.err);
        assert!(ran.err.contains(why), "{}", ran.err);
    }
    assert_eq!(run(&lab, &["--html", "./-"]).code, Some(0));
    assert_eq!(beside(&lab), ["-", "fifo"]);
    // Standard output in a file: the page would take its place, and what is printed would be lost.
    let mut printing = lab.command(&["checkup", "--root", "tree", "--html", "/dev/stdout"]);
    let ran = printing.stdout(fs::File::create(lab.path().join("printed")).unwrap()).output().unwrap();
    assert_eq!(ran.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("found standard output"));
}

#[test]
fn a_full_disk_is_reported_and_the_report_still_printed() {
    let lab = lab();
    let script = "$0 checkup --root tree --html disk/page.html";
    let Some(ran) = lab.run_with_small_disk("64k", script) else { return };
    assert_eq!(ran.code, Some(5), "{}", ran.err);
    assert!(ran.err.contains("cannot write disk/page.html: "), "{}", ran.err);
    assert!(ran.err.contains("free space, or choose a file on another disk"), "{}", ran.err);
    assert!(ran.out.contains("unusable for 2 MiB pages"), "{}", ran.out);
}
