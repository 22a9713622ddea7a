#![forbid(unsafe_code)]
//! Layer `wire`.
