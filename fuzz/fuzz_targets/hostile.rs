//! Target `hostile` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (flexcp_fuzz::find("hostile").expect("a target").run)(data);
});
