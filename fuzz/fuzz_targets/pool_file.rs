#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hicached_fuzz::pool_file(data));
