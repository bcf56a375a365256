//! Target `box_legs` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (flexcp_fuzz::find("box_legs").expect("a target").run)(data);
});
