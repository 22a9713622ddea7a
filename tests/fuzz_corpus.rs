//! The corpus of the fuzz targets, as plain tests: what fuzzing found stays found without it.

#[path = "wire_support/laws.rs"]
mod laws;
#[path = "wire_support/status_laws.rs"]
mod status_laws;

use laws::{cdc_laws, clc_laws, frame_laws, received_laws, tcpopt_laws};
use status_laws::status_laws;

#[test]
fn the_corpus_of_clc_obeys_the_laws() {
    each("clc", |bytes| {
        clc_laws(bytes);
        tcpopt_laws(bytes);
    });
}

#[test]
fn the_corpus_of_frames_obeys_the_laws() {
    each("frames", |bytes| {
        frame_laws(bytes, 0x0123_4567_89ab_cdef);
        cdc_laws(bytes);
    });
}

#[test]
fn the_corpus_of_links_obeys_the_laws() {
    each("links", received_laws);
}

#[test]
fn the_corpus_of_status_obeys_the_laws() {
    each("status", status_laws);
}

fn each(target: &str, law: impl Fn(&[u8])) {
    let folder = format!("{}/tests/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display()); // shown when the law does not hold
        law(&std::fs::read(path).unwrap());
        seen += 1;
    }
    assert!(seen > 10, "{folder} has {seen} files");
}
