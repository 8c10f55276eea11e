//! The report page: type check, the build against the committed file, unit tests in node and tests of real
//! pages in Chromium. Packages of a registry may be unavailable; what is available must pass.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::child::{self, OutputMode};
use crate::skips;
use crate::tally::{Tally, TaskError};
use crate::test::{TestPrograms, run_step};
use crate::tree;

/// The committed page.
const BUILT_PAGE: &str = "web/dist/page.html";
/// The oldest node that the packages run on.
const NODE_MIN: u32 = 18;

/// The whole phase, with the programs of a build.
pub fn check_web(
    built: &TestPrograms,
    quick: bool,
    limit: Duration,
    tally: &mut Tally,
) -> Result<(), TaskError> {
    let page_maker =
        built.programs.iter().find(|one| one.package == "pagelab-report" && one.target == "pages");
    let (Some(page_maker), Some(pagelab)) = (page_maker, built.pagelab()) else {
        return Err(TaskError::Message("the build produced no pages or no pagelab".to_owned()));
    };
    let Some(node) = node_version(limit) else {
        tally.record_skip("node-absent", "node and npm are missing", "web");
        return Ok(());
    };
    if node < NODE_MIN {
        tally.record_check(&format!("expected node {NODE_MIN} or newer, found {node}"), false);
        return Ok(());
    }
    if let Err(why) = install_packages(quick, limit, tally)? {
        tally.record_skip("npm-packages-absent", &why, "web");
        return Ok(());
    }
    run_step("npm run check", web_command("npm").args(["run", "--silent", "check"]), limit, tally)?;
    build_page(limit, tally)?;
    run_node_tests("unit", &[], limit, tally)?;
    let scratch = tempfile::tempdir()?;
    let mut command = page_maker.command(&built.programs);
    run_step("pages of every kind", command.env("PAGELAB_PAGES", scratch.path()), limit, tally)?;
    let environment = [("PAGELAB_PAGES", scratch.path().to_owned()), ("PAGELAB_BIN", pagelab.file.clone())];
    run_node_tests("browser", &environment, limit, tally)
}

/// The line of the bench `page_zoom_ms`, which node prints.
pub fn measure_zoom_line(limit: Duration) -> Result<String, TaskError> {
    if node_version(limit).is_none() || !tree::root().join("web/node_modules").is_dir() {
        return Err("node or the packages of web/ are absent: cd web && npm ci".to_owned().into());
    }
    let outcome = child::run(web_command("node").args(["test/run.mjs", "bench"]), OutputMode::Quiet, limit)?;
    let line = outcome.stdout.iter().find(|line| line.contains("\"bar\"")).cloned();
    line.ok_or_else(|| {
        let said = outcome.stderr.iter().find(|line| !line.trim().is_empty());
        format!("node test/run.mjs bench: {}", said.unwrap_or(&outcome.failure)).into()
    })
}

/// A program that is run in the folder of the page.
fn web_command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(tree::root().join("web"));
    command
}

/// The first number of node's version, if node and npm can be run.
fn node_version(limit: Duration) -> Option<u32> {
    if !tree::is_on_path("npm") || !tree::is_on_path("node") {
        return None;
    }
    let outcome = child::run(web_command("node").arg("--version"), OutputMode::Quiet, limit).ok()?;
    outcome.stdout.first()?.trim_start_matches('v').split('.').next()?.parse().ok()
}

/// Installs what package-lock.json names. The inner error is the reason why the packages are not available.
fn install_packages(
    quick: bool,
    limit: Duration,
    tally: &mut Tally,
) -> Result<Result<(), String>, TaskError> {
    if quick {
        let is_here = tree::root().join("web/node_modules").is_dir();
        return Ok(if is_here { Ok(()) } else { Err("nothing is installed with --quick".to_owned()) });
    }
    let outcome =
        child::run(web_command("npm").args(["ci", "--no-fund", "--no-audit"]), OutputMode::Quiet, limit)?;
    tally.print_step("npm ci", outcome.is_success, outcome.wall_time, "");
    if outcome.is_success {
        return Ok(Ok(()));
    }
    if let Some(line) = registry_error(&outcome.stderr) {
        return Ok(Err(format!("npm ci: {line}")));
    }
    outcome.stderr.iter().for_each(|line| tally.print(format!("    {line}")));
    Err(format!("npm ci: {}", outcome.failure).into())
}

/// The line of npm's complaint that says the registry was out of reach; a wrong lock file is another matter.
fn registry_error(stderr: &[String]) -> Option<&String> {
    const CODES: [&str; 6] =
        ["ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH"];
    stderr.iter().find(|line| CODES.iter().any(|code| line.contains(code)))
}

/// The committed page is what the sources build.
fn build_page(limit: Duration, tally: &mut Tally) -> Result<(), TaskError> {
    let scratch = tempfile::tempdir()?;
    let fresh = scratch.path().join("page.html");
    if !run_step("npm run build", web_command("node").arg("build.mjs").arg(&fresh), limit, tally)? {
        return Ok(());
    }
    let is_same = fs::read(&fresh)? == fs::read(tree::root().join(BUILT_PAGE)).unwrap_or_default();
    let what =
        format!("{BUILT_PAGE} is not what web/ builds: cd web && npm ci && npm run build, and commit it");
    if !is_same {
        tally.print(format!("    {what}"));
    }
    tally.record_check(&what, is_same);
    Ok(())
}

/// Runs one suite of node's test runner and adds its results.
fn run_node_tests(
    suite: &str,
    environment: &[(&str, PathBuf)],
    limit: Duration,
    tally: &mut Tally,
) -> Result<(), TaskError> {
    let mut command = web_command("node");
    command.args(["test/run.mjs", suite]).envs(environment.iter().cloned());
    let outcome = child::run(&mut command, OutputMode::Quiet, limit)?;
    let found = parse_tap(&outcome.stdout);
    let name = format!("web {suite} tests");
    tally.print_step(&name, outcome.is_success, outcome.wall_time, &format!("{} passed", found.passed));
    tally.passed += found.passed;
    for (id, why) in found.skipped {
        tally.record_skip(&id, &why, &name);
    }
    let is_told = !found.failed.is_empty();
    tally.failures.extend(found.failed.into_iter().map(|test| format!("{name}: {test}")));
    if !outcome.is_success {
        outcome.stdout.iter().chain(&outcome.stderr).for_each(|line| tally.print(format!("    {line}")));
    }
    if !outcome.is_success && !is_told || found.passed == 0 && tally.skips.is_empty() {
        tally.failures.push(format!("{name}: {}", outcome.failure));
    }
    Ok(())
}

#[derive(Debug, Default, PartialEq, Eq)]
struct TapResults {
    passed: u64,
    failed: Vec<String>,
    skipped: Vec<(String, String)>,
}

/// Reads the outer lines of the Test Anything Protocol: `ok 3 - name # SKIP id: why`.
fn parse_tap(lines: &[String]) -> TapResults {
    let mut found = TapResults::default();
    for line in lines {
        let (is_ok, rest) = match (line.strip_prefix("ok "), line.strip_prefix("not ok ")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => continue,
        };
        let name = rest.split_once(" - ").map_or(rest, |(_, name)| name);
        match name.split_once(" # SKIP") {
            Some((_, why)) => found.skipped.extend(skips::parse_skip(&format!("skipped:{why}"))),
            None if is_ok => found.passed += 1,
            None => found.failed.push(name.to_owned()),
        }
    }
    found
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
            parse_tap(&lines(text)),
            TapResults {
                passed: 1,
                failed: vec!["b - c".to_owned()],
                skipped: vec![("chromium-absent".to_owned(), "there is none".to_owned())],
            }
        );
    }

    #[test]
    fn only_a_registry_out_of_reach_is_an_excuse() {
        let away = lines("npm error code ENOTFOUND\nnpm error network request failed");
        assert_eq!(registry_error(&away), Some(&away[0]));
        assert_eq!(registry_error(&lines("npm error code EUSAGE\nnpm error lock file out of date")), None);
    }
}
