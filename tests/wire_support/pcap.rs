//! Writes a pcap file with TCP connections: just enough for a dissector.

use smcfast::wire::tcpopt;

/// The file with one connection for each message, whose SYN and SYN/ACK carry the SMC option.
pub(crate) fn with_messages<'a>(messages: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut file = Vec::new();
    // magic, version 2.4, zone, accuracy, longest packet, link type 101: raw IP
    [0xa1b2_c3d4, 0x0004_0002, 0, 0, 0xffff, 101u32]
        .iter()
        .for_each(|word| file.extend(word.to_le_bytes()));
    for (number, message) in messages.into_iter().enumerate() {
        let client_port = 40000 + number as u16;
        for segment in segments(client_port, message) {
            [0, 0, segment.len() as u32, segment.len() as u32]
                .iter()
                .for_each(|word| file.extend(word.to_le_bytes()));
            file.extend(segment);
        }
    }
    file
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
    let mut bytes = vec![0x45, 0];
    bytes.extend((20 + header as u16 + data.len() as u16).to_be_bytes());
    bytes.extend([0, 0, 0x40, 0, 64, 6, 0, 0]); // protocol TCP; checksums are not looked at
    let (from, to) = if ports.1 == 5000 {
        ([10, 9, 0, 1], [10, 9, 0, 2])
    } else {
        ([10, 9, 0, 2], [10, 9, 0, 1])
    };
    bytes.extend([from, to].concat());
    bytes.extend(ports.0.to_be_bytes());
    bytes.extend(ports.1.to_be_bytes());
    bytes.extend(numbers.0.to_be_bytes());
    bytes.extend(numbers.1.to_be_bytes());
    bytes.extend([(header as u8 / 4) << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.extend(options);
    bytes.extend(data);
    bytes
}
