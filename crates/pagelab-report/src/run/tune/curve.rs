//! How the speed-up grows with the number of huge pages: measured, predicted, and the controls.

use pagelab_metrics::tune::Tuned;
use pagelab_model::tune::{On, Tune};

use super::{speed_up, times};
use crate::effects::narrow_interval;
use crate::style::count;
use crate::text::{Column, Page};

/// Signs of the longest bar.
const BAR: usize = 10;

/// One number of huge pages: its arms by what they are.
struct Step {
    pages: Option<u64>,
    dearest: Option<usize>,
    random: Option<usize>,
    most_used: Option<usize>,
}

pub(super) fn show(page: &mut Page, tune: &Tune, tuned: &Tuned) {
    let steps = steps(tune);
    if tune.arm(On::Dearest).is_none() {
        return;
    }
    let value = |at: Option<usize>| tuned.arms.get(at?)?.speed_up;
    let most = steps.iter().filter_map(|step| value(step.dearest)).map(|(value, _)| value - 1.0);
    let most = most.fold(0.0, f64::max);
    let columns = [
        Column::right("huge pages"),
        Column::right("speed-up"),
        Column::left("95 %"),
        Column::right("predicted"),
        Column::right("by chance"),
        Column::right("most used"),
        Column::left("gain"),
    ];
    let row = |step: &Step| {
        // What all are measured against.
        let dearest = value(step.dearest);
        let (speed, within) = match step.pages {
            Some(0) => ("1".to_owned(), String::new()),
            _ => {
                let within = dearest.and_then(|(_, within)| within);
                (speed_up(dearest).0, within.map_or("–".to_owned(), narrow_interval))
            }
        };
        let alone = |at: Option<usize>| value(at).map_or(String::new(), |found| speed_up(Some(found)).0);
        let predicted = step.dearest.and_then(|at| tuned.arms.get(at)?.predicted);
        let gain = dearest.map_or(0.0, |(value, _)| (value - 1.0).max(0.0));
        let signs = if most > 0.0 { (gain / most * BAR as f64).round() as usize } else { 0 };
        vec![
            step.pages.map_or("all".to_owned(), |pages| count(pages.into())),
            speed,
            within,
            predicted.map_or(String::new(), times),
            alone(step.random),
            alone(step.most_used),
            "█".repeat(signs),
        ]
    };
    page.gap();
    page.hanging("", "huge pages → speed-up, dearest regions first");
    let rows: Vec<Vec<String>> = steps.iter().map(row).collect();
    if !page.table_if_it_fits(2, &columns, &rows) {
        let narrow: Vec<Vec<String>> = rows.iter().map(|row| row[..4].to_vec()).collect();
        page.table(2, &columns[..4], &narrow);
    }
}

/// By number, all last.
fn steps(tune: &Tune) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (at, arm) in tune.arms.iter().enumerate() {
        let pages = arm.planned.filter(|_| arm.on != On::All);
        let place = steps.iter().position(|step| step.pages == pages).unwrap_or_else(|| {
            steps.push(Step { pages, dearest: None, random: None, most_used: None });
            steps.len() - 1
        });
        let step = &mut steps[place];
        match arm.on {
            On::Random => step.random = Some(at),
            On::MostUsed => step.most_used = Some(at),
            _ => step.dearest = step.dearest.or(Some(at)),
        }
    }
    steps.sort_by_key(|step| step.pages.unwrap_or(u64::MAX));
    steps
}
