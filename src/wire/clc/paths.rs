//! Which of SMC-R and SMC-D an end offers.

/// One of the two ways, or both; never neither. Each carries what the offer of it needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Paths<R, D> {
    /// SMC-R.
    R(R),
    /// SMC-D.
    D(D),
    /// Both.
    Both(R, D),
}

/// The two bits that stand for neither way.
pub(super) const NEITHER: u8 = 2;

impl<R, D> Paths<R, D> {
    /// What the offer of SMC-R carries, if it is one.
    pub const fn r(&self) -> Option<&R> {
        match self {
            Self::R(r) | Self::Both(r, _) => Some(r),
            Self::D(_) => None,
        }
    }

    /// What the offer of SMC-D carries, if it is one.
    pub const fn d(&self) -> Option<&D> {
        match self {
            Self::D(d) | Self::Both(_, d) => Some(d),
            Self::R(_) => None,
        }
    }

    /// The two bits on the wire.
    pub(super) const fn code(&self) -> u8 {
        match self {
            Self::R(_) => 0,
            Self::D(_) => 1,
            Self::Both(..) => 3,
        }
    }

    /// What was read of each way, put together; `None` for neither.
    pub(super) fn of(r: Option<R>, d: Option<D>) -> Option<Self> {
        match (r, d) {
            (Some(r), Some(d)) => Some(Self::Both(r, d)),
            (Some(r), None) => Some(Self::R(r)),
            (None, Some(d)) => Some(Self::D(d)),
            (None, None) => None,
        }
    }
}

/// Whether the two bits offer SMC-R.
pub(super) const fn offers_r(code: u8) -> bool {
    matches!(code, 0 | 3)
}

/// Whether the two bits offer SMC-D.
pub(super) const fn offers_d(code: u8) -> bool {
    matches!(code, 1 | 3)
}
