//! The profile at the end, and what its reader must know.

use std::time::Duration;

use pagelab_host::root::Root;
use pagelab_model::profile::ProfileSource;
use pagelab_model::{Bytes, Profile};
use pagelab_sys::clock;

use super::hands::Hands;
use super::image::Image;
use super::instead;
use super::watch::Watch;

/// The order of the hottest regions is known where none of them may be further off than this, as a part of
/// its walks.
const SURE: f64 = 0.3;

/// The hottest regions: one of so many, and some.
const HOTTEST_PART: usize = 10;
const HOTTEST_LEAST: usize = 8;

/// Words of the supervisor's notes on what it keeps a program from, and what it cannot see.
const LIMITS: [&str; 3] = ["no_new_privs", "(ptrace)", "32-bit"];

impl Watch<'_> {
    pub(super) fn into_profile(mut self, command: Vec<String>, watched: Duration) -> Profile {
        let wall_ns = u64::try_from(watched.as_nanos()).unwrap_or(u64::MAX);
        self.say_what_was_seen(wall_ns);
        let sweeps = self.images.iter().map(Image::sweeps).sum();
        self.effort.sweeps = Some(sweeps);
        let own = clock::process_cpu_ns(std::process::id()).unwrap_or_else(|_| clock::thread_cpu_ns());
        self.effort.cpu_ns = Some(own + self.hands.cpu_ns());
        let permille = self.busy.as_secs_f64() * 1000.0 / watched.as_secs_f64().max(1e-9);
        self.effort.duty_permille = Some(permille.round() as u32);
        let images = self.images.iter().map(|image| image.profile(self.page, self.huge, wall_ns)).collect();
        Profile {
            source: ProfileSource::Accessed,
            command,
            page_size: self.page,
            huge: Bytes(self.huge),
            tlb: None,
            walk_cost: None,
            images,
            wall_ns,
            effort: self.effort,
            lost: 0,
            what_ifs: Vec::new(),
            exit: None,
            notes: self.notes,
        }
    }

    fn say_what_was_seen(&mut self, wall_ns: u64) {
        let (huge, zero) =
            self.images.iter().map(Image::has_unseen).fold((false, false), |a, b| (a.0 | b.0, a.1 | b.1));
        let sweeps: u64 = self.images.iter().map(Image::sweeps).sum();
        if sweeps == 0 {
            self.note(
                "there was no sweep: the program ended first, or never had 4 MiB in memory. --source exact \
                 sees every access"
                    .to_owned(),
            );
        }
        self.notes.insert(
            0,
            format!(
                "an estimate of walks, from {sweeps} sweeps of accessed bits; what order the hottest have is \
                 told by --source exact"
            ),
        );
        self.say_whether_the_order_is_known(wall_ns);
        if self.longest_split > Duration::ZERO {
            let (longest, all) = (self.longest_split.as_secs_f64() * 1e3, self.effort.split_ns.unwrap_or(0));
            self.note(format!(
                "mappings were split for {:.0} ms in all, {longest:.0} ms at most in one go: an mremap that \
                 grows one would have failed then",
                all as f64 / 1e6
            ));
        }
        if self.splits > 0 {
            let stopped = self.effort.stopped_ns.unwrap_or(0);
            self.note(format!(
                "a thread was stopped for {:.1} ms in all, for {} splits and as many merges; {:.1} ms of it, \
                 it waited for a CPU",
                stopped as f64 / 1e6,
                self.splits,
                self.waited_ns as f64 / 1e6
            ));
        }
        if let Hands::Watch(watch) = &self.hands {
            // Its other notes are about huge pages, and there are none.
            let is_limit = |note: &String| LIMITS.iter().any(|limit| note.contains(limit));
            let limits: Vec<String> = watch.notes().into_iter().filter(is_limit).collect();
            let left = watch.ended().map_or(0, |_| watch.processes());
            limits.into_iter().for_each(|note| self.note(note.replace("--no-tracer", "--no-supervise")));
            if left > 0 {
                self.note(format!(
                    "{left} processes that the program left running end with pagelab; with --no-supervise \
                     they go on"
                ));
            }
        }
        if huge {
            self.note("regions on huge pages have one bit for all their pages and are not seen".to_owned());
        }
        if zero {
            self.note(
                "memory that was read and never written is the kernel's page of zeros, which has no bits of \
                 its own: not seen here. --source exact sees it"
                    .to_owned(),
            );
        }
        self.note(instead::note(&Root::live()));
    }

    fn say_whether_the_order_is_known(&mut self, wall_ns: u64) {
        let mut regions: Vec<(u64, f64)> =
            self.images.iter().flat_map(|image| image.certainty(wall_ns)).collect();
        regions.sort_by_key(|region| std::cmp::Reverse(region.0));
        let hottest = (regions.len() / HOTTEST_PART).max(HOTTEST_LEAST).min(regions.len());
        let unsure =
            regions.iter().take(hottest).filter(|region| region.1.is_nan() || region.1 > SURE).count();
        if unsure > 0 {
            self.note(format!(
                "{unsure} of the {hottest} hottest regions are accessed faster than sweeps can tell, or were \
                 swept too seldom: the order of the regions is not known. A longer run, a greater --duty or \
                 --source exact tells it"
            ));
        }
    }
}
