//! Results that isolates exchange as one number.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_policy::limit_set::SetResult;
use weir_policy::window::LimitResult;

fuzz_target!(|bits: u64| {
    for number in [f64::from_bits(bits), bits as f64, (bits >> 11) as f64] {
        if let Some(result) = LimitResult::unpack(number) {
            assert_eq!(result.pack(), number);
        }
        if let Some(result) = SetResult::unpack(number) {
            assert_eq!(SetResult::pack(result), number);
        }
    }
});
