//! What is done to the kernel's tables.

use std::time::Duration;

use anyhow::Result;

use super::Scene;
use crate::topology::Family;

/// Something that others do.
#[derive(Clone, Copy, Debug)]
pub struct Disturbance {
    /// Names it.
    pub name: &'static str,
    pub(super) mode: Mode,
    pub(super) act: fn(&Scene) -> Result<()>,
    pub(super) noticed: Noticed,
    /// How long it stays after that.
    pub(super) lasts: Duration,
    /// What ends it, if it is not put back.
    pub(super) end: Option<fn(&Scene) -> Result<()>>,
    /// Devices that get the offload anew by it.
    pub(super) offload_again: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Mode {
    Transparent,
    Reverse,
}

/// How FlexCP shows that it has noticed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Noticed {
    /// All is as before.
    PutBack,
    /// The state has a problem with these words.
    Told(&'static str),
}

/// All of them.
pub fn all() -> Vec<Disturbance> {
    vec![
        put_back("rules flushed", flush),
        Disturbance {
            mode: Mode::Reverse,
            ..put_back("rules flushed, reverse", flush)
        },
        put_back("one rule deleted", |scene| {
            scene
                .ip("rule delete preference 1 from 10.9.0.0/16 ipproto tcp sport 80")
                .map(drop)
        }),
        put_back("routes flushed", |scene| {
            scene.ip("route flush table 7300").map(drop)
        }),
        put_back("device down", |scene| {
            scene.ip("link set flexcp0 down").map(drop)
        }),
        put_back("device down and up", |scene| {
            scene.ip("link set flexcp0 down")?;
            scene.ip("link set flexcp0 up").map(drop)
        }),
        told(
            "access link renamed",
            "interface a2 of service web is called lte7 now",
            |scene| scene.ip("link set a2 name lte7").map(drop),
            |scene| scene.ip("link set lte7 name a2").map(drop),
        ),
        Disturbance {
            offload_again: 1,
            ..told(
                "access link deleted",
                "interface a2 of service web is missing",
                |scene| scene.ip("link delete a2").map(drop),
                make_link,
            )
        },
        told(
            "forwarding off",
            "net.ipv4.ip_forward is 0",
            |scene| scene.lab.proxy().sysctl(&[("net.ipv4.ip_forward", "0")]),
            |scene| scene.lab.proxy().sysctl(&[("net.ipv4.ip_forward", "1")]),
        ),
        Disturbance {
            mode: Mode::Reverse,
            ..told(
                "address to the servers lost",
                "the source address 10.9.1.1 of service shop is not this host's any more",
                |scene| {
                    scene.ip("address add 10.9.1.7/24 dev srv1")?;
                    scene.ip("address delete 10.9.1.1/24 dev srv1").map(drop)
                },
                |scene| {
                    scene.ip("address flush dev srv1")?;
                    scene.ip("address add 10.9.1.1/24 dev srv1").map(drop)
                },
            )
        },
    ]
}

/// The one of that name.
pub fn named(name: &str) -> Option<Disturbance> {
    all()
        .into_iter()
        .find(|disturbance| disturbance.name == name)
}

fn put_back(name: &'static str, act: fn(&Scene) -> Result<()>) -> Disturbance {
    Disturbance {
        name,
        mode: Mode::Transparent,
        act,
        noticed: Noticed::PutBack,
        lasts: Duration::ZERO,
        end: None,
        offload_again: 0,
    }
}

fn told(
    name: &'static str,
    words: &'static str,
    act: fn(&Scene) -> Result<()>,
    end: fn(&Scene) -> Result<()>,
) -> Disturbance {
    Disturbance {
        noticed: Noticed::Told(words),
        lasts: Duration::from_millis(500),
        end: Some(end),
        ..put_back(name, act)
    }
}

fn flush(scene: &Scene) -> Result<()> {
    scene.ip("-4 rule flush protocol 117")?;
    scene.ip("-6 rule flush protocol 117").map(drop)
}

/// As a stick that is plugged in again.
fn make_link(scene: &Scene) -> Result<()> {
    let lab = &scene.lab;
    let other = lab.client().name();
    scene.ip(&format!("link add a2 type veth peer name a2 netns {other}"))?;
    let address = lab.proxy_addr(2, Family::V4);
    scene.ip(&format!("address add {address}/24 dev a2"))?;
    scene.ip("link set a2 up")?;
    lab.client().ip("link set a2 up")?;
    lab.configure_client_link(2)?;
    lab.renew_client_endpoints()
}

impl Scene {
    fn ip(&self, arguments: &str) -> Result<String> {
        self.lab.proxy().ip(arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_different() {
        let mut names: Vec<_> = all().iter().map(|disturbance| disturbance.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len());
        assert!(named("rules flushed").is_some() && named("nothing").is_none());
    }
}
