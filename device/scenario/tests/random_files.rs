//! Random files are read or refused, without a panic.

use faultline_scenario::read;
use proptest::prelude::*;

/// Keys of scenario files, and one of none.
const KEYS: &[&str] = &[
    "rule",
    "at",
    "expect",
    "traffic",
    "simulator",
    "guests",
    "on",
    "do",
    "drop",
    "evict",
    "times",
    "nth",
    "opcode",
    "fault",
    "dir",
    "by",
    "for",
    "count",
    "completion",
    "latency",
    "percentile",
    "size",
    "op",
    "time",
    "seed",
    "title",
    "profile",
    "nic",
    "other",
];

/// A valid TOML value.
fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<u8>().prop_map(|number| number.to_string()),
        any::<bool>().prop_map(|value| value.to_string()),
        prop_oneof![
            Just("nan"),
            Just("-inf"),
            Just("0.5"),
            Just("1979-05-27T07:32:00Z"),
            Just("\"ACK\""),
            Just("\"rx\""),
            Just("\"2s\""),
            Just("\"1..\""),
            Just("\"record\""),
            Just("\"any\""),
        ]
        .prop_map(str::to_owned),
        "\\PC{0,8}".prop_map(|text| format!("{:?}", text.replace(['\\', '"', '\''], ""))),
    ];
    let key = proptest::sample::select(KEYS);
    leaf.prop_recursive(4, 24, 4, move |inner| {
        let table = proptest::collection::btree_map(key.clone(), inner.clone(), 0..4);
        prop_oneof![
            proptest::collection::vec(inner, 0..4)
                .prop_map(|values| format!("[{}]", values.join(", "))),
            table.prop_map(|entries| {
                let entries = entries
                    .iter()
                    .map(|(key, value)| format!("{key} = {value}"));
                format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
            }),
        ]
    })
}

fn check(text: &str) {
    let nics = ["nic0".to_owned()];
    if let Err(problems) = read::load("a.toml", text, &nics) {
        assert!(!problems.list().is_empty());
        assert!(problems.to_string().starts_with("error: "));
        for problem in problems.list() {
            if let Some(span) = problem.span(text) {
                assert!(span.start <= span.end && span.end <= text.len());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        check(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn random_documents_are_refused_or_read(
        entries in proptest::collection::btree_map(proptest::sample::select(KEYS), value(), 0..6),
    ) {
        let lines = entries.iter().map(|(key, value)| format!("{key} = {value}\n"));
        check(&lines.collect::<String>());
    }
}
