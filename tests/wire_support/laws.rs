//! What must hold for any bytes whatever. Property tests and fuzz targets call these.

use smcfast::wire::cdc::Cdc;
use smcfast::wire::clc::{self, Kind, Message};
use smcfast::wire::rendezvous::Frame;
use smcfast::wire::{pretty, tcpopt};

/// Bytes may be refused, never panicked over. What is accepted comes back from its own encoding, which differs from the
/// bytes only where they have bits that are ignored.
pub(crate) fn clc_laws(bytes: &[u8]) {
    let text = pretty::clc(bytes);
    let message = match Message::decode(bytes) {
        Ok(message) => message,
        Err(error) => {
            return assert!(text.ends_with(&format!(
                "
{error}
"
            )));
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
