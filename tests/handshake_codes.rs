//! Each diagnosis code that the machines send by themselves, and all that they pass on.

mod handshake_support;

use handshake_support::*;
use smcfast::proto::handshake::{
    ClientEvent, ClientHandshake, Declined, Limits, Local, Outcome, Path, ServerEvent,
    ServerHandshake, Side,
};
use smcfast::wire::clc::{
    Accept, Confirm, Decline, Diagnosis, Features, Gid, Message, Offer, PeerId, Proposal, Release,
    Reply, V21, Version,
};

/// What the server says to a client that proposes what `local` has, after a change of the message.
fn server_declines(server: Local, client: &Local, change: impl Fn(&mut Proposal)) -> Decline {
    let mut proposing = ClientHandshake::new(client.clone(), START);
    let Message::Proposal(mut proposal) = sent(&mut proposing) else {
        panic!("no Proposal")
    };
    change(&mut proposal);
    let mut server = ServerHandshake::new(server, START);
    give(&mut server, &proposal.encode());
    let Message::Decline(decline) = sent(&mut server) else {
        panic!("no Decline")
    };
    assert_eq!(
        server.poll_event(),
        Some(ServerEvent::Done(declined(Side::Us, decline.diagnosis)))
    );
    assert_eq!((server.wanted(), server.poll_timeout()), (0, None));
    assert_eq!(decline.version(), proposal.offer.version());
    assert_eq!(decline.peer_id, PeerId([2; 8]));
    decline
}

fn unchanged(_: &mut Proposal) {}

#[test]
fn no_ism_v2() {
    let decline = server_declines(local(2, Ways::R_V2), &local(1, Ways::D_V2), unchanged);
    assert_eq!(decline.diagnosis, Diagnosis::NO_ISM_V2);
}

#[test]
fn no_smc_d_v2_device_on_the_clients_channels() {
    let mut server = local(2, Ways::D_V2);
    server.smc_d.as_mut().unwrap().devices =
        smcfast::wire::clc::IsmList::new(vec![ism(2, 0xff54)]).unwrap();
    let decline = server_declines(server, &local(1, Ways::D_V2), unchanged);
    assert_eq!(decline.diagnosis, Diagnosis::NO_SMC_D_V2_DEVICE);
}

#[test]
fn no_seid_and_no_common_ueid() {
    let mut server = local(2, Ways::D_V2);
    server.eids = eids(&["OTHER"]);
    let mut client = local(1, Ways::D_V2);
    client.smc_d.as_mut().unwrap().seid = Some(eid("SYSTEM"));
    let decline = server_declines(server.clone(), &client, unchanged);
    assert_eq!(decline.diagnosis, Diagnosis::NO_SEID);
    server.smc_d.as_mut().unwrap().seid = Some(eid("SYSTEM2"));
    assert_eq!(
        server_declines(server, &client, unchanged).diagnosis,
        Diagnosis::NO_SEID
    );
}

#[test]
fn no_ueid_in_the_proposal() {
    for ways in [Ways::R_V2, Ways::D_V2] {
        let decline = server_declines(local(2, ways), &local(1, ways), |proposal| {
            let Offer::V2(offer) = &mut proposal.offer else {
                panic!()
            };
            offer.eids = eids(&[]);
        });
        assert_eq!(decline.diagnosis, Diagnosis::NO_UEID);
    }
}

#[test]
fn prefix_mismatch() {
    for ways in [Ways::R_V1, Ways::D_V1] {
        let mut server = local(2, ways);
        server.subnets = subnet([10, 9, 1, 2]);
        let decline = server_declines(server, &local(1, ways), unchanged);
        assert_eq!(
            (decline.diagnosis, decline.version()),
            (Diagnosis::PREFIX_MISMATCH, Version::V1)
        );
    }
}

#[test]
fn no_smc_d_device() {
    let decline = server_declines(local(2, Ways::R_V1), &local(1, Ways::D_V1), unchanged);
    assert_eq!(decline.diagnosis, Diagnosis::NO_SMC_D_DEVICE);
}

#[test]
fn no_smc_r_device() {
    for ways in [Ways::R_V1, Ways::R_V2] {
        let decline = server_declines(local(2, Ways::D_V2), &local(1, ways), unchanged);
        assert_eq!(decline.diagnosis, Diagnosis::NO_SMC_R_DEVICE);
    }
}

#[test]
fn no_smc_r_device_for_a_gid_that_is_no_ipv4_address() {
    let mut client = local(1, Ways::R_V2);
    client.smc_r.as_mut().unwrap().v2 = Some(Gid([0x20; 16]));
    let decline = server_declines(local(2, Ways::R_V2), &client, unchanged);
    assert_eq!(decline.diagnosis, Diagnosis::NO_SMC_R_DEVICE);
}

/// What a kernel says too when no enterprise id fits.
#[test]
fn no_smc_device_for_strange_enterprise_ids() {
    let mut client = local(1, Ways::R_V2);
    client.eids = eids(&["OTHER"]);
    let decline = server_declines(local(2, Ways::R_V2), &client, unchanged);
    assert_eq!(decline.diagnosis, Diagnosis::NO_SMC_DEVICE);
}

#[test]
fn no_smc_device_at_the_client() {
    // A device of version 2 that no enterprise id goes with.
    let mut nameless = local(1, Ways::D_V2);
    nameless.eids = eids(&[]);
    let mut unnamed = local(1, Ways::R_V2);
    unnamed.eids = eids(&[]);
    let mut homeless = local(1, Ways::R_V1);
    homeless.subnets = Default::default();
    for (client, version) in [
        (local(1, Ways::NONE), Version::V1),
        (nameless, Version::V2),
        (unnamed, Version::V1),
        (homeless, Version::V1),
    ] {
        let mut client = ClientHandshake::new(client, START);
        let Message::Decline(decline) = sent(&mut client) else {
            panic!()
        };
        assert_eq!(
            decline,
            Decline::new(version, PeerId([1; 8]), Diagnosis::NO_SMC_DEVICE)
        );
        let done = ClientEvent::Done(declined(Side::Us, Diagnosis::NO_SMC_DEVICE));
        assert_eq!(
            (client.poll_event(), client.wanted(), client.poll_timeout()),
            (Some(done), 0, None)
        );
    }
}

#[test]
fn max_connections_of_the_proposal() {
    for (least, declined) in [(15, true), (16, false), (0, true)] {
        let mut client = local(1, Ways::R_V2);
        client.smc_r.as_mut().unwrap().limits.max_connections = least;
        if declined {
            let decline = server_declines(local(2, Ways::R_V2), &client, unchanged);
            assert_eq!(decline.diagnosis, Diagnosis::MAX_CONNECTIONS);
        } else {
            let ended = run(
                &mut ClientHandshake::new(client, START),
                &mut ServerHandshake::new(local(2, Ways::R_V2), START),
            );
            assert!(matches!(ended.client, Outcome::Established(_)));
        }
    }
}

#[test]
fn max_links_of_the_proposal() {
    let mut client = local(1, Ways::R_V2);
    client.smc_r.as_mut().unwrap().limits.max_links = 0;
    let decline = server_declines(local(2, Ways::R_V2), &client, unchanged);
    assert_eq!(decline.diagnosis, Diagnosis::MAX_LINKS);
}

/// An Accept of our own server for a client with `ways`.
fn accept_for(ways: Ways, first_contact: bool) -> (ClientHandshake, Accept) {
    let mut client = ClientHandshake::new(local(1, ways), START);
    let mut server = ServerHandshake::new(local(2, ways), START);
    give(&mut server, &client.poll_transmit().unwrap());
    let Some(ServerEvent::Proposed(proposed)) = server.poll_event() else {
        panic!()
    };
    server
        .accept(own_end(2, proposed.own.path()), first_contact, START)
        .unwrap();
    let Message::Accept(accept) = sent(&mut server) else {
        panic!()
    };
    (client, accept)
}

/// What a client says to a changed Accept.
fn client_declines(ways: Ways, change: impl Fn(&mut Accept)) -> Decline {
    let (mut client, mut accept) = accept_for(ways, true);
    change(&mut accept);
    give(&mut client, &accept.encode());
    let Message::Decline(decline) = sent(&mut client) else {
        panic!("no Decline")
    };
    assert_eq!(
        client.poll_event(),
        Some(ClientEvent::Done(declined(Side::Us, decline.diagnosis)))
    );
    assert_eq!((client.wanted(), client.poll_timeout()), (0, None));
    assert_eq!(
        (decline.version(), decline.peer_id),
        (accept.version(), PeerId([1; 8]))
    );
    decline
}

#[test]
fn mode_mismatch_for_a_way_that_was_not_proposed() {
    let all = [Ways::D_V2, Ways::D_V1, Ways::R_V2, Ways::R_V1];
    for proposed in all {
        for accepted in all {
            if proposed != accepted {
                let (_, accept) = accept_for(accepted, true);
                let decline = client_declines(proposed, |changed| *changed = accept.clone());
                assert_eq!(
                    decline.diagnosis,
                    Diagnosis::MODE_MISMATCH,
                    "{proposed:?}, {accepted:?}"
                );
            }
        }
    }
}

#[test]
fn mode_mismatch_for_an_enterprise_id_that_was_not_proposed() {
    for ways in [Ways::D_V2, Ways::R_V2] {
        let decline = client_declines(ways, |accept| match accept {
            Reply::RV2 { eid: agreed, .. } | Reply::DV2 { eid: agreed, .. } => {
                *agreed = eid("OTHER")
            }
            _ => panic!(),
        });
        assert_eq!(decline.diagnosis, Diagnosis::MODE_MISMATCH);
    }
}

#[test]
fn no_smc_d_v2_device_on_the_servers_channel() {
    let decline = client_declines(Ways::D_V2, |accept| {
        let Reply::DV2 { device, .. } = accept else {
            panic!()
        };
        *device = ism(2, 0xff54);
    });
    assert_eq!(decline.diagnosis, Diagnosis::NO_SMC_D_V2_DEVICE);
}

/// Changes what release 1 adds to the first contact extension of an Accept.
fn change_terms(accept: &mut Accept, change: impl Fn(&mut V21)) {
    match accept {
        Reply::RV2 {
            first_contact: Some(contact),
            ..
        }
        | Reply::DV2 {
            first_contact: Some(contact),
            ..
        } => {
            change(contact.v2_1.as_mut().unwrap());
        }
        _ => panic!("no terms"),
    }
}

#[test]
fn release_above_what_was_proposed() {
    for ways in [Ways::D_V2, Ways::R_V2] {
        let decline = client_declines(ways, |accept| {
            change_terms(accept, |terms| {
                *terms = terms.with_release(Release::new(2).unwrap()).unwrap()
            });
        });
        assert_eq!(decline.diagnosis, Diagnosis::RELEASE);
    }
}

#[test]
fn max_connections_of_the_accept() {
    for max_connections in [0, 15] {
        let decline = client_declines(Ways::R_V2, |accept| {
            change_terms(accept, |terms| terms.max_connections = max_connections);
        });
        assert_eq!(decline.diagnosis, Diagnosis::MAX_CONNECTIONS);
    }
}

#[test]
fn max_links_of_the_accept() {
    for max_links in [0, 3] {
        let decline = client_declines(Ways::R_V2, |accept| {
            change_terms(accept, |terms| terms.max_links = max_links);
        });
        assert_eq!(decline.diagnosis, Diagnosis::MAX_LINKS);
    }
}

/// The server may lower the limits, and the Confirm repeats what it says.
#[test]
fn lowered_limits_are_repeated() {
    let (mut client, mut accept) = accept_for(Ways::R_V2, true);
    change_terms(&mut accept, |terms| {
        (terms.max_connections, terms.max_links) = (16, 1)
    });
    give(&mut client, &accept.encode());
    let Some(ClientEvent::Accepted(accepted)) = client.poll_event() else {
        panic!()
    };
    assert_eq!(
        accepted.agreed.limits,
        Some(Limits {
            max_connections: 16,
            max_links: 1
        })
    );
    client.confirm(own_end(1, Path::R)).unwrap();
    let Message::Confirm(Reply::RV2 {
        first_contact: Some(contact),
        ..
    }) = sent(&mut client)
    else {
        panic!()
    };
    let terms = contact.terms.v2_1.unwrap();
    assert_eq!(
        (terms.max_connections, terms.max_links, terms.features),
        (16, 1, Features::EMULATED_ISM)
    );
}

/// What a server says to a changed Confirm.
fn confirm_declined(ways: Ways, change: impl Fn(&mut Confirm)) -> Diagnosis {
    let mut client = ClientHandshake::new(local(1, ways), START);
    let mut server = ServerHandshake::new(local(2, ways), START);
    give(&mut server, &client.poll_transmit().unwrap());
    let Some(ServerEvent::Proposed(proposed)) = server.poll_event() else {
        panic!()
    };
    server
        .accept(own_end(2, proposed.own.path()), true, START)
        .unwrap();
    give(&mut client, &server.poll_transmit().unwrap());
    client.confirm(own_end(1, proposed.own.path())).unwrap();
    let Message::Confirm(mut confirm) = sent(&mut client) else {
        panic!()
    };
    change(&mut confirm);
    give(&mut server, &confirm.encode());
    let Message::Decline(decline) = sent(&mut server) else {
        panic!("no Decline")
    };
    assert_eq!(
        server.poll_event(),
        Some(ServerEvent::Done(declined(Side::Us, decline.diagnosis)))
    );
    assert_eq!(
        (decline.version(), server.wanted(), server.poll_timeout()),
        (proposed.version, 0, None)
    );
    decline.diagnosis
}

fn change_repeated(confirm: &mut Confirm, change: impl Fn(&mut V21)) {
    match confirm {
        Reply::RV2 {
            first_contact: Some(contact),
            ..
        } => change(contact.terms.v2_1.as_mut().unwrap()),
        Reply::DV2 {
            first_contact: Some(contact),
            ..
        } => change(contact.v2_1.as_mut().unwrap()),
        _ => panic!("no terms"),
    }
}

#[test]
fn release_of_the_confirm() {
    for ways in [Ways::D_V2, Ways::R_V2] {
        let later =
            |terms: &mut V21| *terms = terms.with_release(Release::new(2).unwrap()).unwrap();
        assert_eq!(
            confirm_declined(ways, |confirm| change_repeated(confirm, later)),
            Diagnosis::RELEASE
        );
    }
}

#[test]
fn max_connections_of_the_confirm() {
    let less =
        |confirm: &mut Confirm| change_repeated(confirm, |terms| terms.max_connections = 254);
    assert_eq!(
        confirm_declined(Ways::R_V2, less),
        Diagnosis::MAX_CONNECTIONS
    );
}

#[test]
fn max_links_of_the_confirm() {
    let less = |confirm: &mut Confirm| change_repeated(confirm, |terms| terms.max_links = 1);
    assert_eq!(confirm_declined(Ways::R_V2, less), Diagnosis::MAX_LINKS);
}

#[test]
fn mode_mismatch_for_another_confirm() {
    let another_id = |confirm: &mut Confirm| match confirm {
        Reply::RV2 { eid: agreed, .. } | Reply::DV2 { eid: agreed, .. } => *agreed = eid("OTHER"),
        _ => panic!(),
    };
    let reuse = |confirm: &mut Confirm| match confirm {
        Reply::RV2 { first_contact, .. } => *first_contact = None,
        Reply::DV2 { first_contact, .. } => *first_contact = None,
        _ => panic!(),
    };
    for ways in [Ways::R_V2, Ways::D_V2] {
        assert_eq!(confirm_declined(ways, another_id), Diagnosis::MODE_MISMATCH);
        assert_eq!(confirm_declined(ways, reuse), Diagnosis::MODE_MISMATCH);
    }
    let another_device = |confirm: &mut Confirm| match confirm {
        Reply::DV2 { device, .. } => *device = ism(3, CHID),
        Reply::DV1 { gid, .. } => *gid += 1,
        _ => panic!(),
    };
    for ways in [Ways::D_V2, Ways::D_V1] {
        assert_eq!(
            confirm_declined(ways, another_device),
            Diagnosis::MODE_MISMATCH
        );
    }
    let another_way = |confirm: &mut Confirm| match *confirm {
        Reply::RV2 { end, .. } => {
            *confirm = Reply::RV1 {
                end,
                first_contact: true,
            }
        }
        Reply::DV2 { device, end, .. } => {
            *confirm = Reply::DV1 {
                gid: device.gid(),
                end,
                first_contact: true,
            }
        }
        _ => panic!(),
    };
    for ways in [Ways::R_V2, Ways::D_V2] {
        assert_eq!(
            confirm_declined(ways, another_way),
            Diagnosis::MODE_MISMATCH
        );
    }
}

/// A Decline of the server has the version of the Proposal, also when an older one was agreed on; one of the client has
/// that of the Accept.
#[test]
fn declines_have_the_version_of_the_message_that_they_answer() {
    let client = Ways {
        r_v2: true,
        ..Ways::R_V1
    };
    let dialogue = || {
        let mut client = ClientHandshake::new(local(1, client), START);
        let mut server = ServerHandshake::new(local(2, Ways::R_V1), START);
        give(&mut server, &client.poll_transmit().unwrap());
        server.accept(own_end(2, Path::R), true, START).unwrap();
        give(&mut client, &server.poll_transmit().unwrap());
        (client, server)
    };
    let version_of = |message| match message {
        Message::Decline(decline) => decline.version(),
        other => panic!("{other:?}"),
    };

    let (mut client, _) = dialogue();
    client.decline(Diagnosis::QUEUE_PAIR).unwrap();
    assert_eq!(version_of(sent(&mut client)), Version::V1);

    let (mut client, mut server) = dialogue();
    client.confirm(own_end(1, Path::R)).unwrap();
    give(&mut server, &client.poll_transmit().unwrap());
    server.decline(Diagnosis::QUEUE_PAIR).unwrap();
    client.decline(Diagnosis::QUEUE_PAIR).unwrap();
    assert_eq!(
        (version_of(sent(&mut client)), version_of(sent(&mut server))),
        (Version::V1, Version::V2)
    );

    let (mut client, mut server) = dialogue();
    client.confirm(own_end(1, Path::R)).unwrap();
    let Message::Confirm(Reply::RV1 { end, .. }) = sent(&mut client) else {
        panic!()
    };
    let other = Confirm::RV2 {
        end,
        eid: eid("COMMON"),
        first_contact: None,
    };
    give(&mut server, &other.encode());
    assert_eq!(version_of(sent(&mut server)), Version::V2);
}

/// Only a link group that was to be used again can be out of sync.
#[test]
fn synchronization_error() {
    for (first_contact, diagnosis, flag) in [
        (false, Diagnosis::SYNCHRONIZATION, true),
        (true, Diagnosis::SYNCHRONIZATION, false),
        (false, Diagnosis::NO_SERVER_LINK, false),
    ] {
        for ways in [Ways::R_V2, Ways::R_V1, Ways::D_V2] {
            let (mut client, accept) = accept_for(ways, first_contact);
            give(&mut client, &accept.encode());
            assert!(matches!(
                client.poll_event(),
                Some(ClientEvent::Accepted(_))
            ));
            client.decline(diagnosis).unwrap();
            let Message::Decline(decline) = sent(&mut client) else {
                panic!()
            };
            assert_eq!((decline.diagnosis, decline.out_of_sync), (diagnosis, flag));
            assert_eq!(decline.version(), accept.version());
            let done = Declined {
                by: Side::Us,
                diagnosis,
                out_of_sync: flag,
            };
            assert_eq!(
                client.poll_event(),
                Some(ClientEvent::Done(Outcome::Declined(done)))
            );
        }
    }
}

/// A server whose client is out of sync has to end the link group; a client that says so at first contact is wrong,
/// and nothing is ended.
#[test]
fn synchronization_error_at_the_server() {
    for first_contact in [false, true] {
        let mut client = ClientHandshake::new(local(1, Ways::R_V2), START);
        let mut server = ServerHandshake::new(local(2, Ways::R_V2), START);
        give(&mut server, &client.poll_transmit().unwrap());
        assert!(matches!(
            server.poll_event(),
            Some(ServerEvent::Proposed(_))
        ));
        server
            .accept(own_end(2, Path::R), first_contact, START)
            .unwrap();
        let decline = Decline::new(Version::V2, PeerId([1; 8]), Diagnosis::SYNCHRONIZATION);
        give(
            &mut server,
            &Decline {
                out_of_sync: true,
                ..decline
            }
            .encode(),
        );
        let done = Declined {
            by: Side::Peer,
            diagnosis: Diagnosis::SYNCHRONIZATION,
            out_of_sync: !first_contact,
        };
        assert_eq!(
            server.poll_event(),
            Some(ServerEvent::Done(Outcome::Declined(done)))
        );
    }
}

/// The caller has codes of its own, such as those for memory or queue pairs.
#[test]
fn every_code_of_the_caller_is_sent() {
    for &diagnosis in Diagnosis::ALL {
        let mut client = ClientHandshake::new(local(1, Ways::D_V2), START);
        let mut server = ServerHandshake::new(local(2, Ways::D_V2), START);
        give(&mut server, &client.poll_transmit().unwrap());
        assert!(matches!(
            server.poll_event(),
            Some(ServerEvent::Proposed(_))
        ));
        server.decline(diagnosis).unwrap();
        give(&mut client, &server.poll_transmit().unwrap());
        assert_eq!(
            client.poll_event(),
            Some(ClientEvent::Done(declined(Side::Peer, diagnosis)))
        );
        assert_eq!(
            server.poll_event(),
            Some(ServerEvent::Done(declined(Side::Us, diagnosis)))
        );
    }
}

/// Also codes that nobody has defined.
#[test]
fn every_code_is_reported_as_it_came() {
    let codes = Diagnosis::ALL
        .iter()
        .copied()
        .chain([Diagnosis(0), Diagnosis(0xffff_ffff)]);
    for diagnosis in codes {
        for version in [Version::V1, Version::V2] {
            let bytes = Decline::new(version, PeerId::default(), diagnosis).encode();
            let mut client = ClientHandshake::new(local(1, Ways::D_V2), START);
            give(&mut client, &bytes);
            assert_eq!(
                client.poll_event(),
                Some(ClientEvent::Done(declined(Side::Peer, diagnosis)))
            );
            let mut server = ServerHandshake::new(local(2, Ways::D_V2), START);
            give(&mut server, &bytes);
            assert_eq!(
                server.poll_event(),
                Some(ServerEvent::Done(declined(Side::Peer, diagnosis)))
            );
        }
    }
}
