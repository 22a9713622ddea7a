//! Arbitrary legal values of the wire layer.
#![allow(dead_code, reason = "each test uses a part")]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::{NonZeroU8, NonZeroU32};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use smcfast::wire::clc::*;
use smcfast::wire::rendezvous::Frame;
use smcfast::wire::{EngineId, Received, SizeCode, cdc};

#[path = "llc_values.rs"]
mod llc_values;

pub(crate) fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        proposal().prop_map(Message::Proposal),
        reply(first_contact().boxed()).prop_map(Message::Accept),
        reply(confirm_contact().boxed()).prop_map(Message::Confirm),
        decline().prop_map(Message::Decline),
    ]
}

/// Any CDC of SMC-R and any LLC message.
pub(crate) fn received() -> impl Strategy<Value = Received> {
    prop_oneof![
        rdma_cdc().prop_map(Received::Cdc),
        llc_values::message().prop_map(Received::Llc),
    ]
}

pub(crate) fn frame() -> impl Strategy<Value = Frame> {
    let engine = || any::<[u8; 16]>().prop_map(EngineId);
    prop_oneof![
        engine().prop_map(|engine| Frame::Hello { engine }),
        (engine(), any::<u64>(), any::<u32>(), size()).prop_map(
            |(engine, token, known_link, size)| Frame::Go {
                engine,
                token,
                known_link,
                size
            }
        ),
        any::<u32>().prop_map(|reason| Frame::Stop { reason }),
        (any::<u64>(), any::<u32>(), size(), any::<bool>()).prop_map(
            |(token, link_id, size, first_contact)| {
                Frame::Memory {
                    token,
                    link_id,
                    size,
                    first_contact,
                }
            }
        ),
    ]
}

pub(crate) fn cdc() -> impl Strategy<Value = cdc::Cdc> {
    let cursor = || any::<(u16, u32)>().prop_map(|(wrap, count)| cdc::Cursor { wrap, count });
    (cursor(), cursor(), any::<u8>(), any::<u8>()).prop_map(|(producer, consumer, flags, state)| {
        cdc::Cdc {
            producer,
            consumer,
            producer_flags: cdc::ProducerFlags::from_bits_retain(flags),
            state_flags: cdc::StateFlags::from_bits_retain(state),
        }
    })
}

fn rdma_cdc() -> impl Strategy<Value = cdc::RdmaCdc> {
    let token = any::<NonZeroU32>();
    (any::<u16>(), token, cdc()).prop_map(|(sequence, token, cdc)| cdc::RdmaCdc {
        sequence: cdc::Sequence(sequence),
        token,
        cdc,
    })
}

fn size() -> impl Strategy<Value = SizeCode> {
    (0..16u8).prop_map(|code| SizeCode::new(code).unwrap())
}

fn gid() -> impl Strategy<Value = Gid> {
    any::<[u8; 16]>().prop_map(Gid)
}

fn u24() -> impl Strategy<Value = U24> {
    (0..1u32 << 24).prop_map(|number| U24::new(number).unwrap())
}

fn eid() -> impl Strategy<Value = Eid> {
    "[A-Z0-9][A-Z0-9.-]{0,31}".prop_map(|name| Eid::new(&name).unwrap())
}

fn release() -> impl Strategy<Value = Release> {
    (0..16u8).prop_map(|number| Release::new(number).unwrap())
}

fn features() -> impl Strategy<Value = Features> {
    any::<u16>().prop_map(Features::from_bits_retain)
}

fn few<T: std::fmt::Debug, const MAX: usize>(
    one: impl Strategy<Value = T>,
) -> impl Strategy<Value = Few<T, MAX>> {
    vec(one, 0..=MAX).prop_map(|values| Few::new(values).unwrap())
}

fn paths<R: Clone + std::fmt::Debug + 'static, D: Clone + std::fmt::Debug + 'static>(
    r: impl Strategy<Value = R> + 'static,
    d: impl Strategy<Value = D> + 'static,
) -> impl Strategy<Value = Paths<R, D>> {
    let (r, d) = (r.boxed(), d.boxed());
    prop_oneof![
        r.clone().prop_map(Paths::R),
        d.clone().prop_map(Paths::D),
        (r, d).prop_map(|(r, d)| Paths::Both(r, d)),
    ]
}

fn prefixes() -> impl Strategy<Value = Prefixes> {
    let ipv4 = (any::<Ipv4Addr>(), 0..=32u8)
        .prop_map(|(address, len)| Ipv4Prefix::new(address, len).unwrap());
    let ipv6 = (any::<Ipv6Addr>(), 0..=128u8)
        .prop_map(|(address, len)| Ipv6Prefix::new(address, len).unwrap());
    (ipv4, few(ipv6)).prop_map(|(ipv4, ipv6)| Prefixes { ipv4, ipv6 })
}

fn offer_v1() -> impl Strategy<Value = OfferV1> {
    let native = any::<(u64, u16)>().prop_map(|(gid, chid)| NativeIsm { gid, chid });
    (paths(gid(), native), prefixes()).prop_map(|(paths, prefixes)| OfferV1 { paths, prefixes })
}

fn device() -> impl Strategy<Value = Ism> {
    let native = (any::<u64>(), 0..Ism::FIRST_EMULATED_CHID)
        .prop_map(|(gid, chid)| Ism::native(gid, chid).unwrap());
    let emulated = (any::<u64>(), any::<u64>(), Ism::FIRST_EMULATED_CHID..)
        .prop_map(|(gid, extension, chid)| Ism::emulated(gid, extension, chid).unwrap());
    prop_oneof![native, emulated]
}

fn offer_v2() -> impl Strategy<Value = OfferV2> {
    let r =
        (gid(), any::<u8>(), any::<u8>()).prop_map(|(gid, max_connections, max_links)| RoceV2 {
            gid,
            max_connections,
            max_links,
        });
    let devices = vec(device(), 0..=8).prop_filter_map("more than eight entries", IsmList::new);
    let d = (option::of(eid()), devices).prop_map(|(seid, devices)| SmcDV2 { seid, devices });
    (paths(r, d), few(eid()), release(), features()).prop_map(|(paths, eids, release, features)| {
        OfferV2 {
            paths,
            eids,
            release,
            features,
        }
    })
}

fn proposal() -> impl Strategy<Value = Proposal> {
    let offer = prop_oneof![
        offer_v1().prop_map(Offer::V1),
        offer_v1().prop_map(Offer::V1InV2),
        offer_v2().prop_map(Offer::V2),
        (offer_v1(), offer_v2()).prop_map(|(v1, v2)| Offer::Both(v1, v2)),
    ];
    (any::<[u8; 8]>(), any::<[u8; 6]>(), offer).prop_map(|(peer_id, mac, offer)| Proposal {
        peer_id: PeerId(peer_id),
        mac: Mac(mac),
        offer,
    })
}

fn first_contact() -> impl Strategy<Value = FirstContact> {
    let v2_1 = (any::<u8>(), any::<u8>(), features(), release()).prop_map(
        |(max_connections, max_links, features, release)| {
            V21::new(max_connections, max_links, features).with_release(release)
        },
    );
    (any::<bool>(), 0..3u8, "[a-z0-9.-]{0,32}", v2_1).prop_map(|(direct, os, name, v2_1)| {
        FirstContact {
            direct,
            os: [Os::ZOS, Os::LINUX, Os::AIX][usize::from(os)],
            host_name: HostName::from_lossy(&name),
            v2_1,
        }
    })
}

fn confirm_contact() -> impl Strategy<Value = ConfirmContact> {
    (first_contact(), few(gid())).prop_map(|(terms, gids)| ConfirmContact { terms, gids })
}

fn smc_r() -> impl Strategy<Value = SmcR> {
    let ids = (any::<[u8; 8]>(), gid(), any::<[u8; 6]>(), u24(), u24());
    let rmb = (
        any::<u32>(),
        1..=255u8,
        1..=u32::MAX,
        any::<u64>(),
        size(),
        1..=5u8,
    );
    (ids, rmb).prop_map(|(ids, rmb)| SmcR {
        peer_id: PeerId(ids.0),
        gid: ids.1,
        mac: Mac(ids.2),
        qp_number: ids.3,
        psn: ids.4,
        rkey: rmb.0,
        rmbe_index: NonZeroU8::new(rmb.1).unwrap(),
        alert_token: NonZeroU32::new(rmb.2).unwrap(),
        rmb_address: rmb.3,
        size: rmb.4,
        mtu: Mtu::new(rmb.5).unwrap(),
    })
}

fn smc_d() -> impl Strategy<Value = SmcD> {
    (any::<u64>(), any::<u8>(), size(), any::<u32>()).prop_map(
        |(token, dmbe_index, size, link_id)| SmcD {
            token,
            dmbe_index,
            size,
            link_id,
        },
    )
}

fn reply<X: Clone + std::fmt::Debug + 'static>(
    contact: BoxedStrategy<X>,
) -> impl Strategy<Value = Reply<X>> {
    prop_oneof![
        (smc_r(), any::<bool>()).prop_map(|(end, first_contact)| Reply::RV1 { end, first_contact }),
        (smc_r(), eid(), option::of(contact)).prop_map(|(end, eid, first_contact)| Reply::RV2 {
            end,
            eid,
            first_contact
        }),
        (any::<u64>(), smc_d(), any::<bool>()).prop_map(|(gid, end, first_contact)| Reply::DV1 {
            gid,
            end,
            first_contact
        }),
        (device(), smc_d(), eid(), option::of(first_contact())).prop_map(
            |(device, end, eid, first_contact)| Reply::DV2 {
                device,
                end,
                eid,
                first_contact
            }
        ),
    ]
}

fn decline() -> impl Strategy<Value = Decline> {
    let more = any::<[u32; 4]>().prop_map(|codes| codes.map(Diagnosis));
    let os = prop_oneof![Just(Os::NONE), Just(Os::LINUX)];
    (
        any::<[u8; 8]>(),
        any::<u32>(),
        any::<bool>(),
        os,
        option::of(more),
    )
        .prop_map(|(peer_id, code, out_of_sync, os, more)| Decline {
            peer_id: PeerId(peer_id),
            diagnosis: Diagnosis(code),
            out_of_sync,
            os,
            more,
        })
}
