//! Messages on queue pairs of which no capture exists: version 1, refusals, long lists.
#![allow(dead_code, reason = "each test uses a part")]

use std::num::{NonZeroU8, NonZeroU32};

use smcfast::wire::Received;
use smcfast::wire::cdc::{Cdc, Cursor, ProducerFlags, RdmaCdc, Sequence, StateFlags};
use smcfast::wire::clc::{Few, Gid, Mac, Mtu, U24, Version};
use smcfast::wire::llc::*;

/// Each with its name. Every field has bytes of its own, so that none can be taken for another.
pub(crate) fn examples() -> Vec<(&'static str, Received)> {
    let llc = links()
        .into_iter()
        .chain(keys())
        .map(|(name, message)| (name, Received::Llc(message)));
    let cdc = cdcs()
        .into_iter()
        .map(|(name, cdc)| (name, Received::Cdc(cdc)));
    llc.chain(cdc).collect()
}

/// The bytes of a message that is known.
pub(crate) fn encode(message: &Received) -> Vec<u8> {
    match message {
        Received::Cdc(cdc) => cdc.encode().to_vec(),
        Received::Llc(message) => message.encode(),
        Received::Unknown(byte) => panic!("{byte:#04x} stands for no message"),
    }
}

fn number(value: u8) -> NonZeroU8 {
    NonZeroU8::new(value).unwrap()
}

fn u24(value: u32) -> U24 {
    U24::new(value).unwrap()
}

fn mac() -> Mac {
    Mac([0x02, 0x11, 0x12, 0x13, 0x14, 0x15])
}

fn gid(last: u8) -> Gid {
    let mut gid = [0x20, 1, 0x0d, 0xb8, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0];
    gid[15] = last;
    Gid(gid)
}

fn key(seed: u32) -> Key {
    Key {
        rkey: 0xa1b2_c300 + seed,
        address: 0xff3a_0573_c6dc_0000 + u64::from(seed),
    }
}

fn moved(seed: u32) -> MovedKey {
    MovedKey {
        known: 0x5152_5300 + seed,
        new: key(seed),
    }
}

fn elsewhere(link: u8) -> KeyOnLink {
    KeyOnLink {
        link,
        key: key(link.into()),
    }
}

fn confirm_link(turn: Turn, no_eyecatcher: NoEyecatcher, limits: Limits) -> Message {
    Message::ConfirmLink(ConfirmLink {
        turn,
        no_eyecatcher,
        mac: mac(),
        gid: gid(1),
        qp_number: u24(0x21_2223),
        link: number(0x31),
        user_id: 0x4142_4344,
        limits,
    })
}

pub(crate) fn new_link(extension: Option<Extension>) -> NewLink {
    NewLink {
        mac: mac(),
        gid: gid(2),
        qp_number: u24(0x21_2223),
        number: number(0x31),
        psn: u24(0x61_6263),
        extension,
    }
}

pub(crate) fn extension(keys: usize) -> Extension {
    Extension {
        direct: true,
        target_gid: gid(3),
        keys: Few::new((0..keys as u32).map(moved).collect()).unwrap(),
    }
}

fn links() -> Vec<(&'static str, Message)> {
    let v1 = Limits::V1 { max_links: 2 };
    let v2_0 = Limits::V2 {
        max_links: 2,
        max_connections: 0,
    };
    let (both, one) = (NoEyecatcher::all(), NoEyecatcher::ONE);
    let (mtu, reason) = (Some(Mtu::B4096), RejectReason::INVALID_MTU);
    let offer = |extension| {
        Message::AddLink(AddLink::Offer {
            link: new_link(extension),
            mtu,
        })
    };
    let accept = |extension| {
        Message::AddLink(AddLink::Accept {
            link: new_link(extension),
            mtu: Mtu::B1024,
        })
    };
    let cont = |turn, left: u32| {
        Message::AddLinkCont(AddLinkCont {
            turn,
            link: number(0x31),
            keys: Batch::of(&(0..left).map(moved).collect::<Vec<_>>()).unwrap(),
        })
    };
    let delete = |version, turn, doomed, orderly, reason| {
        Message::DeleteLink(DeleteLink {
            version,
            turn,
            doomed,
            orderly,
            reason,
        })
    };
    let test = |version, turn| {
        Message::TestLink(TestLink {
            version,
            turn,
            user_data: *b"is anybody home?",
        })
    };
    let (ask, answer) = (Turn::Request, Turn::Response);
    let link = Doomed::Link(number(0x31));
    let wish = AddLink::Wish {
        mac: mac(),
        gid: gid(2),
    };
    vec![
        ("v1_confirm_link_request", confirm_link(ask, both, v1)),
        ("v1_confirm_link_response", confirm_link(answer, both, v1)),
        ("v1_confirm_link_one_bit", confirm_link(ask, one, v1)),
        (
            "v1_confirm_link_eyecatcher",
            confirm_link(ask, NoEyecatcher::empty(), v1),
        ),
        ("v1_add_link_wish", Message::AddLink(wish)),
        ("v1_add_link_offer", offer(None)),
        ("v1_add_link_accept", accept(None)),
        (
            "v1_add_link_reject",
            Message::AddLink(new_link(None).reject(mtu, reason)),
        ),
        ("v1_add_link_cont_request_5_left", cont(ask, 5)),
        ("v1_add_link_cont_response_2_left", cont(answer, 2)),
        ("v1_add_link_cont_request_1_left", cont(ask, 1)),
        ("v1_add_link_cont_response_none_left", cont(answer, 0)),
        (
            "v1_delete_link_request",
            delete(Version::V1, ask, link, true, DeleteReason::LOST_PATH),
        ),
        (
            "v1_delete_link_response_unknown",
            delete(Version::V1, answer, link, true, DeleteReason::UNKNOWN_LINK),
        ),
        (
            "v1_delete_link_all",
            delete(
                Version::V1,
                ask,
                Doomed::All,
                false,
                DeleteReason::PROTOCOL_VIOLATION,
            ),
        ),
        ("v1_test_link_request", test(Version::V1, ask)),
        ("v1_test_link_response", test(Version::V1, answer)),
        ("v2_confirm_link_release_0", confirm_link(ask, both, v2_0)),
        ("v2_add_link_offer_without_keys", offer(Some(extension(0)))),
        ("v2_add_link_offer_three_keys", offer(Some(extension(3)))),
        ("v2_add_link_accept_two_keys", accept(Some(extension(2)))),
        (
            "v2_req_add_link_request",
            Message::ReqAddLink(ReqAddLink::Request(Few::new(vec![gid(1), gid(2)]).unwrap())),
        ),
        (
            "v2_req_add_link_response",
            Message::ReqAddLink(ReqAddLink::Response),
        ),
        ("v2_test_link_request", test(Version::V2, ask)),
        (
            "v2_delete_link_response_unknown",
            delete(Version::V2, answer, link, false, DeleteReason::UNKNOWN_LINK),
        ),
    ]
}

fn keys() -> Vec<(&'static str, Message)> {
    let batch = |left: u8| (1..=left).map(elsewhere).collect::<Vec<_>>();
    let confirm_v1 = |turn, others| {
        Message::ConfirmRkey(ConfirmRkey {
            turn,
            key: key(0),
            others: OtherKeys::V1(Batch::of(&batch(others)).unwrap()),
        })
    };
    let confirm_v2 = |turn, others| {
        Message::ConfirmRkey(ConfirmRkey {
            turn,
            key: key(0),
            others: OtherKeys::V2(Few::new(batch(others)).unwrap()),
        })
    };
    let cont = |turn, left| {
        Message::ConfirmRkeyCont(ConfirmRkeyCont {
            turn,
            keys: Batch::of(&batch(left)).unwrap(),
        })
    };
    let refused = |retry| KeyTurn::Refused { retry };
    let gone = |count: u32| {
        (0..count)
            .map(|seed| 0x7172_7300 + seed)
            .collect::<Vec<_>>()
    };
    let few = |count| Few::new(gone(count)).unwrap();
    let response = |result| {
        Message::DeleteRkey(DeleteRkey::ResponseV1 {
            keys: few(3),
            result,
        })
    };
    let long = DeleteRkey::RequestV2(Few::new(gone(12)).unwrap());
    let some = DeleteRkey::ResponseV2 {
        count: 12,
        result: DeletedV2::Unknown(5),
    };
    vec![
        ("v1_confirm_rkey_request", confirm_v1(KeyTurn::Request, 0)),
        (
            "v1_confirm_rkey_two_others",
            confirm_v1(KeyTurn::Request, 2),
        ),
        (
            "v1_confirm_rkey_five_others",
            confirm_v1(KeyTurn::Request, 5),
        ),
        (
            "v1_confirm_rkey_confirmed",
            confirm_v1(KeyTurn::Confirmed, 1),
        ),
        ("v1_confirm_rkey_refused", confirm_v1(refused(false), 1)),
        (
            "v1_confirm_rkey_refused_for_now",
            confirm_v1(refused(true), 1),
        ),
        ("v1_confirm_rkey_cont_request", cont(KeyTurn::Request, 4)),
        (
            "v1_confirm_rkey_cont_confirmed",
            cont(KeyTurn::Confirmed, 1),
        ),
        (
            "v1_delete_rkey_request",
            Message::DeleteRkey(DeleteRkey::RequestV1(few(8))),
        ),
        ("v1_delete_rkey_response", response(DeletedV1::All)),
        (
            "v1_delete_rkey_response_unknown",
            response(DeletedV1::Unknown(0xa0)),
        ),
        (
            "v2_confirm_rkey_two_others",
            confirm_v2(KeyTurn::Request, 2),
        ),
        (
            "v2_confirm_rkey_refused_for_now",
            confirm_v2(refused(true), 0),
        ),
        ("v2_delete_rkey_request_12_keys", Message::DeleteRkey(long)),
        ("v2_delete_rkey_response_unknown", Message::DeleteRkey(some)),
    ]
}

fn cdcs() -> Vec<(&'static str, RdmaCdc)> {
    let cdc = |producer_flags, state_flags| RdmaCdc {
        sequence: Sequence(0x0102),
        token: NonZeroU32::new(0x1112_1314).unwrap(),
        cdc: Cdc {
            producer: Cursor {
                wrap: 0x2122,
                count: 0x2324_2526,
            },
            consumer: Cursor {
                wrap: 0x3132,
                count: 0x3334_3536,
            },
            producer_flags,
            state_flags,
        },
    };
    let one = |flag| cdc(flag, StateFlags::empty());
    let end = |flag| cdc(ProducerFlags::empty(), flag);
    let (sequence, token) = (Sequence(0x0102), NonZeroU32::new(0x1112_1314).unwrap());
    vec![
        ("cdc_write_blocked", one(ProducerFlags::WRITE_BLOCKED)),
        ("cdc_urgent_pending", one(ProducerFlags::URGENT_PENDING)),
        ("cdc_urgent_present", one(ProducerFlags::URGENT_PRESENT)),
        (
            "cdc_update_requested",
            one(ProducerFlags::CONSUMER_UPDATE_REQUESTED),
        ),
        (
            "cdc_failover_validation",
            RdmaCdc::failover_validation(sequence, token),
        ),
        ("cdc_sending_done", end(StateFlags::SENDING_DONE)),
        ("cdc_closed", end(StateFlags::CLOSED)),
        ("cdc_abnormal_close", end(StateFlags::ABNORMAL_CLOSE)),
    ]
}
