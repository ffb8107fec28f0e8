//! `docs/openapi.json` describes the API of this version.

use std::path::Path;

use serde_json::Value;

/// `FAULTLINE_BLESS=1 cargo test -p faultline-control openapi` writes the file anew.
#[test]
fn the_description_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let description = faultline_control::api::description().unwrap();
    if std::env::var_os("FAULTLINE_BLESS").is_some() {
        std::fs::write(&path, &description).unwrap();
    }
    let file = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        file == description,
        "docs/openapi.json is not that of the code: FAULTLINE_BLESS=1 cargo test -p faultline-control openapi"
    );
}

/// Each operation has an id, a summary, and says what errors look like.
#[test]
fn operations_are_described() {
    let description = faultline_control::api::description().unwrap();
    let description: Value = serde_json::from_str(&description).unwrap();
    let paths = description["paths"].as_object().unwrap();
    let mut operations = 0;
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().unwrap() {
            operations += 1;
            for key in ["operationId", "summary"] {
                assert!(operation[key].is_string(), "{method} {path}: {key}");
            }
            for status in ["4XX", "5XX"] {
                let response = &operation["responses"][status];
                let error = &response["content"]["application/json"]["schema"];
                assert_eq!(
                    error["$ref"], "#/components/schemas/ErrorBody",
                    "{method} {path} {status}"
                );
            }
        }
    }
    assert!(operations >= 15, "{operations}");
    let scheme = &description["components"]["securitySchemes"]["token"];
    assert_eq!(
        (&scheme["type"], &scheme["scheme"]),
        (&"http".into(), &"bearer".into())
    );
    assert_eq!(
        description["security"],
        serde_json::json!([{}, {"token": []}])
    );
}
