//! Packages of the distribution without installing them: asked for by [`apt`], unpacked into a folder of a
//! [`store`], whose entries are whole or not there. Nothing here needs root, and nothing outside of the store
//! is changed.

pub mod apt;
pub mod error;
pub mod program;
pub mod store;
