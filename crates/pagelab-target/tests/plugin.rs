//! Tests of the plugin in a program that imitates QEMU: accepted versions, and errors for others.
#![allow(clippy::print_stderr, reason = "a skipped check says so")]
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail where they stand")]
#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]

mod support;

use std::process::Command;

use pagelab_model::PageSize;
use pagelab_target::exact::account::SharedAccount;
use pagelab_tlb::engine::account_layout::header;
use pagelab_tlb::{model_geometry, syntax};

/// As the build script left it.
const PLUGIN: &str = concat!(env!("OUT_DIR"), "/tlb-trace.so");

#[test]
fn a_qemu_of_another_interface_is_refused_by_its_versions() {
    let Some((_folder, program)) = support::compile_program("fake_qemu", &["-rdynamic", "-ldl"]) else {
        return;
    };
    let tlb = syntax::parse("l1d=16x4:4K,l2=64x4:4K").unwrap();
    let geometry = model_geometry::build_geometry(&tlb, PageSize::DEFAULT).unwrap();
    let account =
        SharedAccount::create(&geometry, &[], 1, |words| words[header::HUGE_SHIFT as usize] = 21).unwrap();
    let account = format!("account={}", account.path());
    // (least version, current version, target, whole machine), arguments, (result, callbacks, message). Of
    // the command line, one word counts as QEMU's own, so that there is a program behind it.
    let whole = [account.as_str(), "prefix=1"];
    type Case<'a> = ([&'a str; 4], &'a [&'a str], (i32, i32, &'a str));
    let cases: [Case; 8] = [
        (["0", "1", "x86_64", "0"], &whole, (0, 6, "")),
        (["1", "1", "x86_64", "0"], &whole, (0, 6, "")),
        (["0", "3", "x86_64", "0"], &whole, (0, 6, "")),
        (
            ["2", "4", "x86_64", "0"],
            &whole,
            (1, 0, "this QEMU supports versions 2 to 4; hint: use QEMU 6.2 to 8.2"),
        ),
        (["0", "0", "x86_64", "0"], &whole, (1, 0, "this QEMU supports versions 0 to 0")),
        (["0", "1", "aarch64", "0"], &whole, (1, 0, "")),
        (["0", "1", "x86_64", "1"], &whole, (1, 0, "")),
        (["0", "1", "x86_64", "0"], &["prefix=1"], (1, 0, "")),
    ];
    for (qemu, arguments, (answer, registered, says)) in cases {
        let output = Command::new(&program).arg(PLUGIN).args(qemu).args(arguments).output().unwrap();
        let (out, err) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(out, format!("1 {answer} {registered}\n"), "{qemu:?} {arguments:?}: {err}");
        assert!(err.contains(says) && err.is_empty() == says.is_empty(), "{qemu:?} {arguments:?}: {err}");
    }
}
