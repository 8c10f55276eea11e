//! Data TLBs by processor, for machines whose CPUID leaves are empty, as they are in many virtual machines.
//!
//! Each row has a published source. "Dump" is a CPUID dump of a real processor in
//! the tests of libcpuid (github.com/anrieff/libcpuid, folder tests); this crate's own tests decode the same
//! registers and compare. Models of AMD's families are as in the kernel's arch/x86/kernel/cpu/amd.c. That the
//! other models of a row are like the dumped one, because they have the same core, is an assumption: all that
//! comes from here is printed as assumed, with the processor that was dumped.

use std::ops::RangeInclusive;

use pagelab_model::machine::{Cpu, Tlb, TlbSource};

use crate::syntax;

/// One row: processors, their TLBs, and the source.
#[derive(Debug)]
pub struct Row {
    /// Vendor as in `/proc/cpuinfo`, and family; on Arm the implementer's number, and no family.
    family: (&'static str, Option<u32>),
    /// Models; on Arm the part number.
    models: &'static [RangeInclusive<u32>],
    /// Name of the core.
    pub name: &'static str,
    /// Geometry in the syntax of `--tlb`: data and unified TLBs only.
    pub geometry: &'static str,
    /// Source of the geometry.
    pub source: &'static str,
}

const INTEL: (&str, Option<u32>) = ("GenuineIntel", Some(6));
const ZEN_1_2: (&str, Option<u32>) = ("AuthenticAMD", Some(23));
const ZEN_3_4: (&str, Option<u32>) = ("AuthenticAMD", Some(25));
const ZEN_5: (&str, Option<u32>) = ("AuthenticAMD", Some(26));
const ARM: (&str, Option<u32>) = ("0x41", None);

const SUNNY_COVE: &str =
    "l1d=64x4:4K,32x4:2M+4M,8xfull:1G,l1s=16xfull:4K+2M+4M+1G,l2=1024x8:4K+2M+4M,1024x8:4K+1G";
const GOLDEN_COVE: &str =
    "l1d=96x6:4K,32x4:2M+4M,8xfull:1G,l1s=16xfull:4K+2M+4M+1G,l2=1024x8:4K+2M+4M,1024x8:4K+1G";

/// All rows.
pub const ROWS: &[Row] = &[
    Row {
        family: INTEL,
        models: &[26..=26, 30..=31, 37..=37, 44..=44, 46..=47],
        name: "Nehalem, Westmere",
        geometry: "l1d=64x4:4K,32x4:2M+4M,l2=512x4:4K",
        source: "dumps of Core i7-920 and i7-980X, leaf 2",
    },
    Row {
        family: INTEL,
        models: &[42..=42, 45..=45, 58..=58, 62..=62],
        name: "Sandy Bridge, Ivy Bridge",
        geometry: "l1d=64x4:4K,32x4:2M+4M,l2=512x4:4K",
        source: "dumps of Core i7-3930K and i5-3570K, leaf 2",
    },
    Row {
        family: INTEL,
        models: &[60..=60, 63..=63, 69..=70],
        name: "Haswell",
        geometry: "l1d=64x4:4K,32x4:2M+4M,4xfull:1G,l2=1024x8:4K+2M",
        source: "dump of Core i7-4710MQ, leaf 2",
    },
    Row {
        family: INTEL,
        models: &[61..=61, 71..=71, 79..=79, 86..=86],
        name: "Broadwell",
        geometry: "l1d=64x4:4K,32x4:2M+4M,4xfull:1G,l2=1536x6:4K+2M,16x4:1G",
        source: "dump of Core i7-6950X, leaf 2",
    },
    Row {
        family: INTEL,
        models: &[78..=78, 85..=85, 94..=94, 142..=142, 158..=158],
        name: "Skylake, Cascade Lake, Kaby Lake",
        geometry: "l1d=64x4:4K,32x4:2M+4M,4xfull:1G,l2=1536x6:4K+2M,16x4:1G",
        source: "dumps of Core i7-7820X and i7-7500U, leaf 2",
    },
    Row {
        family: INTEL,
        models: &[106..=106, 108..=108, 125..=126, 167..=167],
        name: "Ice Lake, Rocket Lake",
        geometry: SUNNY_COVE,
        source: "dumps of Core i3-1005G1 and i7-11700K, leaf 0x18",
    },
    Row {
        family: INTEL,
        models: &[143..=143, 207..=207],
        name: "Sapphire Rapids, Emerald Rapids",
        geometry: GOLDEN_COVE,
        source: "dumps of Xeon w7-2475X and 8570, leaf 0x18, but 96 entries as in Intel's manual, not 64",
    },
    Row {
        family: INTEL,
        models: &[170..=170, 173..=174],
        name: "Meteor Lake performance core, Granite Rapids",
        geometry: GOLDEN_COVE,
        source: "dump of Core Ultra 7 155H, leaf 0x18",
    },
    Row {
        family: INTEL,
        models: &[151..=151, 154..=154],
        name: "Alder Lake performance core",
        geometry: GOLDEN_COVE,
        source: "dump of Pentium Gold G7400, leaf 0x18, but 96 entries as in Intel's manual, not 64",
    },
    Row {
        family: ZEN_1_2,
        models: &[0..=0x2f, 0x50..=0x5f],
        name: "Zen",
        geometry: "l1d=64xfull:4K,64xfull:2M,64xfull:1G,l2d=1536x6:4K,1536x3:2M",
        source: "dump of EPYC 7551P, leaves 0x80000005 to 0x80000019",
    },
    Row {
        family: ZEN_1_2,
        models: &[0x30..=0x4f, 0x60..=0x7f, 0x90..=0x91, 0xa0..=0xaf],
        name: "Zen 2",
        geometry: "l1d=64xfull:4K,64xfull:2M,64xfull:1G,l2d=2048x8:4K,2048x4:2M",
        source: "dump of Ryzen 3 3100, leaves 0x80000005 to 0x80000019",
    },
    Row {
        family: ZEN_3_4,
        models: &[0..=0x0f, 0x20..=0x5f],
        name: "Zen 3",
        geometry: "l1d=64xfull:4K,64xfull:2M,64xfull:1G,l2d=2048x8:4K,2048x4:2M,64xfull:1G",
        source: "dump of EPYC 7713, leaves 0x80000005 to 0x80000019",
    },
    Row {
        family: ZEN_3_4,
        models: &[0x10..=0x1f, 0x60..=0xaf],
        name: "Zen 4",
        geometry: "l1d=72xfull:4K,72xfull:2M,72xfull:1G,l2d=3072x8:4K,3072x6:2M,64xfull:1G",
        source: "dump of EPYC 9124, leaves 0x80000005 to 0x80000019",
    },
    Row {
        family: ZEN_5,
        models: &[0..=0x2f, 0x40..=0x4f, 0x60..=0x7f],
        name: "Zen 5",
        geometry: "l1d=96xfull:4K,96xfull:2M,96xfull:1G,l2d=4096x8:4K,4096x4:2M,1024x4:1G",
        source: "dump of EPYC 9655, leaves 0x80000005 to 0x80000021",
    },
    Row {
        family: ARM,
        models: &[0xd05..=0xd05],
        name: "Cortex-A55",
        geometry: "l1d=16xfull:4K+16K+64K+2M,l2=1024x4:4K+16K+64K+2M",
        source: "Intel Agilex 5 reference manual, section 3.6.3.4.1",
    },
    Row {
        family: ARM,
        models: &[0xd0b..=0xd0b],
        name: "Cortex-A76",
        geometry: "l1d=48xfull:4K+16K+64K+2M,l2=1280x5:4K+16K+64K+2M",
        source: "Intel Agilex 5 reference manual, section 3.5.3.4.1",
    },
];

/// A core with AMX under the number of a model without it: hypervisors report other models than the
/// processor's. All such cores from Golden Cove to Redwood Cove have these TLBs.
const OTHER_MODEL_WITH_AMX: Row = Row {
    family: INTEL,
    models: &[],
    name: "a core with AMX that is reported as another model",
    geometry: GOLDEN_COVE,
    source: "dumps of Xeon 8570 and Core Ultra 7 155H, leaf 0x18",
};

/// The row for a processor.
pub fn find_row(cpu: &Cpu) -> Option<&'static Row> {
    let model = cpu.model?;
    let is_family = |(vendor, family): (&str, Option<u32>)| {
        vendor == cpu.vendor && (family.is_none() || family == cpu.family)
    };
    let of_model = ROWS
        .iter()
        .find(|row| is_family(row.family) && row.models.iter().any(|models| models.contains(&model)));
    let has_amx = is_family(INTEL) && cpu.flags.iter().any(|flag| flag == "amx_tile");
    match of_model {
        Some(row) if !has_amx || row.geometry == GOLDEN_COVE => Some(row),
        _ if has_amx => Some(&OTHER_MODEL_WITH_AMX),
        found => found,
    }
}

impl Row {
    /// The TLBs, marked as assumed; `None` is a slip in the table, which a test excludes.
    pub fn to_tlb(&self) -> Option<Tlb> {
        let tlb = syntax::parse(self.geometry).ok()?;
        Some(Tlb { source: TlbSource::Assumed(format!("{}; {}", self.name, self.source)), ..tlb })
    }
}
