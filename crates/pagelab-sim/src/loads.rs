//! Loads: what asks for memory and gives it back, one module each.

use pagelab_model::seed::SplitMix64;

use crate::machine::{Ask, Class, Config, Heights, Machine, Reclaim};
use crate::marks;
use crate::memory::Setup;
use crate::percpu::Keep;
use crate::policy;
use crate::study::{Figure, Outcome, Spec};
use crate::words::{Shape, Wrong};

/// Runs the load of an experiment.
pub(crate) fn run(spec: &Spec, progress: &mut dyn FnMut(u32) -> bool) -> Result<Outcome, Wrong> {
    let frames = 1u32 << 16;
    let managed = [u64::from(frames)];
    let marks = marks::marks(&managed, &[true], marks::min_free_kib(frames.into()) / 4, marks::SCALE_USUAL);
    let zone = Setup {
        name: "Normal".to_owned(),
        node: 0,
        height: 0,
        shape: Shape { first: 0, frames, max_order: 10, block_order: 9 },
        marks: marks[0],
        reserves: Vec::new(),
    };
    let config = Config {
        zones: vec![zone],
        heights: Heights { kernel: 0, page_tables: 0, user: 0 },
        keep: Keep { cpus: 1, batch: 63, high: 378 },
        reclaim: Reclaim::Lru,
        keeps_referenced: spec.scheme.keeps_referenced,
        compacts: spec.scheme.compacts,
        swap_frames: 1 << 14,
    };
    let mut machine = Machine::new(config, &policy::Mobility)?;
    let mut random = SplitMix64::new(spec.seed);
    let mut held = Vec::new();
    for step in 0..200_000u32 {
        let class = Class::ALL[(random.draw() % 5) as usize];
        if class == Class::Anonymous || held.len() < 1000 {
            held.extend(machine.ask(&Ask::page(class))?);
        } else {
            let at = (random.draw() % held.len() as u64) as usize;
            machine.release(held.swap_remove(at))?;
        }
        machine.background(64)?;
        if step.is_multiple_of(1000) && !progress(step / 200) {
            break;
        }
    }
    machine.validate()?;
    let (value, per) = machine.unusable(9);
    let figure = Figure { phase: "end".to_owned(), name: "F_u(9)".to_owned(), value, per, unit: "share" };
    Ok(Outcome { figures: vec![figure], ..Outcome::default() })
}
