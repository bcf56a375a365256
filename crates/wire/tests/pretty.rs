//! The text form of packets and options.

mod common;

use common::{bytes, captured_packets, mptcp_option};
use flexcp_wire::{IpHeader, MptcpOption, PacketLine, ParseError, TcpFlags, TcpHeader};
use proptest::prelude::*;

fn packet(flags: TcpFlags, options: &str, payload: &[u8]) -> Vec<u8> {
    let mut ip = IpHeader::parse(&bytes("45000014 0000 4000 4006 0000 0a010102 0a090002"))
        .expect("an IPv4 header");
    ip.ttl = 64;
    let options = bytes(options);
    let tcp = TcpHeader {
        src_port: 40_000,
        dst_port: 80,
        seq: 100,
        ack: 7,
        flags,
        window: 65_535,
        checksum: 0,
        urgent: 3,
        header_len: 20,
    };
    let mut out = vec![0; 40];
    ip.emit(20 + options.len() + payload.len(), &mut out);
    tcp.emit(options.len(), &mut out[20..]);
    out.extend(options);
    out.extend(payload);
    out
}

#[test]
fn syn_with_mp_capable() {
    let options = "020405b4 0402080a 00000001 00000000 01030307 1e040101";
    assert_eq!(
        PacketLine(&packet(TcpFlags::SYN, options, &[])).to_string(),
        "10.1.1.2.40000 > 10.9.0.2.80: S 100:100(0) win 65535 \
         <mss 1460,sackOK,TS 1 0,wscale 7,mpcapable v1 flags [H] nokey>"
    );
}

#[test]
fn data_with_ack_and_urgent_pointer() {
    let flags = TcpFlags::PSH | TcpFlags::ACK | TcpFlags::URG;
    assert_eq!(
        PacketLine(&packet(flags, "", &[0; 9])).to_string(),
        "10.1.1.2.40000 > 10.9.0.2.80: P.U 100:109(9) ack 7 win 65535 urg 3"
    );
}

#[test]
fn sack_cookie_and_unknown_option() {
    let options = "050a 00000001 00000002 2206 aabbccdd fe04 f989";
    assert_eq!(
        PacketLine(&packet(TcpFlags::ACK, options, &[])).to_string(),
        "10.1.1.2.40000 > 10.9.0.2.80: . 100:100(0) ack 7 win 65535 \
         <sack 1:2,FO aabbccdd,opt-254 f989>"
    );
}

#[test]
fn what_cannot_be_read_says_why() {
    assert_eq!(PacketLine(&[]).to_string(), "[truncated packet] 0 bytes");
    assert_eq!(
        PacketLine(&[0x50]).to_string(),
        "[unknown IP version 5] 1 bytes"
    );
    let line = PacketLine(&packet(TcpFlags::ACK, "02030000", &[])).to_string();
    assert!(
        line.ends_with("<[bad length 3 of TCP option kind 2]>"),
        "{line}"
    );
    let mut short = packet(TcpFlags::ACK, "", &[]);
    short[32] = 0xf0;
    assert_eq!(
        PacketLine(&short).to_string(),
        "10.1.1.2 > 10.9.0.2: [bad TCP header length 60] 20 bytes"
    );
    short[9] = 1;
    assert_eq!(
        PacketLine(&short).to_string(),
        "10.1.1.2 > 10.9.0.2: protocol 1 (20)"
    );
}

#[test]
fn mptcp_options_as_packetdrill_names_them() {
    for (hex, text) in [
        (
            "1e 0c 01 81 557cfc6f9e8ce594",
            "mpcapable v1 flags [AH] key=557cfc6f9e8ce594",
        ),
        (
            "1e 14 01 01 050334cfe2462c44 557cfc6f9e8ce594",
            "mpcapable v1 flags [H] key=050334cfe2462c44 peer=557cfc6f9e8ce594",
        ),
        (
            "1e 16 01 01 050334cfe2462c44 557cfc6f9e8ce594 03e8",
            "mpcapable v1 flags [H] key=050334cfe2462c44 peer=557cfc6f9e8ce594 dll=1000 nocs",
        ),
        (
            "1e 0c 11 02 bf8ddc39 b1b1e86c",
            "mp_join_syn backup address_id=2 token=bf8ddc39 rand=b1b1e86c",
        ),
        (
            "1e 10 10 00 7f58f50cd9003e98 b4202970",
            "mp_join_syn_ack address_id=0 sender_hmac=7f58f50cd9003e98 rand=b4202970",
        ),
        (
            "1e 18 10 00 fb09e695b561955a7a767830c3d44e9ccf0583f9",
            "mp_join_ack sender_hmac=fb09e695b561955a7a767830c3d44e9ccf0583f9",
        ),
        (
            "1e 14 20 15 00000007 00000008 00000000 0001 beef",
            "dss dack4=7 dsn4=8 ssn=0 dll=1 cs=beef FIN",
        ),
        (
            "1e 1a 20 0f 0000000000000007 0000000000000008 00000001 000a",
            "dss dack8=7 dsn8=8 ssn=1 dll=10 nocs",
        ),
        (
            "1e 12 30 05 0a010203 1f90 1112131415161718",
            "add_addr address_id=5 10.1.2.3 port=8080 hmac=1112131415161718",
        ),
        (
            "1e 14 31 05 fd000000000000000000000000000009",
            "add_addr echo address_id=5 fd00::9",
        ),
        ("1e 05 40 01 02", "remove_addr address_id=[1, 2]"),
        ("1e 03 51", "mp_prio backup"),
        ("1e 03 50", "mp_prio"),
        ("1e 0c 60 00 0000000000000009", "mp_fail dsn8=9"),
        (
            "1e 0c 70 00 557cfc6f9e8ce594",
            "mp_fastclose key=557cfc6f9e8ce594",
        ),
        ("1e 04 81 02", "mp_tcprst reason=2 transient"),
        ("1e 05 f1 aa bb", "mp_experimental flags=0x1 aabb"),
        ("1e 04 90 aa", "mptcp-0x9 flags=0x0 aa"),
    ] {
        let option = MptcpOption::parse(&bytes(hex)).expect(text);
        assert_eq!(option.to_string(), text);
    }
}

#[test]
fn errors_are_in_lower_case_without_full_stop() {
    for (error, text) in [
        (ParseError::Fragment, "IP fragment"),
        (
            ParseError::OptionLength { kind: 8, len: 3 },
            "bad length 3 of TCP option kind 8",
        ),
        (
            ParseError::MptcpLength {
                subtype: 15,
                len: 3,
            },
            "bad length 3 of MPTCP option subtype 0xf",
        ),
        (ParseError::GsoType(3), "segmentation type 0x03 is not TCP"),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn captured_packets_have_a_line_without_errors() {
    for packet in captured_packets() {
        let line = PacketLine(&packet).to_string();
        assert!(line.contains(".8080") && !line.contains("[bad"), "{line}");
    }
}

proptest! {
    #[test]
    fn any_mptcp_option_has_a_name(option in mptcp_option()) {
        let text = option.to_string();
        prop_assert!(text.starts_with(char::is_alphabetic) && !text.ends_with('='));
    }
}
