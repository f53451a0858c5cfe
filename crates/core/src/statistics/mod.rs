//! What is counted about traffic, and how an installation is judged by it.

pub mod rollup;
pub mod status;
pub mod traffic;
