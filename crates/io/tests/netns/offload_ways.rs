//! The way out of what is translated is the kernel's own.

use flexcp_wire::Offload;

use crate::host::ip;
use crate::offload_gso::{Rig, families};
use crate::offload_packets::{PORTS, data_down, data_up_with, entry};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("offload_takes_the_way_that_a_rule_by_port_names", by_port),
    ("offload_takes_no_way_without_a_neighbour", strangers),
];

/// A routing rule that names ports decides the way out, as it does for what the translator sends.
fn by_port() {
    let mut rig = Rig::new(false);
    let entry = entry();
    let [client, _] = PORTS;
    // Both ends' ports, swapped or with their bytes in the other order, lead nowhere.
    let wrong = [
        format!("ipproto tcp sport {client} dport 80"),
        format!("ipproto tcp dport {}", client.swap_bytes()),
        format!("ipproto tcp sport {}", 80_u16.swap_bytes()),
    ];
    let right = format!("ipproto tcp sport 80 dport {client}");
    for (family, neighbour) in [("-4", "192.0.2.3"), ("-6", "2001:db8:ffff::3")] {
        ip(&format!(
            "{family} neigh replace {neighbour} lladdr 02:00:00:00:00:03 dev out"
        ));
        ip(&format!(
            "{family} route add default via {neighbour} table 100"
        ));
        ip(&format!("{family} route add unreachable default table 101"));
        for rule in &wrong {
            // For what goes down; that goes up, the other way round, is looked at below.
            ip(&format!("{family} rule add {rule} lookup 101"));
        }
        ip(&format!("{family} rule add {right} lookup 100"));
    }
    let carried = Offload::default();
    for (entry, packet) in families(&entry, &data_down(&entry)) {
        let (frames, _) = rig.takes(&entry, &packet, carried);
        assert_eq!(frames[0].0[..6], [2, 0, 0, 0, 0, 3], "the rule's neighbour");
    }
    // What the first of those rules is for.
    let ssn = entry.subflows[0].rcv_high.wrapping_sub(1_000);
    let up = data_up_with(&entry, true, true, (entry.up_next, ssn, 500));
    for (entry, packet) in families(&entry, &up) {
        rig.passes("route", &entry, &packet, carried);
    }
}

/// On Ethernet, whoever is next has to be known: the kernel asks for him.
fn strangers() {
    let mut rig = Rig::new(false);
    let entry = entry();
    ip("neigh del 192.0.2.2 dev out");
    ip("-6 neigh del 2001:db8:ffff::2 dev out");
    for (entry, packet) in families(&entry, &data_down(&entry)) {
        rig.passes("route", &entry, &packet, Offload::default());
    }
}
