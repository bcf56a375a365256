//! Target `parse`: any bytes as a packet, from the virtio-net header on. Whatever can be read stands
//! inside the bytes, and what is written from it is read the same.

use flexcp_translator::{Frame, HEADROOM, Instant, Translator, Verdict};
use flexcp_wire::{
    ChecksumState, IpHeader, Offload, PacketLine, Sum, TcpHeader, TcpOptions, VNET_HEADER_LEN,
    emit_vnet, parse_vnet,
};

use crate::input::Input;
use crate::world::{Setup, World};

/// Target.
pub fn target(data: &[u8]) {
    let Some((vnet, packet)) = data.split_first_chunk::<VNET_HEADER_LEN>() else {
        return;
    };
    let offload = parse_vnet(vnet);
    if let Ok(offload) = &offload {
        let mut out = [0; VNET_HEADER_LEN];
        emit_vnet(offload, 20, 20, &mut out);
        assert_eq!(parse_vnet(&out).as_ref(), Ok(offload));
    }
    headers(packet);
    let _ = PacketLine(packet).to_string();
    // The translator reads the same bytes, with no service that would want them and with one.
    let offload = offload.unwrap_or_default();
    translator(packet, offload);
    let mut world = World::new(Setup::read(&mut Input::new(&[])));
    world.send_raw(packet, offload);
}

fn headers(packet: &[u8]) {
    let Ok(ip) = IpHeader::parse(packet) else {
        return;
    };
    assert!(ip.header_len <= ip.total_len && ip.total_len <= packet.len());
    let segment = &packet[ip.header_len..ip.total_len];
    let mut out = [0; 40];
    let len = ip.emit(segment.len(), &mut out);
    let mut whole = out[..len].to_vec();
    whole.extend_from_slice(segment);
    let again = IpHeader::parse(&whole).expect("what was written");
    assert_eq!(
        (again.src, again.dst, again.protocol),
        (ip.src, ip.dst, ip.protocol)
    );
    assert_eq!(again.total_len - again.header_len, segment.len());
    let Ok((tcp, options)) = TcpHeader::parse(segment) else {
        return;
    };
    assert_eq!(options.len() + 20, tcp.header_len);
    assert!(tcp.header_len <= segment.len());
    let mut out = segment[..tcp.header_len].to_vec();
    tcp.emit(options.len(), &mut out);
    let (again, _) = TcpHeader::parse(&out).expect("what was written");
    assert_eq!(again, tcp);
    assert!(TcpOptions::new(options).count() <= 20);
    let _ = ip
        .pseudo_header_sum(segment.len())
        .add(Sum::of(segment))
        .checksum();
}

fn translator(packet: &[u8], offload: Offload) {
    let mut translator = Translator::new(flexcp_translator::Config::default(), [1; 32]);
    let mut buf = vec![0; HEADROOM + packet.len()];
    buf[HEADROOM..].copy_from_slice(packet);
    let end = buf.len();
    let mut frame = Frame::new(&mut buf, HEADROOM..end, offload);
    let verdict = translator
        .handle_packet(Instant::default(), &mut frame)
        .verdict;
    // What is ICMP was diverted by accident.
    let untouched = verdict == Verdict::Forward && frame.packet() == packet;
    assert!(
        untouched || matches!(verdict, Verdict::Drop(_)),
        "nobody wants it"
    );
    let mut made = 0;
    while let Some(transmit) = translator.poll_transmit() {
        assert_eq!(transmit.offload.checksum, ChecksumState::Partial);
        made += 1;
    }
    assert!(made <= 1, "{made} answers to one stray packet");
}
