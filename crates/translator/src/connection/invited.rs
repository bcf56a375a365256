//! Where FlexCP may join a peer beside the address of the initial subflow: addresses that the peer has announced (`ADD_ADDR`, RFC 8684
//! section 3.4.1), as far as the configuration lists them. Anybody who knows the keys can announce anybody's address.

use core::net::{IpAddr, SocketAddr};

use flexcp_wire::RemoveAddr;

use super::{Connection, Context};
use crate::handle::{INITIAL, SubflowIndex};
use crate::uplink::Uplink;

/// One address of each family.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Invited {
    v4: Option<(u8, SocketAddr)>,
    v6: Option<(u8, SocketAddr)>,
}

impl Invited {
    const fn of_family(&mut self, is_v4: bool) -> &mut Option<(u8, SocketAddr)> {
        if is_v4 { &mut self.v4 } else { &mut self.v6 }
    }

    /// The peer has announced this under `id`. The first of a family is kept, and what comes later under its id. `true`: it is new.
    fn add(&mut self, id: u8, end: SocketAddr) -> bool {
        let known = self.of_family(end.is_ipv4());
        let takes = known.is_none_or(|(known, _)| known == id) && *known != Some((id, end));
        if takes {
            *known = Some((id, end));
        }
        takes
    }

    fn remove(&mut self, ids: &[u8]) {
        for known in [&mut self.v4, &mut self.v6] {
            known.take_if(|(id, _)| ids.contains(id));
        }
    }

    fn ends(self) -> impl Iterator<Item = SocketAddr> {
        [self.v4, self.v6].into_iter().flatten().map(|(_, end)| end)
    }
}

impl Connection {
    /// The peer has announced an address, in a packet on subflow `index`, and has proved that it is the peer.
    pub(super) fn note_invited(
        &mut self,
        ctx: &Context<'_>,
        index: SubflowIndex,
        (id, addr, port): (u8, IpAddr, Option<u16>),
    ) {
        let same = self.subflow(index).remote.addr().port();
        let end = SocketAddr::new(addr, port.unwrap_or(same));
        let allowed = ctx.services.may_join(self.service, addr);
        let Some(asking) = self.asking.as_deref_mut().filter(|_| allowed) else {
            return;
        };
        if end.port() != 0 && asking.invited.add(id, end) {
            asking.joins.begin(ctx.now);
        }
    }

    /// The peer has lost addresses.
    pub(super) fn note_uninvited(&mut self, remove: &RemoveAddr) {
        if let Some(asking) = &mut self.asking {
            asking.invited.remove(remove.ids());
        }
    }

    /// FlexCP opened the connection, and the peer takes no joins at all: who has lost every subflow has lost the connection.
    pub(super) fn is_never_joined(&self) -> bool {
        let asking = self.asking.as_deref();
        asking.is_some_and(|asking| !asking.joinable && asking.invited.ends().next().is_none())
    }

    /// FlexCP's end and the peer's for a join over an uplink: to where the initial subflow goes, unless the peer takes no joins there
    /// (flag C) or the uplink has no address of that family.
    pub(crate) fn join_ends(&self, uplink: &Uplink) -> Option<(IpAddr, SocketAddr)> {
        let asking = self.asking.as_deref()?;
        let initial = self.subflow(INITIAL).remote.addr();
        let first = asking.joinable.then_some(initial).into_iter();
        let mut all = first.chain(asking.invited.ends());
        all.find_map(|end| Some((uplink.addr(end.is_ipv4())?, end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(text: &str) -> SocketAddr {
        text.parse().expect("an end")
    }

    #[test]
    fn first_of_a_family_is_kept_until_it_is_removed() {
        let mut invited = Invited::default();
        assert!(invited.add(1, end("192.0.2.1:443")));
        assert!(!invited.add(1, end("192.0.2.1:443")), "again");
        assert!(!invited.add(2, end("192.0.2.2:443")), "another");
        assert!(invited.add(3, end("[2001:db8::1]:443")));
        assert!(invited.add(1, end("192.0.2.9:443")), "the id has moved");
        invited.remove(&[2]);
        assert_eq!(invited.ends().count(), 2);
        invited.remove(&[1]);
        assert!(invited.ends().eq([end("[2001:db8::1]:443")]));
    }
}
