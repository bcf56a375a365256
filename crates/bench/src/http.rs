//! As much of HTTP/1.1 as the load and the sink need: the head of a message with a Content-Length.

use anyhow::{Context as _, Result, bail, ensure};

/// The head of a request or a response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    /// Request line or status line.
    first: &'a str,
    /// Bytes of the body.
    pub(crate) body: u64,
    /// Bytes of the head, the empty line included.
    pub(crate) len: usize,
}

impl<'a> Head<'a> {
    /// Reads the head at the start of `bytes`; `None` while it is not complete.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Option<Self>> {
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            ensure!(bytes.len() < LONGEST, "a head without an end");
            return Ok(None);
        };
        let text = std::str::from_utf8(&bytes[..end])?;
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let mut body = 0;
        for line in lines {
            let (name, value) = line.split_once(':').context("a header without a colon")?;
            if name.eq_ignore_ascii_case("content-length") {
                body = value.trim().parse()?;
            }
            if name.eq_ignore_ascii_case("transfer-encoding") {
                bail!("{line}: only bodies of known length are understood");
            }
        }
        Ok(Some(Self {
            first,
            body,
            len: end + 4,
        }))
    }

    /// An error unless this is the status line of a success.
    pub(crate) fn expect_ok(&self) -> Result<()> {
        let status = self.first.split(' ').nth(1);
        ensure!(status == Some("200"), "the server says {:?}", self.first);
        Ok(())
    }

    /// The path of a request.
    pub(crate) fn path(&self) -> &'a str {
        self.first.split(' ').nth(1).unwrap_or_default()
    }
}

/// A longer head is none.
const LONGEST: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_read_when_it_is_complete() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-length: 12\r\nX: y\r\n\r\nbody";
        for cut in 0..bytes.len() - 4 {
            assert_eq!(Head::read(&bytes[..cut]).unwrap(), None, "{cut}");
        }
        let head = Head::read(bytes).unwrap().unwrap();
        assert_eq!((head.body, head.len), (12, bytes.len() - 4));
        head.expect_ok().unwrap();
    }

    #[test]
    fn anything_but_success_is_an_error() {
        let head = Head::read(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            .unwrap()
            .unwrap();
        assert!(head.expect_ok().is_err());
        assert!(Head::read(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
        assert!(Head::read(&[b'x'; LONGEST]).is_err());
    }

    #[test]
    fn path_is_the_second_word() {
        let head = Head::read(b"PUT /sha HTTP/1.1\r\nContent-Length: 3\r\n\r\n");
        assert_eq!(head.unwrap().unwrap().path(), "/sha");
    }
}
