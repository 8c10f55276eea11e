//! `pagelab profile setup`: QEMU for `--source exact` in the cache, before it is needed.

use std::io::Write;

use pagelab_packages::store;
use pagelab_target::exact::qemu::{Ahead, Qemu};

use crate::cmd::guest::setup::Told;
use crate::cmd::target_failure;
use crate::exit::{Exit, Outcome};
use crate::out;

/// What `profile setup` was asked for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Say what would be fetched, and fetch nothing
    #[arg(long)]
    dry_run: bool,
}

/// Finds or fetches QEMU, and says which one is taken.
pub fn run(args: &Args) -> Outcome {
    let cache = store::usual_folder();
    let mut told = Told::watch(true)?;
    let mut out = out::stdout();
    if args.dry_run {
        match Qemu::ahead(cache.as_deref(), &mut told).map_err(target_failure)? {
            Ahead::There(qemu) => there(&mut out, &qemu)?,
            Ahead::Fetched(offers) => {
                for offer in &offers {
                    let (name, version, bytes) = (&offer.name, &offer.version, offer.bytes);
                    writeln!(out, "would fetch {name} {version}   {bytes} bytes")?;
                }
            }
        }
    } else {
        there(&mut out, &Qemu::at_hand(cache.as_deref(), &mut told).map_err(target_failure)?)?;
    }
    out.flush()?;
    Ok(Exit::Done)
}

fn there(out: &mut impl Write, qemu: &Qemu) -> std::io::Result<()> {
    writeln!(out, "QEMU {}   {}", qemu.version, qemu.path().display())
}
