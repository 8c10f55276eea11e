//! Builds of a kernel: trees that are extracted and copied, compilers that come and go.

use super::files::File;
use super::process::Process;
use super::world::World;
use crate::words::Wrong;

/// Pages of a source file, by eighths: 3.2 in the middle, 54 000 of a tree of 17 000 (Linux 2.6.11, the tree
/// that the authors' scripts build: 210 MiB on a disk of 4 KiB blocks).
const SOURCE: [u32; 8] = [1, 1, 1, 2, 2, 3, 5, 11];
/// Pages of an object file, by eighths: 10 in the middle.
const OBJECT: [u32; 8] = [2, 3, 4, 6, 9, 12, 16, 28];
/// Memory of a compiler at its end, in pages, by eighths: 12 MiB in the middle, 5 to 27.
const COMPILER: [u32; 8] = [1200, 1600, 2000, 2400, 2900, 3500, 4500, 7000];
/// Memory of the assembler, and of the linker of a directory, in pages.
const ASSEMBLER: u32 = 400;
const LINKER: u32 = 1200;
/// Memory of the shell, the compiler's driver and the like, in pages, and of `make`, which stays.
const SMALL: u32 = 130;
const MAKE: u32 = 2000;
/// Areas of address space of a small program, and of a compiler.
const AREAS: u32 = 25;
/// Compilations in a directory: as often, what they made is linked.
const DIRECTORY: u32 = 20;
/// Pages that the linker of a directory writes.
const LINKED: u32 = 120;
/// Headers that one compilation reads: a draw of all in the tree.
const HEADERS: u32 = 60;
/// Pages of the compiler's own program that each run uses.
const PROGRAM: u32 = 500;

/// A tree of sources.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    pub(super) files: Vec<File>,
    /// Where the next look for reclaimed pages begins.
    swept: usize,
}

/// What one compilation has running.
#[derive(Debug, Default)]
struct Unit {
    small: Vec<Process>,
    /// The compiler, then the assembler, then perhaps the linker, each with the memory that it will have.
    at_work: Option<(Process, u32)>,
    left: Vec<u32>,
}

/// A build of a tree, one compilation after the other (`make -j1`).
#[derive(Debug, Default)]
pub(super) struct Build {
    pub(super) tree: Tree,
    sources: u32,
    make: Option<Process>,
    unit: Option<Unit>,
    pub(super) done: u32,
}

impl World<'_> {
    /// Writes about so many pages of a new tree, as `tar` or `cp -r` do; whether it is whole. `from`: the
    /// tree that is copied; without, the archive is read.
    pub(super) fn write_tree(
        &mut self,
        tree: &mut Tree,
        from: Option<&Tree>,
        pages: u32,
        archive: &File,
    ) -> Result<bool, Wrong> {
        if self.machine.is_throttled() {
            return Ok(false);
        }
        let all = self.count("tree_files");
        let mut left = pages;
        while left > 0 {
            let at = tree.files.len() as u32;
            if at >= all {
                return Ok(true);
            }
            let size = match from.and_then(|from| from.files.get(at as usize)) {
                Some(file) => {
                    self.read(file, 0, file.pages())?;
                    file.pages()
                }
                None => {
                    let share =
                        |at: u32| (u64::from(archive.pages()) * u64::from(at) / u64::from(all)) as u32;
                    self.read(archive, share(at), share(at + 1) - share(at))?;
                    self.drawn(&SOURCE)
                }
            };
            let mut file = File::default();
            self.look_up(&mut file)?;
            self.extend(&mut file, size, true)?;
            tree.files.push(file);
            left = left.saturating_sub(size.max(1));
        }
        Ok(false)
    }

    /// Looks at so many files of a tree for pages that were reclaimed.
    pub(super) fn sweep_tree(&mut self, tree: &mut Tree, files: usize) -> Result<(), Wrong> {
        for _ in 0..files.min(tree.files.len()) {
            tree.swept = (tree.swept + 1) % tree.files.len();
            let mut file = std::mem::take(&mut tree.files[tree.swept]);
            self.sweep(&mut file)?;
            tree.files[tree.swept] = file;
        }
        Ok(())
    }

    /// Deletes a tree.
    pub(super) fn delete_tree(&mut self, tree: Tree) -> Result<(), Wrong> {
        tree.files.into_iter().try_for_each(|file| self.delete(file))
    }

    /// Begins a build.
    pub(super) fn begin_build(&mut self, tree: Tree) -> Result<Build, Wrong> {
        let mut make = self.start(AREAS)?;
        self.grow(&mut make, MAKE)?;
        Ok(Build { sources: tree.files.len() as u32, tree, make: Some(make), unit: None, done: 0 })
    }

    /// Lets a build run for 10 ms; whether it is at its end.
    pub(super) fn run_build(&mut self, build: &mut Build, programs: &File) -> Result<bool, Wrong> {
        if build.done >= self.count("units") {
            if let Some(make) = build.make.take() {
                self.end(make)?;
            }
            return Ok(true);
        }
        self.moves();
        let mut unit = match build.unit.take() {
            Some(unit) => unit,
            None => self.begin_unit(build, programs)?,
        };
        if let Some((process, size)) = &mut unit.at_work {
            let before = process.pages();
            self.grow(process, self.count("pace").min(size.saturating_sub(before)))?;
            self.use_again(process, 10)?;
            // One that gets no memory goes no further.
            if process.pages() > before && process.pages() < *size {
                build.unit = Some(unit);
                return Ok(false);
            }
        }
        if let Some((process, _)) = unit.at_work.take() {
            self.end(process)?;
        }
        if let Some(size) = unit.left.pop() {
            let mut process = self.start(AREAS)?;
            let first = self.count("pace").min(size);
            self.grow(&mut process, first)?;
            unit.at_work = Some((process, size));
            build.unit = Some(unit);
        } else if self.machine.is_throttled() {
            build.unit = Some(unit);
        } else {
            self.end_unit(build, unit)?;
        }
        Ok(false)
    }

    fn begin_unit(&mut self, build: &mut Build, programs: &File) -> Result<Unit, Wrong> {
        let mut unit = Unit::default();
        for _ in 0..3 {
            let mut small = self.start(AREAS)?;
            self.grow(&mut small, SMALL)?;
            unit.small.push(small);
        }
        let from = self.random.below(u64::from(programs.pages().saturating_sub(PROGRAM) + 1)) as u32;
        self.read(programs, from, PROGRAM)?;
        for _ in 0..HEADERS + 1 {
            let at = self.random.below(u64::from(build.sources.max(1))) as usize;
            if let Some(file) = build.tree.files.get_mut(at) {
                let mut file = std::mem::take(file);
                self.look_up(&mut file)?;
                self.read(&file, 0, 3)?;
                build.tree.files[at] = file;
            }
        }
        let compiler = u64::from(self.drawn(&COMPILER)) * self.parameter("compiler") / 100;
        // The last one is taken first.
        unit.left = vec![ASSEMBLER, (compiler as u32).max(1)];
        if (build.done + 1).is_multiple_of(DIRECTORY) {
            unit.left.insert(0, LINKER);
        }
        Ok(unit)
    }

    /// Writes what a compilation made.
    fn end_unit(&mut self, build: &mut Build, unit: Unit) -> Result<(), Wrong> {
        let object = self.drawn(&OBJECT);
        for pages in [object, 1] {
            self.write_new(build, pages)?;
        }
        build.done += 1;
        if build.done.is_multiple_of(DIRECTORY) {
            self.write_new(build, LINKED)?;
        }
        unit.small.into_iter().try_for_each(|small| self.end(small))
    }

    fn write_new(&mut self, build: &mut Build, pages: u32) -> Result<(), Wrong> {
        let mut file = File::default();
        self.look_up(&mut file)?;
        self.extend(&mut file, pages, true)?;
        build.tree.files.push(file);
        Ok(())
    }

    /// Kills a build; its tree stays.
    pub(super) fn kill(&mut self, build: Build) -> Result<Tree, Wrong> {
        let unit = build.unit.unwrap_or_default();
        let at_work = unit.at_work.map(|(process, _)| process);
        for process in build.make.into_iter().chain(unit.small).chain(at_work) {
            self.end(process)?;
        }
        Ok(build.tree)
    }
}
