//! Profile from an account: the mapping of each page at the time of its counts.

use std::collections::HashMap;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use pagelab_model::profile::Program as ProgramFile;
use pagelab_model::profile::{
    CellCounts, ImageProfile, ImageStart, MappingProfile, MissScenario, ProfileSource, ProfilingCost,
    ReuseHistograms, SampledStretches, ScenarioPageSize,
};
use pagelab_model::size::format_bytes;
use pagelab_model::{Bytes, TlbProfile};
use pagelab_tlb::engine::account_layout::{BUCKETS, exit_kind, header, image, thread};
use pagelab_tlb::engine::geometry::{Geometry, PAGE_SIZES, UPPER_LEVELS};

use super::ExactProfileRequest;
use super::account::{BYTES_MAX, ImageRecord, SharedAccount};
use super::run::{EmulatedProgram, EmulationResult, path_from_bytes};
use crate::program;

use mapping_counts::{CountsByMapping, count_by_mapping};

mod mapping_counts;

/// The profile of a run.
pub fn build_profile(
    request: &ExactProfileRequest,
    program: &EmulatedProgram,
    result: &EmulationResult,
    account: &SharedAccount,
    images: &[ImageRecord],
    geometry: &Geometry,
) -> TlbProfile {
    let mut identities = HashMap::new();
    let mut profile = TlbProfile {
        source: ProfileSource::Exact,
        command: request.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        page_size: request.page_size,
        huge: request.huge,
        tlb: Some(request.tlb.clone()),
        walk_cost: None,
        images: Vec::new(),
        wall_ns: result.wall_ns,
        effort: ProfilingCost {
            cpu_ns: Some(result.rusage.utime_ns + result.rusage.stime_ns),
            stretches: request.window.map(|_| summarize_stretches(images)),
            ..ProfilingCost::default()
        },
        lost: 0,
        notes: Vec::new(),
        what_ifs: sum_scenarios(request, images, geometry),
        exit: Some(result.exit_code()),
    };
    for (index, image) in images.iter().enumerate() {
        let CountsByMapping { mappings, regions, advice } = count_by_mapping(request, images, index);
        let (start, parent) = find_origin(images, index);
        let (path, arguments) = match start {
            ImageStart::Forked => {
                let parent = parent.and_then(|parent| profile.images.get(parent));
                parent.map(|one| (one.program.clone(), one.arguments.clone())).unwrap_or_default()
            }
            _ => parse_program(&image.text, &mut identities),
        };
        let walks = thread::PASSES + thread::WALKS;
        let misses = (walks..walks + PAGE_SIZES as u64).map(|field| image.thread_sum(field)).sum();
        let mut image_profile = ImageProfile {
            pid: u32::try_from(image.field(image::PID)).unwrap_or(0),
            parent,
            begun: start,
            program: path,
            arguments,
            accesses: Some(image.thread_sum(thread::ACCESSES)),
            instructions: None,
            misses,
            mappings,
            advice: Some(advice),
        };
        let factor = ScaleFactor::from_image(image);
        factor.scale_image(&mut image_profile);
        profile.images.push(image_profile);
        for (pass, mut pass_regions) in regions.into_iter().enumerate() {
            if let Some(what_if) = profile.what_ifs.get_mut(pass) {
                for region in &mut pass_regions {
                    region.image = index as u32;
                    region.misses = factor.scale(region.misses);
                }
                what_if.regions.append(&mut pass_regions);
            }
        }
    }
    add_notes(&mut profile, program, result, account, images);
    limit_cells(&mut profile);
    profile
}

/// Start of an image, and its number then.
fn find_origin(images: &[ImageRecord], index: usize) -> (ImageStart, Option<usize>) {
    let image = &images[index];
    if image.field(image::START_KIND) == 1 {
        let parent = images[..index].iter().position(|other| other.position == image.field(image::PARENT));
        return (ImageStart::Forked, parent);
    }
    let is_same_process = |other: &ImageRecord| other.field(image::PID) == image.field(image::PID);
    match images[..index].iter().rposition(is_same_process) {
        Some(parent) => (ImageStart::Executed, Some(parent)),
        None => (ImageStart::Launched, None),
    }
}

/// The program and its arguments from the text of an image.
fn parse_program(text: &[u8], known: &mut HashMap<Vec<u8>, ProgramFile>) -> (ProgramFile, Vec<String>) {
    let text = text.strip_suffix(&[0]).unwrap_or(text);
    let mut words = text.split(|&byte| byte == 0).map(<[u8]>::to_vec);
    let path = words.next().unwrap_or_default();
    let program = known.entry(path).or_insert_with_key(|path| {
        let path = path_from_bytes(path);
        // As the kernel names it in the link `exe` of the process.
        program::identify_program(&path.canonicalize().unwrap_or(path))
    });
    let word = |word: Vec<u8>| std::ffi::OsString::from_vec(word).to_string_lossy().into_owned();
    (program.clone(), words.map(word).collect())
}

/// The sums of each pass, over all images.
fn sum_scenarios(
    request: &ExactProfileRequest,
    images: &[ImageRecord],
    geometry: &Geometry,
) -> Vec<MissScenario> {
    let names =
        std::iter::once("none".to_owned()).chain(request.what_ifs.iter().map(|(name, _)| name.clone()));
    let build_scenario = |(pass, name): (usize, String)| {
        let start = thread::PASSES + pass as u64 * thread::PASS;
        let sum = |field: u64| -> u64 {
            let image_sum = |image: &ImageRecord| {
                let words = image.threads.iter().filter_map(|words| words.get((start + field) as usize));
                ScaleFactor::from_image(image).scale(words.sum())
            };
            images.iter().map(image_sum).sum()
        };
        let mut sizes = Vec::new();
        for (code, &shift) in geometry.shifts.iter().enumerate() {
            let misses = sum(thread::WALKS + code as u64);
            if misses > 0 {
                let reuse = build_histogram(|bucket| sum(thread::REUSE + code as u64 * BUCKETS + bucket));
                sizes.push(ScenarioPageSize { page: Bytes(1 << shift), misses, reuse });
            }
        }
        let upper_reads: [u64; UPPER_LEVELS] =
            std::array::from_fn(|level| sum(thread::UPPER_READS + level as u64));
        let misses = sizes.iter().map(|size| size.misses).sum();
        MissScenario { name, misses, sizes, upper_reads, regions: Vec::new() }
    };
    names.enumerate().map(build_scenario).collect()
}

/// (log2 of the distance, walks) of all nonzero buckets; the plugin's last bucket has the first walks.
fn build_histogram(count: impl Fn(u64) -> u64) -> Vec<(u32, u64)> {
    let bucket_name =
        |bucket: u64| if bucket == BUCKETS - 1 { ReuseHistograms::FIRST_WALK_BUCKET } else { bucket as u32 };
    (0..BUCKETS).map(|bucket| (bucket_name(bucket), count(bucket))).filter(|&(_, walks)| walks > 0).collect()
}

/// Number of accesses that each counted access represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScaleFactor {
    all_accesses: u64,
    counted_accesses: u64,
}

impl ScaleFactor {
    /// That of an image, over its threads.
    pub fn from_image(image: &ImageRecord) -> ScaleFactor {
        let counted_accesses = image.thread_sum(thread::ACCESSES);
        let all_accesses = counted_accesses.saturating_add(image.thread_sum(thread::SKIPPED));
        ScaleFactor { all_accesses, counted_accesses }
    }

    /// Scales a count of the windows to the whole run, rounded.
    pub fn scale(self, count: u64) -> u64 {
        if self.counted_accesses == 0 || self.all_accesses == self.counted_accesses {
            return count;
        }
        let scaled =
            u128::from(count) * u128::from(self.all_accesses) + u128::from(self.counted_accesses / 2);
        u64::try_from(scaled / u128::from(self.counted_accesses)).unwrap_or(u64::MAX)
    }

    /// All counts of an image. Its accesses are all that there were.
    pub fn scale_image(self, image: &mut ImageProfile) {
        image.accesses = Some(self.all_accesses);
        image.misses = self.scale(image.misses);
        for mapping in &mut image.mappings {
            let cells = &mut mapping.cells;
            let walks = mapping.reuse.counts.iter_mut().flatten().map(|(_, count)| count);
            for count in cells.misses.iter_mut().chain(&mut cells.accesses).chain(walks) {
                *count = self.scale(*count);
            }
        }
    }
}

/// The sample of the counts of all images. The windows of a run are a sample of it: the error is that of the
/// mean of their misses.
fn summarize_stretches(images: &[ImageRecord]) -> SampledStretches {
    let threads = images.iter().flat_map(|image| &image.threads);
    let sum = |field: u64| images.iter().map(|image| image.thread_sum(field)).sum::<u64>();
    let squares: f64 = threads.map(|words| f64::from_bits(words[thread::WINDOW_SQUARES as usize])).sum();
    let (count, counted) = (sum(thread::WINDOWS), sum(thread::ACCESSES));
    let accesses = counted.saturating_add(sum(thread::SKIPPED));
    let error_permille = compute_error_permille(count, sum(thread::WINDOW_WALKS) as f64, squares);
    SampledStretches { count, counted, accesses, error_permille }
}

/// From the number of windows, the sum of their misses, and that of the squares.
fn compute_error_permille(count: u64, sum: f64, squares: f64) -> Option<u32> {
    if count < SampledStretches::MIN_FOR_ERROR || sum <= 0.0 {
        return None;
    }
    let number = count as f64;
    let mean = sum / number;
    let variance = (squares - number * mean * mean).max(0.0) / (number - 1.0);
    // Student's quantile of 97.5 % within 3 % from 4 degrees of freedom on.
    let freedom = number - 1.0;
    let quantile = 1.96 + 2.4 / freedom + 3.2 / (freedom * freedom);
    Some((quantile * (variance / number).sqrt() / mean * 1000.0).ceil() as u32)
}

/// Floating-point operations of a thousand accesses from which on a program is warned of.
const FLOAT_WARNING_PERMILLE: u64 = 100;

fn add_notes(
    profile: &mut TlbProfile,
    program: &EmulatedProgram,
    result: &EmulationResult,
    account: &SharedAccount,
    images: &[ImageRecord],
) {
    let stretches = profile.effort.stretches;
    let mut push_note = |note: String| profile.notes.push(note);
    push_note(
        "model: true LRU in each set, and page-walk caches assumed to hold 32 PDEs, 4 PDPTEs and 4 PML4Es; \
         kernel accesses, instruction fetches and prefetches are not observed; an access that crosses a page \
         boundary counts for its first page"
            .to_owned(),
    );
    push_note("QEMU has no AVX-512: libraries that use it elsewhere take other code paths here".to_owned());
    let accesses: u64 = images
        .iter()
        .map(|image| image.thread_sum(thread::ACCESSES) + image.thread_sum(thread::SKIPPED))
        .sum();
    if let Some(sampled) = stretches {
        push_note(describe_windows(&sampled));
    }
    let floats: u64 = images.iter().map(|one| one.field(image::FLOAT_OPERATIONS)).sum();
    let permille = u128::from(floats) * 1000 / u128::from(accesses).max(1);
    if permille >= u128::from(FLOAT_WARNING_PERMILLE) {
        push_note(format!(
            "floating point: {floats} operations, {permille} per 1000 accesses; QEMU emulates them in \
             software, 50 to 70 times slower; hint: use a smaller input, or --window"
        ));
    }
    let full = account.read_header(header::FAILED_ALLOCATIONS);
    if full > 0 {
        let unplaced: u64 = images.iter().map(|one| one.field(image::UNRECORDED_ACCESSES)).sum();
        push_note(format!(
            "the account is full ({}): {unplaced} accesses are counted in the totals only, not by region",
            format_bytes(Bytes(BYTES_MAX))
        ));
    }
    let lost = account.read_header(header::LOST_IMAGES);
    if lost > 0 {
        push_note(format!("{lost} processes were not observed: the account was full"));
    }
    let unmodelled: u64 = images.iter().map(|one| one.field(image::UNMODELLED_THREADS)).sum();
    if unmodelled > 0 {
        push_note(format!("{unmodelled} threads were not observed: more than 4096 at a time"));
    }
    for one in images {
        let is_native = one.field(image::EXIT_KIND) == exit_kind::NATIVE;
        if let Some(native) = one.native.as_ref().filter(|_| is_native) {
            let (pid, path) = (one.field(image::PID), path_from_bytes(native));
            push_note(format!(
                "process {pid} executed {}, which ran outside QEMU and was not observed; hint: profile it \
                 separately",
                path.display()
            ));
        }
    }
    note_running_processes(profile, images, result);
    note_set_id(profile, &program.path);
}

fn describe_windows(sampled: &SampledStretches) -> String {
    let permille = (sampled.counted_share() * 1000.0).round() as u64;
    let error = match sampled.error_permille {
        Some(error) => format!("± {}.{} % for all misses", error / 10, error % 10),
        None => "with unknown error".to_owned(),
    };
    format!(
        "counted {} of {} accesses ({}.{} %) in {} windows: counts are estimates, scaled to all \
         accesses, {error}",
        sampled.counted,
        sampled.accesses,
        permille / 10,
        permille % 10,
        sampled.count
    )
}

fn note_running_processes(profile: &mut TlbProfile, images: &[ImageRecord], result: &EmulationResult) {
    let is_running = |one: &&ImageRecord| {
        let pid = u32::try_from(one.field(image::PID)).unwrap_or(0);
        one.field(image::EXIT_KIND) == exit_kind::UNKNOWN
            && pid != result.pid
            && pagelab_sys::kernel_support::process_exists(pid)
    };
    let count = images.iter().filter(is_running).count();
    if count > 0 {
        profile.notes.push(format!(
            "{count} of its processes are still running: their later accesses are not observed"
        ));
    }
}

fn note_set_id(profile: &mut TlbProfile, path: &Path) {
    const SET_ID: u32 = 0o6000;
    let mode = std::fs::metadata(path).map(|meta| std::os::unix::fs::MetadataExt::mode(&meta));
    if mode.is_ok_and(|mode| mode & SET_ID != 0) {
        let note = "the program is set-user-ID or set-group-ID: under QEMU it runs with your own IDs";
        profile.notes.push(note.to_owned());
    }
}

/// Cells of a profile at most; beyond them cells are made larger. 4 Mi cells are 16 GiB of base pages.
const CELLS_MAX: usize = 4 << 20;
/// Growth factor of a cell.
const GRAIN_STEP: u64 = 16;

/// Makes cells larger until there are few enough, and adds a note.
fn limit_cells(profile: &mut TlbProfile) {
    let count_cells = |profile: &TlbProfile| -> usize {
        profile.images.iter().flat_map(|image| &image.mappings).map(|mapping| mapping.cells.at.len()).sum()
    };
    let pages = count_cells(profile);
    let mut grain = profile.page_size.bytes();
    while count_cells(profile) > CELLS_MAX && grain < profile.huge.0 {
        grain = (grain * GRAIN_STEP).min(profile.huge.0);
        let mappings = profile.images.iter_mut().flat_map(|image| &mut image.mappings);
        mappings.for_each(|mapping| enlarge_cells(mapping, grain));
    }
    if grain > profile.page_size.bytes() {
        let size = format_bytes(Bytes(grain));
        profile.notes.push(format!(
            "{pages} pages were touched, but a profile has at most {CELLS_MAX} cells: one cell covers {size}"
        ));
    }
}

fn enlarge_cells(mapping: &mut MappingProfile, grain: u64) {
    let factor = grain / mapping.grain.0.max(1);
    let old = std::mem::take(&mut mapping.cells);
    let mut new = CellCounts::default();
    for (index, at) in old.at.iter().enumerate() {
        if new.at.last() != Some(&(at / factor)) {
            new.at.push(at / factor);
            new.misses.push(0);
            new.accesses.push(0);
            new.written.push(0);
        }
        let last = new.at.len() - 1;
        new.misses[last] += old.misses[index];
        new.accesses[last] += old.accesses.get(index).copied().unwrap_or(0);
        new.written[last] |= old.written.get(index).copied().unwrap_or(0);
    }
    (mapping.cells, mapping.grain) = (new, Bytes(grain));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_stands_for_its_share_and_all_for_itself() {
        let part = ScaleFactor { all_accesses: 1000, counted_accesses: 20 };
        assert_eq!([0, 1, 7].map(|count| part.scale(count)), [0, 50, 350]);
        assert_eq!(ScaleFactor { all_accesses: 10, counted_accesses: 3 }.scale(2), 7, "6.67 is rounded");
        assert_eq!(ScaleFactor { all_accesses: 20, counted_accesses: 20 }.scale(7), 7);
        assert_eq!(ScaleFactor { all_accesses: 20, counted_accesses: 0 }.scale(7), 7, "nothing was counted");
    }

    #[test]
    fn the_error_is_that_of_the_mean_of_the_stretches() {
        // Mean 10, standard deviation 2.449 of 7; the quantile for 6 degrees of freedom is 2.447.
        let walks = [7.0, 8.0, 9.0, 9.0, 11.0, 12.0, 14.0];
        let squares: f64 = walks.iter().map(|walks| walks * walks).sum();
        let error = compute_error_permille(7, 70.0, squares).unwrap();
        assert!((220..=235).contains(&error), "{error}");
        assert_eq!(compute_error_permille(7, 70.0, 700.0), Some(0), "all alike");
        assert_eq!(compute_error_permille(4, 40.0, 420.0), None, "too few");
        assert_eq!(compute_error_permille(9, 0.0, 0.0), None, "no miss");
        for (number, known) in [(5u64, 2.776), (10, 2.262), (30, 2.045), (1000, 1.962)] {
            let freedom = number as f64 - 1.0;
            let ours = 1.96 + 2.4 / freedom + 3.2 / (freedom * freedom);
            assert!((ours / known - 1.0f64).abs() < 0.03, "{number}: {ours} for {known}");
        }
    }
}
