//! A desktop over a long time: programs are opened and closed, files are read, and now and then the kernel
//! takes a page that it keeps: the slow leak that spreads unmovable pages over all of memory. In the end all
//! programs are closed.

use super::files::File;
use super::process::Process;
use super::rest::{Course, count_mixed, rest, takes};
use super::system::System;
use super::world::{Ran, TICKS, World};

/// Areas of address space of a desktop program.
const AREAS: u32 = 150;

/// Runs it.
pub(super) fn run(world: &mut World<'_>) -> Ran {
    let seconds = world.parameter("seconds");
    takes(world, seconds);
    let mut system = System::boot(world)?;
    world.begin("desktop")?;
    let most = world.parameter("programs").max(1) as usize;
    let mut programs: Vec<Process> = Vec::new();
    let mut course = Course::over(world, seconds);
    for second in 0..seconds {
        course.at(world, second);
        // A program is opened or closed about twice a minute.
        if world.random.below(30) == 0 || programs.is_empty() {
            if programs.len() < most {
                programs.push(world.start(AREAS)?);
            } else {
                let gone = world.random.below(programs.len() as u64) as usize;
                let gone = programs.swap_remove(gone);
                world.end(gone)?;
            }
        }
        let mut file = File::default();
        world.look_up(&mut file)?;
        world.extend(&mut file, world.count("read"), false)?;
        system.others.push(file);
        for _ in 0..TICKS {
            world.moves();
            let at = world.random.below(programs.len() as u64) as usize;
            if let Some(program) = programs.get_mut(at) {
                let mut program = std::mem::take(program);
                let more = world.count("program_pages").saturating_sub(program.pages()).min(20);
                world.grow(&mut program, more)?;
                world.use_again(&program, 10)?;
                programs[at] = program;
            }
            system.forget(world)?;
            world.pass()?;
        }
    }
    course.end(world, seconds);
    world.census()?;
    count_mixed(world);
    for program in programs {
        world.end(program)?;
    }
    rest(world, &mut system)
}
