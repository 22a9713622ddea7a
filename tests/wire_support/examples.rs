//! Messages of which there is no capture, every field different: they are compared with what tshark reads, and pinned.

use std::net::Ipv4Addr;
use std::num::{NonZeroU8, NonZeroU32};

use smcfast::wire::SizeCode;
use smcfast::wire::clc::*;

/// Names and messages, in the order of `tests/vectors/examples.json`.
pub(crate) fn examples() -> Vec<(&'static str, Message)> {
    vec![
        (
            "proposal_v1_d",
            proposal(Offer::V1(v1(Paths::D(native()), ipv4()))),
        ),
        (
            "proposal_v1_both_ipv6",
            proposal(Offer::V1(v1(Paths::Both(gid(1), native()), ipv6()))),
        ),
        ("proposal_v2_d", proposal(Offer::V2(v2(Paths::D(ism()))))),
        (
            "proposal_v2_d_two_emulated",
            proposal(Offer::V2(v2(Paths::D(two_emulated())))),
        ),
        (
            "proposal_v2_both",
            proposal(Offer::V2(v2(Paths::Both(roce(), ism())))),
        ),
        ("proposal_v1_both_v2_both", proposal(everything())),
        (
            "proposal_v1_r_in_v2",
            proposal(Offer::V1InV2(v1(Paths::R(gid(1)), ipv6()))),
        ),
        (
            "accept_v1_r",
            Message::Accept(Reply::RV1 {
                end: smc_r(1),
                first_contact: true,
            }),
        ),
        (
            "confirm_v1_r",
            Message::Confirm(Reply::RV1 {
                end: smc_r(2),
                first_contact: false,
            }),
        ),
        (
            "accept_v1_d",
            Message::Accept(Reply::DV1 {
                gid: 0x1111_2222,
                end: smc_d(1),
                first_contact: true,
            }),
        ),
        (
            "confirm_v1_d",
            Message::Confirm(Reply::DV1 {
                gid: 0x3333_4444,
                end: smc_d(2),
                first_contact: false,
            }),
        ),
        (
            "accept_v2_d_first_contact",
            Message::Accept(d_v2(1, Some(terms()))),
        ),
        (
            "confirm_v2_d_first_contact",
            Message::Confirm(d_v2(2, Some(terms()))),
        ),
        ("accept_v2_d_reuse", Message::Accept(d_v2(3, None))),
        ("confirm_v2_d_reuse", Message::Confirm(d_v2(4, None))),
        (
            "accept_v2_d_release_0",
            Message::Accept(d_v2(
                5,
                Some(FirstContact {
                    v2_1: None,
                    ..terms()
                }),
            )),
        ),
        ("confirm_v2_r_three_gids", Message::Confirm(confirm_v2_r())),
        (
            "decline_v1_out_of_sync",
            Message::Decline(Decline {
                out_of_sync: true,
                ..decline(Version::V1)
            }),
        ),
        (
            "decline_v2_out_of_sync",
            Message::Decline(Decline {
                out_of_sync: true,
                ..decline(Version::V2)
            }),
        ),
    ]
}

fn gid(last: u8) -> Gid {
    Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, last])
}

fn eid(name: &str) -> Eid {
    Eid::new(name).unwrap()
}

fn native() -> NativeIsm {
    NativeIsm {
        gid: 0x0102_0304_0506_0708,
        chid: 0x0909,
    }
}

fn ipv4() -> Prefixes {
    Prefixes::ipv4(Ipv4Prefix::new(Ipv4Addr::new(10, 9, 8, 7), 20).unwrap())
}

fn ipv6() -> Prefixes {
    let prefix = |address: &str, len| Ipv6Prefix::new(address.parse().unwrap(), len).unwrap();
    let prefixes = vec![prefix("2001:db8:1::5", 48), prefix("fd00::1:2", 64)];
    Prefixes {
        ipv4: Ipv4Prefix::ZERO,
        ipv6: Few::new(prefixes).unwrap(),
    }
}

fn proposal(offer: Offer) -> Message {
    let peer_id = PeerId([0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8]);
    Message::Proposal(Proposal {
        peer_id,
        mac: Mac([2, 0x11, 0x12, 0x13, 0x14, 0x15]),
        offer,
    })
}

fn v1(paths: Paths<Gid, NativeIsm>, prefixes: Prefixes) -> OfferV1 {
    OfferV1 { paths, prefixes }
}

fn v2(paths: Paths<RoceV2, SmcDV2>) -> OfferV2 {
    let eids = Few::new(vec![eid("SMCFAST"), eid("SECOND-EID.2")]).unwrap();
    OfferV2 {
        paths,
        eids,
        release: Release::V2_1,
        features: Features::EMULATED_ISM,
    }
}

fn roce() -> RoceV2 {
    RoceV2 {
        gid: Gid::from_ipv4(Ipv4Addr::new(10, 9, 0, 3)),
        max_connections: 200,
        max_links: 2,
    }
}

fn ism() -> SmcDV2 {
    let emulated = Ism::emulated(0x1112_1314_1516_1718, 0x2122_2324_2526_2728, 0xff53).unwrap();
    let native = Ism::native(0x3132_3334_3536_3738, 0x0410).unwrap();
    SmcDV2 {
        seid: Some(eid("IBM-SYSZ-ISMSEID00000000ABCD1234")),
        devices: IsmList::new(vec![emulated, native]).unwrap(),
    }
}

fn two_emulated() -> SmcDV2 {
    let device = |gid| Ism::emulated(gid, gid + 1, 0xff53).unwrap();
    SmcDV2 {
        seid: None,
        devices: IsmList::new(vec![device(0xaa01), device(0xbb01)]).unwrap(),
    }
}

fn everything() -> Offer {
    Offer::Both(
        v1(Paths::Both(gid(2), native()), ipv6()),
        v2(Paths::Both(roce(), ism())),
    )
}

fn smc_r(n: u8) -> SmcR {
    SmcR {
        peer_id: PeerId([0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, n]),
        gid: gid(n),
        mac: Mac([2, 0x21, 0x22, 0x23, 0x24, n]),
        qp_number: U24::new(0x01_0203).unwrap(),
        rkey: 0x1122_3344,
        rmbe_index: NonZeroU8::new(n).unwrap(),
        alert_token: NonZeroU32::new(0x5566_7788).unwrap(),
        size: SizeCode::new(5).unwrap(),
        mtu: Mtu::B4096,
        rmb_address: 0x99aa_bbcc_ddee_ff00,
        psn: U24::new(0xf1_f2f3).unwrap(),
    }
}

fn smc_d(n: u8) -> SmcD {
    SmcD {
        token: 0x4142_4344_4546_4748,
        dmbe_index: n,
        size: SizeCode::new(6).unwrap(),
        link_id: 0x5152_5354,
    }
}

fn terms() -> FirstContact {
    FirstContact {
        direct: true,
        os: Os::LINUX,
        host_name: HostName::from_lossy("examplehost"),
        v2_1: Some(V21::new(32, 1, Features::EMULATED_ISM)),
    }
}

fn d_v2<X>(n: u8, first_contact: Option<FirstContact>) -> Reply<X> {
    let device = Ism::emulated(0x6162_6364_6566_6768, 0x7172_7374_7576_7778, 0xff53).unwrap();
    Reply::DV2 {
        device,
        end: smc_d(n),
        eid: eid("SMCFAST"),
        first_contact,
    }
}

fn confirm_v2_r() -> Confirm {
    let gids = Few::new(vec![gid(3), gid(4), gid(5)]).unwrap();
    let first_contact = Some(ConfirmContact {
        terms: terms(),
        gids,
    });
    Reply::RV2 {
        end: smc_r(3),
        eid: eid("SECOND-EID.2"),
        first_contact,
    }
}

fn decline(version: Version) -> Decline {
    Decline::new(
        version,
        PeerId([0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8]),
        Diagnosis::SYNCHRONIZATION,
    )
}
