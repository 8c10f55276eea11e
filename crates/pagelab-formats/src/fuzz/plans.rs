//! Fuzz targets of plans of huge pages.

use pagelab_model::Bytes;

use super::{Target, checked, filled};
use crate::{largepages, plan_toml, region_counts};

pub(super) const PLAN: Target =
    Target { name: "plan_toml", run: run_plan, seeds: &[WRITTEN, BY_HAND, b"0x187b1400000\n2097152\n"] };
pub(super) const LARGEPAGES: Target = Target {
    name: "largepages",
    run: run_largepages,
    seeds: &[b"1682305974272 # first\n\n0x187b5000000\r\n", b"0\n2097152\n"],
};
pub(super) const REGION_COUNTS: Target =
    Target { name: "region_counts", run: run_region_counts, seeds: &[COUNTS] };

const COUNTS: &[u8] = b"Region (Hex): 0x187bae00000, Region (Decimal): 1682467454976, L2 Misses: 99\n\
Region (Hex): 0x1879b000000, Region (Decimal): 1681932681216, L2 Misses: 221\n";

const WRITTEN: &[u8] = b"pagelab-plan = 1\nsource = \"exact\"\ncommand = [\"a\", \"b\\\"\"]\n\
predicted = { speedup = 1.240, all = 1.3, share = 0.9 }\n[[program]]\npath = \"/a\"\nbytes = 12\n\
identity = \"ff\"\n[[program.mapping]]\nkind = \"anonymous\"\nasked = 8388608\nnth = 1\n\
start = 0x7f0000001000\nbytes = 8388608\n\
regions = [\n  { offset = 0x1ff000, page = \"2M\", cost-ns = 7 },\n]\n\
cells = [\n  [0x0, 0x8000, 1], [0x8000, 0x1000, 2],\n]\n\
[[program.mapping]]\nkind = \"file\"\nfile = \"/b\"\nregions = [{ offset = 0 }]\n";

const BY_HAND: &[u8] = b"addresses = [0x187b1400000, 2097152]\npage = \"2M\"\n";

/// Whatever is read as a plan is written as a text that is read as the same plan.
fn run_plan(input: &[u8]) {
    let Some(plan) = checked(input, plan_toml::parse(input, Bytes(1 << 21))) else { return };
    let regions = |plan: &pagelab_model::HugePlan| {
        plan.programs.iter().flat_map(|program| &program.mappings).map(|of| of.regions.len()).sum::<usize>()
    };
    assert!(regions(&plan) > 0 && regions(&plan) <= input.len());
    let text = plan_toml::write(&plan, &["a\nb".to_owned()]);
    assert_eq!(plan_toml::parse(text.as_bytes(), Bytes(1)).unwrap_or_else(|error| panic!("{error}")), plan);
}

fn run_largepages(input: &[u8]) {
    let Some(addresses) = checked(input, largepages::parse(input)) else { return };
    assert!(!addresses.is_empty() && addresses.len() <= filled(input));
    assert_eq!(largepages::parse(largepages::write(&addresses).as_bytes()).ok(), Some(addresses));
}

fn run_region_counts(input: &[u8]) {
    let Some(counts) = checked(input, region_counts::parse(input)) else { return };
    assert!(!counts.is_empty() && counts.len() <= filled(input));
    assert!(region_counts::is_one(input));
}
