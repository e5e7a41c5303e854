//! Client addresses, in any form that a client may send.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_policy::address::{AddressHeaders, AddressKey, ClientIpSource, client_address, parse};

fuzz_target!(|text: &str| {
    if let Some(address) = parse(text) {
        assert_eq!(parse(&address.to_string()), Some(address));
        assert_eq!(parse(&format!("[{address}]:80")), Some(address));
    }
    let mut parts = text.split('\n');
    let headers = AddressHeaders {
        cf_connecting_ip: parts.next(),
        cf_connecting_ipv6: parts.next(),
        cf_worker: parts.next(),
        x_forwarded_for: parts.next(),
        x_real_ip: parts.next(),
    };
    for source in [ClientIpSource::Cloudflare, ClientIpSource::Proxy] {
        let client = client_address(source, &headers);
        let (kind, upper, lower) = client.key.to_parts();
        assert_eq!(AddressKey::from_parts(kind, upper, lower), client.key);
        assert_eq!(client.key == AddressKey::Unknown, client.address.is_none());
    }
});
