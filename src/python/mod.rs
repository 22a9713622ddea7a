//! Layer `python`: the `_core` module, a list and conversions.

use pyo3::prelude::*;

/// The native core of smcfast.
#[pymodule(gil_used = false)]
mod _core {
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
