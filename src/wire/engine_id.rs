//! The name of an engine.

/// The 128-bit random name of an engine: an event loop's share of this library in one process.
///
/// The first eight bytes, big-endian, are the engine's SMC-D GID in CLC messages, the last eight
/// its GID extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EngineId(pub [u8; 16]);

impl EngineId {
    /// The id that an SMC-Dv2 GID and its extension stand for.
    #[must_use]
    pub const fn from_gid(gid: u64, extension: u64) -> Self {
        Self((((gid as u128) << 64) | extension as u128).to_be_bytes())
    }

    /// The first half, as a GID.
    #[must_use]
    pub const fn gid(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// The second half, as a GID extension.
    #[must_use]
    pub const fn gid_extension(self) -> u64 {
        u128::from_be_bytes(self.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_id_is_a_gid_and_its_extension() {
        let engine = EngineId(*b"0123456789abcdef");
        assert_eq!(engine.gid(), 0x3031_3233_3435_3637);
        assert_eq!(engine.gid_extension(), 0x3839_6162_6364_6566);
        assert_eq!(
            EngineId::from_gid(engine.gid(), engine.gid_extension()),
            engine
        );
    }
}
