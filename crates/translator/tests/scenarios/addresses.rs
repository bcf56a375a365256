//! ADD_ADDR, its echo, and REMOVE_ADDR (RFC 8684 section 3.4).

use crate::support::{Scenario, Setup};

const ACK_DOWN: &str = "client0 . 1:1(0) ack 1 win 64 <dss ack 1>";
const ADD: &str = "client0 . 1:1(0) ack 1 win 64 <add-addr id 1 10.7.0.1,dss ack 1>";

/// One address has been announced.
fn announced() -> Scenario {
    let mut t = Setup::new().announce("10.7.0.1").established();
    t.server(". 1:1(0) ack 1").gives(&[ACK_DOWN, ADD]);
    assert_eq!(t.moved(), "add_addr_tx+1");
    t
}

#[test]
fn established_address_is_announced_behind_the_first_data_ack() {
    let mut t = announced();
    t.server(". 1:1(0) ack 1").gives(&[ACK_DOWN]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_without_addresses_none_is_announced() {
    let mut t = Scenario::established();
    t.server(". 1:1(0) ack 1").gives(&[ACK_DOWN]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_address_with_a_port_is_announced_with_it() {
    let mut t = Setup::new().announce("10.7.0.1:8443").established();
    t.server(". 1:1(0) ack 1").gives(&[
        ACK_DOWN,
        "client0 . 1:1(0) ack 1 win 64 <add-addr id 1 10.7.0.1:8443,dss ack 1>",
    ]);
    assert_eq!(t.moved(), "add_addr_tx+1");
}

#[test]
fn established_ipv6_address_is_announced() {
    let mut t = Setup::new().announce("fd00:7::1").established();
    let outcome = t.server(". 1:1(0) ack 1");
    assert!(
        outcome.lines()[1].contains("<add-addr id 1 fd00:7::1"),
        "{:?}",
        outcome.lines()
    );
    assert_eq!(t.moved(), "add_addr_tx+1");
}

#[test]
fn established_with_timestamps_the_longest_announcement_fits() {
    let mut t = Setup::new().ts().announce("[fd00:7::1]:8443").established();
    let outcome = t.server(". 1:1(0) ack 1 win 64 <ts 5001 1000>");
    assert!(
        outcome.lines()[1].contains("add-addr id 1 [fd00:7::1]:8443"),
        "an announcement that is longer than the options can be is of no use: {:?}",
        outcome.lines()
    );
    assert_eq!(t.moved(), "add_addr_tx+1");
}

#[test]
fn announced_address_is_announced_again_until_it_is_echoed() {
    let mut t = announced();
    for at in [1000, 3000, 7000] {
        t.at(at - 1);
        t.timeout().gives(&[]);
        t.at(at);
        t.timeout().gives(&[ADD]);
    }
    t.client(0, ". 1:1(0) ack 1 <add-addr id 1 10.7.0.1 echo>")
        .gives(&[]);
    t.at(60_000);
    t.timeout().gives(&[]);
    assert_eq!(t.moved(), "add_addr_tx+3 echo_add_rx+1");
}

#[test]
fn announced_address_that_is_never_echoed_is_given_up() {
    let mut t = announced();
    let mut copies = 0;
    for at in (1000..2_000_000).step_by(1000) {
        t.at(at);
        copies += t.timeout().lines().len();
    }
    assert_eq!(copies, 5);
    assert_eq!(t.moved(), "add_addr_tx+5");
    assert_eq!(
        t.why(),
        "add_addr.first+1 add_addr.repeated+5 add_addr.given_up+1"
    );
}

/// What cannot be said is no copy of it.
#[test]
fn announced_address_waits_for_a_subflow() {
    let mut t = announced();
    let _ = t.client(0, "R. 1:1(0) ack 1");
    assert_eq!(t.subflows(), Vec::<String>::new());
    for at in (1000..=20_000).step_by(1000) {
        t.at(at);
        t.timeout().gives(&[]);
    }
    t.at(20_100);
    Setup::new().join(&mut t, 1);
    t.at(21_000);
    let lines = t.timeout();
    let said = |line: &&str| line.starts_with("client1") && line.contains("add-addr id 1");
    assert_eq!(
        lines.lines().iter().filter(|line| said(&&line[..])).count(),
        1
    );
    assert_eq!(
        t.why(),
        "subflow_switch.closed+1 add_addr.first+1 add_addr.repeated+1"
    );
    let _ = t.moved();
}

/// The client has not heard of DATA_FIN for so long that FlexCP has closed the subflow, and the client does, too.
fn announced_and_over() -> Scenario {
    let mut t = announced();
    let _ = t.server("F. 1:1(0) ack 1");
    t.at(1000);
    let again = t.server("F. 1:1(0) ack 1");
    assert!(again.lines()[0].starts_with("client0 F. 1:1(0)"));
    let _ = t.client(0, "F. 1:1(0) ack 2 <dss ack 2>");
    assert_eq!(t.subflows(), Vec::<String>::new());
    let _ = t.moved();
    t
}

#[test]
fn announced_echo_behind_the_fins_counts() {
    let mut t = announced_and_over();
    t.client(0, ". 2:2(0) ack 2 <add-addr id 1 10.7.0.1 echo,dss ack 2>")
        .gives(&[]);
    Setup::new().join(&mut t, 1);
    t.at(3000);
    let lines = t.timeout();
    assert!(!lines.lines().iter().any(|line| line.contains("add-addr")));
    assert_eq!(t.why(), "subflow_switch.closed+1 add_addr.first+1");
    let _ = t.moved();
}

#[test]
fn announced_echo_elsewhere_behind_the_fins_is_none() {
    for seq in ["1:1", "3:3"] {
        let mut t = announced_and_over();
        let echo = "<add-addr id 1 10.7.0.1 echo,dss ack 2>";
        let _ = t.client(0, &format!(". {seq}(0) ack 2 {echo}"));
        assert_eq!(t.moved(), "");
    }
}

#[test]
fn announced_echo_does_not_reach_the_server() {
    let mut t = announced();
    t.client(0, ". 1:1(0) ack 1 <add-addr id 1 10.7.0.1 echo,dss ack 1>")
        .gives(&[]);
    assert_eq!(t.moved(), "echo_add_rx+1");
}

#[test]
fn announced_echo_with_news_reaches_the_server_without_it() {
    let mut t = announced();
    t.client(
        0,
        ". 1:1(0) ack 1 win 700 <add-addr id 1 10.7.0.1 echo,dss ack 1>",
    )
    .gives(&["server . 1:1(0) ack 1 win 700"]);
    assert_eq!(t.moved(), "echo_add_rx+1");
}

#[test]
fn announced_echo_of_an_unknown_id_is_ignored() {
    let mut t = announced();
    for id in [0, 2, 16, 17, 255] {
        t.client(
            0,
            &format!(". 1:1(0) ack 1 <add-addr id {id} 10.7.0.1 echo>"),
        )
        .gives(&[]);
    }
    t.at(1000);
    t.timeout().gives(&[ADD]);
    assert_eq!(t.moved(), "add_addr_tx+1");
}

#[test]
fn announced_echo_again_is_ignored() {
    let mut t = announced();
    t.client(0, ". 1:1(0) ack 1 <add-addr id 1 10.7.0.1 echo>")
        .gives(&[]);
    t.client(0, ". 1:1(0) ack 1 <add-addr id 1 10.7.0.1 echo>")
        .gives(&[]);
    assert_eq!(t.moved(), "echo_add_rx+1");
}

#[test]
fn established_two_addresses_are_announced_one_after_the_other() {
    let mut t = Setup::new()
        .announce("10.7.0.1")
        .announce("10.7.0.2")
        .established();
    t.server(". 1:1(0) ack 1").gives(&[ACK_DOWN, ADD]);
    t.client(0, ". 1:1(0) ack 1 <add-addr id 1 10.7.0.1 echo>")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <add-addr id 2 10.7.0.2,dss ack 1>"]);
    t.client(0, ". 1:1(0) ack 1 <add-addr id 2 10.7.0.2 echo>")
        .gives(&[]);
    assert_eq!(t.moved(), "add_addr_tx+2 echo_add_rx+2");
}

#[test]
fn announced_address_can_be_joined() {
    let mut t = announced();
    t.net.flow_mut(1).local = "10.7.0.1:80".parse().expect("an address");
    Setup::new().join(&mut t, 1);
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 101")
        .gives(&["client1 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1");
}

#[test]
fn announced_resend_goes_where_the_client_was_heard_last() {
    let mut t = announced();
    Setup::new().join(&mut t, 1);
    t.at(1000);
    t.timeout()
        .gives(&["client1 . 1:1(0) ack 1 win 64 <add-addr id 1 10.7.0.1,dss ack 1>"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1 add_addr_tx+1");
}

#[test]
fn established_announcement_of_the_clients_with_a_wrong_hmac_is_ignored() {
    let mut t = Scenario::established();
    t.client(0, ". 1:1(0) ack 1 <dss ack 1,add-addr id 5 10.1.9.9 bad>")
        .gives(&[]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_announcement_of_the_clients_is_echoed() {
    let mut t = Scenario::established();
    t.client(0, ". 1:1(0) ack 1 <dss ack 1,add-addr id 5 10.1.9.9>")
        .gives(&["client0 . 1:1(0) ack 1 win 509 <add-addr id 5 10.1.9.9 echo,dss ack 1>"]);
    assert_eq!(t.moved(), "add_addr_rx+1");
}

#[test]
fn established_announcement_of_the_clients_with_a_port_is_echoed_with_it() {
    let mut t = Scenario::established();
    t.client(0, ". 1:1(0) ack 1 <add-addr id 5 10.1.9.9:99>")
        .gives(&["client0 . 1:1(0) ack 1 win 509 <add-addr id 5 10.1.9.9:99 echo,dss ack 1>"]);
    assert_eq!(t.moved(), "add_addr_rx+1");
}

#[test]
fn two_subflows_removed_address_ends_its_subflow() {
    let mut t = Scenario::two_subflows();
    t.client(0, ". 1:1(0) ack 1 <dss ack 1,rm-addr 1>")
        .gives(&["client1 R. 1:1(0) ack 1 win 509 <rst reason 0 transient>"]);
    assert_eq!(t.subflows(), ["0 active"]);
    assert_eq!(t.moved(), "rm_addr_rx+1 mp_rst_tx+1");
}

#[test]
fn two_subflows_removed_address_of_the_initial_one_moves_its_data() {
    let mut t = Scenario::two_subflows();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(1, ". 1:1(0) ack 1 <dss ack 1,rm-addr 0>")
        .gives(&["client0 R. 101:101(0) ack 1 win 64 <rst reason 0 transient>"]);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(
        t.moved(),
        "rm_addr_rx+1 mp_rst_tx+1 subflow_switch+1 retransmitted_down_bytes+100"
    );
}

#[test]
fn two_subflows_removed_unknown_address_is_ignored() {
    let mut t = Scenario::two_subflows();
    t.client(0, ". 1:1(0) ack 1 <dss ack 1,rm-addr 77>")
        .gives(&[]);
    assert_eq!(t.subflows(), ["0 active", "1"]);
    let _ = t.moved();
}

#[test]
fn two_subflows_removed_address_that_still_speaks_stays() {
    // RFC 8684 section 3.4.2: the path is alive, so it is not removed.
    let mut t = Scenario::two_subflows();
    t.client(1, ". 1:1(0) ack 1 <dss ack 1,rm-addr 1>")
        .gives(&[]);
    assert_eq!(t.subflows(), ["0 active", "1"]);
    assert_eq!(t.moved(), "rm_addr_rx+1");
}

#[test]
fn three_subflows_two_addresses_removed_at_once() {
    let mut t = Scenario::two_subflows();
    Setup::new().join(&mut t, 2);
    t.client(0, ". 1:1(0) ack 1 <dss ack 1,rm-addr 1 2>")
        .gives(&[
            "client1 R. 1:1(0) ack 1 win 509 <rst reason 0 transient>",
            "client2 R. 1:1(0) ack 1 win 509 <rst reason 0 transient>",
        ]);
    assert_eq!(t.subflows(), ["0 active"]);
    assert_eq!(
        t.moved(),
        "mp_join_syn_rx+1 mp_join_ack_rx+1 rm_addr_rx+1 mp_rst_tx+2"
    );
}

#[test]
fn announced_address_that_is_given_up_makes_room_for_the_next() {
    let mut t = Setup::new()
        .announce("10.7.0.1")
        .announce("10.7.0.2")
        .established();
    t.server(". 1:1(0) ack 1").gives(&[ACK_DOWN, ADD]);
    let mut copies = [1, 0];
    for at in (1000..2_000_000).step_by(1000) {
        t.at(at);
        for line in t.timeout().lines() {
            copies[usize::from(line.contains("add-addr id 2"))] += 1;
        }
    }
    assert_eq!(copies, [6, 6]);
    assert_eq!(t.moved(), "add_addr_tx+12");
}

#[test]
fn join_to_an_announced_address_is_answered_with_its_id() {
    // RFC 8684 section 3.2: the id tells which address a later REMOVE_ADDR is about.
    let mut t = Setup::new()
        .announce("10.7.0.1")
        .announce("10.9.0.2")
        .established();
    t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>")
        .gives(&["client1 S. 0:0(0) ack 1 win 65152 <mss 1460,sackok,ws 7,join id 2>"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1");
}
