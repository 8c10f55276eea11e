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
}

const TOOLS: [Tool; 3] = [
    Tool { name: "libc.a", package: "libc6-dev", why: "pagelab is one static file", found: by_compiler },
    Tool { name: "git", package: "git", why: "tidy looks at tracked files alone", found: tree::on_path },
    Tool { name: "setpriv", package: "util-linux", why: "tests become another user", found: tree::on_path },
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
        tally.check(&what, (tool.found)(tool.name));
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
