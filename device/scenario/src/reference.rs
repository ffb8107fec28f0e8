//! The reference of the language, which is a part of `docs/scenarios.md`: it is made from the schema, the names, and
//! the kinds of things with their conditions and changes.

use std::fmt::Write;

use serde_json::Value;

use crate::plan::{Kind, action_names, names, trigger_keys};
use crate::schema::schema;

/// The line before the reference.
pub const BEGIN: &str = "<!-- reference: begin -->";
/// The line after it.
pub const END: &str = "<!-- reference: end -->";

/// Folder of the examples, from `docs/`.
const EXAMPLES: &str = "../tests/scenarios/examples";

/// An example for each key of a trigger: its file without `.toml`. Those of actions have the name of the action.
pub const TRIGGER_EXAMPLES: [(&str, &str); 32] = [
    ("dir", "count"),
    ("opcode", "drop"),
    ("psn", "reorder"),
    ("iter", "reorder"),
    ("bytes", "truncate"),
    ("offset", "segment"),
    ("queue", "segment"),
    ("msn", "segment"),
    ("stag", "stag"),
    ("fault", "delay"),
    ("completion", "overrun_cq"),
    ("event", "event"),
    ("command", "command"),
    ("lookup", "late_lookup"),
    ("request", "fail"),
    ("interrupt", "interrupt"),
    ("doorbell", "overrun_eq"),
    ("diagnostic", "fail_qp"),
    ("qp_state", "end"),
    ("signal", "signal"),
    ("qp", "drop"),
    ("qpn", "number"),
    ("process", "process"),
    ("key", "number"),
    ("region", "delay"),
    ("page", "delay"),
    ("level", "level"),
    ("after", "truncate"),
    ("before", "truncate"),
    ("nth", "fail"),
    ("every", "duplicate"),
    ("chance", "corrupt"),
];

/// The reference, in Markdown.
pub fn text() -> String {
    let schema = schema();
    let reference = Reference {
        schema: schema.as_value(),
    };
    let mut parts = vec![
        "\n## Reference\n\nThis part is made from the code. `docs/scenario.schema.json` is the schema of the files; an editor uses it if the first\nline is `#:schema` and its path.\n".to_owned(),
        "### Keys of a file\n".to_owned(),
        reference.keys(schema.as_value()),
    ];
    for (title, name) in [
        ("### Keys of `[[rule]]`\n", "Rule"),
        ("### Keys of `[[at]]`\n", "Timed"),
    ] {
        parts.push(title.to_owned());
        parts.push(reference.keys(reference.definition(name)));
    }
    parts.extend([
        "### Triggers: the key `on`\n".to_owned(),
        reference.description("Trigger"),
        reference.triggers(),
        "### Actions: the key `do`\n".to_owned(),
        reference.description("Action"),
        reference.actions(),
        "### Conditions and changes by kind of thing\n".to_owned(),
        "Each kind of thing can have the conditions on time, and each action on the NIC. The other conditions and the changes:\n"
            .to_owned(),
        kinds(),
        "### Expectations: the tables `[[expect]]`\n".to_owned(),
        reference.description("Expectation"),
        reference.variants("Expectation", false),
    ]);
    for (title, name) in [
        ("### Keys of `[simulator]`\n", "Simulator"),
        ("### Keys of `[[traffic]]`\n", "Traffic"),
        ("### Keys of `[guests]`\n", "Guests"),
    ] {
        parts.push(title.to_owned());
        parts.push(reference.keys(reference.definition(name)));
    }
    parts.push("### Values\n".to_owned());
    parts.push(reference.values());
    parts.push("### Names\n".to_owned());
    parts.push(all_names());
    parts.join("\n") + "\n"
}

struct Reference<'a> {
    schema: &'a Value,
}

impl Reference<'_> {
    fn definition(&self, name: &str) -> &Value {
        self.schema["$defs"].get(name).unwrap_or(&Value::Null)
    }

    fn description(&self, name: &str) -> String {
        format!("{}\n", described(self.definition(name)))
    }

    /// The definition that a schema refers to, or the schema itself.
    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let reference = schema["$ref"].as_str();
        // An optional value is "this or null".
        let alternatives = schema["anyOf"].as_array().and_then(|any| any.first());
        let reference = reference.or(alternatives.and_then(|first| first["$ref"].as_str()));
        let name = reference.and_then(|path| path.rsplit('/').next());
        name.map_or(schema, |name| self.definition(name))
    }

    /// The type of the value of a key.
    fn type_of(&self, schema: &Value) -> String {
        let resolved = self.resolve(schema);
        if let Some(choices) = resolved["oneOf"].as_array() {
            let names: Vec<String> = choices
                .iter()
                .filter_map(|choice| choice["const"].as_str())
                .map(|name| format!("`\"{name}\"`"))
                .collect();
            if !names.is_empty() {
                return names.join(", ");
            }
        }
        let reference = schema["$ref"].as_str();
        let alternatives = schema["anyOf"].as_array().and_then(|any| any.first());
        let reference = reference.or(alternatives.and_then(|first| first["$ref"].as_str()));
        match reference.and_then(|path| path.rsplit('/').next()) {
            Some("Time") => return "time".to_owned(),
            Some("Range") => return "range".to_owned(),
            Some("Chance") => return "probability".to_owned(),
            Some("Any") => return "`\"any\"`".to_owned(),
            Some(name) if name.starts_with("AnyOr") => return "`\"any\"` or number".to_owned(),
            _ => {}
        }
        let kind = match &resolved["type"] {
            Value::Array(kinds) => kinds.first().and_then(Value::as_str),
            kind => kind.as_str(),
        };
        match kind {
            Some("integer" | "number") => "number",
            Some("string") => "text",
            Some("boolean") => "boolean",
            Some("array") => "array",
            _ => "table",
        }
        .to_owned()
    }

    /// A table of the keys of a definition.
    fn keys(&self, definition: &Value) -> String {
        let mut rows = vec![
            "| Key | Value | Default | Meaning |".to_owned(),
            "|---|---|---|---|".to_owned(),
        ];
        let required = required(definition);
        for (key, schema) in properties(definition) {
            let default = match (&schema["default"], required.contains(&key)) {
                (_, true) => "needed".to_owned(),
                (Value::Null | Value::Object(_) | Value::Array(_), _) => String::new(),
                (Value::String(text), _) if text.is_empty() => String::new(),
                (value, _) => format!("`{value}`"),
            };
            rows.push(format!(
                "| `{key}` | {} | {default} | {} |",
                self.type_of(schema),
                described_here(schema)
            ));
        }
        rows.join("\n") + "\n"
    }

    fn triggers(&self) -> String {
        let definition = self.definition("Trigger");
        let mut rows = vec![
            "| Key | Value | Meaning | Example |".to_owned(),
            "|---|---|---|---|".to_owned(),
        ];
        for key in trigger_keys() {
            let schema = definition["properties"].get(key).unwrap_or(&Value::Null);
            let example = TRIGGER_EXAMPLES.iter().find(|(known, _)| *known == key);
            let example = example.map_or(String::new(), |(_, example)| link(example));
            rows.push(format!(
                "| `{key}` | {} | {} | {example} |",
                self.type_of(schema),
                described_here(schema)
            ));
        }
        rows.join("\n") + "\n"
    }

    fn actions(&self) -> String {
        self.variants("Action", true)
    }

    /// A table of alternative keys (exactly one is given), with the keys of their tables.
    fn variants(&self, name: &str, examples: bool) -> String {
        let mut rows = match examples {
            true => vec![
                "| Key | Keys of its table | Meaning | Example |".to_owned(),
                "|---|---|---|---|".to_owned(),
            ],
            false => vec![
                "| Key | Keys of its table | Meaning |".to_owned(),
                "|---|---|---|".to_owned(),
            ],
        };
        let variants = self.definition(name)["oneOf"].as_array();
        for variant in variants.into_iter().flatten() {
            for (key, schema) in properties(variant) {
                let table = self.resolve(schema);
                let required = required(table);
                let inner = properties(table).into_iter().map(|(key, schema)| {
                    let needed = match required.contains(&key) {
                        true => ", needed",
                        false => "",
                    };
                    format!(
                        "`{key}` ({}{needed}): {}",
                        self.type_of(schema),
                        described_here(schema)
                    )
                });
                let inner = inner.collect::<Vec<_>>().join("<br>");
                let mut row = format!("| `{key}` | {inner} | {} |", described_here(variant));
                if examples {
                    let _ = write!(row, " {} |", link(&key));
                }
                rows.push(row);
            }
        }
        rows.join("\n") + "\n"
    }

    fn values(&self) -> String {
        let mut rows = vec![
            "| Value | Meaning | Examples |".to_owned(),
            "|---|---|---|".to_owned(),
        ];
        for (word, name) in [
            ("time", "Time"),
            ("range", "Range"),
            ("probability", "Chance"),
        ] {
            let definition = self.definition(name);
            let examples = definition["examples"].as_array();
            let examples = examples.into_iter().flatten();
            let examples: Vec<String> = examples.map(|example| format!("`{example}`")).collect();
            rows.push(format!(
                "| {word} | {} | {} |",
                described(definition),
                examples.join(", ")
            ));
        }
        rows.join("\n") + "\n"
    }
}

/// Properties of a definition, by name.
fn properties(definition: &Value) -> Vec<(String, &Value)> {
    let properties = definition["properties"].as_object();
    let properties = properties.into_iter().flatten();
    properties
        .map(|(key, schema)| (key.clone(), schema))
        .collect()
}

fn required(definition: &Value) -> Vec<String> {
    let required = definition["required"].as_array();
    let required = required.into_iter().flatten();
    required
        .filter_map(|key| key.as_str().map(str::to_owned))
        .collect()
}

fn described(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The description, for the cell of a table.
fn described_here(schema: &Value) -> String {
    described(schema).replace('|', "\\|")
}

fn link(example: &str) -> String {
    format!("[{example}.toml]({EXAMPLES}/{example}.toml)")
}

/// Conditions and changes of each kind of things.
fn kinds() -> String {
    let mut rows = vec![
        "| Things | Conditions | Changes |".to_owned(),
        "|---|---|---|".to_owned(),
    ];
    for kind in Kind::ALL {
        rows.push(format!(
            "| {} | {} | {} |",
            kind.name(),
            quoted(kind.conditions()),
            quoted(kind.changes())
        ));
    }
    rows.push(String::new());
    rows.push(format!(
        "Doorbells have a queue pair if they are `sq` or `rq`. Which diagnostics have a queue pair or a key depends on their kind.\n\nActions on the NIC: {}. Only these are possible in `[[at]]`.",
        quoted(action_names().filter(|name| !crate::plan::CHANGES.contains(name)))
    ));
    rows.push(String::new());
    let illegal = Kind::ALL.into_iter().filter_map(|kind| {
        let changes = kind.changes().into_iter();
        let illegal: Vec<&str> = changes.filter(|name| kind.is_illegal(name)).collect();
        (!illegal.is_empty()).then(|| format!("{} of {}", quoted(illegal), kind.name()))
    });
    rows.push(format!(
        "Changes after which packets on the wire may violate the specification: {}. The simulator expects of a file without them, and without imitated defects of adapters, that no NIC violates a rule (`violation`).",
        illegal.collect::<Vec<_>>().join("; ")
    ));
    rows.join("\n") + "\n"
}

fn quoted<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names = names.into_iter().map(|name| format!("`{name}`"));
    names.collect::<Vec<_>>().join(", ")
}

fn all_names() -> String {
    let mut text = "Letters of either case are the same.\n\n".to_owned();
    text += "| Group of opcodes | Packets |\n|---|---|\n";
    for (name, what) in names::OPCODE_GROUPS {
        let _ = writeln!(text, "| `{name}` | {what} |");
    }
    text += "\n| Names | |\n|---|---|\n";
    for (what, names) in [
        ("opcodes", &names::OPCODES),
        ("completion statuses", &names::COMPLETION_STATUSES),
        ("events", &names::EVENTS),
        ("commands of the admin queue", &names::ADMIN_COMMANDS),
        (
            "commands of the translation queue",
            &names::TRANSLATION_COMMANDS,
        ),
        ("statuses of commands that fail", &names::COMMAND_STATUSES),
        ("failures of requests", &names::REQUEST_FAILURES),
        ("doorbells", &names::DOORBELLS),
        ("diagnostics", &names::DIAGNOSTICS),
        ("states of queue pairs", &names::QP_STATES),
        ("fault policies", &names::FAULT_POLICIES),
        ("latencies", &names::LATENCIES),
        ("counters", &names::COUNTERS),
        ("rules of the packet checker", &names::PACKET_RULES),
    ] {
        let _ = writeln!(text, "| {what} | {} |", quoted(names.names()));
    }
    text
}
