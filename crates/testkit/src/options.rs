//! What the options of a packet say.

use flexcp_wire::{
    AddAddr, CapableKeys, DataNumber, Dss, MpCapable, MpJoin, MptcpOption, ParseError, RemoveAddr,
    SackBlocks, TcpOption, TcpOptions, Timestamps, kind,
};

/// The options of one packet. Of several of a kind the last one counts.
#[derive(Clone, Default, Debug)]
pub struct Options {
    /// Maximum segment size, in bytes.
    pub mss: Option<u16>,
    /// Window scale as it was sent, above 14 too.
    pub window_scale: Option<u8>,
    /// SACK permitted.
    pub sack_permitted: bool,
    /// SACK blocks, in the numbers of the packet's acknowledgment.
    pub sack: SackBlocks,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// `MP_CAPABLE`.
    pub capable: Option<MpCapable>,
    /// `MP_JOIN`.
    pub join: Option<MpJoin>,
    /// DSS.
    pub dss: Option<Dss>,
    /// `ADD_ADDR`.
    pub add_addr: Option<AddAddr>,
    /// `REMOVE_ADDR`.
    pub remove_addr: Option<RemoveAddr>,
    /// `MP_PRIO`: as backup, or not.
    pub prio: Option<bool>,
    /// `MP_FAIL`.
    pub fail: bool,
    /// The key of `MP_FASTCLOSE`.
    pub fast_close: Option<u64>,
    /// Any MPTCP option, one that can't be read included.
    pub mptcp: bool,
    /// The kind of an option that nobody here knows.
    pub unknown: Option<u8>,
    /// An MPTCP option that can't be read; those behind it were.
    pub malformed: bool,
    /// What can't be read at all: nothing behind it was.
    pub broken: Option<ParseError>,
}

impl Options {
    /// Reads the option bytes of a header.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Self {
        let mut options = Self::default();
        for option in TcpOptions::new(bytes) {
            match option {
                Ok(option) => options.take(option),
                Err(ParseError::MptcpLength { .. } | ParseError::DataFinWithoutMapping) => {
                    options.mptcp = true;
                    options.malformed = true;
                }
                Err(error) => options.broken = options.broken.or(Some(error)),
            }
        }
        options
    }

    /// Whether all of them could be read.
    #[must_use]
    pub const fn is_well_formed(&self) -> bool {
        !self.malformed && self.broken.is_none()
    }

    /// The shift that the window scale stands for: above 14 it counts as 14 (RFC 7323 section 2.3).
    #[must_use]
    pub fn scale(&self) -> Option<u8> {
        self.window_scale.map(|shift| shift.min(14))
    }

    /// The data ACK.
    #[must_use]
    pub fn data_ack(&self) -> Option<DataNumber> {
        self.dss.and_then(|dss| dss.data_ack)
    }

    /// The key of an `MP_CAPABLE` as a SYN/ACK carries it.
    #[must_use]
    pub fn key(&self) -> Option<u64> {
        match self.capable?.keys {
            CapableKeys::SynAck { sender } => Some(sender),
            _ => None,
        }
    }

    fn take(&mut self, option: TcpOption<'_>) {
        match option {
            TcpOption::Mss(mss) => self.mss = Some(mss),
            TcpOption::WindowScale(shift) => self.window_scale = Some(shift),
            TcpOption::SackPermitted => self.sack_permitted = true,
            TcpOption::Sack(blocks) => self.sack = blocks,
            TcpOption::Timestamps(timestamps) => self.timestamps = Some(timestamps),
            TcpOption::FastOpen(_) => self.unknown = Some(kind::FAST_OPEN),
            TcpOption::Unknown { kind, .. } => self.unknown = Some(kind),
            TcpOption::Mptcp(option) => self.take_mptcp(option),
        }
    }

    fn take_mptcp(&mut self, option: MptcpOption) {
        self.mptcp = true;
        match option {
            MptcpOption::Capable(capable) => self.capable = Some(capable),
            MptcpOption::Join(join) => self.join = Some(join),
            MptcpOption::Dss(dss) => self.dss = Some(dss),
            MptcpOption::AddAddr(add_addr) => self.add_addr = Some(add_addr),
            MptcpOption::RemoveAddr(remove) => self.remove_addr = Some(remove),
            MptcpOption::Prio(prio) => self.prio = Some(prio.backup),
            MptcpOption::Fail(_) => self.fail = true,
            MptcpOption::FastClose(close) => self.fast_close = Some(close.key),
            MptcpOption::Reset(_) | MptcpOption::Experimental(_) | MptcpOption::Unknown(_) => {}
        }
    }
}

/// What each option says, in words, in the order in which they stand: padding and forms of it left out.
#[must_use]
pub fn said(options: &[u8]) -> Vec<String> {
    let options = TcpOptions::new(options).map(|option| format!("{option:?}"));
    options.collect()
}
