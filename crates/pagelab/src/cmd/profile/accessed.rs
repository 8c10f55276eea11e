//! `pagelab profile --source accessed`.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use pagelab_contig::reserve::Reserve;
use pagelab_formats::{duration, meminfo, pressure};
use pagelab_host::guard::{self, Guard, Site, Watched};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::machine::Machine;
use pagelab_model::{Bytes, Profile};
use pagelab_sys::spawn;
use pagelab_target::accessed::{self, Done, Subject, Wanted};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::Ask;
use crate::accessed_price;
use crate::cmd::target_failure;
use crate::exit::{Exit, Failure, Outcome};
use crate::out;

/// Options of this source.
#[derive(Debug, Default, clap::Args)]
#[group(skip)]
pub struct Options {
    /// accessed: the share of the time in which sweeps go on, in percent; what
    /// they may cost the program goes with it: 2 % of its time at 1.5, and as
    /// much as they like at 100 [default: 1.5]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    duty: Option<u32>,
    /// accessed: run the command without the supervisor of apply: names of its
    /// memory hold for this run alone, and it outlives pagelab
    #[arg(long, conflicts_with = "pid")]
    no_supervise: bool,
    /// accessed: leave mappings whole; coarser, and nothing is injected
    #[arg(long)]
    no_split: bool,
    /// accessed: drop entries of the kernel's page of zeros to see which come
    /// back, which shows memory that is only read. All threads stand while that
    /// is done; no other program may write to its memory meanwhile
    /// [default: yes for a command, no for --pid]
    #[arg(long, value_name = "YES|NO", value_enum)]
    zero_page: Option<Choice>,
    /// accessed: the longest pause between clearing and looking
    /// [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pause: Option<Duration>,
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Choice {
    /// It is
    Yes,
    /// It is not
    No,
}

/// A share in permille.
fn percent(text: &str) -> Result<u32, String> {
    let share = text.trim_end_matches('%').parse::<f64>().ok().filter(|share| (0.1..=100.0).contains(share));
    share
        .map(|share| (share * 10.0).round() as u32)
        .ok_or_else(|| "a share from 0.1 to 100 percent was wanted, such as 1.5".to_owned())
}

/// Hundredths of a percent of waiting for memory, on average over 10 s, from which on nothing is swept.
const PRESSED: u32 = 1000;

/// Profiles what was asked for.
pub fn profile(ask: &Ask, machine: &Machine) -> Result<Profile, Failure> {
    let (stop, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let watched = signal_hook::flag::register_usize(signal, heard.clone(), signal as usize)
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()));
        watched
            .map_err(|error| Failure::new(Exit::NotAvailable, "signals cannot be watched").because(error))?;
    }
    let subject = match ask.pid {
        Some(pid) => Subject::Process(pid),
        None => Subject::Command(ask.command.clone()),
    };
    let options = &ask.accessed;
    let mut wanted = Wanted {
        subject,
        time: ask.time,
        duty_permille: options.duty.unwrap_or(accessed::DUTY_PERMILLE),
        price: accessed_price::at_hand(machine, room(), reader_command()),
        pause: options.pause.unwrap_or(accessed::PAUSE),
        drops_zeros: options.zero_page.map_or(ask.pid.is_none(), |choice| choice == Choice::Yes),
        tlb_entries: tlb_entries(machine),
        is_supervised: !options.no_supervise,
        splitter: (!options.no_split).then(splitter_command),
        unjournalled: None,
        stop: &stop,
        heard: &heard,
        say: &|text| out::complain(&format!("pagelab: {text}")),
        pressure: &under_pressure,
    };
    let done = guarded(&mut wanted)?;
    let mut profile = done.profile;
    if let Some(exit) = done.exit {
        profile.exit = Some(exit.code().or(exit.signal().map(|signal| 128 + signal)).unwrap_or(0) as u8);
        if !exit.success() {
            profile.notes.push(format!("the program {}", ending(exit)));
        }
    }
    for note in &profile.notes {
        out::note(&format!("pagelab: {note}"));
    }
    Ok(profile)
}

/// Entries of the outermost TLB for base pages, where they are known.
fn tlb_entries(machine: &Machine) -> Option<u64> {
    let page = machine.page_size;
    let tlb = match (&machine.tlb, &machine.cpu) {
        (Ok(tlb), _) => Ok(tlb.clone()),
        (_, Ok(cpu)) => pagelab_tlb::choose(cpu, &pagelab_sys::cpuid::leaves(), None),
        (Err(absence), Err(_)) => Err(absence.clone()),
    };
    tlb.ok()?.reach(Bytes(page.bytes())).map(|reach| reach.0 / page.bytes())
}

fn ending(exit: ExitStatus) -> String {
    match (exit.code(), exit.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (_, Some(signal)) => format!("was ended by signal {signal}"),
        _ => "ended".to_owned(),
    }
}

/// Profiles with the splits told in the journal. Where none can be written, only a program under the
/// supervisor is split.
fn guarded(wanted: &mut Wanted<'_>) -> Result<Done, Failure> {
    if wanted.splitter.is_none() {
        return accessed::profile(wanted).map_err(target_failure);
    }
    let begun = || {
        let guard = Guard::begin(&Site::live()?, Watched::left_to_restore(), guard::Options::default())?;
        let whom = match &wanted.subject {
            Subject::Process(pid) => format!("process {pid}"),
            Subject::Command(_) => "the program that is profiled".to_owned(),
        };
        let act = format!(
            "pieces of the memory of {whom} are left out of core dumps (MADV_DONTDUMP) while they are looked \
             at; harmless, ends with it, and the next profile of it takes it back"
        );
        Ok::<_, guard::GuardError>((guard, act))
    };
    let (guard, act) = match begun() {
        Ok(begun) => begun,
        Err(error) => {
            let why = error.to_string();
            return match &wanted.subject {
                Subject::Process(_) => whole(wanted, &why),
                // Its supervisor needs no journal: the program ends with it.
                Subject::Command(_) => {
                    wanted.unjournalled = Some(why);
                    accessed::profile(wanted).map_err(target_failure)
                }
            };
        }
    };
    match guard.one_way(&act, || accessed::profile(wanted)) {
        Ok(Some(done)) => done.map_err(target_failure),
        Ok(None) => Err(Failure::new(Exit::Bug, "nothing was profiled")),
        Err(error) => {
            let why = error.to_string();
            whole(wanted, &why)
        }
    }
}

fn whole(wanted: &mut Wanted<'_>, why: &str) -> Result<Done, Failure> {
    wanted.splitter = None;
    let mut done = accessed::profile(wanted).map_err(target_failure)?;
    done.profile.notes.push(format!("mappings are seen whole and not by huge page: {why}"));
    Ok(done)
}

/// This program once more, in a group of its own; the kernel spares it when memory ends, if it may.
fn splitter_command() -> Command {
    let mut command = Command::new(paths::SELF_EXE);
    command.arg0("pagelab").process_group(0).args(["profile", "splitter"]);
    if let Ok(path) = std::ffi::CString::new(paths::SELF_OOM_SCORE_ADJ) {
        spawn::write_own_file(&mut command, path, b"-1000".to_vec());
    }
    command
}

/// This program once more, as a child that reads its own memory.
fn reader_command() -> Command {
    let mut command = Command::new(paths::SELF_EXE);
    command.arg0("pagelab").args(["profile", "reader"]);
    command
}

/// Is the child on which the price of an accessed bit is measured.
pub fn reader() -> Outcome {
    accessed::price::serve(io::stdin().lock(), io::stdout().lock())?;
    Ok(Exit::Done)
}

/// Memory that may be taken for a moment: half of what is above the reserve.
fn room() -> Bytes {
    let root = Root::live();
    let memory = Reader::new(&root).parse(paths::MEMINFO, meminfo::parse).ok();
    let sizes = memory.and_then(|memory| memory.bytes("MemTotal").zip(memory.bytes("MemAvailable")));
    sizes.map_or(Bytes(0), |(total, available)| Bytes(Reserve::of(total).room(available).0 / 2))
}

/// Is the process that splits mappings.
pub fn splitter() -> Outcome {
    accessed::serve(io::stdin().lock(), io::stdout().lock())?;
    Ok(Exit::Done)
}

/// Why no sweep shall be made now.
fn under_pressure() -> Option<String> {
    let root = Root::live();
    let reader = Reader::new(&root);
    let memory = reader.parse(paths::MEMINFO, meminfo::parse).ok()?;
    let (total, available) = (memory.bytes("MemTotal")?, memory.bytes("MemAvailable")?);
    if Reserve::of(total).room(available).0 == 0 {
        return Some(format!("memory is short: {} MiB are available", available.0 >> 20));
    }
    let pressure = reader.parse(paths::PRESSURE_MEMORY, pressure::parse).ok()?;
    let waiting = pressure.some.avg10_centipercent;
    (waiting >= PRESSED).then(|| format!("programs wait for memory {} % of the time", waiting / 100))
}
