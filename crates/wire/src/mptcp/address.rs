//! ADD_ADDR (RFC 8684 section 3.4.1, figure 12) and REMOVE_ADDR (section 3.4.2, figure 13).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Body, OptionData, Subtype, subtype_byte};
use crate::bytes::Writer;

/// ADD_ADDR: announces an address, or echoes such an announcement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddAddr {
    /// E: confirms that the announcement was received.
    pub echo: bool,
    /// Of the address, in the numbering of the host that has it.
    pub id: u8,
    /// The address.
    pub addr: IpAddr,
    /// Port to connect to; `None` means that of the subflow which carries the option.
    pub port: Option<u16>,
    /// Rightmost 64 bits of the HMAC; `None` exactly in an echo. An echo is written without it
    /// whatever stands here; an announcement that lacks it, with zero.
    pub hmac: Option<u64>,
}

impl AddAddr {
    #[inline]
    pub(super) fn parse(body: Body<'_>) -> Option<Self> {
        let Body { len, flags, .. } = body;
        let mut reader = body.reader();
        let echo = flags & ECHO != 0;
        let hmac_len = if echo { 0 } else { HMAC_LEN };
        let id = reader.u8()?;
        let (is_v6, has_port) = match usize::from(len).checked_sub(4 + hmac_len)? {
            4 => (false, false),
            6 => (false, true),
            16 => (true, false),
            18 => (true, true),
            _ => return None,
        };
        let addr = if is_v6 {
            IpAddr::V6(Ipv6Addr::from(reader.array::<16>()?))
        } else {
            IpAddr::V4(Ipv4Addr::from(reader.array::<4>()?))
        };
        let port = if has_port { Some(reader.u16()?) } else { None };
        let hmac = if echo { None } else { Some(reader.u64()?) };
        Some(Self {
            echo,
            id,
            addr,
            port,
            hmac,
        })
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        let addr = if self.addr.is_ipv6() { 16 } else { 4 };
        let port = if self.port.is_some() { 2 } else { 0 };
        let hmac = if self.echo { 0 } else { HMAC_LEN };
        4 + addr + port + hmac
    }

    #[inline]
    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        out.put(&[subtype_byte(Subtype::AddAddr, u8::from(self.echo)), self.id]);
        match self.addr {
            IpAddr::V4(addr) => out.put(&addr.octets()),
            IpAddr::V6(addr) => out.put(&addr.octets()),
        }
        if let Some(port) = self.port {
            out.u16(port);
        }
        if !self.echo {
            out.u64(self.hmac.unwrap_or(0));
        }
    }
}

/// REMOVE_ADDR: withdraws addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RemoveAddr {
    ids: OptionData,
}

impl RemoveAddr {
    /// Withdraws the addresses with these ids: at least one (an option without any is malformed),
    /// and the first 37 at most, which is what fits in a header.
    #[must_use]
    #[inline]
    pub fn new(ids: &[u8]) -> Self {
        debug_assert!(!ids.is_empty(), "REMOVE_ADDR without an address id");
        Self {
            ids: OptionData::new(ids),
        }
    }

    /// Ids of the addresses, in the numbering of the option's sender; never empty when received.
    #[must_use]
    #[inline]
    pub fn ids(&self) -> &[u8] {
        &self.ids
    }

    #[inline]
    pub(super) fn parse(ids: &[u8]) -> Option<Self> {
        if ids.is_empty() {
            None
        } else {
            Some(Self::new(ids))
        }
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        3 + self.ids.len()
    }

    #[inline]
    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        out.u8(subtype_byte(Subtype::RemoveAddr, 0));
        out.put(&self.ids);
    }
}

impl fmt::Debug for RemoveAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoveAddr").field(&self.ids()).finish()
    }
}

const ECHO: u8 = 0x01;
const HMAC_LEN: usize = 8;
