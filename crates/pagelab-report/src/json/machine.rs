//! The machine and its settings in JSON.

use pagelab_model::machine::{
    Cache, Cgroup, CgroupVersion, Cpu, DirectMap, Hypervisor, PageReporting, Tlb, TlbHolds, TlbLevel,
    TlbSource,
};
use pagelab_model::settings::{HugetlbPool, Settings, SwapArea, ThpSettings, ThpSize};
use pagelab_model::{Choice, Snapshot};
use serde_json::Value;

use super::checkup::counters;
use super::object::{Object, array};

const NOT_TOLD: &str = "the machine does not tell";

/// What the machine is.
pub(super) fn machine(snapshot: &Snapshot) -> Object {
    let machine = &snapshot.machine;
    let text = |text: &String| Value::from(text.as_str());
    Object::new()
        .option("host_name", machine.host_name.clone(), "not saved with the tree")
        .reading("kernel_release", &machine.kernel_release, text)
        .reading("kernel_version", &machine.kernel_version, text)
        .reading("kernel_cmdline", &machine.kernel_cmdline, text)
        .reading("architecture", &machine.architecture, text)
        .put("page_size_bytes", machine.page_size.bytes())
        .put("page_size_source", machine.page_size_source.as_str())
        .put("huge_page_bytes", machine.page_size.block(snapshot.pmd_order).0)
        .put("pageblock_bytes", machine.page_size.block(snapshot.pageblock_order).0)
        .reading("cpu", &machine.cpu, |c| cpu(c).into())
        .reading("caches", &machine.caches, |caches| array(caches, cache))
        .reading("tlb", &machine.tlb, |t| tlb(t).into())
        .reading("nodes", &machine.nodes, |nodes| nodes.iter().map(|node| node.0).collect::<Vec<_>>().into())
        .reading("hypervisor", &machine.hypervisor, |h| hypervisor(h).into())
        .reading("direct_map", &machine.direct_map, |map| direct_map(map).into())
        .option(
            "page_reporting",
            machine.page_reporting.as_ref().map(page_reporting),
            "free pages are not reported",
        )
        .reading("cgroup", &machine.cgroup, |group| cgroup(group).into())
        .put("container_signs", machine.container_signs.clone())
        .reading("memory_block_bytes", &machine.memory_block, |size| size.0.into())
}

fn cpu(cpu: &Cpu) -> Object {
    Object::new()
        .put("model_name", cpu.model_name.as_str())
        .put("vendor", cpu.vendor.as_str())
        .option("family", cpu.family, NOT_TOLD)
        .option("model", cpu.model, NOT_TOLD)
        .option("stepping", cpu.stepping, NOT_TOLD)
        .put("threads", cpu.threads)
        .option("cores", cpu.cores, NOT_TOLD)
        .option("physical_address_bits", cpu.physical_bits, NOT_TOLD)
        .option("virtual_address_bits", cpu.virtual_bits, NOT_TOLD)
        .option("clock_khz", cpu.clock_khz, NOT_TOLD)
        .put("flags", cpu.flags.clone())
}

fn cache(cache: &Cache) -> Object {
    Object::new()
        .put("level", cache.level)
        .put("kind", cache.kind.as_str())
        .put("size_bytes", cache.size.0)
        .option("ways", cache.ways, NOT_TOLD)
        .option("line_bytes", cache.line.map(|line| line.0), NOT_TOLD)
        .put("shared_cpus", cache.shared_cpus.as_str())
}

fn tlb(tlb: &Tlb) -> Object {
    let (source, detail) = match &tlb.source {
        TlbSource::Cpuid(leaf) => ("cpuid", leaf.as_str()),
        TlbSource::Assumed(row) => ("assumed", row.as_str()),
        TlbSource::Given => ("given", "--tlb"),
    };
    let level = |level: &TlbLevel| {
        let holds = match level.holds {
            TlbHolds::Data => "data",
            TlbHolds::Stores => "stores",
            TlbHolds::Instruction => "instruction",
            TlbHolds::Unified => "unified",
        };
        Object::new()
            .put("level", level.level)
            .put("holds", holds)
            .put("page_sizes_bytes", level.page_sizes.iter().map(|size| size.0).collect::<Vec<_>>())
            .put("entries", level.entries)
            .option("ways", level.ways, NOT_TOLD)
    };
    Object::new().put("source", source).put("source_detail", detail).put("levels", array(&tlb.levels, level))
}

fn hypervisor(hypervisor: &Hypervisor) -> Object {
    match hypervisor {
        Hypervisor::None => Object::new().put("present", false),
        Hypervisor::Present { name, source } => {
            Object::new().put("present", true).put("name", name.as_str()).put("source", source.as_str())
        }
    }
}

fn page_reporting(of: &PageReporting) -> Object {
    Object::new()
        .option("order", of.order.map(|order| order.0), "the kernel does not say it")
        .option("asked_order", of.asked, "the command line asks for no other one")
        .option("device", of.device.as_deref(), "no virtio balloon takes the reports")
        .option("reported_bytes", of.reported.map(|bytes| bytes.0), "kpageflags could not be read")
}

fn direct_map(map: &DirectMap) -> Object {
    Object::new()
        .put("base_bytes", map.base.0)
        .put("pmd_bytes", map.pmd.0)
        .put("pud_bytes", map.pud.0)
        .option("pmd_splits", map.pmd_splits, "this kernel does not count it")
        .option("pud_splits", map.pud_splits, "this kernel does not count it")
}

fn cgroup(group: &Cgroup) -> Object {
    let version = match group.version {
        CgroupVersion::V1 => "1",
        CgroupVersion::V2 => "2",
        CgroupVersion::Hybrid => "hybrid",
    };
    Object::new()
        .put("version", version)
        .put("path", group.path.as_str())
        .option("memory_limit_bytes", group.memory_limit.map(|limit| limit.0), "there is no limit")
        .option("limit_path", group.limit_path.as_deref(), "the group that has the limit is not known")
        .option(
            "memory_used_bytes",
            group.memory_used.map(|used| used.0),
            "there is no limit to compare with",
        )
}

/// The kernel's memory settings.
pub(super) fn settings(settings: &Settings) -> Object {
    Object::new()
        .reading("thp", &settings.thp, |t| thp(t).into())
        .reading("hugetlb_pools", &settings.hugetlb, |pools| array(pools, pool))
        .put("vm", counters(&settings.vm))
        .put("vm_absent", settings.vm_absent.iter().map(super::object::reason).collect::<Vec<_>>())
        .reading("swap_areas", &settings.swap, |areas| array(areas, swap))
}

fn thp(thp: &ThpSettings) -> Object {
    Object::new()
        .reading("enabled", &thp.enabled, choice)
        .reading("defrag", &thp.defrag, choice)
        .reading("shmem_enabled", &thp.shmem_enabled, choice)
        .reading("pmd_size_bytes", &thp.pmd_size, |size| size.0.into())
        .reading("use_zero_page", &thp.use_zero_page, |value| (*value).into())
        .put("khugepaged", counters(&thp.khugepaged))
        .put("sizes", array(&thp.sizes, size))
}

fn size(size: &ThpSize) -> Object {
    Object::new()
        .put("size_bytes", size.size.0)
        .reading("enabled", &size.enabled, choice)
        .reading("shmem_enabled", &size.shmem_enabled, choice)
        .put("counters", counters(&size.stats))
}

fn choice(choice: &Choice) -> Value {
    choice.selected().into()
}

fn pool(pool: &HugetlbPool) -> Object {
    Object::new()
        .put("page_size_bytes", pool.page_size.0)
        .put("total_pages", pool.total)
        .put("free_pages", pool.free)
        .put("reserved_pages", pool.reserved)
        .put("surplus_pages", pool.surplus)
        .put("overcommit_pages", pool.overcommit)
}

fn swap(area: &SwapArea) -> Object {
    Object::new()
        .put("name", area.name.as_str())
        .put("kind", area.kind.as_str())
        .put("size_bytes", area.size.0)
        .put("used_bytes", area.used.0)
}
