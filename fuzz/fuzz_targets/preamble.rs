//! Target `preamble` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (flexcp_fuzz::find("preamble").expect("a target").run)(data);
});
