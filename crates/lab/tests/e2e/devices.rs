//! Access links that are more than Ethernet devices: VLANs, bridges, bonds, and devices in a VRF.

use anyhow::{Result, ensure};
use flexcp_lab::transfer::{Job, ServeOptions};
use flexcp_lab::{Cut, End, Expect, Family, Lab, LabBuilder, Upper, daemon};

use crate::beside::logged;
use crate::features::cases_for;
use crate::offload;
use crate::rig::{PORT, Rig, config, transparent, until, with_config};

cases_for!("device":
    Vlan: vlan_on_one_path,
    Bridge: bridge_on_one_path,
    Bond: bond_on_one_path,
    Vrf: vrf_that_the_device_is_in,
    Vrf: vrf_that_the_device_is_not_in,
);

/// As fast as an emulated machine is.
fn lab() -> LabBuilder {
    Lab::builder().rate_mbit(1, 20).rate_mbit(2, 20)
}

/// Bytes both ways, over the path with that device and the other one; then what the kernel carries of a download, and
/// without the other path, so that it goes by the device. Its queue drops nothing: what is sent again passes through user
/// space, and at this rate a download is a few hundred packets, with generic segmentation offload.
fn on_one_path(upper: Upper) -> Result<()> {
    transparent(lab().upper(1, upper).build()?, |rig| {
        rig.run(Family::V4, &Job::both(2_000_000))?;
        rig.lab.cut(2, Cut::NoCarrier)?;
        rig.run(Family::V4, &Job::both(2_000_000))?;
        Ok(Expect::clean()
            .disturbed("a link is cut")
            .exactly(End::Client, "MPJoinSynAckRx", 1))
    })?;
    let lab = Lab::builder()
        .access_links(1)
        .rate_mbit(1, 20)
        .queue_ms(500)
        .upper(1, upper)
        .build()?;
    offload::carries(lab, Family::V4, &Job::down(12_000_000))
}

fn vlan_on_one_path() -> Result<()> {
    on_one_path(Upper::Vlan)
}

fn bridge_on_one_path() -> Result<()> {
    on_one_path(Upper::Bridge)
}

fn bond_on_one_path() -> Result<()> {
    on_one_path(Upper::Bond)
}

/// All of the proxy's links in a VRF.
fn lab_with_vrf() -> Result<Lab> {
    let lab = lab().queue_ms(500).build()?;
    let devices = ["a1", "a2", "srv1"].map(|device| format!("link set {device} master red\n"));
    let made = "link add red type vrf table 1009\nlink set red up\n".to_owned();
    lab.proxy().ip_batch(&(made + &devices.concat()))?;
    Ok(lab)
}

fn is_in_the_vrf(rig: &Rig) -> Result<bool> {
    Ok(rig
        .lab
        .proxy()
        .ip("link show flexcp0")?
        .contains("master red"))
}

/// Its device is put into the VRF, and back when somebody takes it out; what the kernel's programs translate takes the
/// VRF's routes, too. There are no others.
fn vrf_that_the_device_is_in() -> Result<()> {
    let lab = lab_with_vrf()?;
    let told = daemon::config_of_device(&lab, "vrf = \"red\"", &daemon::transparent(&lab, &[]));
    with_config(lab, &told, ServeOptions::tcp(PORT), |rig| {
        ensure!(is_in_the_vrf(rig)?, "not in the VRF");
        rig.run(Family::V4, &Job::both(2_000_000))?;
        offload::carried(rig, |rig| {
            rig.run(Family::V4, &Job::down(8_000_000)).map(drop)
        })?;
        ensure!(!rig.flexcp.log().contains("VRF red, and"), "it complains");
        rig.lab.proxy().ip("link set flexcp0 nomaster")?;
        until("the device is in the VRF again", || is_in_the_vrf(rig))?;
        rig.run(Family::V4, &Job::both(1_000_000))?;
        Ok(Expect::clean()
            .disturbed("the device leaves its VRF for a moment")
            .exactly(End::Client, "MPJoinSynAckRx", 3))
    })
}

/// What FlexCP sends on does not find the way there. It says so, and what to do; nothing is installed. Once it is done, here by
/// hand, all is well.
fn vrf_that_the_device_is_not_in() -> Result<()> {
    let lab = lab_with_vrf()?;
    let told = config(&lab, &daemon::transparent(&lab, &[]));
    with_config(lab, &told, ServeOptions::tcp(PORT), |rig| {
        let stray = "interface a1 is in the VRF red, and what FlexCP sends on is routed in no VRF";
        logged(rig, &format!("service web: {stray}"))?;
        let status = rig.flexcp.show("status")?;
        ensure!(status.contains(stray), "{status}");
        if !daemon::offload_is_off() {
            logged(
                rig,
                "offload: not for service web: interface a1 is in the VRF red",
            )?;
        }
        rig.lab.proxy().ip("link set flexcp0 master red")?;
        logged(rig, &format!("over: service web: {stray}"))?;
        if !daemon::offload_is_off() {
            logged(rig, "offload: for service web again")?;
        }
        rig.run(Family::V4, &Job::both(2_000_000))?;
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}
