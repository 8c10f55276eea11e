//! Whether a zone with free blocks would have served the request of a report.

use pagelab_metrics::zone_watermark::{
    ReportedZone, SmallerBlocksCheck, WatermarkCheck, ZoneVerdict, judge_zone,
};

use super::FragText;

/// Writes the verdict on one zone, in which blocks of the order are free.
pub(super) fn explain(output: &mut FragText<'_>, at: usize) {
    let report = output.report;
    if report.source.kind != "show_mem" {
        output.write_meaning(
            "watermarks and lowmem_reserve are not considered: a request may fail on them although a block \
             is free.",
        );
        return;
    }
    let Some(request) = report.request else {
        output.write_meaning(
            "unknown whether the zone may serve the request: the report does not state the gfp flags.",
        );
        return;
    };
    let zones: Vec<ReportedZone<'_>> = report
        .buddyinfo
        .zones
        .iter()
        .enumerate()
        .map(|(at, zone)| ReportedZone {
            key: &zone.key,
            watermark: report.watermarks.get(at).and_then(Option::as_ref),
        })
        .collect();
    let areas = &report.buddyinfo.zones[at].areas;
    let letters = report.migratetypes.as_ref().ok().and_then(|all| all.get(at)).map(Vec::as_slice);
    let verdict = judge_zone(request, report.order, &zones, at, areas, letters);
    let flags = format!("gfp flags {:#x}", request.gfp_mask);
    match verdict {
        ZoneVerdict::Allowed(check) => {
            write_check(output, &check, ">");
            output.write_meaning(&format!(
                "the watermark allows this request here ({flags}): it would succeed now. The report is \
                 printed after the failure; free memory may have changed since."
            ));
        }
        ZoneVerdict::Refused(check) => {
            write_check(output, &check, "≤");
            let cause = if check.reserve > check.mark { "lowmem_reserve" } else { "the watermark" };
            output.write_meaning(&format!(
                "{cause} blocks this request here ({flags}, highest zone {}): it would fail although a block \
                 is free (__zone_watermark_ok in mm/page_alloc.c).",
                check.highest_zone
            ));
        }
        ZoneVerdict::RefusedBefore44(check, step) => {
            write_check(output, &check, ">");
            write_step(output, step);
        }
        ZoneVerdict::NotPermitted { highest_zone } => output.write_meaning(&format!(
            "the request may not use this zone ({flags}): {highest_zone} is its highest zone (gfp_zone in \
             include/linux/gfp.h)."
        )),
        ZoneVerdict::NoUsableType { letters } => output.write_meaning(&format!(
            "the watermark allows this request here ({flags}), but it cannot use the migratetypes of the \
             blocks that are large enough, {letters}: it would fail."
        )),
        ZoneVerdict::Unknown { reason } => {
            output.write_meaning(&format!("unknown whether the zone may serve the request: {reason}."));
        }
    }
}

fn write_check(output: &mut FragText<'_>, check: &WatermarkCheck, relation: &str) {
    let unusable: String =
        check.unusable.iter().map(|(pages, reason)| format!(" − {pages} ({reason})")).collect();
    let mark = if check.is_reduced { "3/8 of min" } else { "min" };
    output.write_equation(
        "check",
        &[
            format!("free − unusable {relation} mark + lowmem_reserve, in pages"),
            format!(
                "{}{unusable} {relation} {} ({mark}) + {} (lowmem_reserve for zone {})",
                check.free, check.mark, check.reserve, check.highest_zone
            ),
            format!("{} {relation} {}", check.usable(), check.required()),
        ],
    );
}

fn write_step(output: &mut FragText<'_>, step: SmallerBlocksCheck) {
    output.write_meaning(&format!(
        "kernels since 4.4 allow this request here. Earlier kernels refuse it: without the free blocks below \
         order {}, {} pages remain, and the watermark is {}.",
        step.order.0, step.usable, step.mark
    ));
}
