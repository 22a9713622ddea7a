//! The `_core` module: a list and conversions. What things do is decided in the layers below.

mod awaitable;
mod buffer;
mod drain;
mod endpoint;
mod engine;
mod errors;
mod read;

use pyo3::prelude::*;

/// The native core of smcfast.
#[pymodule(gil_used = false)]
mod _core {
    use super::*;

    #[pymodule_export]
    use super::drain::Drain;
    #[pymodule_export]
    use super::endpoint::Endpoint;
    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::read::Read;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
