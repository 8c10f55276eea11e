//! The tests of Gorman and Whitcroft 2006 (section 7), in their order and on one boot.
//!
//! Steps and waits are those of the authors' scripts (VMRegress: bench-kbuild.sh, bench-aim9.sh,
//! bench-hugepagecapability.sh, bench-stresshighalloc.sh, bench-hotremovecapability.sh).

use super::crowd::Crowd;
use super::files::File;
use super::process::Process;
use super::rest::told;
use super::system::{BOOT_SECONDS, System};
use super::world::{Ran, TICKS, World};
use crate::machine::{Ask, Class, Effort};

/// Ticks between two attempts of the test module: a tenth of a second.
const BETWEEN: u64 = 10;
/// Seconds that builds run before the pool is grown, and before the attempts begin.
const BEFORE: u64 = 60;
/// Seconds between the passes under load and the end of the builds.
const AFTER: u64 = 30;

/// Extracts and builds one kernel.
pub(super) fn kbuild(world: &mut World<'_>) -> Ran {
    let build = build_seconds(world);
    world.takes(BOOT_SECONDS + Crowd::takes(world) + build);
    let mut system = System::boot(world)?;
    build_one(world, &mut system)?;
    books(world)
}

/// The pool of huge pages is grown during builds, at rest, and after a file as large as memory.
pub(super) fn capability(world: &mut World<'_>) -> Ran {
    world.takes(BOOT_SECONDS + capability_seconds(world));
    let mut system = System::boot(world)?;
    grow_pool(world, &mut system)?;
    books(world)
}

/// A module asks for each huge page that the machine could have.
pub(super) fn highalloc(world: &mut World<'_>) -> Ran {
    world.takes(BOOT_SECONDS + highalloc_seconds(world));
    let mut system = System::boot(world)?;
    stress(world, &mut system)?;
    books(world)
}

/// All tests.
pub(super) fn all(world: &mut World<'_>) -> Ran {
    let builds = Crowd::takes(world) + build_seconds(world);
    world.takes(BOOT_SECONDS + builds + 2 + capability_seconds(world) + highalloc_seconds(world));
    let mut system = System::boot(world)?;
    build_one(world, &mut system)?;
    aim9(world)?;
    grow_pool(world, &mut system)?;
    stress(world, &mut system)?;
    hot_remove(world)?;
    books(world)
}

/// Seconds of one build, about: what each compilation takes in ticks, one at a time.
fn build_seconds(world: &World<'_>) -> u64 {
    world.parameter("units") * 45 / TICKS
}

fn capability_seconds(world: &World<'_>) -> u64 {
    Crowd::takes(world) + BEFORE + System::flood_takes(world)
}

fn highalloc_seconds(world: &World<'_>) -> u64 {
    Crowd::takes(world) + BEFORE + AFTER + 3 * u64::from(world.place.possible) * BETWEEN / TICKS
}

/// What is said of the end of a load.
fn books(world: &mut World<'_>) -> Ran {
    world.begin("in all")?;
    let stats = world.machine.stats().clone();
    for (name, value, unit) in [
        ("allocations", stats.served.iter().sum(), "blocks"),
        ("taken from another list", stats.stolen, "blocks"),
        ("direct reclaim", stats.direct, "times"),
        ("scanned", stats.scanned, "pages"),
        ("reclaimed", stats.reclaimed, "pages"),
        ("swapped", stats.swapped, "pages"),
        ("read again", stats.refaults, "pages"),
        ("written", stats.written, "pages"),
        ("waits for the disk", stats.naps, "times"),
        ("no room for", world.short, "pages"),
    ] {
        world.figure(name, value, 1, unit);
    }
    if world.place.tuning.boost_factor > 0 {
        world.figure("marks raised", stats.boosts, 1, "times");
    }
    if world.machine.memory().zones().any(|(_, zone)| zone.zone().border().is_some()) {
        world.figure("emptied beside the border", stats.ways, 1, "times");
        world.figure("not emptied beside the border", stats.ways_failed, 1, "times");
        world.figure("left for the border", stats.left, 1, "pages");
        world.figure("given back by the border", stats.given_back, 1, "pageblocks");
    }
    Ok(())
}

fn build_one(world: &mut World<'_>, system: &mut System) -> Ran {
    world.begin("kbuild")?;
    let before = world.machine.stats().served.iter().sum::<u64>();
    let mut tree = super::build::Tree::default();
    while !world.write_tree(&mut tree, None, world.count("disk"), &system.archive)? {
        world.pass()?;
    }
    let mut build = world.begin_build(tree)?;
    while world.machine.is_waiting() || !world.run_build(&mut build, &system.programs)? {
        world.pass()?;
        world.sweep_tree(&mut build.tree, 60)?;
    }
    let units = u64::from(build.done);
    // The tree stays on the disk, and in memory as long as there is room.
    let tree = world.kill(build)?;
    system.others.extend(tree.files);
    let asked = world.machine.stats().served.iter().sum::<u64>() - before;
    world.figure("compilations", units, 1, "times");
    world.figure("allocations a compilation", asked, units.max(1), "blocks");
    world.census()
}

fn unusable(world: &mut World<'_>) {
    let order = world.place.huge;
    let (value, per) = world.machine.unusable(order);
    world.figure(&format!("F_u({order})"), value, per.max(1), "share");
}

/// What AIM9's operations ask of the allocator. Time is not simulated: there are no operations a second.
fn aim9(world: &mut World<'_>) -> Ran {
    world.begin("aim9")?;
    let count = |world: &mut World<'_>, name: &str, runs: u64, one: &mut dyn FnMut(&mut World<'_>) -> Ran| {
        let before = world.machine.stats().served.iter().sum::<u64>();
        for _ in 0..runs {
            world.moves();
            one(world)?;
            world.pass()?;
        }
        let asked = world.machine.stats().served.iter().sum::<u64>() - before;
        world.figure(&format!("{name}: allocations each"), asked, runs, "blocks");
        Ran::Ok(())
    };
    // brk by 1 MiB, touched, and given back; brk alone asks for page tables at most.
    count(world, "page_test", 50, &mut |world| {
        let mut process = Process::default();
        world.grow(&mut process, 256)?;
        Ok(world.end(process)?)
    })?;
    count(world, "brk_test", 50, &mut |world| {
        let mut process = Process::default();
        world.grow(&mut process, 1)?;
        Ok(world.end(process)?)
    })?;
    for (name, pages) in [("fork_test", 40), ("exec_test", 130)] {
        count(world, name, 50, &mut |world| {
            let mut process = world.start(25)?;
            world.grow(&mut process, pages)?;
            Ok(world.end(process)?)
        })?;
    }
    count(world, "creat_clo", 50, &mut |world| {
        let mut file = File::default();
        world.look_up(&mut file)?;
        Ok(world.delete(file)?)
    })
}

/// Grows the pool from nothing until an attempt fails, and gives it back (`set_max_huge_pages`).
fn pool(world: &mut World<'_>) -> Ran {
    let mut pages = Vec::new();
    let ask = Ask { order: world.place.huge, effort: Effort::Once, ..Ask::page(Class::Huge) };
    while let Some(held) = world.machine.ask(&ask)? {
        pages.push(held);
    }
    unusable(world);
    told(world, &pages, world.place.possible)?;
    for held in pages {
        world.machine.release(held)?;
    }
    Ok(())
}

fn grow_pool(world: &mut World<'_>, system: &mut System) -> Ran {
    world.begin("hugetlb during compile")?;
    let mut crowd = Crowd::gather(world, system)?;
    crowd.run(world, system, BEFORE)?;
    pool(world)?;
    world.figure("compilations", crowd.units(), 1, "times");
    world.begin("hugetlb at rest before dd")?;
    for tree in crowd.kill(world)? {
        world.delete_tree(tree)?;
    }
    pool(world)?;
    world.begin("hugetlb at rest after dd")?;
    system.flood(world)?;
    pool(world)
}

fn stress(world: &mut World<'_>, system: &mut System) -> Ran {
    world.begin("builds and updatedb")?;
    let mut crowd = Crowd::gather(world, system)?;
    crowd.begin_updatedb(world)?;
    crowd.run(world, system, BEFORE)?;
    attempts(world, system, &mut crowd, "highalloc under load, pass 1")?;
    attempts(world, system, &mut crowd, "highalloc under load, pass 2")?;
    crowd.run(world, system, AFTER)?;
    world.figure("compilations", crowd.units(), 1, "times");
    for tree in crowd.kill(world)? {
        world.delete_tree(tree)?;
    }
    attempts(world, system, &mut crowd, "highalloc at rest")?;
    world.census()
}

/// One attempt for each huge page that the machine could have; what was got is kept until the last.
fn attempts(world: &mut World<'_>, system: &mut System, crowd: &mut Crowd, phase: &str) -> Ran {
    world.begin(phase)?;
    let (order, possible) = (world.place.huge, world.place.possible);
    let ask = Ask { order, ..Ask::page(Class::Huge) };
    let mut pages = Vec::new();
    let (mut usable, mut failures) = (Vec::new(), Vec::new());
    for attempt in 0..u64::from(possible) {
        let before = unusable_with(world, pages.len() as u64);
        usable.push((attempt, millionths(before.0, before.1)));
        match world.machine.ask(&ask)? {
            Some(held) => pages.push(held),
            None => failures.push((attempt, fragmentation(world))),
        }
        for _ in 0..BETWEEN {
            crowd.step(world, system)?;
        }
    }
    told(world, &pages, possible)?;
    let (value, per) = unusable_with(world, pages.len() as u64);
    world.figure(&format!("F_u({order}) at the end"), value, per.max(1), "share");
    let mean = failures.iter().map(|point| point.1).sum::<i64>() / (failures.len() as i64).max(1);
    world.figure(&format!("F_i({order}) of failures"), mean.max(0) as u64, 1_000_000, "share");
    for held in pages {
        world.machine.release(held)?;
    }
    world.follow("F_u", "attempts", usable);
    world.follow("F_i", "attempts", failures);
    Ok(())
}

/// F_u of the huge pages' order, with those that the test holds counted as free and whole: only so does it
/// fall while they are taken, as in the paper's Figures 5 and 6.
fn unusable_with(world: &World<'_>, held: u64) -> (u64, u64) {
    let (value, free) = world.machine.unusable(world.place.huge);
    (value, free + (held << world.place.huge))
}

fn millionths(value: u64, per: u64) -> i64 {
    (u128::from(value) * 1_000_000 / u128::from(per.max(1))) as i64
}

/// F_i of the huge pages' order, in millionths.
fn fragmentation(world: &World<'_>) -> i64 {
    let (mut free, mut blocks) = (0u64, 0u64);
    for (_, zone) in world.machine.memory().zones() {
        free += u64::from(zone.zone().free_frames());
        blocks += zone.zone().free_blocks().iter().map(|&count| u64::from(count)).sum::<u64>();
    }
    if blocks == 0 { 0 } else { 1_000_000 - millionths(free, blocks << world.place.huge) }
}

/// Sections of memory that could be taken offline if pages of programs and files were moved away.
fn hot_remove(world: &mut World<'_>) -> Ran {
    world.begin("hot remove")?;
    let (mut sections, mut without_kernel, mut without_caches) = (0, 0, 0);
    let size = world.place.section;
    let shapes: Vec<_> = world.machine.memory().zones().map(|(setup, _)| setup.shape).collect();
    for shape in shapes {
        for first in (shape.first.next_multiple_of(size)..shape.end()).step_by(size as usize) {
            let used = |frame| world.machine.used_for(frame).map(|(class, _)| class);
            let frames = first..shape.end().min(first + size);
            let has_kernel =
                frames.clone().any(|frame| matches!(used(frame), Some(Class::Kernel | Class::PageTable)));
            let has_caches = frames.clone().any(|frame| used(frame) == Some(Class::Cache));
            sections += 1;
            without_kernel += u64::from(!has_kernel);
            without_caches += u64::from(!has_kernel && !has_caches);
        }
    }
    world.figure("sections without unmovable pages", without_kernel, sections.max(1), "share");
    world.figure("and without caches", without_caches, sections.max(1), "share");
    Ok(())
}
