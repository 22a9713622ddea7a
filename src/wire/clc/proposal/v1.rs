//! What a client offers in version 1.

use super::{Gid, InvalidMessage, NativeIsm, Prefixes, Reader, offers_d, offers_r};
use crate::wire::clc::paths::Paths;

/// An offer of version 1.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OfferV1 {
    /// SMC-R over the port with this RoCEv1 GID, SMC-D over this ISM device, or both.
    pub paths: Paths<Gid, NativeIsm>,
    /// The subnets of the interface that the TCP connection uses; the server must be in one of them.
    pub prefixes: Prefixes,
}

impl OfferV1 {
    /// Reads the prefix area, when `code` offers anything; GID and device stand in front of it.
    pub(super) fn read(
        reader: &mut Reader<'_>,
        code: u8,
        gid: Gid,
        ism: NativeIsm,
    ) -> Result<Option<Self>, InvalidMessage> {
        let r = offers_r(code).then_some(gid);
        let d = offers_d(code).then_some(ism);
        let Some(paths) = Paths::of(r, d) else {
            return Ok(None);
        };
        let prefixes = Prefixes::read(reader)?;
        Ok(Some(Self { paths, prefixes }))
    }
}
