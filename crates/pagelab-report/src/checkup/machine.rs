//! The machine: one line in the summary, a section in the full report.

use pagelab_metrics::grouping::value_of;
use pagelab_model::machine::{CgroupVersion, Hypervisor, TlbContent, TlbSource};
use pagelab_model::settings::{HugetlbPool, Settings, SwapArea, ThpSettings};
use pagelab_model::{AbsenceReason, Bytes, Machine, Reading, Snapshot, SysfsChoice};

use super::absence_text;
use crate::style::{format_bytes, format_count, format_percent};
use crate::text_report::TextReport;

/// Writes the first line: name, processor, memory, kernel, THP mode.
pub(super) fn write_headline(output: &mut TextReport, snapshot: &Snapshot) {
    let machine = &snapshot.machine;
    let total = snapshot.meminfo.as_ref().ok().and_then(|info| info.bytes("MemTotal"));
    let mut facts =
        vec![output.style().paint_bold(machine.host_name.as_deref().unwrap_or(&snapshot.taken.source))];
    facts.extend(list_headline_facts(machine, &snapshot.settings, total));
    output.add_fact_line(&facts);
}

/// Phrases after the name in the first line.
pub fn list_headline_facts(machine: &Machine, settings: &Settings, total: Option<Bytes>) -> Vec<String> {
    let thp_mode = settings.thp.as_ref().ok().and_then(|thp| thp.enabled.as_ref().ok());
    let limit = machine.cgroup.as_ref().ok().and_then(|cgroup| cgroup.memory_limit);
    let facts = [
        machine.cpu.as_ref().ok().map(|cpu| format!("{} × {}", cpu.threads, short_cpu(&cpu.model_name))),
        total.map(format_bytes),
        machine.kernel_release.as_ref().ok().map(|release| format!("Linux {release}")),
        thp_mode.map(|mode| format!("THP {}", mode.selected())),
        match &machine.hypervisor {
            Ok(Hypervisor::Present { name, .. }) if name.is_empty() => Some("in a VM".to_owned()),
            Ok(Hypervisor::Present { name, .. }) => Some(format!("in a VM ({name})")),
            _ => None,
        },
        limit.map(|limit| format!("limited to {} by its cgroup", format_bytes(limit))),
        (!machine.container_signs.is_empty()).then(|| "in a container".to_owned()),
    ];
    facts.into_iter().flatten().collect()
}

/// Removes trademark signs and frequencies from the processor's marketing name.
fn short_cpu(name: &str) -> String {
    let plain = name.replace("(R)", "").replace("(TM)", "");
    let plain = plain.split(" @ ").next().unwrap_or_default();
    let words = plain.split_whitespace().filter(|word| !matches!(*word, "CPU" | "Processor"));
    words.collect::<Vec<_>>().join(" ")
}

/// Lists the caches and TLBs of the processor, each as a name and a text.
pub fn cache_and_tlb_facts(machine: &Machine) -> [(&'static str, String); 2] {
    let line = |caches: &Vec<pagelab_model::machine::Cache>| {
        let of = caches.iter().filter(|cache| cache.kind != "Instruction");
        let line = of.filter_map(|cache| cache.line).next();
        line.map_or(String::new(), |line| format!(", {} lines", format_bytes(line)))
    };
    let caches = reading_text(&machine.caches, |caches| {
        let told = caches.iter().map(cache_text).collect::<Vec<_>>().join(" · ");
        format!("{told}{}", line(caches))
    });
    [("caches", caches), ("TLB", reading_text(&machine.tlb, tlb_text))]
}

/// Writes the machine and its settings as `-v` shows them.
pub(crate) fn write_section(output: &mut TextReport, snapshot: &Snapshot) {
    output.add_heading("machine");
    let machine = &snapshot.machine;
    let mut row = |name: &str, value: String| output.add_paragraph(&format!("  {name:<16}"), &value);
    row("kernel", reading_text(&machine.kernel_version, |text| text.clone()));
    row("command line", reading_text(&machine.kernel_cmdline, |text| text.clone()));
    row("processor", reading_text(&machine.cpu, cpu_text));
    row(
        "caches",
        reading_text(&machine.caches, |caches| caches.iter().map(cache_text).collect::<Vec<_>>().join(" · ")),
    );
    row("TLB", reading_text(&machine.tlb, tlb_text));
    row(
        "nodes",
        reading_text(&machine.nodes, |nodes| {
            nodes.iter().map(|node| node.0.to_string()).collect::<Vec<_>>().join(" ")
        }),
    );
    row("page sizes", page_sizes_text(snapshot));
    row(
        "hypervisor",
        reading_text(&machine.hypervisor, |hypervisor| match hypervisor {
            Hypervisor::None => "none detected".to_owned(),
            Hypervisor::Present { name, source } if name.is_empty() => format!("present ({source})"),
            Hypervisor::Present { name, source } => format!("{name} ({source})"),
        }),
    );
    row("direct map", direct_map_text(machine));
    row(
        "control group",
        reading_text(&machine.cgroup, |cgroup| {
            let version = match cgroup.version {
                CgroupVersion::V1 => "version 1",
                CgroupVersion::V2 => "version 2",
                CgroupVersion::Hybrid => "version 1 for memory, version 2 also mounted",
            };
            let limit = cgroup
                .memory_limit
                .map_or("no memory limit".to_owned(), |limit| format!("limit {}", format_bytes(limit)));
            let used =
                cgroup.memory_used.map_or(String::new(), |used| format!(", {} charged", format_bytes(used)));
            format!("{version}, {limit}{used}, path {}", cgroup.path)
        }),
    );
    if !machine.container_signs.is_empty() {
        row("container", machine.container_signs.join(" · "));
    }
    row(
        "memory block",
        reading_text(&machine.memory_block, |size| format!("{} (hotplug unit)", format_bytes(*size))),
    );
    write_settings(output, snapshot);
}

fn write_settings(output: &mut TextReport, snapshot: &Snapshot) {
    let settings = &snapshot.settings;
    output.add_heading("settings");
    let mut row = |name: &str, value: String| output.add_paragraph(&format!("  {name:<16}"), &value);
    match &settings.thp {
        Ok(thp) => {
            row("THP", reading_text(&thp.enabled, choice_text));
            row("THP defrag", reading_text(&thp.defrag, choice_text));
            row("THP shmem", reading_text(&thp.shmem_enabled, choice_text));
            row("THP by size", thp_sizes_text(thp));
        }
        Err(absence) => row("THP", absence_text(absence)),
    }
    row("hugetlb pools", reading_text(&settings.hugetlb, |pools| join_or_none(pools, pool_text)));
    let formatted = |names: &[&str]| {
        let of = |name: &&str| settings.vm.get(name).map(|value| format!("{name} {value}"));
        let found = names.iter().filter_map(of).collect::<Vec<_>>();
        if found.is_empty() {
            "not available: none of these settings is readable".to_owned()
        } else {
            found.join(" · ")
        }
    };
    row(
        "compaction",
        formatted(&[
            "compaction_proactiveness",
            "extfrag_threshold",
            "compact_unevictable_allowed",
            "defrag_mode",
        ]),
    );
    row(
        "watermarks",
        formatted(&[
            "min_free_kbytes",
            "watermark_scale_factor",
            "watermark_boost_factor",
            "user_reserve_kbytes",
        ]),
    );
    row("swap", reading_text(&settings.swap, |areas| join_or_none(areas, swap_text)));
}

fn join_or_none<T>(items: &[T], format: impl Fn(&T) -> String) -> String {
    if items.is_empty() {
        "none".to_owned()
    } else {
        items.iter().map(format).collect::<Vec<_>>().join(" · ")
    }
}

fn pool_text(pool: &HugetlbPool) -> String {
    let [total, free] = [pool.total, pool.free].map(|pages| format_count(pages.into()));
    format!("{}: {total} pages, {free} free", format_bytes(pool.page_size))
}

fn swap_text(area: &SwapArea) -> String {
    format!("{} {} of {} used", area.name, format_bytes(area.used), format_bytes(area.size))
}

fn reading_text<T>(reading: &Reading<T>, format: impl FnOnce(&T) -> String) -> String {
    reading.as_ref().map_or_else(absence_text, format)
}

fn choice_text(choice: &SysfsChoice) -> String {
    let word = |(at, option): (usize, &String)| {
        if at == choice.selected { format!("[{option}]") } else { option.clone() }
    };
    choice.options.iter().enumerate().map(word).collect::<Vec<_>>().join(" ")
}

/// Groups sizes with the same mode: `never: 8 16 32 KiB …`.
fn thp_sizes_text(thp: &ThpSettings) -> String {
    let mut groups: Vec<(&str, Vec<String>)> = Vec::new();
    for size in &thp.sizes {
        let mode = match &size.enabled {
            Ok(choice) => choice.selected(),
            // Sizes for shared memory only have no mode for program memory.
            Err(absence) if matches!(absence.why, AbsenceReason::NotThere | AbsenceReason::NotSaved) => {
                "for shared memory only"
            }
            Err(_) => "unreadable",
        };
        value_of(&mut groups, mode).push(format_bytes(size.size));
    }
    if groups.is_empty() {
        return "this kernel supports one size only".to_owned();
    }
    groups.iter().map(|(mode, sizes)| format!("{mode}: {}", sizes.join(", "))).collect::<Vec<_>>().join(" · ")
}

fn cpu_text(cpu: &pagelab_model::machine::Cpu) -> String {
    let version = cpu.family.zip(cpu.model).zip(cpu.stepping);
    let details = [
        Some(format!("{} threads of {}", cpu.threads, cpu.model_name)),
        cpu.cores.map(|cores| format!("{cores} cores")),
        version
            .map(|((family, model), stepping)| format!("family {family} model {model} stepping {stepping}")),
        cpu.clock_khz.map(|khz| format!("{} MHz when read", (khz + 500) / 1000)),
        cpu.physical_bits.zip(cpu.virtual_bits).map(|(physical, virtual_)| {
            format!("{physical}-bit physical and {virtual_}-bit virtual addresses")
        }),
    ];
    details.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn cache_text(cache: &pagelab_model::machine::Cache) -> String {
    let kind = match cache.kind.as_str() {
        "Data" => "d",
        "Instruction" => "i",
        _ => "",
    };
    let ways = cache.ways.map_or(String::new(), |ways| format!(" {ways}-way"));
    format!("L{}{kind} {}{ways}", cache.level, format_bytes(cache.size))
}

fn tlb_text(tlb: &pagelab_model::machine::Tlb) -> String {
    let level = |level: &pagelab_model::machine::TlbLevel| {
        let holds = match level.holds {
            TlbContent::Data => "d",
            TlbContent::Stores => "d (stores)",
            TlbContent::Instruction => "i",
            TlbContent::Unified => "",
        };
        let sizes = level.page_sizes.iter().map(|size| format_bytes(*size)).collect::<Vec<_>>().join(" + ");
        let ways = level.ways.map_or(String::new(), |ways| format!(" {ways}-way"));
        format!("L{}{holds} {} × {sizes}{ways}", level.level, level.entries)
    };
    let levels = tlb.levels.iter().map(level).collect::<Vec<_>>().join(" · ");
    match &tlb.source {
        TlbSource::Cpuid(leaf) => format!("{levels} ({leaf})"),
        TlbSource::Assumed(row) => {
            format!("assumed: {levels} (built-in table, {row}; override with --tlb)")
        }
        TlbSource::UserSupplied => format!("{levels} (from --tlb)"),
    }
}

fn page_sizes_text(snapshot: &Snapshot) -> String {
    let size = snapshot.machine.page_size;
    let base = format_bytes(Bytes(size.bytes()));
    format!(
        "base {base} ({}), huge {} (order {}), pageblock {} (order {})",
        snapshot.machine.page_size_source,
        format_bytes(size.block_bytes(snapshot.pmd_order)),
        snapshot.pmd_order.0,
        format_bytes(size.block_bytes(snapshot.pageblock_order)),
        snapshot.pageblock_order.0
    )
}

fn direct_map_text(machine: &Machine) -> String {
    reading_text(&machine.direct_map, |map| {
        let all = (map.base.0 + map.pmd.0 + map.pud.0).max(1) as f64;
        let share = |part: Bytes| format_percent(part.0 as f64 / all);
        let splits = match (map.pmd_splits, map.pud_splits) {
            (Some(pmd), Some(pud)) => format!("; splits since boot: {pmd} × 2 MiB, {pud} × 1 GiB"),
            _ => String::new(),
        };
        format!(
            "4 KiB {} ({}), 2 MiB {} ({}), 1 GiB {} ({}){splits}",
            format_bytes(map.base),
            share(map.base),
            format_bytes(map.pmd),
            share(map.pmd),
            format_bytes(map.pud),
            share(map.pud)
        )
    })
}

/// Writes which instruments work on this machine and, for each other one, the reason and the hint.
pub(super) fn write_instruments(output: &mut TextReport, snapshot: &Snapshot) {
    output.add_heading("instruments");
    for instrument in &snapshot.instruments {
        let name = format!("  {:<20}", instrument.name.replace('_', " "));
        match &instrument.state {
            Ok(found) => output.add_paragraph(&name, &format!("works: {found}")),
            Err(absence) => output.add_paragraph(&name, &absence_text(absence)),
        }
    }
}

/// Writes the names of the instruments that do not work, for the summary.
pub(super) fn write_unavailable_instruments(output: &mut TextReport, snapshot: &Snapshot) {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for instrument in snapshot.instruments.iter().filter(|one| CHECKUP_INSTRUMENTS.contains(&&*one.name)) {
        let Some(absence) = instrument.absence() else { continue };
        value_of(&mut reasons, absence.reason()).push(instrument.name.replace('_', " "));
    }
    let missing: Vec<String> =
        reasons.iter().map(|(reason, names)| format!("{} ({reason})", names.join(", "))).collect();
    if !missing.is_empty() {
        output.add_dim_paragraph("not available: ", &missing.join(" · "));
    }
}

/// Instruments whose absence leaves a gap in the summary; the full report has the others.
const CHECKUP_INSTRUMENTS: [&str; 6] =
    ["hardware_counters", "kpageflags", "extfrag", "slabinfo", "kernel_log", "psi"];
