//! What tshark 4.0 should find in a message on a queue pair: the names of its fields and their values as it prints them.
//!
//! It shows neither the user data of a TEST_LINK, the connections of a CONFIRM_LINK, nor the reason of a rejection in
//! version 1, and an accepted ADD_LINK of version 2 it reads up to the end of version 1.

use smcfast::wire::Received;
use smcfast::wire::cdc::{ProducerFlags, RdmaCdc, StateFlags};
use smcfast::wire::clc::{Gid, Mac, Mtu, U24};
use smcfast::wire::llc::*;

/// Fields in any order; a name that occurs again is a further value.
pub(crate) type Dissected = Vec<(&'static str, String)>;

pub(crate) fn dissected(message: &Received, bytes: &[u8]) -> Dissected {
    let mut found = match message {
        Received::Cdc(cdc) => rdma_cdc(cdc),
        Received::Llc(message) => llc(message),
        Received::Unknown(_) => Vec::new(),
    };
    found.push(("smc.llc_msg", hex2(bytes[0])));
    found.push(("smc.length", bytes.len().to_string()));
    found
}

fn hex2(value: u8) -> String {
    format!("{value:#04x}")
}

fn hex4(value: u16) -> String {
    format!("{value:#06x}")
}

fn hex6(value: U24) -> String {
    format!("{:#08x}", value.get())
}

fn hex8(value: u32) -> String {
    format!("{value:#010x}")
}

fn hex16(value: u64) -> String {
    format!("{value:#018x}")
}

fn bit(value: bool) -> String {
    u8::from(value).to_string()
}

fn responds(turn: Turn) -> String {
    bit(turn == Turn::Response)
}

fn llc(message: &Message) -> Dissected {
    match message {
        Message::ConfirmLink(message) => confirm_link(message),
        Message::AddLink(message) => add_link(message),
        Message::AddLinkCont(message) => vec![
            ("smc.add.link.cont.response", responds(message.turn)),
            ("smc.add.link.cont.link.number", hex2(message.link.get())),
            (
                "smc.add.link.cont.rkey.number",
                (message.keys.len() + usize::from(message.keys.following())).to_string(),
            ),
        ],
        Message::DeleteLink(message) => delete_link(message),
        Message::ReqAddLink(message) => req_add_link(message),
        Message::ConfirmRkey(message) => confirm_rkey(message),
        Message::ConfirmRkeyCont(message) => {
            let mut found = key_turn(message.turn);
            let left = message.keys.len() + usize::from(message.keys.following());
            found.push(("smc.confirm.rkey.number.qp", left.to_string()));
            found.extend(elsewhere(&message.keys));
            found
        }
        Message::DeleteRkey(message) => delete_rkey(message),
        Message::TestLink(message) => vec![("smc.test.link.response", responds(message.turn))],
    }
}

fn confirm_link(message: &ConfirmLink) -> Dissected {
    let (Limits::V1 { max_links } | Limits::V2 { max_links, .. }) = message.limits;
    let flags = if message.turn == Turn::Response {
        0x80
    } else {
        0
    };
    vec![
        ("smc.confirm.link.response", responds(message.turn)),
        (
            "smc.confirm.link.flags",
            hex2(flags | message.no_eyecatcher.bits()),
        ),
        ("smc.confirm.link.sender.mac", message.mac.to_string()),
        ("smc.sender.gid", message.gid.to_string()),
        ("smc.confirm.link.sender.qp.number", hex6(message.qp_number)),
        ("smc.confirm.link.number", hex2(message.link.get())),
        ("smc.confirm.link.sender.link.userid", hex8(message.user_id)),
        ("smc.confirm.link.max.links", hex2(max_links)),
    ]
}

fn add_link(message: &AddLink) -> Dissected {
    let mut found = match message {
        AddLink::Wish { mac, gid } => {
            let mut found = end(*mac, *gid, U24::default(), 0);
            found.extend(mtu_and_psn(None, U24::default()));
            found
        }
        AddLink::Offer { link, mtu } => {
            let mut found = new_link(link, *mtu);
            found.extend(link.extension.iter().flat_map(extension));
            found
        }
        AddLink::Accept { link, mtu } => new_link(link, Some(*mtu)),
        AddLink::Reject(offer) => {
            let mut found = end(offer.mac, offer.gid, offer.qp_number, offer.number);
            found.extend(mtu_and_psn(offer.mtu, offer.psn));
            found
        }
    };
    let rejects = matches!(message, AddLink::Reject(_));
    found.push(("smc.add.link.response", responds(message.turn())));
    found.push(("smc.add.link.response.rejected", bit(rejects)));
    found
}

fn end(mac: Mac, gid: Gid, qp_number: U24, number: u8) -> Dissected {
    vec![
        ("smc.add.link.sender.mac", mac.to_string()),
        ("smc.add.link.sender.gid", gid.to_string()),
        ("smc.add.link.sender.qp.number", hex6(qp_number)),
        ("smc.add.link.link.number", hex2(number)),
    ]
}

fn mtu_and_psn(mtu: Option<Mtu>, psn: U24) -> Dissected {
    vec![
        (
            "smc.add.link.qp.mtu.value",
            mtu.map_or(0, Mtu::code).to_string(),
        ),
        ("smc.add.link.initial.psn", hex6(psn)),
    ]
}

fn new_link(link: &NewLink, mtu: Option<Mtu>) -> Dissected {
    let mut found = end(link.mac, link.gid, link.qp_number, link.number.get());
    found.extend(mtu_and_psn(mtu, link.psn));
    found
}

fn extension(extension: &Extension) -> Dissected {
    let mut found = vec![
        ("smc.add.link.direct_link", bit(extension.direct)),
        (
            "smc.add.link.client_target_gid",
            extension.target_gid.to_string(),
        ),
        ("smc.add.link.rkey_count", extension.keys.len().to_string()),
    ];
    for key in extension.keys.iter() {
        found.push(("smc.add.link.rmb.RTok.Rkey1", hex8(key.known)));
        found.push(("smc.add.link.rmb.RTok.Rkey2", hex8(key.new.rkey)));
        found.push(("smc.add.link.rmb.RTok.virt", hex16(key.new.address)));
    }
    found
}

fn delete_link(message: &DeleteLink) -> Dissected {
    let (all, number) = match message.doomed {
        Doomed::Link(number) => (false, number.get()),
        Doomed::All => (true, 0),
    };
    vec![
        ("smc.delete.link.response", responds(message.turn)),
        ("smc.delete.link.all", bit(all)),
        ("smc.delete.link.orderly", bit(message.orderly)),
        ("smc.delete.link.number", hex2(number)),
        ("smc.delete.link.reason.code", hex8(message.reason.0)),
    ]
}

fn req_add_link(message: &ReqAddLink) -> Dissected {
    let gids = match message {
        ReqAddLink::Request(gids) => &gids[..],
        ReqAddLink::Response => &[],
    };
    let mut found = vec![
        ("smc.request.add.link.response", responds(message.turn())),
        (
            "smc.request.add.link.gid.list.entry_count",
            gids.len().to_string(),
        ),
    ];
    let entry = |gid: &Gid| ("smc.request.add.link.gid.list.entry", gid.to_string());
    found.extend(gids.iter().map(entry));
    found
}

fn key_turn(turn: KeyTurn) -> Dissected {
    let refused = matches!(turn, KeyTurn::Refused { .. });
    let retry = turn == KeyTurn::Refused { retry: true };
    vec![
        ("smc.confirm.rkey.response", responds(turn.turn())),
        ("smc.confirm.rkey.negative.response", bit(refused)),
        ("smc.confirm.rkey.retry.rkey.set", bit(retry)),
    ]
}

fn key(key: &Key) -> Dissected {
    vec![
        ("smc.confirm.rkey.new.rkey", hex8(key.rkey)),
        ("smc.confirm.rkey.new.virt", hex16(key.address)),
    ]
}

fn elsewhere(keys: &[KeyOnLink]) -> Dissected {
    let link = |key: &KeyOnLink| ("smc.confirm.rkey.link.number", hex2(key.link));
    let links = keys.iter().map(link);
    links
        .chain(keys.iter().flat_map(|other| key(&other.key)))
        .collect()
}

fn confirm_rkey(message: &ConfirmRkey) -> Dissected {
    let (count, others) = match &message.others {
        OtherKeys::V1(batch) => (batch.len() + usize::from(batch.following()), &batch[..]),
        OtherKeys::V2(few) => (few.len(), &few[..]),
    };
    let mut found = key_turn(message.turn);
    found.push(("smc.confirm.rkey.number.qp", count.to_string()));
    found.extend(key(&message.key));
    found.extend(elsewhere(others));
    found
}

fn delete_rkey(message: &DeleteRkey) -> Dissected {
    let (count, keys, refused) = match message {
        DeleteRkey::RequestV1(keys) => (keys.len(), &keys[..], false),
        DeleteRkey::RequestV2(keys) => (keys.len(), &keys[..], false),
        DeleteRkey::ResponseV1 { keys, result } => {
            (keys.len(), &keys[..], *result != DeletedV1::All)
        }
        DeleteRkey::ResponseV2 { count, result } => {
            (usize::from(*count), &[][..], *result != DeletedV2::All)
        }
    };
    let mut found = vec![
        ("smc.delete.rkey.response", responds(message.turn())),
        ("smc.delete.rkey.negative.response", bit(refused)),
        ("smc.delete.rkey.count", count.to_string()),
    ];
    if let DeleteRkey::ResponseV1 { result, .. } = message {
        let mask = match result {
            DeletedV1::All => 0,
            DeletedV1::Unknown(mask) => *mask,
        };
        found.push(("smc.delete.rkey.error.mask", hex2(mask)));
    }
    if let DeleteRkey::ResponseV2 {
        result: DeletedV2::Unknown(number),
        ..
    } = message
    {
        found.push(("smc.delete.rkey.count.invalid", number.to_string()));
    }
    found.extend(
        keys.iter()
            .map(|key| ("smc.delete.rkey.deleted", hex8(*key))),
    );
    found
}

fn rdma_cdc(message: &RdmaCdc) -> Dissected {
    let cdc = &message.cdc;
    let asks = |flag| bit(cdc.producer_flags.contains(flag));
    let ended = |flag| bit(cdc.state_flags.contains(flag));
    vec![
        ("smc.rmbe.ctrl.seqno", hex4(message.sequence.0)),
        ("smc.rmbe.ctrl.alert.token", hex8(message.token.get())),
        ("smc.rmbe.ctrl.prod.wrap.seq", hex4(cdc.producer.wrap)),
        ("smc.rmbe.ctrl.peer.prod.curs", hex8(cdc.producer.count)),
        // The consumer's have the names of the producer's.
        ("smc.rmbe.ctrl.prod.wrap.seq", hex4(cdc.consumer.wrap)),
        ("smc.rmbe.ctrl.peer.prod.curs", hex8(cdc.consumer.count)),
        (
            "smc.rmbe.ctrl.write.blocked",
            asks(ProducerFlags::WRITE_BLOCKED),
        ),
        (
            "smc.rmbe.ctrl.urgent.pending",
            asks(ProducerFlags::URGENT_PENDING),
        ),
        (
            "smc.rmbe.ctrl.urgent.present",
            asks(ProducerFlags::URGENT_PRESENT),
        ),
        (
            "smc.rmbe.ctrl.cons.update.requested",
            asks(ProducerFlags::CONSUMER_UPDATE_REQUESTED),
        ),
        (
            "smc.rmbe.ctrl.failover.validation",
            asks(ProducerFlags::FAILOVER_VALIDATION),
        ),
        (
            "smc.rmbe.ctrl.peer.sending.done",
            ended(StateFlags::SENDING_DONE),
        ),
        ("smc.rmbe.ctrl.peer.closed.conn", ended(StateFlags::CLOSED)),
        (
            "smc.rmbe.ctrl.peer.abnormal.close",
            ended(StateFlags::ABNORMAL_CLOSE),
        ),
    ]
}
