#![forbid(unsafe_code)]
//! Layer `fabric`.
