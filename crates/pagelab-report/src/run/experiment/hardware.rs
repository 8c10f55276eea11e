//! What the processor has, and which of its counters could be read: without it, counts of misses, and their
//! absence, cannot be judged.

use pagelab_metrics::effect::Effects;
use pagelab_model::experiment::measures;
use pagelab_model::run::Run;

use super::super::clipped;
use super::TEXT_MAX;
use crate::checkup::geometry;
use crate::text::Page;

pub(super) fn show(page: &mut Page, run: &Run, effects: &Effects) {
    let machine = &run.manifest.machine;
    let is_known = [machine.caches.is_ok(), machine.tlb.is_ok()];
    for ((name, text), _) in geometry(machine).into_iter().zip(is_known).filter(|(_, is_known)| *is_known) {
        page.hanging_dim(&format!("{name:<10}"), &clipped(&text, TEXT_MAX));
    }
    let (mut there, mut absent) = (0, Vec::<(String, usize)>::new());
    for measure in effects.workloads.iter().take(1).flat_map(|workload| &workload.measures) {
        if !measure.name.starts_with(measures::COUNTER) {
            continue;
        }
        let Some(absence) = &measure.absent else {
            there += 1;
            continue;
        };
        let way_out = absence.way_out.as_ref().map_or(String::new(), |way_out| format!("; {way_out}"));
        let why = format!("{}{way_out}", absence.reason());
        match absent.iter_mut().find(|(known, _)| *known == why) {
            Some((_, count)) => *count += 1,
            None => absent.push((why, 1)),
        }
    }
    if there + absent.len() == 0 {
        return;
    }
    let of = there + absent.iter().map(|(_, count)| count).sum::<usize>();
    let reasons: Vec<String> =
        absent.iter().map(|(why, count)| format!("; {count} not: {}", clipped(why, TEXT_MAX))).collect();
    let text = format!("{there} of {of} could be read{}", reasons.concat());
    page.hanging_dim("counters  ", &page.style().one_line(&text));
}
