//! The lamps of this process for Python; see `driver::lamp`.

use std::sync::Arc;

use pyo3::prelude::*;

use super::errors::from_system;
use crate::driver::lamp;

/// The descriptors of this process that show blocking sockets to selectors, and the native thread behind them. Made at the
/// first use, and once in each process.
#[pyclass(frozen, module = "smcfast._core")]
pub(super) struct Lamps(pub(super) Arc<lamp::Lamps>);

#[pymethods]
impl Lamps {
    /// OSError: EAGAIN, EMFILE, ENFILE, ENOMEM.
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self(
            lamp::Lamps::begin().map_err(|error| from_system(&error))?,
        ))
    }
}
