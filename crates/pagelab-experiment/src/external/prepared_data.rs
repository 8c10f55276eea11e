//! Prepared data of a run: created once for each choice of the options that it depends on, complete or
//! absent.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use pagelab_formats::checksum::crc32;
use pagelab_model::Failure;
use pagelab_packages::apt::{FetchHints, FetchObserver};
use pagelab_packages::program::CommandError;
use pagelab_packages::{apt, program};
use pagelab_workloads::options::WorkloadOptions;

use super::install_dir::{self, Installation, NO_CACHE_DIR, STORE_REMEDY};
use super::manifest::Manifest;
use crate::external::manifest;

/// Time limit: loading a database of many gigabytes, or unpacking a large archive, on a busy machine.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(2 * 3600);

/// Prepares the data for these options unless they exist; `remake` recreates them. `None`: the manifest has
/// no data.
pub fn prepare_data(
    manifest: &Manifest,
    home: &Installation,
    options: &WorkloadOptions,
    remake: bool,
    watcher: &mut dyn FetchObserver,
) -> Result<Option<PathBuf>, Failure> {
    let Some(prepare) = &manifest.prepare else { return Ok(None) };
    let store =
        install_dir::open_store(manifest, "data").ok_or_else(|| Failure::not_available(NO_CACHE_DIR))?;
    let (key, chosen) = data_key(manifest, options);
    let data_dir = store.dir().join(&key);
    if data_dir.is_dir() && !remake {
        return Ok(Some(data_dir));
    }
    let started = Instant::now();
    let waiting_message = format!("another pagelab process was creating the data for {}", manifest.name);
    let lock = store.lock_observed(&waiting_message, STORE_REMEDY, watcher)?;
    if data_dir.is_dir() && !remake {
        return Ok(Some(data_dir));
    }
    let option_note = if chosen.is_empty() { String::new() } else { format!(" with {chosen}") };
    watcher.report_progress(&format!("creating the data for {}{option_note}", manifest.name));
    let to_error = |error: io::Error| store.access_error(&error, STORE_REMEDY);
    let made = store.build_entry(&lock, to_error, |partial| {
        let command = home.build_command(manifest, options, prepare, (Some(partial), partial));
        run_prepare(manifest, command, watcher).map(|()| key)
    });
    watcher.report_progress(&format!("created in {:.0} s", started.elapsed().as_secs_f64()));
    made.map(Some)
}

fn run_prepare(
    manifest: &Manifest,
    mut command: Command,
    watcher: &mut dyn FetchObserver,
) -> Result<(), Failure> {
    let program_name = command.get_program().display().to_string();
    match program::run_command(&mut command, PREPARE_TIMEOUT, &mut || watcher.stop_signal()) {
        Ok(ran) if ran.status.success() => Ok(()),
        Ok(ran) => {
            let what = format!("cannot create the data for {}", manifest.name);
            let hints = FetchHints { alternative: "", manual_download: "XDG_CACHE_HOME" };
            let hint = format!("hint: run `pagelab workload setup {} --again`", manifest.requested_as);
            Err(apt::command_error(&what, &ran, &hint, &hints))
        }
        Err(CommandError::Stopped(signal)) => Err(Failure::stopped(signal)),
        Err(CommandError::TimedOut(limit)) => {
            let hours = limit.as_secs() / 3600;
            let text = format!("creating the data for {} took more than {hours} hours", manifest.name);
            Err(Failure::not_available(text))
        }
        Err(CommandError::NotFound) => {
            let text = format!("{}: {program_name}, which creates its data, is missing", manifest.name);
            Err(Failure::not_available(text))
        }
        Err(CommandError::RunFailed(error)) => {
            Err(Failure::system_error(format!("cannot run {program_name}"), error))
        }
    }
}

/// The name of the data directory, and the selected options: `warehouses-8-1a2b3c4d`.
fn data_key(manifest: &Manifest, options: &WorkloadOptions) -> (String, String) {
    let pairs: Vec<(String, String)> = manifest
        .data_options
        .iter()
        .filter_map(|name| Some((name.clone(), manifest::option_value(options, name)?)))
        .collect();
    let chosen = pairs.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ");
    let hash = crc32(format!("{} {chosen}", manifest.fingerprint).as_bytes());
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let slug = chosen.replace(", ", "-").replace(' ', "-");
    let plain: String = slug.chars().filter(|&c| is_plain(c)).take(80).collect();
    let gap = if plain.is_empty() { "" } else { "-" };
    (format!("{plain}{gap}{hash:08x}"), chosen)
}
