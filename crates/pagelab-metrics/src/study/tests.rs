//! Tables of studies whose answer is known beforehand.

use pagelab_model::study::{StudyFigure, StudyPlan, StudyTrial, Varied};

use super::*;

fn cell(scheme: &str, values: &[&str]) -> StudyCell {
    StudyCell {
        machine: "x86".to_owned(),
        kernelcore: None,
        scheme: scheme.to_owned(),
        load: "churn".to_owned(),
        parameters: Vec::new(),
        values: values.iter().map(|&value| value.to_owned()).collect(),
        lists: Vec::new(),
        zones: Vec::new(),
    }
}

/// A study in which each cell's figure is a function of cell and seed.
fn study(cells: Vec<StudyCell>, seeds: u64, varied: Vec<Varied>, of: impl Fn(usize, u64) -> u64) -> Study {
    let plan = StudyPlan {
        name: "t".to_owned(),
        question: String::new(),
        explanation: String::new(),
        simulator: String::new(),
        cells,
        seeds: (1..=seeds).collect(),
        pictures: 0,
        varied,
        judged: None,
    };
    let trial = |slot: usize| {
        let (cell, seed) = plan.slot(slot).unwrap();
        let figure = StudyFigure {
            phase: "end".to_owned(),
            name: "blocks".to_owned(),
            value: of(cell, seed),
            per: 1,
            unit: "blocks".to_owned(),
        };
        StudyTrial {
            slot,
            figures: vec![figure],
            series: Vec::new(),
            pictures: Vec::new(),
            notes: Vec::new(),
        }
    };
    let trials = (0..plan.slots().unwrap()).map(trial).collect();
    Study { plan, trials }
}

#[test]
fn pairs_of_a_seed_show_a_difference_that_seeds_hide() {
    // Seeds differ by hundreds, schemes by three: only pairs see it.
    let noise = |seed: u64| seed * 7919 % 1000;
    let cells = vec![cell("standard", &[]), cell("list", &[]), cell("zone", &[])];
    let of = study(cells, 12, Vec::new(), |cell, seed| {
        1000 + noise(seed) + [0, 3, 0][cell] + u64::from(cell == 1 && seed % 3 == 0)
    });
    let found = Compared::of(&of);
    let [group] = &found.groups[..] else { panic!("{found:?}") };
    let row = &group.rows[0];
    let [standard, list, zone] = &row.columns[..] else { panic!("{row:?}") };
    assert_eq!(standard.as_ref().unwrap().difference, None);
    let list = list.as_ref().unwrap();
    let difference = list.difference.unwrap();
    assert_eq!((difference.pairs, difference.says), (12, Says::More), "{difference:?}");
    assert!((3.0..=4.0).contains(&difference.middle), "{difference:?}");
    assert_eq!(zone.as_ref().unwrap().difference.unwrap().says, Says::Same);
    // Both intervals of the medians overlap widely.
    let (one, other) = (standard.as_ref().unwrap().interval.unwrap(), list.interval.unwrap());
    assert!(one.low < other.low && other.low < one.high, "{one:?} {other:?}");
    assert_eq!(found.judged, 2);
}

#[test]
fn few_seeds_give_no_verdict_and_no_interval() {
    let of = study(vec![cell("a", &[]), cell("b", &[])], 5, Vec::new(), |cell, seed| cell as u64 * 50 + seed);
    let found = Compared::of(&of);
    let column = found.groups[0].rows[0].columns[1].clone().unwrap();
    assert_eq!((column.interval, column.difference.unwrap().says), (None, Says::TooFew));
    assert_eq!(column.median, 53.0);
    assert_eq!(found.judged, 0);
}

#[test]
fn medians_lie_where_the_tables_of_the_sign_test_say() {
    // Places of the lower end, from 1, of the 95 % interval of the median (Conover, table A3 halves):
    // n = 6: 1, 9: 2, 12: 3, 15: 4, 17: 5, 20: 6, 25: 8, 30: 10, 50: 18, 100: 40.
    for (count, place) in
        [(6, 1), (8, 1), (9, 2), (12, 3), (15, 4), (17, 5), (20, 6), (25, 8), (30, 10), (50, 18), (100, 40)]
    {
        let values: Vec<f64> = (1..=count).map(f64::from).collect();
        let found = median_between(&values).unwrap();
        assert_eq!(found.low, f64::from(place), "n = {count}");
        assert_eq!(found.low + found.high, f64::from(count + 1));
        assert!(found.level >= LEVEL && found.level < 1.0, "{found:?}");
    }
    assert_eq!(median_between(&[1.0; 5]), None);
    assert!(median_between(&vec![2.0; 5000]).is_some());
}

#[test]
fn a_sweep_names_the_parameter_that_mattered() {
    let varied = vec![
        Varied { name: "builds".to_owned(), is_number: true },
        Varied { name: "scheme".to_owned(), is_number: false },
        Varied { name: "nothing".to_owned(), is_number: true },
    ];
    let mut cells = Vec::new();
    for builds in ["2", "10", "30", "100"] {
        for scheme in ["list", "zone"] {
            for nothing in ["1", "2", "3"] {
                cells.push(cell(scheme, &[builds, scheme, nothing]));
            }
        }
    }
    // As a text, 100 would stand before 2.
    let of = study(cells.clone(), 2, varied, |at, seed| {
        let builds: u64 = cells[at].values[0].parse().unwrap();
        1000 - builds * 5 + u64::from(cells[at].scheme == "zone") * 3 + seed
    });
    let found = sweep(&of, None).unwrap();
    assert_eq!(found.figure, "end/blocks");
    let names: Vec<&str> = found.influences.iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, ["builds", "scheme", "nothing"], "{found:?}");
    let [builds, scheme, nothing] = &found.influences[..] else { panic!("{found:?}") };
    assert!(builds.share > 0.9 && builds.rho.unwrap() < -0.9 && builds.chance <= 0.002, "{builds:?}");
    assert!(scheme.rho.is_none() && nothing.chance > 0.5, "{found:?}");
    let (best, worst) = (found.points.first().unwrap(), found.points.last().unwrap());
    assert_eq!((&*cells[best.cell].values[0], &*cells[worst.cell].values[0]), ("2", "100"));
    assert_eq!(sweep(&of, Some("no/such")), Err(vec!["end/blocks".to_owned()]));
}

#[test]
fn a_figure_that_some_schemes_have_alone_stands_in_its_phase() {
    let mut of = study(vec![cell("list", &[]), cell("zone", &[])], 2, Vec::new(), |_, _| 1);
    let figure = |phase: &str, name: &str| StudyFigure {
        phase: phase.to_owned(),
        name: name.to_owned(),
        ..of.trials[0].figures[0].clone()
    };
    let (load, zone, rest) = (figure("load", "blocks"), figure("load", "movable"), figure("rest", "blocks"));
    for trial in &mut of.trials {
        trial.figures = match trial.slot % 2 {
            0 => vec![load.clone(), rest.clone()],
            _ => vec![load.clone(), zone.clone(), rest.clone()],
        };
    }
    let found = Compared::of(&of);
    let keys: Vec<String> =
        found.groups[0].rows.iter().map(|row| format!("{}/{}", row.phase, row.name)).collect();
    assert_eq!(keys, ["load/blocks", "load/movable", "rest/blocks"]);
    assert_eq!(found.groups[0].rows[1].columns[0], None);
}
