//! Paths in every spelling, and the routes of the configuration.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_policy::route::{Exposure, LimitedRoutes, exposure};

fuzz_target!(|text: &str| {
    let (path, routes) = text.split_once('\n').unwrap_or((text, "POST /api/jobs/*"));
    let path = format!("/{path}");
    let seen = exposure(&path);
    // Other spellings of the same path.
    assert_eq!(exposure(&format!("/.{path}")), seen, "{path:?}");
    assert_eq!(exposure(&format!("/x/..{path}")), seen, "{path:?}");
    if seen != Exposure::Private {
        assert!(path.to_lowercase().contains("api") || path.contains('%'), "{path:?}");
    }
    if let Ok(routes) = routes.parse::<LimitedRoutes>() {
        let class = routes.class("POST", &path);
        assert_eq!(routes.class("POST", &format!("/.{path}")), class, "{path:?}");
    }
});
