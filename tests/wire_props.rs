//! Properties of the wire layer: values come back, bytes are refused but never panicked over.

#[path = "wire_support/laws.rs"]
mod laws;
#[path = "wire_support/values.rs"]
mod values;
mod wire_support;

use laws::{cdc_laws, clc_laws, frame_laws, tcpopt_laws};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use smcfast::wire::cdc::Cdc;
use smcfast::wire::clc::{self, Message};
use smcfast::wire::rendezvous::{self, Frame};
use smcfast::wire::tcpopt;
use wire_support::{clc_vectors, vectors};

const LAYOUT: u64 = 0x0123_4567_89ab_cdef;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn messages_come_back(message in values::message()) {
        let bytes = message.encode();
        prop_assert_eq!(Message::decode(&bytes), Ok(message.clone()));
        prop_assert_eq!(clc::peek_length(bytes.first_chunk().unwrap(), message.kind()), Ok(bytes.len()));
        clc_laws(&bytes);
    }

    #[test]
    fn frames_come_back(frame in values::frame(), layout: u64) {
        let bytes = frame.encode(layout);
        prop_assert_eq!(Frame::decode(&bytes, layout), Ok(frame));
        prop_assert!(bytes.len() <= rendezvous::MAX_LEN);
    }

    #[test]
    fn cdcs_come_back(cdc in values::cdc()) {
        prop_assert_eq!(Cdc::decode(&cdc.encode()), Ok(cdc));
    }

    #[test]
    fn every_cut_of_a_message_is_refused(message in values::message()) {
        assert_cuts_are_refused(&message.encode());
    }

    #[test]
    fn spoiled_messages_obey_the_laws(message in values::message(), spoils in vec(any::<(Index, u8)>(), 1..4)) {
        let mut bytes = message.encode();
        for (at, value) in spoils {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        clc_laws(&bytes);
    }

    #[test]
    fn spoiled_frames_obey_the_laws(frame in values::frame(), at: Index, value: u8, cut: Index) {
        let mut bytes = frame.encode(LAYOUT);
        let at = at.index(bytes.len());
        bytes[at] = value;
        frame_laws(&bytes, LAYOUT);
        frame_laws(&bytes[..cut.index(bytes.len())], LAYOUT);
    }

    #[test]
    fn any_bytes_obey_the_laws(bytes in vec(any::<u8>(), 0..700)) {
        clc_laws(&bytes);
        cdc_laws(&bytes[..bytes.len().min(Cdc::LEN)]);
        frame_laws(&bytes, LAYOUT);
        tcpopt_laws(&bytes);
    }

    #[test]
    fn any_options_with_the_option_behind_have_it(options in vec(0..4u8, 0..10)) {
        // Whole options of every kind that TCP knows, then ours.
        let mut bytes: Vec<u8> = options.iter().flat_map(|kind| OTHERS[usize::from(*kind)]).copied().collect();
        let at = bytes.len();
        bytes.extend(tcpopt::OPTION);
        prop_assert_eq!(tcpopt::find(&bytes), Some(at));
    }
}

/// NOP, MSS, Fast Open as an experiment, SACK.
const OTHERS: [&[u8]; 4] = [
    &[1],
    &[2, 4, 5, 0xb4],
    &[254, 8, 0xf9, 0x89, 1, 2, 3, 4],
    &[5, 10, 0xe2, 0xd4, 0xc3, 0xd9, 254, 6, 0, 0],
];

#[test]
fn every_cut_of_a_vector_is_refused() {
    for vector in clc_vectors() {
        assert_cuts_are_refused(&vector.bytes);
    }
    for vector in vectors("tcpopt.json") {
        (0..vector.bytes.len())
            .for_each(|cut| assert_eq!(tcpopt::find(&vector.bytes[..cut]), None));
    }
}

#[test]
fn every_bit_flip_of_a_vector_obeys_the_laws() {
    for vector in clc_vectors() {
        each_flip(&vector.bytes, clc_laws);
    }
    for vector in vectors("tcpopt.json") {
        each_flip(&vector.bytes, tcpopt_laws);
    }
}

#[test]
fn every_bit_flip_of_a_cdc_or_a_frame_obeys_the_laws() {
    each_flip(&Cdc::default().encode(), cdc_laws);
    let frame = Frame::Stop { reason: 1 }.encode(LAYOUT);
    each_flip(&frame, |bytes| frame_laws(bytes, LAYOUT));
}

fn assert_cuts_are_refused(bytes: &[u8]) {
    for cut in 0..bytes.len() {
        clc_laws(&bytes[..cut]);
        assert!(
            Message::decode(&bytes[..cut]).is_err(),
            "{cut} of {} bytes",
            bytes.len()
        );
    }
    let longer = [bytes, &[0]].concat();
    assert!(Message::decode(&longer).is_err());
}

fn each_flip(bytes: &[u8], law: impl Fn(&[u8])) {
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        law(&flipped);
    }
}
