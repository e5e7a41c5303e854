//! Paths in every spelling, and the routes of the configuration.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_policy::route::{Found, Routes, exposure};

fuzz_target!(|text: &str| {
    let (path, routes) = text.split_once('\n').unwrap_or((text, "POST /api/jobs/*"));
    let path = format!("/{path}");
    let seen = exposure(&path);
    // Other spellings of the same path.
    assert_eq!(exposure(&format!("/.{path}")), seen, "{path:?}");
    assert_eq!(exposure(&format!("/x/..{path}")), seen, "{path:?}");
    if let Ok(routes) = routes.parse::<Routes>()
        && let (Found::Route(one), Found::Route(other)) =
            (routes.find("POST", &path), routes.find("POST", &format!("/.{path}")))
    {
        assert_eq!(one, other, "{path:?}");
    }
});
