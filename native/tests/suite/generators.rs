//! The API's description is usable by others: a validator accepts it, and clients generated from it compile.

use crate::common::{Answer, Weir, Who, programs};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use uuid::Uuid;

const VALIDATOR: &str = "openapi-spec-validator==0.9.0";
const PYTHON_GENERATOR: &str = "openapi-python-client==0.29.1";
const MYPY: &str = "mypy==2.4.1";

/// The description of a server with every route.
async fn description() -> Value {
    let weir = Weir::with(&[("WEIR_ENV", "development")]).await;
    let answer = weir.get("/api/openapi.json", Who::Address("198.51.100.9")).await;
    let Answer { status, body, .. } = answer;
    assert_eq!(status, 200);
    weir.end().await;
    body
}

/// A folder with the description in it.
fn folder(document: &Value) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("weir-generators-{}", Uuid::new_v4().simple()));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("openapi.json"), document.to_string()).unwrap();
    folder
}

/// Runs a program in this folder, and returns what it printed.
fn run(program: &Path, folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(output.status.success(), "{arguments:?}: {printed}");
    printed
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_is_described() {
    let document = description().await;
    assert_eq!(document["servers"][0]["url"], "/");
    let schemes = document["components"]["securitySchemes"].as_object().unwrap();
    let (mut ids, mut missing) = (BTreeSet::new(), Vec::new());
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let place = format!("{method} {path}");
            let id = operation["operationId"].as_str().unwrap_or_default();
            if !ids.insert(id.to_owned()) {
                missing.push(format!("{place}: operationId {id:?} is not unique"));
            }
            for member in ["summary", "description", "tags", "security"] {
                if operation[member].is_null() {
                    missing.push(format!("{place}: {member}"));
                }
            }
            for requirement in operation["security"].as_array().into_iter().flatten() {
                let known = requirement
                    .as_object()
                    .unwrap()
                    .keys()
                    .all(|name| schemes.contains_key(name));
                assert!(known, "{place}: {requirement}");
            }
            let mut names = Vec::new();
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let name = parameter["name"].as_str().unwrap();
                names.push(name);
                if parameter["description"].as_str().unwrap_or_default().is_empty() {
                    missing.push(format!("{place}: the description of {name}"));
                }
                let is_in_path = path.contains(&format!("{{{name}}}"));
                if (parameter["in"] == "path") != is_in_path || parameter["schema"]["type"].is_array() {
                    missing.push(format!("{place}: {name}: {parameter}"));
                }
            }
            let for_users = path.starts_with("/api/");
            if names.contains(&"Weir-On-Behalf-Of") != for_users {
                missing.push(format!("{place}: Weir-On-Behalf-Of"));
            }
            for (status, response) in operation["responses"].as_object().unwrap() {
                if response["description"].as_str().unwrap_or_default().is_empty() {
                    missing.push(format!("{place}: the description of {status}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_description_has_bounds_and_unique_schema_names() {
    let document = description().await;
    let schemas = &document["components"]["schemas"];
    let body_of = |path: &str, method: &str| {
        let body = &document["paths"][path][method]["requestBody"];
        let schema = &body["content"]["application/json"]["schema"];
        let name = schema["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
        &schemas[name]["properties"]
    };
    assert!(body_of("/api/dev/token", "post")["plan"]["enum"].is_array());
    assert_eq!(body_of("/worker/jobs/{id}/extend", "post")["more"]["minimum"], 1);
    let grant = body_of("/admin/holders/{subject}/grants", "post");
    assert_eq!(grant["amount"]["minimum"], 1);
    assert_eq!(grant["amount"]["maximum"], weir_ledger::control::MAX_LIMIT);
    assert_eq!(grant["reason"]["minLength"], 1);
    let key = document["paths"]["/api/jobs/{id}"]["post"]["parameters"]
        .as_array()
        .unwrap()
        .iter()
        .find(|parameter| parameter["name"] == "Idempotency-Key")
        .unwrap();
    assert_eq!(
        (&key["schema"]["minLength"], &key["schema"]["maxLength"]),
        (&1.into(), &255.into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_comes_before_the_administration() {
    let weir = Weir::new().await;
    let text = weir.text_of("/api/openapi.json").await;
    let at = |path: &str| text.find(&format!("\"{path}\"")).unwrap();
    assert!(at("/api/jobs") < at("/worker/jobs/{id}/complete"));
    assert!(at("/worker/jobs/{id}/complete") < at("/admin/holders/{subject}"));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_validator_accepts_the_description() {
    let installed =
        tokio::task::spawn_blocking(|| programs::python("openapi-spec-validator-0.9.0", &[VALIDATOR]));
    let Some(python) = installed.await.unwrap() else {
        return;
    };
    let folder = folder(&description().await);
    let printed = run(
        &python,
        &folder,
        &["-m", "openapi_spec_validator", "openapi.json"],
    );
    assert_eq!(printed.trim(), "openapi.json: OK");
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generated_python_client_passes_its_types() {
    let installed = tokio::task::spawn_blocking(|| {
        programs::python(
            "openapi-python-client-0.29.1",
            &[PYTHON_GENERATOR, MYPY, "types-python-dateutil"],
        )
    });
    let Some(python) = installed.await.unwrap() else {
        return;
    };
    let document = description().await;
    let folder = folder(&document);
    let made = [
        "-m",
        "openapi_python_client",
        "generate",
        "--path",
        "openapi.json",
    ];
    let printed = run(&python, &folder, &made);
    // Event streams have no model.
    for line in printed.lines().filter(|line| line.starts_with("WARNING")) {
        assert!(line.contains("/events"), "{printed}");
    }
    // Not `weir-client`, which is Weir's package for PostgreSQL.
    let package = folder.join("weir-api-client");
    let printed = run(&python, &package, &["-m", "mypy", "weir_api_client"]);
    assert!(printed.contains("no issues found"), "{printed}");
    std::fs::remove_dir_all(folder).unwrap();
}

const PROGRAM: &str = r#"
import type { components, operations, paths } from "./api.d.ts";

const submit: operations["submitJob"]["parameters"]["path"] = { id: "analysis" };
const limit: NonNullable<paths["/api/jobs"]["get"]["parameters"]["query"]>["limit"] = 20;
const more: components["schemas"]["WantedExtension"] = { more: 1 };
const key: NonNullable<operations["listJobs"]["parameters"]["header"]> = { "Weir-On-Behalf-Of": "anne" };
// @ts-expect-error Unknown service parameter.
const wrong: operations["submitJob"]["parameters"]["path"] = { service: "analysis" };
export default { submit, limit, more, key, wrong };
"#;

#[tokio::test(flavor = "multi_thread")]
async fn generated_typescript_types_compile() {
    let locked = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/openapi");
    let installed =
        tokio::task::spawn_blocking(move || programs::npm("openapi-typescript", Path::new(locked)));
    let Some(modules) = installed.await.unwrap() else {
        return;
    };
    let folder = folder(&description().await);
    let node = Path::new("node");
    let program = |path: &str| modules.join(path).to_str().unwrap().to_owned();
    let generator = program("openapi-typescript/bin/cli.js");
    run(
        node,
        &folder,
        &[&generator, "openapi.json", "--output", "api.d.ts"],
    );
    std::fs::write(folder.join("program.ts"), PROGRAM).unwrap();
    let compiler = program("typescript/bin/tsc");
    run(
        node,
        &folder,
        &[
            &compiler,
            "--strict",
            "--noEmit",
            "--allowImportingTsExtensions",
            "--target",
            "es2022",
            "program.ts",
        ],
    );
    std::fs::remove_dir_all(folder).unwrap();
}

const GO_GENERATOR: &str = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2";
const GO_RUNTIME: &str = "github.com/oapi-codegen/runtime@v1.9.0";

#[tokio::test(flavor = "multi_thread")]
async fn a_generated_go_client_compiles() {
    let go = Path::new("go");
    if Command::new(go).arg("version").output().is_err() {
        return programs::missing("go is not installed");
    }
    let folder = folder(&description().await);
    let generate = [
        "run",
        GO_GENERATOR,
        "-generate",
        "types,client",
        "-package",
        "api",
        "-o",
        "api.go",
        "openapi.json",
    ];
    for arguments in [
        &generate[..],
        &["mod", "init", "generated"],
        &["get", GO_RUNTIME],
        &["vet", "."],
    ] {
        run(go, &folder, arguments);
    }
    std::fs::remove_dir_all(folder).unwrap();
}
