//! What the tests of links share: messages, and words for what a link does.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::num::NonZeroU8;
use std::time::Duration;

use smcfast::proto::handshake::Side;
use smcfast::proto::link::{Cause, Link, LinkEvent, OwnLink};
use smcfast::wire::clc::{Few, Gid, Mac, U24, Version};
use smcfast::wire::llc::*;

/// How long nothing may be heard before the peer is asked.
pub(crate) const TEST_AFTER: Duration = Duration::from_secs(30);

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn number(value: u8) -> NonZeroU8 {
    NonZeroU8::new(value).unwrap()
}

pub(crate) fn key(rkey: u32) -> Key {
    Key {
        rkey,
        address: 0x1000 * u64::from(rkey),
    }
}

fn limits(version: Version) -> Limits {
    match version {
        Version::V1 => Limits::V1 { max_links: 2 },
        Version::V2 => Limits::V2 {
            max_links: 1,
            max_connections: 255,
        },
    }
}

pub(crate) fn own(version: Version) -> OwnLink {
    OwnLink {
        mac: Mac([2, 0, 0, 0, 0, 1]),
        gid: Gid([1; 16]),
        qp_number: U24::new(17).unwrap(),
        user_id: 0x101,
        limits: limits(version),
        test_after: Some(TEST_AFTER),
    }
}

pub(crate) fn confirm(version: Version, turn: Turn) -> Message {
    Message::ConfirmLink(ConfirmLink {
        turn,
        no_eyecatcher: NoEyecatcher::ONE,
        mac: Mac([2, 0, 0, 0, 0, 2]),
        gid: Gid([2; 16]),
        qp_number: U24::new(18).unwrap(),
        link: number(1),
        user_id: 0x201,
        limits: limits(version),
    })
}

pub(crate) fn new_link(version: Version) -> NewLink {
    NewLink {
        mac: Mac([2, 0, 0, 0, 0, 2]),
        gid: Gid([2; 16]),
        qp_number: U24::new(19).unwrap(),
        number: number(2),
        psn: U24::new(20).unwrap(),
        extension: (version == Version::V2).then(|| Extension {
            direct: true,
            target_gid: Gid([2; 16]),
            keys: Few::default(),
        }),
    }
}

pub(crate) fn wish() -> AddLink {
    AddLink::Wish {
        mac: Mac([2, 0, 0, 0, 0, 2]),
        gid: Gid([2; 16]),
    }
}

pub(crate) fn add_link_cont() -> Message {
    Message::AddLinkCont(AddLinkCont {
        turn: Turn::Request,
        link: number(2),
        keys: Batch::default(),
    })
}

pub(crate) fn delete(version: Version, turn: Turn, doomed: Doomed) -> Message {
    Message::DeleteLink(DeleteLink {
        version,
        turn,
        doomed,
        orderly: true,
        reason: DeleteReason::LOST_PATH,
    })
}

pub(crate) fn confirm_rkey(version: Version, turn: KeyTurn, key: Key) -> Message {
    let others = match version {
        Version::V1 => OtherKeys::V1(Batch::default()),
        Version::V2 => OtherKeys::V2(Few::default()),
    };
    Message::ConfirmRkey(ConfirmRkey { turn, key, others })
}

pub(crate) fn confirm_rkey_cont() -> Message {
    Message::ConfirmRkeyCont(ConfirmRkeyCont {
        turn: KeyTurn::Request,
        keys: Batch::default(),
    })
}

pub(crate) fn delete_rkey(version: Version, keys: &[u32]) -> Message {
    Message::DeleteRkey(match version {
        Version::V1 => DeleteRkey::RequestV1(Few::new(keys.to_vec()).unwrap()),
        Version::V2 => DeleteRkey::RequestV2(Few::new(keys.to_vec()).unwrap()),
    })
}

pub(crate) fn deleted(version: Version) -> Message {
    Message::DeleteRkey(match version {
        Version::V1 => DeleteRkey::ResponseV1 {
            keys: Few::one(7),
            result: DeletedV1::Unknown(0x80),
        },
        Version::V2 => DeleteRkey::ResponseV2 {
            count: 1,
            result: DeletedV2::All,
        },
    })
}

pub(crate) fn test(version: Version, turn: Turn) -> Message {
    Message::TestLink(TestLink {
        version,
        turn,
        user_data: [42; 16],
    })
}

/// Throws away what the link has to say.
pub(crate) fn quiet(link: &mut Link) {
    while link.poll_transmit().is_some() {}
    while link.poll_event().is_some() {}
}

/// What the link has to say, in words: what it sends, then what it tells.
pub(crate) fn outcome(link: &mut Link) -> String {
    let sent: Vec<_> = std::iter::from_fn(|| link.poll_transmit()).collect();
    let told: Vec<_> = std::iter::from_fn(|| link.poll_event()).collect();
    let sent = sent
        .iter()
        .map(|message| format!("send {}", sends(message)));
    let all: Vec<_> = sent.chain(told.iter().map(tells)).collect();
    if all.is_empty() {
        return "nothing".into();
    }
    all.join("; ")
}

fn sends(message: &Message) -> String {
    match message {
        Message::ConfirmLink(message) => {
            assert_eq!(
                (message.no_eyecatcher, message.user_id),
                (NoEyecatcher::all(), 0x101)
            );
            format!("ConfirmLink {:?} {}", message.turn, message.link)
        }
        Message::AddLink(AddLink::Reject(offer)) => match offer.reason {
            Some(reason) => format!("AddLink reject {}", reason.code()),
            None => "AddLink reject".into(),
        },
        Message::DeleteLink(message) => {
            let doomed = match message.doomed {
                Doomed::Link(number) => number.to_string(),
                Doomed::All => "all".into(),
            };
            format!(
                "DeleteLink {:?} {doomed} {:#x}",
                message.turn, message.reason.0
            )
        }
        Message::ReqAddLink(message) => format!("ReqAddLink {:?}", message.turn()),
        Message::ConfirmRkey(message) => {
            format!("ConfirmRkey {:?} {}", message.turn, message.key.rkey)
        }
        Message::DeleteRkey(message) => match message {
            DeleteRkey::RequestV1(keys) => format!("DeleteRkey Request {}", keys[0]),
            DeleteRkey::RequestV2(keys) => format!("DeleteRkey Request {}", keys[0]),
            DeleteRkey::ResponseV1 { result, .. } if *result == DeletedV1::All => {
                "DeleteRkey Response".into()
            }
            DeleteRkey::ResponseV2 { result, .. } if *result == DeletedV2::All => {
                "DeleteRkey Response".into()
            }
            _ => "DeleteRkey Response, unknown".into(),
        },
        Message::TestLink(message) => {
            format!("TestLink {:?} {}", message.turn, message.user_data[7])
        }
        other => panic!("never sent: {other:?}"),
    }
}

fn tells(event: &LinkEvent) -> String {
    match event {
        LinkEvent::KeyAnswered { key, answer } => format!("key {} {answer:?}", key.rkey),
        LinkEvent::KeyDeleted(rkey) => format!("deleted {rkey}"),
        LinkEvent::Down(Cause::Ended { by, reason }) => {
            let by = if *by == Side::Us { "us" } else { "peer" };
            format!("ended by {by} {:#x}", reason.0)
        }
        LinkEvent::Down(cause) => format!("{cause:?}"),
        LinkEvent::Confirmable | LinkEvent::Up => format!("{event:?}"),
    }
}
