//! Rendezvous frames and CDC messages.
#![no_main]

#[path = "../wire_support/laws.rs"]
mod laws;

const LAYOUT: u64 = 0x0123_4567_89ab_cdef;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    laws::frame_laws(bytes, LAYOUT);
    laws::cdc_laws(bytes);
});
