//! `pagelab restore`: undoes what a killed pagelab left changed.

use std::io::Write;
use std::path::PathBuf;

use pagelab_host::guard::{
    self, ErrorKind, Fate, GuardError, JournalReport, Liveness, Outcome, Report, Site,
};
use pagelab_report::json::VERSION;
use pagelab_report::style::Style;
use serde_json::{Value, json};

use crate::exit::{Exit, Failure, Outcome as Ended};
use crate::out;

/// Up to here, what happened is one column; longer texts push the owner to the right.
const HAPPENED_WIDTH: usize = 30;

/// Longest command of an owner in the table, in characters; JSON has more of it.
const COMMAND_WIDTH: usize = 32;

/// What `restore` was asked for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Change nothing; say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Settings and journals are below this directory, as in a chroot
    #[arg(long, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
}

/// Restores, and prints what became of every change.
pub fn run(args: &Args) -> Ended {
    let site = match &args.root {
        Some(root) => Site::under(root),
        None => Site::live(),
    };
    let site = site.map_err(failure)?;
    let report = guard::restore(&site, args.dry_run).map_err(failure)?;
    let dir = site.journal_dir();
    let mut out = out::stdout();
    if args.json {
        writeln!(out, "{}", to_json(&report, args.dry_run, &dir.path().display().to_string()))?;
    } else {
        out.write_all(to_text(&report, args.dry_run, out::style()).as_bytes())?;
    }
    out.flush()?;
    if dir.hides_roots_journals() {
        out::complain("pagelab: root has journals that only root may read; a way out: sudo pagelab restore");
        return Ok(worst(&report).unwrap_or(Exit::NotAvailable));
    }
    Ok(worst(&report).unwrap_or(Exit::Done))
}

/// The exit code of what went wrong, if something did.
fn worst(report: &Report) -> Option<Exit> {
    if !report.refused.is_empty() {
        return Some(Exit::BadInput);
    }
    let is_left = report.count(Fate::LeftAlone) + report.count(Fate::Failed) > 0;
    is_left.then_some(Exit::Partial)
}

/// An error of the guard with its exit code.
pub fn failure(error: GuardError) -> Failure {
    let exit = match error.kind() {
        ErrorKind::Usage => Exit::Usage,
        ErrorKind::BadInput => Exit::BadInput,
        ErrorKind::NotAvailable => Exit::NotAvailable,
        ErrorKind::Refused | ErrorKind::Held | ErrorKind::Stopping => Exit::Partial,
    };
    Failure::new(exit, error.to_string())
}

/// One line a change: what became of it, which setting, from where to where, who had left it.
fn to_text(report: &Report, dry_run: bool, style: Style) -> String {
    let mut lines: Vec<[String; 4]> = Vec::new();
    for journal in &report.journals {
        for outcome in journal.outcomes.iter().filter(|o| o.fate != Fate::AlreadyBack) {
            let line = [word(outcome.fate, dry_run), &outcome.what, &what_happened(outcome), &by(journal)];
            lines.push(line.map(str::to_owned));
        }
    }
    let mut text = String::new();
    if lines.is_empty() && report.refused.is_empty() {
        text.push_str("nothing to restore\n");
    }
    let widest = |column: usize, most: usize| {
        let widths = lines.iter().map(|line| line[column].chars().count());
        widths.filter(|&width| width <= most).max().unwrap_or(0)
    };
    let (word_width, what_width) = (widest(0, usize::MAX), widest(1, usize::MAX));
    let happened_width = widest(2, HAPPENED_WIDTH);
    for [word, what, happened, by] in &lines {
        let padded = format!("{word:<word_width$}");
        let is_fine = !matches!(word.as_str(), "left" | "failed");
        let word = if is_fine { padded } else { style.alert(&padded) };
        text.push_str(&format!(
            "{word}  {what:<what_width$}  {happened:<happened_width$}   {}\n",
            style.dim(&format!("({by})"))
        ));
    }
    for refused in &report.refused {
        let kept = match &refused.kept_as {
            Some(path) => format!("kept as {}", path.display()),
            None => "left where it is".to_owned(),
        };
        let word = style.alert("refused");
        text.push_str(&format!(
            "{word}  {}  {}; nothing was written for it; {kept}\n",
            refused.path.display(),
            refused.reason
        ));
    }
    for path in &report.aside {
        text.push_str(
            &style.dim(&format!(
                "kept      {}  refused earlier; remove it when you have seen it",
                path.display()
            )),
        );
        text.push('\n');
    }
    text
}

fn word(fate: Fate, dry_run: bool) -> &'static str {
    match (fate, dry_run) {
        (Fate::Restored, true) => "would restore",
        (Fate::Restored, false) => "restored",
        (Fate::AlreadyBack, _) => "back",
        (Fate::LeftAlone, _) => "left",
        (Fate::Failed, _) => "failed",
        (Fate::OneWay, _) => "one-way",
        (Fate::Held, _) => "running",
        (Fate::OtherBoot, _) => "discarded",
    }
}

fn what_happened(outcome: &Outcome) -> String {
    let Outcome { found, ours, original, path, detail, .. } = outcome;
    match (outcome.fate, found, ours, original) {
        (Fate::Restored, Some(found), _, Some(original)) => {
            let more = if detail.is_empty() { String::new() } else { format!("; {detail}") };
            format!("{found} → {original}{more}")
        }
        (Fate::LeftAlone, Some(found), _, Some(original)) => {
            format!("stays {found}, {detail}; was {original}")
        }
        (Fate::Failed, _, _, Some(original)) => format!("not back at {original}: {detail}; try again later"),
        (Fate::OneWay, ..) if !detail.is_empty() => detail.clone(),
        (Fate::OneWay, ..) => "was begun or done and cannot be undone".to_owned(),
        (Fate::Held, _, Some(ours), Some(original)) => format!("{ours}, will go back to {original}"),
        (Fate::Held, ..) if *path == outcome.what => "is under way".to_owned(),
        (Fate::OtherBoot, ..) => "ended with the boot that it was made in".to_owned(),
        _ if detail.is_empty() => path.clone(),
        _ => format!("{path}: {detail}"),
    }
}

fn by(journal: &JournalReport) -> String {
    let mut owner = journal.owner.clone();
    if owner.command.chars().count() > COMMAND_WIDTH {
        owner.command = owner.command.chars().take(COMMAND_WIDTH - 1).chain(['…']).collect();
    }
    let name = owner.name();
    match journal.liveness {
        Liveness::Live => format!("held by {name}"),
        Liveness::Killed => format!("left by {name}, killed"),
        Liveness::OtherBoot => format!("{name}, an earlier boot"),
    }
}

fn to_json(report: &Report, dry_run: bool, dir: &str) -> Value {
    let path = |path: &PathBuf| path.display().to_string();
    let refused = report.refused.iter().map(|refused| {
        json!({
            "path": path(&refused.path),
            "kept_as": refused.kept_as.as_ref().map(path),
            "kept_as_absent_reason": refused.kept_as.is_none().then_some("not moved"),
            "reason": refused.reason,
        })
    });
    json!({
        "pagelab_json": VERSION,
        "kind": "restore",
        "dry_run": dry_run,
        "journal_dir": dir,
        "journals": report.journals.iter().map(journal_json).collect::<Vec<_>>(),
        "refused": refused.collect::<Vec<_>>(),
        "kept_aside": report.aside.iter().map(path).collect::<Vec<_>>(),
    })
}

fn journal_json(journal: &JournalReport) -> Value {
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
        "changes": journal.outcomes.iter().map(change_json).collect::<Vec<_>>(),
    })
}

fn change_json(outcome: &Outcome) -> Value {
    // Made things and one-way acts have no values; a setting's value can be unreadable, or not asked.
    let reason = |value: &Option<String>| match (value, &outcome.original) {
        (Some(_), _) => None,
        (None, None) => Some("not a setting with a value"),
        (None, Some(_)) => Some("not read"),
    };
    json!({
        "what": outcome.what,
        "path": outcome.path,
        "fate": outcome.fate.word(),
        "found": outcome.found,
        "found_absent_reason": reason(&outcome.found),
        "ours": outcome.ours,
        "ours_absent_reason": reason(&outcome.ours),
        "original": outcome.original,
        "original_absent_reason": reason(&outcome.original),
        "detail": outcome.detail,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_one_way_act_is_told_by_what_is_left_of_it() {
        let said = |fate, detail: &str| {
            let what = "MADV_COLLAPSE".to_owned();
            let (path, detail) = (what.clone(), detail.to_owned());
            what_happened(&Outcome { what, path, fate, found: None, ours: None, original: None, detail })
        };
        assert_eq!(said(Fate::OneWay, ""), "was begun or done and cannot be undone");
        assert_eq!(said(Fate::OneWay, "nothing is left of it"), "nothing is left of it");
        assert_eq!(said(Fate::Held, ""), "is under way");
    }
}
