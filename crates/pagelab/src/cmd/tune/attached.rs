//! `pagelab tune --pid`: the arms of a process that runs. Its huge pages come by MADV_COLLAPSE from outside,
//! and go by one cold page each; contents are kept, and at the end it is as it was found, as far as that
//! goes.

mod sample;

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use pagelab_experiment::resolve::Resolved;
use pagelab_experiment::session::Times;
use pagelab_host::capture::Stop;
use pagelab_host::guard::{Guard, Options, Site, Watched};
use pagelab_host::paths;
use pagelab_model::experiment::{Flag, Measure, Trial, TrialEnd};
use pagelab_model::run::{Ending, Event};
use pagelab_model::tune::{On, Tune};
use pagelab_runfile::Writer;
use pagelab_target::steer::{Steered, Turned};

use super::{Args, arms, beside, experiment, profiling, recipe, resolve, unseen, write};
use crate::cmd::target_failure;
use crate::cmd::{report, run_file, usage};
use crate::exit::{Exit, Failure};
use crate::{manifest, out};
use sample::Load;

/// Why nothing goes on where accessed bits cannot see.
const UNATTACHED: &str = "--source exact, which sees every access, cannot attach to a process that \
                          runs: give its command instead, pagelab tune --source exact -- COMMAND";

/// What a tuning of a running process has at hand.
struct Session<'s> {
    args: &'s Args,
    pid: u32,
    steered: &'s Steered,
    load: &'s Load,
    stop: &'s Stop,
}

/// Carries it out.
pub fn run(args: &Args, pid: u32) -> Result<u8, Failure> {
    let Some(command) = &args.metric else {
        return Err(usage("--pid needs --metric CMD: what loads the process, and tells how fast it is"));
    };
    let look = experiment::look();
    let page = look.machine.page_size;
    let huge = page.block(look.pmd_order);
    if args.dry_run {
        return dry_run(args, pid, command);
    }
    let steered = Steered::of(pid, page.bytes(), huge.0).map_err(target_failure)?;
    let stop = Stop::watch().map_err(|error| {
        Failure::new(Exit::NotAvailable, "cannot watch for signals, so nothing is begun").because(error)
    })?;
    let Some(load) = Load::try_out(command, args, &stop)? else { return Ok(super::stopped(&stop)) };
    let session = Session { args, pid, steered: &steered, load: &load, stop: &stop };
    let guard =
        Site::live().and_then(|site| Guard::begin(&site, Watched::left_to_restore(), Options::default()));
    // After a kill -9 the journal tells which process was left in some arm; contents are whole in each.
    let act = format!("huge pages of process {pid} made and split, to and fro");
    let came = match &guard {
        Ok(guard) => match guard.one_way(&act, || session.whole()) {
            Ok(Some(came)) => came,
            Ok(None) => Ok(Exit::Done as u8),
            Err(error) => return Err(Failure::new(Exit::Partial, error.to_string())),
        },
        Err(_) => session.whole(),
    };
    // Once more, for what ended early; where it is as it was found already, nothing is done.
    if let Err(why) = put_back(&steered, pid) {
        out::complain(&why);
    }
    came
}

/// Puts the process back: how it is now, in a phrase, and an error where that is not how it was found.
fn put_back(steered: &Steered, pid: u32) -> Result<String, String> {
    if std::fs::metadata(paths::process(pid, "stat")).is_err() {
        return Err(format!("process {pid} has ended, so that there is nothing to put back"));
    }
    match steered.restore().map(|turned| turned.trouble()) {
        Ok(None) => Ok(format!("process {pid} is as it was found")),
        Ok(Some(why)) => Err(format!("process {pid} is not quite as it was found: {why}")),
        Err(error) => Err(format!("process {pid} could not be put back: {error}")),
    }
}

fn dry_run(args: &Args, pid: u32, command: &str) -> Result<u8, Failure> {
    out::note(&format!(
        "would profile process {pid} for {} while `{command}` runs, plan {}, and run `{command}` {} times \
         with nothing, the plan, and all of its memory on huge pages (MADV_COLLAPSE, and one cold page \
         each to split them); then put it back as it was found",
        args.profile_for,
        args.size.words(),
        4 * args.repeats
    ));
    Ok(Exit::Done as u8)
}

impl Session<'_> {
    fn whole(&self) -> Result<u8, Failure> {
        let (args, pid) = (self.args, self.pid);
        let path = match &args.output {
            Some(path) => path.clone(),
            None => experiment::free_name(&format!("tune-{pid}")),
        };
        if path.symlink_metadata().is_ok() {
            return Err(usage(&format!("{}: it is there already, and is not overwritten", path.display())));
        }
        let plan_path = args.plan.clone().unwrap_or_else(|| beside(&path, "plan.toml"));
        let all = self.steered.regions().map_err(target_failure)?;
        if all.is_empty() {
            let text = format!(
                "process {pid} has no memory that could be on huge pages: no whole one in private anonymous \
                 mappings was ever written"
            );
            return Err(Failure::new(Exit::No, text));
        }
        // A huge region hides its accesses from a source that looks at page tables.
        let split = self.steered.turn(&all, &BTreeSet::new()).map_err(target_failure)?;
        self.can_split(&split)?;
        let how = super::how(args, self.stop);
        let profile = match &args.profile {
            Some(file) => profiling::read(file, &how)?,
            None => self.profile(&super::passing(&path, "profile"), &how)?,
        };
        let Some(profile) = profile else { return Ok(super::stopped(self.stop)) };
        let unseen = self.unseen(&profile);
        let mut chosen = arms::choose_placed(args, &profile, all.len(), &plan_path)?;
        let planned: BTreeSet<u64> = arms::addresses(&chosen.tune.plan).intersection(&all).copied().collect();
        chosen.tune.pid = Some(pid);
        chosen.tune.notes.extend(unseen);
        chosen.tune.notes.push(running(all.len(), planned.len()));
        let resolved = self.resolved(&path, &chosen.tune, &chosen.files)?;
        let look = experiment::look();
        let started = manifest::now();
        let mut manifest = manifest::of_this_process("tune", Some(args.seed), started, &look);
        manifest.machine.tlb = experiment::tlb(&look);
        let mut writer = Writer::create(&path, &manifest).map_err(|error| run_file(&error))?;
        let kept = writer.profile(0, &profile).and_then(|()| write(&mut writer, &chosen, &resolved));
        kept.map_err(|error| run_file(&error))?;
        let times = Times::since(started);
        let measured = self.measure(&mut writer, &times, &resolved, &chosen.tune, (&all, &planned));
        let (Ok(text) | Err(text)) = put_back(self.steered, pid);
        let event = Event { at_ns: times.now_ns(), kind: "put back".to_owned(), text };
        writer.event(&event).map_err(|error| run_file(&error))?;
        let after_ns = times.now_ns();
        let ending = match (&measured, self.stop.signal()) {
            (Err(error), _) => Ending::Stopped { after_ns, why: error.to_string() },
            (Ok(false), Some(signal)) => {
                Ending::Stopped { after_ns, why: out::signal_name(128 + signal).to_owned() }
            }
            _ => Ending::Complete { after_ns },
        };
        writer.close(ending).map_err(|error| run_file(&error))?;
        let is_whole = measured.inspect_err(|_| {
            out::complain(&format!("pagelab: what was measured is kept in {}", path.display()));
        })?;
        let shown = report::show(&path, args.json)?;
        let signal = self.stop.signal().filter(|_| !is_whole);
        if let Some(signal) = signal {
            let name = super::signal_name(signal);
            out::complain(&format!(
                "pagelab: stopped by {name}; what was measured is kept in {}",
                path.display()
            ));
        }
        Ok(signal.map_or(shown as u8, super::code_after))
    }

    /// That accessed bits see nothing of it, which is told, and that nothing can go on.
    fn unseen(&self, profile: &pagelab_model::Profile) -> Option<String> {
        let why = unseen::why(profile).filter(|_| self.args.source == super::Source::Auto)?;
        let note = format!("{why}; {UNATTACHED}");
        out::complain(&format!("pagelab: {note}"));
        Some(note)
    }

    /// Whether one cold page splits here; without, there is no way back to the arm of nothing.
    fn can_split(&self, split: &Turned) -> Result<(), Failure> {
        if split.too_much == 0 {
            return Ok(());
        }
        let text = format!(
            "huge pages of process {} could not all be split, so it cannot be measured without them: {}. \
             They may be mapped by other processes too, or locked",
            self.pid,
            split.trouble().unwrap_or_default()
        );
        match split.too_much > split.right {
            true => Err(Failure::new(Exit::Partial, text)),
            false => {
                out::complain(&text);
                Ok(())
            }
        }
    }

    /// Profiles it under its load.
    fn profile(
        &self,
        at: &std::path::Path,
        how: &profiling::How<'_>,
    ) -> Result<Option<pagelab_model::Profile>, Failure> {
        let args = self.args;
        let mut load = self.load.shell();
        load.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut loading = Looped::begin(load);
        let profile = profiling::attach(args.source, self.pid, &args.profile_for, at, how);
        loading.end();
        profile
    }

    fn resolved(
        &self,
        path: &std::path::Path,
        tune: &Tune,
        files: &[Option<std::path::PathBuf>],
    ) -> Result<Resolved, Failure> {
        let name = recipe::plain(&path.with_extension("").display().to_string());
        let text = recipe::text(&self.load.told(self.args), &name, &self.load.words(), &tune.arms, files);
        resolve(&text)
    }

    /// All trials in their order; whether all were done.
    fn measure(
        &self,
        writer: &mut Writer,
        times: &Times,
        resolved: &Resolved,
        tune: &Tune,
        (all, planned): (&BTreeSet<u64>, &BTreeSet<u64>),
    ) -> Result<bool, Failure> {
        let schedule = &resolved.plan.schedule;
        for (at, slot) in schedule.iter().enumerate() {
            if self.stop.signal().is_some() {
                return Ok(false);
            }
            let arm = tune.arms.get(slot.variant);
            let on = arm.map_or(On::Nothing, |arm| arm.on);
            let name = arm.map_or("", |arm| arm.name.as_str());
            if out::is_watched() {
                out::status(&format!("sample {} of {}: {name}", at + 1, schedule.len()));
            }
            let nothing = BTreeSet::new();
            let wanted = match on {
                On::Nothing => &nothing,
                On::All => all,
                _ => planned,
            };
            let turned = self.steered.turn(all, wanted).map_err(target_failure)?;
            let began_ns = times.now_ns();
            let (end, measures, mut flags) = self.sample(all, wanted)?;
            flags.extend(flag_of(&turned, wanted.len()));
            let trial = Trial {
                slot: at,
                began_ns,
                ended_ns: times.now_ns(),
                end,
                measures,
                flags,
                last_output: String::new(),
            };
            writer.trial(&trial).map_err(|error| run_file(&error))?;
            let text = format!("{name}: {} regions as they were to be", turned.right);
            let event = Event { at_ns: trial.ended_ns, kind: "turned".to_owned(), text };
            writer.event(&event).map_err(|error| run_file(&error))?;
            writer.flush().map_err(|error| run_file(&error))?;
        }
        if out::is_watched() {
            out::status("");
        }
        Ok(true)
    }

    /// One run of the load, and what the process did meanwhile.
    fn sample(
        &self,
        all: &BTreeSet<u64>,
        wanted: &BTreeSet<u64>,
    ) -> Result<(TrialEnd, Vec<Measure>, Vec<Flag>), Failure> {
        let (end, mut measures) = self.load.sample(self.pid, self.stop);
        let after = self.steered.huge_now().map_err(target_failure)?;
        let huge = after.intersection(all).count();
        let got = after.intersection(wanted).count();
        measures.extend(sample::counts(huge, self.steered.huge_bytes(), wanted.len(), got));
        let mut flags = Vec::new();
        if huge > got {
            let text = format!("{} regions became huge by themselves meanwhile", huge - got);
            flags.push(Flag { kind: Flag::NOT_APPLIED.to_owned(), text });
        }
        Ok((end, measures, flags))
    }
}

/// What is compared, of a process with so many regions.
fn running(all: usize, planned: usize) -> String {
    format!(
        "a running process: {all} regions of it could be on huge pages, {planned} planned ones are among \
         them; CPU time and huge pages are the process's, time is that of the metric's command"
    )
}

fn flag_of(turned: &Turned, wanted: usize) -> Option<Flag> {
    let text = turned.trouble()?;
    let kind = match (turned.too_much, turned.missing) {
        (1.., _) => Flag::NOT_APPLIED,
        (0, missing) if missing >= wanted => Flag::NO_HUGE_PAGES,
        (0, _) => Flag::PLAN_PARTLY,
    };
    Some(Flag { kind: kind.to_owned(), text })
}

/// A command that is started again and again until it is told to end.
struct Looped {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Looped {
    fn begin(mut command: Command) -> Looped {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = stop.clone();
        let run = move || {
            while !seen.load(std::sync::atomic::Ordering::Relaxed) {
                let Ok(mut child) = command.spawn() else { return };
                while let Ok(None) = child.try_wait() {
                    if seen.load(std::sync::atomic::Ordering::Relaxed) {
                        sample::end(&mut child);
                        return;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
            }
        };
        Looped { stop, thread: Some(std::thread::spawn(run)) }
    }

    fn end(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
