//! What devices there are, for tools and for people.

use super::context::{Context, names};
use super::error::Unavailable;
use super::library::Library;

/// `enum ibv_port_state`.
const STATES: [&str; 6] = ["nop", "down", "init", "armed", "active", "active-defer"];

/// A device as the library shows it.
#[derive(Debug)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its ports, or why it cannot be opened.
    pub ports: Result<Vec<ListedPort>, Unavailable>,
}

/// A port.
#[derive(Debug)]
pub struct ListedPort {
    /// Its number, from 1 on.
    pub number: u8,
    /// Its state, in the words of ibv_devinfo without PORT_.
    pub state: &'static str,
    /// Its active MTU in bytes; 0 where the library says something else.
    pub mtu: u32,
    /// Bytes of the longest message or write.
    pub longest: u32,
    /// Its addresses.
    pub gids: Vec<ListedGid>,
}

/// An address of a port.
#[derive(Debug)]
pub struct ListedGid {
    /// Its place in the table.
    pub index: u32,
    /// The address.
    pub gid: [u8; 16],
    /// "IB/RoCE v1", "RoCE v2", or nothing where the kernel does not say.
    pub kind: String,
    /// The network device that it belongs to, or nothing.
    pub netdev: String,
}

/// The devices that the library knows, by their names. Opens each of them for a moment.
///
/// # Errors
/// There is no library, or no device.
pub fn devices() -> Result<Vec<Listed>, Unavailable> {
    list(Library::get()?)
}

/// The file of the library.
///
/// # Errors
/// As above.
pub fn library_path() -> Result<&'static str, Unavailable> {
    Ok(Library::get()?.path())
}

pub(super) fn list(library: &'static Library) -> Result<Vec<Listed>, Unavailable> {
    let listed = names(library)?.into_iter().map(|name| Listed {
        ports: ports(library, &name),
        name,
    });
    Ok(listed.collect())
}

fn ports(library: &'static Library, name: &str) -> Result<Vec<ListedPort>, Unavailable> {
    let context = Context::open(library, name)?;
    let failed = |source| Unavailable::Device {
        device: name.to_owned(),
        call: "query",
        source,
    };
    let count = context.device_state().map_err(failed)?.phys_port_cnt;
    let ports = (1..=count).map(|number| port(&context, number).map_err(failed));
    ports.collect()
}

fn port(context: &Context, number: u8) -> std::io::Result<ListedPort> {
    let state = context.port_state(number)?;
    let mut gids = Vec::new();
    for index in 0..u32::try_from(state.gid_tbl_len).unwrap_or(0) {
        // A place that is empty is an error for some drivers.
        if let Ok(Some(gid)) = context.gid(number, index) {
            let attribute = |kind| attribute(context.name(), number, kind, index);
            gids.push(ListedGid {
                index,
                gid,
                kind: attribute("types"),
                netdev: attribute("ndevs"),
            });
        }
    }
    Ok(ListedPort {
        number,
        state: STATES
            .get(state.state as usize)
            .copied()
            .unwrap_or("unknown"),
        mtu: match state.active_mtu {
            code @ 1..=5 => 128 << code,
            _ => 0,
        },
        longest: state.max_msg_sz,
        gids,
    })
}

/// What the kernel says of a GID.
fn attribute(device: &str, port: u8, kind: &str, index: u32) -> String {
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/{kind}/{index}");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
}
