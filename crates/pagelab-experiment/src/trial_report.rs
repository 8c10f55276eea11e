//! A trial as it comes back from a guest: one JSON document. It is not trusted: it is bounded, and checked
//! before use.

use std::sync::Arc;

use pagelab_model::Absence;
use pagelab_model::experiment::{Flag, Fraction, Measure, MeasureHead, Trial, TrialEnd};
use pagelab_model::simulation::{MemoryPicture, TrialSeries};
use pagelab_runfile::{check_picture, check_trial};
use serde::{Deserialize, Serialize};

use crate::place::{FinishedTrial, PlaceEvent};

/// The number of this form. Both sides are the same binary; another number is damage.
const FORM: u32 = 1;
/// Bytes of a report at most.
pub const REPORT_BYTES_MAX: usize = 16 << 20;
const MEASURES_MAX: usize = 4000;
const FLAGS_MAX: usize = 256;
const EVENTS_MAX: usize = 256;
const PICTURES_MAX: usize = 64;
/// Bytes of a name, a text or the last output at most.
const TEXT_MAX: usize = 64 << 10;
/// Kinds of events that a trial has.
const EVENT_KINDS: [&str; 6] = ["trial", "setup", "swap", "checksum", "kernel", "model"];

#[derive(Serialize, Deserialize)]
struct TrialReport {
    form: u32,
    end: TrialEnd,
    measures: Vec<ReportedMeasure>,
    flags: Vec<Flag>,
    last_output: String,
    notes: Vec<String>,
    series: Vec<TrialSeries>,
    pictures: Vec<MemoryPicture>,
    events: Vec<ReportedEvent>,
}

#[derive(Serialize, Deserialize)]
struct ReportedMeasure {
    head: MeasureHead,
    value: Result<f64, Absence>,
    exact: Option<Fraction>,
}

#[derive(Serialize, Deserialize)]
struct ReportedEvent {
    kind: String,
    text: String,
    is_note: bool,
}

/// The report of a trial.
pub fn encode(finished: &FinishedTrial) -> Vec<u8> {
    let FinishedTrial { trial, events, pictures } = finished;
    let measure = |of: &Measure| ReportedMeasure {
        head: MeasureHead::clone(&of.head),
        value: of.value.clone(),
        exact: of.exact,
    };
    let event = |of: &PlaceEvent| ReportedEvent {
        kind: of.kind.to_owned(),
        text: of.text.clone(),
        is_note: of.is_note,
    };
    let report = TrialReport {
        form: FORM,
        end: trial.end.clone(),
        measures: trial.measures.iter().map(measure).collect(),
        flags: trial.flags.clone(),
        last_output: trial.last_output.clone(),
        notes: trial.notes.clone(),
        series: trial.series.clone(),
        pictures: pictures.clone(),
        events: events.iter().map(event).collect(),
    };
    serde_json::to_vec(&report).unwrap_or_default()
}

/// The trial of a slot in a report, or why it is not one.
pub fn decode(report: &[u8], slot: usize) -> Result<FinishedTrial, String> {
    if report.len() > REPORT_BYTES_MAX {
        return Err(format!("expected at most {REPORT_BYTES_MAX} bytes, found {}", report.len()));
    }
    let report: TrialReport = serde_json::from_slice(report).map_err(|error| error.to_string())?;
    if report.form != FORM {
        return Err(format!("expected a report of form {FORM}, found {}", report.form));
    }
    check_counts(&report)?;
    // Only the host stops trials.
    if report.end == TrialEnd::Stopped {
        return Err("it says that the trial was stopped".to_owned());
    }
    let measure = |of: ReportedMeasure| match of.exact {
        Some(exact) => Measure::from_fraction(Arc::new(of.head), exact),
        None => Measure { head: Arc::new(of.head), value: of.value, exact: None },
    };
    let event = |of: ReportedEvent| {
        let kind = EVENT_KINDS.into_iter().find(|kind| *kind == of.kind).unwrap_or("trial");
        PlaceEvent { kind, text: of.text, is_note: of.is_note }
    };
    let TrialReport { end, measures, flags, last_output, notes, series, pictures, events, .. } = report;
    let measures = measures.into_iter().map(measure).collect();
    let trial = Trial { end, measures, flags, last_output, notes, series, ..Trial::new(slot, 0) };
    check_trial(&trial, slot.saturating_add(1))?;
    let is_unfit = |of: &&Measure| of.value.as_ref().is_ok_and(|value| !value.is_finite());
    if let Some(measure) = trial.measures.iter().find(is_unfit) {
        return Err(format!("measure {} is not a finite number", measure.key()));
    }
    for picture in &pictures {
        check_picture(picture).map_err(|why| format!("a picture {why}"))?;
    }
    Ok(FinishedTrial { trial, events: events.into_iter().map(event).collect(), pictures })
}

fn check_counts(report: &TrialReport) -> Result<(), String> {
    for (what, count, most) in [
        ("measures", report.measures.len(), MEASURES_MAX),
        ("flags", report.flags.len(), FLAGS_MAX),
        ("events", report.events.len(), EVENTS_MAX),
        ("notes", report.notes.len(), EVENTS_MAX),
        ("series", report.series.len(), MEASURES_MAX),
        ("pictures", report.pictures.len(), PICTURES_MAX),
    ] {
        if count > most {
            return Err(format!("expected at most {most} {what}, found {count}"));
        }
    }
    let texts = report.flags.iter().flat_map(|flag| [&flag.kind, &flag.text]);
    let texts = texts.chain(report.events.iter().map(|event| &event.text)).chain(&report.notes);
    let heads = report.measures.iter().map(|of| &of.head);
    let texts = texts.chain(heads.flat_map(|head| [&head.phase, &head.name, &head.source, &head.unit.0]));
    let absences = report.measures.iter().filter_map(|of| of.value.as_ref().err());
    let texts = texts.chain(absences.flat_map(|absence| [&absence.source, &absence.detail]));
    let texts = texts.chain(report.series.iter().flat_map(|series| [&series.name, &series.over]));
    let texts = texts.chain(report.pictures.iter().map(|picture| &picture.phase));
    let end = match &report.end {
        TrialEnd::InvalidResult(text)
        | TrialEnd::NotStarted(text)
        | TrialEnd::Rejected(text)
        | TrialEnd::Lost(text) => Some(text),
        _ => None,
    };
    match texts.chain([&report.last_output]).chain(end).find(|text| text.len() > TEXT_MAX) {
        Some(text) => Err(format!("expected texts of at most {TEXT_MAX} bytes, found {}", text.len())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::experiment::{BetterDirection, measures};
    use pagelab_model::run::Unit;

    use super::*;

    fn finished() -> FinishedTrial {
        let wall =
            Measure::new(measures::WALL, Unit::NANOSECONDS, BetterDirection::Lower, Ok(1.5e9), "clock");
        let absent = Measure::new(
            "counter.x",
            Unit::NANOSECONDS,
            BetterDirection::Lower,
            Err(Absence::not_read()),
            "perf",
        );
        let exact = Measure::from_fraction(wall.head.clone(), Fraction { numerator: 2, denominator: 3 });
        let series =
            TrialSeries { name: "F_u(9)".into(), over: "time".into(), points: vec![(1, 5), (2, -5)] };
        let picture = MemoryPicture { step: 1, phase: "x".into(), runs: vec![(0, 4, 1)], owners: vec![0] };
        let flags = vec![Flag { kind: Flag::NOT_QUIET.to_owned(), text: "x".into() }];
        let trial = Trial {
            measures: vec![wall, absent, exact],
            flags,
            notes: vec!["n".into()],
            series: vec![series],
            last_output: "o".into(),
            end: TrialEnd::Failed(3),
            ..Trial::new(7, 0)
        };
        let events = vec![PlaceEvent { kind: "checksum", text: "a: b".into(), is_note: false }];
        FinishedTrial { trial, events, pictures: vec![picture] }
    }

    #[test]
    fn a_trial_comes_back_whole() {
        let (sent, back) = (finished(), decode(&encode(&finished()), 7).unwrap());
        assert_eq!(back.trial, sent.trial);
        assert_eq!((back.events, back.pictures), (sent.events, sent.pictures));
    }

    #[test]
    fn what_is_no_trial_is_refused_with_a_reason() {
        let bytes = encode(&finished());
        let text = String::from_utf8(bytes.clone()).unwrap();
        for (damaged, said) in [
            (String::new(), "EOF"),
            (text[..text.len() - 1].to_owned(), "EOF"),
            (text.replace("\"form\":1", "\"form\":9"), "form 1, found 9"),
            (text.replace("1500000000.0", "1e999"), "number out of range"),
            (text.replace("\"denominator\":3", "\"denominator\":0"), "denominator of 0"),
            (text.replace("{\"Failed\":3}", "\"Stopped\""), "says that the trial was stopped"),
            (
                text.replace("{\"Failed\":3}", &format!("{{\"Lost\":\"{}\"}}", "x".repeat(70_000))),
                "expected texts of at most 65536 bytes, found 70000",
            ),
            (text.replace("[[1,5],[2,-5]]", "[[2,5],[1,5]]"), "not ascending"),
            (text.replace("[[0,4,1]]", "[[0,4,9]]"), "a picture has duplicate frames or an unknown use"),
            (text.replace("\"text\":\"x\"", &format!("\"text\":\"{}\"", "x".repeat(70_000))), "65536 bytes"),
            (
                text.replace("\"notes\":[\"n\"]", &format!("\"notes\":[{}\"n\"]", "\"n\",".repeat(300))),
                "at most 256 notes, found 301",
            ),
        ] {
            let error = decode(damaged.as_bytes(), 7).unwrap_err();
            assert!(error.contains(said), "{said}: {error}");
        }
        assert!(decode(&vec![b' '; REPORT_BYTES_MAX + 1], 0).unwrap_err().contains("at most"));
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length], 0).is_err(), "{length}");
        }
    }
}
