//! Machines of the loads: their zones.

use pagelab_model::size::{self, format_exact};
use pagelab_model::units::Bytes;

use crate::layout::{Layout, LayoutZone, MIB, PAGE_BYTES};
use crate::machine::{KernelTuning, MachineConfig, Release, ZoneLimits};
use crate::pcp::PcpConfig;
use crate::study::SimulationSpec;
use crate::types::{Error, Frame};
use crate::watermarks::{LOWMEM_RESERVE_RATIO_DMA, LOWMEM_RESERVE_RATIO_NORMAL, default_min_free_kib};

/// A machine that loads run on.
#[derive(Clone, Debug)]
pub(super) struct MachineModel {
    pub(super) huge_order: u8,
    /// Pages that one page table maps.
    pub(super) pages_per_table: u32,
    /// Page tables of a program as it starts: text, libraries (two), heap, stack; on 64 bits also those above
    /// them, for low and for high addresses.
    pub(super) initial_tables: u32,
    /// Whether it is a 64-bit machine: objects of the kernel are larger.
    pub(super) is_64_bit: bool,
    pub(super) stack_order: u8,
    /// Frames of a memory section, the unit of memory hotplug.
    pub(super) section_frames: u32,
    /// Number of huge pages in its memory, which is the number of attempts to allocate one.
    pub(super) max_huge_pages: u32,
    /// Frames of all zones.
    pub(super) frames: u64,
    /// Its kernel release.
    pub(super) tuning: KernelTuning,
}

fn frames_of_mib(mib: u64) -> u32 {
    (mib * MIB / PAGE_BYTES) as u32
}

pub(crate) fn frame_at_mib(mib: u64) -> Frame {
    Frame::new(frames_of_mib(mib))
}

pub(super) fn build_machine(spec: &SimulationSpec) -> Result<(MachineConfig, MachineModel), Error> {
    let (layout, model, keep) = match spec.workload.machine.as_str() {
        "x86" => x86_paper_machine(spec)?,
        "ppc64" => ppc64_paper_machine(spec)?,
        size => x86_64_of_size(spec, size)?,
    };
    // 20 is the kernel's default.
    let compaction_proactiveness = if spec.scheme.is_proactive { 20 } else { 0 };
    let tuning = KernelTuning { compaction_proactiveness, ..model.tuning };
    let frames = layout.frames();
    let mut zones = layout.zone_configs();
    spec.scheme.zone_options.apply_to_zones(&mut zones, &layout.zone_limits, tuning.release, spec.seed)?;
    let config = MachineConfig {
        zones,
        zone_limits: layout.zone_limits,
        pcp_config: keep,
        reclaim_policy: spec.scheme.reclaim_policy,
        activates_referenced: spec.scheme.activates_referenced,
        has_compaction: spec.scheme.has_compaction,
        swap_frames: u32::try_from(2 * frames).unwrap_or(u32::MAX),
    };
    Ok((
        config,
        MachineModel {
            frames,
            max_huge_pages: model.max_huge_pages.min((frames >> model.huge_order) as u32),
            tuning,
            ..model
        },
    ))
}

/// Per-CPU lists of zones of 512 MiB and more (`zone_batchsize`), of Linux 2.6.16.
const PCP_2_6_16: PcpConfig = PcpConfig::with_batch(4, 31, 186);

/// Properties that the 64-bit machines share.
const MODEL_64_BIT: MachineModel = MachineModel {
    huge_order: 0,
    pages_per_table: 512,
    initial_tables: 9,
    is_64_bit: true,
    stack_order: 2,
    section_frames: 0,
    max_huge_pages: u32::MAX,
    frames: 0,
    tuning: KernelTuning::for_release(Release::V6_1),
};

/// Kernel of the paper. The authors' script for the pool sets swappiness to 100 and does not reset it.
fn tuning_2_6_16() -> KernelTuning {
    KernelTuning { swappiness: 100, ..KernelTuning::for_release(Release::V2_6_16) }
}

/// The paper's x86 machine: 1536 MiB, of which boot takes 18 permanently: the kernel's image in the first
/// block of DMA, page descriptors (12 MiB) in the first three of Normal. The paper's tables show that they
/// are in low memory: of the memory above 1024 MiB it got 127 huge pages, and 1518 - 1024 MiB would be 123.
fn x86_paper_machine(spec: &SimulationSpec) -> Result<(Layout, MachineModel, PcpConfig), Error> {
    let end = frame_at_mib(1536);
    let movable_start = movable_zone_start(spec, 1024, frame_at_mib(28), end, 10)?;
    let normal = frame_at_mib(896).min(movable_start);
    let zone_ranges = [
        ("DMA", 0, frame_at_mib(4), frame_at_mib(16)),
        ("Normal", 1, frame_at_mib(28), normal),
        ("HighMem", 2, normal, movable_start),
        ("EasyRclm", 3, movable_start, end),
    ];
    let zone_limits = ZoneLimits { kernel: 1, page_tables: 2, user: 3 };
    let layout = layout_2_6_16(
        &zone_ranges,
        10,
        &[LOWMEM_RESERVE_RATIO_DMA, LOWMEM_RESERVE_RATIO_NORMAL, LOWMEM_RESERVE_RATIO_DMA, 0],
        zone_limits,
    );
    let place = MachineModel {
        huge_order: 10,
        pages_per_table: 1024,
        initial_tables: 5,
        is_64_bit: false,
        stack_order: 1,
        section_frames: frames_of_mib(64),
        // Its MemTotal of 1554364 KiB in whole huge pages, as the authors' script counts.
        max_huge_pages: 379,
        frames: 0,
        tuning: tuning_2_6_16(),
    };
    Ok((layout, place, PCP_2_6_16))
}

/// The paper's PPC64 machine: 4 GiB, of which boot takes 77 MiB: 251 blocks of 16 MiB remain.
fn ppc64_paper_machine(spec: &SimulationSpec) -> Result<(Layout, MachineModel, PcpConfig), Error> {
    let end = frame_at_mib(4 << 10);
    let movable_start = movable_zone_start(spec, 2048, frame_at_mib(80), end, 12)?;
    let cuts = [("DMA", 0, frame_at_mib(80), movable_start), ("EasyRclm", 1, movable_start, end)];
    let zone_limits = ZoneLimits { kernel: 0, page_tables: 0, user: 1 };
    let layout = layout_2_6_16(&cuts, 12, &[LOWMEM_RESERVE_RATIO_DMA, 0], zone_limits);
    let tuning = tuning_2_6_16();
    let place = MachineModel { huge_order: 12, section_frames: frames_of_mib(16), tuning, ..MODEL_64_BIT };
    Ok((layout, place, PCP_2_6_16))
}

/// A current machine. Memory above `kernelcore`, or half of memory, is movable if the scheme has such a zone.
fn x86_64_of_size(spec: &SimulationSpec, text: &str) -> Result<(Layout, MachineModel, PcpConfig), Error> {
    let bytes = parse_machine_size(text)?;
    let layout = match spec.workload.kernelcore {
        _ if !spec.scheme.movable_zone => Layout::x86_64_with_movable_percent(Bytes(bytes), 1, 0)?,
        None => Layout::x86_64_with_movable_percent(Bytes(bytes), 1, 50)?,
        Some(core) if core > 0 && core <= bytes => Layout::x86_64_with_kernelcore(Bytes(bytes), Bytes(core))?,
        Some(core) => return Err(kernelcore_error(core, 0, bytes)),
    };
    let place = MachineModel { huge_order: 9, section_frames: frames_of_mib(128), ..MODEL_64_BIT };
    Ok((layout, place, PcpConfig::with_batch(4, 63, 378)))
}

/// Start of the movable zone; without one, the end of memory.
fn movable_zone_start(
    spec: &SimulationSpec,
    default_mib: u64,
    min_frame: Frame,
    end: Frame,
    block: u8,
) -> Result<Frame, Error> {
    if !spec.scheme.movable_zone {
        return Ok(end);
    }
    let core = spec.workload.kernelcore.unwrap_or(default_mib * MIB);
    let core_frames = (core / PAGE_BYTES).next_multiple_of(1 << block);
    let [min_frames, max_frames] = [min_frame, end].map(|frame| u64::from(frame.number()));
    if core_frames <= min_frames || core_frames > max_frames {
        return Err(kernelcore_error(core, min_frames * PAGE_BYTES, max_frames * PAGE_BYTES));
    }
    Ok(Frame::new(core_frames as u32))
}

fn kernelcore_error(core: u64, min_bytes: u64, max_bytes: u64) -> Error {
    let [core, least, most] = [core, min_bytes, max_bytes].map(|bytes| format_exact(Bytes(bytes)));
    Error::InvalidConfig(format!("kernelcore of {core}: expected more than {least} and at most {most}"))
}

/// Bytes of a size such as `16G`.
fn parse_machine_size(text: &str) -> Result<u64, Error> {
    let invalid = |why: &str| {
        Err(Error::InvalidConfig(format!(
            "machine {text}: {why}; expected x86, ppc64, or a size from 64M to 8T, for example 16G"
        )))
    };
    match size::parse(text) {
        Ok(Bytes(bytes)) if bytes > 8 << 40 => invalid("too large"),
        Ok(Bytes(bytes)) if bytes < 64 * MIB => invalid("too small"),
        Ok(Bytes(bytes)) => Ok(bytes),
        Err(_) => invalid("unknown"),
    }
}

/// Zones of Linux 2.6.16 from zone index, first frame and end.
pub(crate) fn layout_2_6_16(
    zone_ranges: &[(&'static str, u8, Frame, Frame)],
    order: u8,
    ratios: &[u64],
    zone_limits: ZoneLimits,
) -> Layout {
    let zone = |&(name, zone_index, first, end): &(&'static str, u8, Frame, Frame)| {
        LayoutZone::new(name, 0, zone_index, first..end)
    };
    let zones: Vec<LayoutZone> = zone_ranges.iter().filter_map(zone).collect();
    let kernel_zones = zones.iter().filter(|zone| zone.zone_index <= zone_limits.kernel);
    let low_kib = kernel_zones.map(|zone| u64::from(zone.frames) * PAGE_BYTES / 1024).sum();
    Layout {
        zones,
        max_order: order,
        pageblock_order: order,
        lowmem_reserve_ratios: ratios.to_vec(),
        zone_limits,
        min_free_frames: default_min_free_kib(low_kib).min(64 << 10) * 1024 / PAGE_BYTES,
        // Up to 4.5 the distance of the watermarks was a quarter of the min watermark.
        watermark_scale_factor: 0,
    }
}
