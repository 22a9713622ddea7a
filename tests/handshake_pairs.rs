//! Our client against our server, for every combination of what they have.

mod handshake_support;

use handshake_support::*;
use smcfast::proto::handshake::{
    Accepted, Agreed, ClientEvent, ClientHandshake, Confirmed, Device, Limits, Local, Outcome,
    Path, PeerEnd, Proposed, ServerEvent, ServerHandshake, Side, Subnets,
};
use smcfast::wire::clc::{Diagnosis, Ipv6Prefix, Ism, IsmList, Message, Release, Reply, Version};

fn shake(client: Local, server: Local) -> Ended {
    run(
        &mut ClientHandshake::new(client, START),
        &mut ServerHandshake::new(server, START),
    )
}

fn established(version: Version, path: Path) -> Outcome {
    let v2 = version == Version::V2;
    Outcome::Established(Agreed {
        version,
        path,
        first_contact: true,
        release: v2.then_some(Release::V2_1),
        eid: v2.then(|| eid("COMMON")),
        limits: (v2 && path == Path::R).then_some(Limits {
            max_connections: 255,
            max_links: 2,
        }),
    })
}

/// What should become of it: the first way of this order that both have, or the first obstacle.
fn expected(client: Ways, server: Ways, same_subnet: bool) -> Result<(Version, Path), Diagnosis> {
    let ways = [
        (
            client.d_v2,
            server.d_v2,
            Version::V2,
            Path::D,
            Diagnosis::NO_ISM_V2,
        ),
        (
            client.d_v1 || client.r_v1,
            false,
            Version::V1,
            Path::D,
            Diagnosis::PREFIX_MISMATCH,
        ),
        (
            client.d_v1,
            server.d_v1,
            Version::V1,
            Path::D,
            Diagnosis::NO_SMC_D_DEVICE,
        ),
        (
            client.r_v2,
            server.r_v2,
            Version::V2,
            Path::R,
            Diagnosis::NO_SMC_R_DEVICE,
        ),
        (
            client.r_v1,
            server.r_v1,
            Version::V1,
            Path::R,
            Diagnosis::NO_SMC_R_DEVICE,
        ),
    ];
    let mut first = None;
    for (offered, there, version, path, obstacle) in ways {
        let about_prefix = obstacle == Diagnosis::PREFIX_MISMATCH;
        if !offered
            || (about_prefix && same_subnet)
            || (!about_prefix && version == Version::V1 && !same_subnet)
        {
            continue;
        }
        if there {
            return Ok((version, path));
        }
        first = first.or(Some(obstacle));
    }
    Err(first.unwrap_or(Diagnosis::NO_SMC_DEVICE))
}

#[test]
fn every_combination_of_devices() {
    let mut established_count = 0;
    for (client, server) in
        Ways::all().flat_map(|client| Ways::all().map(move |server| (client, server)))
    {
        for same_subnet in [true, false] {
            let mut there = local(2, server);
            if !same_subnet {
                there.subnets = subnet([10, 9, 1, 2]);
            }
            let ended = shake(local(1, client), there);
            let case = format!("client {client:?}, server {server:?}, same subnet: {same_subnet}");
            match expected(client, server, same_subnet) {
                Ok((version, path)) => {
                    established_count += 1;
                    assert_eq!(ended.client, established(version, path), "{case}");
                    assert_eq!(ended.server, ended.client, "{case}");
                }
                Err(diagnosis) => {
                    let offered = client != Ways::NONE;
                    let (by_client, by_server) = if offered {
                        (Side::Peer, Side::Us)
                    } else {
                        (Side::Us, Side::Peer)
                    };
                    assert_eq!(ended.client, declined(by_client, diagnosis), "{case}");
                    assert_eq!(ended.server, declined(by_server, diagnosis), "{case}");
                }
            }
        }
    }
    // All but those without a common way: 3 of 4 cases for each of four ways, or, for strangers, of version 2's two.
    assert_eq!(established_count, (256 - 81) + 16 * (16 - 9));
}

#[test]
fn both_learn_of_the_other_end() {
    for (ways, path) in [
        (Ways::D_V2, Path::D),
        (Ways::D_V1, Path::D),
        (Ways::R_V2, Path::R),
        (Ways::R_V1, Path::R),
    ] {
        let mut client = ClientHandshake::new(local(1, ways), START);
        let mut server = ServerHandshake::new(local(2, ways), START);
        give(&mut server, &client.poll_transmit().unwrap());
        let Some(ServerEvent::Proposed(proposed)) = server.poll_event() else {
            panic!("{ways:?}")
        };
        assert_eq!(
            (proposed.peer_id.0, proposed.mac.0[5], proposed.own.path()),
            ([1; 8], 1, path)
        );
        server.accept(own_end(2, path), true, START).unwrap();
        give(&mut client, &server.poll_transmit().unwrap());
        let Some(ClientEvent::Accepted(Accepted { peer, contact, .. })) = client.poll_event()
        else {
            panic!("{ways:?}")
        };
        client.confirm(own_end(1, path)).unwrap();
        give(&mut server, &client.poll_transmit().unwrap());
        let Some(ServerEvent::Confirmed(confirmed)) = server.poll_event() else {
            panic!("{ways:?}")
        };
        let v2 = proposed.version == Version::V2;
        let direct =
            contact.map(|contact| (contact.direct, contact.host_name.text().map(str::to_owned)));
        let told = v2.then(|| (path == Path::R, Some("host".to_owned())));
        assert_eq!(direct, told, "{ways:?}");
        assert_eq!(
            confirmed.contact.map(|contact| contact.direct),
            v2.then_some(path == Path::R)
        );
        assert_eq!(confirmed.gids.len(), usize::from(ways == Ways::R_V2));
        check_ends(ways, &proposed, &peer, &confirmed);
    }
}

fn check_ends(ways: Ways, proposed: &Proposed, server: &PeerEnd, confirmed: &Confirmed) {
    let client = &confirmed.peer;
    match (ways, proposed.own, proposed.client) {
        (Ways::D_V2, Device::D(own), Device::D(theirs)) => {
            assert_eq!((own, theirs), (ism(2, CHID), ism(1, CHID)));
            assert!(
                matches!(server, PeerEnd::DV2 { device, end } if *device == own && end.token == 0x7002)
            );
            assert!(
                matches!(client, PeerEnd::DV2 { device, end } if *device == theirs && end.token == 0x7001)
            );
        }
        (Ways::D_V1, Device::D(own), Device::D(theirs)) => {
            assert_eq!((own.gid(), theirs.gid()), (0x1502, 0x1501));
            assert!(matches!(server, PeerEnd::DV1 { gid: 0x1502, end } if end.token == 0x7002));
            assert!(matches!(client, PeerEnd::DV1 { gid: 0x1501, end } if end.token == 0x7001));
        }
        (_, Device::R(own), Device::R(theirs)) => {
            let gid = if ways == Ways::R_V2 { roce_v2 } else { roce_v1 };
            assert_eq!((own, theirs), (gid(2), gid(1)));
            assert!(matches!(server, PeerEnd::R(end) if end.rkey == 0x302));
            assert!(matches!(client, PeerEnd::R(end) if end.rkey == 0x301));
        }
        _ => panic!("{ways:?}: {proposed:?}"),
    }
}

#[test]
fn a_link_group_can_be_used_again() {
    for (ways, path) in [
        (Ways::D_V2, Path::D),
        (Ways::D_V1, Path::D),
        (Ways::R_V2, Path::R),
        (Ways::R_V1, Path::R),
    ] {
        let mut client = ClientHandshake::new(local(1, ways), START);
        let mut server = ServerHandshake::new(local(2, ways), START);
        give(&mut server, &client.poll_transmit().unwrap());
        assert!(matches!(
            server.poll_event(),
            Some(ServerEvent::Proposed(_))
        ));
        server.accept(own_end(2, path), false, START).unwrap();
        give(&mut client, &server.poll_transmit().unwrap());
        let Some(ClientEvent::Accepted(Accepted {
            agreed, contact, ..
        })) = client.poll_event()
        else {
            panic!("{ways:?}")
        };
        assert!(
            !agreed.first_contact
                && agreed.release.is_none()
                && agreed.limits.is_none()
                && contact.is_none()
        );
        client.confirm(own_end(1, path)).unwrap();
        give(&mut server, &client.poll_transmit().unwrap());
        let Some(ServerEvent::Confirmed(confirmed)) = server.poll_event() else {
            panic!("{ways:?}")
        };
        assert_eq!(confirmed.agreed, agreed);
    }
}

#[test]
fn the_first_enterprise_id_of_the_client_that_the_server_knows_is_taken() {
    for (theirs, ours, common) in [
        (&["A", "B", "C"] as &[&str], &["C", "B"] as &[&str], "B"),
        (&["C", "B", "A"], &["B", "C"], "C"),
        (&["X", "A"], &["A"], "A"),
    ] {
        for ways in [Ways::R_V2, Ways::D_V2] {
            let mut client = local(1, ways);
            client.eids = eids(theirs);
            let mut server = local(2, ways);
            server.eids = eids(ours);
            let Outcome::Established(agreed) = shake(client, server).client else {
                panic!()
            };
            assert_eq!(agreed.eid, Some(eid(common)));
        }
    }
}

#[test]
fn the_id_of_the_system_counts_for_smc_d_after_those_of_users() {
    let seid = Some(eid("SYSTEM"));
    for (user, common) in [("COMMON", "COMMON"), ("OTHER", "SYSTEM")] {
        let mut client = local(1, Ways::D_V2);
        client.smc_d.as_mut().unwrap().seid = seid;
        let mut server = local(2, Ways::D_V2);
        server.smc_d.as_mut().unwrap().seid = seid;
        server.eids = eids(&[user]);
        let Outcome::Established(agreed) = shake(client, server).server else {
            panic!()
        };
        assert_eq!(agreed.eid, Some(eid(common)));
    }
}

#[test]
fn the_system_id_alone_will_do_for_smc_d() {
    let mut sides = [1, 2].map(|host| local(host, Ways::D_V2));
    for side in &mut sides {
        side.eids = eids(&[]);
        side.smc_d.as_mut().unwrap().seid = Some(eid("SYSTEM"));
    }
    let [client, server] = sides;
    let Outcome::Established(agreed) = shake(client, server).client else {
        panic!()
    };
    assert_eq!(agreed.eid, Some(eid("SYSTEM")));
}

#[test]
fn the_lesser_release_and_limits_count() {
    let limits = |max_connections, max_links| Limits {
        max_connections,
        max_links,
    };
    for (theirs, ours, least) in [
        (limits(255, 2), limits(32, 1), limits(32, 1)),
        (limits(16, 1), limits(255, 2), limits(16, 1)),
        (limits(100, 1), limits(50, 2), limits(50, 1)),
    ] {
        let mut client = local(1, Ways::R_V2);
        client.smc_r.as_mut().unwrap().limits = theirs;
        let mut server = local(2, Ways::R_V2);
        server.smc_r.as_mut().unwrap().limits = ours;
        let ended = shake(client, server);
        let Outcome::Established(agreed) = ended.client else {
            panic!()
        };
        assert_eq!((agreed.limits, ended.server), (Some(least), ended.client));
    }
}

#[test]
fn release_0_has_no_limits() {
    for (theirs, ours) in [(0, 1), (1, 0), (0, 0)] {
        for ways in [Ways::R_V2, Ways::D_V2] {
            let mut client = local(1, ways);
            client.release = Release::new(theirs).unwrap();
            client.smc_r.as_mut().unwrap().limits = Limits {
                max_connections: 1,
                max_links: 0,
            };
            let mut server = local(2, ways);
            server.release = Release::new(ours).unwrap();
            let ended = shake(client, server);
            let Outcome::Established(agreed) = ended.client else {
                panic!("{ended:?}")
            };
            assert_eq!((agreed.release, agreed.limits), (Some(Release::V2_0), None));
            assert_eq!(ended.server, ended.client);
        }
    }
}

#[test]
fn a_later_release_is_answered_with_ours() {
    let mut client = local(1, Ways::R_V2);
    client.release = Release::new(15).unwrap();
    let Outcome::Established(agreed) = shake(client, local(2, Ways::R_V2)).client else {
        panic!()
    };
    assert_eq!(agreed.release, Some(Release::V2_1));
}

#[test]
fn a_confirm_carries_the_lesser_mtu() {
    use smcfast::proto::handshake::OwnEnd;
    use smcfast::wire::clc::Mtu;
    for ways in [Ways::R_V1, Ways::R_V2] {
        for (theirs, ours) in [(Mtu::B4096, Mtu::B1024), (Mtu::B512, Mtu::B2048)] {
            let end = |host, mtu| match own_end(host, Path::R) {
                OwnEnd::R { end, direct } => OwnEnd::R {
                    end: smcfast::wire::clc::SmcR { mtu, ..end },
                    direct,
                },
                d => d,
            };
            let mut client = ClientHandshake::new(local(1, ways), START);
            let mut server = ServerHandshake::new(local(2, ways), START);
            give(&mut server, &client.poll_transmit().unwrap());
            server.accept(end(2, ours), true, START).unwrap();
            give(&mut client, &server.poll_transmit().unwrap());
            client.confirm(end(1, theirs)).unwrap();
            let (Message::Confirm(Reply::RV1 { end, .. })
            | Message::Confirm(Reply::RV2 { end, .. })) = sent(&mut client)
            else {
                panic!()
            };
            assert_eq!(end.mtu, theirs.min(ours));
        }
    }
}

#[test]
fn devices_meet_on_their_channel() {
    let with = |host, channels: &[u16]| {
        let mut local = local(host, Ways::D_V2);
        let device = |&chid: &u16| match Ism::native(u64::from(host), chid) {
            Some(native) => native,
            None => ism(host, chid),
        };
        local.smc_d.as_mut().unwrap().devices =
            IsmList::new(channels.iter().map(device).collect()).unwrap();
        local
    };
    let mut client = ClientHandshake::new(with(1, &[0xff01, 0x0007, 0xff53]), START);
    let mut server = ServerHandshake::new(with(2, &[0xff53, 0x0007]), START);
    give(&mut server, &client.poll_transmit().unwrap());
    let Some(ServerEvent::Proposed(proposed)) = server.poll_event() else {
        panic!()
    };
    let native = |host| Device::D(Ism::native(host, 7).unwrap());
    assert_eq!((proposed.own, proposed.client), (native(2), native(1)));
}

#[test]
fn prefixes_of_ipv6_meet_as_well() {
    let prefix = |text: &str, len| Ipv6Prefix::new(text.parse().unwrap(), len).unwrap();
    let v6 = |prefixes: &[Ipv6Prefix]| Subnets {
        ipv4: Vec::new(),
        ipv6: prefixes.to_vec(),
    };
    let (here, there) = (prefix("2001:db8::1", 64), prefix("2001:db8:1::1", 64));
    for (theirs, ours, meet) in [
        (v6(&[here]), v6(&[there, here]), true),
        (v6(&[there, here]), v6(&[here]), true),
        (v6(&[here]), v6(&[there]), false),
        (v6(&[here]), v6(&[prefix("2001:db8::1", 48)]), false),
        (v6(&[here]), subnet([10, 9, 0, 1]), false),
        (v6(&[]), v6(&[here]), false),
    ] {
        let mut client = local(1, Ways::R_V1);
        client.subnets = theirs.clone();
        let mut server = local(2, Ways::R_V1);
        server.subnets = ours.clone();
        let ended = shake(client, server);
        assert_eq!(
            matches!(ended.server, Outcome::Established(_)),
            meet,
            "{theirs:?}, {ours:?}"
        );
    }
}

/// Both have the id of the system, whatever users have said.
#[test]
fn engines_with_other_enterprise_ids_meet_on_one_host() {
    use smcfast::wire::EngineId;
    for (theirs, ours, common) in [
        (&["A"] as &[&str], &["B"] as &[&str], "SMCFAST"),
        (&["A"], &["SMCFAST"], "SMCFAST"),
        (&["A"], &["B", "A"], "A"),
    ] {
        let side = |id, names| Local {
            eids: eids(names),
            ..Local::same_host(EngineId([id; 16]), "host")
        };
        let Outcome::Established(agreed) = shake(side(1, theirs), side(2, ours)).client else {
            panic!("{theirs:?}, {ours:?}")
        };
        assert_eq!(agreed.eid, Some(eid(common)));
    }
}

#[test]
fn a_server_that_cannot_reach_the_memory_takes_the_next_way() {
    let mut ways = Ways::D_V2;
    ways.r_v2 = true;
    for (client, is_left) in [(ways, true), (Ways::D_V2, false)] {
        let mut client = ClientHandshake::new(local(1, client), START);
        let mut server = ServerHandshake::new(local(2, ways), START);
        assert!(server.pass_over_d(Diagnosis::NO_SMC_D_V2_DEVICE).is_err());
        give(&mut server, &client.poll_transmit().unwrap());
        let Some(ServerEvent::Proposed(first)) = server.poll_event() else {
            panic!()
        };
        assert_eq!(first.own.path(), Path::D);
        server.pass_over_d(Diagnosis::NO_SMC_D_V2_DEVICE).unwrap();
        match server.poll_event() {
            Some(ServerEvent::Proposed(second)) if is_left => {
                assert_eq!(second.own.path(), Path::R);
                assert!(server.pass_over_d(Diagnosis::NO_SMC_D_V2_DEVICE).is_err());
                server.accept(own_end(2, Path::R), true, START).unwrap();
            }
            Some(ServerEvent::Done(Outcome::Declined(declined))) if !is_left => {
                assert_eq!(declined.diagnosis, Diagnosis::NO_SMC_D_V2_DEVICE);
                assert!(server.poll_transmit().is_some());
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn engines_of_one_host_meet() {
    use smcfast::wire::EngineId;
    let ids = [EngineId([0xa5; 16]), EngineId([0x5a; 16])];
    let [client, server] = ids.map(|id| Local::same_host(id, "host"));
    let mut client = ClientHandshake::new(client, START);
    let mut server = ServerHandshake::new(server, START);
    give(&mut server, &client.poll_transmit().unwrap());
    let Some(ServerEvent::Proposed(proposed)) = server.poll_event() else {
        panic!()
    };
    let Device::D(device) = proposed.client else {
        panic!()
    };
    assert_eq!(EngineId::from_gid(device.gid(), device.extension()), ids[0]);
    assert_eq!(proposed.peer_id.0, [0xa5; 8]);
}
