//! `pagelab profile setup`: download of QEMU for `--source exact` to the cache, ahead of use.

use pagelab_command::setup_progress::SetupProgress;
use pagelab_packages::store;
use pagelab_target::exact::qemu::{Qemu, QemuSource};

use crate::exit::{Exit, Outcome};
use crate::output;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print what would be downloaded, and download nothing
    #[arg(long)]
    dry_run: bool,
}

/// Finds or fetches QEMU, and prints which binary is used.
pub fn run(args: &Args) -> Outcome {
    let cache = store::default_cache_dir();
    let mut progress = SetupProgress::start(true)?;
    let mut out = output::stdout();
    let source = match args.dry_run {
        true => Qemu::preview_source(cache.as_deref(), &mut progress),
        false => Qemu::find_or_fetch(cache.as_deref(), &mut progress).map(QemuSource::Available),
    };
    match source.map_err(output::exit_if_stopped)? {
        QemuSource::Available(qemu) => writeln!(out, "QEMU {}   {}", qemu.version, qemu.program.display())?,
        QemuSource::ToFetch(offers) => {
            for offer in &offers {
                let (name, version, bytes) = (&offer.name, &offer.version, offer.size_bytes);
                writeln!(out, "would download {name} {version}   {bytes} bytes")?;
            }
        }
    }
    out.flush()?;
    Ok(Exit::Success)
}
