//! External workloads: programs that are not ours, each described by a manifest (`docs/external.md`).
//!
//! A [`manifest`] says which programs are wanted, what may be chosen, how the data are made and what is run.
//! [`home`] is where its set-up lies and whether it is whole, [`setup`] makes it, [`data`] makes what a run
//! works on, and [`run`] is one run in a folder of its own. The manifests that come with pagelab are
//! [`embedded`].

pub mod data;
mod descendants;
pub mod embedded;
pub mod home;
pub mod manifest;
pub mod read;
pub mod run;
pub mod setup;
mod trials;
mod words;

#[cfg(test)]
mod tests;

pub use embedded::all;
pub use manifest::Manifest;
pub use read::{Unread, named};
