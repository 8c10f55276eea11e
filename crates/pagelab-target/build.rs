//! Builds the plugin of QEMU (plugins/tlb-trace), which this crate embeds: one call of the compiler, since it
//! is another kind of file (a library that QEMU loads) with flags of its own.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::{Compression, write::GzEncoder};

fn main() -> Result<(), String> {
    let of = |name: &str| std::env::var(name).map_err(|error| format!("{name}: {error}"));
    let workspace_root = Path::new(&of("CARGO_MANIFEST_DIR")?).join("../..");
    let (source, engine) =
        (workspace_root.join("plugins/tlb-trace/src"), workspace_root.join("crates/pagelab-tlb/src/engine"));
    for folder in [&source, &engine] {
        println!("cargo::rerun-if-changed={}", folder.display());
    }
    let out = PathBuf::from(of("OUT_DIR")?).join("tlb-trace.so");
    let packed_file = out.with_extension("so.gz");
    // QEMU 7.2 is only required on x86-64, and so is the plugin; elsewhere the source `exact` reports this.
    let here = of("CARGO_CFG_TARGET_ARCH")? == "x86_64" && of("CARGO_CFG_TARGET_ENV")? == "gnu";
    if !here {
        return std::fs::write(packed_file, b"").map_err(|error| error.to_string());
    }
    let mut compiler = Command::new(of("RUSTC")?);
    compiler.args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "pagelab_tlb_trace"]);
    compiler.args(["--target", &of("TARGET")?, "--cap-lints", "warn", "-A", "dead_code"]);
    compiler.args(["-C", "opt-level=3", "-C", "codegen-units=1", "-C", "panic=abort", "-C", "strip=symbols"]);
    compiler.arg(source.join("lib.rs")).arg("-o").arg(&out);
    // The flags of the workspace (crt-static) are not for a library that another program loads.
    compiler.env_remove("CARGO_ENCODED_RUSTFLAGS").env_remove("RUSTFLAGS");
    match compiler.status() {
        Ok(status) if status.success() => compress(&out, &packed_file).map_err(|error| error.to_string()),
        Ok(status) => Err(format!("the plugin does not compile: {status}")),
        Err(error) => Err(format!("cannot run {compiler:?}: {error}")),
    }
}

fn compress(file: &Path, packed_file: &Path) -> std::io::Result<()> {
    let mut encoder = GzEncoder::new(std::fs::File::create(packed_file)?, Compression::best());
    encoder.write_all(&std::fs::read(file)?)?;
    encoder.finish().map(drop)
}
