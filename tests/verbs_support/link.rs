//! Network devices that are down for a while, and RDMA devices that are removed.

use std::process::{Child, Command};

/// The network device is up again when this is dropped.
#[derive(Debug)]
pub(crate) struct Down(String);

impl Down {
    /// Takes down the network device of the device at `place`.
    pub(crate) fn new(place: usize) -> Self {
        let netdev = netdev(place);
        run("ip", &["link", "set", &netdev, "down"]);
        Self(netdev)
    }
}

impl Drop for Down {
    fn drop(&mut self) {
        run("ip", &["link", "set", &self.0, "up"]);
    }
}

/// A soft-RoCE device that is being removed.
#[derive(Debug)]
pub(crate) struct Removal {
    device: String,
    netdev: String,
    process: Child,
}

impl Removal {
    /// Begins to remove `device`, which is the one at `place`. The kernel may wait until its users have let go.
    pub(crate) fn begin(device: &str, place: usize) -> Self {
        let process = Command::new("rdma")
            .args(["link", "delete", device])
            .spawn();
        Self {
            device: device.to_owned(),
            netdev: netdev(place),
            process: process.expect("rdma of iproute2"),
        }
    }

    /// It is gone; makes it anew.
    pub(crate) fn end(mut self) {
        assert!(self.process.wait().expect("it ends").success());
        run(
            "rdma",
            &[
                "link",
                "add",
                &self.device,
                "type",
                "rxe",
                "netdev",
                &self.netdev,
            ],
        );
    }
}

fn netdev(place: usize) -> String {
    let netdevs = std::env::var("SMCFAST_RDMA_NETDEVS").unwrap_or_else(|_| "v0 v1".to_owned());
    let mut netdevs = netdevs.split_whitespace();
    netdevs.nth(place).expect("two network devices").to_owned()
}

fn run(program: &str, words: &[&str]) {
    let done = Command::new(program).args(words).status();
    assert!(done.expect(program).success(), "{program} {words:?}");
}
