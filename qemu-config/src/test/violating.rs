//! The tests whose packets violate the specification.

/// Suites and tests in which packets of NICs violate the specification on purpose, with the reason. The packet checker's findings do
/// not fail them.
pub const VIOLATING: &[(&str, &str)] = &[
    (
        "verbs::statuses",
        "forges responses on a raw queue pair, to which the NIC then answers",
    ),
    (
        "scenarios::damming",
        "the NICs imitate a defect of real adapters, which lose requests",
    ),
    (
        "scenarios::rnr_storm",
        "a rule makes a NIC refuse requests that the specification does not permit it to refuse",
    ),
];

/// Why packets may violate the specification in a test, given its full name (suite, kernel, test). `None`: they must not.
pub fn violates(name: &str) -> Option<&'static str> {
    let (suite, rest) = name.split_once("::").unwrap_or((name, ""));
    let test = rest.split_once("::").map_or(rest, |(_, test)| test);
    let mut all = VIOLATING.iter();
    let found = all.find(|(known, _)| match known.split_once("::") {
        Some(both) => both == (suite, test),
        None => *known == suite,
    });
    found.map(|(_, reason)| *reason)
}
