//! Addresses and ports that more than one would have, or nobody can.

use super::{REVERSE, TRANSPARENT, good, reverse, said, transparent};

fn two(first: &str, second: &str) -> String {
    let service = |name: &str, lines: &str| {
        format!("[[service]]\nname = '{name}'\nmode = 'transparent'\n{lines}\n")
    };
    service("a", first) + &service("b", second)
}

#[test]
fn destinations_claimed_twice() {
    let ten = "destinations = ['10.0.0.0/8']\nports = [80]";
    said(
        &two(ten, ten),
        &[
            "f:9:17: error: 10.0.0.0/8 port 80 belongs to service `a` (line 1) already; \
         leave it to one of the two",
        ],
    );
    said(
        &two(ten, "destinations = ['10.9.0.0/16']\nports = [80, 443]"),
        &[
            "f:9:17: error: 10.9.0.0/16 port 80 never gets here: service `a` (line 1) comes first and takes \
         10.0.0.0/8 port 80; put the narrower service first",
        ],
    );
    said(
        &two(
            "destinations = ['10.0.0.0/8']\nports = ['80-90']",
            "destinations = ['10.9.0.0/16']\nports = ['85-95']",
        ),
        &[
            "f:9:17: error: 10.9.0.0/16 ports 85-95 overlaps with 10.0.0.0/8 ports 80-90 of service `a` (line 1); \
           give the common part to one of the two",
        ],
    );
    said(
        &two(
            "destinations = ['10.0.0.0/8']\ninterfaces = ['eth0']",
            "destinations = ['10.0.0.0/8']\ninterfaces = ['eth1']",
        ),
        &[
            "f:9:17: error: 10.0.0.0/8 with all ports belongs to service `a` (line 1) already; \
           leave it to one of the two (`interfaces` does not tell services apart)",
        ],
    );
}

#[test]
fn narrower_first_is_an_exception_not_an_error() {
    good(&two(
        "destinations = ['10.9.0.0/16']\nports = [80]",
        "destinations = ['10.0.0.0/8']",
    ));
    good(&two(
        "destinations = ['10.0.0.0/8']\nports = [80]",
        "destinations = ['10.0.0.0/8']\nports = [443]",
    ));
    good(&two(
        "destinations = ['10.0.0.0/8']",
        "destinations = ['2001:db8::/32']",
    ));
}

#[test]
fn listen_addresses_claimed_twice() {
    said(
        &format!("{REVERSE}{}", REVERSE.replace("shop", "again")),
        &[
            "f:9:11: error: 203.0.113.5 port 443 belongs to service `shop` (line 1) already; \
         leave it to one of the two",
        ],
    );
    let all = TRANSPARENT.replace("10.9.0.0/16", "0.0.0.0/0");
    said(
        &format!("{all}{REVERSE}"),
        &[
            "f:8:11: error: 203.0.113.5 port 443 never gets here: service `web` (line 1) comes first and takes \
         0.0.0.0/0 with all ports; put the narrower service first",
        ],
    );
    good(&format!("{REVERSE}{all}"));
}

#[test]
fn back_end_that_is_flexcp_itself() {
    said(
        &REVERSE.replace("10.0.0.12", "203.0.113.5"),
        &[
            "f:5:30: error: back end 203.0.113.5:443 is where service `shop` (line 1) listens; \
         write the server's own address",
        ],
    );
}

#[test]
fn sources_of_each_family() {
    said(
        &format!(
            "{}source = ['10.0.0.1']\n",
            REVERSE.replace("10.0.0.12:443", "[2001:db8::12]:443")
        ),
        &["f:5:30: error: no IPv6 address in `source` for back end [2001:db8::12]:443; add one"],
    );
    reverse(
        "source = ['10.0.0.1', '2001:db8::1']",
        "f:6:23: warning: no back end is IPv6, so 2001:db8::1 is not used",
    );
}

#[test]
fn ports_towards_back_ends() {
    reverse(
        "source_ports = '1000-9999'",
        "f:6:16: error: `source_ports` 1000-9999 has ports below 1024, which belong to servers; \
         use high ones, like \"61000-65534\"",
    );
    reverse(
        "source_ports = '61000-61099'",
        "f:6:16: warning: `source_ports` 61000-61099 has 100 ports, and each connection to a server \
         at one time takes one; use more, like \"61000-65534\"",
    );
}

#[test]
fn port_that_routing_rules_do_not_know() {
    transparent(
        "ports = ['8000-65535']",
        "f:5:10: error: the kernel's routing rules can't tell port 65535; write \"8000-65534\"",
    );
    reverse(
        "source_ports = '61000-65535'",
        "f:6:16: error: the kernel's routing rules can't tell port 65535; write \"61000-65534\"",
    );
    said(
        &REVERSE.replace("203.0.113.5:443", "203.0.113.5:65535"),
        &["f:4:11: error: the kernel's routing rules can't tell port 65535; use another"],
    );
    let all = "[[service]]\nname = 'a'\nmode = 'transparent'\ndestinations = ['10.0.0.0/8']\n";
    good(&format!("{all}ports = ['1-65535']\n"));
}
