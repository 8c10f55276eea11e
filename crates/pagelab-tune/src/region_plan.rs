//! Plan of huge pages from a profile: its checks, and its text for `pagelab apply`.

use pagelab_formats::{plan_toml, region_list};
use pagelab_model::{Bytes, TlbProfile};
use pagelab_report::plan::PlanReport;
use pagelab_report::style::{format_argument, format_bytes, format_count, format_exact, format_percent};
use pagelab_tlb::plan::{self, Ranking, predict};

use pagelab_command::exit::{Failure, FailureKind, usage_error};

/// Returns the size of the planned pages, by default that of the profiled machine.
pub fn planned_page_size(requested: Option<Bytes>, profile: &TlbProfile) -> Result<Bytes, Failure> {
    let page = requested.unwrap_or(profile.huge);
    if page.0.is_power_of_two() && page.0 > profile.page_size.bytes() && page <= profile.huge {
        return Ok(page);
    }
    let (base, huge) = (format_exact(Bytes(profile.page_size.bytes())), format_exact(profile.huge));
    Err(usage_error(&format!(
        "--folio-size {}: expected a power of two above {base} and up to {huge}",
        format_argument(page)
    )))
}

/// Rejects a profile from which nothing can be planned, with the reason.
pub fn check_profile(profile: &TlbProfile, ranking: &Ranking, page: Bytes) -> Result<(), Failure> {
    let refused =
        |why: String| Err(Failure::new(FailureKind::NegativeAnswer, format!("nothing to plan: {why}")));
    if !profile.is_observed() {
        let text = "nothing to plan: neither the accessed bits nor a zero page scan observed the program, so \
                    its misses are unknown; hint: profile longer, or use --source exact";
        return Err(Failure::new(FailureKind::BadInput, text));
    }
    let unseen = ranking.mappings.iter().any(|mapping| !mapping.unseen.is_empty());
    let misses: u128 = profile.images.iter().map(|image| u128::from(image.misses)).sum();
    if ranking.total <= 0.0 && unseen {
        return refused(
            "no misses were observed, but part of the memory was not visible to the source (`pagelab profile \
            show` lists it); hint: use --source exact"
                .to_owned(),
        );
    }
    if ranking.total <= 0.0 {
        return refused(format!(
            "none of the {} misses are in known mappings: huge pages cannot save page walks of this program",
            format_count(misses)
        ));
    }
    if ranking.regions.is_empty() && ranking.uncovered.files > ranking.uncovered.mapping_ends {
        return refused("all misses are in files and stacks; hint: use --files".to_owned());
    }
    if ranking.regions.is_empty() {
        let page = format_bytes(page);
        return refused(format!(
            "no mapping with misses contains an aligned page of {page}; hint: try --folio-size 64K"
        ));
    }
    if ranking.attainable_saving() <= 0.0 {
        return refused("the model predicts no gain from huge pages".to_owned());
    }
    Ok(())
}

/// Formats the plan for `pagelab apply`.
pub fn format_plan(report: &PlanReport<'_>) -> String {
    let PlanReport { profile, ranking, page_size, chosen, native_result, .. } = *report;
    let gain = native_result.and_then(|native| predict::predict_gain(ranking, chosen, native));
    let huge_plan = plan::build_plan(profile, ranking, chosen, page_size, gain);
    let remark = format!(
        "{} of {} touched regions, {} of the total gain predicted by the model; ranked by {}. See \
        docs/plan.md",
        format_count(chosen as u128),
        format_count(ranking.regions.len() as u128),
        format_percent(ranking.saving_share(chosen).unwrap_or(0.0)),
        report.chosen_by
    );
    let mut remarks = vec![remark];
    if gain.is_some() && report.is_lower_bound() {
        remarks
            .push("the predicted speed-ups are at least these: from a lower bound of the misses".to_owned());
    }
    plan_toml::write_plan(&huge_plan, &remarks)
}

/// Formats the addresses of the planned regions, one per line.
pub fn format_addresses(report: &PlanReport<'_>) -> String {
    let address = |region: &plan::Region| {
        let mapping = report.ranking.mappings.get(region.mapping);
        let base = mapping.map_or(0, |of| pagelab_tlb::grid::base_address(&of.key, of.start));
        base.saturating_add(region.offset)
    };
    let addresses: Vec<u64> = report.ranking.regions[..report.chosen].iter().map(address).collect();
    region_list::write_list(&addresses)
}
