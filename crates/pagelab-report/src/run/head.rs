//! What was done, where, when, by whom, and how it ended.

use pagelab_model::run::{Ending, Manifest, Run};

use super::{View, clipped};
use crate::checkup;
use crate::grid::width;
use crate::json;
use crate::quantity::duration;
use crate::style::{Style, count};
use crate::text::Page;
use crate::utc::utc;

/// Columns that a word of the file's own may take in the first lines.
const NAME_MAX: usize = 60;

pub(super) fn show(run: &Run, view: View, style: Style) -> String {
    let mut page = Page::new(style);
    let manifest = &run.manifest;
    let kind = match &run.snapshot {
        Some(look) if look.taken.euid.is_none() => {
            format!("{} of {}", manifest.kind, clipped(&look.taken.from, NAME_MAX))
        }
        _ => format!("{}{}", clipped(&manifest.kind, NAME_MAX), place(manifest)),
    };
    let ended = match &run.ending {
        Ending::Complete { after_ns } => format!("complete, {}", duration(*after_ns)),
        Ending::Stopped { .. } | Ending::NotClosed => String::new(),
    };
    let name = style.bold(&style.one_line(&run.name));
    page.facts("", &[name, kind, utc(manifest.started.realtime_ns), ended], "   ");
    let mut facts = vec![format!("pagelab {}", clipped(&manifest.tool_version, NAME_MAX))];
    // The first line of a look says it too.
    let release = manifest.machine.kernel_release.as_ref().ok().filter(|_| run.snapshot.is_none());
    facts.extend(release.map(|release| format!("Linux {}", clipped(release, NAME_MAX))));
    facts.extend(manifest.seed.map(|seed| format!("seed {seed}")));
    let command = style.one_line(&command_line(&manifest.command_line));
    let typed = format!("$ {command}");
    if width(&facts.join("   ")) + 3 + width(&typed) <= style.width {
        facts.push(typed);
        page.facts("", &facts, "   ");
    } else {
        page.facts("", &facts, "   ");
        page.hanging("$ ", &command);
    }
    not_as_it_should(&mut page, run);
    if view.verbose && run.snapshot.is_none() {
        machine(&mut page, manifest);
    }
    page.finish()
}

/// ` on vm-17`
fn place(manifest: &Manifest) -> String {
    manifest
        .machine
        .host_name
        .as_ref()
        .map_or(String::new(), |name| format!(" on {}", clipped(name, NAME_MAX)))
}

/// The words of a command line as one would type them.
fn command_line(words: &[String]) -> String {
    let is_plain = |sign: char| sign.is_alphanumeric() || "-_=./:,+@%".contains(sign);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(is_plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    let mut typed: Vec<String> = words.iter().map(quoted).collect();
    // Where the program stood is in the JSON.
    if let (Some(program), Some(name)) =
        (typed.first_mut(), words.first().and_then(|word| word.rsplit('/').next()))
    {
        *program = quoted(&name.to_owned());
    }
    typed.join(" ")
}

/// A run that did not end as it should says so loudly.
fn not_as_it_should(page: &mut Page, run: &Run) {
    let style = page.style();
    if let (Some(log), Ending::Complete { .. } | Ending::Stopped { .. }) = (&run.log, &run.ending) {
        let text = format!(
            "the last records are in {}, which belongs to the file: copy both; when it was closed there was \
             no room to join them, or somebody read it",
            style.one_line(&log.path)
        );
        page.hanging(&format!("{}  ", style.alert("IN TWO FILES")), &text);
    }
    let (word, text) = match &run.ending {
        Ending::Complete { .. } => return,
        Ending::Stopped { after_ns, why } => {
            ("STOPPED", format!("after {}: {why}; what was measured until then is here", duration(*after_ns)))
        }
        Ending::NotClosed => {
            let log = run.log.as_ref().filter(|log| !log.is_there).map(|log| style.one_line(&log.path));
            let last = match last_ns(run) {
                _ if run.study.is_some() => kept(run),
                Some(at_ns) => format!("the last record is {} after the start", duration(at_ns)),
                None if log.is_some() => "nothing is in it but the start".to_owned(),
                None => "nothing was recorded but the start".to_owned(),
            };
            let why = "its writer was killed, the power went, or it is still at work";
            let log = log.map_or(String::new(), |log| {
                format!(
                    "; records may be in {log}, which belongs to the file and is not beside it: copy both"
                )
            });
            ("NOT CLOSED", format!("{why}; {last}{log}"))
        }
    };
    page.hanging(&format!("{}  ", style.alert(word)), &text);
}

/// How far a study came, and how to go on with it.
fn kept(run: &Run) -> String {
    let Some(study) = &run.study else { return String::new() };
    let (made, planned) = (study.trials.len(), study.plan.slots().unwrap_or_default());
    format!(
        "{} of {} runs are kept; go on with: pagelab sim sweep --resume {}",
        count(made as u128),
        count(planned as u128),
        run.name
    )
}

/// When the last thing was recorded, in nanoseconds since the start.
fn last_ns(run: &Run) -> Option<u64> {
    let series = run.series.iter().filter_map(|series| series.at_ns.last());
    let streams = run.streams.iter().filter_map(|stream| stream.at_ns.iter().max());
    let look = run.snapshot.as_ref().and_then(|look| look.taken.boottime_ns);
    let look = look.and_then(|at_ns| at_ns.checked_sub(run.manifest.started.boottime_ns));
    series.chain(streams).chain(run.events.iter().map(|event| &event.at_ns)).copied().chain(look).max()
}

/// The machine and its settings, where no look says more about them.
fn machine(page: &mut Page, manifest: &Manifest) {
    let machine = &manifest.machine;
    // Imported numbers come without a machine: that is one fact, not one for each line.
    let Err(absence) = &machine.cpu else {
        return checkup::machine_section(page, &json::run::known(manifest));
    };
    let others = [machine.caches.as_ref().err(), machine.nodes.as_ref().err()];
    let is_bare = manifest.settings.vm.is_empty();
    if is_bare && machine.kernel_version.as_ref().err() == Some(absence) && others == [Some(absence); 2] {
        let text = format!("not available: {} ({})", absence.reason(), absence.source);
        return page.hanging("machine   ", &page.style().one_line(&text));
    }
    checkup::machine_section(page, &json::run::known(manifest));
}
