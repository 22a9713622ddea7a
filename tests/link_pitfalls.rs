//! What others got wrong, or a peer is known to do, in the bytes of LLC and CDC messages: one test each.

#[path = "wire_support/link_examples.rs"]
mod link_examples;
mod wire_support;

use std::num::{NonZeroU8, NonZeroU32};

use smcfast::wire::cdc::{Cdc, Cursor, ProducerFlags, RdmaCdc, Sequence, StateFlags};
use smcfast::wire::clc::{Few, Mtu, U24, Version};
use smcfast::wire::llc::{
    AddLink, AddLinkCont, Batch, DeleteLink, DeleteReason, DeleteRkey, DeletedV1, DeletedV2,
    Doomed, Key, Message, MovedKey, NoEyecatcher, RejectReason, TestLink, Turn,
};
use smcfast::wire::{Received, llc};
use wire_support::{Vector, hex, in_big_endian, vectors};

fn vector(name: &str) -> Vec<u8> {
    let all = ["llc.json", "cdc.json", "captured.json"].map(vectors);
    let found = all.into_iter().flatten().find(|vector| vector.name == name);
    found.unwrap_or_else(|| panic!("{name}")).bytes
}

fn llc_vectors() -> Vec<Vector> {
    let mut all = vectors("llc.json");
    all.extend(vectors("captured.json"));
    all.retain(|vector| vector.bytes[0] != Cdc::TYPE);
    all
}

fn rdma_cdc(name: &str) -> RdmaCdc {
    RdmaCdc::decode(&vector(name)).unwrap()
}

#[test]
fn numbers_of_version_2_may_have_either_byte_order() {
    for vector in llc_vectors() {
        let turned = in_big_endian(&vector.bytes);
        assert_ne!(turned, vector.bytes, "{}", vector.name);
        let message = Message::decode(&vector.bytes).unwrap();
        assert_eq!(Message::decode(&turned), Ok(message), "{}", vector.name);
    }
}

#[test]
fn numbers_of_version_2_are_sent_in_little_endian() {
    // The kernel of an x86 machine takes a big-endian number of keys for none, or for another.
    for vector in llc_vectors() {
        let message = Message::decode(&in_big_endian(&vector.bytes)).unwrap();
        assert_eq!(
            hex(&message.encode()),
            hex(&vector.bytes),
            "{}",
            vector.name
        );
    }
}

#[test]
fn as_many_keys_are_read_as_were_received() {
    // One key, said in either order: the kernel reads the second as none.
    let offer = vector("kk_00018_llc_add_link_req");
    assert_eq!(offer[70..72], [1, 0]);
    for count in [[1, 0], [0, 1]] {
        let mut bytes = offer.clone();
        bytes[70..72].copy_from_slice(&count);
        let Ok(Message::AddLink(AddLink::Offer { link, .. })) = Message::decode(&bytes) else {
            panic!("not an offer");
        };
        assert_eq!(link.extension.unwrap().keys.len(), 1);
    }
}

#[test]
fn a_rejection_of_version_2_has_no_reason_and_44_bytes() {
    let pairs = [
        (
            "single_00018_llc_add_link_req_same_gid",
            "single_00020_llc_add_link_resp_reject",
        ),
        (
            "dualB_00091_llc_add_link_req_after_failover",
            "dualB_00093_llc_add_link_resp_reject",
        ),
        (
            "proto_02186_kern_add_link_req",
            "proto_02189_us_add_link_reject",
        ),
    ];
    for (offer, reject) in pairs {
        let (offer, reject) = (vector(offer), vector(reject));
        assert_eq!((offer.len(), reject.len()), (88, llc::LEN));
        let Ok(Message::AddLink(AddLink::Offer { link, mtu })) = Message::decode(&offer) else {
            panic!("not an offer");
        };
        let ours = link.reject(mtu, RejectReason::NO_ALTERNATE_PATH);
        assert_eq!(hex(&ours.encode()), hex(&reject));
        assert_eq!(Message::decode(&reject), Ok(Message::AddLink(ours)));
    }
}

#[test]
fn a_rejection_of_version_1_has_its_reason_in_the_third_byte() {
    let link = link_examples::new_link(None);
    for (reason, code) in [
        (RejectReason::NO_ALTERNATE_PATH, 1),
        (RejectReason::INVALID_MTU, 2),
        (RejectReason::new(15).unwrap(), 15),
    ] {
        let reject = link.reject(Some(Mtu::B1024), reason);
        let bytes = reject.encode();
        assert_eq!(bytes[..4], [2, 44, code, 0xc0]);
        assert_eq!(Message::decode(&bytes), Ok(Message::AddLink(reject)));
    }
    assert_eq!(RejectReason::new(16), None);
}

#[test]
fn an_offer_without_a_legal_mtu_can_be_read_to_be_rejected() {
    for code in [0, 6, 15] {
        let mut bytes = vector("kk_00018_llc_add_link_req");
        bytes[32] = code;
        let Ok(Message::AddLink(AddLink::Offer { mtu, .. })) = Message::decode(&bytes) else {
            panic!("not an offer");
        };
        assert_eq!(mtu, None);
    }
}

#[test]
fn a_clients_request_with_link_number_0_is_a_wish() {
    let mut bytes = vec![2, 44, 0, 0, 2, 0, 0, 0, 0, 9, 0, 0];
    bytes.extend([0x33; 16]);
    bytes.resize(44, 0);
    let Ok(Message::AddLink(AddLink::Wish { mac, gid })) = Message::decode(&bytes) else {
        panic!("not a wish");
    };
    assert_eq!((mac.0, gid.0), ([2, 0, 0, 0, 0, 9], [0x33; 16]));
    assert_eq!(AddLink::Wish { mac, gid }.encode(), bytes);
}

#[test]
fn one_bit_against_eyecatchers_is_enough() {
    for (flags, fine) in [(0, false), (1, true), (2, true), (3, true)] {
        let mut bytes = vector("kk_00014_llc_confirm_link_req");
        bytes[3] = flags;
        let Ok(Message::ConfirmLink(message)) = Message::decode(&bytes) else {
            panic!("not a CONFIRM_LINK");
        };
        assert_eq!(!message.no_eyecatcher.is_empty(), fine);
        assert_eq!(message.encode(), bytes);
    }
    assert_eq!(NoEyecatcher::all().bits(), 3);
}

#[test]
fn deleting_all_links_is_asked_by_either_end_and_names_no_link() {
    let asked = [
        (
            "single_00781_llc_delete_link_all_req_op_init",
            false,
            DeleteReason::OPERATOR,
        ),
        (
            "proto_02164_us_delete_link_all_req_orderly",
            true,
            DeleteReason::PROGRAM,
        ),
        (
            "proto_02166_kern_delete_link_all_req_orderly",
            true,
            DeleteReason::PROGRAM,
        ),
        (
            "proto_02168_kern_delete_link_all_req",
            false,
            DeleteReason::PROGRAM,
        ),
    ];
    for (name, orderly, reason) in asked {
        let message = DeleteLink {
            version: Version::V2,
            turn: Turn::Request,
            doomed: Doomed::All,
            orderly,
            reason,
        };
        assert_eq!(hex(&message.encode()), hex(&vector(name)), "{name}");
        assert_eq!(
            Message::decode(&vector(name)),
            Ok(Message::DeleteLink(message))
        );
    }
}

#[test]
fn each_reason_to_delete_a_link_has_its_code() {
    let codes = [
        DeleteReason::DONE,
        DeleteReason::LOST_PATH,
        DeleteReason::OPERATOR,
        DeleteReason::PROGRAM,
        DeleteReason::PROTOCOL_VIOLATION,
        DeleteReason::NO_ASYMMETRIC_NEEDED,
        DeleteReason::UNKNOWN_LINK,
        DeleteReason::UNKNOWN_GROUP,
    ];
    let expected = [0, 1, 2, 3, 4, 5, 0x10, 0x20].map(|code| code << 16);
    assert_eq!(codes.map(|reason| reason.0), expected);
}

#[test]
fn a_key_belongs_to_a_link_and_a_buffer() {
    let request = vector("dualB_00007_llc_confirm_rkey_req_2links");
    let Ok(Message::ConfirmRkey(message)) = Message::decode(&request) else {
        panic!("not a CONFIRM_RKEY");
    };
    let llc::OtherKeys::V2(others) = message.others else {
        panic!("not of version 2");
    };
    assert_eq!(others[0].link, 1);
    assert_eq!(others[0].key.address, message.key.address);
    assert_ne!(others[0].key.rkey, message.key.rkey);
}

#[test]
fn unknown_keys_are_told_by_bits_in_version_1_and_by_number_in_version_2() {
    let v1 = DeleteRkey::ResponseV1 {
        keys: llc_keys(),
        result: DeletedV1::Unknown(0x40),
    };
    assert_eq!(
        v1.encode()[..12],
        [9, 44, 0, 0xa0, 2, 0x40, 0, 0, 0, 0, 3, 0x14]
    );
    let v2 = DeleteRkey::ResponseV2 {
        count: 2,
        result: DeletedV2::Unknown(1),
    };
    assert_eq!(
        v2.encode()[..12],
        [0x29, 44, 0, 0xa0, 2, 1, 0, 0, 0, 0, 0, 0]
    );
}

fn llc_keys() -> Few<u32, 8> {
    Few::new(vec![0x314, 0x324]).unwrap()
}

#[test]
fn a_test_of_the_link_gets_its_data_back() {
    let mut bytes = [0; 44];
    bytes[..4].copy_from_slice(&[0x27, 44, 0, 0]);
    bytes[4..20].copy_from_slice(b"0123456789abcdef");
    let mut test = TestLink {
        version: Version::V2,
        turn: Turn::Request,
        user_data: *b"0123456789abcdef",
    };
    assert_eq!(test.encode(), bytes);
    test.turn = Turn::Response;
    bytes[3] = 0x80;
    assert_eq!(Message::decode(&bytes), Ok(Message::TestLink(test)));
}

#[test]
fn keys_for_a_new_link_start_behind_two_reserved_bytes() {
    // As the kernel has them; tshark 4.0 reads from the reserved bytes on.
    let moved = |seed: u32| MovedKey {
        known: 0x1112_1310 + seed,
        new: Key {
            rkey: 0x2122_2320 + seed,
            address: 0x3132_3334_3536_3730 + u64::from(seed),
        },
    };
    let message = AddLinkCont {
        turn: Turn::Response,
        link: NonZeroU8::new(2).unwrap(),
        keys: Batch::of(&[moved(0), moved(1), moved(2)]).unwrap(),
    };
    let mut expected = vec![3, 44, 0, 0x80, 2, 3, 0, 0];
    expected.extend([0x11, 0x12, 0x13, 0x10, 0x21, 0x22, 0x23, 0x20]);
    expected.extend([0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x30]);
    expected.extend([0x11, 0x12, 0x13, 0x11, 0x21, 0x22, 0x23, 0x21]);
    expected.extend([0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x31]);
    expected.extend([0; 4]);
    assert_eq!(message.encode(), expected);
    assert_eq!(
        Message::decode(&expected),
        Ok(Message::AddLinkCont(message))
    );
}

#[test]
fn versions_differ_in_the_type_where_they_say_the_same() {
    for name in ["v1_test_link_request", "v1_test_link_response"] {
        let all = link_examples::examples();
        let (_, message) = all.into_iter().find(|(other, _)| *other == name).unwrap();
        let Received::Llc(Message::TestLink(test)) = message else {
            panic!("{name}");
        };
        let (v1, v2) = (
            test.encode(),
            TestLink {
                version: Version::V2,
                ..test
            }
            .encode(),
        );
        assert_eq!((v1[0] + 0x20, &v1[1..]), (v2[0], &v2[1..]), "{name}");
    }
}

#[test]
fn a_receive_buffer_must_have_room_for_more_than_44_bytes() {
    let longest = llc_vectors().iter().map(|vector| vector.bytes.len()).max();
    assert_eq!(longest, Some(88));
    assert_eq!((llc::LEN, llc::MAX_LEN), (44, 72 + 16 * 255));
    assert_eq!(llc::MAX_LEN, AddLink::MAX_LEN);
}

#[test]
fn a_full_ring_is_an_equal_count_in_another_round() {
    let cdc = rdma_cdc("one-link_00228").cdc;
    let full = Cursor { wrap: 1, count: 0 };
    assert_eq!((cdc.producer, cdc.consumer), (full, Cursor::default()));
    assert_eq!(cdc.producer_flags, ProducerFlags::WRITE_BLOCKED);
}

#[test]
fn flags_of_a_cdc_are_levels() {
    let done = rdma_cdc("single_00118_cdc_shutdown_wr").cdc.state_flags;
    let closed = rdma_cdc("single_00136_cdc_done_plus_closed")
        .cdc
        .state_flags;
    assert_eq!(done, StateFlags::SENDING_DONE);
    assert_eq!(closed, StateFlags::SENDING_DONE | StateFlags::CLOSED);
}

#[test]
fn unread_data_makes_the_end_abnormal_on_both_sides() {
    for name in [
        "single_00708_cdc_abort_unread_data",
        "single_00713_cdc_abort_reply",
    ] {
        assert_eq!(rdma_cdc(name).cdc.state_flags, StateFlags::ABNORMAL_CLOSE);
    }
}

#[test]
fn the_urgent_byte_is_the_last_one_before_the_producer() {
    let before = rdma_cdc("single_00072_cdc_urg_prior_data").cdc;
    let urgent = rdma_cdc("single_00076_cdc_urgent_present").cdc;
    let taken = rdma_cdc("single_00080_cdc_urgent_forced_cons_update").cdc;
    assert_eq!(before.urgent_at(65536), None);
    let both = ProducerFlags::URGENT_PENDING | ProducerFlags::URGENT_PRESENT;
    assert_eq!(
        (urgent.producer_flags, urgent.urgent_at(65536)),
        (both, Some(11))
    );
    assert_eq!(taken.consumer, urgent.producer);
}

#[test]
fn a_validation_takes_no_number_and_no_cursor() {
    let bytes = vector("dualB_00083_cdc_failover_validation");
    let token = NonZeroU32::new(2).unwrap();
    let validation = RdmaCdc::failover_validation(Sequence(2), token);
    assert_eq!(hex(&validation.encode()), hex(&bytes));
    assert!(RdmaCdc::decode(&bytes).unwrap().is_failover_validation());
    // Three had been completed: the number repeats, and is behind what a receiver without loss has seen.
    assert!(validation.sequence.is_behind(Sequence(3)));
    assert!(!Sequence(3).is_behind(validation.sequence));
}

#[test]
fn the_number_of_a_queue_pair_has_24_bits_everywhere() {
    let mut bytes = vector("kk_00014_llc_confirm_link_req");
    bytes[26..29].fill(0xff);
    let Ok(Message::ConfirmLink(message)) = Message::decode(&bytes) else {
        panic!("not a CONFIRM_LINK");
    };
    assert_eq!(Some(message.qp_number), U24::new(0xff_ffff));
    assert_eq!(message.encode(), bytes);
}
