//! What a run works on: made once for each choice of the options that it depends on, whole or not there.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use pagelab_formats::checksum::crc32;
use pagelab_packages::apt::{self, Watcher, WaysOut};
use pagelab_packages::error::Error;
use pagelab_packages::program::{self, NoAnswer};
use pagelab_workloads::options::Options;

use super::home::{self, Home, NO_PLACE};
use super::manifest::Manifest;
use super::setup::{lock, unusable};
use super::words;

/// Loading a database of many gigabytes, or unpacking a large archive, on a busy machine.
const PREPARE: Duration = Duration::from_secs(2 * 3600);

/// Makes the data for these options unless they are there; `again` makes them anew. `None`: the manifest has
/// none.
pub fn make(
    manifest: &Manifest,
    home: &Home,
    options: &Options,
    again: bool,
    watcher: &mut dyn Watcher,
) -> Result<Option<PathBuf>, Error> {
    let Some(prepare) = &manifest.prepare else { return Ok(None) };
    let store = home::store(manifest, "data").ok_or_else(|| Error::not_available(NO_PLACE))?;
    let (key, chosen) = key(manifest, options);
    let place = store.folder().join(&key);
    if place.is_dir() && !again {
        return Ok(Some(place));
    }
    let began = Instant::now();
    let locked = lock(&store, &format!("another pagelab was making data of {}", manifest.name), watcher)?;
    if place.is_dir() && !again {
        return Ok(Some(place));
    }
    let with = if chosen.is_empty() { String::new() } else { format!(" with {chosen}") };
    watcher.progress(&format!("making the data of {}{with}", manifest.name));
    let partial = store.begin(&locked).map_err(|error| unusable(&store, error))?;
    let value = |name: &str| match name {
        "files" => Some(home.files().display().to_string()),
        "root" => Some(home.root().display().to_string()),
        "data" | "work" => Some(partial.display().to_string()),
        option => words::value_of(options, option),
    };
    let filled: Vec<String> = prepare.iter().map(|word| words::filled(word, &value)).collect();
    let mut command = Command::new(&filled[0]);
    command.args(&filled[1..]).current_dir(&partial);
    home.lend(manifest, &mut command);
    command.envs(manifest.environment.iter().map(|(name, text)| (name, words::filled(text, &value))));
    let made = match program::run(&mut command, PREPARE, &mut || watcher.stop()) {
        Ok(ran) if ran.status.success() => Ok(()),
        Ok(ran) => {
            let what = format!("cannot make the data of {}", manifest.name);
            let ways_out = WaysOut { otherwise: "", elsewhere: "XDG_CACHE_HOME" };
            let way_out = format!("pagelab workload setup {} --again sets it up anew", manifest.asked);
            Err(apt::failed(&what, &ran, &way_out, &ways_out))
        }
        Err(NoAnswer::Stopped(signal)) => Err(Error::stopped(signal)),
        Err(NoAnswer::TooLong(limit)) => {
            let hours = limit.as_secs() / 3600;
            let text = format!("making the data of {} took more than {hours} hours", manifest.name);
            Err(Error::not_available(text))
        }
        Err(NoAnswer::NotThere) => {
            let text = format!("{}: there is no {}, which makes its data", manifest.name, filled[0]);
            Err(Error::not_available(text))
        }
        Err(NoAnswer::Failed(error)) => Err(Error::refused(format!("cannot run {}", filled[0]), error)),
    };
    let made = made.and_then(|()| {
        let finished = store.finish(&locked, &partial, &key);
        finished.map_err(|error| unusable(&store, error))
    });
    if made.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    watcher.progress(&format!("made in {:.0} s", began.elapsed().as_secs_f64()));
    made.map(Some)
}

/// The name of the data's folder, and what was chosen of them: `warehouses-8-1a2b3c4d`.
fn key(manifest: &Manifest, options: &Options) -> (String, String) {
    let pairs: Vec<(String, String)> = manifest
        .data_options
        .iter()
        .filter_map(|name| Some((name.clone(), words::value_of(options, name)?)))
        .collect();
    let chosen = pairs.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ");
    let hash = crc32(format!("{} {chosen}", manifest.fingerprint).as_bytes());
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let plain = chosen.replace(", ", "-").replace(' ', "-");
    let plain: String = plain.chars().filter(|&c| is_plain(c)).take(80).collect();
    let gap = if plain.is_empty() { "" } else { "-" };
    (format!("{plain}{gap}{hash:08x}"), chosen)
}
