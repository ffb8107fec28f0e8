//! On-demand tests that raise no page fault. Each other one has the property `faulting`, and fails if no page was absent.

/// Tests of suites, with the reasons. `docs/test-suites.md` has the same table.
const NOT_FAULTING: &[(&str, &[&str], &str)] = &[
    (
        "odp",
        &[
            "rc",
            "rc_events",
            "rc_odd_size",
            "srq",
            "xsrq",
            "send_bw",
            "send_lat",
            "write_bw",
            "write_lat",
            "write_bw_all_sizes",
            "read_bw",
            "read_lat",
            "atomic_bw_fetch_add",
            "atomic_lat_cmp_swap",
        ],
        FILLED,
    ),
    (
        "odp",
        &["rc_prefetch", "rc_implicit_prefetch"],
        "the program fetches all pages before it uses them",
    ),
    (
        "odp",
        &["dma_buf"],
        "the pages of a buffer are mapped when it is registered, and again after it has moved",
    ),
    (
        "engines",
        &[
            "send_bw_on_demand",
            "write_bw_on_demand",
            "read_bw_on_demand",
        ],
        FILLED,
    ),
    ("wire-unix", &["write_bw_on_demand"], FILLED),
    ("wire-tcp", &["write_bw_on_demand"], FILLED),
    ("wire-bridge", &["write_bw_on_demand"], FILLED),
    ("wire-vxlan", &["write_bw_on_demand"], FILLED),
    (
        "interop-on-demand",
        &[
            "rc",
            "rc_back",
            "rc_mtu_256",
            "rc_mtu_4096_back",
            "rc_ipv6",
            "srq",
            "srq_back",
            "send_bw",
            "send_bw_back",
            "write_bw",
            "write_bw_back",
            "read_bw",
            "read_bw_back",
            "atomic_bw_fetch_add",
            "atomic_bw_cmp_swap_back",
        ],
        FILLED,
    ),
    (
        "interop-on-demand",
        &["story_back"],
        "the absent pages are those of rdma_rxe, which counts no page faults",
    ),
    ("ulp", &["rds_on_demand"], FILLED),
];

/// Existing programs, such as those of libibverbs and perftest.
const FILLED: &str = "the program writes its buffers before it registers them, and registration maps what is present";

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::test::suites::{self, GuestTest, SUITES};

    /// True if a row is about memory that is registered on demand, by its suite, its name or its commands.
    fn is_on_demand(suite: &str, row: &GuestTest) -> bool {
        let exchange = row.exchange();
        let has_option = |command: &str| {
            let words: Vec<&str> = command.split(' ').collect();
            let of_pingpong = words.iter().any(|word| word.starts_with("ibv_"))
                && words.iter().any(|word| ["-o", "-O"].contains(word));
            let of_its_own = words.iter().any(|word| word.starts_with("odp_"));
            of_pingpong || of_its_own || words.contains(&"--odp") || words.contains(&"--on-demand")
        };
        let is_pinned = suite == "pinned" || exchange.server.contains("--pinned");
        let by_commands = has_option(&exchange.server) || has_option(&exchange.client);
        !is_pinned && (suite == "odp" || row.name.contains("on_demand") || by_commands)
    }

    fn rows() -> impl Iterator<Item = (&'static str, &'static GuestTest)> {
        let suites = SUITES.iter().chain(&["odp"]);
        suites.flat_map(|&suite| suites::table(suite).iter().map(move |row| (suite, row)))
    }

    fn listed() -> BTreeSet<String> {
        let names = NOT_FAULTING.iter().flat_map(|(suite, tests, _)| {
            let name = move |test: &&str| format!("{suite}::{test}");
            tests.iter().map(name)
        });
        names.collect()
    }

    #[test]
    fn on_demand_tests_raise_faults_or_are_listed_with_a_reason() {
        let listed = listed();
        let mut known = BTreeSet::new();
        for (suite, row) in rows() {
            let name = format!("{suite}::{}", row.name);
            let is_listed = listed.contains(&name);
            if is_on_demand(suite, row) {
                assert!(row.faulting.is_some() != is_listed, "{name}");
            } else {
                assert!(!is_listed, "{name} is not on demand");
            }
            known.insert(name);
        }
        assert!(listed.is_subset(&known), "{:?}", listed.difference(&known));
    }

    #[test]
    fn on_demand_tests_are_recognised() {
        let is_on_demand = |suite: &'static str, name: &str| {
            let row = suites::table(suite).iter().find(|row| row.name == name);
            is_on_demand(suite, row.unwrap())
        };
        for (suite, name) in [
            ("odp", "rc"),
            ("odp", "fault_policies"),
            ("torture", "everything"),
            ("apps", "mpi_on_demand"),
            ("ulp", "rds_on_demand"),
            ("tags", "on_demand"),
            ("coherence", "lost_memory"),
            ("interop-on-demand", "srq"),
            ("swap", "rnr"),
        ] {
            assert!(is_on_demand(suite, name), "{suite}::{name}");
        }
        for (suite, name) in [
            ("pingpong", "rc"),
            ("torture", "pinned"),
            ("pinned", "odp_refused"),
            ("interop", "read_bw_rc_back"),
            ("interop", "compared"),
            ("tags", "pinned"),
        ] {
            assert!(!is_on_demand(suite, name), "{suite}::{name}");
        }
    }

    /// The tests of each reason.
    fn by_reason() -> BTreeMap<String, BTreeSet<String>> {
        let mut rows = BTreeMap::<_, BTreeSet<_>>::new();
        for (suite, tests, reason) in NOT_FAULTING {
            let names = tests.iter().map(|test| format!("{suite}::{test}"));
            rows.entry((*reason).to_owned()).or_default().extend(names);
        }
        rows
    }

    #[test]
    fn the_document_has_the_same_list() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let document = fs::read_to_string(root.join("docs/test-suites.md")).unwrap();
        let (_, rest) = document
            .split_once("### On-demand tests that do not fault\n")
            .unwrap();
        let section = rest.split("\n#").next().unwrap_or_default();
        let mut found = BTreeMap::<_, BTreeSet<_>>::new();
        for line in section.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let names = cells[1].split('`').skip(1).step_by(2).map(str::to_owned);
            found.entry(cells[2].to_owned()).or_default().extend(names);
        }
        assert_eq!(found, by_reason());
    }
}
