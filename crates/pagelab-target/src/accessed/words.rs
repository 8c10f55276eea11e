//! The profile at the end, and what its reader must know.

use std::time::Duration;

use pagelab_host::root::Root;
use pagelab_model::profile::{ImageProfile, MappingKind, ProfileSource};
use pagelab_model::{Bytes, Profile};
use pagelab_sys::clock;

use super::hands::Hands;
use super::image::Image;
use super::turns::LEAST_RESIDENT;
use super::watch::Watch;
use super::{DUTY_PERMILLE, SLOW_DOWN_PERMILLE, estimate, instead, price, slow_down_permille};

/// The order of the hottest regions is known where none of them may be further off than this, as a part of
/// its walks.
const SURE: f64 = 0.3;

/// The hottest regions: one of so many, and some.
const HOTTEST_PART: usize = 10;
const HOTTEST_LEAST: usize = 8;

/// Words of the supervisor's notes on what it keeps a program from, and what it cannot see.
const LIMITS: [&str; 3] = ["no_new_privs", "(ptrace)", "32-bit"];

/// From so many percent on it is told what part has no name that holds in the next run.
const PLACED_TOLD: u64 = 10;

/// The part of the walks in memory that is named by its place, in percent.
fn placed_percent(images: &[ImageProfile]) -> u64 {
    let (mut placed, mut all) = (0, 0);
    for mapping in images.iter().flat_map(|image| &image.mappings) {
        let walks: u64 = mapping.cells.misses.iter().sum();
        all += walks;
        placed += if mapping.key.kind == MappingKind::Placed { walks } else { 0 };
    }
    (u128::from(placed) * 100 / u128::from(all.max(1))) as u64
}

impl Watch<'_> {
    pub(super) fn into_profile(mut self, command: Vec<String>, watched: Duration) -> Profile {
        let wall_ns = u64::try_from(watched.as_nanos()).unwrap_or(u64::MAX);
        self.say_what_was_seen();
        let slowed = self.images.iter().filter(|image| image.account.is_used());
        if let Some(most) = slowed.max_by_key(|image| image.account.spent_ppm()) {
            self.effort.slow_down_ppm = Some(most.account.spent_ppm());
            self.effort.accessed_page_ps = Some(most.account.page_ps());
        }
        let sweeps: u64 = self.images.iter().map(Image::sweeps).sum();
        self.effort.sweeps = Some(sweeps);
        let (looks, images) = (sweeps + self.effort.zero_scans.unwrap_or(0), || self.images.iter());
        self.effort.misses_error_permille =
            estimate::error_of_all(looks, images().flat_map(Image::swept), images().flat_map(Image::scanned))
                .map(|error| (error * 1000.0).round() as u32);
        let own = clock::process_cpu_ns(std::process::id()).unwrap_or_else(|_| clock::thread_cpu_ns());
        self.effort.cpu_ns = Some(own + self.hands.cpu_ns());
        let permille = self.busy.as_secs_f64() * 1000.0 / watched.as_secs_f64().max(1e-9);
        self.effort.duty_permille = Some(permille.round() as u32);
        let images: Vec<ImageProfile> = self
            .images
            .iter()
            .map(|image| image.profile(self.page, self.huge, self.wanted.tlb_entries))
            .collect();
        if let (Hands::Watch(_), part @ PLACED_TOLD..) = (&self.hands, placed_percent(&images)) {
            let least = self.huge >> 20;
            self.note(format!(
                "{part} % of the walks are in memory that is named by its place, mostly mappings of less \
                 than {least} MiB that touch: a plan for them holds only where addresses are not randomised"
            ));
        }
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

    fn say_what_was_seen(&mut self) {
        let unseen = self.images.iter().map(|image| image.has_unseen(self.huge));
        let (huge, zero) = unseen.fold((false, false), |a, b| (a.0 | b.0, a.1 | b.1));
        let sweeps: u64 = self.images.iter().map(Image::sweeps).sum();
        let scans: u64 = self.images.iter().map(|image| image.zeros.batches).sum();
        // All that such a program has in memory may be the page of zeros.
        let is_large = self.images.iter().any(|image| image.growth.most >= LEAST_RESIDENT);
        if sweeps == 0 && (scans == 0 || is_large) {
            let none = self.why_none(scans > 0);
            self.note(none);
        }
        if sweeps > 0 || scans > 0 {
            let from = match (sweeps, scans) {
                (_, 0) => format!("{sweeps} sweeps of accessed bits"),
                (0, _) => format!("{scans} scans of the page of zeros"),
                _ => format!("{sweeps} sweeps of accessed bits and {scans} scans of the page of zeros"),
            };
            let text = "what order the hottest have is told by --source exact";
            self.notes.insert(0, format!("an estimate of walks, from {from}; {text}"));
        }
        self.say_how_far_it_was_swept();
        self.say_of_zeros(zero);
        if huge {
            self.note("regions on huge pages have one bit for all their pages and are not seen".to_owned());
        }
        self.note(instead::note(&Root::live()));
    }

    fn say_how_far_it_was_swept(&mut self) {
        let parts: Vec<(u64, u64)> = self.images.iter().filter_map(Image::seen_part).collect();
        for (seen, most) in parts {
            self.note(format!(
                "sweeps saw {} MiB, and there were {} MiB later: it ended before one more was earned. A \
                 longer run or a higher --duty gets one; --source exact sees every access",
                seen >> 20,
                most >> 20
            ));
        }
        self.say_whether_the_order_is_known();
        if self.longest_split > Duration::ZERO {
            let (longest, all) = (self.longest_split.as_secs_f64() * 1e3, self.effort.split_ns.unwrap_or(0));
            self.note(format!(
                "mappings were split for {:.0} ms in all, {longest:.0} ms at most in one go: an mremap that \
                 grows one would have failed then",
                all as f64 / 1e6
            ));
        }
        if self.splits > 0 {
            let stopped = self.effort.stopped_ns.unwrap_or(0).saturating_sub(self.all_stood_ns);
            self.note(format!(
                "a thread was stopped for {:.1} ms in all, for {} splits and as many merges; {:.1} ms of it, \
                 it waited for a CPU",
                stopped as f64 / 1e6,
                self.splits,
                self.waited_ns as f64 / 1e6
            ));
        }
        if self.images.iter().any(Image::was_swept) && self.wanted.price.origin.starts_with(price::ASSUMED) {
            self.note(format!("what a cleared page costs is {}", self.wanted.price.origin));
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
    }

    /// Why there was no sweep, and what gets one. Memory that was never written may have been scanned.
    fn why_none(&self, is_scanned: bool) -> String {
        let large = self.images.iter().filter(|image| image.growth.most >= LEAST_RESIDENT);
        let Some((image, permille)) = large
            .max_by_key(|image| image.account.lived())
            .zip(slow_down_permille(self.wanted.duty_permille))
        else {
            return "there was no sweep: the program ended first, or never had 4 MiB in memory. \
                    --source exact sees every access"
                .to_owned();
        };
        let (resident, account) = (image.growth.most, &image.account);
        let one = account.expected(resident / self.page.bytes(), resident / self.huge, Duration::ZERO);
        let lived = account.lived().as_secs_f64();
        // In whole percents, twice as much as one sweep needs.
        let share = one.as_secs_f64() / lived.max(1e-9);
        let duty = (share * 200.0 * f64::from(DUTY_PERMILLE) / f64::from(SLOW_DOWN_PERMILLE)).ceil();
        let duty = duty.max((f64::from(self.wanted.duty_permille) / 5.0).ceil());
        let duty = if duty < 100.0 { duty } else { 100.0 };
        let begin = match is_scanned {
            true => "the memory that was written had no sweep",
            false => "there was no sweep",
        };
        format!(
            "{begin}: the program was there for {lived:.1} s and had {} MiB in memory. One sweep costs it \
             {:.1} ms here, {:.0} ns for each page, and may cost it {:.1} % of its time; pagelab may work \
             for {:.1} % of the time. A longer run or --duty {duty} gets one; --source exact sees every \
             access",
            resident >> 20,
            one.as_secs_f64() * 1e3,
            account.page_ps() as f64 / 1e3,
            f64::from(permille) / 10.0,
            f64::from(self.wanted.duty_permille) / 10.0,
        )
    }

    fn say_whether_the_order_is_known(&mut self) {
        let mut regions: Vec<(u64, f64)> =
            self.images.iter().flat_map(|image| image.swept().chain(image.scanned())).collect();
        regions.sort_by_key(|region| std::cmp::Reverse(region.0));
        let hottest = (regions.len() / HOTTEST_PART).max(HOTTEST_LEAST).min(regions.len());
        let unsure =
            regions.iter().take(hottest).filter(|region| region.1.is_nan() || region.1 > SURE).count();
        if unsure > 0 {
            self.note(format!(
                "{unsure} of the {hottest} hottest regions are accessed faster than sweeps can tell, or were \
                 looked at too seldom: the order of the regions is not known. A longer run, a greater --duty \
                 or --source exact tells it"
            ));
        }
    }
}
