//! Counts, which a Durable Object reads from its storage.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_policy::address::AddressKey;
use weir_policy::limit_set::{Counts, Limits};
use weir_policy::window::Algorithm;

const NOW: u64 = 1_800_000_000_000;

fuzz_target!(|bytes: &[u8]| {
    for algorithm in [Algorithm::Fixed, Algorithm::Sliding] {
        let limits = [Limits {
            address: 10,
            prefix: 40,
            window_ms: 60_000,
            algorithm,
        }];
        let mut counts = Counts::decode(bytes, NOW);
        // Writing and reading again returns the same counts.
        assert_eq!(Counts::decode(&counts.encode(), NOW), counts);
        for n in 0..4 {
            counts.take(&limits, AddressKey::from_parts(4, 0, n), 1, 10_000, NOW);
        }
        counts.prune(u64::MAX);
        assert_eq!(counts.addresses(), 0, "windows end");
    }
});
