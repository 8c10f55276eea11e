//! From what was written down to the profile: which mapping each page belonged to when it was counted.

mod coarse;
mod counted;
mod notes;
mod scale;

use std::collections::HashMap;
use std::os::unix::ffi::OsStringExt;

use pagelab_model::profile::{
    Begun, Effort, ImageProfile, ProfileSource, Program as ProgramFile, Reuse, WhatIf, WhatIfSize,
};
use pagelab_model::{Bytes, Profile};
use pagelab_tlb::engine::geometry::{Geometry, SIZES, UPPER};
use pagelab_tlb::engine::layout::{BUCKETS, image, thread};

use super::Ask;
use super::account::Account;
use super::read::Image;
use super::run::{Program, Ran, path_of};
use crate::identity;

/// The profile of a run.
pub fn of(
    ask: &Ask,
    program: &Program,
    ran: &Ran,
    account: &Account,
    images: &[Image],
    geometry: &Geometry,
) -> Profile {
    let mut identities = HashMap::new();
    let mut profile = Profile {
        source: ProfileSource::Exact,
        command: ask.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        page_size: ask.page_size,
        huge: ask.huge,
        tlb: Some(ask.tlb.clone()),
        walk_cost: None,
        images: Vec::new(),
        wall_ns: ran.wall_ns,
        effort: Effort {
            cpu_ns: Some(ran.used.utime_ns + ran.used.stime_ns),
            stretches: ask.window.map(|_| scale::stretches(images)),
            ..Effort::default()
        },
        lost: 0,
        notes: Vec::new(),
        what_ifs: what_ifs(ask, images, geometry),
        exit: Some(ran.exit()),
    };
    for (index, image) in images.iter().enumerate() {
        let (found, regions) = counted::count(ask, images, index);
        let (begun, parent) = begun(images, index);
        let (path, arguments) = match begun {
            Begun::Forked => {
                let parent = parent.and_then(|parent| profile.images.get(parent));
                parent.map(|one| (one.program.clone(), one.arguments.clone())).unwrap_or_default()
            }
            _ => of_text(&image.text, &mut identities),
        };
        let sum = |field: u64| image.threads.iter().map(|thread| thread[field as usize]).sum::<u64>();
        let walks = (0..SIZES as u64).map(|code| sum(thread::PASSES + thread::WALKS + code)).sum();
        let mut one = ImageProfile {
            pid: u32::try_from(image.field(image::PID)).unwrap_or(0),
            parent,
            begun,
            program: path,
            arguments,
            accesses: Some(sum(thread::ACCESSES)),
            instructions: None,
            misses: walks,
            mappings: found,
        };
        let factor = scale::Factor::of(image);
        factor.apply(&mut one);
        profile.images.push(one);
        for (pass, mut of_pass) in regions.into_iter().enumerate() {
            factor.apply_to(&mut of_pass);
            if let Some(what_if) = profile.what_ifs.get_mut(pass) {
                of_pass.iter_mut().for_each(|region| region.image = index as u32);
                what_if.regions.append(&mut of_pass);
            }
        }
    }
    notes::tell(&mut profile, program, ran, account, images);
    coarse::bound(&mut profile);
    profile
}

/// How an image began, and which one it began as.
fn begun(images: &[Image], index: usize) -> (Begun, Option<usize>) {
    let image = &images[index];
    if image.field(image::BEGUN) == 1 {
        let parent = images[..index].iter().position(|other| other.at == image.field(image::PARENT));
        return (Begun::Forked, parent);
    }
    let same = |other: &Image| other.field(image::PID) == image.field(image::PID);
    match images[..index].iter().rposition(same) {
        Some(parent) => (Begun::Executed, Some(parent)),
        None => (Begun::Launched, None),
    }
}

/// The program and its arguments from the text of an image.
fn of_text(text: &[u8], known: &mut HashMap<Vec<u8>, ProgramFile>) -> (ProgramFile, Vec<String>) {
    let text = text.strip_suffix(&[0]).unwrap_or(text);
    let mut words = text.split(|&byte| byte == 0).map(<[u8]>::to_vec);
    let path = words.next().unwrap_or_default();
    let program = known.entry(path).or_insert_with_key(|path| {
        let path = path_of(path);
        // As the kernel names it in the link `exe` of the process.
        identity::of(&path.canonicalize().unwrap_or(path))
    });
    let word = |word: Vec<u8>| std::ffi::OsString::from_vec(word).to_string_lossy().into_owned();
    (program.clone(), words.map(word).collect())
}

/// The sums of each pass, over all images.
fn what_ifs(ask: &Ask, images: &[Image], geometry: &Geometry) -> Vec<WhatIf> {
    let names = std::iter::once("none".to_owned()).chain(ask.what_ifs.iter().map(|(name, _)| name.clone()));
    let one = |(pass, name): (usize, String)| {
        let start = thread::PASSES + pass as u64 * thread::PASS;
        let sum = |field: u64| -> u64 {
            let of = |image: &Image| {
                let words = image.threads.iter().filter_map(|words| words.get((start + field) as usize));
                scale::Factor::of(image).scaled(words.sum())
            };
            images.iter().map(of).sum()
        };
        let mut sizes = Vec::new();
        for (code, &shift) in geometry.shifts.iter().enumerate() {
            let misses = sum(thread::WALKS + code as u64);
            if misses > 0 {
                let count = |bucket: u64| sum(thread::REUSE + code as u64 * BUCKETS + bucket);
                sizes.push(WhatIfSize { page: Bytes(1 << shift), misses, reuse: histogram(count) });
            }
        }
        let mut upper_reads = [0; UPPER];
        for (level, reads) in upper_reads.iter_mut().enumerate() {
            *reads = sum(thread::UPPER_READS + level as u64);
        }
        let misses = sizes.iter().map(|size| size.misses).sum();
        WhatIf { name, misses, sizes, upper_reads, regions: Vec::new() }
    };
    names.enumerate().map(one).collect()
}

/// (log2 of the distance, walks) of what is not 0; the plugin's last bucket is that of first walks.
fn histogram(count: impl Fn(u64) -> u64) -> Vec<(u32, u64)> {
    let named = |bucket: u64| if bucket == BUCKETS - 1 { Reuse::FIRST } else { bucket as u32 };
    (0..BUCKETS).map(|bucket| (named(bucket), count(bucket))).filter(|&(_, walks)| walks > 0).collect()
}
