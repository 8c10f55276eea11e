//! A server whose work comes in peaks: workers start and end, buffers of the network come and go. In the end
//! all workers end.

use super::files::File;
use super::process::Process;
use super::rest::{Course, count_mixed, rest, takes};
use super::system::System;
use super::world::{Ran, TICKS, World};
use crate::machine::{Ask, Class, Effort, Held};

/// Areas of address space of a worker.
const AREAS: u32 = 60;
/// Buffers of the network that are there at a time, for each worker.
const BUFFERS: usize = 8;

/// Runs it.
pub(super) fn run(world: &mut World<'_>) -> Ran {
    let (seconds, period) = (world.parameter("seconds"), world.parameter("period").max(1));
    takes(world, seconds);
    let mut system = System::boot(world)?;
    world.begin("peaks")?;
    let (usual, peak) = (world.parameter("workers"), world.parameter("peak_workers"));
    let mut workers: Vec<Process> = Vec::new();
    let mut buffers: Vec<Held> = Vec::new();
    let mut at = 0;
    let mut course = Course::over(world, seconds);
    for tick in 0..seconds * TICKS {
        if tick.is_multiple_of(TICKS) {
            course.at(world, tick / TICKS);
        }
        world.moves();
        // A fifth of each period is the peak.
        let is_peak = tick / TICKS % period >= period - period / 5;
        let wanted = if is_peak { peak } else { usual };
        if (workers.len() as u64) < wanted {
            workers.push(world.start(AREAS)?);
        } else if workers.len() as u64 > wanted && tick.is_multiple_of(5) {
            let gone = world.random.below(workers.len() as u64) as usize;
            let gone = workers.swap_remove(gone);
            world.end(gone)?;
        }
        if !workers.is_empty() {
            at = (at + 1) % workers.len();
            let mut worker = std::mem::take(&mut workers[at]);
            let more = world.count("worker_pages").saturating_sub(worker.pages()).min(world.count("pace"));
            world.grow(&mut worker, more)?;
            world.use_again(&worker, 20)?;
            workers[at] = worker;
        }
        network(world, &mut buffers, workers.len())?;
        // A request reads a file, now and then one that was not read before.
        let files = system.others.len() as u64;
        let chosen = world.random.below(files.max(1)) as usize;
        if let Some(file) = system.others.get(chosen) {
            world.read(file, 0, 12)?;
        }
        if tick.is_multiple_of(10) {
            let mut file = File::default();
            world.look_up(&mut file)?;
            world.extend(&mut file, 12, false)?;
            system.others.push(file);
        }
        world.pass()?;
    }
    course.end(world, seconds);
    world.census()?;
    count_mixed(world);
    for worker in workers {
        world.end(worker)?;
    }
    for held in buffers {
        world.machine.release(held)?;
    }
    rest(world, &mut system)
}

/// Buffers of packets: they cannot wait, and live for a moment; some are of order 1.
fn network(world: &mut World<'_>, buffers: &mut Vec<Held>, workers: usize) -> Ran {
    for _ in 0..workers.min(64) {
        let order = u8::from(world.random.below(8) == 0);
        let ask = Ask { order, effort: Effort::Atomic, ..world.page(Class::Kernel) };
        buffers.extend(world.machine.ask(&ask)?);
    }
    while buffers.len() > workers * BUFFERS {
        let at = world.random.below(buffers.len() as u64) as usize;
        world.machine.release(buffers.swap_remove(at))?;
    }
    Ok(())
}
