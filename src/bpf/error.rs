//! What goes wrong, by what was being done and the system's number for it.

use std::fmt;
use std::io;

/// A call that the system refused.
#[derive(Debug)]
pub struct Error {
    doing: &'static str,
    cause: io::Error,
}

impl Error {
    pub(super) fn new(doing: &'static str, cause: impl Into<io::Error>) -> Self {
        Self {
            doing,
            cause: cause.into(),
        }
    }

    /// An error of the BPF library, whose own texts are long and name its types: the system's error inside it says more.
    pub(super) fn within(doing: &'static str, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(number) = error
                .downcast_ref::<io::Error>()
                .and_then(io::Error::raw_os_error)
            {
                return Self::new(doing, io::Error::from_raw_os_error(number));
            }
            next = error.source();
        }
        Self::new(doing, io::Error::other(error.to_string()))
    }

    /// The system's number, if it gave one.
    #[must_use]
    pub fn number(&self) -> Option<i32> {
        self.cause.raw_os_error()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.cause.to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        write!(f, "{}: {text}", self.doing)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Wrapped(io::Error);

    impl fmt::Display for Wrapped {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "wrapped")
        }
    }

    impl std::error::Error for Wrapped {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn the_systems_error_is_found_inside() {
        let error = Error::within("loading", &Wrapped(io::Error::from_raw_os_error(1)));
        assert_eq!(error.number(), Some(1));
        assert_eq!(error.to_string(), "loading: Operation not permitted");
        let error = Error::within("loading", &Wrapped(io::Error::other("odd")));
        assert_eq!(
            (error.number(), error.to_string().as_str()),
            (None, "loading: wrapped")
        );
    }
}
