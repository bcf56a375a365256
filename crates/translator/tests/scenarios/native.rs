//! What the kernel's programs and the translator both have to know, and what the programs do beside translating. That
//! they translate as the translator does, every scenario says: its twin has them before it.

use flexcp_native::constants;
use flexcp_translator::{ENTRY_HOLES, ENTRY_RUNS, ENTRY_SUBFLOWS, ENTRY_UPS, internals};

use super::flow_entry::{SERVER, steady, taken};

#[test]
fn numbers_of_the_programs_are_those_of_the_translator() {
    let theirs = constants();
    let lens = [theirs.subflows, theirs.runs, theirs.ups, theirs.holes];
    let ours = [ENTRY_SUBFLOWS, ENTRY_RUNS, ENTRY_UPS, ENTRY_HOLES];
    assert_eq!(lens.map(|len| len as usize), ours);
    assert_eq!(u128::from(theirs.jitter), internals::JITTER.as_micros());
    assert_eq!(u64::from(theirs.jitter), flexcp_invariants::JITTER);
    assert_eq!(theirs.max_run, internals::MAX_SPAN);
    assert_eq!(theirs.max_run, internals::MAX_RUN);
    assert_eq!(theirs.min_span, internals::MIN_SPAN);
}

#[test]
fn stale_ack_is_dropped_by_the_programs() {
    let mut t = steady();
    let packets = [
        (SERVER, ". 101:201(100) ack 1 win 64 <ts 5010 1000>"),
        (0, ". 1:1(0) ack 201 win 512 <ts 1020 5010,dss ack 201>"),
    ];
    assert_eq!(taken(&mut t, &packets), 2);
    let before = t.taken();
    t.client(1, ". 1:1(0) ack 1 win 400 <ts 900020 5010,dss ack 201>")
        .gives(&["drop stale_ack"]);
    assert_eq!(t.taken(), before + 1);
    assert_eq!(t.moved(), "stale_ack+1");
}
