//! Frames: their bytes, their lengths, and what is refused.

use super::*;

const LAYOUT: u64 = 0x1122_3344_5566_7788;
const ENGINE: EngineId = EngineId(*b"0123456789abcdef");
const SIZE: SizeCode = SizeCode::new(6).unwrap();

fn frames() -> [(Frame, usize, usize); 5] {
    let memory = |first_contact| Frame::Memory {
        token: 7,
        link_id: 0x0100,
        size: SIZE,
        first_contact,
    };
    [
        (Frame::Hello { engine: ENGINE }, 40, 0),
        (
            Frame::Go {
                engine: ENGINE,
                token: u64::MAX,
                known_link: 0x0200,
                size: SIZE,
            },
            56,
            2,
        ),
        (
            Frame::Stop {
                reason: 0xffff_0001,
            },
            32,
            0,
        ),
        (memory(false), 40, 1),
        (memory(true), 40, 2),
    ]
}

#[test]
fn frames_have_their_lengths_and_come_back() {
    for (frame, len, fds) in frames() {
        let bytes = frame.encode(LAYOUT);
        assert_eq!((bytes.len(), frame.fd_count()), (len, fds), "{frame:?}");
        assert_eq!(Frame::decode(&bytes, LAYOUT), Ok(frame));
    }
    assert_eq!(MAX_LEN, 56);
}

#[test]
fn the_bytes_stand_where_the_protocol_puts_them() {
    let go = Frame::Go {
        engine: ENGINE,
        token: 0x0807_0605_0403_0201,
        known_link: 0x0c0b_0a09,
        size: SIZE,
    }
    .encode(LAYOUT);
    let mut expected =
        b"smcfast\0\x01\x00\x02\x00\x38\x00\x00\x00\x88\x77\x66\x55\x44\x33\x22\x11".to_vec();
    expected.extend(ENGINE.0);
    expected.extend([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 6, 0, 0, 0]);
    assert_eq!(go, expected);
    let memory = Frame::Memory {
        token: 1,
        link_id: 0x0403_0201,
        size: SIZE,
        first_contact: true,
    }
    .encode(LAYOUT);
    assert_eq!(
        memory[24..],
        [1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 6, 1, 0, 0]
    );
    assert_eq!(
        Frame::Stop {
            reason: 0x0403_0201
        }
        .encode(LAYOUT)[10..],
        {
            let mut rest = vec![
                3, 0, 32, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
            ];
            rest.extend([1, 2, 3, 4, 0, 0, 0, 0]);
            rest
        }
    );
}

#[test]
fn every_other_length_is_refused() {
    for (frame, ..) in frames() {
        let mut bytes = frame.encode(LAYOUT);
        for cut in 0..bytes.len() {
            assert!(matches!(
                Frame::decode(&bytes[..cut], LAYOUT),
                Err(FrameError::Invalid(_))
            ));
        }
        bytes.push(0);
        let error = Frame::decode(&bytes, LAYOUT).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "rendezvous frame: length: {}, expected {}",
                bytes.len(),
                bytes.len() - 1
            )
        );
    }
}

/// What decode says when the byte at `at` of a Memory frame is `value`.
fn spoiled(at: usize, value: u8) -> String {
    let mut bytes = frames()[4].0.encode(LAYOUT);
    bytes[at] = value;
    Frame::decode(&bytes, LAYOUT).unwrap_err().to_string()
}

#[test]
fn each_fault_is_named() {
    assert_eq!(
        spoiled(0, b'S'),
        "rendezvous frame: magic: is not that of smcfast"
    );
    assert_eq!(spoiled(8, 2), "rendezvous frame: version: 2, ours is 1");
    assert_eq!(spoiled(10, 5), "rendezvous frame: kind: 5, allowed 1 to 4");
    assert_eq!(spoiled(10, 0), "rendezvous frame: kind: 0, allowed 1 to 4");
    assert_eq!(spoiled(12, 41), "rendezvous frame: length: 41, expected 40");
    assert_eq!(
        spoiled(16, 0),
        "rendezvous frame: layout: 0x1122334455667700 is not ours"
    );
    assert_eq!(
        spoiled(36, 16),
        "rendezvous frame: size code: 16, allowed 0 to 15"
    );
    assert_eq!(
        spoiled(37, 2),
        "rendezvous frame: first contact: 2, allowed 0 to 1"
    );
    assert_eq!(spoiled(39, 1), "rendezvous frame: padding: must be zero");
}

#[test]
fn version_is_told_before_layout_and_layout_before_the_rest() {
    let mut bytes = frames()[0].0.encode(LAYOUT);
    bytes[10] = 99;
    bytes.push(1);
    assert!(matches!(
        Frame::decode(&bytes, LAYOUT),
        Err(FrameError::Invalid(_))
    ));
    bytes[16] = 0;
    assert_eq!(
        Frame::decode(&bytes, LAYOUT),
        Err(FrameError::Layout {
            theirs: 0x1122_3344_5566_7700
        })
    );
    bytes[8] = 2;
    assert_eq!(
        Frame::decode(&bytes, LAYOUT),
        Err(FrameError::Version { theirs: 2 })
    );
}
