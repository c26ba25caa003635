//! Reads fields from bytes. An error names the field that cannot be read.

use std::time::Duration;

use bytes::{Buf as _, Bytes};

use super::WireError;
use crate::clock::Timestamp;
use crate::record::Field;

/// Fields, one after the other, as they were written.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], WireError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(WireError::Field(field))?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, WireError> {
        self.array(field).map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, WireError> {
        self.array(field).map(u16::from_be_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, WireError> {
        self.array(field).map(u64::from_be_bytes)
    }

    pub(super) fn duration(&mut self, field: &'static str) -> Result<Duration, WireError> {
        self.u64(field).map(Duration::from_millis)
    }

    /// The epoch itself stands for an absent time.
    pub(super) fn moment(&mut self, field: &'static str) -> Result<Option<Timestamp>, WireError> {
        let ms = self.u64(field)?;
        Ok((ms != 0).then(|| Timestamp::from_unix_ms(ms)))
    }

    pub(super) fn length(&mut self, field: &'static str) -> Result<usize, WireError> {
        self.array(field)
            .map(|bytes| u32::from_be_bytes(bytes) as usize)
    }

    pub(super) fn bytes(&mut self, field: &'static str) -> Result<&'a [u8], WireError> {
        let length = self.length(field)?;
        let (head, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(WireError::Field(field))?;
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn text(&mut self, field: &'static str) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.bytes(field)?).map_err(|_| WireError::Field(field))
    }

    pub(super) fn fields(&mut self, field: &'static str) -> Result<Vec<Field>, WireError> {
        let count = self.length(field)?;
        // A field takes at least eight bytes, so that a damaged count cannot ask for more
        // memory than the input has.
        if count > self.0.remaining() / 8 {
            return Err(WireError::Field(field));
        }
        (0..count)
            .map(|_| {
                let name = Bytes::copy_from_slice(self.bytes(field)?);
                let value = Bytes::copy_from_slice(self.bytes(field)?);
                Ok((name, value))
            })
            .collect()
    }

    pub(super) fn end(&self) -> Result<(), WireError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(WireError::Field("end"))
        }
    }
}
