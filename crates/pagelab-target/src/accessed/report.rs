//! Final profile, and the notes for its reader.

use std::time::Duration;

use pagelab_host::root::Root;
use pagelab_model::profile::{ImageProfile, MappingKind, ProfileSource};
use pagelab_model::size::format_bytes;
use pagelab_model::{Bytes, TlbProfile};
use pagelab_sys::clock;

use super::image::SweptImage;
use super::injector::CallInjector;
use super::profiler::AccessProfiler;
use super::rank_certainty::UncertainRanks;
use super::scan_saturation::{SeenWalks, estimate_saturation};
use super::scan_scheduler::RESIDENT_MIN;
use super::walk_total::{SweptTotal, total_error};
use super::{DUTY_PERMILLE, ProfileTarget, SLOW_DOWN_PERMILLE, cost_calibration, slow_down_permille};

/// Words of the supervisor's notes on its effects on a program, and on what it cannot observe.
const LIMIT_NOTE_WORDS: [&str; 3] = ["no_new_privs", "ptrace", "32-bit"];

/// Percentage of memory without a stable identity from which it is reported.
const PLACED_PERCENT_MIN: u64 = 10;

/// The part of the walks in memory that is identified by address, in percent.
fn placed_percent(images: &[ImageProfile]) -> u64 {
    let (mut placed, mut all) = (0, 0);
    for mapping in images.iter().flat_map(|image| &image.mappings) {
        let walks: u64 = mapping.cells.misses.iter().sum();
        all += walks;
        placed += if mapping.key.kind == MappingKind::Placed { walks } else { 0 };
    }
    (u128::from(placed) * 100 / u128::from(all.max(1))) as u64
}

impl AccessProfiler<'_> {
    pub(super) fn into_profile(mut self, command: Vec<String>, watch_time: Duration) -> TlbProfile {
        let wall_ns = u64::try_from(watch_time.as_nanos()).unwrap_or(u64::MAX);
        let swept_totals: Vec<SweptTotal> = self.images.iter().map(SweptImage::swept_total).collect();
        self.report_coverage(&swept_totals);
        let charged_images = self.images.iter().filter(|image| image.account.has_costs());
        if let Some(costliest) = charged_images.max_by_key(|image| image.account.spent_ppm()) {
            self.profiling_cost.slowdown_ppm = Some(costliest.account.spent_ppm());
            self.profiling_cost.accessed_page_ps = Some(costliest.account.page_ps);
        }
        self.profiling_cost.sweeps = Some(self.images.iter().map(|image| image.sweeps).sum());
        self.record_errors(&swept_totals);
        let own = clock::process_cpu_ns(std::process::id()).unwrap_or_else(|_| clock::thread_cpu_ns());
        self.profiling_cost.cpu_ns = Some(own + self.injector.cpu_ns());
        let permille = self.busy_time.as_secs_f64() * 1000.0 / watch_time.as_secs_f64().max(1e-9);
        self.profiling_cost.duty_permille = Some(permille.round() as u32);
        if let CallInjector::Supervisor(supervisor) = &self.injector
            && supervisor.has_thp_disable()
        {
            self.images.iter_mut().take(1).for_each(SweptImage::record_thp_disable);
        }
        let images: Vec<ImageProfile> = self
            .images
            .iter()
            .map(|image| image.build_profile(self.page, self.huge, self.request.tlb_entries))
            .collect();
        if let (CallInjector::Supervisor(_), part @ PLACED_PERCENT_MIN..) =
            (&self.injector, placed_percent(&images))
        {
            let least = format_bytes(Bytes(self.huge));
            self.add_note(format!(
                "{part} % of the walks are in memory identified by address, mostly adjacent mappings smaller \
                 than {least}: a plan for them is valid only without address randomisation"
            ));
        }
        TlbProfile {
            source: ProfileSource::Accessed,
            command,
            page_size: self.page,
            huge: Bytes(self.huge),
            tlb: None,
            walk_cost: None,
            images,
            wall_ns,
            effort: self.profiling_cost,
            lost: 0,
            what_ifs: Vec::new(),
            exit: None,
            notes: self.notes,
        }
    }

    /// Records the error of the total, and how far scans undercount.
    fn record_errors(&mut self, swept_totals: &[SweptTotal]) {
        let scanned: Vec<(u64, f64)> = self.images.iter().flat_map(SweptImage::scanned_walks).collect();
        let scans = self.profiling_cost.zero_scans.unwrap_or(0);
        let error = total_error(swept_totals, scans, scanned.iter().copied());
        let seen = self.images.iter().zip(swept_totals).map(|(image, total)| SeenWalks {
            walks: total.walks(),
            saturated: total.saturated_walks,
            reset_share: image.reset_share(),
        });
        let saturation = estimate_saturation(seen, scanned.iter().map(|(walks, _)| walks).sum());
        let cost = &mut self.profiling_cost;
        cost.misses_error_permille = error.map(|error| (error.relative * 1000.0).round() as u32);
        cost.misses_error_blocks = error.and_then(|error| error.blocks);
        cost.saturation = saturation;
    }

    fn report_coverage(&mut self, swept_totals: &[SweptTotal]) {
        let zero = self.images.iter().any(|image| image.has_unscanned_zeros(self.huge));
        let sweeps: u64 = self.images.iter().map(|image| image.sweeps).sum();
        let scans: u64 = self.images.iter().map(|image| image.zero_pages.stops).sum();
        // All that such a program has in memory may be the zero page.
        let is_large = self.images.iter().any(|image| image.growth.resident_max >= RESIDENT_MIN);
        if sweeps == 0 && (scans == 0 || is_large) {
            let reason = self.explain_no_sweep(scans > 0);
            self.add_note(reason);
        }
        if sweeps > 0 || scans > 0 {
            let from = match (sweeps, scans) {
                (_, 0) => format!("{sweeps} scans of accessed bits"),
                (0, _) => format!("{scans} scans of the zero page"),
                _ => format!("{sweeps} scans of accessed bits and {scans} scans of the zero page"),
            };
            self.notes.insert(0, format!("page walks are estimated from {from}"));
        }
        self.report_sweeps(swept_totals);
        self.report_zero_pages(zero);
        self.add_note(super::describe_alternatives(&Root::live()));
    }

    fn report_sweeps(&mut self, swept_totals: &[SweptTotal]) {
        let parts: Vec<(u64, u64)> = self.images.iter().filter_map(SweptImage::partly_swept_bytes).collect();
        let (end, exact) = (self.end_phrase(), self.exact_hint());
        let largest = parts.iter().max_by_key(|(_, most)| *most);
        self.profiling_cost.partly_scanned = largest.map(|(seen, most)| (Bytes(*seen), Bytes(*most)));
        for (seen, most) in parts {
            self.add_note(format!(
                "scans covered {}, but {} was resident later: {end} before the next scan; hint: profile \
                 longer, raise --duty, or use {exact}",
                format_bytes(Bytes(seen)),
                format_bytes(Bytes(most))
            ));
        }
        self.report_order_certainty(swept_totals);
        if self.longest_split > Duration::ZERO {
            let (longest, all) =
                (self.longest_split.as_secs_f64() * 1e3, self.profiling_cost.split_ns.unwrap_or(0));
            self.add_note(format!(
                "mappings were split for {:.0} ms in total, at most {longest:.0} ms at a time: an mremap \
                 that grows a split mapping would have failed",
                all as f64 / 1e6
            ));
        }
        if self.splits > 0 {
            let stopped = self.profiling_cost.stopped_ns.unwrap_or(0).saturating_sub(self.zero_stop_ns);
            self.add_note(format!(
                "a thread was stopped for {:.1} ms in total, for {} splits and their merges; {:.1} ms of \
                 that was waiting for a CPU",
                stopped as f64 / 1e6,
                self.splits,
                self.stop_wait_ns as f64 / 1e6
            ));
        }
        if self.images.iter().any(|image| image.sweeps > 0)
            && self.request.page_cost.origin.starts_with(cost_calibration::ASSUMED_PREFIX)
        {
            self.add_note(format!(
                "the cost of clearing an accessed bit is {}",
                self.request.page_cost.origin
            ));
        }
        if let CallInjector::Supervisor(supervisor) = &self.injector {
            // Its other notes are about huge pages, and there are none.
            let is_limit = |note: &String| LIMIT_NOTE_WORDS.iter().any(|limit| note.contains(limit));
            let limits: Vec<String> = supervisor.notes().into_iter().filter(is_limit).collect();
            let left_running = supervisor.program_exit().map_or(0, |_| supervisor.count_processes());
            limits.into_iter().for_each(|note| self.add_note(note.replace("--no-tracer", "--no-supervise")));
            if left_running > 0 {
                self.add_note(format!(
                    "{left_running} processes that the program left running are killed when pagelab exits; \
                     hint: use --no-supervise to keep them running"
                ));
            }
        }
    }

    /// What ended the profile: a process that runs on has not exited.
    pub(super) fn end_phrase(&self) -> &'static str {
        if self.is_outlived { "the profile ended" } else { "the program exited" }
    }

    /// The way to a source that sees every access. It cannot attach to a running process.
    pub(super) fn exact_hint(&self) -> &'static str {
        match self.request.target {
            ProfileTarget::Command(_) => "--source exact",
            ProfileTarget::Process(_) => "--source exact -- COMMAND",
        }
    }

    /// Why there is no scan, and which memory is scanned. Memory that was never written may have been too.
    fn explain_no_sweep(&self, is_scanned: bool) -> String {
        let large = self.images.iter().filter(|image| image.growth.resident_max >= RESIDENT_MIN);
        let Some((image, permille)) = large
            .max_by_key(|image| image.account.lifetime)
            .zip(slow_down_permille(self.request.duty_permille))
        else {
            let (end, exact) = (self.end_phrase(), self.exact_hint());
            return format!(
                "no scan: {end} first, or the program never had 4 MiB resident; hint: use {exact}"
            );
        };
        let (resident, account) = (image.growth.resident_max, &image.account);
        let sweep_cost =
            account.expected_sweep_cost(resident / self.page.bytes(), resident / self.huge, Duration::ZERO);
        let lifetime = account.lifetime.as_secs_f64();
        // In whole percents, twice as much as one sweep needs.
        let share = sweep_cost.as_secs_f64() / lifetime.max(1e-9);
        let duty = (share * 200.0 * f64::from(DUTY_PERMILLE) / f64::from(SLOW_DOWN_PERMILLE)).ceil();
        let duty = duty.max((f64::from(self.request.duty_permille) / 5.0).ceil());
        let duty = if duty < 100.0 { duty } else { 100.0 };
        let begin = match is_scanned {
            true => "written memory was not scanned",
            false => "no scan",
        };
        let ran = if self.is_outlived { "was profiled" } else { "ran" };
        let (longer, exact) = (if self.is_outlived { "profile" } else { "run" }, self.exact_hint());
        format!(
            "{begin}: the program {ran} for {lifetime:.1} s and had {} resident. One sweep costs it {:.1} ms \
             here, {:.0} ns per page. The limits are {:.1} % of the program's time and {:.1} % of the time \
             for pagelab; hint: {longer} longer, or use --duty {duty}% or {exact}",
            format_bytes(Bytes(resident)),
            sweep_cost.as_secs_f64() * 1e3,
            account.page_ps as f64 / 1e3,
            f64::from(permille) / 10.0,
            f64::from(self.request.duty_permille) / 10.0,
        )
    }

    fn report_order_certainty(&mut self, swept_totals: &[SweptTotal]) {
        let swept = swept_totals.iter().flat_map(|total| &total.regions);
        let swept = swept.map(|region| (region.walks, region.share_error));
        let scanned = self.images.iter().flat_map(SweptImage::scanned_walks);
        let uncertain = UncertainRanks::from_regions(swept.chain(scanned));
        if let Some(note) = uncertain.describe(self.exact_hint()) {
            self.add_note(note);
        }
    }
}
