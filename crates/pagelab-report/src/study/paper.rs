//! What the paper says of a figure, where the configuration is one of its own.

use pagelab_model::paper::{BREAKDOWN, FIGURE_11, LINEAR, POSSIBLE, PPC64_ZONE};
use pagelab_model::study::StudyCell;

const MIB: u64 = 1 << 20;
const REST: &str = "highalloc at rest";
const COMPILE: &str = "hugetlb during compile";

/// What a page says of figures that have it.
pub const NOTE: &str = "\u{201c}In the paper\u{201d}: Gorman and Whitcroft, Ottawa Linux Symposium 2006, \
    Figure 11 and sections 8.2 and 10, one run each; its two equal kernels differ by up to 72 to 20 \
    huge pages";

/// What the paper says of a figure of a configuration, in the figure's unit; `None`: nothing, or the
/// configuration is none of the paper's.
pub fn said(cell: &StudyCell, phase: &str, name: &str) -> Option<f64> {
    if !cell.parameters.is_empty() {
        return None;
    }
    let load = cell.load.as_str();
    match cell.machine.as_str() {
        "x86" if load == "hugetlb-capability" && (phase, name) == (COMPILE, "huge pages") => {
            // Section 10: one test more than in Figure 11, and other figures.
            let column = ["standard", "zone", "zone+linear"].iter().position(|of| *of == cell.scheme)?;
            let is_usual = column == 0 || cell.kernelcore.is_none_or(|core| core == 1024 * MIB);
            is_usual.then(|| LINEAR[column] as f64)
        }
        "x86" if matches!(cell.scheme.as_str(), "list" | "list2") => {
            let column = ["paper-light", "paper"].iter().position(|of| *of == load)?;
            ((phase, name) == (REST, "from Normal")).then(|| BREAKDOWN[column] as f64)
        }
        "x86" if matches!(load, "paper" | "highalloc" | "hugetlb-capability") => {
            let column = column(cell)?;
            let of = |name: &str| FIGURE_11.iter().find(|row| (row.phase, row.name) == (phase, name));
            match name {
                "success" => Some(of("huge pages")?.cells[column] as f64 / POSSIBLE as f64),
                _ => Some(of(name)?.cells[column] as f64),
            }
        }
        "ppc64" if load == "paper" && cell.scheme == "zone" => {
            let is_half = cell.kernelcore.is_none_or(|core| core == 2048 * MIB);
            let is_it = is_half && (phase, name) == (REST, "F_u(12) at the end");
            is_it.then(|| PPC64_ZONE as f64 / 100.0)
        }
        _ => None,
    }
}

/// The column of Figure 11: clean, zone-0MB, zone-1024MB.
fn column(cell: &StudyCell) -> Option<usize> {
    match (cell.scheme.as_str(), cell.kernelcore) {
        ("standard", _) => Some(0),
        ("zone", Some(core)) if core == 1536 * MIB => Some(1),
        ("zone", None) => Some(2),
        ("zone", Some(core)) if core == 1024 * MIB => Some(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(machine: &str, scheme: &str, load: &str, kernelcore: Option<u64>) -> StudyCell {
        StudyCell {
            machine: machine.to_owned(),
            kernelcore: kernelcore.map(|mib| mib * MIB),
            scheme: scheme.to_owned(),
            load: load.to_owned(),
            parameters: Vec::new(),
            values: Vec::new(),
            lists: Vec::new(),
            zones: Vec::new(),
        }
    }

    #[test]
    fn the_papers_cells_are_found_where_the_configuration_is_its_own() {
        const FIRST: &str = "highalloc under load, pass 1";
        for (machine, scheme, load, core, phase, name, expected) in [
            ("x86", "standard", "highalloc", None, FIRST, "huge pages", Some(72.0)),
            ("x86", "standard", "paper", Some(1024), FIRST, "from HighMem", Some(66.0)),
            ("x86", "zone", "highalloc", None, FIRST, "huge pages", Some(82.0)),
            ("x86", "zone", "highalloc", Some(1536), FIRST, "huge pages", Some(20.0)),
            ("x86", "zone", "highalloc", Some(768), FIRST, "huge pages", None),
            ("x86", "zone", "highalloc-light", None, FIRST, "huge pages", None),
            ("x86", "zone+linear", "highalloc", None, FIRST, "huge pages", None),
            ("x86", "zone+linear", "hugetlb-capability", None, COMPILE, "huge pages", Some(41.0)),
            ("x86", "standard", "hugetlb-capability", None, COMPILE, "huge pages", Some(6.0)),
            ("x86", "standard", "paper", None, COMPILE, "huge pages", Some(5.0)),
            ("x86", "list", "paper-light", None, REST, "from Normal", Some(119.0)),
            ("x86", "list", "paper", None, REST, "from Normal", Some(77.0)),
            ("x86", "list2", "paper", None, REST, "from Normal", Some(77.0)),
            ("x86", "list3", "paper", None, REST, "from Normal", None),
            ("x86", "list", "paper", None, REST, "huge pages", None),
            ("ppc64", "zone", "paper", None, REST, "F_u(12) at the end", Some(0.66)),
            ("ppc64", "standard", "paper", None, REST, "F_u(12) at the end", None),
            ("16G", "standard", "highalloc", None, FIRST, "huge pages", None),
        ] {
            let cell = cell(machine, scheme, load, core);
            assert_eq!(said(&cell, phase, name), expected, "{machine} {scheme} {load} {phase}/{name}");
        }
        let share = said(&cell("x86", "standard", "highalloc", None), REST, "success").unwrap();
        // 29 % in the paper.
        assert_eq!((share * 100.0).round(), 29.0);
        let changed = StudyCell {
            parameters: vec![("builds".to_owned(), 7)],
            ..cell("x86", "standard", "highalloc", None)
        };
        assert_eq!(said(&changed, FIRST, "huge pages"), None);
    }
}
