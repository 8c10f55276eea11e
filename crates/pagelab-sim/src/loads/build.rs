//! Kernel builds: source trees that are extracted and copied, and compilers that start and exit.

use super::base_system::BaseSystem;
use super::files::CachedFile;
use super::load_context::{LoadContext, LoadResult};
use super::process::Process;
use crate::types::Error;

/// Quantiles of the pages of a source file, by eighths: 3.2 on average, 54 000 for a tree of 17 000 files
/// (Linux 2.6.11, the tree that the authors' scripts build: 210 MiB on a disk of 4 KiB blocks).
const SOURCE_PAGES: [u32; 8] = [1, 1, 1, 2, 2, 3, 5, 11];
/// Quantiles of the pages of an object file, by eighths: 10 on average.
const OBJECT_PAGES: [u32; 8] = [2, 3, 4, 6, 9, 12, 16, 28];
/// Quantiles of the final memory of a compiler in pages, by eighths: 12 MiB on average, 5 to 27.
const COMPILER_PAGES: [u32; 8] = [1200, 1600, 2000, 2400, 2900, 3500, 4500, 7000];
/// Memory of the assembler, and of the linker of a directory, in pages.
const ASSEMBLER_PAGES: u32 = 400;
const LINKER_PAGES: u32 = 1200;
/// Memory of the shell, the compiler's driver and the like, in pages, and of `make`, which stays.
const HELPER_PAGES: u32 = 130;
const MAKE_PAGES: u32 = 2000;
/// Areas of address space of a small program, and of a compiler.
const VMAS: u32 = 25;
/// Compilations in a directory: after each of this many, their output is linked.
const COMPILATIONS_PER_DIRECTORY: u32 = 20;
/// Pages that the linker of a directory writes.
const LINKED_PAGES: u32 = 120;
/// Headers that one compilation reads: a random selection of all in the tree.
const HEADERS_PER_COMPILATION: u32 = 60;
/// Pages of the compiler's program file that each run uses.
const COMPILER_TEXT_PAGES: u32 = 500;

#[derive(Clone, Debug, Default)]
pub(super) struct SourceTree {
    pub(super) files: Vec<CachedFile>,
    /// Index of the next file to check for reclaimed pages.
    sweep_position: usize,
}

/// Processes of one compilation.
#[derive(Debug, Default)]
struct Compilation {
    helpers: Vec<Process>,
    /// The compiler, then the assembler, then possibly the linker, each with its final memory.
    current: Option<(Process, u32)>,
    pending_pages: Vec<u32>,
}

/// A build of a tree, one compilation after the other (`make -j1`).
#[derive(Debug, Default)]
pub(super) struct Build {
    pub(super) tree: SourceTree,
    source_count: u32,
    make: Option<Process>,
    compilation: Option<Compilation>,
    pub(super) compilations: u32,
}

impl LoadContext<'_> {
    /// Writes a new tree for 10 ms, as `tar` or `cp -r` do; returns whether it is complete. `from`: the tree
    /// that is copied; without, the archive is read.
    pub(super) fn write_tree(
        &mut self,
        tree: &mut SourceTree,
        from: Option<&SourceTree>,
        archive: &CachedFile,
    ) -> Result<bool, Error> {
        if self.machine.is_throttled() {
            return Ok(false);
        }
        let total_files = self.count_parameter("tree_files");
        let mut remaining = self.count_parameter("disk");
        while remaining > 0 {
            let file_index = tree.files.len() as u32;
            if file_index >= total_files {
                return Ok(true);
            }
            let size = match from.and_then(|from| from.files.get(file_index as usize)) {
                Some(file) => {
                    self.read_file(file, 0, file.pages())?;
                    file.pages()
                }
                None => {
                    let archive_offset = |at: u32| {
                        (u64::from(archive.pages()) * u64::from(at) / u64::from(total_files)) as u32
                    };
                    self.read_file(
                        archive,
                        archive_offset(file_index),
                        archive_offset(file_index + 1) - archive_offset(file_index),
                    )?;
                    self.sample_quantiles(&SOURCE_PAGES)
                }
            };
            tree.files.push(self.create_file(size, true)?);
            remaining = remaining.saturating_sub(size.max(1));
        }
        Ok(false)
    }

    /// Checks a number of files of a tree for reclaimed pages.
    pub(super) fn sweep_tree(&mut self, tree: &mut SourceTree, files: usize) -> Result<(), Error> {
        for _ in 0..files.min(tree.files.len()) {
            tree.sweep_position = (tree.sweep_position + 1) % tree.files.len();
            self.sweep_file(&mut tree.files[tree.sweep_position])?;
        }
        Ok(())
    }

    pub(super) fn begin_build(&mut self, tree: SourceTree) -> Result<Build, Error> {
        let mut make_process = self.start_process(VMAS)?;
        self.grow_process(&mut make_process, MAKE_PAGES)?;
        Ok(Build {
            source_count: tree.files.len() as u32,
            tree,
            make: Some(make_process),
            compilation: None,
            compilations: 0,
        })
    }

    /// Runs a build for 10 ms; returns whether it has finished.
    pub(super) fn run_build(&mut self, build: &mut Build, programs: &CachedFile) -> Result<bool, Error> {
        if build.compilations >= self.count_parameter("units") {
            if let Some(make) = build.make.take() {
                self.end_process(make)?;
            }
            return Ok(true);
        }
        self.pick_random_cpu();
        let mut compilation = match build.compilation.take() {
            Some(unit) => unit,
            None => self.begin_compilation(build, programs)?,
        };
        if let Some((process, size)) = &mut compilation.current {
            let before = process.pages();
            self.grow_process(process, self.count_parameter("pace").min(size.saturating_sub(before)))?;
            self.touch_random_pages(process, 10)?;
            // A compilation that gets no memory ends.
            if process.pages() > before && process.pages() < *size {
                build.compilation = Some(compilation);
                return Ok(false);
            }
        }
        if let Some((process, _)) = compilation.current.take() {
            self.end_process(process)?;
        }
        if let Some(size) = compilation.pending_pages.pop() {
            let mut process = self.start_process(VMAS)?;
            let first = self.count_parameter("pace").min(size);
            self.grow_process(&mut process, first)?;
            compilation.current = Some((process, size));
            build.compilation = Some(compilation);
        } else if self.machine.is_throttled() {
            build.compilation = Some(compilation);
        } else {
            self.end_compilation(build, compilation)?;
        }
        Ok(false)
    }

    fn begin_compilation(&mut self, build: &mut Build, programs: &CachedFile) -> Result<Compilation, Error> {
        let mut compilation = Compilation::default();
        for _ in 0..3 {
            let mut small = self.start_process(VMAS)?;
            self.grow_process(&mut small, HELPER_PAGES)?;
            compilation.helpers.push(small);
        }
        let from = self.random.next_below(u64::from(programs.pages().saturating_sub(COMPILER_TEXT_PAGES) + 1))
            as u32;
        self.read_file(programs, from, COMPILER_TEXT_PAGES)?;
        for _ in 0..HEADERS_PER_COMPILATION + 1 {
            let at = self.random.next_below(u64::from(build.source_count.max(1))) as usize;
            if let Some(file) = build.tree.files.get_mut(at) {
                self.look_up_file(file)?;
                self.read_file(file, 0, 3)?;
            }
        }
        let compiler = u64::from(self.sample_quantiles(&COMPILER_PAGES)) * self.parameter("compiler") / 100;
        // The last process is taken first.
        compilation.pending_pages = vec![ASSEMBLER_PAGES, (compiler as u32).max(1)];
        if (build.compilations + 1).is_multiple_of(COMPILATIONS_PER_DIRECTORY) {
            compilation.pending_pages.insert(0, LINKER_PAGES);
        }
        Ok(compilation)
    }

    /// Writes the output of a compilation.
    fn end_compilation(&mut self, build: &mut Build, compilation: Compilation) -> Result<(), Error> {
        let object = self.sample_quantiles(&OBJECT_PAGES);
        for pages in [object, 1] {
            build.tree.files.push(self.create_file(pages, true)?);
        }
        build.compilations += 1;
        if build.compilations.is_multiple_of(COMPILATIONS_PER_DIRECTORY) {
            build.tree.files.push(self.create_file(LINKED_PAGES, true)?);
        }
        compilation.helpers.into_iter().try_for_each(|small| self.end_process(small))
    }

    /// Kills a build; its tree stays.
    pub(super) fn kill_build(&mut self, build: Build) -> Result<SourceTree, Error> {
        let compilation = build.compilation.unwrap_or_default();
        let at_work = compilation.current.map(|(process, _)| process);
        for process in build.make.into_iter().chain(compilation.helpers).chain(at_work) {
            self.end_process(process)?;
        }
        Ok(build.tree)
    }
}

/// Files checked for reclaimed pages in a tick.
const FILES_SWEPT_PER_TICK: usize = 60;
const UPDATEDB_PAGES: u32 = 600;

/// Running builds.
#[derive(Debug, Default)]
pub(super) struct ParallelBuilds {
    builds: Vec<Build>,
    /// Trees that remain to be copied, and the current one.
    trees_to_copy: u32,
    tree_in_copy: Option<SourceTree>,
    /// The tree that was extracted from the archive; it is built last.
    first_tree: Option<SourceTree>,
    next_build: usize,
    updatedb: Option<Process>,
}

impl ParallelBuilds {
    /// One build for each 250 MiB, or the number given by a parameter.
    pub(super) fn build_count(context: &LoadContext<'_>) -> u32 {
        match context.count_parameter_or_zero("builds") {
            0 => (context.model.frames / (250 << 8)).max(1) as u32,
            builds => builds,
        }
    }

    /// Seconds until all builds have started.
    pub(super) fn startup_seconds(context: &LoadContext<'_>) -> u64 {
        let pages = context.parameter("tree_files") * 13 / 4;
        u64::from(ParallelBuilds::build_count(context) + 1) * pages / context.parameter("disk").max(1) / 100
            + 1
    }

    /// Extracts the archive, copies the tree once for each further build, and starts each build when its copy
    /// is complete; then that of the first tree.
    pub(super) fn start_all(
        context: &mut LoadContext<'_>,
        system: &mut BaseSystem,
    ) -> LoadResult<ParallelBuilds> {
        let mut parallel = ParallelBuilds {
            trees_to_copy: ParallelBuilds::build_count(context) - 1,
            ..ParallelBuilds::default()
        };
        let mut tree = SourceTree::default();
        while !context.write_tree(&mut tree, None, &system.archive)? {
            context.advance_tick()?;
        }
        parallel.first_tree = Some(tree);
        while parallel.first_tree.is_some() {
            parallel.run_tick(context, system)?;
        }
        Ok(parallel)
    }

    pub(super) fn start_updatedb(&mut self, context: &mut LoadContext<'_>) -> LoadResult {
        let mut process = context.start_process(25)?;
        context.grow_process(&mut process, UPDATEDB_PAGES)?;
        self.updatedb = Some(process);
        Ok(())
    }

    /// Runs all builds for 10 ms.
    pub(super) fn run_tick(&mut self, context: &mut LoadContext<'_>, system: &mut BaseSystem) -> LoadResult {
        if context.machine.is_io_blocked() {
            return context.advance_tick();
        }
        self.copy_tree(context, system)?;
        let slots = context.count_parameter("slots") as usize;
        for _ in 0..slots.min(self.builds.len()) {
            self.next_build = (self.next_build + 1) % self.builds.len();
            context.run_build(&mut self.builds[self.next_build], &system.programs)?;
        }
        if let Some(build) = self.builds.get_mut(self.next_build) {
            context.sweep_tree(&mut build.tree, FILES_SWEPT_PER_TICK)?;
        }
        if self.updatedb.is_some() {
            context.pick_random_cpu();
            system.walk_files(context)?;
        }
        context.advance_tick()
    }

    fn copy_tree(&mut self, context: &mut LoadContext<'_>, system: &BaseSystem) -> Result<(), Error> {
        let Some(first) = self.first_tree.take() else { return Ok(()) };
        if self.trees_to_copy == 0 {
            let build = context.begin_build(first)?;
            self.builds.push(build);
            return Ok(());
        }
        let mut copy = self.tree_in_copy.take().unwrap_or_default();
        let is_complete = context.write_tree(&mut copy, Some(&first), &system.archive)?;
        self.first_tree = Some(first);
        if is_complete {
            self.trees_to_copy -= 1;
            let build = context.begin_build(copy)?;
            self.builds.push(build);
        } else {
            self.tree_in_copy = Some(copy);
        }
        Ok(())
    }

    /// Runs all builds for a number of seconds.
    pub(super) fn run_seconds(
        &mut self,
        context: &mut LoadContext<'_>,
        system: &mut BaseSystem,
        seconds: u64,
    ) -> LoadResult {
        for _ in 0..seconds * super::load_context::TICKS_PER_SECOND {
            self.run_tick(context, system)?;
        }
        Ok(())
    }

    pub(super) fn compilations(&self) -> u64 {
        self.builds.iter().map(|build| u64::from(build.compilations)).sum()
    }

    /// Kills all processes, and deletes the trees.
    pub(super) fn end_all(&mut self, context: &mut LoadContext<'_>) -> Result<(), Error> {
        if let Some(process) = self.updatedb.take() {
            context.end_process(process)?;
        }
        let mut trees: Vec<SourceTree> =
            self.first_tree.take().into_iter().chain(self.tree_in_copy.take()).collect();
        for build in self.builds.drain(..) {
            trees.push(context.kill_build(build)?);
        }
        trees.into_iter().flat_map(|tree| tree.files).try_for_each(|file| context.delete_file(file))
    }
}
