//! Built-in workloads, one module each. They run on memory that the caller mapped, and say what they did.

pub mod chase;
