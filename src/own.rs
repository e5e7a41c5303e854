//! The settings of a Worker with its own handler, which is the origin of all routes that name no other.

use serde_json::{Value, json};

use crate::bindings::random_uuid;
use crate::settings::{HANDLER, HANDLER_ORIGIN, Variables, is_empty};

/// Adds the settings that such a Worker needs, with its own defaults. A value of the wrong type stays as it is:
/// [`Config::read`](crate::config::Config::read) reports it.
pub(crate) fn complete(variables: &mut Variables) {
    complete_with(variables, random_uuid);
}

fn complete_with(variables: &mut Variables, random: impl Fn() -> String) {
    // Requests bring their handlers. Counting objects only need to find a service.
    variables.insert(HANDLER.to_owned(), json!({"fetch": true}));
    // Without secrets, only this isolate can verify its assertions, and no token is valid.
    let secret = || Value::String(random() + &random());
    if value(variables, "EDGE_SECRET").is_none() {
        variables.insert("EDGE_SECRET".to_owned(), secret());
    }
    if value(variables, "JWT_SECRET").is_none() && value(variables, "JWKS_URL").is_none() {
        variables.insert("JWT_SECRET".to_owned(), secret());
    }
    add_origin(variables);
    add_routes(variables);
}

fn add_origin(variables: &mut Variables) {
    let mut origins = json_value(variables, "ORIGINS").unwrap_or_else(|| json!({}));
    if let Value::Object(members) = &mut origins {
        members.insert(HANDLER_ORIGIN.to_owned(), json!({"service": HANDLER}));
    }
    variables.insert("ORIGINS".to_owned(), origins);
}

fn add_routes(variables: &mut Variables) {
    let Some(mut routes) = json_value(variables, "ROUTES") else {
        return;
    };
    let forwards = value(variables, "UNMATCHED").is_none_or(|unmatched| unmatched == "forward");
    if forwards && let Value::Array(list) = &mut routes {
        let matches_all = |route: &Value| route["path"] == "/*" && route.get("methods").is_none();
        if !list.iter().any(matches_all) {
            list.push(json!({"path": "/*", "skip": true, "pass": ["authorization", "cookie"]}));
        }
        variables.insert("UNMATCHED".to_owned(), json!("not_found"));
    }
    for route in routes.as_array_mut().into_iter().flatten() {
        if let Value::Object(members) = route {
            members.entry("origin").or_insert_with(|| json!(HANDLER_ORIGIN));
        }
    }
    variables.insert("ROUTES".to_owned(), routes);
}

/// The value of a setting, if it is set.
fn value<'a>(variables: &'a Variables, name: &str) -> Option<&'a Value> {
    variables.get(name).filter(|value| !is_empty(value))
}

/// The value of a setting in JSON, or that of its text.
fn json_value(variables: &Variables, name: &str) -> Option<Value> {
    let value = value(variables, name)?;
    let parsed = value.as_str().and_then(|text| serde_json::from_str(text).ok());
    Some(parsed.unwrap_or_else(|| value.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Unmatched};
    use crate::origin::Origin;
    use weir_policy::route::{Found, Route, RouteClass};

    fn read(set: &[(&str, Value)]) -> Config {
        Config::read(&completed(set)).unwrap()
    }

    fn completed(set: &[(&str, Value)]) -> Variables {
        let set = set
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()));
        let mut variables = set.collect();
        complete_with(&mut variables, || "0123456789abcdef".to_owned());
        variables
    }

    fn route<'a>(config: &'a Config, method: &str, path: &str) -> &'a Route {
        match config.routes.find(method, path) {
            Found::Route(route) => route,
            other => panic!("{other:?}"),
        }
    }

    fn goes_to_the_handler(config: &Config, route: &Route) -> bool {
        let handler = Origin::Service {
            binding: HANDLER.to_owned(),
            base: None,
        };
        config.origin(route).is_some_and(|(_, origin)| *origin == handler)
    }

    #[test]
    fn without_settings_all_anonymous_requests_share_a_limit() {
        for (set, limit, window_ms) in [
            (vec![], 10, 60_000),
            (
                vec![("ANON_LIMIT", json!("3")), ("ANON_WINDOW", json!(5))],
                3,
                5_000,
            ),
        ] {
            let config = read(&set);
            let Unmatched::Forward(route) = &config.unmatched else {
                panic!("{config:?}");
            };
            assert!(matches!(config.routes.find("GET", "/hello"), Found::None));
            assert_eq!(route.class, RouteClass::Limited);
            let limits = config.submissions;
            assert_eq!((limits.address, limits.window_ms), (limit, window_ms));
            assert!(goes_to_the_handler(&config, route) && route.passes_authorization && route.passes_cookie);
        }
    }

    #[test]
    fn routes_go_to_the_handler_unless_they_name_another_origin() {
        let set = [
            (
                "ROUTES",
                json!(r#"[{"path": "/a", "skip": true}, {"path": "/b", "origin": "shop"}]"#),
            ),
            ("ORIGINS", json!({"shop": "https://shop.example.com"})),
        ];
        let config = read(&set);
        assert!(goes_to_the_handler(&config, route(&config, "GET", "/a")));
        assert!(!goes_to_the_handler(&config, route(&config, "GET", "/b")));
        assert!(
            goes_to_the_handler(&config, route(&config, "GET", "/c")),
            "no route matches"
        );
        for unmatched in ["not_found", "assets"] {
            let config = read(&[&set[..], &[("UNMATCHED", json!(unmatched))]].concat());
            assert!(
                matches!(config.routes.find("GET", "/c"), Found::None),
                "{unmatched}"
            );
        }
    }

    #[test]
    fn errors_of_the_settings_are_reported() {
        for (name, value) in [
            ("ROUTES", json!("[")),
            ("ROUTES", json!({})),
            ("ORIGINS", json!([])),
            ("UNMATCHED", json!("forwards")),
            ("ANON_LIMIT", json!("ten")),
            ("ORIGIN_URL", json!("https://origin.example.com")),
            ("EDGE_SECRET", json!("short")),
            ("LIMITED_ROUTES", json!("POST /api/x")),
        ] {
            let error = Config::read(&completed(&[(name, value.clone())])).unwrap_err();
            assert!(
                error.0.iter().any(|error| error.starts_with(name)),
                "{name} {value}: {error}"
            );
        }
    }
}
