//! Routing rules that FlexCP looks at, its own and others'.

use netlink_packet_route::rule::RuleMessage;

use super::netlink::Netlink;
use super::{Family, KernelError, rules};

/// The TUN device of the FlexCP that diverts packets in this network namespace, if one does and the kernel tells.
#[must_use]
pub fn diverting_device() -> Option<String> {
    rules::live_device(&mut Netlink::open().ok()?).ok()?
}

/// The routing rules of this network namespace that look at the mark of packets and are not FlexCP's, in words.
///
/// # Errors
/// When the rules cannot be read.
pub fn rules_by_mark() -> Result<Vec<String>, KernelError> {
    let words = |rule: &RuleMessage| rules::is_marked(rule).then(|| rules::describe(rule));
    let found = others(&words)?.into_iter();
    Ok(found
        .map(|(family, words)| format!("{family} {words}"))
        .collect())
}

/// A routing rule for what comes in by one interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InterfaceRule {
    /// The interface's name.
    pub interface: String,
    /// The family and the rule, in words close to those of `ip rule`, without its preference.
    pub words: String,
}

/// The routing rules of this network namespace by the interface that packets come in by, but for those of FlexCP and those
/// of the loopback device.
///
/// # Errors
/// When the rules cannot be read.
pub fn rules_by_interface() -> Result<Vec<InterfaceRule>, KernelError> {
    let words = |rule: &RuleMessage| {
        let interface = rules::is_by_interface(rule)?.to_owned();
        Some((interface, rules::describe(rule)))
    };
    let named = |(family, (interface, words))| InterfaceRule {
        interface,
        words: format!("{family} {words}"),
    };
    Ok(others(&words)?.into_iter().map(named).collect())
}

/// What `of` makes of the rules of both families.
fn others<T>(of: &dyn Fn(&RuleMessage) -> Option<T>) -> Result<Vec<(Family, T)>, KernelError> {
    let mut netlink = Netlink::open()?;
    let mut found = Vec::new();
    for family in Family::BOTH {
        let rules = rules::dump(&mut netlink, family)?;
        found.extend(rules.iter().filter_map(of).map(|rule| (family, rule)));
    }
    Ok(found)
}
