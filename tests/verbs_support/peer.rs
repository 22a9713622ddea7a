//! The other end of a pair, in a process of its own, by pyverbs.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use smcfast::fabric::rdma::Remote;

use super::End;

/// The interpreter of the distribution, which has its pyverbs.
const PYTHON: &str = "/usr/bin/python3";

/// `tests/vm/verbs_peer.py`, started.
#[derive(Debug)]
pub(crate) struct Peer {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Where it is.
    place: Value,
}

impl Peer {
    /// Starts it on `device`. None where there is no pyverbs.
    pub(crate) fn start(device: &str, gid_index: u8) -> Option<Self> {
        let probe = Command::new(PYTHON)
            .args(["-c", "import pyverbs.device"])
            .output();
        if !probe.is_ok_and(|output| output.status.success()) {
            eprintln!("not run: {PYTHON} has no pyverbs (python3-pyverbs)");
            return None;
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vm/verbs_peer.py");
        let mut process = Command::new(PYTHON)
            .arg(script)
            .args([device, &gid_index.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the interpreter");
        let orders = process.stdin.take().expect("a pipe");
        let answers = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut peer = Self {
            process,
            orders,
            answers,
            place: Value::Null,
        };
        peer.place = peer.answer();
        Some(peer)
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    /// Has it do something, and returns what it says.
    pub(crate) fn order(&mut self, order: &Value) -> Value {
        writeln!(self.orders, "{order}").expect("it listens");
        self.answer()
    }

    /// Sends `message` after `bytes`, which it writes to `to`.
    pub(crate) fn send(&mut self, message: &[u8], bytes: &[u8], to: usize) -> Value {
        self.order(
            &json!({"order": "send", "message": hex(message), "bytes": hex(bytes), "to": to}),
        )
    }

    /// Connects `end` and the peer.
    pub(crate) fn connect(&mut self, end: &mut End) {
        let number = |name: &str| self.place[name].as_u64().expect("a number");
        let gid = bytes(self.place["gid"].as_str().expect("a GID"));
        let own = end.remote();
        let remote = Remote {
            gid: gid.try_into().expect("16 bytes"),
            number: number("number") as u32,
            first_packet: number("first_packet") as u32,
            ..own
        };
        end.far = (number("address"), number("key") as u32);
        end.pair.ready_to_receive(&remote).expect("RTR");
        end.pair.ready_to_send().expect("RTS");
        self.order(&json!({
            "gid": hex(&own.gid), "number": own.number, "first_packet": own.first_packet, "mtu": own.mtu,
            "address": end.memory.address(), "key": end.memory.remote_key(),
        }));
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Nobody is left to talk to: it may not have seen the end of its orders yet.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    (0..hex.len()).step_by(2).map(byte).collect()
}
