//! Names that are looked up often, made with the module: whoever makes one gives up the interpreter's lock for a moment, and
//! a thread that did so at the end of the interpreter would not come back (see [`super::gate`]).

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

macro_rules! names {
    ($($function:ident: $name:literal,)*) => {
        $(
            pub(super) fn $function(py: Python<'_>) -> &Bound<'_, PyString> {
                intern!(py, $name)
            }
        )*

        /// Makes all of them.
        pub(super) fn make(py: Python<'_>) {
            $($function(py);)*
        }
    };
}

names! {
    clear: "clear",
    done: "done",
    flush: "_flush",
    future_blocking: "_asyncio_future_blocking",
    poll: "_poll",
    set_result: "set_result",
}
