//! VRFs: what FlexCP sends on is routed in the VRF that its device is in, whichever interface it came in on.

use flexcp_io::Interface;

/// What is wrong with the interface `name` of a service, if it is in another VRF than FlexCP's device, which is in `vrf`,
/// and what to do about it. One that is not there is in none.
pub(crate) fn stray(there: &[Interface], vrf: Option<&str>, name: &str) -> Option<String> {
    let interface = there.iter().find(|interface| interface.name == name)?;
    let its = interface.vrf.as_deref();
    if its == vrf {
        return None;
    }
    let place = |vrf: Option<&str>| match vrf {
        Some(vrf) => format!("in the VRF {vrf}"),
        None => "in no VRF".to_owned(),
    };
    let advice = match its {
        Some(its) => format!("write `vrf = \"{its}\"` in [device]"),
        None => "leave out `vrf` in [device]".to_owned(),
    };
    Some(format!(
        "interface {name} is {}, and what FlexCP sends on is routed {}: {advice}",
        place(its),
        place(vrf)
    ))
}

/// The VRF that FlexCP's device is in, or `told` as long as it is not there.
pub(crate) fn of_device<'a>(
    there: &'a [Interface],
    device: &str,
    told: Option<&'a str>,
) -> Option<&'a str> {
    let found = there.iter().find(|interface| interface.name == device);
    found.map_or(told, |interface| interface.vrf.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, vrf: Option<&str>) -> Interface {
        Interface {
            index: 2,
            name: name.into(),
            header: flexcp_io::LinkHeader::Ethernet,
            up: true,
            carrier: true,
            is_vrf: false,
            vrf: vrf.map(str::to_owned),
            is_port: false,
        }
    }

    #[test]
    fn interfaces_of_another_vrf_are_told() {
        let there = [interface("a1", Some("red")), interface("a2", None)];
        let told = |vrf, name| stray(&there, vrf, name).unwrap_or_default();
        assert_eq!(
            told(None, "a1"),
            "interface a1 is in the VRF red, and what FlexCP sends on is routed in no VRF: write `vrf = \"red\"` in [device]"
        );
        assert_eq!(
            told(Some("blue"), "a1"),
            "interface a1 is in the VRF red, and what FlexCP sends on is routed in the VRF blue: write `vrf = \"red\"` in \
             [device]"
        );
        assert_eq!(
            told(Some("red"), "a2"),
            "interface a2 is in no VRF, and what FlexCP sends on is routed in the VRF red: leave out `vrf` in [device]"
        );
        assert_eq!(of_device(&there, "a1", None), Some("red"));
        assert_eq!(of_device(&there, "a2", Some("red")), None);
        assert_eq!(of_device(&there, "a3", Some("red")), Some("red"));
        for (vrf, name) in [(Some("red"), "a1"), (None, "a2"), (Some("red"), "a3")] {
            assert_eq!(told(vrf, name), "");
        }
    }
}
