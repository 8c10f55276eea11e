//! The machine: one line for the summary, a section for everything.

use pagelab_model::machine::{CgroupVersion, Hypervisor, TlbHolds, TlbSource};
use pagelab_model::settings::{HugetlbPool, Settings, SwapArea, ThpSettings};
use pagelab_model::{AbsentWhy, Bytes, Choice, Machine, Reading, Snapshot};

use super::absent;
use crate::style::{bytes, count, percent};
use crate::text::Page;

/// Name, processor, memory, kernel, mode: what one wants to know before anything else.
pub(super) fn headline(page: &mut Page, snapshot: &Snapshot) {
    let machine = &snapshot.machine;
    let total = snapshot.meminfo.as_ref().ok().and_then(|info| info.bytes("MemTotal"));
    let mut facts = vec![page.style().bold(machine.host_name.as_deref().unwrap_or(&snapshot.taken.from))];
    facts.extend(headline_facts(machine, &snapshot.settings, total));
    page.facts("", &facts, "   ");
}

/// What stands behind the name in the first line, a phrase each.
pub fn headline_facts(machine: &Machine, settings: &Settings, total: Option<Bytes>) -> Vec<String> {
    let mut facts = Vec::new();
    if let Ok(cpu) = &machine.cpu {
        facts.push(format!("{} × {}", cpu.threads, short_cpu(&cpu.model_name)));
    }
    if let Some(total) = total {
        facts.push(bytes(total));
    }
    if let Ok(release) = &machine.kernel_release {
        facts.push(format!("Linux {release}"));
    }
    if let Ok(thp) = &settings.thp
        && let Ok(mode) = &thp.enabled
    {
        facts.push(format!("THP {}", mode.selected()));
    }
    if let Ok(Hypervisor::Present { name, .. }) = &machine.hypervisor {
        facts.push(if name.is_empty() { "in a VM".to_owned() } else { format!("in a VM ({name})") });
    }
    if let Ok(cgroup) = &machine.cgroup
        && let Some(limit) = cgroup.memory_limit
    {
        facts.push(format!("limited to {} by its control group", bytes(limit)));
    }
    if !machine.container_signs.is_empty() {
        facts.push("in a container".to_owned());
    }
    facts
}

/// Marketing names carry marks and frequencies that nobody looks for.
fn short_cpu(name: &str) -> String {
    let plain = name.replace("(R)", "").replace("(TM)", "");
    let plain = plain.split(" @ ").next().unwrap_or_default();
    let words = plain.split_whitespace().filter(|word| !matches!(*word, "CPU" | "Processor"));
    words.collect::<Vec<_>>().join(" ")
}

/// What the processor keeps close: its caches and TLBs, a line each.
pub(super) fn geometry(machine: &Machine) -> [(&'static str, String); 2] {
    let line = |caches: &Vec<pagelab_model::machine::Cache>| {
        let of = caches.iter().filter(|cache| cache.kind != "Instruction");
        let line = of.filter_map(|cache| cache.line).next();
        line.map_or(String::new(), |line| format!(", lines of {}", bytes(line)))
    };
    let caches = said(&machine.caches, |caches| {
        let told = caches.iter().map(cache).collect::<Vec<_>>().join(" · ");
        format!("{told}{}", line(caches))
    });
    [("caches", caches), ("TLB", said(&machine.tlb, tlb))]
}

/// Everything about the machine and its settings.
pub(super) fn section(page: &mut Page, snapshot: &Snapshot) {
    page.heading("machine");
    let machine = &snapshot.machine;
    let mut row = |name: &str, value: String| page.hanging(&format!("  {name:<16}"), &value);
    row("kernel", said(&machine.kernel_version, |text| text.clone()));
    row("command line", said(&machine.kernel_cmdline, |text| text.clone()));
    row("processor", said(&machine.cpu, cpu));
    row("caches", said(&machine.caches, |caches| caches.iter().map(cache).collect::<Vec<_>>().join(" · ")));
    row("TLB", said(&machine.tlb, tlb));
    row(
        "nodes",
        said(&machine.nodes, |nodes| {
            nodes.iter().map(|node| node.0.to_string()).collect::<Vec<_>>().join(" ")
        }),
    );
    row("page sizes", page_sizes(snapshot));
    row(
        "hypervisor",
        said(&machine.hypervisor, |hypervisor| match hypervisor {
            Hypervisor::None => "none seen".to_owned(),
            Hypervisor::Present { name, source } if name.is_empty() => format!("present ({source})"),
            Hypervisor::Present { name, source } => format!("{name} ({source})"),
        }),
    );
    row("direct map", direct_map(machine));
    row(
        "control group",
        said(&machine.cgroup, |cgroup| {
            let version = match cgroup.version {
                CgroupVersion::V1 => "version 1",
                CgroupVersion::V2 => "version 2",
                CgroupVersion::Hybrid => "version 1 for memory, version 2 beside it",
            };
            let limit = cgroup
                .memory_limit
                .map_or("no memory limit".to_owned(), |limit| format!("limit {}", bytes(limit)));
            let used =
                cgroup.memory_used.map_or(String::new(), |used| format!(", {} charged there", bytes(used)));
            format!("{version}, {limit}{used}, path {}", cgroup.path)
        }),
    );
    if !machine.container_signs.is_empty() {
        row("container", machine.container_signs.join(" · "));
    }
    row(
        "memory block",
        said(&machine.memory_block, |size| format!("{} (the unit of hotplug)", bytes(*size))),
    );
    settings(page, snapshot);
}

fn settings(page: &mut Page, snapshot: &Snapshot) {
    let settings = &snapshot.settings;
    page.heading("settings");
    let mut row = |name: &str, value: String| page.hanging(&format!("  {name:<16}"), &value);
    match &settings.thp {
        Ok(thp) => {
            row("THP", said(&thp.enabled, choice));
            row("THP defrag", said(&thp.defrag, choice));
            row("THP shmem", said(&thp.shmem_enabled, choice));
            row("THP by size", thp_sizes(thp));
        }
        Err(absence) => row("THP", absent(absence)),
    }
    row("hugetlb pools", said(&settings.hugetlb, |pools| listed(pools, pool)));
    let named = |names: &[&str]| {
        let of = |name: &&str| settings.vm.get(name).map(|value| format!("{name} {value}"));
        let found = names.iter().filter_map(of).collect::<Vec<_>>();
        if found.is_empty() {
            "not available: none of them could be read".to_owned()
        } else {
            found.join(" · ")
        }
    };
    row(
        "compaction",
        named(&[
            "compaction_proactiveness",
            "extfrag_threshold",
            "compact_unevictable_allowed",
            "defrag_mode",
        ]),
    );
    row(
        "watermarks",
        named(&[
            "min_free_kbytes",
            "watermark_scale_factor",
            "watermark_boost_factor",
            "user_reserve_kbytes",
        ]),
    );
    row("swap", said(&settings.swap, |areas| listed(areas, swap)));
}

/// The items side by side, or that there are none.
fn listed<T>(items: &[T], show: impl Fn(&T) -> String) -> String {
    if items.is_empty() { "none".to_owned() } else { items.iter().map(show).collect::<Vec<_>>().join(" · ") }
}

fn pool(pool: &HugetlbPool) -> String {
    let [total, free] = [pool.total, pool.free].map(|pages| count(pages.into()));
    format!("{}: {total} pages, {free} free", bytes(pool.page_size))
}

fn swap(area: &SwapArea) -> String {
    format!("{} {} of {} used", area.name, bytes(area.used), bytes(area.size))
}

fn said<T>(reading: &Reading<T>, say: impl FnOnce(&T) -> String) -> String {
    reading.as_ref().map_or_else(absent, say)
}

fn choice(choice: &Choice) -> String {
    let word = |(at, option): (usize, &String)| {
        if at == choice.selected { format!("[{option}]") } else { option.clone() }
    };
    choice.options.iter().enumerate().map(word).collect::<Vec<_>>().join(" ")
}

/// Sizes with the same mode stand together: `never: 8 16 32 KiB …`.
fn thp_sizes(thp: &ThpSettings) -> String {
    let mut groups: Vec<(&str, Vec<String>)> = Vec::new();
    for size in &thp.sizes {
        let mode = match &size.enabled {
            Ok(choice) => choice.selected(),
            // Sizes that only shared memory can have stand without a mode for program memory.
            Err(absence) if matches!(absence.why, AbsentWhy::NotThere | AbsentWhy::NotSaved) => {
                "for shared memory only"
            }
            Err(_) => "unreadable",
        };
        match groups.iter_mut().find(|(known, _)| *known == mode) {
            Some((_, sizes)) => sizes.push(bytes(size.size)),
            None => groups.push((mode, vec![bytes(size.size)])),
        }
    }
    if groups.is_empty() {
        return "this kernel has one size only".to_owned();
    }
    groups.iter().map(|(mode, sizes)| format!("{mode}: {}", sizes.join(", "))).collect::<Vec<_>>().join(" · ")
}

fn cpu(cpu: &pagelab_model::machine::Cpu) -> String {
    let mut text = format!("{} threads of {}", cpu.threads, cpu.model_name);
    if let Some(cores) = cpu.cores {
        text.push_str(&format!(", {cores} cores"));
    }
    if let (Some(family), Some(model), Some(stepping)) = (cpu.family, cpu.model, cpu.stepping) {
        text.push_str(&format!(", family {family} model {model} stepping {stepping}"));
    }
    if let Some(khz) = cpu.clock_khz {
        text.push_str(&format!(", {} MHz when read", (khz + 500) / 1000));
    }
    if let (Some(physical), Some(virtual_)) = (cpu.physical_bits, cpu.virtual_bits) {
        text.push_str(&format!(", addresses of {physical} bits physical and {virtual_} virtual"));
    }
    text
}

fn cache(cache: &pagelab_model::machine::Cache) -> String {
    let kind = match cache.kind.as_str() {
        "Data" => "d",
        "Instruction" => "i",
        _ => "",
    };
    let ways = cache.ways.map_or(String::new(), |ways| format!(" {ways}-way"));
    format!("L{}{kind} {}{ways}", cache.level, bytes(cache.size))
}

fn tlb(tlb: &pagelab_model::machine::Tlb) -> String {
    let level = |level: &pagelab_model::machine::TlbLevel| {
        let holds = match level.holds {
            TlbHolds::Data => "d",
            TlbHolds::Stores => "d (stores)",
            TlbHolds::Instruction => "i",
            TlbHolds::Unified => "",
        };
        let sizes = level.page_sizes.iter().map(|size| bytes(*size)).collect::<Vec<_>>().join(" + ");
        let ways = level.ways.map_or(String::new(), |ways| format!(" {ways}-way"));
        format!("L{}{holds} {} × {sizes}{ways}", level.level, level.entries)
    };
    let levels = tlb.levels.iter().map(level).collect::<Vec<_>>().join(" · ");
    match &tlb.source {
        TlbSource::Cpuid(leaf) => format!("{levels} ({leaf})"),
        TlbSource::Assumed(row) => {
            format!("assumed: {levels} (built-in table, {row}; --tlb to say otherwise)")
        }
        TlbSource::Given => format!("{levels} (given by --tlb)"),
    }
}

fn page_sizes(snapshot: &Snapshot) -> String {
    let size = snapshot.machine.page_size;
    let base = bytes(Bytes(size.bytes()));
    format!(
        "base {base} ({}), huge {} (order {}), pageblock {} (order {})",
        snapshot.machine.page_size_source,
        bytes(size.block(snapshot.pmd_order)),
        snapshot.pmd_order.0,
        bytes(size.block(snapshot.pageblock_order)),
        snapshot.pageblock_order.0
    )
}

fn direct_map(machine: &Machine) -> String {
    said(&machine.direct_map, |map| {
        let all = (map.base.0 + map.pmd.0 + map.pud.0).max(1) as f64;
        let share = |part: Bytes| percent(part.0 as f64 / all);
        let splits = match (map.pmd_splits, map.pud_splits) {
            (Some(pmd), Some(pud)) => format!("; split since boot: {pmd} of 2 MiB, {pud} of 1 GiB"),
            _ => String::new(),
        };
        format!(
            "4 KiB {} ({}), 2 MiB {} ({}), 1 GiB {} ({}){splits}",
            bytes(map.base),
            share(map.base),
            bytes(map.pmd),
            share(map.pmd),
            bytes(map.pud),
            share(map.pud)
        )
    })
}

/// Which instruments work here, and for each that does not, why and how to get it.
pub(super) fn instruments(page: &mut Page, snapshot: &Snapshot) {
    page.heading("instruments");
    for instrument in &snapshot.instruments {
        let name = format!("  {:<20}", instrument.name.replace('_', " "));
        match &instrument.state {
            Ok(found) => page.hanging(&name, &format!("works: {found}")),
            Err(absence) => page.hanging(&name, &absent(absence)),
        }
    }
}

/// The instruments that do not work, by name, in the summary.
pub(super) fn not_seen(page: &mut Page, snapshot: &Snapshot) {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for instrument in snapshot.instruments.iter().filter(|one| SEEN_BY_CHECKUP.contains(&&*one.name)) {
        let Some(absence) = instrument.absence() else { continue };
        let name = instrument.name.replace('_', " ");
        match reasons.iter_mut().find(|(reason, _)| *reason == absence.reason()) {
            Some((_, names)) => names.push(name),
            None => reasons.push((absence.reason(), vec![name])),
        }
    }
    let missing: Vec<String> =
        reasons.iter().map(|(reason, names)| format!("{} ({reason})", names.join(", "))).collect();
    if !missing.is_empty() {
        page.hanging_dim("not seen here: ", &missing.join(" · "));
    }
}

/// Instruments whose absence leaves a gap in the summary; the others stand in the full report.
const SEEN_BY_CHECKUP: [&str; 6] =
    ["hardware_counters", "kpageflags", "extfrag", "slabinfo", "kernel_log", "psi"];
