#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hicached_fuzz::frames(data));
