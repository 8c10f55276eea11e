//! Compresses the built page (web/dist/page.html), which this crate embeds.

use std::io::Write;
use std::path::PathBuf;

use flate2::{Compression, write::GzEncoder};

const PAGE: &str = "../../web/dist/page.html";

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed={PAGE}");
    let directory = std::env::var_os("OUT_DIR").ok_or("no OUT_DIR")?;
    let compress = || -> std::io::Result<()> {
        let file = std::fs::File::create(PathBuf::from(directory).join("page.html.gz"))?;
        let mut encoder = GzEncoder::new(file, Compression::best());
        encoder.write_all(&std::fs::read(PAGE)?)?;
        encoder.finish().map(drop)
    };
    compress().map_err(|error| format!("cannot compress {PAGE}: {error}"))
}
