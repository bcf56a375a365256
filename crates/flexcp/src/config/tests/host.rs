//! What a right configuration becomes on a host, and what the host has to say about it.

use flexcp_io::Interface;

use super::*;
use crate::control::TokenError;
use crate::location::keyfile::KeyError;

/// "iif eth0 to 10.9.0.0/16 dport 80", as ip-rule(8) would say it.
fn shown(diversion: &Diversion) -> String {
    let mut words = Vec::new();
    words.extend(
        diversion
            .interface
            .as_ref()
            .map(|name| format!("iif {name}")),
    );
    words.extend(
        diversion
            .source
            .map(|prefix| format!("from {}", ShowPrefix(prefix))),
    );
    words.extend(
        diversion
            .destination
            .map(|prefix| format!("to {}", ShowPrefix(prefix))),
    );
    words.extend(
        diversion
            .source_ports
            .as_ref()
            .map(|ports| format!("sport {}", ShowPorts(ports))),
    );
    words.extend(
        diversion
            .destination_ports
            .as_ref()
            .map(|ports| format!("dport {}", ShowPorts(ports))),
    );
    if diversion.protocol == Protocol::Icmp {
        words.push("icmp".into());
    }
    words.join(" ")
}

pub(super) fn diversions(config: &Config, sources: &[Vec<IpAddr>]) -> Vec<String> {
    plan::kernel(config, sources, &[])
        .diversions
        .iter()
        .map(shown)
        .collect()
}

#[test]
fn transparent_service_diverts_both_directions_and_announced_addresses() {
    let config = good(
        "[[service]]\nname = 'web'\nmode = 'transparent'\ndestinations = ['10.9.0.0/16', '2001:db8::/32']\n\
         ports = [80, '8000-8999']\ninterfaces = ['eth0', 'eth1']\n\
         announce = ['192.0.2.1', '[2001:db8:f::1]:444']\n",
    );
    assert_eq!(
        diversions(&config, &[Vec::new()]),
        [
            "iif eth0 to 10.9.0.0/16 dport 80",
            "iif eth1 to 10.9.0.0/16 dport 80",
            "iif eth0 to 10.9.0.0/16 dport 8000-8999",
            "iif eth1 to 10.9.0.0/16 dport 8000-8999",
            "iif eth0 to 2001:db8::/32 dport 80",
            "iif eth1 to 2001:db8::/32 dport 80",
            "iif eth0 to 2001:db8::/32 dport 8000-8999",
            "iif eth1 to 2001:db8::/32 dport 8000-8999",
            "iif eth0 to 192.0.2.1/32 dport 80",
            "iif eth1 to 192.0.2.1/32 dport 80",
            "iif eth0 to 192.0.2.1/32 dport 8000-8999",
            "iif eth1 to 192.0.2.1/32 dport 8000-8999",
            "iif eth0 to 2001:db8:f::1/128 dport 444",
            "iif eth1 to 2001:db8:f::1/128 dport 444",
            "from 10.9.0.0/16 sport 80",
            "from 10.9.0.0/16 sport 8000-8999",
            "from 2001:db8::/32 sport 80",
            "from 2001:db8::/32 sport 8000-8999",
            "to 10.9.0.0/16 icmp",
            "to 2001:db8::/32 icmp",
            "to 192.0.2.1/32 icmp",
        ]
    );
    let kernel = plan::kernel(&config, &[Vec::new()], &[]);
    assert_eq!(
        (kernel.v4, kernel.v6, kernel.reserved_ports),
        (true, true, None)
    );
}

#[test]
fn transparent_service_on_all_ports_and_interfaces() {
    let config = good(&format!("{TRANSPARENT}announce = ['192.0.2.1']\n"));
    assert_eq!(
        diversions(&config, &[Vec::new()]),
        [
            "to 10.9.0.0/16",
            "to 192.0.2.1/32",
            "from 10.9.0.0/16",
            "to 10.9.0.0/16 icmp",
            "to 192.0.2.1/32 icmp",
        ]
    );
    let kernel = plan::kernel(&config, &[Vec::new()], &[]);
    assert_eq!((kernel.v4, kernel.v6), (true, false));
}

#[test]
fn reverse_service_diverts_its_listeners_and_its_back_ends_answers() {
    let config = good(
        "[[service]]\nname = 'shop'\nmode = 'reverse'\n\
         listen = ['203.0.113.5:443', '[2001:db8::5]:443', '203.0.113.5:8443']\n\
         backends = ['10.0.0.11:4430', '[2001:db8:b::11]:4430']\nannounce = ['203.0.113.6']\n",
    );
    let sources = vec![
        "10.0.0.1".parse().unwrap(),
        "2001:db8:b::1".parse().unwrap(),
    ];
    assert_eq!(
        diversions(&config, std::slice::from_ref(&sources)),
        [
            "to 203.0.113.5/32 dport 443",
            "to 2001:db8::5/128 dport 443",
            "to 203.0.113.5/32 dport 8443",
            "to 203.0.113.6/32 dport 443",
            "to 203.0.113.6/32 dport 8443",
            "from 10.0.0.11/32 to 10.0.0.1/32 sport 4430 dport 61000-65534",
            "from 2001:db8:b::11/128 to 2001:db8:b::1/128 sport 4430 dport 61000-65534",
            "to 203.0.113.6/32 icmp",
            "to 203.0.113.5/32 icmp",
            "to 10.0.0.1/32 icmp",
        ]
    );
    let kernel = plan::kernel(&config, std::slice::from_ref(&sources), &[]);
    assert_eq!(kernel.reserved_ports, Some(61000..=65534));
    // What ICMPv6 says of packets from there is FlexCP's.
    let ends = plan::own_ends(&config, std::slice::from_ref(&sources));
    let ends: Vec<_> = ends
        .iter()
        .map(|own| format!("{} {:?}", own.addr, own.ports))
        .collect();
    assert_eq!(
        ends,
        ["2001:db8::5 443..=443", "2001:db8:b::1 61000..=65534"]
    );
    let flexcp_translator::Mode::Reverse { source, .. } = &plan::translator(
        &config,
        std::slice::from_ref(&sources),
        &plan::first_ids(&config),
        0,
    )
    .services[0]
        .mode
    else {
        panic!()
    };
    assert_eq!(*source, sources);
}

#[test]
fn diversions_that_two_services_share_are_made_once() {
    let other = REVERSE
        .replace("shop", "other")
        .replace("203.0.113.5", "203.0.113.6");
    let config = good(&format!("{REVERSE}{other}"));
    let sources = vec!["10.0.0.1".parse().unwrap()];
    assert_eq!(
        diversions(&config, &[sources.clone(), sources]),
        [
            "to 203.0.113.5/32 dport 443",
            "from 10.0.0.11/32 to 10.0.0.1/32 sport 443 dport 61000-65534",
            "from 10.0.0.12/32 to 10.0.0.1/32 sport 443 dport 61000-65534",
            "to 203.0.113.5/32 icmp",
            "to 10.0.0.1/32 icmp",
            "to 203.0.113.6/32 dport 443",
            "to 203.0.113.6/32 icmp",
        ]
    );
}

/// A host with eth0 and eth1 that listens on port 22 of all addresses.
pub(super) struct FakeHost;

impl Host for FakeHost {
    fn interface_exists(&self, name: &str) -> bool {
        ["lo", "eth0", "eth1", "eth2"].contains(&name)
    }

    fn diverting_device(&self) -> Option<String> {
        Some("eth1".into())
    }

    fn refuses_files(&self, directory: &Path) -> Option<std::io::Error> {
        match directory.to_str()? {
            "/read-only" => Some(std::io::ErrorKind::ReadOnlyFilesystem.into()),
            "/theirs" => Some(std::io::ErrorKind::PermissionDenied.into()),
            _ => None,
        }
    }

    fn refuses_keys(&self, path: &Path) -> Option<KeyError> {
        let (path, name) = (path.into(), path.to_str()?);
        match name {
            "/open" => Some(KeyError::Open { path }),
            "/weak" => Some(KeyError::Weak { path, line: 1 }),
            "/theirs" => Some(KeyError::Read {
                path,
                error: std::io::ErrorKind::PermissionDenied.into(),
            }),
            _ => None,
        }
    }

    fn refuses_token(&self, path: &Path) -> Option<TokenError> {
        let (path, name) = (path.into(), path.to_str()?);
        match name {
            "/open" => Some(TokenError::Open { path }),
            "/theirs" => Some(TokenError::Read {
                path,
                error: std::io::ErrorKind::PermissionDenied.into(),
            }),
            _ => None,
        }
    }

    fn local_addresses(&self) -> Vec<(String, IpAddr)> {
        [
            ("eth1", "10.0.0.1"),
            ("eth0", "203.0.113.5"),
            ("eth0", "2001:db8::5"),
        ]
        .map(|(name, addr)| (name.into(), addr.parse().unwrap()))
        .into()
    }

    fn interfaces(&self) -> Vec<Interface> {
        let of = |index, name: &str, vrf: Option<&str>| Interface {
            index,
            name: name.into(),
            header: flexcp_io::LinkHeader::Ethernet,
            up: true,
            carrier: true,
            is_vrf: name == "red",
            vrf: vrf.map(str::to_owned),
            is_port: false,
        };
        vec![
            of(2, "eth0", None),
            of(3, "eth1", None),
            of(4, "red", None),
            of(5, "eth2", Some("red")),
        ]
    }

    fn route_source(&self, destination: IpAddr, _: Option<&str>) -> Option<IpAddr> {
        let net = flexcp_translator::Prefix {
            addr: [10, 0, 0, 0].into(),
            len: 8,
        };
        net.contains(destination)
            .then(|| "10.0.0.1".parse().unwrap())
    }

    fn tcp_listener_on(&self, addr: SocketAddr) -> Option<String> {
        (addr.port() == 22).then(|| "0.0.0.0:22".into())
    }

    fn local_port_range(&self) -> Option<RangeInclusive<u16>> {
        Some(32768..=60999)
    }
}

/// The addresses towards the back ends, after asserting that the host makes just these messages.
#[track_caller]
pub(super) fn on_host(text: &str, messages: &[&str]) -> Vec<Vec<IpAddr>> {
    let config = good(text);
    let (_, mut found) = parse("f", text);
    let sources = live::check(&config, &FakeHost, &mut found);
    assert_eq!(found.to_string().lines().collect::<Vec<_>>(), messages);
    sources
}

#[test]
fn source_is_the_kernels_choice_unless_given() {
    let sources = on_host(REVERSE, &[]);
    assert_eq!(sources, [["10.0.0.1".parse::<IpAddr>().unwrap()]]);
    let sources = on_host(&format!("{REVERSE}source = ['203.0.113.5']\n"), &[]);
    assert_eq!(sources, [["203.0.113.5".parse::<IpAddr>().unwrap()]]);
    assert_eq!(on_host(TRANSPARENT, &[]), [Vec::<IpAddr>::new()]);
}

#[test]
fn interface_that_is_not_there() {
    on_host(
        &format!("{TRANSPARENT}interfaces = ['eth0', 'eth7']\n"),
        &[
            "f:5:23: warning: there is no interface `eth7` now, FlexCP waits for it; with addresses there are: eth0, eth1",
        ],
    );
}

#[test]
fn interface_in_another_vrf_than_the_device() {
    let on = |vrf: &str, interface: &str| {
        format!("[device]\n{vrf}\n{TRANSPARENT}interfaces = ['{interface}']\n")
    };
    on_host(&on("", "eth0"), &[]);
    on_host(&on("vrf = 'red'", "eth2"), &[]);
    on_host(
        &on("", "eth2"),
        &[
            "f:7:15: warning: interface eth2 is in the VRF red, and what FlexCP sends on is routed in no VRF: write \
             `vrf = \"red\"` in [device]",
        ],
    );
    on_host(
        &on("vrf = 'red'", "eth0"),
        &[
            "f:7:15: warning: interface eth0 is in no VRF, and what FlexCP sends on is routed in the VRF red: leave out \
             `vrf` in [device]",
        ],
    );
    on_host(
        &on("vrf = 'eth1'", "eth0"),
        &["f:2:7: error: `vrf`: there is no VRF `eth1`; there are: red"],
    );
}

#[test]
fn device_that_is_there_already() {
    on_host(
        &format!("[device]\nname = 'eth0'\n{TRANSPARENT}"),
        &[
            "f:2:8: error: there is an interface `eth0` already, which is not FlexCP's; write another `name` in \
         [device], for a device that FlexCP makes itself",
        ],
    );
    // That of the FlexCP that is running.
    on_host(&format!("[device]\nname = 'eth1'\n{TRANSPARENT}"), &[]);
}

#[test]
fn directories_where_no_files_can_be_made() {
    on_host(
        &format!("[control]\nstate_dir = '/read-only'\nsocket = '/theirs/s'\n{TRANSPARENT}"),
        &[
            "f:2:13: error: `state_dir`: no files can be made in /read-only: read-only filesystem or storage \
         medium; write another directory, like \"/run/flexcp\"",
            "f:3:10: warning: `socket`: this user can't make files in /theirs: permission denied; let the user \
         that runs flexcp write there",
        ],
    );
}

#[test]
fn token_that_is_none() {
    let file = |token| {
        format!("[control]\nlisten = '127.0.0.1:7301'\ntoken_file = '{token}'\n{TRANSPARENT}")
    };
    on_host(&file("/good"), &[]);
    on_host(
        &file("/open"),
        &["f:3:14: error: `token_file`: everybody may read the token file /open; chmod o= /open"],
    );
    on_host(
        &file("/theirs"),
        &[
            "f:3:14: warning: `token_file`: this user can't read /theirs; let the user that runs flexcp read it",
        ],
    );
}

#[test]
fn address_in_use() {
    on_host(
        &REVERSE.replace("203.0.113.5:443", "203.0.113.5:22"),
        &[
            "f:4:11: error: address already in use: 203.0.113.5:22: a TCP socket of this host listens on \
         0.0.0.0:22; stop its program or use another address or port",
        ],
    );
}

#[test]
fn address_that_no_interface_has() {
    on_host(
        &REVERSE.replace("203.0.113.5", "203.0.113.7"),
        &[
            "f:4:11: warning: `listen`: 203.0.113.7 is not on any interface; \
         packets to it must be routed to this host",
        ],
    );
}

#[test]
fn back_end_without_a_route() {
    on_host(
        &REVERSE.replace("10.0.0.12", "192.0.2.12"),
        &["f:5:30: error: there is no route to back end 192.0.2.12:443; add one, or set `source`"],
    );
}

#[test]
fn back_end_on_this_host_has_the_address_of_others_or_its_own() {
    let sources = |backends: &str| {
        let text = REVERSE.replace("['10.0.0.11:443', '10.0.0.12:443']", backends);
        assert_ne!(text, REVERSE);
        on_host(&text, &[]).concat()
    };
    let addr = |text: &str| -> Vec<IpAddr> { vec![text.parse().unwrap()] };
    assert_eq!(sources("['127.0.0.1:80']"), addr("127.0.0.1"));
    assert_eq!(sources("['203.0.113.5:80']"), addr("203.0.113.5"));
    assert_eq!(
        sources("['127.0.0.1:80', '10.0.0.11:443']"),
        addr("10.0.0.1")
    );
}

#[test]
fn answers_of_a_back_end_on_this_host_are_diverted_as_it_sends_them() {
    let config = good(&REVERSE.replace("10.0.0.12", "10.0.0.1"));
    let sources = ["10.0.0.1".parse().unwrap()];
    let plan = plan::kernel(&config, &[sources.to_vec()], &sources);
    let from = |diversion: &&Diversion| diversion.source.is_some();
    let interfaces: Vec<_> = plan
        .diversions
        .iter()
        .filter(from)
        .map(|diversion| diversion.interface.as_deref())
        .collect();
    assert_eq!(interfaces, [None, Some("lo")]);
}

#[test]
fn source_ports_that_the_host_uses() {
    on_host(
        &format!("{REVERSE}source_ports = '60000-65534'\n"),
        &[
            "f:6:16: warning: `source_ports` 60000-65534 overlaps with net.ipv4.ip_local_port_range \
         32768-60999, from which the host's own connections take their ports; FlexCP will reserve them",
        ],
    );
}

#[test]
fn summary_has_a_line_for_each_service() {
    let config = good(&format!(
        "{TRANSPARENT}ports = [80, '8000-8999']\ninterfaces = ['eth0', 'eth1']\n\
         announce = ['192.0.2.1', '[2001:db8::1]:444']\n{REVERSE}source = ['10.0.0.1']\n"
    ));
    assert_eq!(
        summary(&config),
        [
            "web: transparent, to 10.9.0.0/16 port 80, 8000-8999, clients on eth0, eth1; \
         announces 192.0.2.1, [2001:db8::1]:444",
            "shop: reverse, 203.0.113.5:443 to 10.0.0.11:443, 10.0.0.12:443 from 10.0.0.1 ports 61000-65534",
        ]
    );
}

/// What the example has as comments must be right, too.
#[test]
fn example_is_right_with_and_without_its_comments() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("dist/flexcp.toml");
    let (_, found) = load(&path).unwrap();
    assert_eq!(found.to_string(), "");
    let text = std::fs::read_to_string(path).unwrap();
    let setting = |line: &&str| {
        let line = line.trim_start_matches("# ");
        line.starts_with('[')
            || line
                .split_once(" = ")
                .is_some_and(|(key, _)| !key.contains(' '))
    };
    let all: Vec<_> = text
        .lines()
        .filter(setting)
        .map(|line| line.trim_start_matches("# "))
        .collect();
    let config = good(&all.join("\n"));
    assert_eq!(config.services.len(), 6);
    let defaults = good(TRANSPARENT);
    let plan = |config| {
        plan::translator(
            config,
            &[const { Vec::new() }; 6],
            &plan::first_ids(config),
            0,
        )
    };
    // The default depends on the machine.
    let limits = Limits {
        memory: 2_000_000_000,
        ..plan(&defaults).limits
    };
    assert_eq!(plan(&config).limits, limits);
    assert_eq!(plan(&config).timeouts, plan(&defaults).timeouts);
}

#[test]
fn file_that_cannot_be_read() {
    let error = load(Path::new("/nonexistent/flexcp.toml")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "can't read the configuration /nonexistent/flexcp.toml: No such file or directory (os error 2)"
    );
}
