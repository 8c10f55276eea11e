//! Test that the guide lists each policy and each reclaim method.

use pagelab_sim::machine::reclaim_policies;
use pagelab_sim::policies;

#[test]
fn the_guide_has_each_line_of_the_tables() {
    let guide = include_str!("../../../docs/policies.md");
    let placements = policies::TABLE.iter().map(|of| (of.name, of.summary, of.source));
    let ways = reclaim_policies::TABLE.iter().map(|of| (of.name, of.summary, of.source));
    let missing: Vec<String> = placements
        .chain(ways)
        .map(|(name, summary, source)| format!("| `{name}` | {summary} | {source} |"))
        .filter(|line| !guide.contains(line))
        .collect();
    assert!(missing.is_empty(), "add to its table in docs/policies.md:\n{}", missing.join("\n"));
}
