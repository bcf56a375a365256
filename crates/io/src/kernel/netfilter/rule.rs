//! A rule of nf_tables: expressions, each of which has to hold for the next to be looked at. They are those that `nft`
//! makes, so that it lists them in its own words.

use std::ffi::c_int;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use flexcp_translator::Prefix;

use super::super::Family;
use super::message::Message;

/// A rule in the making. Every expression uses register 1.
#[derive(Debug)]
pub(super) struct Rule {
    expressions: Message,
}

/// One of a packet's two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Source,
    Destination,
}

impl Rule {
    /// Which holds for every packet.
    pub(super) fn new() -> Self {
        Self {
            expressions: Message::new(0, &[]),
        }
    }

    /// The message that appends it to `chain` of `table`, which is of the family `inet`.
    pub(super) fn message(&self, table: &str, chain: &str) -> Message {
        let mut message = Message::netfilter(
            libc::NFNL_SUBSYS_NFTABLES,
            libc::NFT_MSG_NEWRULE,
            libc::NFPROTO_INET,
        );
        message.put_words(NFTA_RULE_TABLE, table);
        message.put_words(NFTA_RULE_CHAIN, chain);
        message.nest(NFTA_RULE_EXPRESSIONS, |list| list.join(&self.expressions));
        message
    }

    /// Holds if the packet has come in on `interface`, or if it has not.
    pub(super) fn interface(&mut self, interface: &str, is: bool) {
        let mut name = [0; libc::IFNAMSIZ];
        let len = interface.len().min(name.len());
        name[..len].copy_from_slice(&interface.as_bytes()[..len]);
        self.load(libc::NFT_META_IIFNAME);
        self.compare(
            if is {
                libc::NFT_CMP_EQ
            } else {
                libc::NFT_CMP_NEQ
            },
            &name,
        );
    }

    /// Holds if the packet's mark has none of `bits`.
    pub(super) fn mark_without(&mut self, bits: u32) {
        self.load(libc::NFT_META_MARK);
        self.mask(&bits.to_ne_bytes());
        self.compare(libc::NFT_CMP_EQ, &[0; 4]);
    }

    /// Holds if the packet's mark has all of `bits`.
    pub(super) fn mark_with(&mut self, bits: u32) {
        self.load(libc::NFT_META_MARK);
        self.mask(&bits.to_ne_bytes());
        self.compare(libc::NFT_CMP_EQ, &bits.to_ne_bytes());
    }

    /// Holds if the mark of the packet's connection has all of `bits`, and the packet goes to who has opened it.
    pub(super) fn answers_marked(&mut self, bits: u32) {
        const REPLY: u8 = 1;
        self.connection(libc::NFT_CT_DIRECTION);
        self.compare(libc::NFT_CMP_EQ, &[REPLY]);
        self.connection(libc::NFT_CT_MARK);
        self.mask(&bits.to_ne_bytes());
        self.compare(libc::NFT_CMP_EQ, &bits.to_ne_bytes());
    }

    /// Sets `bits` in the mark of the packet's connection.
    pub(super) fn mark_connection(&mut self, bits: u32) {
        self.connection(libc::NFT_CT_MARK);
        self.set_bits(bits);
        self.add("ct", |ct| {
            ct.put(NFTA_CT_KEY, &number(libc::NFT_CT_MARK));
            ct.put(NFTA_CT_SREG, &REGISTER);
        });
    }

    /// Sets `bits` in the mark of the packet.
    pub(super) fn mark_packet(&mut self, bits: u32) {
        self.load(libc::NFT_META_MARK);
        self.set_bits(bits);
        self.add("meta", |meta| {
            meta.put(NFTA_META_KEY, &number(libc::NFT_META_MARK));
            meta.put(NFTA_META_SREG, &REGISTER);
        });
    }

    /// Holds if the packet is of `family`.
    pub(super) fn family(&mut self, family: Family) {
        self.load(libc::NFT_META_NFPROTO);
        self.compare(
            libc::NFT_CMP_EQ,
            &[match family {
                Family::V4 => 2,
                Family::V6 => 10,
            }],
        );
    }

    /// Holds if the address of `end` is in `prefix`, for packets of its family.
    pub(super) fn address(&mut self, end: End, prefix: &Prefix) {
        const NETWORK_HEADER: u32 = 1;
        let (address, offset) = match prefix.addr {
            IpAddr::V4(address) => (address.octets().to_vec(), [12, 16]),
            IpAddr::V6(address) => (address.octets().to_vec(), [8, 24]),
        };
        let mask = mask(prefix.len, address.len());
        let network: Vec<u8> = address
            .iter()
            .zip(&mask)
            .map(|(byte, mask)| byte & mask)
            .collect();
        self.payload(NETWORK_HEADER, offset[end.index()], address.len());
        if usize::from(prefix.len) < 8 * address.len() {
            self.mask(&mask);
        }
        self.compare(libc::NFT_CMP_EQ, &network);
    }

    /// Holds if the packet is one of TCP.
    pub(super) fn tcp(&mut self) {
        self.load(libc::NFT_META_L4PROTO);
        self.compare(libc::NFT_CMP_EQ, &[6]);
    }

    /// Holds if the port of `end` is in `ports`, for packets of TCP.
    pub(super) fn port(&mut self, end: End, ports: &RangeInclusive<u16>) {
        const TRANSPORT_HEADER: u32 = 2;
        self.payload(TRANSPORT_HEADER, [0, 2][end.index()], 2);
        if ports.start() == ports.end() {
            return self.compare(libc::NFT_CMP_EQ, &ports.start().to_be_bytes());
        }
        self.compare(libc::NFT_CMP_GTE, &ports.start().to_be_bytes());
        self.compare(libc::NFT_CMP_LTE, &ports.end().to_be_bytes());
    }

    /// Has conntrack look for the packet's connection in `zone`.
    pub(super) fn set_zone(&mut self, zone: u16) {
        self.add("immediate", |immediate| {
            immediate.put(NFTA_IMMEDIATE_DREG, &REGISTER);
            immediate.nest(NFTA_IMMEDIATE_DATA, |data| {
                data.put(NFTA_DATA_VALUE, &zone.to_ne_bytes());
            });
        });
        self.add("ct", |ct| {
            ct.put(NFTA_CT_KEY, &number(libc::NFT_CT_ZONE));
            ct.put(NFTA_CT_SREG, &REGISTER);
        });
    }

    /// What is known about the packet beside its bytes.
    fn load(&mut self, key: c_int) {
        self.add("meta", |meta| {
            meta.put(NFTA_META_DREG, &REGISTER);
            meta.put(NFTA_META_KEY, &number(key));
        });
    }

    /// What conntrack knows about its connection.
    fn connection(&mut self, key: c_int) {
        self.add("ct", |ct| {
            ct.put(NFTA_CT_DREG, &REGISTER);
            ct.put(NFTA_CT_KEY, &number(key));
        });
    }

    fn set_bits(&mut self, bits: u32) {
        self.transform(&(!bits).to_ne_bytes(), &bits.to_ne_bytes());
    }

    fn payload(&mut self, header: u32, offset: u32, len: usize) {
        self.add("payload", |payload| {
            payload.put(NFTA_PAYLOAD_DREG, &REGISTER);
            payload.put(NFTA_PAYLOAD_BASE, &header.to_be_bytes());
            payload.put(NFTA_PAYLOAD_OFFSET, &offset.to_be_bytes());
            payload.put(NFTA_PAYLOAD_LEN, &length(len));
        });
    }

    fn mask(&mut self, mask: &[u8]) {
        self.transform(mask, &vec![0; mask.len()]);
    }

    /// What is in the register, with `mask`, and then with the bits of `flipped` turned.
    fn transform(&mut self, mask: &[u8], flipped: &[u8]) {
        self.add("bitwise", |bitwise| {
            bitwise.put(NFTA_BITWISE_SREG, &REGISTER);
            bitwise.put(NFTA_BITWISE_DREG, &REGISTER);
            bitwise.put(NFTA_BITWISE_LEN, &length(mask.len()));
            bitwise.nest(NFTA_BITWISE_MASK, |data| data.put(NFTA_DATA_VALUE, mask));
            bitwise.nest(NFTA_BITWISE_XOR, |data| {
                data.put(NFTA_DATA_VALUE, flipped);
            });
        });
    }

    fn compare(&mut self, how: c_int, with: &[u8]) {
        self.add("cmp", |cmp| {
            cmp.put(NFTA_CMP_SREG, &REGISTER);
            cmp.put(NFTA_CMP_OP, &number(how));
            cmp.nest(NFTA_CMP_DATA, |data| data.put(NFTA_DATA_VALUE, with));
        });
    }

    fn add(&mut self, name: &str, fill: impl FnOnce(&mut Message)) {
        self.expressions.nest(NFTA_LIST_ELEM, |expression| {
            expression.put_words(NFTA_EXPR_NAME, name);
            expression.nest(NFTA_EXPR_DATA, fill);
        });
    }
}

impl End {
    /// In an array of what differs for the source and for the destination.
    const fn index(self) -> usize {
        match self {
            Self::Source => 0,
            Self::Destination => 1,
        }
    }
}

/// A netmask of `len` bits in `bytes` bytes.
fn mask(len: u8, bytes: usize) -> Vec<u8> {
    let mask = u128::MAX
        .checked_shl(128 - u32::from(len))
        .unwrap_or(0)
        .to_be_bytes();
    mask[..bytes].to_vec()
}

/// A number as nf_tables wants it.
pub(super) const fn number(number: c_int) -> [u8; 4] {
    number.to_be_bytes()
}

/// Of some bytes in a register, which holds 16.
fn length(len: usize) -> [u8; 4] {
    u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes()
}

/// `NFT_REG_1`.
const REGISTER: [u8; 4] = number(libc::NFT_REG_1);

const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_META_DREG: u16 = 1;
const NFTA_META_KEY: u16 = 2;
const NFTA_PAYLOAD_DREG: u16 = 1;
const NFTA_PAYLOAD_BASE: u16 = 2;
const NFTA_PAYLOAD_OFFSET: u16 = 3;
const NFTA_PAYLOAD_LEN: u16 = 4;
const NFTA_BITWISE_SREG: u16 = 1;
const NFTA_BITWISE_DREG: u16 = 2;
const NFTA_BITWISE_LEN: u16 = 3;
const NFTA_BITWISE_MASK: u16 = 4;
const NFTA_BITWISE_XOR: u16 = 5;
const NFTA_CMP_SREG: u16 = 1;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const NFTA_IMMEDIATE_DREG: u16 = 1;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_META_SREG: u16 = 3;
const NFTA_CT_DREG: u16 = 1;
const NFTA_CT_KEY: u16 = 2;
const NFTA_CT_SREG: u16 = 4;
