//! Properties of LLC and CDC messages: values come back, bytes are refused but never panicked over.

#[path = "wire_support/laws.rs"]
mod laws;
#[path = "wire_support/link_examples.rs"]
mod link_examples;
#[path = "wire_support/values.rs"]
mod values;
mod wire_support;

use laws::received_laws;
use link_examples::encode;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use smcfast::wire::{Received, llc};
use wire_support::vectors;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn messages_come_back(message in values::received()) {
        let bytes = encode(&message);
        prop_assert_eq!(Received::decode(&bytes), Ok(message));
        prop_assert!((llc::LEN..=llc::MAX_LEN).contains(&bytes.len()));
        received_laws(&bytes);
    }

    #[test]
    fn no_other_length_is_accepted(message in values::received(), cut: Index) {
        let bytes = encode(&message);
        let cut = &bytes[..cut.index(bytes.len())];
        received_laws(cut);
        prop_assert!(Received::decode(cut).is_err());
        prop_assert!(Received::decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn spoiled_messages_obey_the_laws(message in values::received(), spoils in vec(any::<(Index, u8)>(), 1..4)) {
        let mut bytes = encode(&message);
        for (at, value) in spoils {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        received_laws(&bytes);
    }

    #[test]
    fn messages_with_another_head_obey_the_laws(message in values::received(), head: [u8; 6]) {
        let mut bytes = encode(&message);
        bytes[..6].copy_from_slice(&head);
        received_laws(&bytes);
        let known = [1, 2, 3, 4, 6, 7, 8, 9, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x29, 0xfe];
        bytes[0] = known[usize::from(head[0]) % known.len()];
        bytes[1] = 44;
        received_laws(&bytes);
    }

    #[test]
    fn any_bytes_obey_the_laws(bytes in vec(any::<u8>(), 0..200)) {
        received_laws(&bytes);
    }
}

/// Everything that was seen or is an example.
fn all() -> Vec<(String, Vec<u8>)> {
    let seen = ["llc.json", "cdc.json", "captured.json"];
    let seen = seen.into_iter().flat_map(vectors);
    let examples = link_examples::examples().into_iter();
    seen.map(|vector| (vector.name, vector.bytes))
        .chain(examples.map(|(name, message)| (name.to_owned(), encode(&message))))
        .collect()
}

#[test]
fn every_cut_of_a_message_is_refused() {
    for (name, bytes) in all() {
        for cut in 0..bytes.len() {
            received_laws(&bytes[..cut]);
            assert!(Received::decode(&bytes[..cut]).is_err(), "{name}: {cut}");
        }
        assert!(
            Received::decode(&[&bytes[..], &[0]].concat()).is_err(),
            "{name}"
        );
    }
}

#[test]
fn every_bit_flip_of_a_message_obeys_the_laws() {
    for (_, bytes) in all() {
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            received_laws(&flipped);
        }
    }
}
