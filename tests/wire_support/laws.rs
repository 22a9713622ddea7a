//! What must hold for any bytes whatever. Property tests and fuzz targets call these.
#![allow(dead_code, reason = "each test uses a part")]

use smcfast::wire::cdc::{Cdc, RdmaCdc};
use smcfast::wire::clc::{self, Kind, Message};
use smcfast::wire::llc::{self, AddLink};
use smcfast::wire::rendezvous::Frame;
use smcfast::wire::{Received, pretty, tcpopt};

/// Bytes may be refused, never panicked over. What is accepted comes back from its own encoding, which differs from the
/// bytes only where they have bits that are ignored.
pub(crate) fn clc_laws(bytes: &[u8]) {
    let text = pretty::clc(bytes);
    let message = match Message::decode(bytes) {
        Ok(message) => message,
        Err(error) => {
            return assert!(text.ends_with(&format!("\n{error}\n")));
        }
    };
    let again = message.encode();
    assert_eq!(Message::decode(&again).as_ref(), Ok(&message));

    let header = bytes.first_chunk().unwrap();
    assert_eq!(clc::peek_length(header, message.kind()), Ok(bytes.len()));
    assert!(bytes.len() <= clc::MAX_LEN);
    for other in [Kind::Proposal, Kind::Accept, Kind::Confirm] {
        let welcome = other == message.kind() || message.kind() == Kind::Decline;
        assert_eq!(clc::peek_length(header, other).is_ok(), welcome);
    }

    if again.len() == bytes.len() {
        assert_no_new_bits(&again[4..again.len() - 4], &bytes[4..bytes.len() - 4]);
        return;
    }
    // The two forms that are read but not written: see the documentation of `wire::clc`.
    let grown = again.len() as isize - bytes.len() as isize;
    match message.kind() {
        Kind::Proposal => assert_eq!(grown, -40),
        Kind::Accept | Kind::Confirm => assert_eq!(grown, 52 - 36),
        Kind::Decline => panic!("a Decline has one form"),
    }
}

/// The same for what a queue pair receives. Bytes that are not understood say so; bytes of no known type are not looked
/// at.
pub(crate) fn received_laws(bytes: &[u8]) {
    let text = pretty::received(bytes);
    let received = match Received::decode(bytes) {
        Ok(received) => received,
        Err(error) => return assert!(text.ends_with(&format!("\n{error}\n"))),
    };
    let again = match &received {
        Received::Cdc(cdc) => {
            assert_eq!(RdmaCdc::decode(bytes).as_ref(), Ok(cdc));
            cdc.encode().to_vec()
        }
        Received::Llc(message) => {
            assert_eq!(llc::Message::decode(bytes).as_ref(), Ok(message));
            assert_eq!(
                llc::Kind::of(bytes[0]),
                Some((message.kind(), message.version()))
            );
            message.encode()
        }
        Received::Unknown(byte) => {
            assert!(bytes[0] == *byte && llc::Kind::of(*byte).is_none());
            assert!(llc::Message::decode(bytes).is_err());
            return;
        }
    };
    assert_eq!(Received::decode(&again).as_ref(), Ok(&received));
    assert_eq!(again.len(), bytes.len());
    assert!(bytes.len() <= llc::MAX_LEN);
    let mut bytes = bytes.to_vec();
    if let Received::Llc(message) = &received {
        normalise(message, &mut bytes, &again);
    }
    assert_no_new_bits(&again, &bytes);
}

/// Two numbers of version 2 have the byte order of the sender: one is not looked at, the other must tell the length.
fn normalise(message: &llc::Message, bytes: &mut [u8], again: &[u8]) {
    if message.version() == clc::Version::V2 {
        bytes[1..3].copy_from_slice(&again[1..3]);
    }
    if let llc::Message::AddLink(AddLink::Offer { link, .. } | AddLink::Accept { link, .. }) =
        message
        && link.extension.is_some()
        && bytes[70..72] != again[70..72]
    {
        bytes[70..72].reverse();
        assert_eq!(bytes[70..72], again[70..72]);
    }
}

/// The same for an SMC-D CDC.
pub(crate) fn cdc_laws(bytes: &[u8]) {
    let Ok(cdc) = Cdc::decode(bytes) else { return };
    let again = cdc.encode();
    assert_eq!(Cdc::decode(&again), Ok(cdc));
    assert_no_new_bits(&again, bytes);
    assert_eq!(
        Cdc::from_words(cdc.producer_word(), cdc.consumer_word()),
        cdc
    );
}

/// The same for a rendezvous frame, which ignores nothing.
pub(crate) fn frame_laws(bytes: &[u8], layout: u64) {
    if let Ok(frame) = Frame::decode(bytes, layout) {
        assert_eq!(frame.encode(layout), bytes);
        assert!(frame.fd_count() <= 2);
    }
}

/// What is found is the option.
pub(crate) fn tcpopt_laws(bytes: &[u8]) {
    if let Some(at) = tcpopt::find(bytes) {
        assert_eq!(bytes[at..][..tcpopt::OPTION.len()], tcpopt::OPTION);
    }
}

fn assert_no_new_bits(again: &[u8], bytes: &[u8]) {
    for (at, (again, byte)) in again.iter().zip(bytes).enumerate() {
        assert_eq!(again & !byte, 0, "byte {at}: {again:#04x} was {byte:#04x}");
    }
}
