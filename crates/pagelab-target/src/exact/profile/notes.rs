//! What a reader of the profile must know.

use std::path::Path;

use pagelab_model::Profile;
use pagelab_tlb::engine::layout::{ended, head, image, thread};

use super::super::account::{Account, BYTES_MOST};
use super::super::read::Image;
use super::super::run::{Program, Ran, path_of};

/// Floating-point operations of a thousand accesses from which on a program is warned of.
const FLOATS_PERMILLE: u64 = 100;

/// Adds the notes.
pub fn tell(profile: &mut Profile, program: &Program, ran: &Ran, account: &Account, images: &[Image]) {
    let stretches = profile.effort.stretches;
    let mut say = |note: String| profile.notes.push(note);
    say("modelled: exact LRU in each set, page-walk caches of 32 PDEs, 4 PDPTEs and 4 PML4Es assumed; \
         accesses of the kernel, instruction fetches and prefetches are not seen; an access that crosses a \
         page counts for the page that it begins in"
        .to_owned());
    say("QEMU has no AVX-512: a library that would choose such code runs other code here".to_owned());
    let threads = || images.iter().flat_map(|image| &image.threads);
    let sum = |field: u64| threads().map(|thread| thread[field as usize]).sum::<u64>();
    let (seen, skipped) = (sum(thread::ACCESSES), sum(thread::SKIPPED));
    if let Some(of) = stretches {
        let permille = (of.share() * 1000.0).round() as u64;
        let error = match of.error_permille {
            Some(error) => format!("± {}.{} % for all misses", error / 10, error % 10),
            None => "how far off they may be is not known".to_owned(),
        };
        say(format!(
            "watched {} of {} accesses ({}.{} %) in {} stretches: counts are estimates, scaled to all \
             accesses, {error}",
            of.counted,
            of.accesses,
            permille / 10,
            permille % 10,
            of.count
        ));
    }
    let floats: u64 = images.iter().map(|one| one.field(image::FLOATS)).sum();
    let permille = u128::from(floats) * 1000 / u128::from(seen + skipped).max(1);
    if permille >= u128::from(FLOATS_PERMILLE) {
        say(format!(
            "floating point: {floats} operations, {permille} for 1000 accesses; QEMU computes them in \
             software, 50 to 70 times slower: a smaller input or --window make it bearable"
        ));
    }
    let full = account.head(head::FULL);
    if full > 0 {
        let unplaced: u64 = images.iter().map(|one| one.field(image::UNPLACED)).sum();
        say(format!(
            "the account is full ({} MiB): {unplaced} accesses stand in the sums alone, not in their places",
            BYTES_MOST >> 20
        ));
    }
    let lost = account.head(head::LOST);
    if lost > 0 {
        say(format!("{lost} processes were not seen, since the account was full"));
    }
    let unwatched: u64 = images.iter().map(|one| one.field(image::UNWATCHED_THREADS)).sum();
    if unwatched > 0 {
        say(format!("{unwatched} threads were not seen: more than 4096 at one time"));
    }
    for one in images {
        if let Some(native) = one.native.as_ref().filter(|_| one.field(image::ENDED) == ended::NATIVE) {
            let (pid, path) = (one.field(image::PID), path_of(native));
            say(format!(
                "process {pid} executed {}, which ran outside of QEMU and was not seen: profile it by itself",
                path.display()
            ));
        }
    }
    still_there(profile, images, ran);
    tell_of_set_id(profile, &program.path);
}

fn still_there(profile: &mut Profile, images: &[Image], ran: &Ran) {
    let alive = |one: &&Image| {
        let pid = u32::try_from(one.field(image::PID)).unwrap_or(0);
        one.field(image::ENDED) == ended::UNKNOWN && pid != ran.pid && pagelab_sys::presence::process(pid)
    };
    let count = images.iter().filter(alive).count();
    if count > 0 {
        profile.notes.push(format!("{count} processes of it still run: what they do later is not seen"));
    }
}

fn tell_of_set_id(profile: &mut Profile, path: &Path) {
    const SET_ID: u32 = 0o6000;
    let mode = std::fs::metadata(path).map(|meta| std::os::unix::fs::MetadataExt::mode(&meta));
    if mode.is_ok_and(|mode| mode & SET_ID != 0) {
        let note = "the program changes its user or group at start: under QEMU it keeps yours";
        profile.notes.push(note.to_owned());
    }
}
