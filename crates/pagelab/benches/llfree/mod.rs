//! LLFree's own benchmark, if it is built: `LLFREE_DIR` is a checkout with `target/release/bench` (`cargo
//! build --release -p llfree-eval`).

use std::path::PathBuf;
use std::process::Command;

/// Nanoseconds of an allocation and of a free.
#[derive(Clone, Copy, Debug)]
pub struct AllocFreeTimes {
    /// An allocation.
    pub alloc_ns: f64,
    /// A free.
    pub free_ns: f64,
}

/// The program, or the reason for its absence.
pub fn find_program() -> Result<PathBuf, String> {
    let folder = std::env::var_os("LLFREE_DIR").ok_or("LLFREE_DIR names no checkout of LLFree")?;
    let program = PathBuf::from(folder).join("target/release/bench");
    if program.is_file() { Ok(program) } else { Err(format!("{} is not built", program.display())) }
}

/// Runs its `run_rand` at order 0 with one thread over so many GiB: half of memory is allocated, then freed
/// in a random order. One result for each iteration.
pub fn run_rand(gib: u32, iterations: u32, folder: &std::path::Path) -> Result<Vec<AllocFreeTimes>, String> {
    let table = folder.join("llfree.csv");
    let mut command = Command::new(find_program()?);
    command.args(["rand", "LLFree", "-x", "1", "-t", "1", "-s", "0"]);
    command.args(["-i", &iterations.to_string(), "-m", &gib.to_string(), "-o"]).arg(&table);
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    parse_table(&std::fs::read_to_string(&table).map_err(|error| error.to_string())?)
}

/// Reads its table: columns by their names, since releases have more or fewer of them.
pub fn parse_table(table: &str) -> Result<Vec<AllocFreeTimes>, String> {
    let mut lines = table.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let place = |name: &str| names.iter().position(|one| *one == name).ok_or(format!("no column {name}"));
    let (get, put) = (place("get_avg")?, place("put_avg")?);
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        let number = |at: usize| cells.get(at).and_then(|cell| cell.parse().ok());
        Some(AllocFreeTimes { alloc_ns: number(get)?, free_ns: number(put)? })
    };
    lines.map(|line| row(line).ok_or(format!("not a row: {line}"))).collect()
}
