//! What an access link may have upon its Ethernet devices.

/// A device that stands upon the Ethernet device of a link, and has the link's name in its stead: that one is called
/// `e1` then, where the link is `a1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upper {
    /// A VLAN, at the client's end as well.
    Vlan,
    /// A bridge of this port alone, at the proxy's end.
    Bridge,
    /// A bond of this link alone, at the proxy's end.
    Bond,
}

impl Upper {
    /// The `ip` commands that make it.
    pub(crate) fn lines(self, link: u8) -> String {
        match self {
            Self::Vlan => {
                format!(
                    "link add link e{link} name a{link} type vlan id {link}\nlink set a{link} up\n"
                )
            }
            Self::Bridge => format!(
                "link add a{link} type bridge forward_delay 0\nlink set e{link} master a{link}\nlink set a{link} up\n"
            ),
            Self::Bond => format!(
                "link add a{link} type bond mode active-backup miimon 100\nlink set e{link} down\n\
                 link set e{link} master a{link}\nlink set a{link} up\n"
            ),
        }
    }
}
