//! `pagelab guest setup`: downloads a distribution kernel into the cache, without installing it, and builds
//! pagelab's module for it, the tool disk and the source tree.

use std::path::{Path, PathBuf};

use pagelab_command::setup_progress::SetupProgress;
use pagelab_guest::json::{kernel_to_json, module_to_json, tools_to_json, tree_to_json};
use pagelab_guest::kernel::GuestKernel;
use pagelab_guest::kernel_module::BuiltModule;
use pagelab_guest::kernel_setup::set_up_kernel;
use pagelab_guest::module_build::set_up_module;
use pagelab_guest::source_tree::{SourceTree, TreeCache, set_up_source_tree};
use pagelab_guest::tool_disk::{ToolCache, ToolDisk, set_up_tool_disk};
use pagelab_report::json::CONTRACT_VERSION;
use pagelab_report::style::format_plural;
use serde_json::json;

use crate::exit::{Exit, Outcome};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  pagelab guest setup                  the default kernel, 6.1
  pagelab guest setup --kernel 6.12    the newest cloud kernel of a series
  pagelab guest setup --module         also build the module for its guests
  pagelab guest setup --tools          also make the disk of `guest shell`
  pagelab guest setup --linux-source   also prepare the sources of `kbuild`
  pagelab guest setup --module --kernel PATH/vmlinuz --headers DIR

The module switches parts of the page allocator off in a guest (pagelab help docs/kmod.md). It is built with \
 make and the compiler of the kernel, from headers that are downloaded and not installed.

The sources are some objects of Debian's linux-source-6.1 (139 MB), configured and built once on this \
 machine, which needs gcc-12, make, flex, bison, bc and xz.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Kernel series such as 6.1 or 6.12 (its newest cloud kernel), or a package name
    #[arg(long, value_name = "SERIES|PACKAGE", default_value = super::run::DEFAULT_KERNEL)]
    kernel: Vec<String>,
    /// Build the kernel module of pagelab for these kernels
    #[arg(long)]
    module: bool,
    /// Make the disk with a shell and a compiler that `guest shell` uses
    #[arg(long)]
    tools: bool,
    /// Make the source tree that `workload kbuild` compiles
    #[arg(long)]
    linux_source: bool,
    /// Build with the headers in this directory; --kernel may be a path then
    #[arg(long, value_name = "DIR", requires = "module")]
    headers: Option<PathBuf>,
    /// Kernel cache directory [default: $XDG_CACHE_HOME/pagelab or ~/.cache/pagelab]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Downloads all requested kernels, builds their modules, and prints the paths.
pub fn run(args: &Args) -> Outcome {
    if args.headers.is_some() && args.kernel.len() > 1 {
        return Err(super::super::usage_error(
            "--headers: expected one --kernel, the headers are of one kernel",
        ));
    }
    let cache = super::open_cache(args.cache.as_ref())?;
    let mut told = SetupProgress::start(false)?;
    let (mut kernels, mut modules) = (Vec::new(), Vec::new());
    for wanted in &args.kernel {
        let kernel = match wanted.contains('/') {
            false => set_up_kernel(&cache, wanted, &mut told).map_err(output::exit_if_stopped)?,
            true if args.headers.is_some() => GuestKernel::open(Path::new(wanted), None)?,
            true => {
                let message = format!("--kernel {wanted}: expected a series, for example 6.1, or a package");
                return Err(super::super::usage_error(&message));
            }
        };
        if args.module {
            let modules_cache = super::open_module_cache(args.cache.as_ref())?;
            let built = set_up_module(&modules_cache, &kernel, args.headers.as_deref(), &mut told);
            modules.push(built.map_err(output::exit_if_stopped)?);
        }
        kernels.push(kernel);
    }
    let tools = match args.tools {
        true => {
            let cache = ToolCache::in_dir(&super::cache_dir(args.cache.as_ref())?);
            Some(set_up_tool_disk(&cache, &mut told).map_err(output::exit_if_stopped)?)
        }
        false => None,
    };
    let tree = match args.linux_source {
        true => {
            let cache = TreeCache::in_dir(&super::cache_dir(args.cache.as_ref())?);
            Some(set_up_source_tree(&cache, &mut told).map_err(output::exit_if_stopped)?)
        }
        false => None,
    };
    print_outcome(&kernels, &modules, tools.as_ref(), tree.as_ref(), args.json)
}

fn print_outcome(
    kernels: &[GuestKernel],
    modules: &[BuiltModule],
    tools: Option<&ToolDisk>,
    tree: Option<&SourceTree>,
    is_json: bool,
) -> Outcome {
    if is_json {
        let kernels: Vec<_> = kernels.iter().map(kernel_to_json).collect();
        let modules: Vec<_> = modules.iter().map(module_to_json).collect();
        output::print_json(&json!({
            "pagelab_json": CONTRACT_VERSION, "kind": "guest_setup", "kernels": kernels, "modules": modules,
            "tools": tools.map(tools_to_json), "linux_source": tree.map(tree_to_json)
        }))?;
        return Ok(Exit::Success);
    }
    let kernel_line = |kernel: &GuestKernel| {
        let version = kernel.package.as_ref().map_or("", |package| package.version.as_str());
        format!("{}   {version}   {}\n", kernel.release, kernel.image.display())
    };
    let module_line =
        |module: &BuiltModule| format!("{}   module   {}\n", module.record.release, module.path.display());
    let tools_line = |disk: &ToolDisk| {
        format!(
            "tools   {}   {}\n",
            format_plural(disk.record.packages.len(), "package"),
            disk.path.display()
        )
    };
    let tree_line = |tree: &SourceTree| {
        let objects = format_plural(tree.record.objects.len(), "object");
        format!("linux-source   {}   {objects}   {}\n", tree.record.version, tree.path.display())
    };
    let kernels = kernels.iter().map(kernel_line);
    let modules = modules.iter().map(module_line);
    let lines: String =
        kernels.chain(modules).chain(tools.map(tools_line)).chain(tree.map(tree_line)).collect();
    output::print(&lines)?;
    Ok(Exit::Success)
}
