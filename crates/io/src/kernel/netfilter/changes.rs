//! Hears of changes to netfilter's rules and to the policies of IPsec, whoever makes them.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_XFRM};
use netlink_sys::{Socket, SocketAddr};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::super::netlink::NetlinkError;
use super::NetfilterError;

/// Tells that rules of nf_tables (`iptables` makes such, too) or policies of IPsec have changed in the network namespace
/// that it was opened in. Changes of [`Zones`](super::Zones) count. Nothing tells of the legacy `iptables`.
///
/// Its descriptor is readable as long as there is something for [`Changes::drain`].
#[derive(Debug)]
pub struct Changes {
    sockets: Vec<Socket>,
    epoll: OwnedFd,
}

impl Changes {
    /// Hears of everything from now on. What the kernel is without does not change.
    ///
    /// # Errors
    /// When the kernel gives no such socket.
    pub fn open() -> Result<Self, NetfilterError> {
        let refused = |source| NetfilterError::Refused {
            action: "hear of changes to netfilter and IPsec",
            source: NetlinkError::Socket { source },
        };
        let open = || {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let mut sockets = Vec::new();
            for (protocol, group) in [
                (NETLINK_NETFILTER, libc::NFNLGRP_NFTABLES),
                (NETLINK_XFRM, XFRMNLGRP_POLICY),
            ] {
                let Some(socket) = subscribed(protocol, group)? else {
                    continue;
                };
                let event = epoll::EventData::new_u64(0);
                epoll::add(&epoll, &socket, event, epoll::EventFlags::IN)?;
                sockets.push(socket);
            }
            Ok(Self { sockets, epoll })
        };
        open().map_err(refused)
    }

    /// Takes what the kernel has told so far. Whether anything has changed, or may have: some of it may have got lost.
    pub fn drain(&mut self) -> bool {
        let mut changed = false;
        for socket in &self.sockets {
            changed |= drained(socket);
        }
        changed
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// `None`: the kernel is without it.
fn subscribed(protocol: isize, group: c_int) -> io::Result<Option<Socket>> {
    let mut socket = match Socket::new(protocol) {
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(None),
        socket => socket?,
    };
    socket.bind(&SocketAddr::new(0, 0))?;
    socket.add_membership(group.unsigned_abs())?;
    Ok(Some(socket))
}

/// Whether there was anything.
fn drained(socket: &Socket) -> bool {
    let mut buffer = [0; 4096];
    let mut anything = false;
    loop {
        match recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
            // Cut off or lost: it has been told that something happened.
            Ok(_) | Err(Errno::NOBUFS) => anything = true,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return anything,
            // The socket is of no use: from here on everything may have changed.
            Err(_) => return true,
        }
    }
}

const XFRMNLGRP_POLICY: c_int = 4;
