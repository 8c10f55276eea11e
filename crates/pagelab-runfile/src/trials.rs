//! Trials of an experiment as stored: in batches, each value with the index of its measure's head, which is
//! in the file once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use pagelab_model::Absence;
use pagelab_model::experiment::{Flag, Fraction, Measure, MeasureHead, Trial, TrialEnd};
use pagelab_model::simulation::TrialSeries;
use serde::{Deserialize, Serialize};

use crate::earlier;

/// A trial without its attachments, which are blobs of their own before it.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredTrial {
    slot: usize,
    began_ns: u64,
    ended_ns: u64,
    end: TrialEnd,
    values: Vec<(u32, StoredValue)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    flags: Vec<Flag>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    last_output: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    /// Whether the last series of its slot belong to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    has_series: bool,
    /// Number of the last pictures of its slot that belong to it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pictures: usize,
}

/// The value of a measure.
#[derive(Serialize, Deserialize)]
enum StoredValue {
    #[serde(rename = "number")]
    Number(f64),
    /// Numerator and denominator.
    #[serde(rename = "exact")]
    Exact(u64, u64),
    #[serde(rename = "absent")]
    Absent(Absence),
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// The heads of measures of a file, by their index.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeadTable {
    heads: Vec<Arc<MeasureHead>>,
    indices: HashMap<Arc<MeasureHead>, u32>,
}

impl HeadTable {
    /// The index of a head, which is added if it is new.
    fn index_of(&mut self, head: &Arc<MeasureHead>) -> u32 {
        if let Some(index) = self.indices.get(head) {
            return *index;
        }
        self.push(head.clone())
    }

    fn push(&mut self, head: Arc<MeasureHead>) -> u32 {
        let index = self.heads.len() as u32;
        self.heads.push(head.clone());
        self.indices.insert(head, index);
        index
    }

    /// Adds heads as they are read.
    pub fn extend(&mut self, heads: Vec<MeasureHead>) {
        for mut head in heads {
            earlier::rename_measure(&mut head.name);
            self.push(Arc::new(head));
        }
    }

    /// The same head as known, or this one.
    pub fn share(&mut self, mut head: MeasureHead) -> Arc<MeasureHead> {
        earlier::rename_measure(&mut head.name);
        let head = Arc::new(head);
        let index = self.index_of(&head);
        self.heads.get(index as usize).cloned().unwrap_or(head)
    }

    /// Number of heads.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// The heads from this index on.
    pub fn heads_from(&self, first: usize) -> Vec<MeasureHead> {
        self.heads.iter().skip(first).map(|head| MeasureHead::clone(head)).collect()
    }

    /// The stored form of a trial.
    pub fn store(&mut self, trial: &Trial) -> StoredTrial {
        let value = |measure: &Measure| match (&measure.exact, &measure.value) {
            (Some(exact), _) => StoredValue::Exact(exact.numerator, exact.denominator),
            (None, Ok(value)) => StoredValue::Number(*value),
            (None, Err(absence)) => StoredValue::Absent(absence.clone()),
        };
        StoredTrial {
            slot: trial.slot,
            began_ns: trial.began_ns,
            ended_ns: trial.ended_ns,
            end: trial.end.clone(),
            values: trial.measures.iter().map(|of| (self.index_of(&of.head), value(of))).collect(),
            flags: trial.flags.clone(),
            last_output: trial.last_output.clone(),
            notes: trial.notes.clone(),
            has_series: !trial.series.is_empty(),
            pictures: trial.pictures,
        }
    }
}

/// Series, empty where they are not wanted, and numbers of pictures, by slot, until the trial that they
/// belong to.
#[derive(Default)]
pub(crate) struct Attachments {
    pub series: BTreeMap<usize, Vec<TrialSeries>>,
    pub pictures: BTreeMap<usize, usize>,
}

impl StoredTrial {
    /// The trial with its attachments, or its error.
    pub fn restore(self, heads: &HeadTable, attachments: &mut Attachments) -> Result<Trial, String> {
        let slot = self.slot;
        let measure = |(head, value): (u32, StoredValue)| {
            let head = heads.heads.get(head as usize).cloned();
            let head = head.ok_or_else(|| format!("a value of slot {slot} refers to an unknown measure"))?;
            Ok(match value {
                StoredValue::Number(value) => Measure { head, value: Ok(value), exact: None },
                StoredValue::Absent(absence) => Measure { head, value: Err(absence), exact: None },
                StoredValue::Exact(numerator, denominator) => {
                    Measure::from_fraction(head, Fraction { numerator, denominator })
                }
            })
        };
        let measures = self.values.into_iter().map(measure).collect::<Result<_, String>>()?;
        let series = attachments.series.remove(&slot).filter(|_| self.has_series);
        if attachments.pictures.remove(&slot).unwrap_or_default() < self.pictures {
            return Err(format!("pictures of slot {slot} are missing"));
        }
        if self.has_series && series.is_none() {
            return Err(format!("the series of slot {slot} are missing"));
        }
        let series = series.unwrap_or_default();
        let StoredTrial { began_ns, ended_ns, end, flags, last_output, notes, pictures, .. } = self;
        Ok(Trial { slot, began_ns, ended_ns, end, measures, flags, last_output, notes, series, pictures })
    }
}
