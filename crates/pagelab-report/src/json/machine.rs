//! Machine and settings in JSON.

use pagelab_model::machine::{
    Cache, Cgroup, CgroupVersion, Cpu, DirectMap, Hypervisor, PageReporting, Tlb, TlbContent, TlbLevel,
    TlbSource,
};
use pagelab_model::settings::{HugetlbPool, Settings, SwapArea, ThpSettings, ThpSize};
use pagelab_model::{Reading, Snapshot, SysfsChoice};
use serde_json::Value;

use super::checkup::{bytes_json, counters_json};
use crate::fields::{fields, read};

const NOT_STATED: &str = "not reported by the machine";
const NOT_COUNTED: &str = "this kernel has no such counter";

fn read_text(reading: &Reading<String>) -> Result<Value, String> {
    read(reading, |text| text.as_str().into())
}

fields! { fn machine_fields(of: Snapshot);
    "host_name": string (null: "not in the saved tree"), "host name" => of.machine.host_name.as_deref();
    "kernel_release": string (reading), "as the kernel prints it" => read_text(&of.machine.kernel_release);
    "kernel_version": string (reading), "as the kernel prints it" => read_text(&of.machine.kernel_version);
    "kernel_cmdline": string (reading), "as the kernel prints it" => read_text(&of.machine.kernel_cmdline);
    "architecture": string (reading), "as the kernel prints it" => read_text(&of.machine.architecture);
    "page_size_bytes": integer, "base page size" => of.machine.page_size.bytes();
    "page_size_source": string, "source of the base page size" => of.machine.page_size_source.as_str();
    "huge_page_bytes": integer, "size of a PMD-sized huge page" =>
        of.machine.page_size.block_bytes(of.pmd_order).0;
    "pageblock_bytes": integer, "size of a pageblock" =>
        of.machine.page_size.block_bytes(of.pageblock_order).0;
    "cpu": object (reading), "below" => read(&of.machine.cpu, |of| cpu_fields().object(of));
    "caches": array (reading), "below" => read(&of.machine.caches, |of| cache_fields().array(of));
    "tlb": object (reading), "below" => read(&of.machine.tlb, |of| tlb_fields().object(of));
    "nodes": array (reading), "online NUMA nodes" =>
        read(&of.machine.nodes, |nodes| nodes.iter().map(|node| node.0).collect());
    "hypervisor": object (reading), "below" =>
        read(&of.machine.hypervisor, |of| hypervisor_fields().object(of));
    "direct_map": object (reading), "below" =>
        read(&of.machine.direct_map, |of| direct_map_fields().object(of));
    "page_reporting": object (null: "no free page reporting"),
        "free page reporting to the hypervisor, below" =>
        of.machine.page_reporting.as_ref().map(|of| page_reporting_fields().object(of));
    "cgroup": object (reading), "below" => read(&of.machine.cgroup, |of| cgroup_fields().object(of));
    "container_signs": array, "signs that this process runs in a container" =>
        of.machine.container_signs.clone();
    "memory_block_bytes": integer (reading), "unit of memory hotplug" =>
        read(&of.machine.memory_block, |size| size.0.into());
}

fields! { fn cpu_fields(of: Cpu);
    "model_name": string, "as the CPU reports it" => of.model_name.as_str();
    "vendor": string, "as the CPU reports it" => of.vendor.as_str();
    "family": integer (null: NOT_STATED), "as the CPU reports it" => of.family;
    "model": integer (null: NOT_STATED), "as the CPU reports it" => of.model;
    "stepping": integer (null: NOT_STATED), "as the CPU reports it" => of.stepping;
    "threads": integer, "hardware threads" => of.threads;
    "cores": integer (null: NOT_STATED), "cores" => of.cores;
    "physical_address_bits": integer (null: NOT_STATED), "width" => of.physical_bits;
    "virtual_address_bits": integer (null: NOT_STATED), "width" => of.virtual_bits;
    "clock_khz": integer (null: NOT_STATED), "of the first CPU, at the time of reading" => of.clock_khz;
    "flags": array, "as the kernel prints them" => of.flags.clone();
}

fields! { fn cache_fields(of: Cache);
    "level": integer, "from 1" => of.level;
    "kind": string, "`Data`, `Instruction`, `Unified`" => of.kind.as_str();
    "size_bytes": integer, "size of the cache" => of.size.0;
    "ways": integer (null: NOT_STATED), "associativity" => of.ways;
    "line_bytes": integer (null: NOT_STATED), "size of a cache line" => bytes_json(of.line);
    "shared_cpus": string, "CPUs that share the cache with CPU 0" => of.shared_cpus.as_str();
}

fn tlb_source(tlb: &Tlb) -> (&str, &str) {
    match &tlb.source {
        TlbSource::Cpuid(leaf) => ("cpuid", leaf.as_str()),
        TlbSource::Assumed(row) => ("assumed", row.as_str()),
        TlbSource::UserSupplied => ("user_supplied", "--tlb"),
    }
}

fields! { fn tlb_fields(of: Tlb);
    "source": string, "`cpuid`, `assumed`, `user_supplied`" => tlb_source(of).0;
    "source_detail": string, "CPUID leaf, row of the built-in table, or `--tlb`" => tlb_source(of).1;
    "levels": array, "below" => tlb_level_fields().array(&of.levels);
}

fields! { fn tlb_level_fields(of: TlbLevel);
    "level": integer, "from 1" => of.level;
    "holds": string, "`data`, `stores`, `instruction`, `unified`" => match of.holds {
        TlbContent::Data => "data",
        TlbContent::Stores => "stores",
        TlbContent::Instruction => "instruction",
        TlbContent::Unified => "unified",
    };
    "page_sizes_bytes": array, "page sizes" => of.page_sizes.iter().map(|size| size.0).collect::<Value>();
    "entries": integer, "number of entries" => of.entries;
    "ways": integer (null: NOT_STATED), "associativity" => of.ways;
}

fields! { fn hypervisor_fields(of: Hypervisor);
    "present": boolean, "whether a hypervisor was detected" => matches!(of, Hypervisor::Present { .. });
    "name": string (left out), "name of the hypervisor" => match of {
        Hypervisor::Present { name, .. } => Some(name.as_str()),
        Hypervisor::None => None,
    };
    "source": string (left out), "how it was detected" => match of {
        Hypervisor::Present { source, .. } => Some(source.as_str()),
        Hypervisor::None => None,
    };
}

fields! { fn page_reporting_fields(of: PageReporting);
    "order": integer (null: "not reported by the kernel"), "smallest order that is reported" =>
        of.order.map(|order| order.0);
    "requested_order": integer (null: "the kernel command line requests no other order"),
        "order from the kernel command line, if the kernel uses another" => of.requested_order;
    "device": string (null: "no balloon device was found"), "balloon device" => of.device.as_deref();
    "reported_bytes": integer (null: "kpageflags could not be read"),
        "free memory currently returned to the host; approximate" =>
        bytes_json(of.reported);
}

fields! { fn direct_map_fields(of: DirectMap);
    "base_bytes": integer, "mapped by base pages" => of.base.0;
    "pmd_bytes": integer, "mapped by PMDs" => of.pmd.0;
    "pud_bytes": integer, "mapped by PUDs" => of.pud.0;
    "pmd_splits": integer (null: NOT_COUNTED), "PMD mappings split since boot" => of.pmd_splits;
    "pud_splits": integer (null: NOT_COUNTED), "PUD mappings split since boot" => of.pud_splits;
}

fields! { fn cgroup_fields(of: Cgroup);
    "version": string, "`1`, `2`, `hybrid`" => match of.version {
        CgroupVersion::V1 => "1",
        CgroupVersion::V2 => "2",
        CgroupVersion::Hybrid => "hybrid",
    };
    "path": string, "cgroup of this process" => of.path.as_str();
    "memory_limit_bytes": integer (null: "there is no limit"),
        "lowest limit of this cgroup and its ancestors" =>
        bytes_json(of.memory_limit);
    "limit_path": string (null: "unknown which cgroup sets the limit"), "cgroup that sets this limit" =>
        of.limit_path.as_deref();
    "memory_used_bytes": integer (null: "no limit to compare with"), "memory charged to that cgroup" =>
        bytes_json(of.memory_used);
}

fields! { fn settings_fields(of: Settings);
    "thp": object (reading), "below" => read(&of.thp, |of| thp_fields().object(of));
    "hugetlb_pools": array (reading), "below" => read(&of.hugetlb, |of| pool_fields().array(of));
    "vm": object, "numeric `vm.*` sysctls" => counters_json(&of.vm);
    "vm_absent": array, "sysctls that could not be read, with the reasons" =>
        of.vm_absent.iter().map(ToString::to_string).collect::<Value>();
    "swap_areas": array (reading), "below" => read(&of.swap, |of| swap_fields().array(of));
}

fn choice_json(choice: &SysfsChoice) -> Value {
    choice.selected().into()
}

fields! { fn thp_fields(of: ThpSettings);
    "enabled": string (reading), "the active value" => read(&of.enabled, choice_json);
    "defrag": string (reading), "the active value" => read(&of.defrag, choice_json);
    "shmem_enabled": string (reading), "the active value" => read(&of.shmem_enabled, choice_json);
    "pmd_size_bytes": integer (reading), "size of a huge page" => read(&of.pmd_size, |size| size.0.into());
    "use_zero_page": integer (reading), "as the kernel prints it" =>
        read(&of.use_zero_page, |value| (*value).into());
    "khugepaged": object, "as the kernel prints them" => counters_json(&of.khugepaged);
    "sizes": array, "below" => thp_size_fields().array(&of.sizes);
}

fields! { fn thp_size_fields(of: ThpSize);
    "size_bytes": integer, "page size" => of.size.0;
    "enabled": string (reading), "the active value" => read(&of.enabled, choice_json);
    "shmem_enabled": string (reading), "the active value" => read(&of.shmem_enabled, choice_json);
    "counters": object, "with the kernel's names" => counters_json(&of.stats);
}

fields! { fn pool_fields(of: HugetlbPool);
    "page_size_bytes": integer, "size of a page" => of.page_size.0;
    "total_pages": integer, "`nr_hugepages`" => of.total;
    "free_pages": integer, "`free_hugepages`" => of.free;
    "reserved_pages": integer, "`resv_hugepages`" => of.reserved;
    "surplus_pages": integer, "`surplus_hugepages`" => of.surplus;
    "overcommit_pages": integer, "`nr_overcommit_hugepages`" => of.overcommit;
}

fields! { fn swap_fields(of: SwapArea);
    "name": string, "file or device" => of.name.as_str();
    "kind": string, "as the kernel prints it" => of.kind.as_str();
    "size_bytes": integer, "size of the area" => of.size.0;
    "used_bytes": integer, "used part of the area" => of.used.0;
}
