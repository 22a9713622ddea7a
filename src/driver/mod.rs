#![forbid(unsafe_code)]
//! Layer `driver`.
