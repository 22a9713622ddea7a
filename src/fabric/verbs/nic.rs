//! An opened port of a device.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::context::Context;
use super::domain::VerbsDomain;
use super::error::Unavailable;
use super::library::Library;
use super::queue::Queue;
use super::troubles::Troubles;
use crate::fabric::rdma::{Completion, Domain, Nic, Trouble};

/// A port, its device and its completion queue.
#[derive(Debug)]
struct VerbsNic {
    troubles: Troubles,
    queue: Arc<Queue>,
    context: Arc<Context>,
    port: u8,
}

/// Opens a port of the device called `device`. The same may be opened more than once.
///
/// # Errors
/// [`Unavailable`] says why not.
pub fn open(device: &str, port: u8) -> Result<Arc<dyn Nic>, Unavailable> {
    open_with(Library::get()?, device, port)
}

/// The same, by a library of the caller's choice.
pub(super) fn open_with(
    library: &'static Library,
    device: &str,
    port: u8,
) -> Result<Arc<dyn Nic>, Unavailable> {
    let context = Context::open(library, device)?;
    let failed = |call| {
        move |source| Unavailable::Device {
            device: device.to_owned(),
            call,
            source,
        }
    };
    let state = context.device_state().map_err(failed("ibv_query_device"))?;
    if port == 0 || port > state.phys_port_cnt {
        return Err(Unavailable::NoSuchPort {
            device: device.to_owned(),
            port,
            ports: state.phys_port_cnt,
        });
    }
    let queue = Queue::new(Arc::clone(&context)).map_err(failed("ibv_create_cq"))?;
    let troubles = Troubles::new(&context).map_err(failed("epoll_ctl"))?;
    Ok(Arc::new(VerbsNic {
        troubles,
        queue,
        context,
        port,
    }))
}

impl Nic for VerbsNic {
    fn device(&self) -> &str {
        self.context.name()
    }

    fn port(&self) -> u8 {
        self.port
    }

    fn mtu(&self) -> io::Result<u8> {
        let state = self.context.port_state(self.port)?;
        u8::try_from(state.active_mtu).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    fn gid(&self, index: u8) -> io::Result<[u8; 16]> {
        let gid = self.context.gid(self.port, index.into())?;
        gid.ok_or_else(|| {
            let text = format!("{} port {}: no GID at {index}", self.device(), self.port);
            io::Error::new(io::ErrorKind::NotFound, text)
        })
    }

    fn domain(&self) -> io::Result<Box<dyn Domain>> {
        let domain = VerbsDomain::new(&self.context, &self.queue, self.port)?;
        Ok(Box::new(domain))
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }

    fn trouble_fd(&self) -> BorrowedFd<'_> {
        self.troubles.fd()
    }

    fn arm(&self) -> io::Result<()> {
        self.queue.arm()
    }

    fn take_events(&self) -> io::Result<bool> {
        self.queue.take_events()
    }

    fn poll(&self, found: &mut Vec<Completion>) -> io::Result<usize> {
        self.queue.poll(found)
    }

    fn take_troubles(&self) -> Vec<Trouble> {
        self.troubles.take(&self.context, self.port)
    }
}
