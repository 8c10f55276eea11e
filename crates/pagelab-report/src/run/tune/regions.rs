//! Misses by region: before, with the plan, and both on one scale.

use pagelab_metrics::tune::regions::{Region, regions};
use pagelab_model::Profile;
use pagelab_model::profile::{MappingKey, MappingKind, ProfileSource};
use pagelab_model::run::Run;
use pagelab_model::tune::Tune;

use super::super::{View, clipped};
use crate::misses::some;
use crate::style::{bytes, count};
use crate::text::{Column, Page};

/// Regions that the summary shows.
const SHOWN: usize = 12;
/// Regions that everything shows.
const SHOWN_MOST: usize = 512;
/// Signs of the longest bar.
const BAR: u64 = 15;

/// Why there is no second count.
fn not_recounted(source: ProfileSource, tune: &Tune) -> &'static str {
    match (source, tune.plan_file.is_empty()) {
        (_, true) => "nothing is planned",
        (ProfileSource::Exact, _) => {
            "not recounted with the plan: --quick leaves that out, or it was stopped or failed"
        }
        _ => "not recounted with the plan (--source exact does)",
    }
}

pub(super) fn show(page: &mut Page, run: &Run, tune: &Tune, view: View) {
    let Some(profile) = &run.profile else { return };
    let found = regions(tune, profile);
    let shown = if view.verbose { SHOWN_MOST } else { SHOWN };
    let has_after = found.first().is_some_and(|region| region.after.is_some());
    let Some(most) = found.first().map(|region| region.before).filter(|misses| *misses > 0) else { return };
    // Both counts on one scale: what stays is full, what went is light.
    let signs = |misses: u64| {
        let of = u128::from(misses) * u128::from(BAR);
        usize::try_from(of.div_ceil(u128::from(most))).unwrap_or(0)
    };
    let bar = |region: &Region| {
        let stays = region.after.unwrap_or(region.before);
        let went = signs(region.before).saturating_sub(signs(stays));
        format!("{}{}", "█".repeat(signs(stays)), "░".repeat(went))
    };
    let row = |region: &Region| {
        vec![
            clipped(&name(&region.key), 28),
            offset(region.offset),
            if region.is_planned { "planned" } else { "" }.to_owned(),
            some(profile, region.before.into()),
            region.after.map_or(String::new(), |misses| some(profile, misses.into())),
            bar(region),
        ]
    };
    page.gap();
    page.hanging("", &sums(profile, tune, &found, has_after));
    let rows: Vec<Vec<String>> = found.iter().take(shown).map(row).collect();
    let columns = [
        Column::left("mapping"),
        Column::right("offset"),
        Column::left(""),
        Column::right("before"),
        Column::right("plan"),
        Column::left(if has_after { "█ stays ░ went" } else { "" }),
    ];
    let kept: &[&[usize]] = match has_after {
        true => &[&[0, 1, 2, 3, 4, 5], &[0, 1, 3, 4], &[0, 3]],
        false => &[&[0, 1, 2, 3, 5], &[0, 1, 3], &[0, 3]],
    };
    for kept in kept {
        let columns: Vec<Column<'_>> = kept.iter().map(|at| columns[*at]).collect();
        let cut: Vec<Vec<String>> =
            rows.iter().map(|row| kept.iter().map(|at| row[*at].clone()).collect()).collect();
        if page.table_if_it_fits(2, &columns, &cut) {
            break;
        }
    }
    if found.len() > shown {
        let rest: u128 = found[shown..].iter().map(|region| u128::from(region.before)).sum();
        let (regions, rest) = (count((found.len() - shown) as u128), some(profile, rest));
        page.hanging_dim("  ", &format!("{regions} more regions have {rest} misses"));
    }
}

/// All misses, and those that the plan leaves.
fn sums(profile: &Profile, tune: &Tune, found: &[Region], has_after: bool) -> String {
    let sum = |of: fn(&Region) -> u64| found.iter().map(of).map(u128::from).sum::<u128>();
    let before = some(profile, sum(|region| region.before));
    if has_after {
        let after = some(profile, sum(|region| region.after.unwrap_or(0)));
        return format!("misses by region: {before} before, {after} recounted with the plan");
    }
    let before = profile.misses_interval().map_or(before, |_| crate::misses::all(profile));
    format!("misses by region: {before}; {}", not_recounted(profile.source, tune))
}

/// `anonymous 1 GiB`, `anonymous 1 GiB #2`, `heap`, a file's path.
pub(crate) fn name(key: &MappingKey) -> String {
    let nth = if key.nth > 0 { format!(" #{}", u64::from(key.nth) + 1) } else { String::new() };
    match &key.kind {
        MappingKind::Anonymous => format!("anonymous {}{nth}", bytes(key.bytes)),
        MappingKind::Shared => format!("shared {}{nth}", bytes(key.bytes)),
        MappingKind::Heap => "heap".to_owned(),
        MappingKind::Stack => "stack".to_owned(),
        MappingKind::File(path) => format!("{path}{nth}"),
        MappingKind::Placed => "address".to_owned(),
    }
}

fn offset(offset: i64) -> String {
    let sign = if offset < 0 { "-" } else { "+" };
    format!("{sign}{:#x}", offset.unsigned_abs())
}
