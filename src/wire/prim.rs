//! The bounds-checked reader and the writer that every message is taken apart and put together with.
//!
//! A message is read in order, field by field, each by its name. So the reader can say where an error is, and with a
//! trace it can say where every field is: [`super::pretty`] has no second description of any layout.

use std::ops::Range;

use super::{Fault, InvalidMessage};

/// Reads one message from its first byte to its last; every failure names the field that was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    message: &'static str,
    bytes: &'a [u8],
    at: usize,
    trace: Option<Vec<Field>>,
}

/// Where a reader found a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) bytes: Range<usize>,
}

impl<'a> Reader<'a> {
    /// A reader at byte 0 of `bytes`; `message` is the name that errors carry.
    pub(crate) fn new(message: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            message,
            bytes,
            at: 0,
            trace: None,
        }
    }

    /// The same, noting every field that is read.
    pub(crate) fn traced(message: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            trace: Some(Vec::new()),
            ..Self::new(message, bytes)
        }
    }

    /// The fields read so far; empty without a trace.
    pub(crate) fn into_fields(self) -> Vec<Field> {
        self.trace.unwrap_or_default()
    }

    /// Renames the message, once its header has told what it is.
    pub(crate) fn rename(&mut self, message: &'static str) {
        self.message = message;
    }

    /// Bytes in the whole message.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The byte at `at`, read ahead of its turn.
    pub(crate) fn peek(&self, at: usize) -> Option<u8> {
        self.bytes.get(at).copied()
    }

    /// The error of this message for `field`.
    pub(crate) fn error(&self, field: &'static str, fault: Fault) -> InvalidMessage {
        InvalidMessage::new(self.message, field, fault)
    }

    /// The next `N` bytes.
    pub(crate) fn take<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], InvalidMessage> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(bytes) = rest.first_chunk::<N>() else {
            return Err(self.error(
                field,
                Fault::Cut {
                    left: rest.len(),
                    needed: N,
                },
            ));
        };
        if let Some(fields) = &mut self.trace {
            fields.push(Field {
                name: field,
                bytes: self.at..self.at + N,
            });
        }
        self.at += N;
        Ok(*bytes)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, InvalidMessage> {
        self.take::<1>(field).map(|[byte]| byte)
    }

    pub(crate) fn be16(&mut self, field: &'static str) -> Result<u16, InvalidMessage> {
        self.take(field).map(u16::from_be_bytes)
    }

    pub(crate) fn be32(&mut self, field: &'static str) -> Result<u32, InvalidMessage> {
        self.take(field).map(u32::from_be_bytes)
    }

    pub(crate) fn be64(&mut self, field: &'static str) -> Result<u64, InvalidMessage> {
        self.take(field).map(u64::from_be_bytes)
    }

    pub(crate) fn le16(&mut self, field: &'static str) -> Result<u16, InvalidMessage> {
        self.take(field).map(u16::from_le_bytes)
    }

    pub(crate) fn le32(&mut self, field: &'static str) -> Result<u32, InvalidMessage> {
        self.take(field).map(u32::from_le_bytes)
    }

    pub(crate) fn le64(&mut self, field: &'static str) -> Result<u64, InvalidMessage> {
        self.take(field).map(u64::from_le_bytes)
    }

    /// `N` bytes whose value is free: read over them.
    pub(crate) fn reserved<const N: usize>(&mut self) -> Result<(), InvalidMessage> {
        self.take::<N>("reserved").map(drop)
    }

    /// `N` bytes that must be zero.
    pub(crate) fn zero<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<(), InvalidMessage> {
        match self.take::<N>(field)? {
            bytes if bytes == [0; N] => Ok(()),
            _ => Err(self.error(field, Fault::Illegal("must be zero"))),
        }
    }

    /// Refuses a value that is not `expected`.
    pub(crate) fn expect(
        &self,
        field: &'static str,
        found: u64,
        expected: u64,
    ) -> Result<(), InvalidMessage> {
        if found == expected {
            Ok(())
        } else {
            Err(self.error(field, Fault::Unexpected { found, expected }))
        }
    }

    /// Refuses a value above `max`.
    pub(crate) fn at_most(
        &self,
        field: &'static str,
        found: u64,
        max: u64,
    ) -> Result<(), InvalidMessage> {
        if found <= max {
            Ok(())
        } else {
            Err(self.error(field, Fault::OutOfRange { found, min: 0, max }))
        }
    }

    /// Refuses a message that goes on behind the last field.
    pub(crate) fn expect_end(&self) -> Result<(), InvalidMessage> {
        self.expect_length(self.at)
    }

    /// Refuses a message of another length than `expected` bytes.
    pub(crate) fn expect_length(&self, expected: usize) -> Result<(), InvalidMessage> {
        self.expect("length", self.bytes.len() as u64, expected as u64)
    }
}

/// Puts one message together.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
        }
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(crate) fn be16(&mut self, value: u16) {
        self.put(&value.to_be_bytes());
    }

    pub(crate) fn be32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }

    pub(crate) fn be64(&mut self, value: u64) {
        self.put(&value.to_be_bytes());
    }

    pub(crate) fn le16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    pub(crate) fn le32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    pub(crate) fn le64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    /// `count` zero bytes.
    pub(crate) fn zeros(&mut self, count: usize) {
        self.bytes.resize(self.bytes.len() + count, 0);
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
