//! What not every kernel has and some tests need: found by trying it in a network namespace that is made for that.

use std::fmt;
use std::process::Command;

/// Something that a kernel has or has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// ESP with AES-GCM, of IPsec, and its interfaces.
    Esp,
    /// Virtual routing and forwarding.
    Vrf,
    /// 802.1Q.
    Vlan,
    /// Bonds of links.
    Bond,
    /// Bridges.
    Bridge,
    /// PPP over Ethernet.
    Ppp,
    /// WireGuard.
    WireGuard,
}

impl Feature {
    /// Whether the kernel that runs here has it; it loads its module for that, where it finds one.
    pub fn is_there(self) -> bool {
        let script = self.script();
        let mut command = Command::new("unshare");
        command.args(["--net", "/bin/sh", "-ec", script]);
        command.output().is_ok_and(|tried| tried.status.success())
    }

    /// Fails where the kernel is without it.
    const fn script(self) -> &'static str {
        match self {
            Self::Esp => {
                "for to in 192.0.2.1 2001:db8::1; do ip xfrm state add src $to dst $to proto esp spi 1 mode tunnel \
                 aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f10111213 128; done; ip link add x type xfrm dev lo if_id 1"
            }
            Self::Vrf => "ip link add x type vrf table 9",
            Self::Vlan => {
                "ip link add near type veth peer name far; ip link add link near name x type vlan id 9"
            }
            Self::Bond => "ip link add x type bond mode active-backup",
            Self::Bridge => "ip link add x type bridge",
            Self::WireGuard => "ip link add x type wireguard",
            // A part of the kernel that no device shows, but a list of its sessions.
            Self::Ppp => "modprobe --quiet pppoe || true; [ -e /proc/self/net/pppoe ]",
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Esp => "ESP",
            Self::Vrf => "VRF",
            Self::Vlan => "VLAN",
            Self::Bond => "bonds",
            Self::Bridge => "bridges",
            Self::Ppp => "PPPoE",
            Self::WireGuard => "WireGuard",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_kernel_has_is_not_there() {
        // Also without root, who may not make a namespace.
        let absent = Command::new("unshare")
            .args(["--net", "/bin/sh", "-ec", "ip link add x type nothing"])
            .output();
        assert!(absent.is_ok_and(|tried| !tried.status.success()));
    }
}
