//! Writes a pcap file with TCP connections or RoCEv2 packets: just enough for a dissector.
#![allow(dead_code, reason = "each test uses a part")]

use smcfast::wire::tcpopt;

/// The file with one connection for each message, whose SYN and SYN/ACK carry the SMC option.
pub(crate) fn with_messages<'a>(messages: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let messages = messages.into_iter().enumerate();
    file(messages.flat_map(|(number, message)| segments(40000 + number as u16, message)))
}

/// The file with one SEND on a reliable connection for each message.
pub(crate) fn with_sends<'a>(messages: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    file(messages.into_iter().enumerate().map(send))
}

fn file(packets: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut file = Vec::new();
    // magic, version 2.4, zone, accuracy, longest packet, link type 101: raw IP
    [0xa1b2_c3d4, 0x0004_0002, 0, 0, 0xffff, 101u32]
        .iter()
        .for_each(|word| file.extend(word.to_le_bytes()));
    for packet in packets {
        [0, 0, packet.len() as u32, packet.len() as u32]
            .iter()
            .for_each(|word| file.extend(word.to_le_bytes()));
        file.extend(packet);
    }
    file
}

/// RoCEv2: the base transport header, the message and the invariant checksum, in UDP to port 4791.
fn send((number, message): (usize, &[u8])) -> Vec<u8> {
    const RC_SEND_ONLY: u8 = 0x04;
    const TO: [u8; 8] = [0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0]; // default partition, queue pair 17, asks for an answer
    let padding = message.len().next_multiple_of(4) - message.len();
    let mut payload = vec![RC_SEND_ONLY, (padding as u8) << 4];
    payload.extend(TO);
    payload.extend((number as u16).to_be_bytes());
    payload.extend(message);
    payload.resize(payload.len() + padding + 4, 0); // the checksum is not looked at
    let mut udp = vec![0xc0, 0, 0x12, 0xb7];
    udp.extend((8 + payload.len() as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    ip(17, ([10, 9, 0, 1], [10, 9, 0, 2]), &udp)
}

fn ip(protocol: u8, (from, to): ([u8; 4], [u8; 4]), payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x45, 0];
    bytes.extend((20 + payload.len() as u16).to_be_bytes());
    bytes.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]); // checksums are not looked at
    bytes.extend([from, to].concat());
    bytes.extend(payload);
    bytes
}

/// Frames of a connection: SYN, SYN/ACK, ACK, and the message.
pub(crate) const FRAMES_EACH: usize = 4;

fn segments(client_port: u16, message: &[u8]) -> [Vec<u8>; FRAMES_EACH] {
    const SYN: u8 = 0x02;
    const PSH: u8 = 0x08;
    const ACK: u8 = 0x10;
    let to_server = (client_port, 5000);
    let to_client = (5000, client_port);
    [
        segment(to_server, (100, 0), SYN, &tcpopt::PADDED, &[]),
        segment(to_client, (200, 101), SYN | ACK, &tcpopt::PADDED, &[]),
        segment(to_server, (101, 201), ACK, &[], &[]),
        segment(to_server, (101, 201), ACK | PSH, &[], message),
    ]
}

fn segment(
    ports: (u16, u16),
    numbers: (u32, u32),
    flags: u8,
    options: &[u8],
    data: &[u8],
) -> Vec<u8> {
    let header = 20 + options.len();
    let addresses = if ports.1 == 5000 {
        ([10, 9, 0, 1], [10, 9, 0, 2])
    } else {
        ([10, 9, 0, 2], [10, 9, 0, 1])
    };
    let mut bytes = Vec::new();
    bytes.extend(ports.0.to_be_bytes());
    bytes.extend(ports.1.to_be_bytes());
    bytes.extend(numbers.0.to_be_bytes());
    bytes.extend(numbers.1.to_be_bytes());
    bytes.extend([(header as u8 / 4) << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.extend(options);
    bytes.extend(data);
    ip(6, addresses, &bytes)
}
