//! Header of a report: what ran, where and when, on which machine, and how it ended.

use pagelab_model::experiment::Plan;
use pagelab_model::run::{Manifest, Run, RunEnd};

use super::{View, clip_name};
use crate::checkup;
use crate::json;
use crate::quantity_format::format_duration;
use crate::style::{TextStyle, format_count, format_plural};
use crate::text_report::TextReport;
use crate::text_report::display_width;
use crate::utc::format_utc;

/// Columns of a text from the file in the first lines, at most.
const NAME_MAX: usize = 60;

pub(super) fn render_header(run: &Run, view: View, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    let manifest = &run.manifest;
    let kind = match &run.snapshot {
        Some(look) if look.taken.euid.is_none() => {
            format!("{} of {}", manifest.kind, clip_name(&look.taken.source, NAME_MAX))
        }
        _ => {
            let place = if is_in_guests(run) { " in guests" } else { "" };
            format!("{}{place}{}", clip_name(&manifest.kind, NAME_MAX), machine_suffix(manifest))
        }
    };
    let ended = match &run.ending {
        RunEnd::Complete { after_ns } => format!("complete, {}", format_duration(*after_ns)),
        RunEnd::Stopped { .. } | RunEnd::NotClosed => String::new(),
    };
    let name = style.paint_bold(&style.to_one_line(&run.name));
    output.add_fact_line(&[name, kind, format_utc(manifest.started.realtime_ns), ended]);
    let mut facts = vec![format!("pagelab {}", clip_name(&manifest.tool_version, NAME_MAX))];
    // The first line of a snapshot has it already.
    let release = manifest.machine.kernel_release.as_ref().ok().filter(|_| run.snapshot.is_none());
    match guests_fact(run) {
        Some(guests) => facts.push(guests),
        None => facts.extend(release.map(|release| format!("Linux {}", clip_name(release, NAME_MAX)))),
    }
    facts.extend(manifest.seed.map(|seed| format!("seed {seed}")));
    let command = style.to_one_line(&format_command_line(&manifest.command_line));
    let typed = format!("$ {command}");
    let fits = display_width(&facts.join("   ")) + 3 + display_width(&typed) <= style.width;
    facts.extend(fits.then_some(typed));
    output.add_fact_line(&facts);
    if !fits {
        output.add_paragraph("$ ", &command);
    }
    write_abnormal_ending(&mut output, run);
    if view.verbose && run.snapshot.is_none() {
        if is_in_guests(run) {
            for guest in list_guests(run) {
                output.add_paragraph("guest     ", &style.to_one_line(guest));
            }
            output.add_text("the machine on which the guests ran:");
        }
        write_machine(&mut output, manifest);
    }
    output.into_text()
}

/// Whether the trials ran in guests, and not on the machine of the manifest.
fn is_in_guests(run: &Run) -> bool {
    run.experiment.as_ref().is_some_and(|experiment| experiment.plan.place == Plan::GUEST)
}

/// Descriptions of the guests: `Linux 6.1.0-56-cloud-amd64, 1 GiB, 1 CPU`.
fn list_guests(run: &Run) -> impl Iterator<Item = &str> {
    let events = run.events.iter().filter(|event| event.kind == Run::GUEST_EVENT);
    events.map(|event| event.text.strip_prefix("guest with ").unwrap_or(&event.text))
}

/// The first guest, and how many others there are: `Linux 6.1.0, 1 GiB, 1 CPU, emulated, and 2 other guests`.
fn guests_fact(run: &Run) -> Option<String> {
    let mut guests = list_guests(run).filter(|_| is_in_guests(run));
    let first = clip_name(guests.next()?, NAME_MAX);
    let emulated = if run.has_emulated_times() { ", emulated" } else { "" };
    let others = match guests.count() {
        0 => String::new(),
        others => format!(", and {}", format_plural(others, "other guest")),
    };
    Some(format!("{first}{emulated}{others}"))
}

/// Formats the machine: ` on vm-17`.
fn machine_suffix(manifest: &Manifest) -> String {
    manifest
        .machine
        .host_name
        .as_ref()
        .map_or(String::new(), |name| format!(" on {}", clip_name(name, NAME_MAX)))
}

/// Quotes the words of a command line for a shell.
fn format_command_line(arguments: &[String]) -> String {
    let is_plain = |sign: char| sign.is_alphanumeric() || "-_=./:,+@%".contains(sign);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(is_plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    let mut typed: Vec<String> = arguments.iter().map(quoted).collect();
    // JSON has the directory of the program.
    if let (Some(program), Some(name)) =
        (typed.first_mut(), arguments.first().and_then(|word| word.rsplit('/').next()))
    {
        *program = quoted(&name.to_owned());
    }
    typed.join(" ")
}

/// Writes a prominent warning if a run did not end normally.
fn write_abnormal_ending(output: &mut TextReport, run: &Run) {
    let style = output.style();
    if let (Some(log), RunEnd::Complete { .. } | RunEnd::Stopped { .. }) = (&run.write_ahead_log, &run.ending)
    {
        let text = format!(
            "the last records are in {}, which is part of this run file: copy both; they were not merged \
             because space ran out or a reader had the file open",
            style.to_one_line(&log.path)
        );
        output.add_paragraph(&format!("{}  ", style.paint_alert("IN TWO FILES")), &text);
    }
    let (ending_word, text) = match &run.ending {
        RunEnd::Complete { .. } => return,
        RunEnd::Stopped { after_ns, reason: why } => (
            "STOPPED",
            format!("after {}: {why}; it contains the data up to that point", format_duration(*after_ns)),
        ),
        RunEnd::NotClosed => {
            let log = run
                .write_ahead_log
                .as_ref()
                .filter(|log| !log.is_present)
                .map(|log| style.to_one_line(&log.path));
            let last = match last_record_ns(run) {
                _ if run.simulated_experiment().is_some() => simulation_progress_text(run),
                Some(at_ns) => format!("the last record is {} after the start", format_duration(at_ns)),
                None if log.is_some() => "it contains only the start".to_owned(),
                None => "only the start was recorded".to_owned(),
            };
            let why = "its writer was killed, power was lost, or it is still running";
            let log = log.map_or(String::new(), |log| {
                format!("; records may be in {log}, which is part of this run file and missing: copy both")
            });
            ("NOT CLOSED", format!("{why}; {last}{log}"))
        }
    };
    output.add_paragraph(&format!("{}  ", style.paint_alert(ending_word)), &text);
}

fn simulation_progress_text(run: &Run) -> String {
    let Some(experiment) = run.simulated_experiment() else { return String::new() };
    let (made, planned) = (experiment.trials.len(), experiment.plan.schedule.len());
    format!(
        "{} of {} runs are done; resume with: pagelab sim sweep --resume {}",
        format_count(made as u128),
        format_count(planned as u128),
        run.name
    )
}

/// Returns the time of the last record, in nanoseconds since the start.
fn last_record_ns(run: &Run) -> Option<u64> {
    let series = run.series.iter().filter_map(|series| series.at_ns.last());
    let streams = run.streams.iter().filter_map(|stream| stream.at_ns.iter().max());
    let look = run.snapshot.as_ref().and_then(|look| look.taken.boottime_ns);
    let look = look.and_then(|at_ns| at_ns.checked_sub(run.manifest.started.boottime_ns));
    series.chain(streams).chain(run.events.iter().map(|event| &event.at_ns)).copied().chain(look).max()
}

/// Writes the machine and its settings if no snapshot describes them.
fn write_machine(output: &mut TextReport, manifest: &Manifest) {
    let machine = &manifest.machine;
    // Imported numbers have no machine: that is one line, not one for each field.
    let Err(absence) = &machine.cpu else {
        return checkup::write_machine(output, &json::run::known_snapshot(manifest));
    };
    let others = [machine.caches.as_ref().err(), machine.nodes.as_ref().err()];
    let is_bare = manifest.settings.vm.is_empty();
    if is_bare && machine.kernel_version.as_ref().err() == Some(absence) && others == [Some(absence); 2] {
        let text = format!("not available: {} ({})", absence.reason(), absence.source);
        return output.add_paragraph("machine   ", &output.style().to_one_line(&text));
    }
    checkup::write_machine(output, &json::run::known_snapshot(manifest));
}
