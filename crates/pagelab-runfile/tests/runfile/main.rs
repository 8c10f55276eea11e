//! Tests of run files: complete, killed, on full disks, forged.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::print_stdout, missing_docs)]

mod child;
mod crash;
mod day;
mod experiment;
mod fixtures;
mod full_disk;
mod maps;
mod mutation;
mod refusal;
mod resume;
mod round_trip;
mod simulation;
mod snapshot;
mod trace;
mod versions;
