//! What is wrong with bytes that are no message.

use std::fmt;

/// Bytes that are not the message they claim to be: which message, which field, what is wrong with it.
///
/// ```
/// use smcfast::wire::cdc::Cdc;
/// let error = Cdc::decode(&[0xfe; 31]).unwrap_err();
/// assert_eq!(error.to_string(), "SMC-D CDC: length: 31, expected 32");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidMessage {
    message: &'static str,
    field: &'static str,
    fault: Fault,
}

/// What is wrong with a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Another value stands where only one is legal.
    Unexpected {
        /// What the message says.
        found: u64,
        /// What it must say.
        expected: u64,
    },
    /// The value is outside its range.
    OutOfRange {
        /// What the message says.
        found: u64,
        /// The least legal value.
        min: u64,
        /// The greatest legal value.
        max: u64,
    },
    /// The message ends inside the field.
    Cut {
        /// Bytes left in the message.
        left: usize,
        /// Bytes that the field has.
        needed: usize,
    },
    /// Another fault, in words that continue the sentence "the field ...".
    Illegal(&'static str),
}

impl InvalidMessage {
    pub(crate) const fn new(message: &'static str, field: &'static str, fault: Fault) -> Self {
        Self {
            message,
            field,
            fault,
        }
    }

    /// The message as it is called in the protocol, such as "CLC Accept".
    #[must_use]
    pub const fn message(&self) -> &'static str {
        self.message
    }

    /// The field at fault, such as "length".
    #[must_use]
    pub const fn field(&self) -> &'static str {
        self.field
    }

    /// What is wrong with the field.
    #[must_use]
    pub const fn fault(&self) -> Fault {
        self.fault
    }
}

impl fmt::Display for InvalidMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.message, self.field, self.fault)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unexpected { found, expected } => write!(f, "{found}, expected {expected}"),
            Self::OutOfRange { found, min, max } => write!(f, "{found}, allowed {min} to {max}"),
            Self::Cut { left, needed } => write!(f, "needs {needed} bytes, {left} left"),
            Self::Illegal(words) => f.write_str(words),
        }
    }
}

impl std::error::Error for InvalidMessage {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reads_as_a_sentence() {
        let say = |fault| InvalidMessage::new("CLC Accept", "length", fault).to_string();
        assert_eq!(
            say(Fault::Unexpected {
                found: 67,
                expected: 68
            }),
            "CLC Accept: length: 67, expected 68"
        );
        assert_eq!(
            say(Fault::OutOfRange {
                found: 9,
                min: 0,
                max: 8
            }),
            "CLC Accept: length: 9, allowed 0 to 8"
        );
        assert_eq!(
            say(Fault::Cut { left: 1, needed: 4 }),
            "CLC Accept: length: needs 4 bytes, 1 left"
        );
        assert_eq!(say(Fault::Illegal("is odd")), "CLC Accept: length: is odd");
    }

    #[test]
    fn an_error_tells_its_parts() {
        let fault = Fault::Illegal("is odd");
        let error = InvalidMessage::new("CLC Accept", "length", fault);
        assert_eq!(
            (error.message(), error.field(), error.fault()),
            ("CLC Accept", "length", fault)
        );
    }
}
