//! Parsers of kernel texts and binary records into the model, and writers of some of them.
//!
//! Every parser is a plain function from bytes to a value or a [`ParseError`] that names the line.
//! Unknown fields, words and bits are kept; a malformed line is an error, never a guess; no input
//! panics, hangs or takes more memory than a small multiple of its own length.

pub mod alloc_attempts;
pub mod alloc_trace;
pub mod allocinfo;
pub mod buddyinfo;
pub mod cgroup;
pub mod checksum;
mod counter_builder;
pub mod cpu_list;
pub mod cpuinfo;
pub mod duration;
mod error;
pub mod exposition;
pub mod free_text;
pub mod fuzz;
pub mod iomem;
pub mod kallsyms;
pub mod kernel_log;
pub mod kpagecount;
pub mod kpageflags;
pub mod maps;
pub mod meminfo;
pub mod mountinfo;
pub mod node_exporter;
pub mod pagemap;
pub mod pagetypeinfo;
pub mod perf_data;
pub mod perf_record;
pub mod perf_stat;
pub mod plan_toml;
pub mod pressure;
pub mod process_status;
pub mod region_list;
pub mod ring_page;
pub mod setting;
pub mod shell_time;
pub mod show_mem;
pub mod size;
pub mod slabinfo;
pub mod smaps;
pub mod swap;
pub mod text;
pub mod toml_document;
pub mod trace_format;
pub mod vmstat;
pub mod zoneinfo;

pub use error::ParseError;
