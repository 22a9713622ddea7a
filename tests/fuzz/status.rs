//! The words of a status page.
#![no_main]

#[path = "../wire_support/status_laws.rs"]
mod status_laws;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| status_laws::status_laws(bytes));
