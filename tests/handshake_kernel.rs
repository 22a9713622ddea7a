//! The handshake with a kernel, byte by byte: what kernel 6.12 has sent, and what it has accepted from user space.

mod handshake_support;
mod wire_support;

use std::collections::VecDeque;

use handshake_support::*;
use smcfast::proto::handshake::{
    Accepted, ClientEvent, ClientHandshake, Limits, Local, Outcome, OwnEnd, PeerEnd, ServerEvent,
    ServerHandshake, Side, Subnets,
};
use smcfast::wire::clc::{
    Accept, Confirm, Diagnosis, Gid, HostName, Ipv4Prefix, Ipv6Prefix, Mac, Message, PeerId,
    Release, Reply, SmcR, Version,
};
use wire_support::{clc_vectors, hex};

fn vector(name: &str) -> Vec<u8> {
    clc_vectors()
        .into_iter()
        .find(|vector| vector.name == name)
        .unwrap_or_else(|| panic!("no vector {name}"))
        .bytes
}

/// The end in an Accept or a Confirm for SMC-R.
fn end_in(bytes: &[u8]) -> SmcR {
    match Message::decode(bytes).unwrap() {
        Message::Accept(Reply::RV1 { end, .. } | Reply::RV2 { end, .. }) => end,
        Message::Confirm(Reply::RV1 { end, .. } | Reply::RV2 { end, .. }) => end,
        other => panic!("{other:?}"),
    }
}

/// The side that has sent these messages, as far as they tell.
fn side(peer_id: [u8; 8], mac: Mac, host: u8, max_links: u8, host_name: &str) -> Local {
    let mut local = local(host, Ways::R_V2);
    local.peer_id = PeerId(peer_id);
    local.host_name = HostName::from_lossy(host_name);
    local.eids = eids(&["TESTEID1"]);
    let smc_r = local.smc_r.as_mut().unwrap();
    smc_r.mac = mac;
    smc_r.limits = Limits {
        max_connections: 255,
        max_links,
    };
    local
}

/// A kernel's server, or ours, with the end in `accept`.
fn server_of(accept: &[u8], max_links: u8, host_name: &str) -> (ServerHandshake, OwnEnd) {
    let end = end_in(accept);
    let local = side(end.peer_id.0, end.mac, 2, max_links, host_name);
    (
        ServerHandshake::new(local, START),
        OwnEnd::R { end, direct: true },
    )
}

#[test]
fn a_server_answers_a_kernel_client_as_a_kernel_server_does() {
    let accept = vector("kk_00010_clc_accept_v2r_fc");
    let (mut server, own) = server_of(&accept, 2, "virtme-ng");
    give(&mut server, &vector("kk_00008_clc_proposal_v2r"));
    let Some(ServerEvent::Proposed(proposed)) = server.poll_event() else {
        panic!()
    };
    // The kernel does not say who it is.
    assert_eq!(
        (proposed.peer_id, proposed.mac),
        (PeerId::default(), Mac::default())
    );
    assert_eq!(
        (proposed.version, proposed.release),
        (Version::V2, Some(Release::V2_1))
    );
    assert_eq!(
        proposed.limits,
        Some(Limits {
            max_connections: 255,
            max_links: 2
        })
    );
    assert_eq!(
        proposed.client,
        smcfast::proto::handshake::Device::R(roce_v2(1))
    );

    server.accept(own, true, START).unwrap();
    assert_eq!(hex(&server.poll_transmit().unwrap()), hex(&accept));

    let confirm = vector("kk_00012_clc_confirm_v2r_fc_2gids");
    give(&mut server, &confirm);
    let Some(ServerEvent::Confirmed(confirmed)) = server.poll_event() else {
        panic!()
    };
    assert_eq!(confirmed.peer, PeerEnd::R(end_in(&confirm)));
    assert_eq!(confirmed.gids, [roce_v2(1), roce_v2(2)]);
    assert_eq!((server.poll_event(), server.wanted()), (None, 8));
    server.linked().unwrap();
    assert_eq!(
        server.poll_event(),
        Some(ServerEvent::Done(Outcome::Established(confirmed.agreed)))
    );
}

#[test]
fn a_server_in_user_space_lowers_the_links_and_the_kernel_client_confirms() {
    let accept = vector("proto_02515_us_accept_fc_maxlinks1");
    let (mut server, own) = server_of(&accept, 1, "userspace");
    give(&mut server, &vector("kk_00008_clc_proposal_v2r"));
    server.accept(own, true, START).unwrap();
    assert_eq!(hex(&server.poll_transmit().unwrap()), hex(&accept));
    give(&mut server, &vector("proto_02517_kern_confirm_fc"));
    let Some(ServerEvent::Proposed(_)) = server.poll_event() else {
        panic!()
    };
    let Some(ServerEvent::Confirmed(confirmed)) = server.poll_event() else {
        panic!()
    };
    assert_eq!(
        confirmed.agreed.limits,
        Some(Limits {
            max_connections: 255,
            max_links: 1
        })
    );
}

#[test]
fn a_server_uses_a_link_group_again_as_a_kernel_server_does() {
    let accept = vector("single_00039_clc_accept_v2r_reuse");
    let (mut server, own) = server_of(&accept, 2, "virtme-ng");
    give(&mut server, &vector("kk_00008_clc_proposal_v2r"));
    server.accept(own, false, START).unwrap();
    assert_eq!(hex(&server.poll_transmit().unwrap()), hex(&accept));
    give(&mut server, &vector("single_00045_clc_confirm_v2r_reuse"));
    let Some(ServerEvent::Proposed(_)) = server.poll_event() else {
        panic!()
    };
    let Some(ServerEvent::Confirmed(confirmed)) = server.poll_event() else {
        panic!()
    };
    assert!(!confirmed.agreed.first_contact && confirmed.gids.is_empty());
}

#[test]
fn a_client_talks_to_a_kernel_server_as_the_prototype_did() {
    let confirm = vector("proto_00011_us_confirm_fc");
    let end = end_in(&confirm);
    let local = side(end.peer_id.0, end.mac, 1, 1, "userspace");
    let mut client = ClientHandshake::new(local, START);
    assert_eq!(
        hex(&client.poll_transmit().unwrap()),
        hex(&vector("proto_00007_us_proposal"))
    );

    let accept = vector("proto_00009_kern_accept_fc_maxlinks1");
    give(&mut client, &accept);
    let Some(ClientEvent::Accepted(Accepted {
        agreed,
        peer,
        contact,
    })) = client.poll_event()
    else {
        panic!()
    };
    assert_eq!(peer, PeerEnd::R(end_in(&accept)));
    assert_eq!(contact.unwrap().host_name.text(), Some("virtme-ng"));
    client.confirm(OwnEnd::R { end, direct: true }).unwrap();
    assert_eq!(hex(&client.poll_transmit().unwrap()), hex(&confirm));
    assert_eq!((client.poll_event(), client.wanted()), (None, 8));
    client.linked().unwrap();
    assert_eq!(
        client.poll_event(),
        Some(ClientEvent::Done(Outcome::Established(agreed)))
    );
}

#[test]
fn a_client_confirms_the_reuse_of_a_link_group_as_a_kernel_client_does() {
    let confirm = vector("single_00045_clc_confirm_v2r_reuse");
    let end = end_in(&confirm);
    let mut client = ClientHandshake::new(side(end.peer_id.0, end.mac, 1, 2, "virtme-ng"), START);
    client.poll_transmit().unwrap();
    give(&mut client, &vector("single_00039_clc_accept_v2r_reuse"));
    client.confirm(OwnEnd::R { end, direct: true }).unwrap();
    assert_eq!(hex(&client.poll_transmit().unwrap()), hex(&confirm));
}

#[test]
fn a_client_without_a_link_group_says_so_as_a_kernel_client_does() {
    let mut client = ClientHandshake::new(side([9; 8], Mac::default(), 1, 2, "host"), START);
    client.poll_transmit().unwrap();
    give(&mut client, &vector("single_00039_clc_accept_v2r_reuse"));
    client.decline(Diagnosis::SYNCHRONIZATION).unwrap();
    let bytes = client.poll_transmit().unwrap();
    // Seen from a kernel client: 44 bytes, flags 0x28, the code.
    assert_eq!(
        (bytes.len(), bytes[7], &bytes[16..20]),
        (44, 0x28, &[4, 0, 0, 0][..])
    );
}

#[test]
fn every_kernel_accept_of_first_contact_is_understood() {
    for name in [
        "kk_00010_clc_accept_v2r_fc",
        "single_00010_clc_accept_v2r_fc",
        "ut_accept_release_clamped_to_1",
        "proto_00009_kern_accept_fc_maxlinks1",
    ] {
        let mut client = ClientHandshake::new(side([9; 8], Mac::default(), 1, 2, "host"), START);
        give(&mut client, &vector(name));
        assert!(
            matches!(client.poll_event(), Some(ClientEvent::Accepted(_))),
            "{name}"
        );
    }
}

#[test]
fn declines_of_a_kernel_server_lead_to_tcp() {
    for (name, code) in [
        ("ut_decline_v2_no_eid", Diagnosis::NO_UEID),
        ("ut_decline_v2_diffprefix", Diagnosis::PREFIX_MISMATCH),
        ("ut_decline_v1_nosmcdev", Diagnosis::NO_SMC_DEVICE),
        ("ut_decline_v2_maxconnerr", Diagnosis::MAX_CONNECTIONS),
        (
            "ut_decline_v2_nosmcrdev_unroutable_gid",
            Diagnosis::NO_SMC_R_DEVICE,
        ),
    ] {
        let mut client = ClientHandshake::new(side([9; 8], Mac::default(), 1, 2, "host"), START);
        give(&mut client, &vector(name));
        assert_eq!(
            client.poll_event(),
            Some(ClientEvent::Done(declined(Side::Peer, code))),
            "{name}"
        );
        assert_eq!(client.wanted(), 0);
    }
}

/// Without a UEID the kernel's first message is a Decline, and application data follows at once.
#[test]
fn a_kernel_client_that_declines_first_is_heard_and_its_data_is_left_alone() {
    let mut server = ServerHandshake::new(local(2, Ways::R_V2), START);
    let mut stream: VecDeque<u8> = vector("ut_kernel_client_first_msg_decline_no_ueid").into();
    stream.extend(HELLO);
    feed(&mut server, &mut stream);
    let done = ServerEvent::Done(declined(Side::Peer, Diagnosis::NO_SMC_DEVICE));
    assert_eq!(
        (server.poll_event(), server.poll_transmit()),
        (Some(done), None)
    );
    assert_eq!(Vec::from(stream), HELLO);
}

#[test]
fn our_first_decline_is_that_of_a_kernel_client() {
    let mut local = local(1, Ways::NONE);
    local.peer_id = PeerId([0xe3, 0x13, 0x2a, 0x61, 0xd6, 0x59, 0xe6, 0x10]);
    let mut client = ClientHandshake::new(local, START);
    let expected = vector("ut_kernel_client_first_msg_decline_no_ueid");
    assert_eq!(hex(&client.poll_transmit().unwrap()), hex(&expected));
}

/// A 28-byte Decline of version 2 makes the kernel give up the connection, and us too.
#[test]
fn a_decline_whose_length_and_version_differ_is_refused() {
    let mut client = ClientHandshake::new(local(1, Ways::R_V2), START);
    client.handle_bytes(&vector("bad_decline_version2_length28_rejected")[..8]);
    assert!(matches!(
        client.poll_event(),
        Some(ClientEvent::Done(Outcome::Failed(_)))
    ));
}

#[test]
fn proposals_that_a_kernel_server_has_accepted_are_accepted() {
    for (name, limits) in [
        (
            "us_proposal_v2r_accepted_ml1_mc32",
            Limits {
                max_connections: 32,
                max_links: 1,
            },
        ),
        (
            "us_proposal_v1r_v2r_with_prefix_accepted",
            Limits {
                max_connections: 255,
                max_links: 2,
            },
        ),
    ] {
        let mut server = ServerHandshake::new(side([9; 8], Mac::default(), 2, 2, "host"), START);
        give(&mut server, &vector(name));
        let Some(ServerEvent::Proposed(proposed)) = server.poll_event() else {
            panic!("{name}")
        };
        assert_eq!(
            (proposed.limits, proposed.version),
            (Some(limits), Version::V2),
            "{name}"
        );
    }
}

/// The side of smc-clc's examples of version 1.
fn side_v1(host: u8, subnets: Subnets) -> Local {
    let mut local = local(host, Ways::R_V1);
    let gid = "fe80::9a03:9bff:feab:cdef"
        .parse::<std::net::Ipv6Addr>()
        .unwrap();
    local.peer_id = PeerId([0xb1, 0xa0, 0x98, 0x03, 0x9b, 0xab, 0xcd, 0xef]);
    let smc_r = local.smc_r.as_mut().unwrap();
    smc_r.v1 = Some(Gid(gid.octets()));
    smc_r.mac = Mac([0x98, 0x03, 0x9b, 0xab, 0xcd, 0xef]);
    local.subnets = subnets;
    local
}

#[test]
fn a_whole_dialogue_of_version_1() {
    let loopback = Subnets {
        ipv4: vec![Ipv4Prefix::new([127, 0, 0, 1].into(), 8).unwrap()],
        ipv6: Vec::new(),
    };
    let (proposal, accept) = (
        vector("smc_clc_proposal_v1r_ipv4"),
        vector("smc_clc_accept_v1r_fc"),
    );
    let confirm = vector("smc_clc_confirm_v1r");

    let mut client = ClientHandshake::new(side_v1(1, loopback.clone()), START);
    assert_eq!(hex(&client.poll_transmit().unwrap()), hex(&proposal));
    let mut server = ServerHandshake::new(side_v1(2, loopback), START);
    give(&mut server, &proposal);
    let Some(ServerEvent::Proposed(proposed)) = server.poll_event() else {
        panic!()
    };
    assert_eq!(
        (proposed.version, proposed.release, proposed.eid),
        (Version::V1, None, None)
    );
    server
        .accept(
            OwnEnd::R {
                end: end_in(&accept),
                direct: true,
            },
            true,
            START,
        )
        .unwrap();
    assert_eq!(hex(&server.poll_transmit().unwrap()), hex(&accept));

    give(&mut client, &accept);
    assert!(matches!(
        client.poll_event(),
        Some(ClientEvent::Accepted(_))
    ));
    client
        .confirm(OwnEnd::R {
            end: end_in(&confirm),
            direct: true,
        })
        .unwrap();
    let Message::Confirm(Confirm::RV1 {
        end,
        first_contact: true,
    }) = sent(&mut client)
    else {
        panic!()
    };
    assert_eq!(end, end_in(&confirm));

    // This Confirm has no flag of first contact.
    give(&mut server, &confirm);
    let Some(ServerEvent::Confirmed(confirmed)) = server.poll_event() else {
        panic!()
    };
    assert!(confirmed.agreed.first_contact);
}

#[test]
fn a_proposal_of_version_1_over_ipv6() {
    let loopback = Ipv6Prefix::new(std::net::Ipv6Addr::LOCALHOST, 128).unwrap();
    let local = side_v1(
        2,
        Subnets {
            ipv4: Vec::new(),
            ipv6: vec![loopback],
        },
    );
    let mut server = ServerHandshake::new(local.clone(), START);
    let proposal = vector("smc_clc_proposal_v1r_ipv6");
    give(&mut server, &proposal);
    assert!(matches!(
        server.poll_event(),
        Some(ServerEvent::Proposed(_))
    ));
    let peer_id = PeerId([0x39, 0x44, 0x98, 0x03, 0x9b, 0xab, 0xcd, 0xef]);
    let mut client = ClientHandshake::new(Local { peer_id, ..local }, START);
    assert_eq!(hex(&client.poll_transmit().unwrap()), hex(&proposal));
}

#[test]
fn a_decline_of_version_1_is_heard() {
    let mut client = ClientHandshake::new(local(1, Ways::R_V1), START);
    give(&mut client, &vector("smc_clc_decline_v1"));
    let done = ClientEvent::Done(declined(Side::Peer, Diagnosis::NO_SMC_DEVICE));
    assert_eq!(client.poll_event(), Some(done));
}

/// A kernel client's Confirm and a kernel server's Accept have first contact in one and not in the other: no match.
#[test]
fn a_confirm_of_reuse_does_not_answer_a_first_contact() {
    let (mut server, own) = server_of(&vector("single_00010_clc_accept_v2r_fc"), 2, "virtme-ng");
    give(&mut server, &vector("kk_00008_clc_proposal_v2r"));
    server.accept(own, true, START).unwrap();
    let Message::Accept(Accept::RV2 { .. }) = sent(&mut server) else {
        panic!()
    };
    give(&mut server, &vector("single_00045_clc_confirm_v2r_reuse"));
    let Message::Decline(decline) = sent(&mut server) else {
        panic!()
    };
    assert_eq!(
        (decline.diagnosis, decline.version()),
        (Diagnosis::MODE_MISMATCH, Version::V2)
    );
}
