#![forbid(unsafe_code)]
//! Layer `proto`.
