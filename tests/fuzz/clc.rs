//! CLC messages, and TCP options on the side.
#![no_main]

#[path = "../wire_support/laws.rs"]
mod laws;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    laws::clc_laws(bytes);
    laws::tcpopt_laws(bytes);
});
