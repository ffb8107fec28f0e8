//! On-demand tests must raise page faults: a row with the property `faulting` fails if no page was absent. The others give the reason
//! (`not_faulting`). The tests of rdma-core's module `test_odp` run in one call with others, so their page faults are not counted one by one.

use super::suites::{GuestTest, tables};

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
    !is_pinned && (suite == "odp" || row.facts.name.contains("on_demand") || by_commands)
}

fn rows() -> impl Iterator<Item = (&'static str, &'static GuestTest)> {
    tables().flat_map(|(suite, table)| table.iter().map(move |row| (suite, row)))
}

#[test]
fn on_demand_tests_raise_faults_or_give_a_reason() {
    for (suite, row) in rows() {
        let name = row.facts.name;
        if is_on_demand(suite, row) {
            let has_reason = row.not_faulting.is_some();
            assert!(row.faulting.is_some() != has_reason, "{suite}::{name}");
        } else {
            assert_eq!(row.not_faulting, None, "{suite}::{name} is not on demand");
        }
    }
}

#[test]
fn on_demand_tests_are_recognised() {
    let is_on_demand = |suite: &'static str, name: &str| {
        let mut rows = rows();
        let row = rows.find(|(of, row)| *of == suite && row.facts.name == name);
        is_on_demand(suite, row.unwrap().1)
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
