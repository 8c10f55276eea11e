//! `pagelab restore`: undoes the changes that a killed pagelab left, and removes its temporary files.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use pagelab_host::guard::{
    self, ChangeOutcome, GuardSite, JournalReport, Liveness, RestoreReport, UndoOutcome,
};
use pagelab_packages::store;
use pagelab_report::json::CONTRACT_VERSION;
use pagelab_report::style::{self, TextStyle};
use pagelab_target::exact::qemu::PLUGIN_DIR;
use pagelab_workloads::private_dir::{Leftover, find_leftovers};
use serde_json::{Value, json};

use crate::exit::{Exit, Outcome as Ended};
use crate::output;

/// Maximum width of the outcome column; longer texts push the owner to the right.
const OUTCOME_WIDTH: usize = 30;

/// Maximum width of an owner's command in the table, in characters; JSON has more of it.
const COMMAND_WIDTH: usize = 32;

/// The directory of a guest's disk without TMPDIR.
const LARGE_FILES_DIR: &str = "/var/tmp";

const AFTER_HELP: &str = "\
Examples:
  pagelab restore --dry-run    list the changes and who made them
  pagelab restore              restore them; system settings require root

A pagelab process that is killed (kill -9) leaves temporary files and a journal of its changes. restore \
 undoes the changes and removes the files. Processes that still run are not touched.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Print the plan and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Use settings and journals below this directory, as in a chroot
    #[arg(long, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
}

/// Restores, and prints the outcome of every change.
pub fn run(args: &Args) -> Ended {
    let site = match &args.root {
        Some(root) => GuardSite::with_base(root),
        None => GuardSite::live(),
    };
    let site = site?;
    let report = guard::restore(&site, args.dry_run)?;
    // The directories of temporary files are of this machine, not below another root.
    let leftovers = match &args.root {
        Some(_) => Vec::new(),
        None => remove_leftovers(args.dry_run),
    };
    let dir = site.journal_dir();
    if args.json {
        output::print_json(&report_to_json(
            &report,
            &leftovers,
            args.dry_run,
            &dir.path().display().to_string(),
        ))?;
    } else {
        output::print(&to_text(&report, &leftovers, args.dry_run, output::stdout_style()))?;
    }
    if dir.hides_roots_journals() {
        output::warn("warning: cannot read root's journals: permission denied; hint: sudo pagelab restore");
        return Ok(worst_exit(&report, &leftovers).unwrap_or(Exit::NotAvailable));
    }
    Ok(worst_exit(&report, &leftovers).unwrap_or(Exit::Success))
}

/// A temporary file or directory of a killed pagelab, and the error if it could not be removed.
struct LeftoverOutcome {
    leftover: Leftover,
    error: Option<io::Error>,
}

/// Removes what killed processes left among the temporary files.
fn remove_leftovers(dry_run: bool) -> Vec<LeftoverOutcome> {
    let plugins = store::default_cache_dir().map(|cache| cache.join(PLUGIN_DIR));
    let dirs: BTreeSet<PathBuf> =
        [std::env::temp_dir(), PathBuf::from(LARGE_FILES_DIR)].into_iter().chain(plugins).collect();
    let outcome = |leftover: Leftover| {
        let error = if dry_run { None } else { leftover.remove().err() };
        LeftoverOutcome { leftover, error }
    };
    dirs.iter().flat_map(|dir| find_leftovers(dir)).map(outcome).collect()
}

/// Returns the exit code of the worst failure, if any.
fn worst_exit(report: &RestoreReport, leftovers: &[LeftoverOutcome]) -> Option<Exit> {
    if !report.rejected.is_empty() {
        return Some(Exit::BadInput);
    }
    let is_left = report.count(UndoOutcome::LeftUnchanged) + report.count(UndoOutcome::Failed) > 0;
    let is_left = is_left || leftovers.iter().any(|outcome| outcome.error.is_some());
    is_left.then_some(Exit::Partial)
}

/// Prints one line per change: outcome, setting, old and new value, owner.
fn to_text(report: &RestoreReport, leftovers: &[LeftoverOutcome], dry_run: bool, style: TextStyle) -> String {
    let mut lines: Vec<[String; 4]> = Vec::new();
    for journal in &report.journals {
        for outcome in journal.outcomes.iter().filter(|o| o.undo != UndoOutcome::AlreadyRestored) {
            let word = undo_text(outcome.undo, dry_run).to_owned();
            lines.push([word, outcome.label.clone(), outcome_text(outcome), owner_text(journal)]);
        }
    }
    let mut text = String::new();
    if lines.is_empty() && report.rejected.is_empty() && leftovers.is_empty() {
        text.push_str("nothing to restore\n");
    }
    let widest = |column: usize, most: usize| {
        let widths = lines.iter().map(|line| line[column].chars().count());
        widths.filter(|&width| width <= most).max().unwrap_or(0)
    };
    let (word_width, what_width) = (widest(0, usize::MAX), widest(1, usize::MAX));
    let happened_width = widest(2, OUTCOME_WIDTH);
    for [word, what, happened, by] in &lines {
        let padded = format!("{word:<word_width$}");
        let is_fine = !matches!(word.as_str(), "left" | "failed");
        let word = if is_fine { padded } else { style.paint_alert(&padded) };
        let by = style.paint_dim(&format!("({by})"));
        text += &format!("{word}  {what:<what_width$}  {happened:<happened_width$}   {by}\n");
    }
    for LeftoverOutcome { leftover, error } in leftovers {
        let word = match (error, dry_run) {
            (Some(_), _) => style.paint_alert("failed"),
            (None, true) => "would remove".to_owned(),
            (None, false) => "removed".to_owned(),
        };
        let why = error.as_ref().map_or_else(String::new, |error| format!("{error}   "));
        let by = style.paint_dim(&format!("(left by pid {}, killed)", leftover.pid));
        text += &format!(
            "{word}  {}  {why} {by}\n",
            style::escape_invisible(&leftover.path.display().to_string())
        );
    }
    for rejected in &report.rejected {
        let kept_as = match &rejected.moved_to {
            Some(path) => format!("kept as {}", path.display()),
            None => "left where it is".to_owned(),
        };
        let word = style.paint_alert("rejected");
        let (path, reason) = (rejected.path.display(), &rejected.reason);
        text += &format!("{word}  {path}  {reason}; no setting was written; {kept_as}\n");
    }
    for path in &report.quarantined {
        let path = path.display();
        let line = format!("kept      {path}  rejected earlier; remove it after inspection");
        text += &(style.paint_dim(&line) + "\n");
    }
    text
}

fn undo_text(undo: UndoOutcome, dry_run: bool) -> &'static str {
    match (undo, dry_run) {
        (UndoOutcome::Restored, true) => "would restore",
        (UndoOutcome::Restored, false) => "restored",
        (UndoOutcome::AlreadyRestored, _) => "back",
        (UndoOutcome::LeftUnchanged, _) => "left",
        (UndoOutcome::Failed, _) => "failed",
        (UndoOutcome::OneWay, _) => "one-way",
        (UndoOutcome::OwnerRunning, _) => "running",
        (UndoOutcome::OtherBoot, _) => "discarded",
    }
}

fn outcome_text(outcome: &ChangeOutcome) -> String {
    let ChangeOutcome { found_value: found, set_value: ours, original_value: original, path, detail, .. } =
        outcome;
    match (outcome.undo, found, ours, original) {
        (UndoOutcome::Restored, Some(found), _, Some(original)) => {
            let more = if detail.is_empty() { String::new() } else { format!("; {detail}") };
            format!("{found} → {original}{more}")
        }
        (UndoOutcome::LeftUnchanged, Some(found), _, Some(original)) => {
            format!("now {found}, {detail}; was {original}")
        }
        (UndoOutcome::Failed, _, _, Some(original)) => {
            format!("cannot restore {original}: {detail}; try again later")
        }
        (UndoOutcome::OneWay, ..) if !detail.is_empty() => detail.clone(),
        (UndoOutcome::OneWay, ..) => "already started, cannot be undone".to_owned(),
        (UndoOutcome::OwnerRunning, _, Some(ours), Some(original)) => {
            format!("{ours}, reverts to {original}")
        }
        (UndoOutcome::OwnerRunning, ..) if *path == outcome.label => "in progress".to_owned(),
        (UndoOutcome::OtherBoot, ..) => "ended with the reboot".to_owned(),
        _ if detail.is_empty() => path.clone(),
        _ => format!("{path}: {detail}"),
    }
}

fn owner_text(journal: &JournalReport) -> String {
    let mut owner = journal.owner.clone();
    if owner.command.chars().count() > COMMAND_WIDTH {
        owner.command = owner.command.chars().take(COMMAND_WIDTH - 1).chain(['…']).collect();
    }
    let name = owner.display_name();
    match journal.liveness {
        Liveness::Live => format!("held by {name}"),
        Liveness::Killed => format!("left by {name}, killed"),
        Liveness::OtherBoot => format!("{name}, from an earlier boot"),
    }
}

fn report_to_json(report: &RestoreReport, leftovers: &[LeftoverOutcome], dry_run: bool, dir: &str) -> Value {
    let path = |path: &PathBuf| path.display().to_string();
    let rejected = report.rejected.iter().map(|rejected| {
        json!({
            "path": path(&rejected.path),
            "kept_as": rejected.moved_to.as_ref().map(path),
            "kept_as_absent_reason": rejected.moved_to.is_none().then_some("not moved"),
            "reason": rejected.reason,
        })
    });
    json!({
        "pagelab_json": CONTRACT_VERSION,
        "kind": "restore",
        "dry_run": dry_run,
        "journal_dir": dir,
        "journals": report.journals.iter().map(journal_to_json).collect::<Vec<_>>(),
        "rejected": rejected.collect::<Vec<_>>(),
        "quarantined": report.quarantined.iter().map(path).collect::<Vec<_>>(),
        "leftovers": leftovers.iter().map(leftover_to_json).collect::<Vec<_>>(),
    })
}

fn leftover_to_json(outcome: &LeftoverOutcome) -> Value {
    json!({
        "path": outcome.leftover.path.display().to_string(),
        "pid": outcome.leftover.pid,
        "outcome": if outcome.error.is_some() { "failed" } else { "removed" },
        "detail": outcome.error.as_ref().map(ToString::to_string).unwrap_or_default(),
    })
}

fn journal_to_json(journal: &JournalReport) -> Value {
    let state = match journal.liveness {
        Liveness::Live => "live",
        Liveness::Killed => "killed",
        Liveness::OtherBoot => "other_boot",
    };
    let owner = &journal.owner;
    json!({
        "owner": {
            "pid": owner.pid,
            "start_ticks": owner.start_ticks,
            "boot_id": owner.boot_id,
            "command": owner.command,
            "state": state,
        },
        "changes": journal.outcomes.iter().map(change_to_json).collect::<Vec<_>>(),
    })
}

fn change_to_json(outcome: &ChangeOutcome) -> Value {
    // Created objects and one-way actions have no values; a setting's value can be unreadable or not
    // requested.
    let reason = |value: &Option<String>| match (value, &outcome.original_value) {
        (Some(_), _) => None,
        (None, None) => Some("not a setting with a value"),
        (None, Some(_)) => Some("not read"),
    };
    json!({
        "label": outcome.label,
        "path": outcome.path,
        "outcome": outcome.undo.json_name(),
        "found": outcome.found_value,
        "found_absent_reason": reason(&outcome.found_value),
        "set_value": outcome.set_value,
        "set_value_absent_reason": reason(&outcome.set_value),
        "original": outcome.original_value,
        "original_absent_reason": reason(&outcome.original_value),
        "detail": outcome.detail,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_one_way_act_is_told_by_what_is_left_of_it() {
        let outcome_of = |undo, detail: &str| {
            let what = "MADV_COLLAPSE".to_owned();
            let (path, detail) = (what.clone(), detail.to_owned());
            outcome_text(&ChangeOutcome {
                label: what,
                path,
                undo,
                found_value: None,
                set_value: None,
                original_value: None,
                detail,
            })
        };
        assert_eq!(outcome_of(UndoOutcome::OneWay, ""), "already started, cannot be undone");
        assert_eq!(outcome_of(UndoOutcome::OneWay, "nothing is left of it"), "nothing is left of it");
        assert_eq!(outcome_of(UndoOutcome::OwnerRunning, ""), "in progress");
    }
}
