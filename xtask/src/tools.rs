//! What the tests need beyond Rust and a C compiler: looked for, and installed where that is possible.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::child::{self, Show};
use crate::facts;
use crate::phases::Phase;
use crate::tally::Tally;
use crate::tree;

struct Tool {
    /// What is looked for, and by `found`.
    name: &'static str,
    /// The Debian package that brings it.
    package: &'static str,
    /// Which checks use it.
    why: &'static str,
    found: fn(&str) -> bool,
    /// Without it checks are skipped, which `skips.txt` lists; else it is a failure.
    or_skip: bool,
}

const fn tool(name: &'static str, package: &'static str, why: &'static str) -> Tool {
    Tool { name, package, why, found: tree::on_path, or_skip: false }
}

const TOOLS: [Tool; 9] = [
    Tool { found: by_compiler, ..tool("libc.a", "libc6-dev", "pagelab is one static file") },
    tool("git", "git", "tidy looks at tracked files alone"),
    tool("sqlite3", "sqlite3", "run files are read by another"),
    tool("setpriv", "util-linux", "tests become another user"),
    Tool { or_skip: true, ..tool("npm", "npm", "the page is built and tested") },
    Tool { or_skip: true, ..tool("chromium", "chromium", "the page is tested in it") },
    Tool { or_skip: true, ..tool("qemu-system-x86_64", "qemu-system-x86", "guests are booted") },
    Tool { or_skip: true, ..tool("mkfs.ext4", "e2fsprogs", "a guest's disk gets a file system") },
    Tool { or_skip: true, ..tool("tmux", "tmux", "the live view is driven in it") },
];

/// Parts of the Rust toolchain: the subcommand, and what rustup calls it.
const COMPONENTS: [(&str, &str); 2] = [("cargo-fmt", "rustfmt"), ("cargo-clippy", "clippy")];

/// Looks for everything and installs what is missing as root; otherwise says how to.
pub fn check(tally: &mut Tally) {
    for (command, component) in COMPONENTS.into_iter().filter(|(command, _)| !tree::on_path(command)) {
        let added = say_and_run("rustup", &["component", "add", component]);
        tally.check(&format!("{command} is missing: rustup component add {component}"), added);
    }
    let missing: Vec<&Tool> = TOOLS.iter().filter(|tool| !(tool.found)(tool.name)).collect();
    if !missing.is_empty() {
        install(&missing);
    }
    for tool in &TOOLS {
        let what = format!("{} is missing ({}): apt-get install {}", tool.name, tool.why, tool.package);
        let found = (tool.found)(tool.name);
        if found || !tool.or_skip {
            tally.check(&what, found);
        } else {
            println!("  {what}");
        }
    }
}

fn install(missing: &[&Tool]) {
    let mut packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    packages.dedup();
    if !facts::is_root() || !tree::on_path("apt-get") {
        println!("  to be installed, as root: apt-get install {}", packages.join(" "));
        return;
    }
    let install = [&["install", "--yes", "--no-install-recommends"], &packages[..]].concat();
    // The package lists may be old or empty; a failure of the update shows in the installation.
    say_and_run("apt-get", &["update"]);
    say_and_run("apt-get", &install);
}

/// Fetches the kernels of the guests into the user's cache. Whether that went well shows in the tests.
pub fn kernels(pagelab: &Path) {
    let Some(program) = pagelab.to_str() else { return };
    let setup = ["guest", "setup", "--kernel", "6.1", "--kernel", "6.12"];
    let has_both = tree::on_path("apt-get") && say_and_run(program, &setup);
    // The package lists may be old or empty.
    if !has_both && facts::is_root() && tree::on_path("apt-get") && say_and_run("apt-get", &["update"]) {
        say_and_run(program, &setup);
    }
}

fn say_and_run(program: &str, arguments: &[&str]) -> bool {
    println!("  {program} {}", arguments.join(" "));
    let mut command = Command::new(program);
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    match child::run(&mut command, Show::Nothing, Phase::Tools.patience() + Duration::from_secs(60)) {
        Ok(ran) if ran.ok => true,
        Ok(ran) => {
            let last: Vec<&String> = ran.stderr.iter().rev().take(10).collect();
            last.iter().rev().for_each(|line| println!("    {line}"));
            println!("    {}", ran.ending);
            false
        }
        Err(error) => {
            println!("    {error}");
            false
        }
    }
}

/// Whether the C compiler knows where a file of the C library lies.
fn by_compiler(file: &str) -> bool {
    let asked = Command::new("cc").arg(format!("-print-file-name={file}")).output();
    asked.is_ok_and(|output| {
        let answer = String::from_utf8_lossy(&output.stdout);
        let path = Path::new(answer.trim());
        path.is_absolute() && path.is_file()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_noticed() {
        assert!(!by_compiler("no-such-library.a"));
        assert!(!tree::on_path("no-such-program-of-this-name"));
        assert!(tree::on_path("sh"));
    }
}
