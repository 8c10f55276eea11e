//! Benchmark of `pagelab record --maps`: the size of maps of this machine's memory.
//!
//! Prints one JSON line for each bar on stdout. Maps of the whole machine are taken by the recorder's own
//! scan, 60 s apart (`PAGELAB_BENCH_MAPS_EVERY_S`), and encoded as a recording encodes them: first without
//! anything but this bench at work, then while a build loop runs: `cargo build -p pagelab-metrics` from
//! nothing into a folder in `$TMPDIR`, again and again, the folder removed before each. Beside the bars it
//! prints on stderr what each map took.
//!
//! `maps_day_mb` extrapolates: a day of one map a minute is 1440 maps, of which every 60th is a key frame, so
//! 24 times the mean key frame and 1416 times the mean delta, on 24 GiB: scaled by what the maps
//! cover to 24 GiB; `maps_build_day_mb` is the same under the build loop. `maps_delta_ratio_build` compares
//! the bytes of the deltas with those of key frames of the same maps.

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagelab_host::census::CensusOptions;
use pagelab_host::page_map::scan_page_map;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::PageMap;
use pagelab_runfile::MapEncoder;

/// Maps of which the first is a key frame and the others deltas, in each of the two parts.
const IDLE_MAPS: usize = 3;
const BUILD_MAPS: usize = 4;
/// Of the library that deltas are compared with.
const ZSTD_LEVEL: i32 = 19;
/// Memory size of the simulated day.
const REFERENCE_BYTES: f64 = (24_u64 << 30) as f64;
/// Maps of a day: so many key frames, so many deltas.
const FRAMES_PER_DAY: (f64, f64) = (24.0, 1416.0);

fn main() -> Result<(), Box<dyn Error>> {
    let every_s = match std::env::var("PAGELAB_BENCH_MAPS_EVERY_S") {
        Ok(text) => text.parse()?,
        Err(_) => 60,
    };
    let every = Duration::from_secs(every_s);
    let idle = measure_series("idle", IDLE_MAPS, every)?;
    let build = {
        let _load = BuildLoad::start()?;
        thread::sleep(every);
        measure_series("build", BUILD_MAPS, every)?
    };
    let day = |part: &MapSizes| {
        (FRAMES_PER_DAY.0 * part.key + FRAMES_PER_DAY.1 * part.delta) * REFERENCE_BYTES / part.bytes / 1e6
    };
    let idle_how = format!(
        "{IDLE_MAPS} maps {every_s} s apart, nothing but this at work: key {:.0} B, delta {:.0} B; 24 keys \
         and 1416 deltas",
        idle.key, idle.delta
    );
    print_bar("maps_day_mb", "MB", day(&idle), &idle_how);
    let build_how = format!(
        "{BUILD_MAPS} maps {every_s} s apart under builds of pagelab-metrics from nothing: key {:.0} B, \
         delta {:.0} B",
        build.key, build.delta
    );
    print_bar("maps_build_day_mb", "MB", day(&build), &build_how);
    let plain_how =
        format!("{build_how}; a byte a page by zstd, level {ZSTD_LEVEL}, each alone: {:.0} B", build.plain);
    print_bar("maps_delta_zstd_ratio_build", "ratio", build.delta / build.plain, &plain_how);
    print_bar("maps_delta_ratio_build", "ratio", build.delta / build.key, &build_how);
    Ok(())
}

/// Mean bytes over the maps of a part.
struct MapSizes {
    /// Of a map as a key frame and as a delta, over the maps that have one before them.
    key: f64,
    delta: f64,
    /// Of a byte a page, packed by a library that knows nothing of maps.
    plain: f64,
    /// Memory in a map.
    bytes: f64,
}

fn measure_series(part: &str, maps: usize, every: Duration) -> Result<MapSizes, Box<dyn Error>> {
    let mut encoder = MapEncoder::default();
    let (mut keys, mut deltas, mut plain, mut bytes) = (0, 0, 0, 0.0);
    let began = Instant::now();
    for number in 0..maps {
        thread::sleep((every * number as u32).saturating_sub(began.elapsed()));
        let map = scan_map()?;
        let key = MapEncoder::default().encode_map(&map)?.packed_bytes();
        let delta = encoder.encode_map(&map)?.packed_bytes();
        let _ = writeln!(io::stderr(), "{part} {number}: key {key} B, as it is recorded {delta} B");
        bytes = map.layout.count_frames() as f64 * map.layout.page_size.bytes() as f64;
        if number > 0 {
            let classes: Vec<u8> = map.classes.iter().map(|&class| class as u8).collect();
            plain += zstd::bulk::compress(&classes, ZSTD_LEVEL)?.len();
            (keys, deltas) = (keys + key, deltas + delta);
        }
    }
    let each = (maps - 1) as f64;
    let of = |sum: f64| sum / each;
    Ok(MapSizes { key: of(keys as f64), delta: of(deltas as f64), plain: of(plain as f64), bytes })
}

fn scan_map() -> Result<PageMap, Box<dyn Error>> {
    let root = Root::live();
    let reader = Reader::new(&root);
    let options = CensusOptions { threads: 1, ..CensusOptions::for_page_map(&reader, None).0 };
    scan_page_map(&reader, &options)
        .map_err(|absence| format!("{}: {}", absence.source, absence.reason()).into())
}

/// A build again and again, until it is dropped.
struct BuildLoad {
    stop: Arc<AtomicBool>,
    builds: Option<thread::JoinHandle<()>>,
    folder: PathBuf,
}

impl BuildLoad {
    fn start() -> io::Result<BuildLoad> {
        let folder = std::env::temp_dir().join(format!("pagelab-bench-maps-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let ends = Arc::new(AtomicBool::new(false));
        let (asked, target) = (Arc::clone(&ends), folder.clone());
        let builds = thread::spawn(move || {
            while !asked.load(Ordering::Relaxed) && run_build(&target, &asked).is_ok() {
                let _ = std::fs::remove_dir_all(&target);
            }
        });
        Ok(BuildLoad { stop: ends, builds: Some(builds), folder })
    }
}

impl Drop for BuildLoad {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(builds) = self.builds.take() {
            let _ = builds.join();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// One build, aborted on request.
fn run_build(target: &Path, stop: &AtomicBool) -> io::Result<()> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--offline", "-p", "pagelab-metrics", "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    while cargo.try_wait()?.is_none() {
        if stop.load(Ordering::Relaxed) {
            cargo.kill()?;
            cargo.wait()?;
            break;
        }
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

fn print_bar(bar: &str, unit: &str, value: f64, method: &str) {
    let _ =
        writeln!(io::stdout(), r#"{{"bar":"{bar}","value":{value:.4},"unit":"{unit}","how":"{method}"}}"#);
}
