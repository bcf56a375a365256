//! What a seeded bug (`make seeded-bugs`) got past every other scenario with.

use crate::support::Setup;

/// The client's initial data number lies less than 700 before a wrap of the low 32 bits.
const CLIENT_LOW: u64 = 0x0503_34cf_0074_9a39;

#[test]
fn wrapped_data_numbers_ack_of_the_server_from_before_the_wrap_is_taken() {
    let mut t = Setup::new().keys(CLIENT_LOW, 7).established();
    t.client(0, "P. 1:601(600) ack 1 <dss ack 1 map 1:601@1>")
        .gives(&["server P. 1:601(600) ack 1 win 512"]);
    t.client(0, "P. 601:1001(400) ack 1 <dss ack 1 map 601:1001@601>")
        .gives(&["server P. 601:1001(400) ack 1 win 512"]);
    t.server(". 1:1(0) ack 601")
        .gives(&["client0 . 1:1(0) ack 601 win 64 <dss ack 601>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_sent_without_scaling_server_that_scales_all_the_same_is_not_believed() {
    let mut t = Setup::new().scales(None, None).syn_sent();
    let _ = t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>");
    let _ = t.client(0, ". 1:1(0) ack 1 win 512 <capable>");
    t.server(". 1:1(0) ack 1 win 50")
        .gives(&["client0 . 1:1(0) ack 1 win 50 <dss ack 1>"]);
    assert_eq!(t.moved(), "mp_capable_ack_rx+1");
}
