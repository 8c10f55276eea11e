//! `pagelab report`: run files of every kind as text, JSON, HTML or tables.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use pagelab_command::csv_folder::CsvFolder;
use pagelab_command::perf_csv_folder;
use pagelab_metrics::judge::Judgement;
use pagelab_model::experiment::Plan;
use pagelab_model::run::Run;
use pagelab_model::simulation::MemoryPicture;
use pagelab_model::{Bytes, size};
use pagelab_record::trace::info::TraceInfo;
use pagelab_report::attachments;
use pagelab_report::html::maps::{MAPS_MAX, MapPicture, RunMaps, choose_maps};
use pagelab_report::run::judge::render_judgement;
use pagelab_report::run::{View, render};
use pagelab_report::simulated;
use pagelab_report::style::format_bytes;
use pagelab_report::{html, json};
use pagelab_runfile::RunReader;

use super::run::judge::{JudgeRequest, judgement_exit};
use crate::atomic_file::{OutputFile, check_output};
use crate::exit::{Exit, Failure, Outcome, read_failure};
use crate::output;
use crate::output_args::ForceArgs;

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Run files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print all details; -vv also shows measures that are equal in all variants
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Print JSON (docs/json.md)
    #[arg(long, conflicts_with_all = ["html", "tables", "verbose"])]
    json: bool,
    /// Write one self-contained HTML page
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tables", "verbose"])]
    html: Option<PathBuf>,
    /// Write tables as .csv files to a directory
    #[arg(long, alias = "csv", value_name = "DIR", conflicts_with = "verbose")]
    tables: Option<PathBuf>,
    /// Judge an experiment by this measure of JSON: whether a variant is worse than the baseline. Exit code:
    /// 0 not worse, 1 worse, 7 undecided (docs/compare.md)
    #[arg(long, value_name = "MEASURE", conflicts_with_all = ["html", "tables", "export"])]
    judge: Option<String>,
    /// Performance loss that --judge accepts, and that is accepted when reporting how much memory a program
    /// needs [default: the recipe's, else 5%]
    #[arg(long, value_name = "SHARE", value_parser = size::parse_nonzero_share)]
    loss: Option<f64>,
    /// Write an experiment to DIR for other tools; FORMAT is perf-csv: times and `perf stat -x,` lines, by
    /// workload
    #[arg(long, num_args = 2, value_names = ["FORMAT", "DIR"],
          conflicts_with_all = ["json", "html", "tables", "verbose", "loss", "force"])]
    export: Option<Vec<OsString>>,
    #[command(flatten)]
    replacement: ForceArgs,
}

const AFTER_HELP: &str = "\
Examples:
  pagelab checkup --probe -o a.pagelab       write a run file
  pagelab report a.pagelab                   show it, on any machine
  pagelab report -v *.pagelab | less         all details of several files
  pagelab report --html a.html a.pagelab     one HTML page
  pagelab report --tables csv a.pagelab      csv/findings.csv, …
  pagelab report --json a.pagelab | jq .runs[0].checkup.findings
  pagelab report --judge wall --loss 10% thp.pagelab
                                             by exit code: is it slower?
  pagelab report --export perf-csv dir thp.pagelab
                                             for other tools (docs/compare.md)

A file that is still being written, or whose writer was killed, can be read; the report says so.

To query findings, zones or meminfo with other tools, use --tables: the run file stores a snapshot as one \
 packed value.

A file is held in memory while it is shown, about 30 bytes per sample. Several files are read one at a \
 time, but an --html page holds all of them.";

/// Reads the files one after the other and shows each. An unreadable file does not hide the others.
pub fn run(args: &Args) -> Outcome {
    if let Some(words) = &args.export {
        let line = perf_csv_folder::export(words, &args.files)?;
        output::print(&format!("{}\n", output::stdout_style().to_one_line(&line)))?;
        return Ok(Exit::Success);
    }
    if args.judge.is_some() && args.files.len() > 1 {
        return Err(super::usage_error("--judge takes one file"));
    }
    let judge = args.judge.clone().map(|measure| JudgeRequest { measure, loss: args.loss });
    let show = match (&args.html, &args.tables) {
        (Some(page), _) => {
            let target = check_output(page, args.replacement.force)?;
            let (runs, maps, pictures, traces) = Default::default();
            ReportOutput::Html { target, runs, maps, pictures, traces }
        }
        (None, Some(folder)) => {
            ReportOutput::Tables(CsvFolder::new(folder, &args.files, args.replacement.force)?)
        }
        (None, None) if args.json => ReportOutput::Json,
        (None, None) => ReportOutput::Text(View { verbose: args.verbose > 0, shows_all: args.verbose > 1 }),
    };
    report_files(&args.files, show, args.loss, judge.as_ref())
}

/// Shows a file that was just written, as `report FILE` does. With a judgement, the exit code is its own.
pub fn show(file: &Path, json: bool, judge: Option<&JudgeRequest>) -> Outcome {
    let show = if json { ReportOutput::Json } else { ReportOutput::Text(View::default()) };
    report_files(&[file.to_owned()], show, None, judge)
}

/// Output format of the runs.
enum ReportOutput {
    Text(View),
    Json,
    Html {
        target: OutputFile,
        runs: Vec<Run>,
        maps: Vec<RunMaps>,
        /// Of simulated trials, each with its slot.
        pictures: Vec<(usize, MemoryPicture)>,
        traces: Vec<TraceInfo>,
    },
    Tables(CsvFolder),
}

fn report_files(
    files: &[PathBuf],
    mut output: ReportOutput,
    loss: Option<f64>,
    judge: Option<&JudgeRequest>,
) -> Outcome {
    let mut shown = 0;
    let mut judged = None;
    let mut refused: Option<Exit> = None;
    let mut refuse = |failure: Failure| {
        output::warn(&format!("warning: {failure}"));
        refused = Exit::after_refusal(refused, failure.kind().into());
    };
    for file in files {
        let read = RunReader::open(file).and_then(|reader| {
            let is_wanted = &|plan: &Plan, slot: usize| output.shows_series(plan, slot);
            Ok((reader.read_run_with_series(is_wanted)?, reader))
        });
        match read {
            Ok((mut run, reader)) => {
                if let (Some(experiment), Some(loss)) = (&mut run.experiment, loss) {
                    experiment.plan.loss = loss;
                }
                if let ReportOutput::Html { maps, pictures, .. } = &mut output {
                    let mut of_run = Vec::new();
                    let chosen = choose_maps(&run.maps, MAPS_MAX);
                    let read = reader.for_each_map(&chosen, |_, map| of_run.push(MapPicture::from_map(&map)));
                    let problem = read.as_ref().err().map(ToString::to_string);
                    maps.push(RunMaps { pictures: of_run, problem });
                    read.err().iter().for_each(|error| refuse(read_failure(error)));
                    let trials = run.experiment.as_ref().map_or(&[][..], |experiment| &experiment.trials[..]);
                    let read =
                        reader.for_each_picture(trials, |slot, picture| pictures.push((slot, picture)));
                    read.err().iter().for_each(|error| refuse(read_failure(error)));
                }
                match TraceInfo::read(file, &mut run) {
                    Ok(trace) => {
                        let judgement = judge.map(|judge| judge.judge(&run));
                        let known = judgement.as_ref().and_then(|judgement| judgement.as_ref().ok());
                        output.write_run(file, run, (trace, known), files.len() > 1, shown)?;
                        judged = judgement.or(judged);
                        shown += 1;
                    }
                    Err(failure) if files.len() == 1 => return Err(failure),
                    Err(failure) => refuse(failure),
                }
            }
            // A single file decides the result; among several, its error is a message.
            Err(error) if files.len() == 1 => return Err(read_failure(&error)),
            Err(error) => refuse(read_failure(&error)),
        }
    }
    output.finish(shown)?;
    // A measure that is unknown after hours of trials does not hide their report.
    let judged = judged.transpose()?.map_or(Exit::Success, |judgement| judgement_exit(&judgement));
    Ok(refused.unwrap_or(judged))
}

impl ReportOutput {
    /// Whether the series of this slot are part of the output.
    fn shows_series(&self, plan: &Plan, slot: usize) -> bool {
        match self {
            ReportOutput::Text(view) => {
                attachments::has_series_in_text(plan, view.verbose)
                    && attachments::is_series_shown(plan, slot)
            }
            ReportOutput::Html { .. } => attachments::is_series_shown(plan, slot),
            ReportOutput::Json | ReportOutput::Tables(_) => true,
        }
    }

    /// Shows one run and flushes the output, so that it precedes an error of the next run.
    fn write_run(
        &mut self,
        file: &Path,
        run: Run,
        (trace, judgement): (Option<TraceInfo>, Option<&Judgement>),
        has_siblings: bool,
        shown: usize,
    ) -> Result<(), Failure> {
        let mut out = output::stdout();
        match self {
            ReportOutput::Text(view) => {
                let style = output::stdout_style();
                if has_siblings {
                    let gap = if shown > 0 { "\n" } else { "" };
                    let name = style.to_one_line(&file.display().to_string());
                    writeln!(out, "{gap}{}", style.paint_dim(&format!("==> {name} <==")))?;
                }
                out.write_all(render(&run, *view, style).as_bytes())?;
                if let Some(trace) = &trace {
                    write!(out, "\n{}", trace.to_text(style, view.verbose))?;
                }
                if let Some((judgement, experiment)) = judgement.zip(run.experiment.as_deref()) {
                    write!(out, "\n{}", render_judgement(judgement, &experiment.plan, style))?;
                }
            }
            ReportOutput::Json => {
                let trace = trace.as_ref().map(TraceInfo::to_json);
                let judged = judgement.zip(run.experiment.as_deref());
                let judged = judged.map(|(of, experiment)| json::judge::to_document(of, &experiment.plan));
                let text = json::run::document_piece(&run, trace, judged, shown == 0);
                let text = text.map_err(|error| Failure::not_serialized("JSON", error))?;
                out.write_all(text.as_bytes())?;
            }
            ReportOutput::Html { runs, traces, .. } => {
                runs.push(run);
                traces.extend(trace);
            }
            ReportOutput::Tables(folder) => {
                let line = folder.write(file, &run, trace.map_or_else(Vec::new, |of| of.to_tables()))?;
                writeln!(out, "{}", output::stdout_style().to_one_line(&line))?;
            }
        }
        out.flush()?;
        Ok(())
    }

    /// Ends the document, if any, after the runs that were shown.
    fn finish(self, shown: usize) -> Result<(), Failure> {
        let mut out = output::stdout();
        match self {
            ReportOutput::Text(_) | ReportOutput::Tables(_) => {}
            ReportOutput::Json => {
                let text = json::run::document_end(shown == 0);
                let text = text.map_err(|error| Failure::not_serialized("JSON", error))?;
                out.write_all(text.as_bytes())?;
            }
            // Without a run the page would be empty.
            ReportOutput::Html { runs, .. } if runs.is_empty() => {}
            ReportOutput::Html { target, runs, maps, pictures, traces } => {
                let mut experiments = runs.iter().filter_map(|run| run.experiment.as_deref());
                let simulated = experiments.find(|of| of.plan.is_simulated());
                let simulated = simulated.map(|of| simulated::page_report(of, pictures));
                let alone = simulated.or_else(|| traces.first().map(TraceInfo::to_html_report));
                let page = match alone {
                    Some(_) if runs.len() > 1 => {
                        let text = "--html: a simulated experiment or a trace needs a page of its own; \
                                    hint: pass only that file";
                        return Err(super::usage_error(text));
                    }
                    Some(report) => html::sim::render_page(&report),
                    None => html::render_page(&runs, &maps),
                };
                let page = page.map_err(|error| Failure::not_serialized("the page", error))?;
                target.write(page.as_bytes())?;
                let name = output::stdout_style().to_one_line(target.name());
                writeln!(out, "→ {name}   {}", format_bytes(Bytes(page.len() as u64)))?;
            }
        }
        Ok(out.flush()?)
    }
}
