//! What a queue pair of SMC-R receives: LLC and CDC messages.
#![no_main]

#[path = "../wire_support/laws.rs"]
mod laws;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| laws::received_laws(bytes));
