//! Snapshots of counters, which a Durable Object reads from its storage.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_policy::address::AddressKey;
use weir_policy::prefix_counters::{Limits, PrefixCounters};
use weir_policy::window::Algorithm;

const NOW: u64 = 1_800_000_000_000;

fuzz_target!(|bytes: &[u8]| {
    for algorithm in [Algorithm::Fixed, Algorithm::Sliding] {
        let limits = Limits {
            address: 10,
            prefix: 40,
            window_ms: 60_000,
            algorithm,
        };
        let mut counters = PrefixCounters::new(limits);
        if counters.restore(bytes, NOW).is_err() {
            continue;
        }
        // Writing and reading again returns the same counters.
        let written = counters.encode();
        let mut again = PrefixCounters::new(limits);
        again.restore(&written, NOW).expect("its own snapshot");
        assert_eq!(again.encode(), written);
        assert!(written.len() <= 128 * 1024, "it fits into one value of the storage");
        for n in 0..4 {
            counters.take(AddressKey::from_parts(4, 0, n), None, NOW);
        }
        counters.prune(NOW + 10_000_000);
        assert_eq!(counters.addresses(), 0, "windows end");
    }
});
