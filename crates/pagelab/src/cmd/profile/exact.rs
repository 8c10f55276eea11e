//! `pagelab profile --source exact`.

use std::path::Path;

use pagelab_formats::{largepages, plan_toml};
use pagelab_host::root::Root;
use pagelab_model::machine::Tlb;
use pagelab_model::{Bytes, Profile, Snapshot};
use pagelab_packages::store;
use pagelab_sys::cpuid;
use pagelab_target::exact::{self, Set};
use pagelab_tlb::engine::tlb::Window;
use pagelab_tlb::syntax;

use super::Ask;
use crate::cmd::guest::setup::Told;
use crate::cmd::target_failure;
use crate::exit::{Exit, Failure};
use crate::{manifest, out};

/// Options of this source.
#[derive(Debug, Default, clap::Args)]
#[group(skip)]
pub struct Options {
    /// The TLBs that --source exact models [default: this machine's]
    #[arg(long, value_name = "SPEC", help_heading = "With --source exact")]
    tlb: Option<String>,
    /// Count the misses with these huge pages too: all, or a plan
    #[arg(long, value_name = "all|PLAN", help_heading = "With --source exact")]
    what_if: Vec<String>,
    /// Look at the first N accesses of every M, such as 10M/100M
    #[arg(long, value_name = "N/M", help_heading = "With --source exact")]
    window: Option<String>,
}

/// Profiles what was asked for.
pub fn profile(ask: &Ask) -> Result<Profile, Failure> {
    if ask.pid.is_some() {
        let message = "--source exact cannot attach to a running process, since QEMU must start it: give a \
                       command behind `--`, or take --source accessed";
        return Err(Failure::new(Exit::Usage, message));
    }
    let options = &ask.exact;
    let machine = manifest::this_machine(&Root::live());
    let page_size = machine.machine.page_size;
    let huge = page_size.block(machine.pmd_order);
    let asked = exact::Ask {
        command: ask.command.clone(),
        tlb: tlb(options.tlb.as_deref(), &machine)?,
        page_size,
        huge,
        what_ifs: options.what_if.iter().map(|name| set(name, huge)).collect::<Result<_, _>>()?,
        window: options.window.as_deref().map(window).transpose()?,
        cache: store::usual_folder(),
    };
    let mut told = Told::watch(true)?;
    let profile = exact::profile(&asked, &mut told).map_err(target_failure)?;
    // The last notes are those of this run.
    profile
        .notes
        .iter()
        .skip(exact::NOTES_ALWAYS)
        .for_each(|note| out::complain(&format!("pagelab: {note}")));
    Ok(profile)
}

fn tlb(given: Option<&str>, machine: &Snapshot) -> Result<Tlb, Failure> {
    let given = given.map(syntax::parse).transpose();
    let given = given.map_err(|error| Failure::new(Exit::Usage, format!("--tlb: {error}")))?;
    let found = match (&machine.machine.cpu, given) {
        (Ok(cpu), given) => pagelab_tlb::choose(cpu, &cpuid::leaves(), given),
        (Err(_), Some(given)) => Ok(given),
        (Err(absence), None) => Err(absence.clone()),
    };
    found.map_err(|absence| {
        let message = format!(
            "the TLBs of this processor are unknown ({}): give them with --tlb, such as --tlb \
             l1d=64x4:4K,32x4:2M,l2=2048x16:4K+2M",
            absence.reason()
        );
        Failure::new(Exit::NotAvailable, message)
    })
}

/// A set of huge pages by its name on the command line.
fn set(name: &str, huge: Bytes) -> Result<(String, Set), Failure> {
    if name == "all" {
        return Ok((name.to_owned(), Set::All));
    }
    let text = std::fs::read(name).map_err(|error| {
        let message = format!("--what-if {name}: neither the word `all` nor a plan that can be read");
        Failure::new(Exit::BadInput, message).because(error)
    })?;
    let short = Path::new(name).file_name().map_or(name.into(), |name| name.to_string_lossy().into_owned());
    let set = match largepages::is_one(&text) {
        true => largepages::parse(&text).map(Set::Addresses),
        false => plan_toml::parse(&text, huge).map(Set::Plan),
    };
    let bad = |error| Failure::new(Exit::BadInput, format!("--what-if {name}: {error}"));
    set.map(|set| (short, set)).map_err(bad)
}

/// `10M/100M`.
fn window(text: &str) -> Result<Window, Failure> {
    let numbers = text.split_once('/').and_then(|(watched, period)| Some((count(watched)?, count(period)?)));
    match numbers {
        Some((watched, period)) if watched > 0 && watched < period => Ok(Window { watched, period }),
        _ => {
            let message = format!(
                "--window {text}: write the accesses that are watched, and of how many, such as 10M/100M"
            );
            Err(Failure::new(Exit::Usage, message))
        }
    }
}

/// A count of accesses with k, M or G for powers of 1000.
fn count(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, times) = match text.chars().last()? {
        'k' | 'K' => (&text[..text.len() - 1], 1_000),
        'm' | 'M' => (&text[..text.len() - 1], 1_000_000),
        'g' | 'G' => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_read() {
        assert_eq!(window("10M/100M").unwrap(), Window { watched: 10_000_000, period: 100_000_000 });
        assert_eq!(window(" 5k / 1G ").unwrap(), Window { watched: 5000, period: 1_000_000_000 });
        for bad in ["", "5", "5/5", "0/5", "9/3", "a/b", "5é/9é", "99999999999999G/2"] {
            assert!(window(bad).is_err(), "{bad}");
        }
    }
}
