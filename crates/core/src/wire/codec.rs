//! Bounded reading and writing of integers, byte strings and lists.
//!
//! All integers are little endian. The reader never allocates before it has seen that the bytes are there.

use super::{TEXT_LEN_MAX, WireError};
use crate::entry::{Name, VERSION_LEN_MAX, Version};

/// Reads fields from the front of a slice. `what` in each call names the field for the error.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// Bytes not read yet.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next `len` bytes.
    pub(crate) fn take(&mut self, what: &'static str, len: usize) -> Result<&'a [u8], WireError> {
        match self.rest.split_at_checked(len) {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(WireError::Truncated { what, missing: (len - self.rest.len()) as u64 }),
        }
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WireError> {
        match self.rest.split_first_chunk::<N>() {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(*head)
            }
            None => Err(WireError::Truncated { what, missing: (N - self.rest.len()) as u64 }),
        }
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        self.array::<1>(what).map(|[b]| b)
    }
    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, WireError> {
        self.array(what).map(u16::from_le_bytes)
    }
    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        self.array(what).map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        self.array(what).map(u64::from_le_bytes)
    }
    pub(crate) fn i32(&mut self, what: &'static str) -> Result<i32, WireError> {
        self.array(what).map(i32::from_le_bytes)
    }
    pub(crate) fn i64(&mut self, what: &'static str) -> Result<i64, WireError> {
        self.array(what).map(i64::from_le_bytes)
    }

    /// One byte, 0 or 1.
    pub(crate) fn bool(&mut self, what: &'static str) -> Result<bool, WireError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(WireError::BadValue { what, value: other.into() }),
        }
    }

    /// A `u16` count of items that take at least `item_len_min` bytes each. The result is safe to allocate.
    pub(crate) fn count(
        &mut self,
        what: &'static str,
        max: usize,
        item_len_min: usize,
    ) -> Result<usize, WireError> {
        let count = usize::from(self.u16(what)?);
        if count > max {
            return Err(WireError::TooLong { what, len: count as u64, max: max as u64 });
        }
        let need = count * item_len_min;
        if need > self.rest.len() {
            return Err(WireError::Truncated { what, missing: (need - self.rest.len()) as u64 });
        }
        Ok(count)
    }

    /// A list: a `u16` count (at most `max`) and items of at least `item_len_min` bytes each.
    pub(crate) fn list<T>(
        &mut self,
        what: &'static str,
        max: usize,
        item_len_min: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, WireError>,
    ) -> Result<Vec<T>, WireError> {
        let count = self.count(what, max, item_len_min)?;
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// A `u16` length (at most `max`) and that many bytes.
    pub(crate) fn bytes(&mut self, what: &'static str, max: usize) -> Result<&'a [u8], WireError> {
        let len = self.count(what, max, 1)?;
        self.take(what, len)
    }

    /// A `u8` length and that many bytes that are a legal name.
    pub(crate) fn name(&mut self, what: &'static str) -> Result<Name, WireError> {
        let len = usize::from(self.u8(what)?);
        Name::new(self.take(what, len)?).map_err(|source| WireError::BadName { what, source })
    }

    /// A `u8` length (at most [`VERSION_LEN_MAX`]) and that many bytes that only the source's storage
    /// understands.
    pub(crate) fn version(&mut self, what: &'static str) -> Result<Version, WireError> {
        let len = self.u8(what)?;
        if usize::from(len) > VERSION_LEN_MAX {
            return Err(WireError::TooLong { what, len: len.into(), max: VERSION_LEN_MAX as u64 });
        }
        let bytes = self.take(what, len.into())?;
        Version::new(bytes).ok_or(WireError::BadValue { what, value: len.into() })
    }

    /// A `u16` length (at most [`TEXT_LEN_MAX`]) and that many bytes of UTF-8.
    pub(crate) fn text(&mut self, what: &'static str) -> Result<Box<str>, WireError> {
        let bytes = self.bytes(what, TEXT_LEN_MAX)?;
        std::str::from_utf8(bytes).map(Box::from).map_err(|_| WireError::BadText { what })
    }

    /// Bytes that v1 does not use; they must be zero, so that a later version can give them a meaning.
    pub(crate) fn reserved<const N: usize>(&mut self, what: &'static str) -> Result<(), WireError> {
        match self.array::<N>(what)?.iter().find(|b| **b != 0) {
            None => Ok(()),
            Some(b) => Err(WireError::BadValue { what, value: u64::from(*b) }),
        }
    }

    /// Nothing may be left.
    pub(crate) fn finish(self, what: &'static str) -> Result<(), WireError> {
        match self.rest.len() {
            0 => Ok(()),
            len => Err(WireError::Trailing { what, len: len as u64 }),
        }
    }
}

/// Appends fields to a buffer. Its panics are our own broken invariants, never a peer's doing.
pub(crate) struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        Writer { out }
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }
    pub(crate) fn u8(&mut self, value: u8) {
        self.out.push(value);
    }
    pub(crate) fn u16(&mut self, value: u16) {
        self.raw(&value.to_le_bytes());
    }
    pub(crate) fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }
    pub(crate) fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }
    pub(crate) fn i32(&mut self, value: i32) {
        self.raw(&value.to_le_bytes());
    }
    pub(crate) fn i64(&mut self, value: i64) {
        self.raw(&value.to_le_bytes());
    }
    pub(crate) fn bool(&mut self, value: bool) {
        self.u8(value.into());
    }

    /// The count of a list.
    ///
    /// # Panics
    /// Above `max`: the peer would refuse the frame. Callers cut lists with `Message::split`.
    pub(crate) fn count(&mut self, what: &'static str, count: usize, max: usize) {
        assert!(count <= max, "{what}: a list of {count}, at most {max} can be sent");
        self.u16(u16::try_from(count).expect("list maxima fit u16"));
    }

    /// A `u16` length and the bytes.
    pub(crate) fn bytes(&mut self, what: &'static str, bytes: &[u8], max: usize) {
        self.count(what, bytes.len(), max);
        self.raw(bytes);
    }

    pub(crate) fn name(&mut self, name: &Name) {
        let bytes = name.as_bytes();
        self.u8(u8::try_from(bytes.len()).expect("a name is at most 255 bytes"));
        self.raw(bytes);
    }

    pub(crate) fn version(&mut self, version: &Version) {
        let bytes = version.as_bytes();
        self.u8(bytes.len() as u8);
        self.raw(bytes);
    }

    /// Text, cut to [`TEXT_LEN_MAX`] at a character's edge.
    pub(crate) fn text(&mut self, text: &str) {
        self.bytes("text", cut_text(text).as_bytes(), TEXT_LEN_MAX);
    }
}

/// The longest start of `text` that fits [`TEXT_LEN_MAX`] bytes.
pub(crate) fn cut_text(text: &str) -> &str {
    if text.len() <= TEXT_LEN_MAX {
        return text;
    }
    let mut end = TEXT_LEN_MAX;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
