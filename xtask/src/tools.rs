//! Tools of the tests besides Rust and a C compiler: detection, and installation where possible.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::child::{self, OutputMode};
use crate::conditions;
use crate::phases::Phase;
use crate::tally::Tally;
use crate::tree;

struct RequiredTool {
    /// Name of the program, which `found` checks.
    name: &'static str,
    /// The Debian package that brings it.
    package: &'static str,
    /// Which checks use it.
    purpose: &'static str,
    found: fn(&str) -> bool,
    /// Without it checks are skipped, which `skips.txt` lists; else it is a failure.
    is_optional: bool,
}

const fn required_tool(name: &'static str, package: &'static str, purpose: &'static str) -> RequiredTool {
    RequiredTool { name, package, purpose, found: tree::is_on_path, is_optional: false }
}

const fn optional_tool(name: &'static str, package: &'static str, purpose: &'static str) -> RequiredTool {
    RequiredTool { is_optional: true, ..required_tool(name, package, purpose) }
}

const REQUIRED_TOOLS: [RequiredTool; 10] = [
    RequiredTool {
        found: compiler_finds,
        ..required_tool("libc.a", "libc6-dev", "pagelab is one static file")
    },
    required_tool("git", "git", "tidy checks tracked files only"),
    RequiredTool {
        found: has_default_signal,
        ..required_tool("env", "coreutils", "test programs start with default signals")
    },
    required_tool("sqlite3", "sqlite3", "run files are read by a second program"),
    required_tool("setpriv", "util-linux", "tests switch to another user"),
    optional_tool("npm", "npm", "the page is built and tested"),
    optional_tool("chromium", "chromium", "the page is tested in it"),
    optional_tool("qemu-system-x86_64", "qemu-system-x86", "guests are booted"),
    optional_tool("mkfs.ext4", "e2fsprogs", "a guest's disk gets a file system"),
    optional_tool("tmux", "tmux", "the live view is driven in it"),
];

/// Parts of the Rust toolchain: the subcommand, and what rustup calls it.
const TOOLCHAIN_COMPONENTS: [(&str, &str); 2] = [("cargo-fmt", "rustfmt"), ("cargo-clippy", "clippy")];

/// Checks all tools and, as root, installs missing ones; otherwise prints the command.
pub fn check_tools(tally: &mut Tally) {
    for (command, component) in
        TOOLCHAIN_COMPONENTS.into_iter().filter(|(command, _)| !tree::is_on_path(command))
    {
        let added = print_and_run(tally, "rustup", &["component", "add", component]);
        tally.record_check(&format!("{command} is missing: rustup component add {component}"), added);
    }
    let missing: Vec<&RequiredTool> = REQUIRED_TOOLS.iter().filter(|tool| !(tool.found)(tool.name)).collect();
    if !missing.is_empty() {
        install_tools(&missing, tally);
    }
    for tool in &REQUIRED_TOOLS {
        let what = format!("{} is missing ({}): apt-get install {}", tool.name, tool.purpose, tool.package);
        let found = (tool.found)(tool.name);
        if found || !tool.is_optional {
            tally.record_check(&what, found);
        } else {
            tally.print(format!("  {what}"));
        }
    }
}

fn install_tools(missing: &[&RequiredTool], tally: &mut Tally) {
    let mut packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    packages.dedup();
    if !conditions::is_root() || !tree::is_on_path("apt-get") {
        tally.print(format!("  install them as root: apt-get install {}", packages.join(" ")));
        return;
    }
    let install = [&["install", "--yes", "--no-install-recommends"], &packages[..]].concat();
    // The package lists may be old or empty; a failure of the update shows in the installation.
    print_and_run(tally, "apt-get", &["update"]);
    print_and_run(tally, "apt-get", &install);
}

/// Fetches the kernels of the guests into the user's cache. Whether that went well shows in the tests.
pub fn fetch_kernels(pagelab: &Path, tally: &mut Tally) {
    let Some(program) = pagelab.to_str() else { return };
    let setup = ["guest", "setup", "--kernel", "6.1", "--kernel", "6.12"];
    if !tree::is_on_path("apt-get") || print_and_run(tally, program, &setup) {
        return;
    }
    // The package lists may be old or empty.
    if conditions::is_root() && print_and_run(tally, "apt-get", &["update"]) {
        print_and_run(tally, program, &setup);
    }
}

fn print_and_run(tally: &mut Tally, program: &str, arguments: &[&str]) -> bool {
    tally.print(format!("  {program} {}", arguments.join(" ")));
    let mut command = Command::new(program);
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    let limit = Phase::Tools.program_timeout() + Duration::from_secs(60);
    match child::run(&mut command, OutputMode::Quiet, limit) {
        Ok(ran) if ran.is_success => true,
        Ok(ran) => {
            let last = &ran.stderr[ran.stderr.len().saturating_sub(10)..];
            last.iter().for_each(|line| tally.print(format!("    {line}")));
            tally.print(format!("    {}", ran.failure));
            false
        }
        Err(error) => {
            tally.print(format!("    {error}"));
            false
        }
    }
}

/// Whether the C compiler finds a file of the C library.
fn compiler_finds(file: &str) -> bool {
    let asked = Command::new("cc").arg(format!("-print-file-name={file}")).output();
    asked.is_ok_and(|output| {
        let answer = String::from_utf8_lossy(&output.stdout);
        let path = Path::new(answer.trim());
        path.is_absolute() && path.is_file()
    })
}

/// Whether `env` has `--default-signal` (coreutils 8.31 and later; busybox does not).
fn has_default_signal(name: &str) -> bool {
    let ran = Command::new(name).args(["--default-signal=PIPE", "true"]).output();
    ran.is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_noticed() {
        assert!(!compiler_finds("no-such-library.a"));
        assert!(!tree::is_on_path("no-such-program-of-this-name"));
        assert!(tree::is_on_path("sh"));
        assert!(has_default_signal("env") && !has_default_signal("false"));
    }
}
