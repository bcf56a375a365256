//! Where clients of split connections come in: listening sockets of MPTCP, which take plain TCP as well.

use std::io;
use std::net::{SocketAddr, TcpListener};

use flexcp_io::take_syn_data;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use super::{SplitError, Told};

/// Connections that the kernel has accepted and the relay has not; half as many again may be opening. The kernel cuts it down to
/// net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// Clients whose SYN had data and who have not shown yet that they are where they say, at an end. The data of more is not taken.
const UNPROVED: u16 = 256;
/// `TFO_SERVER_ENABLE` of `net/tcp.h`, in the switch `net.ipv4.tcp_fastopen`.
const SERVERS_TAKE_DATA: u32 = 2;

/// Whether the relay's sockets take data of SYNs: the kernel has to know how, and the host to allow it.
pub(super) fn takes_syn_data() -> bool {
    let switch = flexcp_io::switch("net/ipv4/tcp_fastopen");
    let switch = switch.and_then(|text| text.trim().parse().ok());
    let allowed = switch.is_some_and(|switch: u32| switch & SERVERS_TAKE_DATA != 0);
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    allowed && socket(any).is_ok_and(|socket| take_syn_data(socket, UNPROVED).is_ok())
}

/// Binds all ends of `told` but those that are bound.
pub(super) fn all(
    told: &Told,
    bound: &[SocketAddr],
) -> Result<Vec<(SocketAddr, TcpListener)>, SplitError> {
    let new = told.ends().into_iter();
    let new = new.filter(|(end, _)| !bound.contains(end));
    let bind = |(end, service): (SocketAddr, &super::Relayed)| {
        let socket = socket(end)?;
        listen(&socket, end).map_err(|error| SplitError::Bind {
            service: service.name.clone(),
            end,
            hint: hint(&error),
            error,
        })?;
        Ok((end, TcpListener::from(socket)))
    };
    new.map(bind).collect()
}

/// What may help.
fn hint(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::PermissionDenied {
        "; a port below 1024 takes CAP_NET_BIND_SERVICE, under systemd in AmbientCapabilities= and CapabilityBoundingSet="
    } else {
        ""
    }
}

fn socket(end: SocketAddr) -> Result<std::os::fd::OwnedFd, SplitError> {
    let family = match end {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let protocol = Some(ipproto::MPTCP);
    let made = rustix::net::socket_with(family, SocketType::STREAM, flags, protocol);
    made.map_err(|error| match error {
        Errno::AFNOSUPPORT => SplitError::NoFamily(error.into()),
        _ => SplitError::NoMptcp(error.into()),
    })
}

fn listen(socket: &std::os::fd::OwnedFd, end: SocketAddr) -> io::Result<()> {
    // Connections of an earlier run may still wait for their end.
    sockopt::set_socket_reuseaddr(socket, true)?;
    if end.is_ipv6() {
        sockopt::set_ipv6_v6only(socket, true)?;
    }
    // Where the kernel can't, SYNs with data do not come here (`takes_syn_data`).
    let _ = take_syn_data(socket, UNPROVED);
    rustix::net::bind(socket, &end)?;
    rustix::net::listen(socket, BACKLOG)?;
    Ok(())
}
