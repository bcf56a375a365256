//! Reads decisions out of a fuzzer's bytes. When they are used up everything is 0, so every input is a
//! whole one and cutting it short simplifies it.

/// The rest of the bytes.
#[derive(Clone, Debug)]
pub(crate) struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn u8(&mut self) -> u8 {
        let Some((&first, rest)) = self.rest.split_first() else {
            return 0;
        };
        self.rest = rest;
        first
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.u8(), self.u8()])
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from(self.u16()) << 16 | u32::from(self.u16())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from(self.u32()) << 32 | u64::from(self.u32())
    }

    pub(crate) fn bool(&mut self) -> bool {
        self.u8() & 1 != 0
    }

    /// Below `count`, which is at most 256.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        usize::from(self.u8()) % count
    }

    /// A length: mostly short, now and then up to `most`.
    pub(crate) fn len(&mut self, most: u32) -> u32 {
        let len = match self.u8() {
            small @ 0..=127 => u32::from(small),
            128..=199 => u32::from(self.u8()) * 8,
            200..=239 => 1400,
            _ => u32::from(self.u16()),
        };
        len.min(most)
    }

    /// A distance from a number that would be right: mostly none or little, now and then anything.
    pub(crate) fn delta(&mut self) -> u32 {
        match self.u8() {
            0..=127 => 0,
            128..=191 => i32::from(self.u8().cast_signed()).cast_unsigned(),
            192..=239 => i32::from(self.u16().cast_signed()).cast_unsigned(),
            _ => self.u32(),
        }
    }

    /// At most `count` bytes as they are.
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        bytes
    }
}
