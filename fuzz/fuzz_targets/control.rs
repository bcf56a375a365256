//! Target `control` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (flexcp_fuzz::find("control").expect("a target").run)(data);
});
