//! The tests whose packets violate the specification.

/// Suites and tests in which packets of NICs violate the specification, on purpose or by a defect that is known, with the reason.
/// The findings of the packet checker do not fail them.
pub const VIOLATING: &[(&str, &str)] = &[
    (
        "verbs::statuses",
        "forges responses on a raw queue pair, to which the NIC then answers",
    ),
    (
        "swap",
        "under memory pressure the checker reports READ responses that continue none; whether NIC or checker is wrong is not known",
    ),
    (
        "scenarios",
        "the rules of scenarios make NICs send NAKs that the specification does not permit",
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
