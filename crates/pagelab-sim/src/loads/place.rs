//! Where a load runs: the zones of a machine.

use pagelab_model::units::Bytes;

use crate::layout::{Layout, LayoutZone};
use crate::machine::{Config, Heights, Release, Tuning};
use crate::marks::{RATIO_DMA, RATIO_NORMAL, min_free_kib};
use crate::percpu::Keep;
use crate::study::Spec;
use crate::words::{Frame, Wrong};

/// A machine to run on.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The order of a huge page.
    pub(super) huge: u8,
    /// Pages that one page table maps.
    pub(super) table_span: u32,
    /// Page tables of a program as it starts: text, libraries (two), heap, stack; on 64 bits also those above
    /// them, for low and for high addresses.
    pub(super) tables: u32,
    /// Whether words have 64 bits: objects of the kernel are larger.
    pub(super) is_64: bool,
    /// The order of a stack in the kernel.
    pub(super) stack_order: u8,
    /// Frames of a section of memory that can be taken offline.
    pub(super) section: u32,
    /// Huge pages that its memory could be at most, and as many attempts are made.
    pub(super) possible: u32,
    /// Frames in all.
    pub(super) frames: u64,
    /// The kernel that runs it.
    pub(super) tuning: Tuning,
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Bytes of a base page on all of these machines.
const PAGE: u64 = 4 << 10;

fn frames(mib: u64) -> Frame {
    (mib * MIB / PAGE) as Frame
}

/// The machine of an experiment.
pub(super) fn place(spec: &Spec) -> Result<(Config, Place), Wrong> {
    let (layout, place, keep) = match spec.machine.as_str() {
        "x86" => x86(spec)?,
        "ppc64" => ppc64(spec)?,
        size => sized(spec, size)?,
    };
    let tuning = if spec.scheme.is_proactive { place.tuning.proactive() } else { place.tuning };
    let frames = layout.frames();
    let mut zones = layout.setups();
    spec.scheme.besides.give(&mut zones, &layout.heights, (tuning.release, spec.seed))?;
    let config = Config {
        zones,
        heights: layout.heights,
        keep,
        reclaim: spec.scheme.reclaim,
        keeps_referenced: spec.scheme.keeps_referenced,
        compacts: spec.scheme.compacts,
        swap_frames: u32::try_from(2 * frames).unwrap_or(u32::MAX),
    };
    Ok((
        config,
        Place { frames, possible: place.possible.min((frames >> place.huge) as u32), tuning, ..place },
    ))
}

/// Per-CPU lists of zones of 512 MiB and more (`zone_batchsize`), of Linux 2.6.16.
const KEEP_OLD: Keep = Keep::batches(4, 31, 186);

/// What machines of 64 bits have in common.
const WIDE: Place = Place {
    huge: 0,
    table_span: 512,
    tables: 9,
    is_64: true,
    stack_order: 2,
    section: 0,
    possible: u32::MAX,
    frames: 0,
    tuning: Tuning::of(Release::V6_1),
};

/// The kernel of the paper. The authors' script for the pool sets swappiness to 100, and leaves it so.
fn old() -> Tuning {
    Tuning { swappiness: 100, ..Tuning::of(Release::V2_6_16) }
}

/// The paper's x86 machine: 1536 MiB, of which 18 are taken at boot for good: the kernel's image in the first
/// block of DMA, page descriptors (12 MiB) in the first three of Normal. Its tables show that they lie
/// below: of the memory above 1024 MiB 127 huge pages were got, and 1518 - 1024 MiB would be 123.
fn x86(spec: &Spec) -> Result<(Layout, Place, Keep), Wrong> {
    let end = frames(1536);
    let soft = soft(spec, 1024, frames(28), end, 10)?;
    let normal = frames(896).min(soft);
    let cuts = [
        ("DMA", 0, frames(4), frames(16)),
        ("Normal", 1, frames(28), normal),
        ("HighMem", 2, normal, soft),
        ("EasyRclm", 3, soft, end),
    ];
    let heights = Heights { kernel: 1, page_tables: 2, user: 3 };
    let layout = layout(&cuts, 10, &[RATIO_DMA, RATIO_NORMAL, RATIO_DMA, 0], heights);
    let tuning = old();
    let section = frames(64);
    // Its MemTotal of 1554364 KiB in whole huge pages, as the authors' script counts.
    let possible = 379;
    let place = Place {
        huge: 10,
        table_span: 1024,
        tables: 5,
        is_64: false,
        stack_order: 1,
        section,
        possible,
        frames: 0,
        tuning,
    };
    Ok((layout, place, KEEP_OLD))
}

/// The paper's PPC64 machine: 4 GiB, of which 77 MiB are taken at boot: 251 blocks of 16 MiB remain.
fn ppc64(spec: &Spec) -> Result<(Layout, Place, Keep), Wrong> {
    let end = frames(4 << 10);
    let soft = soft(spec, 2048, frames(80), end, 12)?;
    let cuts = [("DMA", 0, frames(80), soft), ("EasyRclm", 1, soft, end)];
    let heights = Heights { kernel: 0, page_tables: 0, user: 1 };
    let layout = layout(&cuts, 12, &[RATIO_DMA, 0], heights);
    let tuning = old();
    let section = frames(16);
    let place = Place { huge: 12, section, tuning, ..WIDE };
    Ok((layout, place, KEEP_OLD))
}

/// A machine of today. What is above `kernelcore`, or half, is movable where the scheme wants such a zone.
fn sized(spec: &Spec, text: &str) -> Result<(Layout, Place, Keep), Wrong> {
    let bytes = bytes(text)?;
    let layout = match spec.kernelcore {
        _ if !spec.scheme.movable_zone => Layout::x86_64(Bytes(bytes), 1, 0)?,
        None => Layout::x86_64(Bytes(bytes), 1, 50)?,
        Some(core) if core > 0 && core <= bytes => Layout::x86_64_core(Bytes(bytes), Bytes(core))?,
        Some(core) => return Err(refused(core, 0, bytes)),
    };
    let tuning = Tuning::of(Release::V6_1);
    let section = frames(128);
    let place = Place { huge: 9, section, tuning, ..WIDE };
    Ok((layout, place, Keep::batches(4, 63, 378)))
}

/// Where the zone for movable pages begins; the end where there is none.
fn soft(spec: &Spec, usual_mib: u64, least: Frame, end: Frame, block: u8) -> Result<Frame, Wrong> {
    if !spec.scheme.movable_zone {
        return Ok(end);
    }
    let core = spec.kernelcore.unwrap_or(usual_mib * MIB);
    let core_frames = (core / PAGE).next_multiple_of(1 << block);
    if core_frames <= u64::from(least) || core_frames > u64::from(end) {
        return Err(refused(core, u64::from(least) * PAGE, u64::from(end) * PAGE));
    }
    Ok(core_frames as Frame)
}

fn refused(core: u64, least: u64, most: u64) -> Wrong {
    let (least, most) = (least / MIB, most / MIB);
    let core = match core {
        core if core % GIB == 0 => format!("{} GiB", core / GIB),
        core if core % MIB == 0 => format!("{} MiB", core / MIB),
        core => format!("{core} bytes"),
    };
    Wrong::Shape(format!("kernelcore of {core}: wanted is more than {least} MiB, up to {most} MiB"))
}

/// Bytes of a size such as `16G`.
fn bytes(text: &str) -> Result<u64, Wrong> {
    let wrong = |why: &str| {
        Err(Wrong::Shape(format!(
            "machine {text}: {why}; machines are x86, ppc64, or a size from 64M to 8T, as 16G"
        )))
    };
    let Some((at, unit)) = text.char_indices().last() else { return wrong("no name") };
    let unit: u64 = match unit {
        'K' => 1 << 10,
        'M' => 1 << 20,
        'G' => 1 << 30,
        'T' => 1 << 40,
        _ => return wrong("not known"),
    };
    let Ok(number) = text[..at].parse::<u64>() else { return wrong("not known") };
    match number.checked_mul(unit) {
        Some(bytes) if bytes > 8 << 40 => wrong("too large"),
        Some(bytes) if bytes < 64 * MIB => wrong("too small"),
        Some(bytes) => Ok(bytes),
        None => wrong("too large"),
    }
}

/// A layout of Linux 2.6.16 from zones with height, first frame and end.
fn layout(cuts: &[(&'static str, u8, Frame, Frame)], order: u8, ratios: &[u64], heights: Heights) -> Layout {
    let cuts = cuts.iter().filter(|cut| cut.2 < cut.3);
    let zones = cuts.map(|&(name, height, first, end)| LayoutZone {
        name,
        node: 0,
        height,
        first,
        frames: end - first,
    });
    let zones: Vec<LayoutZone> = zones.collect();
    let low = zones.iter().filter(|zone| zone.height <= heights.kernel);
    let low_kib = low.map(|zone| u64::from(zone.frames) * PAGE / 1024).sum();
    Layout {
        page_bytes: PAGE,
        zones,
        max_order: order,
        block_order: order,
        ratios: ratios.to_vec(),
        heights,
        min_free: min_free_kib(low_kib).min(64 << 10) * 1024 / PAGE,
        // Up to 4.5 the marks lay a quarter of the minimum apart.
        scale: 0,
    }
}
