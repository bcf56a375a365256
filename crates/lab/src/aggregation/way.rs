//! What may carry a client's bytes over the uplinks, and what the uplinks are like.

use serde::{Serialize, Serializer};

/// An uplink of the lab, as T-MPTCP's were: a modem for 4G.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uplink {
    pub(super) name: &'static str,
    /// What it carries of IP packets, in kB/s, each way.
    rate: u32,
}

/// The lab's link 1, on which connections begin, and link 2. The rates are those of the paper's Figure 5a.
pub(super) const UPLINKS: [Uplink; 2] = [
    Uplink {
        name: "mobile",
        rate: 3700,
    },
    Uplink {
        name: "telecom",
        rate: 1800,
    },
];

/// RTTs of the two in milliseconds, without what waits in queues, unless others are asked for.
///
/// The paper has none for Figure 5, but in Table 1 the uplink with the higher rate has the lower RTT at three of five servers.
pub(super) const RTTS: [u32; 2] = [30, 45];

/// What all of it is measured over.
#[derive(Clone, Debug)]
pub(super) struct Network {
    /// Of the mobile and of the telecom uplink, in milliseconds, without queues.
    pub(super) rtts: [u32; 2],
    /// Congestion control of all ends.
    pub(super) congestion: String,
}

/// What waits before an uplink at most, in milliseconds of its rate.
pub(super) const QUEUE: u32 = 100;

/// Of the bytes of an IP packet of full size, those that are payload: 1500 bytes, less 20 for IPv4, 32 for TCP with timestamps, and 28
/// for a DSS with 64-bit numbers.
pub(super) const PAYLOAD: f64 = 1420.0 / 1500.0;

/// The numbers of the lab's links that are these uplinks.
pub(super) const MOBILE: u8 = 1;
pub(super) const TELECOM: u8 = 2;

/// An uplink by the number of its link.
pub(super) fn uplink(link: u8) -> Uplink {
    UPLINKS[usize::from(link) - 1]
}

impl Uplink {
    /// What the link emulator is told, for each way, with an RTT in milliseconds.
    pub(super) fn faults(self, rtt: u32) -> String {
        let bits = self.rate * 8;
        let queue = self.rate * QUEUE;
        let delay = rtt * 500;
        format!("rate={bits}kbit:{queue}b,delay={delay}us")
    }

    /// What it carries of IP packets, in MB/s.
    pub(super) fn rate(self) -> f64 {
        f64::from(self.rate) / 1000.0
    }
}

/// What both uplinks carry of IP packets, in MB/s.
pub(super) fn sum() -> f64 {
    UPLINKS.iter().map(|uplink| uplink.rate()).sum()
}

/// Where a box leads its connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FarEnd {
    /// The server speaks MPTCP.
    Direct,
    /// A FlexCP with `mode = "convert"` that splits connections: a download of one connection takes the kernel's MPTCP to fill both
    /// uplinks.
    Convert,
    /// danted, a SOCKS5 server that terminates connections, with the kernel's MPTCP.
    Socks5,
}

/// What carries a client's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// FlexCP as a box.
    Box(FarEnd),
    /// The kernel's MPTCP at both ends. The client's host has the uplinks itself.
    Kernel,
    /// A box that terminates connections, redsocks, and a server that does, danted; between them the kernel's MPTCP.
    Proxies,
    /// TCP that the box only forwards, over this link.
    Alone(u8),
}

/// All that are compared.
pub(super) const WAYS: [Way; 7] = [
    Way::Box(FarEnd::Direct),
    Way::Box(FarEnd::Convert),
    Way::Box(FarEnd::Socks5),
    Way::Kernel,
    Way::Proxies,
    Way::Alone(MOBILE),
    Way::Alone(TELECOM),
];

impl FarEnd {
    const fn name(self) -> &'static str {
        match self {
            Self::Direct => "box, direct",
            Self::Convert => "box, Convert",
            Self::Socks5 => "box, SOCKS5",
        }
    }

    /// Handshakes beyond the one of TCP over the better uplink that a short download may take longer by.
    pub(super) const fn handshakes(self) -> f64 {
        match self {
            Self::Direct | Self::Convert => 1.0,
            Self::Socks5 => 3.0,
        }
    }
}

impl Way {
    /// In tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Box(far_end) => far_end.name(),
            Self::Kernel => "MPTCP end to end",
            Self::Proxies => "redsocks and danted",
            Self::Alone(link) => uplink(link).name,
        }
    }

    /// Whether it takes both uplinks.
    pub(super) const fn aggregates(self) -> bool {
        !matches!(self, Self::Alone(_))
    }
}

impl Serialize for Way {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uplinks_are_as_the_emulator_has_them() {
        assert_eq!(
            uplink(MOBILE).faults(RTTS[0]),
            "rate=29600kbit:370000b,delay=15000us"
        );
        for uplink in UPLINKS {
            let parsed = uplink.faults(45).parse::<flexcp_faults::Faults>();
            assert_eq!(parsed.expect("faults").0.len(), 2);
        }
        assert!((sum() - 5.5).abs() < 1e-9);
    }
}
