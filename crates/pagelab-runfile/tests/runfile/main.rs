//! Run files written and read: whole, killed, on full disks, forged.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::print_stdout, missing_docs)]

mod child;
mod day;
mod experiment;
mod full_disk;
mod killed;
mod look;
mod made;
mod maps;
mod mutated;
mod refused;
mod resumed;
mod round_trip;
mod studies;
mod trace;
mod versions;
