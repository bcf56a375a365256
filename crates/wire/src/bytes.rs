//! Big-endian reading that can't run past the end, and writing that may (our bug, so it panics).

/// Takes fields off the front of network input.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

/// Puts fields behind one another; panics when the buffer is too short. No packet can bring that about: whoever writes
/// has either an array as long as all of its fields, or, as `OptionWriter`, has asked for the option's length first.
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    #[inline]
    pub(crate) const fn new(out: &'a mut [u8]) -> Self {
        Self { out, len: 0 }
    }

    #[inline]
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        self.out[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }

    #[inline]
    pub(crate) fn u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    #[inline]
    pub(crate) fn u16(&mut self, value: u16) {
        self.put(&value.to_be_bytes());
    }

    #[inline]
    pub(crate) fn u32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }

    #[inline]
    pub(crate) fn u64(&mut self, value: u64) {
        self.put(&value.to_be_bytes());
    }

    /// Bytes written.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }
}

/// A length as a 16-bit field. Larger ones are a bug of the caller, cut to the largest.
#[inline]
pub(crate) fn length_field(len: usize) -> u16 {
    debug_assert!(
        len <= usize::from(u16::MAX),
        "length {len} does not fit its field"
    );
    u16::try_from(len).unwrap_or(u16::MAX)
}

/// The length of an option as its length byte.
#[inline]
pub(crate) fn length_byte(len: usize) -> u8 {
    u8::try_from(len).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_at_the_end_gives_nothing_and_keeps_what_is_left() {
        let mut reader = Reader::new(&[1, 2, 3]);
        assert_eq!(reader.u16(), Some(0x0102));
        assert_eq!(reader.u16(), None);
        assert_eq!(reader.u8(), Some(3));
        assert_eq!(reader.u8(), None);
        assert_eq!(reader.array(), Some([]));
    }

    #[test]
    fn writer_puts_fields_in_network_order() {
        let mut out = [0; 16];
        let mut writer = Writer::new(&mut out);
        writer.u8(0x01);
        writer.u16(0x0203);
        writer.u32(0x0405_0607);
        writer.u64(0x0809_0a0b_0c0d_0e0f);
        assert_eq!(writer.len(), 15);
        assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0]);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn writer_past_the_end_panics() {
        Writer::new(&mut [0; 3]).u32(1);
    }

    #[test]
    fn lengths_at_the_edge_of_their_fields() {
        assert_eq!(length_field(65_535), 65_535);
        assert_eq!(length_byte(255), 255);
        assert_eq!(length_byte(256), 255);
    }
}
