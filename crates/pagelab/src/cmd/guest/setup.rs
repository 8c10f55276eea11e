//! `pagelab guest setup`: downloads a distribution kernel into the cache, without installing it.

use std::path::PathBuf;

use pagelab_command::setup_progress::SetupProgress;
use pagelab_guest::json::kernel_to_json;
use pagelab_guest::kernel::GuestKernel;
use pagelab_guest::kernel_setup::set_up_kernel;
use pagelab_report::json::CONTRACT_VERSION;
use serde_json::json;

use crate::exit::{Exit, Outcome};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  pagelab guest setup                  the default kernel, 6.1
  pagelab guest setup --kernel 6.12    the newest cloud kernel of a series
";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Kernel series such as 6.1 or 6.12 (its newest cloud kernel), or a package name
    #[arg(long, value_name = "SERIES|PACKAGE", default_value = super::run::DEFAULT_KERNEL)]
    kernel: Vec<String>,
    /// Kernel cache directory [default: $XDG_CACHE_HOME/pagelab or ~/.cache/pagelab]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Downloads all requested kernels and prints their paths.
pub fn run(args: &Args) -> Outcome {
    let cache = super::open_cache(args.cache.as_ref())?;
    let mut told = SetupProgress::start(false)?;
    let mut kernels = Vec::new();
    for wanted in &args.kernel {
        if wanted.contains('/') {
            let message = format!("--kernel {wanted}: expected a series, for example 6.1, or a package");
            return Err(super::super::usage_error(&message));
        }
        kernels.push(set_up_kernel(&cache, wanted, &mut told).map_err(output::exit_if_stopped)?);
    }
    if args.json {
        let kernels: Vec<_> = kernels.iter().map(kernel_to_json).collect();
        output::print_json(
            &json!({"pagelab_json": CONTRACT_VERSION, "kind": "guest_setup", "kernels": kernels}),
        )?;
        return Ok(Exit::Success);
    }
    let line = |kernel: &GuestKernel| {
        let version = kernel.package.as_ref().map_or("", |package| package.version.as_str());
        format!("{}   {version}   {}\n", kernel.release, kernel.image.display())
    };
    output::print(&kernels.iter().map(line).collect::<String>())?;
    Ok(Exit::Success)
}
