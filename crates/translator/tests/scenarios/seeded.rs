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
fn established_without_scaling_at_the_client_window_of_the_server_passes() {
    let mut t = Setup::new().scales(None, Some(7)).established();
    t.server(". 1:1(0) ack 1 win 50")
        .gives(&["client0 . 1:1(0) ack 1 win 50 <dss ack 1>"]);
    assert_eq!(t.moved(), "");
}
