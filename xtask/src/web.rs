//! The report page: type check, the build against the committed file, unit tests in node and tests of real
//! pages in Chromium. What comes from a registry may be out of reach; what is there must hold.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::built::Program;
use crate::child::{self, Ran, Show};
use crate::skips;
use crate::tally::{Failed, Tally};
use crate::test::said;
use crate::tree;

/// The committed page.
const BUILT: &str = "web/dist/page.html";
/// The oldest node that the packages run on.
const NODE_MIN: u32 = 18;

/// What the tests of the page need of the Rust side.
pub struct Made {
    /// Makes pages of every kind.
    pages: Program,
    /// Looks at this machine.
    pagelab: PathBuf,
    /// All programs, for the environment of `pages`.
    all: Vec<Program>,
}

impl Made {
    /// Picks from the programs of a build; the release binary where there is one.
    pub fn of(programs: &[Program], release: Option<&Program>) -> Result<Made, Failed> {
        let pages = programs.iter().find(|one| one.package == "pagelab-report" && one.target == "pages");
        let is_product = |one: &&Program| one.target == "pagelab" && one.kind == "bin" && !one.is_test;
        let pagelab = release.or_else(|| programs.iter().find(is_product));
        match (pages, pagelab) {
            (Some(pages), Some(pagelab)) => {
                Ok(Made { pages: pages.clone(), pagelab: pagelab.file.clone(), all: programs.to_vec() })
            }
            _ => Err(Failed::Because("the build made no pages or no pagelab".to_owned())),
        }
    }
}

/// The whole phase.
pub fn check(made: &Made, quick: bool, limit: Duration, tally: &mut Tally) -> Result<(), Failed> {
    let Some(node) = node_version(limit) else {
        tally.skip("node-absent", "there is no node and no npm", "web");
        return Ok(());
    };
    if node < NODE_MIN {
        tally.check(&format!("node {NODE_MIN} or newer is needed, this is {node}"), false);
        return Ok(());
    }
    if let Err(why) = packages(quick, limit)? {
        tally.skip("npm-packages-absent", &why, "web");
        return Ok(());
    }
    step("npm run check", npm().args(["run", "--silent", "check"]), limit, tally)?;
    build(limit, tally)?;
    node_tests("unit", &[], limit, tally)?;
    let scratch = Scratch::new()?;
    pages(made, scratch.path(), limit, tally)?;
    let environment = [("PAGELAB_PAGES", scratch.path().to_owned()), ("PAGELAB_BIN", made.pagelab.clone())];
    node_tests("browser", &environment, limit, tally)
}

/// The line of the bench `page_zoom_ms`, which node prints.
pub fn zoom_line(limit: Duration) -> Result<String, Failed> {
    if node_version(limit).is_none() || !tree::root().join("web/node_modules").is_dir() {
        return Err("node or the packages of web/ are absent: cd web && npm ci".to_owned().into());
    }
    let ran = child::run(node().args(["test/run.mjs", "bench"]), Show::Nothing, limit)?;
    let line = ran.stdout.iter().find(|line| line.contains("\"bar\"")).cloned();
    line.ok_or_else(|| {
        let said = ran.stderr.iter().find(|line| !line.trim().is_empty());
        format!("node test/run.mjs bench: {}", said.unwrap_or(&ran.ending)).into()
    })
}

fn npm() -> Command {
    let mut command = Command::new("npm");
    command.current_dir(tree::root().join("web"));
    command
}

fn node() -> Command {
    let mut command = Command::new("node");
    command.current_dir(tree::root().join("web"));
    command
}

/// The first number of node's version, if node and npm can be run.
fn node_version(limit: Duration) -> Option<u32> {
    if !tree::on_path("npm") || !tree::on_path("node") {
        return None;
    }
    let ran = child::run(node().arg("--version"), Show::Nothing, limit).ok()?;
    ran.stdout.first()?.trim_start_matches('v').split('.').next()?.parse().ok()
}

/// Installs what package-lock.json names. The inner error says why the packages are not here.
fn packages(quick: bool, limit: Duration) -> Result<Result<(), String>, Failed> {
    if quick {
        let is_here = tree::root().join("web/node_modules").is_dir();
        return Ok(if is_here { Ok(()) } else { Err("nothing is installed with --quick".to_owned()) });
    }
    let ran = child::run(npm().args(["ci", "--no-fund", "--no-audit"]), Show::Nothing, limit)?;
    said("npm ci", ran.ok, ran.took, "");
    if ran.ok {
        return Ok(Ok(()));
    }
    if let Some(line) = unreachable(&ran.stderr) {
        return Ok(Err(format!("npm ci: {line}")));
    }
    ran.stderr.iter().for_each(|line| println!("    {line}"));
    Err(format!("npm ci: {}", ran.ending).into())
}

/// The line of npm's complaint that says the registry was out of reach; a wrong lock file is another matter.
fn unreachable(stderr: &[String]) -> Option<&String> {
    const CODES: [&str; 6] =
        ["ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH"];
    stderr.iter().find(|line| CODES.iter().any(|code| line.contains(code)))
}

fn step(name: &str, command: &mut Command, limit: Duration, tally: &mut Tally) -> Result<Ran, Failed> {
    let ran = child::run(command, Show::Nothing, limit)?;
    said(name, ran.ok, ran.took, "");
    if !ran.ok {
        ran.stdout.iter().chain(&ran.stderr).for_each(|line| println!("    {line}"));
        println!("    {}", ran.ending);
    }
    tally.check(name, ran.ok);
    Ok(ran)
}

/// The committed page is what the sources build.
fn build(limit: Duration, tally: &mut Tally) -> Result<(), Failed> {
    let scratch = Scratch::new()?;
    let fresh = scratch.path().join("page.html");
    if !step("npm run build", node().arg("build.mjs").arg(&fresh), limit, tally)?.ok {
        return Ok(());
    }
    let is_same = fs::read(&fresh)? == fs::read(tree::root().join(BUILT)).unwrap_or_default();
    let what = format!("{BUILT} is not what web/ builds: cd web && npm ci && npm run build, and commit it");
    if !is_same {
        println!("    {what}");
    }
    tally.check(&what, is_same);
    Ok(())
}

/// Lets the Rust side write its pages into `folder`.
fn pages(made: &Made, folder: &Path, limit: Duration, tally: &mut Tally) -> Result<(), Failed> {
    let mut command = made.pages.command(&made.all);
    command.env("PAGELAB_PAGES", folder);
    step("pages of every kind", &mut command, limit, tally).map(drop)
}

/// Runs one suite of node's test runner and adds what it found.
fn node_tests(
    suite: &str,
    environment: &[(&str, PathBuf)],
    limit: Duration,
    tally: &mut Tally,
) -> Result<(), Failed> {
    let mut command = node();
    command.args(["test/run.mjs", suite]).envs(environment.iter().cloned());
    let ran = child::run(&mut command, Show::Nothing, limit)?;
    let found = read_tap(&ran.stdout);
    let name = format!("web {suite} tests");
    said(&name, ran.ok, ran.took, &format!("{} passed", found.passed));
    tally.passed += found.passed;
    for (id, why) in found.skipped {
        tally.skip(&id, &why, &name);
    }
    let is_told = !found.failed.is_empty();
    tally.failures.extend(found.failed.into_iter().map(|test| format!("{name}: {test}")));
    if !ran.ok {
        ran.stdout.iter().chain(&ran.stderr).for_each(|line| println!("    {line}"));
    }
    if !ran.ok && !is_told || found.passed == 0 && tally.skips.is_empty() {
        tally.failures.push(format!("{name}: {}", ran.ending));
    }
    Ok(())
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Tap {
    passed: u64,
    failed: Vec<String>,
    skipped: Vec<(String, String)>,
}

/// Reads the outer lines of the Test Anything Protocol: `ok 3 - name # SKIP id: why`.
fn read_tap(lines: &[String]) -> Tap {
    let mut found = Tap::default();
    for line in lines {
        let (is_ok, rest) = match (line.strip_prefix("ok "), line.strip_prefix("not ok ")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => continue,
        };
        let name = rest.split_once(" - ").map_or(rest, |(_, name)| name);
        match name.split_once(" # SKIP") {
            Some((_, why)) => found.skipped.extend(skips::said(&format!("skipped:{why}"))),
            None if is_ok => found.passed += 1,
            None => found.failed.push(name.to_owned()),
        }
    }
    found
}

/// A folder that goes when it is no longer needed.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, Failed> {
        let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let name = format!("pagelab-web-{}-{}", std::process::id(), at.unwrap_or_default().as_nanos());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path)?;
        Ok(Scratch(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left lies in the folder for temporary files, under a name that says whose it is.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn outer_results_are_counted_and_skips_are_named() {
        let text = "TAP version 13\n# Subtest: a\n    ok 1 - inner\nok 1 - a\nnot ok 2 - b - c\n\
            ok 3 - d # SKIP chromium-absent: there is none\n1..3\n# pass 2\n";
        assert_eq!(
            read_tap(&lines(text)),
            Tap {
                passed: 1,
                failed: vec!["b - c".to_owned()],
                skipped: vec![("chromium-absent".to_owned(), "there is none".to_owned())],
            }
        );
    }

    #[test]
    fn only_a_registry_out_of_reach_is_an_excuse() {
        let away = lines("npm error code ENOTFOUND\nnpm error network request failed");
        assert_eq!(unreachable(&away), Some(&away[0]));
        assert_eq!(unreachable(&lines("npm error code EUSAGE\nnpm error lock file out of date")), None);
    }
}
