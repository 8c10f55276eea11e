//! `pagelab guest`: disposable QEMU guests with stock kernels.

mod guest_command;
pub mod memory;
pub mod run;
pub mod setup;
pub mod shell;

use std::path::{Path, PathBuf};

use pagelab_command::setup_progress::SetupProgress;
use pagelab_guest::cache::KernelCache;
use pagelab_guest::kernel::GuestKernel;
use pagelab_guest::kernel_module::ModuleCache;
use pagelab_guest::kernel_setup::set_up_kernel;
use pagelab_guest::source_tree::{TreeCache, set_up_source_tree};
use pagelab_guest::tool_disk::{ToolCache, set_up_tool_disk};
use pagelab_packages::store;

use crate::exit::{Failure, FailureKind};
use crate::output;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: GuestAction,
}

const EXAMPLES: &str = "\
Examples:
  pagelab guest setup --kernel 6.12
  pagelab guest run -- checkup -v
  pagelab guest run --nodes 2 --append kernelcore=256M -- checkup
  pagelab guest run --take saved.tar.zst -- capture saved.tar.zst
  pagelab guest shell -c 'gcc --version'

A guest is a virtual machine that runs only this pagelab and is discarded afterwards. It is emulated and \
 does not need /dev/kvm, which is opened only for --accel kvm and --accel auto.";

#[derive(Debug, clap::Subcommand)]
enum GuestAction {
    /// Download a distribution kernel into the cache, and build its module
    Setup(setup::Args),
    /// Run a pagelab command in a guest, and return its output and exit code
    Run(Box<run::Args>),
    /// Open a shell with a compiler in a guest
    Shell(Box<shell::Args>),
}

/// Runs the command; the exit code may be that of the command in the guest.
pub fn run(args: &Args) -> Result<u8, Failure> {
    match &args.what {
        GuestAction::Setup(args) => setup::run(args).map(|exit| exit as u8),
        GuestAction::Run(args) => run::run(args),
        GuestAction::Shell(args) => shell::run(args),
    }
}

/// The cache of kernels in `folder`, or in the cache directory of this user.
pub fn open_cache(folder: Option<&PathBuf>) -> Result<KernelCache, Failure> {
    cache_dir(folder).map(|dir| KernelCache::in_dir(&dir))
}

/// The cache of built modules, beside the kernels.
pub fn open_module_cache(folder: Option<&PathBuf>) -> Result<ModuleCache, Failure> {
    cache_dir(folder).map(|dir| ModuleCache::in_dir(&dir))
}

/// Whether a kernel is selected by its path, and not by a series or a package.
pub fn is_kernel_path(selector: &str) -> bool {
    selector.contains('/') || Path::new(selector).is_file()
}

/// The kernel of this selector: that of a path, or one in the cache. `None`: it is not there yet.
pub fn find_kernel(
    folder: Option<&PathBuf>,
    selector: &str,
    modules: Option<&Path>,
) -> Result<Option<GuestKernel>, Failure> {
    match is_kernel_path(selector) {
        true => GuestKernel::open(Path::new(selector), modules).map(Some),
        false => Ok(open_cache(folder)?.find_kernel(selector)),
    }
}

/// The same, and one that is not there yet is downloaded.
pub fn find_or_fetch_kernel(
    folder: Option<&PathBuf>,
    selector: &str,
    modules: Option<&Path>,
    told: &mut SetupProgress,
) -> Result<GuestKernel, Failure> {
    match find_kernel(folder, selector, modules)? {
        Some(kernel) => Ok(kernel),
        None => set_up_kernel(&open_cache(folder)?, selector, told),
    }
}

/// pagelab's module for this kernel, which must have been built: a kernel that is not there yet has none.
/// `selector` is the word for the kernel on the command line.
pub fn find_own_module(
    folder: Option<&PathBuf>,
    selector: &str,
    kernel: &GuestKernel,
) -> Result<PathBuf, Failure> {
    let cache = open_module_cache(folder)?;
    let module = if kernel.image.is_file() { cache.find_module(kernel)? } else { None };
    let missing = || {
        let headers = if selector.contains('/') { " --headers DIR" } else { "" };
        let action = format_args!("load the module in {}", kernel.release);
        Failure::cannot(FailureKind::NotAvailable, action, "it was never built for this kernel")
            .hint(format!("pagelab guest setup --module --kernel {selector}{headers}"))
    };
    module.map(|module| module.path).ok_or_else(missing)
}

/// The image of the tool disk, which is made if there is none yet.
pub fn find_or_make_tools(folder: Option<&PathBuf>, told: &mut SetupProgress) -> Result<PathBuf, Failure> {
    let cache = ToolCache::in_dir(&cache_dir(folder)?);
    let tools = cache.find_newest().map_or_else(|| set_up_tool_disk(&cache, told), Ok);
    tools.map(|disk| disk.path).map_err(output::exit_if_stopped)
}

/// The archive of the source tree, which is made if there is none yet.
pub fn find_or_make_tree(folder: Option<&PathBuf>, told: &mut SetupProgress) -> Result<PathBuf, Failure> {
    let cache = TreeCache::in_dir(&cache_dir(folder)?);
    let tree = cache.find_newest().map_or_else(|| set_up_source_tree(&cache, told), Ok);
    tree.map(|tree| tree.path).map_err(output::exit_if_stopped)
}

fn cache_dir(folder: Option<&PathBuf>) -> Result<PathBuf, Failure> {
    let none = || {
        let reason = "neither XDG_CACHE_HOME nor HOME is set";
        Failure::cannot(FailureKind::NotAvailable, "find a cache directory", reason).hint("use --cache DIR")
    };
    folder.cloned().or_else(store::default_cache_dir).ok_or_else(none)
}
