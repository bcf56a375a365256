//! SOCKS5 (RFC 1928) and its user name and password (RFC 1929).

use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddr};

use flexcp_wire::{
    SOCKS_MAX_LEN, SocksAddr, SocksCommand, SocksCredentials, SocksFault, SocksGreeting,
    SocksReply, SocksRequest, socks_credentials_judged, socks_method, socks_method_chosen,
};

use crate::{Answer, Fault, Gate, Next, Refusal, Stage, Step, Target, Wish};

/// The methods that the client offers: the one that is asked for is taken, or none.
pub(crate) fn greeting(bytes: &[u8], gate: &dyn Gate, say: &mut Vec<u8>) -> Step {
    let (greeting, taken) = match SocksGreeting::parse(bytes) {
        Ok(read) => read,
        Err(fault) => return unread(fault),
    };
    let (wanted, stage) = if gate.asks_password() {
        (socks_method::PASSWORD, Stage::Credentials)
    } else {
        (socks_method::NONE, Stage::Request)
    };
    let next = if greeting.methods.contains(&wanted) {
        say.extend(socks_method_chosen(wanted));
        Next::Stage(stage)
    } else {
        say.extend(socks_method_chosen(socks_method::UNACCEPTABLE));
        Next::Close(Fault::Method)
    };
    Step { taken, next }
}

/// The client's user name and password.
pub(crate) fn credentials(bytes: &[u8], gate: &dyn Gate, say: &mut Vec<u8>) -> Step {
    let (credentials, taken) = match SocksCredentials::parse(bytes) {
        Ok(read) => read,
        Err(fault) => return unread(fault),
    };
    let right = gate.knows(credentials.user, credentials.password);
    say.extend(socks_credentials_judged(right));
    let next = if right {
        Next::Stage(Stage::Request)
    } else {
        Next::Close(Fault::Credentials)
    };
    Step { taken, next }
}

/// What the client wants.
pub(crate) fn request(bytes: &[u8], say: &mut Vec<u8>) -> Step {
    let (request, taken) = match SocksRequest::parse(bytes) {
        Ok(read) => read,
        Err(SocksFault::AddressType(_)) => {
            return close(
                bytes.len(),
                SocksReply::AddressType,
                Fault::Unsupported,
                say,
            );
        }
        Err(SocksFault::Empty) => {
            return close(bytes.len(), SocksReply::Failure, Fault::Malformed, say);
        }
        Err(fault) => return unread(fault),
    };
    if request.command != SocksCommand::Connect {
        return close(taken, SocksReply::Command, Fault::Unsupported, say);
    }
    if request.port == 0 {
        return close(taken, SocksReply::Failure, Fault::Malformed, say);
    }
    let to = match request.to {
        SocksAddr::Ip(addr) => Target::Ip(addr.to_canonical()),
        SocksAddr::Name(name) => Target::Name(name.into()),
    };
    let wish = Wish {
        to,
        port: request.port,
    };
    Step {
        taken,
        next: Next::Wish(Answer::Socks, wish),
    }
}

/// The bytes are no message, or none yet.
fn unread(fault: SocksFault) -> Step {
    let next = match fault {
        SocksFault::Incomplete(_) => Next::More,
        SocksFault::Version(_) => Next::Reset(Fault::Protocol),
        SocksFault::AddressType(_) => Next::Reset(Fault::Unsupported),
        SocksFault::Empty => Next::Reset(Fault::Malformed),
    };
    Step { taken: 0, next }
}

fn close(taken: usize, reply: SocksReply, fault: Fault, say: &mut Vec<u8>) -> Step {
    tell(reply, NOWHERE, say);
    Step {
        taken,
        next: Next::Close(fault),
    }
}

/// The answer to a client that is connected.
pub(crate) fn granted(from: SocketAddr, say: &mut Vec<u8>) {
    tell(SocksReply::Succeeded, from, say);
}

/// The answer to one that is not.
pub(crate) fn refused(why: Refusal, say: &mut Vec<u8>) {
    let reply = match why {
        Refusal::NotAllowed | Refusal::ClientLimit => SocksReply::NotAllowed,
        Refusal::NoName => SocksReply::HostUnreachable,
        Refusal::Reset => SocksReply::Refused,
        Refusal::Unreachable { code, is_v6 } => unreachable(code, is_v6),
        Refusal::Expired => SocksReply::Expired,
        Refusal::NoRoom(_) => SocksReply::Failure,
        Refusal::NoNetwork => SocksReply::NetworkUnreachable,
    };
    tell(reply, NOWHERE, say);
}

/// The reply for a "destination unreachable" (RFC 792, RFC 1812 section 5.2.7.1; RFC 4443 section 3.1).
const fn unreachable(code: u8, is_v6: bool) -> SocksReply {
    match (is_v6, code) {
        (false, 0 | 6 | 11) | (true, 0) => SocksReply::NetworkUnreachable,
        (false, 3) | (true, 4) => SocksReply::Refused,
        (false, 9 | 10 | 13) | (true, 1 | 5 | 6) => SocksReply::NotAllowed,
        _ => SocksReply::HostUnreachable,
    }
}

fn tell(reply: SocksReply, from: SocketAddr, say: &mut Vec<u8>) {
    let mut out = [0; SOCKS_MAX_LEN];
    let len = reply.emit(SocksAddr::Ip(from.ip()), from.port(), &mut out);
    say.extend_from_slice(&out[..len]);
}

/// The address in an answer that has none.
const NOWHERE: SocketAddr = SocketAddr::new(core::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
