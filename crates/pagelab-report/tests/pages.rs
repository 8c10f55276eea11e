//! Pages of every kind for the browser tests of `web/`, written to the directory in PAGELAB_PAGES, and
//! checked here as text.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail where they stand")]

#[path = "../src/checkup/tests/example.rs"]
mod example;
#[path = "../src/run/tests/experiment.rs"]
mod experiments;
#[path = "pages/sim.rs"]
mod sim;

use std::path::PathBuf;

use pagelab_model::experiment::{Experiment, Flag};
use pagelab_model::page_map::{MemoryBlock, PageMapZone};
use pagelab_model::probe::AccessPoint;
use pagelab_model::run::*;
use pagelab_model::snapshot::Problem;
use pagelab_model::*;
use pagelab_report::html::map_page::{self, PageContext};
use pagelab_report::html::maps::{MAPS_MAX, MapPicture, RunMaps, choose_maps};
use pagelab_report::html::{POINTS_MAX, render_page};
use pagelab_report::memory_picture::colour_scheme::ColourScheme;
use pagelab_report::memory_picture::drawing::Drawing;
use pagelab_report::memory_picture::pixel_path::PixelLayout;
use pagelab_report::memory_picture::raster::{PixelBlend, RasterOptions, rasterize};

/// What no name may do: end an element, open one, run, or move a terminal's cursor.
const HOSTILE: &str = "</script></noscript></title><script>alert(1)</script><img src=x onerror=alert(2)> \
    \"'`&amp; <!--pagelab:data--> \u{1b}[2J\0 \u{202e}evil javascript:alert(3)";

/// Looks at a page as text and leaves it for the browser.
fn save_page(name: &str, runs: &[Run]) -> String {
    save_html(name, render_page(runs, &[]).unwrap())
}

fn save_html(name: &str, html: String) -> String {
    // The page's own program, and one block for the document and for each array.
    assert_eq!(html.matches("<script>").count(), 1, "{name}");
    let blocks = html.matches("<script type=\"application/octet-stream\"").count();
    assert_eq!(html.matches("</script>").count(), blocks + 1, "{name}");
    assert!(!html.contains("<!--pagelab:"), "{name}: a place was left open");
    if let Some(folder) = std::env::var_os("PAGELAB_PAGES") {
        std::fs::write(PathBuf::from(folder).join(format!("{name}.html")), &html).unwrap();
    }
    html
}

fn run(kind: &str, snapshot: Option<Snapshot>) -> Run {
    let of = snapshot.clone().unwrap_or_else(example::example);
    let manifest = Manifest {
        kind: kind.to_owned(),
        tool_version: "0.1.0".to_owned(),
        command_line: ["pagelab", kind, "--seed", "7"].map(str::to_owned).to_vec(),
        seed: Some(7),
        started: ClockReading { realtime_ns: 1_790_000_000_000_000_000, boottime_ns: 7_384_000_000_000 },
        machine: of.machine,
        settings: of.settings,
    };
    let run = Run::new(format!("{kind}-7.pagelab"), manifest, RunEnd::Complete { after_ns: 600_000_000_000 });
    Run { snapshot: snapshot.map(Box::new), ..run }
}

/// A seeded generator, good enough for a picture.
struct Noise(u64);

impl Noise {
    fn next_below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    /// A walk from `start` by steps of at most `step`, never below zero.
    fn random_walk(&mut self, length: usize, start: i64, step: u64) -> Vec<Option<i64>> {
        let mut value = start;
        let mut walk = Vec::with_capacity(length);
        for _ in 0..length {
            let (up, down) = (self.next_below(step) as i64, self.next_below(step) as i64);
            value = (value + up - down).max(0);
            walk.push(Some(value));
        }
        walk
    }

    /// A counter that grows by at most `step` at a time.
    fn counter(&mut self, length: usize, step: u64) -> Vec<Option<i64>> {
        let mut value = 1_000_000;
        let mut grown = Vec::with_capacity(length);
        for _ in 0..length {
            value += self.next_below(step) as i64;
            grown.push(Some(value));
        }
        grown
    }
}

fn times(length: usize, every_ns: u64) -> Vec<u64> {
    (1..=length as u64).map(|at| at * every_ns).collect()
}

fn column(name: &str, unit: &str, is_counter: bool, values: ColumnValues) -> Column {
    Column { header: ColumnHeader { name: name.to_owned(), unit: unit.into(), is_counter }, values }
}

fn series(name: &str, at_ns: &[u64], columns: Vec<Column>) -> Series {
    Series { name: name.to_owned(), source: format!("/proc/{name}"), at_ns: at_ns.to_vec(), columns }
}

fn stream(
    name: &str,
    unit: &str,
    labels: &[(&str, &str)],
    at_ns: Vec<u64>,
    values: Vec<f64>,
) -> SampleStream {
    let labels = labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    SampleStream { header: StreamHeader { name: name.to_owned(), unit: unit.into(), labels }, at_ns, values }
}

/// Ten minutes at 10 Hz, with failed readings, constants, counters and events.
fn high_rate_recording() -> Run {
    const LENGTH: usize = 6000;
    let mut noise = Noise(7);
    let mut run = run("record", None);
    let at_ns = times(LENGTH, 100_000_000);
    let mut free = noise.random_walk(LENGTH, 8 << 30, 40 << 20);
    free[3000..3200].fill(None);
    let mut gigabytes = |n: i64| ColumnValues::Varying(noise.random_walk(LENGTH, n << 30, 30 << 20));
    let columns = vec![
        column("MemTotal", Unit::BYTES, false, ColumnValues::Constant(Some(25 << 30))),
        column("MemFree", Unit::BYTES, false, ColumnValues::Varying(free)),
        column("Cached", Unit::BYTES, false, gigabytes(9)),
        column("AnonPages", Unit::BYTES, false, gigabytes(4)),
        column("Slab", Unit::BYTES, false, gigabytes(1)),
        column("HugePages_Total", Unit::COUNT, false, ColumnValues::Constant(Some(0))),
        column("Zswap", Unit::BYTES, false, ColumnValues::Constant(None)),
    ];
    run.series.push(series("meminfo", &at_ns, columns));
    let names = ["pgfault", "pgalloc_normal", "thp_fault_alloc", "thp_fault_fallback", "compact_stall"];
    let steps = [9000, 30_000, 12, 3, 2];
    let mut columns: Vec<Column> = names
        .into_iter()
        .zip(steps)
        .map(|(name, step)| {
            column(name, Unit::COUNT, true, ColumnValues::Varying(noise.counter(LENGTH, step)))
        })
        .collect();
    for at in 0..30 {
        let values = ColumnValues::Varying(noise.random_walk(LENGTH, 5000, 90));
        columns.push(column(&format!("nr_gauge_{at}"), Unit::PAGES, false, values));
    }
    run.series.push(series("vmstat", &at_ns, columns));
    let few = ColumnValues::Varying(vec![Some(211), Some(214), None, Some(290), Some(611), Some(602)]);
    let columns = vec![column("F_u(9) Normal", Unit::PERMILLE, false, few)];
    run.series.push(series("fragmentation", &times(6, 100_000_000_000), columns));
    run.streams = streams(&mut noise);
    let event = |seconds: u64, kind: &str, text: &str| RunEvent {
        at_ns: seconds * 1_000_000_000,
        kind: kind.to_owned(),
        text: text.to_owned(),
    };
    run.events = vec![
        event(120, "warning", "something dropped the page cache"),
        event(310, "missed", "204 readings: the disk was full"),
    ];
    run.ending = RunEnd::Stopped { after_ns: 600_100_000_000, reason: "the disk is full".to_owned() };
    run.unknown_content = vec!["a table `profile` of a later version".to_owned()];
    run
}

/// What `record` writes: an hour at 5 s, with a missed stretch, a zone that is empty and one that goes away.
fn recording() -> Run {
    const LENGTH: usize = 700;
    let mut noise = Noise(11);
    let mut run = run("record", None);
    let at_ns: Vec<u64> =
        (0..LENGTH as u64).map(|at| (at + if at > 400 { 20 } else { 0 }) * 5_000_000_000).collect();
    let mut part = |from: usize, to: usize, zones: &[&str]| {
        let mut columns = Vec::new();
        for zone in zones {
            for order in 0..11u32 {
                let start = if *zone == "Movable" { 0 } else { 40_000 >> order };
                let values = match *zone {
                    "Movable" => ColumnValues::Constant(Some(0)),
                    "DMA" => ColumnValues::Constant(Some(i64::from(order == 10) * 3)),
                    _ => {
                        ColumnValues::Varying(noise.random_walk(to - from, start, (start as u64 / 20).max(2)))
                    }
                };
                columns.push(column(&format!("0/{zone}/{order}"), Unit::COUNT, false, values));
            }
        }
        run.series.push(series("buddyinfo", &at_ns[from..to], columns));
    };
    part(0, 500, &["DMA", "Normal", "Movable"]);
    part(500, LENGTH, &["DMA", "Normal"]);
    let mut walk =
        |start: i64, step: u64| ColumnValues::Varying(noise.random_walk(LENGTH, start << 20, step << 20));
    let columns = vec![
        column("MemTotal", Unit::BYTES, false, ColumnValues::Constant(Some(25 << 30))),
        column("MemFree", Unit::BYTES, false, walk(9000, 60)),
        column("Buffers", Unit::BYTES, false, ColumnValues::Constant(Some(200 << 20))),
        column("Cached", Unit::BYTES, false, walk(6000, 60)),
        column("SwapCached", Unit::BYTES, false, ColumnValues::Constant(Some(0))),
    ];
    run.series.push(series("meminfo", &at_ns, columns));
    let steps =
        [("pgfault", 900_000), ("pgmajfault", 40), ("thp_fault_alloc", 300), ("thp_fault_fallback", 30)];
    let more = [("compact_stall", 3), ("pgmigrate_success", 4000), ("pgscan_kswapd", 9000)];
    let counters = steps.into_iter().chain(more).map(|(name, step)| {
        column(name, Unit::COUNT, true, ColumnValues::Varying(noise.counter(LENGTH, step)))
    });
    let mut columns: Vec<Column> = counters.collect();
    columns.push(column("pgscan_direct", Unit::COUNT, true, ColumnValues::Constant(Some(0))));
    run.series.push(series("vmstat", &at_ns, columns));
    let lines = [("memory.some", 90_000), ("memory.full", 20_000), ("cpu.some", 900_000)];
    let columns = lines.into_iter().map(|(line, step)| {
        column(
            &format!("{line}.total"),
            Unit::MICROSECONDS,
            true,
            ColumnValues::Varying(noise.counter(LENGTH, step)),
        )
    });
    run.series.push(series("pressure", &at_ns, columns.collect()));
    let event = |seconds: u64, kind: &str, text: &str| RunEvent {
        at_ns: seconds * 1_000_000_000,
        kind: kind.to_owned(),
        text: text.to_owned(),
    };
    run.events = vec![event(2005, "missed", "20 ticks"), event(2600, "shape", "zone Movable went away")];
    run
}

/// What `import` writes: buddyinfo alone, a few readings, and a machine of which nearly unknown.
fn imported_run() -> Run {
    let mut run = recording();
    let unread = Snapshot::new_unread("the imported files", PageSize::DEFAULT);
    run.manifest = Manifest {
        kind: "import".to_owned(),
        started: ClockReading { boottime_ns: 0, ..run.manifest.started },
        machine: unread.machine,
        settings: unread.settings,
        ..run.manifest
    };
    run.series.truncate(2);
    run.events = vec![RunEvent { at_ns: 0, kind: "import".to_owned(), text: "times: a test".to_owned() }];
    run.name = "import-7.pagelab".to_owned();
    run
}

fn streams(noise: &mut Noise) -> Vec<SampleStream> {
    let mut streams = Vec::new();
    let kinds = [("base", "67108864"), ("huge", "67108864"), ("base", "1073741824")];
    for (at, (variant, bytes)) in kinds.into_iter().enumerate() {
        let value = |_| 80.0 + 60.0 * at as f64 + noise.next_below(300) as f64 / 10.0;
        let values: Vec<f64> = (0..200).map(value).collect();
        let labels = [("variant", variant), ("bytes", bytes)];
        streams.push(stream("access time", Unit::NANOSECONDS, &labels, times(200, 3_000_000_000), values));
    }
    streams.push(stream("one", Unit::BYTES, &[], vec![5], vec![4096.0]));
    streams.push(stream("none", "furlongs", &[], Vec::new(), Vec::new()));
    streams
}

/// Two columns of this length, and a stream.
fn points(length: usize, samples: usize) -> Run {
    let mut noise = Noise(1);
    let mut run = run("record", None);
    let mut walk = || ColumnValues::Varying(noise.random_walk(length, 8 << 30, 1 << 20));
    let columns =
        vec![column("MemFree", Unit::BYTES, false, walk()), column("Cached", Unit::BYTES, false, walk())];
    run.series.push(series("meminfo", &times(length, 1_000_000), columns));
    if samples > 0 {
        let values: Vec<f64> =
            (0..samples).map(|_| 90.0 + noise.next_below(100_000) as f64 / 1000.0).collect();
        run.streams.push(stream("latency", Unit::NANOSECONDS, &[], times(samples, 2_000_000), values));
    }
    run
}

/// A zone as fragmented as servers become.
fn zone(noise: &mut Noise, node: u32, first: u64, blocks: u64) -> CensusZone {
    let mut block = |at: u64| {
        let mut counts = PageblockCounts::default();
        let mut left = 512;
        let mut put = |class: PageClass, wanted: u64| {
            let pages = (wanted as u32).min(left);
            counts.0[class.index()] += pages;
            left -= pages;
        };
        match noise.next_below(10) {
            0..2 => put(PageClass::Slab, 1 + noise.next_below(300)),
            2 => put(PageClass::AnonHuge, 512),
            3 if at % 4096 > 2000 => put(PageClass::PageTable, 1 + noise.next_below(40)),
            _ => {}
        }
        put(PageClass::Anon, noise.next_below(400));
        put(PageClass::File, noise.next_below(300));
        put(PageClass::Free, 512);
        (at, counts)
    };
    let counted: Vec<(u64, PageblockCounts)> = (0..blocks).map(&mut block).collect();
    let is_whole = |(at, counts): &&(u64, PageblockCounts)| {
        counts.pages_of_class(PageClass::AnonHuge) == 512 && at % 3 > 0
    };
    CensusZone {
        key: ZoneKey { node: NodeId(node), zone: "Normal".to_owned() },
        first: Pfn(first),
        blocks_total: blocks,
        one_folio: counted.iter().filter(is_whole).map(|(at, _)| *at).collect(),
        blocks: counted,
        free_blocks: None,
        per_cpu: None,
    }
}

/// A machine of 256 GiB on two nodes: more blocks than a screen has room for.
fn large() -> Snapshot {
    let mut noise = Noise(3);
    let zones = vec![zone(&mut noise, 0, 1 << 20, 65_536 - 2048), zone(&mut noise, 1, 1 << 27, 65_536)];
    let mut snapshot = example::example();
    let scan_ns = 7_900_000_000;
    let (pageblock_order, coverage) = (Order(9), Coverage::Whole);
    snapshot.census = Ok(Census { pageblock_order, zones, coverage, free_blocks: None, scan_ns });
    snapshot
}

fn sampled() -> Snapshot {
    let mut snapshot = example::example();
    let plan = SamplePlan { seed: 42, blocks: 100, blocks_total: 1000 };
    let mut census = example::census(Coverage::Sample(plan));
    census.zones[0].blocks.iter_mut().for_each(|(at, _)| *at = *at * 10 + *at % 7);
    snapshot.census = Ok(census);
    let mut probe = example::probe(Bytes(64 << 20));
    if let Ok(access) = &mut probe.access {
        let point = |half_powers: u32, ps: u64| AccessPoint {
            size: Bytes((f64::from(half_powers) / 2.0).exp2() as u64),
            ps_per_access: vec![ps, ps + ps / 9, ps - ps / 20],
            huge_backed: Ok(Bytes(0)),
        };
        let curve = |slope: u64| (36..53).map(move |at| point(at, 6000 + slope * u64::from(at - 36).pow(2)));
        (access.base_curve, access.huge_curve) = (curve(700).collect(), curve(400).skip(6).collect());
    }
    snapshot.probe = Some(probe);
    snapshot
}

/// Every name that a stranger may choose says [`HOSTILE`].
fn hostile() -> Run {
    let evil = || HOSTILE.to_owned();
    let mut snapshot = sampled();
    snapshot.machine.host_name = Some(evil());
    snapshot.machine.kernel_cmdline = Ok(evil());
    snapshot.machine.kernel_release = Ok(evil());
    snapshot.taken.source = evil();
    snapshot.problems = vec![Problem { message: evil(), is_bad_input: true }];
    snapshot.pressure = Err(Absence::new(HOSTILE, AbsenceReason::Failed, HOSTILE).with_hint(HOSTILE));
    if let Ok(coverage) = &mut snapshot.processes {
        coverage.processes.iter_mut().for_each(|process| process.name = Some(evil()));
    }
    if let Ok(log) = &mut snapshot.alloc_failures {
        log.reports.iter_mut().for_each(|report| (report.process, report.detail) = (evil(), evil()));
    }
    if let Ok(buddy) = &mut snapshot.buddyinfo {
        buddy.zones.iter_mut().for_each(|zone| zone.key.zone = evil());
    }
    if let Ok(census) = &mut snapshot.census {
        census.zones.iter_mut().for_each(|zone| zone.key.zone = evil());
    }
    let mut run = high_rate_recording();
    run.name = evil();
    run.manifest.machine.host_name = Some(evil());
    run.manifest.command_line = vec![evil(); 3];
    run.ending = RunEnd::Stopped { after_ns: 1, reason: evil() };
    run.unknown_content = vec![evil()];
    run.events.iter_mut().for_each(|event| (event.kind, event.text) = (evil(), evil()));
    run.streams.iter_mut().for_each(|stream| {
        (stream.header.name, stream.header.unit) = (evil(), HOSTILE.into());
        stream.header.labels = vec![(evil(), evil())];
    });
    run.series.iter_mut().for_each(|series| {
        (series.name, series.source) = (evil(), evil());
        series.columns.iter_mut().for_each(|column| {
            column.header.name = format!("{} {HOSTILE}", column.header.name);
            column.header.unit = HOSTILE.into();
        });
    });
    run.snapshot = Some(Box::new(snapshot));
    run.experiment = Some(Box::new(hostile_experiment()));
    run
}

/// A crossing of numbers in which every name is chosen by a stranger.
fn hostile_experiment() -> Experiment {
    let mut experiment = experiments::falling_limit_experiment();
    let plan = &mut experiment.plan;
    (plan.name, plan.question, plan.place, plan.recipe) =
        (HOSTILE.to_owned(), HOSTILE.to_owned(), HOSTILE.to_owned(), HOSTILE.to_owned());
    for workload in &mut plan.workloads {
        (workload.name, workload.generator) = (HOSTILE.to_owned(), HOSTILE.to_owned());
        workload.command = vec![HOSTILE.to_owned()];
    }
    for (at, variant) in plan.variants.iter_mut().enumerate() {
        variant.name = format!("{HOSTILE} {at}");
        let of = if at % 2 == 0 { HOSTILE } else { "other" };
        variant.settings.push((format!("a{HOSTILE}"), of.to_owned()));
        variant.settings.push((HOSTILE.to_owned(), format!("{}M", at + 1)));
    }
    for trial in &mut experiment.trials {
        trial.last_output = HOSTILE.to_owned();
        trial.flags.push(Flag { kind: HOSTILE.to_owned(), text: HOSTILE.to_owned() });
        for measure in trial.measures.iter_mut().filter(|of| of.name != "wall") {
            let head = std::sync::Arc::make_mut(&mut measure.head);
            (head.name, head.source) = (format!("{}{HOSTILE}", head.name), HOSTILE.to_owned());
            head.unit = HOSTILE.into();
        }
    }
    experiment
}

/// A machine of 4 GiB with a hole and two zones, `minute` minutes after its start: free memory is used up.
fn map(minute: u64, zone: &str) -> PageMap {
    let mut noise = Noise(minute);
    let frames = |first: u64, count: u64| FrameSpan { first: Pfn(first), count: Pages(count) };
    let spans = vec![frames(1, 0x9f), frames(0x100, 0x7_ff00), frames(0x10_0000, 0x8_0000)];
    let key = |zone: &str| ZoneKey { node: NodeId(0), zone: zone.to_owned() };
    let zones = vec![
        PageMapZone { key: key("DMA32"), frames: frames(1, 0x7_ffff) },
        PageMapZone { key: key(zone), frames: frames(0x10_0000, 0x8_0000) },
    ];
    let blocks = (0..48).filter(|at| !(16..32).contains(at));
    let blocks = blocks.map(|number| MemoryBlock {
        number,
        frames: frames(number << 15, 1 << 15),
        is_online: number != 40,
    });
    let layout = PageMapLayout {
        page_size: PageSize::DEFAULT,
        pageblock_order: Order(9),
        pmd_order: Order(9),
        blocks: blocks.collect(),
        spans,
        zones,
    };
    let kinds = [PageClass::Anon, PageClass::File, PageClass::AnonHuge, PageClass::Slab, PageClass::Reserved];
    let mut classes = Vec::new();
    let wanted = layout.count_frames() as usize;
    while classes.len() < wanted {
        let kind = kinds[noise.next_below(5) as usize];
        let is_used = noise.next_below(wanted as u64) < minute * 40_000;
        let run = (1 << noise.next_below(12)).min(wanted - classes.len());
        classes.extend(std::iter::repeat_n(if is_used { kind } else { PageClass::Free }, run));
    }
    PageMap {
        started_ns: minute * 60_000_000_000,
        ended_ns: minute * 60_000_000_000 + 31_000_000,
        layout,
        classes,
    }
}

/// A recording with this many maps, the last one after a change of the zones, and the maps for its page.
fn with_maps(count: u64, zone: &str) -> (Run, RunMaps) {
    let mut run = recording();
    run.maps =
        (0..count).map(|at| MapHeader { at_ns: at * 60_000_000_000, is_keyframe: at % 60 == 0 }).collect();
    let places = choose_maps(&run.maps, MAPS_MAX);
    let zone_at = |at: usize| if at + 1 == count as usize { "Movable" } else { zone };
    let pictures = places.iter().map(|&at| MapPicture::from_map(&map(at as u64, zone_at(at)))).collect();
    (run, RunMaps { pictures, problem: None })
}

#[test]
fn maps_of_recordings() {
    let (run, maps) = with_maps(40, "Normal");
    assert_eq!(maps.pictures.len(), 30);
    save_html("maps", render_page(&[run], &[maps]).unwrap());
    let (one, mut maps) = with_maps(1, "Normal");
    maps.problem = Some("one.pagelab: the map at 60000000000 ns: it is truncated".to_owned());
    let (evil, mut hostile) = with_maps(2, HOSTILE);
    hostile.problem = Some(HOSTILE.to_owned());
    let none = RunMaps { pictures: Vec::new(), problem: Some("it is truncated".to_owned()) };
    let runs = [one.clone(), evil, one, high_rate_recording()];
    let html = render_page(&runs, &[maps, hostile, none]).unwrap();
    assert!(!save_html("maps-several", html).to_lowercase().contains("<img"));
}

#[test]
fn a_picture_of_memory() {
    let map = map(7, "Normal");
    let around = |blend: PixelBlend, legend| PageContext {
        title: "Physical memory of nowhere",
        subtitle: &[],
        legend,
        blend,
        text: "no terminal",
    };
    let mut legend = vec![0; ColourScheme::Full.legend().len()];
    map.classes.iter().for_each(|class| legend[class.index()] += 1);
    let legend: Vec<(usize, u64)> = legend.into_iter().enumerate().collect();
    let scale = 4;
    for (name, layout, blend, grid) in [
        ("picture", PixelLayout::Rows, PixelBlend::Majority, false),
        ("picture-hilbert", PixelLayout::Hilbert, PixelBlend::Mix, true),
        ("picture-tiles", PixelLayout::Tiles, PixelBlend::Majority, false),
    ] {
        let drawing = Drawing::from_map(&map, ColourScheme::Full, Order(scale));
        let shape = RasterOptions { layout, pixel_order: Order(scale), width: None, blend, has_grid: grid };
        let raster = rasterize(&drawing, &shape).unwrap();
        save_html(name, map_page::render_page(&drawing, &raster, &around(blend, &legend)).unwrap());
    }
}

#[test]
fn looks_at_machines() {
    save_page("fragmented", &[run("checkup", Some(example::example()))]);
    save_page("healthy", &[run("checkup", Some(example::healthy()))]);
    save_page("sampled", &[run("checkup", Some(sampled()))]);
    save_page("nothing", &[run("checkup", Some(Snapshot::new_unread("nowhere", PageSize::DEFAULT)))]);
    save_page("large", &[run("checkup", Some(large()))]);
}

/// The run of an experiment.
fn experiment(name: &str, experiment: Experiment) -> Run {
    let mut run = run("run", None);
    run.name = format!("{name}.pagelab");
    run.experiment = Some(Box::new(experiment));
    run
}

#[test]
fn experiments_as_pages() {
    save_page(
        "experiment",
        &[
            experiment("thp", experiments::thp_modes_experiment()),
            experiment("report", experiments::paper_figures_experiment()),
        ],
    );
    save_page("experiment-crossing", &[experiment("mmap-lab", experiments::mapping_experiment())]);
    save_page("experiment-axis", &[experiment("memory-size", experiments::falling_limit_experiment())]);
}

#[test]
fn runs_over_time() {
    let mut killed = run("record", None);
    killed.ending = RunEnd::NotClosed;
    let recorded_page = save_page("recorded", &[high_rate_recording()]);
    assert!(recorded_page.contains(", record-7.pagelab</title>"), "host and file");
    killed.write_ahead_log =
        Some(WriteAheadLog { path: "/runs/record-7.pagelab-wal".to_owned(), is_present: false });
    killed.name = "/runs/killed.pagelab".to_owned();
    let several =
        save_page("several", &[run("checkup", Some(example::example())), high_rate_recording(), killed]);
    let title = "<title>pagelab: 3 runs: checkup-7.pagelab, record-7.pagelab, killed.pagelab</title>";
    assert!(several.contains(title));
    save_page("recording", &[recording()]);
    save_page("imported", &[imported_run()]);
    save_page("no-runs", &[]);
}

#[test]
fn nothing_that_a_machine_says_becomes_markup() {
    let html = save_page("hostile", &[hostile(), hostile()]);
    let lower = html.to_lowercase();
    for markup in ["<img", "<script>alert", "</title><", "\u{1b}", "\u{202e}"] {
        assert!(!lower.contains(markup), "{markup}");
    }
}

#[test]
fn a_million_values_are_in_the_page_and_more_are_shown_by_their_extremes() {
    let whole = save_page("million", &[points(POINTS_MAX / 2, 0)]);
    let less = save_page("decimated", &[points(POINTS_MAX * 6 / 10, POINTS_MAX / 10)]);
    // As many values in both; the larger one also has times of its own for each column.
    assert!(whole.len() < 16 << 20, "{} bytes", whole.len());
    assert!(less.len() < 24 << 20, "{} bytes", less.len());
}
