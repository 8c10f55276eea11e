//! `pagelab report`: run files of every kind, on the terminal, as JSON, or as tables.

mod export;
mod folder;
mod maps;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use pagelab_model::Bytes;
use pagelab_model::run::Run;
use pagelab_report::html::{self, maps::Maps};
use pagelab_report::json;
use pagelab_report::run::{View, render};
use pagelab_report::study;
use pagelab_report::style::bytes;
use pagelab_runfile::{Error, ErrorKind, Reader};

use crate::cmd::trace::info::Reported;
use crate::exit::{Exit, Failure, Outcome};
use crate::out;
use crate::whole_file::{self, Target};
use export::Export;
use folder::Folder;

/// What `report` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Run files, as --run writes them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Everything, not the summary alone; twice: also measures that no variant changes
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Everything as one JSON document (docs/json.md)
    #[arg(long, conflicts_with_all = ["html", "csv", "verbose"])]
    json: bool,
    /// Everything as one page of HTML that needs nothing else; one of that name
    /// is replaced
    #[arg(long, value_name = "OUT", conflicts_with_all = ["csv", "verbose"])]
    html: Option<PathBuf>,
    /// Everything as tables, one .csv file each, in a folder; no file is overwritten
    #[arg(long, value_name = "DIR", conflicts_with = "verbose")]
    csv: Option<PathBuf>,
    /// The loss that memory may cost, per cent, for "needs … for at most 5 %
    /// loss" [default: the recipe's, else 5]
    #[arg(long, value_name = "PERCENT", value_parser = loss)]
    loss: Option<f64>,
    /// An experiment as files of other tools: perf-csv, times and `perf stat -x,` lines by workload
    #[arg(long, num_args = 2, value_names = ["FORMAT", "DIR"],
          conflicts_with_all = ["json", "html", "csv", "verbose", "loss"])]
    export: Option<Vec<OsString>>,
}

const AFTER_HELP: &str = "\
Examples:
  pagelab checkup --probe --run a.pagelab    write a run file
  pagelab report a.pagelab                   read it, here or elsewhere
  pagelab report -v *.pagelab | less         everything about several
  pagelab report --html a.html a.pagelab     one page, for any browser
  pagelab report --csv tables a.pagelab      tables/findings.csv, …
  pagelab report --json a.pagelab | jq .runs[0].checkup.findings
  pagelab report --export perf-csv dir thp.pagelab
                                             for other tools (docs/compare.md)

A file that is still being written, or whose writer was killed, can be read too, and the report says so.

To query findings, zones or meminfo with other tools, take --csv: in the run file itself the look at the \
machine is one packed value.

While a file is shown all of it is in memory, about 30 bytes for each sample. Several files are read one \
after the other, but one page of --html holds all of them at once.";

/// Reads the files one after the other and shows each. One that cannot be read does not hide the others.
pub fn run(args: &Args) -> Outcome {
    if let Some(words) = &args.export {
        return export(&Export::new(words, &args.files)?, &args.files);
    }
    let show = match (&args.html, &args.csv) {
        (Some(page), _) => {
            let target = whole_file::target(page, "--html")?;
            Show::Page { target, runs: Vec::new(), maps: Vec::new(), traces: Vec::new() }
        }
        (None, Some(folder)) => Show::Tables(Folder::new(folder, &args.files)?),
        (None, None) if args.json => Show::Json { shown: 0 },
        (None, None) => {
            Show::Text { view: View { verbose: args.verbose > 0, all: args.verbose > 1 }, shown: 0 }
        }
    };
    every(&args.files, show, args.loss)
}

/// A share from per cent.
fn loss(text: &str) -> Result<f64, String> {
    let percent = text.trim_end_matches('%').trim_end().parse::<f64>().ok();
    let percent = percent.filter(|percent| *percent > 0.0 && *percent <= 100.0);
    percent
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "per cent are wanted, above 0 and up to 100".to_owned())
}

/// Shows one file, which was just written, as `report FILE` would.
pub fn show(file: &Path, json: bool) -> Outcome {
    let show = match json {
        true => Show::Json { shown: 0 },
        false => Show::Text { view: View::default(), shown: 0 },
    };
    every(&[file.to_owned()], show, None)
}

fn export(export: &Export, files: &[PathBuf]) -> Outcome {
    let mut out = out::stdout();
    for file in files {
        let run = Reader::open(file).and_then(|reader| reader.run()).map_err(|error| refusal(&error))?;
        writeln!(out, "{}", out::style().one_line(&export.write(&run)?))?;
    }
    out.flush()?;
    Ok(Exit::Done)
}

/// How the runs are shown.
enum Show {
    Text { view: View, shown: usize },
    Json { shown: usize },
    Page { target: Target, runs: Vec<Run>, maps: Vec<Maps>, traces: Vec<Reported> },
    Tables(Folder),
}

fn every(files: &[PathBuf], mut show: Show, loss: Option<f64>) -> Outcome {
    let mut refused: Option<Exit> = None;
    let mut refuse = |failure: Failure| {
        out::complain(&format!("pagelab: {failure}"));
        let exit = failure.exit();
        // Bad input outweighs what another user could read.
        refused = if exit == Exit::BadInput { Some(exit) } else { refused.or(Some(exit)) };
    };
    for file in files {
        let read = Reader::open(file).and_then(|reader| Ok((reader.run()?, reader)));
        match read {
            Ok((mut run, reader)) => {
                if let (Some(experiment), Some(loss)) = (&mut run.experiment, loss) {
                    experiment.plan.loss = loss;
                }
                if let Show::Page { maps, .. } = &mut show {
                    let (of_run, error) = maps::read(&reader, &run);
                    maps.push(of_run);
                    error.iter().for_each(|error| refuse(refusal(error)));
                }
                match Reported::of(file, &mut run) {
                    Ok(trace) => show.run(file, run, trace, files.len() > 1)?,
                    Err(failure) if files.len() == 1 => return Err(failure),
                    Err(failure) => refuse(failure),
                }
            }
            // Alone it is the whole answer; among several it is a word beside the others.
            Err(error) if files.len() == 1 => return Err(refusal(&error)),
            Err(error) => refuse(refusal(&error)),
        }
    }
    show.end()?;
    Ok(refused.unwrap_or(Exit::Done))
}

impl Show {
    /// Shows one run. The output is flushed, so that what it says stands before a complaint about the next.
    fn run(
        &mut self,
        file: &Path,
        run: Run,
        trace: Option<Reported>,
        is_one_of_several: bool,
    ) -> Result<(), Failure> {
        let mut out = out::stdout();
        match self {
            Show::Text { view, shown } => {
                let style = out::style();
                if is_one_of_several {
                    let gap = if *shown > 0 { "\n" } else { "" };
                    let name = style.one_line(&file.display().to_string());
                    writeln!(out, "{gap}{}", style.dim(&format!("==> {name} <==")))?;
                }
                *shown += 1;
                out.write_all(render(&run, *view, style).as_bytes())?;
                if let Some(trace) = &trace {
                    write!(out, "\n{}", trace.text(style, view.verbose))?;
                }
            }
            Show::Json { shown } => {
                let trace = trace.as_ref().map(Reported::document);
                let text = json::run::piece(&run, trace, *shown == 0);
                let text = text.map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))?;
                *shown += 1;
                out.write_all(text.as_bytes())?;
            }
            Show::Page { runs, traces, .. } => {
                runs.push(run);
                traces.extend(trace);
            }
            Show::Tables(folder) => {
                let line = folder.write(file, &run, trace.map_or_else(Vec::new, |of| of.tables()))?;
                writeln!(out, "{}", out::style().one_line(&line))?;
            }
        }
        out.flush()?;
        Ok(())
    }

    /// Ends the document, if there is one.
    fn end(self) -> Result<(), Failure> {
        let mut out = out::stdout();
        match self {
            Show::Text { .. } | Show::Tables(_) => {}
            Show::Json { shown } => {
                let text = json::run::end(shown == 0);
                let text = text.map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))?;
                out.write_all(text.as_bytes())?;
            }
            // Without a run there is nothing that a page could show.
            Show::Page { runs, .. } if runs.is_empty() => {}
            Show::Page { target, runs, maps, traces } => {
                let study = runs.iter().find_map(|run| run.study.as_deref()).map(study::page);
                let alone = study.or_else(|| traces.first().map(Reported::page));
                let page = match alone {
                    Some(_) if runs.len() > 1 => {
                        let text = "--html: a simulated study or a trace fills a page alone; give its file \
                                    by itself";
                        return Err(super::usage(text));
                    }
                    Some(report) => html::sim::page(&report),
                    None => html::page_with_maps(&runs, &maps),
                };
                let page = page.map_err(|error| Failure::new(Exit::Bug, "the page").because(error))?;
                target.write(page.as_bytes())?;
                let (name, size) = (out::style().one_line(target.name()), bytes(Bytes(page.len() as u64)));
                writeln!(out, "→ {name}   {size}")?;
            }
        }
        Ok(out.flush()?)
    }
}

/// What a file that cannot be read means for the exit code.
pub fn refusal(error: &Error) -> Failure {
    let way_out = match error.kind() {
        ErrorKind::NotThere => "; `pagelab record` and `pagelab checkup --run FILE` make one",
        _ => "",
    };
    Failure::new(unreadable(error), format!("{error}{way_out}"))
}

/// The same for a command that reads one kind of run file, which `maker` makes.
pub fn refusal_by(error: &Error, maker: &str) -> Failure {
    let text = match error.kind() {
        ErrorKind::NotThere | ErrorKind::NotOurs => format!("{}; {maker} makes one", error.obstacle()),
        _ => error.to_string(),
    };
    Failure::new(unreadable(error), text)
}

fn unreadable(error: &Error) -> Exit {
    match error.kind() {
        ErrorKind::NotPermitted | ErrorKind::Io => Exit::NotAvailable,
        ErrorKind::NoSpace => Exit::Partial,
        _ => Exit::BadInput,
    }
}
