//! `[[access]]`: the ways by which clients come.

use std::net::IpAddr;

use flexcp_translator::{MAX_ACCESSES, MAX_WAYS, Prefix, Way};
use toml::Spanned;
use toml::de::DeValue;

use super::keys;
use super::read::{self, Interface, Reader};
use super::span::{Diagnostics, Located};

/// `[[access]]`: a way by which clients come. A subflow is of the first access that it fits in all that this says.
#[derive(Clone, Debug)]
pub struct Access {
    /// Where it begins in the file.
    pub at: usize,
    /// `name`: for `flexcp show` and rules; each is used once.
    pub name: Located<String>,
    /// `clients`: address prefixes of the clients' ends; any when left out.
    pub clients: Vec<Located<Prefix>>,
    /// `addresses`: that clients address on this access; any when left out.
    pub addresses: Vec<Located<IpAddr>>,
    /// `interfaces`: by which packets leave for the clients' ends; any when left out.
    pub interfaces: Vec<Located<String>>,
}

/// The interfaces that accesses name, each once; a [`Way`] is a place among them.
#[must_use]
pub fn interfaces(accesses: &[Access]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in accesses.iter().flat_map(|access| &access.interfaces) {
        if !names.contains(&name.value) {
            names.push(name.value.clone());
        }
    }
    names
}

/// As the translator has them.
pub(super) fn named(accesses: &[Access]) -> Vec<flexcp_translator::Access> {
    let interfaces = interfaces(accesses);
    let all = accesses.iter().map(|access| access.named(&interfaces));
    all.collect()
}

/// Reads all of them.
pub(super) fn read(root: &Reader<'_, '_>, out: &mut Diagnostics) -> Vec<Access> {
    let Some(value) = root.get("access") else {
        return Vec::new();
    };
    let DeValue::Array(tables) = value.get_ref() else {
        let kind = read::kind(value);
        out.error(
            value.span().start,
            format!("`access` is {kind}; write [[access]], in two brackets, for each"),
        );
        return Vec::new();
    };
    let read = tables.iter().filter_map(|table| one(table, out));
    read.collect()
}

fn one(value: &Spanned<DeValue<'_>>, out: &mut Diagnostics) -> Option<Access> {
    let at = value.span().start;
    let DeValue::Table(entries) = value.get_ref() else {
        let kind = read::kind(value);
        out.error(
            at,
            format!("an access can't be {kind}; write an [[access]] section"),
        );
        return None;
    };
    let known = keys::names(keys::ACCESS);
    let section = Reader::new(entries, ("an access", at), &known, &[], out);
    let name = section.required("name", "write name = \"lte\"", out);
    Some(Access {
        at,
        name: name.unwrap_or_else(|| Located::new(String::new(), at)),
        clients: section.list("clients", out),
        addresses: section.list("addresses", out),
        interfaces: section
            .list::<Interface>("interfaces", out)
            .into_iter()
            .map(|name| Located::new(name.value.0, name.at))
            .collect(),
    })
}

/// Adds what is wrong with them to `out`.
pub(super) fn check(accesses: &[Access], out: &mut Diagnostics) {
    if let Some(one_too_many) = accesses.get(MAX_ACCESSES) {
        out.error(
            one_too_many.at,
            format!("there can't be more than {MAX_ACCESSES} accesses; give each more `clients`"),
        );
        return;
    }
    let named = accesses.iter().flat_map(|access| &access.interfaces);
    if interfaces(accesses).len() > MAX_WAYS
        && let Some(last) = named.last()
    {
        out.error(
            last.at,
            format!("accesses can't name more than {MAX_WAYS} interfaces; use `clients` for some"),
        );
    }
    for (place, access) in accesses.iter().enumerate() {
        let before = &accesses[..place];
        let name = &access.name;
        if before.iter().any(|other| other.name.value == name.value) && !name.value.is_empty() {
            out.error(
                name.at,
                format!(
                    "there is an access named `{}` already; give each its own name",
                    name.value
                ),
            );
        }
        if access.clients.is_empty() && access.addresses.is_empty() && access.interfaces.is_empty()
        {
            out.error(
                access.at,
                "an access has neither `clients`, `addresses` nor `interfaces`; say which subflows are of it, like clients = [\"192.0.2.0/24\"]",
            );
        }
        if let Some(other) = before.iter().find(|other| other.covers(access)) {
            out.error(
                access.at,
                format!(
                    "no subflow can be of this access: all are of `{}` before it; put it there, or narrow the other",
                    other.name.value
                ),
            );
        }
    }
}

impl Access {
    /// As the translator has it; `interfaces`: [those](interfaces) of all accesses.
    fn named(&self, interfaces: &[String]) -> flexcp_translator::Access {
        let place = |name: &Located<String>| interfaces.iter().position(|it| *it == name.value);
        let ways = self.interfaces.iter().filter_map(place);
        flexcp_translator::Access {
            name: self.name.value.clone(),
            clients: self.clients.iter().map(|prefix| prefix.value).collect(),
            addresses: self.addresses.iter().map(|addr| addr.value).collect(),
            ways: ways.map(Way::named).collect(),
        }
    }

    /// Whether all that fits `other` fits this.
    fn covers(&self, other: &Self) -> bool {
        let within = |inner: &Prefix| {
            let mut outer = self.clients.iter();
            outer.any(|outer| outer.value.len <= inner.len && outer.value.contains(inner.addr))
        };
        let is_ours = |addr: &IpAddr| self.addresses.iter().any(|ours| ours.value == *addr);
        let clients = &other.clients;
        let addresses = &other.addresses;
        let all_clients = !clients.is_empty() && clients.iter().all(|c| within(&c.value));
        let all_addresses = !addresses.is_empty() && addresses.iter().all(|a| is_ours(&a.value));
        let is_one_of_ours = |name: &Located<String>| {
            let mut ours = self.interfaces.iter();
            ours.any(|ours| ours.value == name.value)
        };
        let interfaces = &other.interfaces;
        let all_interfaces = !interfaces.is_empty() && interfaces.iter().all(is_one_of_ours);
        let says_something =
            !self.clients.is_empty() || !self.addresses.is_empty() || !self.interfaces.is_empty();
        says_something
            && (self.interfaces.is_empty() || all_interfaces)
            && (self.clients.is_empty() || all_clients)
            && (self.addresses.is_empty() || all_addresses)
    }
}
