//! Free blocks by migratetype, from a pagetypeinfo: what a movable request can take, and pageblocks.

use pagelab_metrics::capped_index::{format_bounds, fragmentation_bounds, unusable_bounds};
use pagelab_metrics::movable_request::MovableAccess;
use pagelab_model::pagetype::{CappedAreas, CappedCount, MigratetypeFreeAreas, Pagetypeinfo};
use pagelab_model::{Order, ZoneKey};

use super::{
    FragText, explain_unusable, format_block_count, format_zone_unusable, free_memory_text, mark_lower_bound,
    orders_of, suitable_blocks_text, sum_steps,
};
use crate::style::{format_bytes, format_count, format_percent};
use crate::text_report::{RowTable, display_width};

/// The answer for the migratetypes of an access, and its source in the kernel.
const ACCESS_LINES: [(MovableAccess, &str, &str); 4] = [
    (MovableAccess::Usable, "served from", " (fallbacks[] in mm/page_alloc.c)"),
    (
        MovableAccess::Cma,
        "counted separately:",
        " (only for movable requests, with ALLOC_CMA, until the owner claims it)",
    ),
    (MovableAccess::Refused, "never served from", " (rmqueue_buddy in mm/page_alloc.c)"),
    (MovableAccess::Unknown, "not counted:", ", unknown to this version"),
];

/// Migratetypes of a pagetypeinfo, in the kernel's order.
fn migratetype_names(types: &Pagetypeinfo) -> Vec<&str> {
    let Some(first) = types.free.first() else { return Vec::new() };
    let rows = types.free.iter().take_while(|row| row.key == first.key);
    rows.map(|row| row.migratetype.as_str()).collect()
}

/// `Unmovable, Movable and Reclaimable`: the migratetypes of an access.
fn list_types(types: &Pagetypeinfo, access: MovableAccess) -> Option<String> {
    let names = migratetype_names(types);
    let names: Vec<&str> =
        names.into_iter().filter(|name| MovableAccess::of_migratetype(name) == access).collect();
    match names.split_last()? {
        (last, []) => Some((*last).to_owned()),
        (last, rest) => Some(format!("{} and {last}", rest.join(", "))),
    }
}

/// Writes what a movable request can take, a line per zone.
pub(super) fn write_movable_summary(output: &mut FragText<'_>, types: &Pagetypeinfo) {
    let (report, style) = (output.report, output.style);
    let (order, page_size) = (report.order, report.page_size);
    output.write_line("");
    output.write_line(&style.paint_bold("  for a movable request"));
    let areas = |key: &ZoneKey, access: MovableAccess| access.free_areas(types, key);
    let cell = |key: &ZoneKey, access: MovableAccess, text: &dyn Fn(&CappedAreas) -> String| {
        areas(key, access).map_or("unknown".to_owned(), |areas| text(&areas))
    };
    let now = format!("{} now", format_bytes(page_size.block_bytes(order)));
    let has_cma = list_types(types, MovableAccess::Cma).is_some();
    let table = RowTable::<&ZoneKey>::new()
        .right("node", |key| key.node.0.to_string())
        .left("zone", |key| key.zone.clone())
        .right("free", |key| cell(key, MovableAccess::Usable, &|areas| free_memory_text(areas, page_size)))
        .right(now.clone(), |key| {
            cell(key, MovableAccess::Usable, &|areas| suitable_blocks_text(areas, order))
        })
        .right(format!("F_u({})", order.0), |key| {
            cell(key, MovableAccess::Usable, &|areas| format_zone_unusable(areas, order))
        })
        .right_if(has_cma, "CMA free", |key| {
            cell(key, MovableAccess::Cma, &|areas| free_memory_text(areas, page_size))
        })
        .right_if(has_cma, now, |key| {
            cell(key, MovableAccess::Cma, &|areas| suitable_blocks_text(areas, order))
        });
    table.lines(2, types.zone_keys()).iter().for_each(|line| output.write_line(line));
    for (access, answer, source) in ACCESS_LINES {
        if let Some(names) = list_types(types, access) {
            let line = format!("{answer} {names}{source}");
            output.write_line(&style.paint_dim(&style.wrap_text(&line, 2, 4)));
        }
    }
}

/// Writes the free blocks of one zone by order and migratetype, and its pageblocks.
pub(super) fn write_zone_types(output: &mut FragText<'_>, types: &Pagetypeinfo, key: &ZoneKey) {
    let rows: Vec<&MigratetypeFreeAreas> = types.free.iter().filter(|row| row.key == *key).collect();
    let is_filled = |row: &MigratetypeFreeAreas| row.counts.iter().any(|count| count.at_least() > 0);
    let (filled, empty): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| is_filled(row));
    output.write_line("");
    let mut rest = filled.as_slice();
    while !rest.is_empty() {
        // As many types as fit beside each other.
        let fitting = (1..=rest.len()).rev().find(|&taken| {
            let lines = type_lines(output, &rest[..taken]);
            taken == 1 || lines.iter().all(|line| display_width(line) <= output.style.width)
        });
        let (taken, later) = rest.split_at(fitting.unwrap_or(1));
        type_lines(output, taken).iter().for_each(|line| output.write_line(line));
        rest = later;
    }
    let style = output.style;
    let names: Vec<&str> = empty.iter().map(|row| row.migratetype.as_str()).collect();
    if !names.is_empty() {
        output.write_line(&style.wrap_text(&format!("no free block: {}", names.join(", ")), 2, 4));
    }
    output.write_line(&style.wrap_text(&pageblocks_text(output, types, key), 2, 4));
}

fn type_lines(output: &FragText<'_>, rows: &[&MigratetypeFreeAreas]) -> Vec<String> {
    let page_size = output.report.page_size;
    let mut table = RowTable::<Order>::new()
        .right("order", |order: &Order| order.0.to_string())
        .right("block", move |order: &Order| format_bytes(page_size.block_bytes(*order)));
    for row in rows {
        let counts = row.counts.clone();
        table = table.right(row.migratetype.clone(), move |order: &Order| match counts.get(order.index()) {
            Some(CappedCount::Exact(count)) => format_count(u128::from(*count)),
            Some(CappedCount::MoreThan(count)) => format!(">{}", format_count(u128::from(*count))),
            None => String::new(),
        });
    }
    let orders = rows.first().map_or(0, |row| row.counts.len());
    table.lines(2, (0..orders).map(|order| Order(order as u8)))
}

/// `1024 pageblocks of 2 MiB: Unmovable 16 (1.6 %), …`.
fn pageblocks_text(output: &FragText<'_>, types: &Pagetypeinfo, key: &ZoneKey) -> String {
    let Some(row) = types.blocks.iter().find(|row| row.key == *key) else {
        return "pageblocks: unknown, the input has no pageblock table".to_owned();
    };
    let total: u128 = row.counts.iter().map(|&(_, count)| u128::from(count)).sum();
    let cells = row.counts.iter().filter(|&&(_, count)| count > 0).map(|(name, count)| {
        let share = format_percent(*count as f64 / total as f64);
        format!("{name} {} ({share})", format_count(u128::from(*count)))
    });
    let size = types.pageblock_order.map_or(" of unknown size".to_owned(), |order| {
        format!(" of {}", format_bytes(output.report.page_size.block_bytes(order)))
    });
    let cells: Vec<String> = cells.collect();
    format!("{} pageblocks{size}: {}", format_count(total), cells.join(", "))
}

/// Explains the indices of a zone of which the kernel capped some counts.
pub(super) fn explain_capped_zone(output: &mut FragText<'_>, areas: &CappedAreas, order: Order) {
    write_counts(output, "k", areas);
    let pages = |from: Order| {
        let mut steps = sum_steps(&areas.counts_min, from, format!("Σ 2^i × k(i) over i ≥ {}", from.0));
        if !areas.is_exact_from(from)
            && let Some(last) = steps.pop()
        {
            steps.push(format!("at least {last}"));
        }
        steps
    };
    output.write_equation("free  ", &pages(Order(0)));
    output.write_equation("usable", &pages(order));
    output.write_line("");
    explain_capped_unusable(output, areas, order);
    output.write_line("");
    let fragmentation = format_bounds(fragmentation_bounds(areas, order));
    output.write_equation(&format!("F_i({})", order.0), &[fragmentation]);
}

fn write_counts(output: &mut FragText<'_>, name: &str, areas: &CappedAreas) {
    let largest = areas.counts_min.orders().saturating_sub(1);
    let counts: Vec<String> = orders_of(&areas.counts_min)
        .map(|order| format_block_count(areas, order).replace('\u{202f}', ""))
        .collect();
    output.write_equation(
        &format!("{name}(i), i = 0…{largest}"),
        &[format!("{} free blocks of 2^i pages", counts.join(" "))],
    );
}

fn explain_capped_unusable(output: &mut FragText<'_>, areas: &CappedAreas, order: Order) {
    let bounds = unusable_bounds(areas, order);
    output.write_equation(
        &format!("F_u({})", order.0),
        &["(free − usable) / free".to_owned(), format_bounds(bounds)],
    );
    output.write_meaning(match (bounds.permille_min, bounds.permille_max) {
        (min, max) if min == max => "the capped counts do not affect it.",
        (0, 1000) => {
            "unknown: the kernel capped counts (>) both below this order, where more blocks raise F_u, and \
             from this order up, where more blocks lower it."
        }
        (0, _) => {
            "an upper bound: the kernel capped the count (>) of blocks that are large enough; more of them \
             lower F_u."
        }
        _ => {
            "a lower bound: the kernel capped the count (>) of blocks that are too small; more of them raise \
             F_u."
        }
    });
}

/// Explains F_u for a movable request.
pub(super) fn explain_movable_request(output: &mut FragText<'_>, types: &Pagetypeinfo, key: &ZoneKey) {
    let order = output.report.order;
    output.write_line("");
    output.write_line("  for a movable request, such as a huge page for a program:");
    let Some(usable) = MovableAccess::Usable.free_areas(types, key) else {
        output.write_meaning("unknown: the counts exceed 64 bits.");
        return;
    };
    write_counts(output, "m", &usable);
    if usable.is_exact() {
        explain_unusable(output, &usable.counts_min, order);
    } else {
        explain_capped_unusable(output, &usable, order);
    }
    if let Some(names) = list_types(types, MovableAccess::Usable) {
        output.write_meaning(&format!(
            "m counts the free blocks of {names}: a movable request uses its own type first, then falls back \
             to the others (fallbacks[] in mm/page_alloc.c)."
        ));
    }
    if list_types(types, MovableAccess::Cma).is_some()
        && let Some(cma) = MovableAccess::Cma.free_areas(types, key)
    {
        let pages = format_count(cma.counts_min.free_pages());
        output.write_meaning(&format!(
            "not in m: CMA, {} pages, {} blocks of order {}. Only movable requests may use them (ALLOC_CMA), \
             and their pages are migrated away when the owner claims the area.",
            mark_lower_bound(pages, cma.is_exact()),
            suitable_blocks_text(&cma, order),
            order.0
        ));
    }
    if let Some(names) = list_types(types, MovableAccess::Refused) {
        output.write_meaning(&format!(
            "not in m: {names}. Movable requests never get these blocks (rmqueue_buddy in mm/page_alloc.c)."
        ));
    }
    if let Some(names) = list_types(types, MovableAccess::Unknown) {
        output.write_meaning(&format!(
            "not in m: {names}. This version does not know which requests may use these blocks."
        ));
    }
}
