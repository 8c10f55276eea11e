//! Choice of the TLB geometry: the user's, else CPUID's, else the table's.

use pagelab_model::machine::{Cpu, CpuidLeaf, Tlb};
use pagelab_model::{Absence, AbsenceReason, Reading};

use crate::{cpuid, table};

/// The TLBs of this processor. `leaves` may be empty: other architectures, saved trees.
pub fn select_geometry(cpu: &Cpu, leaves: &[CpuidLeaf], user_tlb: Option<Tlb>) -> Reading<Tlb> {
    let from_table = || table::find_row(cpu).and_then(table::Row::to_tlb);
    user_tlb.or_else(|| cpuid::decode(leaves)).or_else(from_table).ok_or_else(|| {
        let number = |part: Option<u32>| part.map_or("unknown".to_owned(), |part| part.to_string());
        let (family, model) = (number(cpu.family), number(cpu.model));
        let vendor = if cpu.vendor.is_empty() { "an unknown vendor" } else { &cpu.vendor };
        let cpuid = if leaves.is_empty() { "no CPUID leaves" } else { "the CPUID leaves describe no TLB" };
        let detail = format!(
            "{cpuid}, and the built-in table has no row for {vendor} family {family} model \
                              {model}"
        );
        Absence::new("TLB geometry", AbsenceReason::NotThere, detail).with_hint(
            "use --tlb, for example --tlb l1d=64x4:4K,32x4:2M,l2=2048x16:4K+2M; --probe measures its reach",
        )
    })
}

#[cfg(test)]
mod tests {
    use pagelab_model::Bytes;
    use pagelab_model::machine::{TlbContent, TlbSource};

    use super::*;
    use crate::syntax::{self, tests::DisplayTlb};

    const K4: Bytes = Bytes(4 << 10);
    const M2: Bytes = Bytes(2 << 20);

    fn leaf(leaf: u32, sub_leaf: u32, [eax, ebx, ecx, edx]: [u32; 4]) -> CpuidLeaf {
        CpuidLeaf { leaf, sub_leaf, eax, ebx, ecx, edx }
    }

    fn intel(leaf_2: [u32; 4], leaf_18: &[[u32; 4]]) -> Vec<CpuidLeaf> {
        let mut leaves = vec![leaf(0, 0, [0x20, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]), leaf(2, 0, leaf_2)];
        leaves.extend((0u32..).zip(leaf_18).map(|(sub, registers)| leaf(0x18, sub, *registers)));
        leaves
    }

    /// EAX and EBX of 0x80000005, _0006, _0019, and EAX of _0021.
    fn amd(five: [u32; 2], six: [u32; 2], gibibyte: [u32; 2], features: u32) -> Vec<CpuidLeaf> {
        let pad_registers = |[eax, ebx]: [u32; 2]| [eax, ebx, 0, 0];
        vec![
            leaf(0, 0, [0x10, 0x6874_7541, 0x444d_4163, 0x6974_6e65]),
            leaf(0x8000_0005, 0, pad_registers(five)),
            leaf(0x8000_0006, 0, pad_registers(six)),
            leaf(0x8000_0019, 0, pad_registers(gibibyte)),
            leaf(0x8000_0021, 0, [features, 0, 0, 0]),
        ]
    }

    const GOLDEN_COVE: [[u32; 4]; 9] = [
        [8, 0, 0, 0],
        [0, 0x0008_0001, 0x20, 0x4022],
        [0, 0x0008_0006, 0x04, 0x4022],
        [0, 0x0010_000f, 0x01, 0x4125],
        [0, 0x0004_0001, 0x10, 0x4024],
        [0, 0x0004_0006, 0x08, 0x4024],
        [0, 0x0008_0008, 0x01, 0x4124],
        [0, 0x0008_0007, 0x80, 0x4043],
        [0, 0x0008_0009, 0x80, 0x4043],
    ];
    const REDWOOD_COVE: [[u32; 4]; 9] = [
        [8, 0, 0, 0],
        [0, 0x0008_0001, 0x20, 0x4022],
        [0, 0x0008_0006, 0x04, 0x4022],
        [0, 0x0010_000f, 0x01, 0x4125],
        [0, 0x0006_0001, 0x10, 0x4024],
        [0, 0x0004_0006, 0x08, 0x4024],
        [0, 0x0008_0008, 0x01, 0x4124],
        [0, 0x0008_0007, 0x80, 0x4043],
        [0, 0x0008_0009, 0x80, 0x4043],
    ];
    const ICE_LAKE: [[u32; 4]; 8] = [
        [7, 0, 0, 0],
        [0, 0x0008_0007, 0x01, 0x4122],
        [0, 0x0010_000f, 0x01, 0x4125],
        [0, 0x0004_0001, 0x10, 0x4024],
        [0, 0x0004_0006, 0x08, 0x4024],
        [0, 0x0008_0008, 0x01, 0x4124],
        [0, 0x0008_0007, 0x80, 0x4043],
        [0, 0x0008_0009, 0x80, 0x4043],
    ];
    /// Leaf 2 of processors that have leaf 0x18: ask leaf 0x18 (0xFE), ask leaf 4 (0xFF), prefetching (0xF0).
    const OTHER_LEAVES: [u32; 4] = [0x00fe_ff01, 0xf0, 0, 0];

    /// Registers of real processors, from the dumps that each row of the table names; family and model as in
    /// leaf 1 of the same dump.
    fn recorded_leaves() -> Vec<(&'static str, u32, u32, Vec<CpuidLeaf>)> {
        let leaf_2 = |two| intel(two, &[]);
        let (i, a) = ("GenuineIntel", "AuthenticAMD");
        vec![
            (i, 6, 26, leaf_2([0x5503_5a01, 0x00f0_b2e4, 0, 0x09ca_212c])),
            (i, 6, 44, leaf_2([0x5503_5a01, 0x00f0_b2ff, 0, 0x00ca_0000])),
            (i, 6, 45, leaf_2([0x7603_5a01, 0x00f0_b2ff, 0, 0x00ca_0000])),
            (i, 6, 58, leaf_2([0x7603_5a01, 0x00f0_b0ff, 0, 0x00ca_0000])),
            (i, 6, 60, leaf_2([0x7603_6301, 0x00f0_b5ff, 0, 0x00c1_0000])),
            (i, 6, 79, leaf_2([0x7603_6301, 0x00f0_b5ff, 0, 0x00c3_0000])),
            (i, 6, 85, leaf_2([0x7603_6301, 0x00f0_b5ff, 0, 0x00c3_0000])),
            (i, 6, 142, leaf_2([0x7603_6301, 0x00f0_b5ff, 0, 0x00c3_0000])),
            (i, 6, 126, intel(OTHER_LEAVES, &ICE_LAKE)),
            (i, 6, 167, intel(OTHER_LEAVES, &ICE_LAKE)),
            (i, 6, 170, intel(OTHER_LEAVES, &REDWOOD_COVE)),
            (i, 6, 143, intel(OTHER_LEAVES, &GOLDEN_COVE)),
            (i, 6, 151, intel(OTHER_LEAVES, &GOLDEN_COVE)),
            (i, 6, 207, intel(OTHER_LEAVES, &GOLDEN_COVE)),
            (a, 23, 0x01, amd([0xff40_ff40; 2], [0x3600_6400, 0x5600_6400], [0xf040_f040, 0], 0)),
            (a, 23, 0x71, amd([0xff40_ff40; 2], [0x4800_6400, 0x6800_6400], [0xf040_f040, 0], 0)),
            (
                a,
                25,
                0x01,
                amd([0xff40_ff40; 2], [0x4800_2200, 0x6800_4200], [0xf040_f040, 0xf040_0000], 0x204d),
            ),
            (
                a,
                25,
                0x11,
                amd([0xff48_ff40; 2], [0x5c00_2200, 0x6c00_4200], [0xf048_f040, 0xf040_0000], 0x0006_2fcf),
            ),
            (
                a,
                26,
                0x02,
                amd([0xff60_ff40; 2], [0x4080_2040, 0x6080_4040], [0xf060_f040, 0x4020_0000], 0xd93f_ffcf),
            ),
        ]
    }

    fn cpu(vendor: &str, family: u32, model: u32) -> Cpu {
        Cpu {
            model_name: String::new(),
            vendor: vendor.to_owned(),
            family: Some(family),
            model: Some(model),
            stepping: None,
            threads: 1,
            cores: None,
            physical_bits: None,
            virtual_bits: None,
            clock_khz: None,
            flags: Vec::new(),
        }
    }

    /// Two ways to the same numbers: the registers of a real processor, and the row of the table for it.
    #[test]
    fn recorded_registers_agree_with_the_table() {
        for (vendor, family, model, leaves) in recorded_leaves() {
            let name = format!("{vendor} {family}/{model:#x}");
            let mut decoded = select_geometry(&cpu(vendor, family, model), &leaves, None).unwrap();
            assert!(matches!(decoded.source, TlbSource::Cpuid(_)), "{name}");
            decoded.levels.retain(|tlb| tlb.holds != TlbContent::Instruction);
            // Golden Cove's leaf says 64 entries where Intel's manual says 96, as does the row.
            let table = select_geometry(&cpu(vendor, family, model), &[], None).unwrap();
            assert!(matches!(table.source, TlbSource::Assumed(_)), "{name}");
            let shown = DisplayTlb(&decoded).to_string();
            let golden = table.levels[0].entries == 96 && vendor == "GenuineIntel";
            let shown = if golden { shown.replace("l1d=64x4:4K", "l1d=96x6:4K") } else { shown };
            assert_eq!(shown, DisplayTlb(&table).to_string(), "{name}");
        }
    }

    /// A Firecracker guest with AMX and the L1 caches of Redwood Cove, whose model is that of Rocket Lake.
    #[test]
    fn a_hypervisor_may_report_another_model_than_the_processors() {
        let geometry = |model, flags: &[&str]| {
            let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
            let tlb = select_geometry(&Cpu { flags, ..cpu("GenuineIntel", 6, model) }, &[], None).unwrap();
            let TlbSource::Assumed(row) = &tlb.source else { panic!("{:?}", tlb.source) };
            (tlb.levels[0].entries, row.clone())
        };
        let (entries, row) = geometry(167, &["avx2", "amx_tile"]);
        assert!(
            entries == 96 && row.starts_with("a core with AMX that is reported as another model"),
            "{row}"
        );
        let (entries, row) = geometry(167, &["avx2"]);
        assert!(entries == 64 && row.starts_with("Ice Lake, Rocket Lake"), "{row}");
        // A model that is not known has AMX too, and a known one keeps its row.
        assert_eq!(geometry(255, &["amx_tile"]).0, 96);
        assert!(geometry(207, &["amx_tile"]).1.starts_with("Sapphire Rapids, Emerald Rapids"));
        let amd = Cpu { flags: vec!["amx_tile".to_owned()], ..cpu("AuthenticAMD", 15, 107) };
        assert!(table::find_row(&amd).is_none());
    }

    #[test]
    fn every_row_parses_and_has_a_source() {
        for row in table::ROWS {
            let tlb = row.to_tlb().unwrap_or_else(|| panic!("{} does not parse", row.name));
            assert_eq!(DisplayTlb(&tlb).to_string(), row.geometry, "{}", row.name);
            assert!(!row.source.is_empty() && tlb.reach(K4).is_some());
        }
    }

    #[test]
    fn reach_adds_up_tlbs_of_one_level() {
        let emerald = select_geometry(&cpu("GenuineIntel", 6, 207), &[], None).unwrap();
        assert_eq!(emerald.reach(K4), Some(Bytes(8 << 20)));
        assert_eq!(emerald.reach(M2), Some(Bytes(2 << 30)));
        let westmere = select_geometry(&cpu("GenuineIntel", 6, 44), &[], None).unwrap();
        assert_eq!(westmere.reach(M2), Some(Bytes(64 << 20)), "its second level holds no 2 MiB pages");
        assert_eq!(westmere.reach(Bytes(1 << 30)), None);
    }

    /// A Firecracker guest on family 6 model 207: highest leaf 0x20, leaf 0x18 all zero.
    #[test]
    fn empty_leaves_fall_back_to_the_table_and_then_to_an_absence() {
        let mut leaves = intel(OTHER_LEAVES, &[[0; 4]]);
        leaves.extend([leaf(0x8000_0005, 0, [0; 4]), leaf(0x8000_0006, 0, [0, 0, 0x0800_7040, 0])]);
        let tlb = select_geometry(&cpu("GenuineIntel", 6, 207), &leaves, None).unwrap();
        let TlbSource::Assumed(row) = &tlb.source else { panic!("{:?}", tlb.source) };
        assert!(row.starts_with("Sapphire Rapids, Emerald Rapids; "), "{row}");
        let absent = select_geometry(&cpu("GenuineIntel", 6, 255), &leaves, None).unwrap_err();
        assert_eq!(
            absent.reason(),
            "the CPUID leaves describe no TLB, and the built-in table has no row for GenuineIntel family 6 \
             model 255"
        );
        assert!(absent.hint.unwrap().contains("--tlb"));
        let given = syntax::parse("l2=100:4K").unwrap();
        assert_eq!(select_geometry(&cpu("GenuineIntel", 6, 255), &leaves, Some(given.clone())), Ok(given));
    }

    #[test]
    fn placeholders_and_hostile_registers_are_no_geometry() {
        let qemu = amd([0x01ff_01ff; 2], [0, 0x4200_4200], [0; 2], 0);
        assert!(select_geometry(&cpu("AuthenticAMD", 15, 107), &qemu, None).is_err());
        let old_qemu_intel = intel([1, 0, 0, 0x002c_307d], &[]);
        assert!(select_geometry(&cpu("GenuineIntel", 6, 6), &old_qemu_intel, None).is_err());
        let all_ones: Vec<[u32; 4]> = vec![[u32::MAX; 4]; 3];
        for leaves in
            [intel([u32::MAX; 4], &all_ones), amd([u32::MAX; 2], [u32::MAX; 2], [u32::MAX; 2], u32::MAX)]
        {
            let _ = select_geometry(&cpu("", 0, 0), &leaves, None);
        }
    }
}
