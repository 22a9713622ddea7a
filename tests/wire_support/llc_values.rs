//! Arbitrary legal LLC messages.

use std::fmt::Debug;
use std::num::NonZeroU8;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use smcfast::wire::clc::{Few, Mac, Mtu, Version};
use smcfast::wire::llc::*;

use super::{few, gid, u24};

pub(crate) fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        confirm_link().prop_map(Message::ConfirmLink),
        add_link().prop_map(Message::AddLink),
        add_link_cont().prop_map(Message::AddLinkCont),
        delete_link().prop_map(Message::DeleteLink),
        req_add_link().prop_map(Message::ReqAddLink),
        confirm_rkey().prop_map(Message::ConfirmRkey),
        confirm_rkey_cont().prop_map(Message::ConfirmRkeyCont),
        delete_rkey().prop_map(Message::DeleteRkey),
        test_link().prop_map(Message::TestLink),
    ]
}

fn version() -> impl Strategy<Value = Version> {
    prop_oneof![Just(Version::V1), Just(Version::V2)]
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![Just(Turn::Request), Just(Turn::Response)]
}

fn key_turn() -> impl Strategy<Value = KeyTurn> {
    prop_oneof![
        Just(KeyTurn::Request),
        Just(KeyTurn::Confirmed),
        any::<bool>().prop_map(|retry| KeyTurn::Refused { retry }),
    ]
}

fn mac() -> impl Strategy<Value = Mac> {
    any::<[u8; 6]>().prop_map(Mac)
}

fn mtu() -> impl Strategy<Value = Mtu> {
    (1..=5u8).prop_map(|code| Mtu::new(code).unwrap())
}

fn key() -> impl Strategy<Value = Key> {
    any::<(u32, u64)>().prop_map(|(rkey, address)| Key { rkey, address })
}

fn moved() -> impl Strategy<Value = MovedKey> {
    (any::<u32>(), key()).prop_map(|(known, new)| MovedKey { known, new })
}

fn elsewhere() -> impl Strategy<Value = KeyOnLink> {
    (any::<u8>(), key()).prop_map(|(link, key)| KeyOnLink { link, key })
}

fn batch<T: Clone + Debug, const MAX: usize>(
    one: impl Strategy<Value = T>,
) -> impl Strategy<Value = Batch<T, MAX>> {
    // What follows is counted and not kept: the same value again is as good.
    (vec(one, 0..=MAX), 0..=255 - MAX).prop_map(|(mut left, following)| {
        if left.len() == MAX {
            left.resize(MAX + following, left[0].clone());
        }
        Batch::of(&left).unwrap()
    })
}

fn confirm_link() -> impl Strategy<Value = ConfirmLink> {
    let limits = prop_oneof![
        any::<u8>().prop_map(|max_links| Limits::V1 { max_links }),
        any::<(u8, u8)>().prop_map(|(max_links, max_connections)| Limits::V2 {
            max_links,
            max_connections
        }),
    ];
    let link = (any::<NonZeroU8>(), any::<u32>());
    let end = (mac(), gid(), u24());
    (turn(), 0..4u8, end, link, limits).prop_map(
        |(turn, bits, (mac, gid, qp_number), (link, user_id), limits)| ConfirmLink {
            turn,
            no_eyecatcher: NoEyecatcher::from_bits(bits).unwrap(),
            mac,
            gid,
            qp_number,
            link,
            user_id,
            limits,
        },
    )
}

fn new_link() -> impl Strategy<Value = NewLink> {
    let extension =
        (any::<bool>(), gid(), few(moved())).prop_map(|(direct, target_gid, keys)| Extension {
            direct,
            target_gid,
            keys,
        });
    let end = (mac(), gid(), u24());
    (end, any::<NonZeroU8>(), u24(), option::of(extension)).prop_map(
        |((mac, gid, qp_number), number, psn, extension)| NewLink {
            mac,
            gid,
            qp_number,
            number,
            psn,
            extension,
        },
    )
}

fn rejection() -> impl Strategy<Value = Rejection> {
    let reason = (0..16u8).prop_map(|code| RejectReason::new(code).unwrap());
    let end = (mac(), gid(), u24());
    let link = (any::<u8>(), option::of(mtu()), u24());
    (option::of(reason), end, link).prop_map(
        |(reason, (mac, gid, qp_number), (number, mtu, psn))| Rejection {
            reason,
            mac,
            gid,
            qp_number,
            number,
            mtu,
            psn,
        },
    )
}

fn add_link() -> impl Strategy<Value = AddLink> {
    prop_oneof![
        (mac(), gid()).prop_map(|(mac, gid)| AddLink::Wish { mac, gid }),
        (new_link(), option::of(mtu())).prop_map(|(link, mtu)| AddLink::Offer { link, mtu }),
        (new_link(), mtu()).prop_map(|(link, mtu)| AddLink::Accept { link, mtu }),
        rejection().prop_map(AddLink::Reject),
    ]
}

fn add_link_cont() -> impl Strategy<Value = AddLinkCont> {
    (turn(), any::<NonZeroU8>(), batch(moved())).prop_map(|(turn, link, keys)| AddLinkCont {
        turn,
        link,
        keys,
    })
}

fn delete_link() -> impl Strategy<Value = DeleteLink> {
    let doomed = prop_oneof![any::<NonZeroU8>().prop_map(Doomed::Link), Just(Doomed::All)];
    let reason = any::<u32>().prop_map(DeleteReason);
    (version(), turn(), doomed, any::<bool>(), reason).prop_map(
        |(version, turn, doomed, orderly, reason)| DeleteLink {
            version,
            turn,
            doomed,
            orderly,
            reason,
        },
    )
}

fn req_add_link() -> impl Strategy<Value = ReqAddLink> {
    prop_oneof![
        few(gid()).prop_map(ReqAddLink::Request),
        Just(ReqAddLink::Response)
    ]
}

fn confirm_rkey() -> impl Strategy<Value = ConfirmRkey> {
    let others = prop_oneof![
        batch(elsewhere()).prop_map(OtherKeys::V1),
        few(elsewhere()).prop_map(OtherKeys::V2),
    ];
    (key_turn(), key(), others).prop_map(|(turn, key, others)| ConfirmRkey { turn, key, others })
}

fn confirm_rkey_cont() -> impl Strategy<Value = ConfirmRkeyCont> {
    (key_turn(), batch(elsewhere())).prop_map(|(turn, keys)| ConfirmRkeyCont { turn, keys })
}

fn delete_rkey() -> impl Strategy<Value = DeleteRkey> {
    fn keys<const MAX: usize>() -> impl Strategy<Value = Few<u32, MAX>> {
        few(any::<u32>())
    }
    let v1 = prop_oneof![
        Just(DeletedV1::All),
        any::<u8>().prop_map(DeletedV1::Unknown)
    ];
    let v2 = prop_oneof![
        Just(DeletedV2::All),
        any::<u8>().prop_map(DeletedV2::Unknown)
    ];
    prop_oneof![
        keys().prop_map(DeleteRkey::RequestV1),
        keys().prop_map(DeleteRkey::RequestV2),
        (keys(), v1).prop_map(|(keys, result)| DeleteRkey::ResponseV1 { keys, result }),
        (any::<u8>(), v2).prop_map(|(count, result)| DeleteRkey::ResponseV2 { count, result }),
    ]
}

fn test_link() -> impl Strategy<Value = TestLink> {
    (version(), turn(), any::<[u8; 16]>()).prop_map(|(version, turn, user_data)| TestLink {
        version,
        turn,
        user_data,
    })
}
