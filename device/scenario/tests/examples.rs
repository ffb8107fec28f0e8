//! The examples of the reference, in `tests/scenarios/examples`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use faultline_scenario::{read, reference, schema};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios/examples")
}

/// Names without `.toml`, and texts.
fn examples() -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder()).into_iter().flatten();
    let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let files = paths.filter_map(|path| {
        let name = path.file_stem()?.to_str()?.to_owned();
        Some((name, fs::read_to_string(path).ok()?))
    });
    files.collect()
}

#[test]
fn each_example_has_a_plan() {
    let examples = examples();
    assert!(examples.len() >= 30, "{}", examples.len());
    for (name, text) in &examples {
        let nics = ["nic0", "nic1"].map(str::to_owned);
        match read::load(name, text, &nics) {
            Ok((scenario, plan)) => {
                assert!(!scenario.title.is_empty(), "{name}");
                assert_eq!(plan.rules.len(), scenario.rules.len(), "{name}");
            }
            Err(problems) => panic!("{problems}"),
        }
        let first = text.lines().next();
        let path = first.and_then(|line| line.strip_prefix("#:schema "));
        let path = path.map(|path| folder().join(path));
        assert!(path.is_some_and(|path| path.is_file()), "{name}");
    }
}

#[test]
fn each_key_of_triggers_is_in_its_example() {
    let examples = examples();
    let schema = schema::schema();
    let keys = schema.as_value()["$defs"]["Trigger"]["properties"].as_object();
    for key in keys.into_iter().flatten().map(|(key, _)| key) {
        let mut of_keys = reference::TRIGGER_EXAMPLES.iter();
        let Some((_, example)) = of_keys.find(|(known, _)| known == key) else {
            panic!("no example for `{key}`");
        };
        let Some(text) = examples.get(*example) else {
            panic!("no example {example}.toml for `{key}`");
        };
        let table: toml::Table = toml::from_str(text).unwrap();
        let rules = table["rule"].as_array().unwrap();
        let uses = |rule: &toml::Value| rule["on"].get(key).is_some();
        assert!(rules.iter().any(uses), "{example}.toml has no `{key}`");
    }
}

#[test]
fn each_action_is_in_the_example_of_its_name() {
    let examples = examples();
    let schema = schema::schema();
    let actions = schema.as_value()["$defs"]["Action"]["oneOf"].as_array();
    let mut count = 0;
    for action in actions.into_iter().flatten() {
        let name = action["required"][0].as_str().unwrap();
        let Some(text) = examples.get(name) else {
            panic!("no example {name}.toml");
        };
        let table: toml::Table = toml::from_str(text).unwrap();
        let uses = ["rule", "at"].iter().any(|key| {
            let tables = table.get(*key).and_then(toml::Value::as_array);
            let mut tables = tables.into_iter().flatten();
            tables.any(|table| table["do"].get(name).is_some())
        });
        assert!(uses, "{name}.toml has no action `{name}`");
        count += 1;
    }
    assert_eq!(count, 30);
}
