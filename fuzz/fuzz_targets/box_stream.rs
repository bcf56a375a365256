//! Target `box_stream` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (flexcp_fuzz::find("box_stream").expect("a target").run)(data);
});
