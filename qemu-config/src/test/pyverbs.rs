//! Test modules of rdma-core's own suite, which Debian ships with `python3-pyverbs`. Each of their tests counts as one.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Tally, Verdict};
use crate::cluster::{Cluster, Plan};
use crate::command::tail;
use crate::workspace::Workspace;

/// The tests of `test_odp.py` in rdma-core 56.1.
pub const ODP: &[&str] = &[
    "test_odp_rc_traffic",
    "test_odp_rc_mixed_mr",
    "test_odp_rc_atomic_cmp_and_swp",
    "test_odp_rc_atomic_fetch_and_add",
    "test_odp_rc_rdma_read",
    "test_odp_rc_rdma_write",
    "test_odp_implicit_rc_traffic",
    "test_odp_ud_traffic",
    "test_odp_xrc_traffic",
    "test_odp_rc_huge_traffic",
    "test_odp_rc_huge_user_addr_traffic",
    "test_odp_sync_prefetch_rc_traffic",
    "test_odp_async_prefetch_rc_traffic",
    "test_odp_implicit_sync_prefetch_rc_traffic",
    "test_odp_implicit_async_prefetch_rc_traffic",
    "test_odp_prefetch_sync_no_page_fault_rc_traffic",
    "test_odp_prefetch_async_no_page_fault_rc_traffic",
];

/// For all the tests of one call: Python alone needs seconds to start under TCG.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs those of `tests` (of `module`) whose names contain `filter`, all in one call, in a guest of `plan`.
pub fn run(
    workspace: &Workspace,
    (module, tests): (&str, &[&str]),
    filter: &str,
    plan: &Plan,
    prefix: &str,
    dir: &Path,
    tally: &mut Tally,
) -> Result<()> {
    let chosen: Vec<&str> = tests
        .iter()
        .copied()
        .filter(|test| test.contains(filter))
        .collect();
    if chosen.is_empty() {
        return Ok(());
    }
    let dir = dir.join(module);
    std::fs::create_dir_all(&dir)?;
    let cluster = Cluster::boot(workspace, plan, &dir)?;
    let guest = cluster.guests.first().context("there is no guest")?;
    let started = Instant::now();
    let outcome = guest.run(&script(module, &chosen), LIMIT)?;
    let elapsed = started.elapsed() / chosen.len() as u32;
    let text = String::from_utf8_lossy(&outcome.both).into_owned();
    std::fs::write(dir.join("output.log"), &text).context("keeping the output")?;
    for test in &chosen {
        let verdict = match verdict(&text, test) {
            Verdict::Failed(why) if outcome.status == crate::guest::Status::TimedOut => {
                Verdict::Failed(format!("{why} (all of {module} timed out)"))
            }
            other => other,
        };
        tally.add(&format!("{prefix}::{test}"), elapsed, verdict);
    }
    cluster.save_logs();
    let troubles = cluster.troubles();
    if !troubles.is_empty() {
        let why = format!("{}\n{}", troubles.join("\n"), tail(&outcome.both, 30));
        tally.add(
            &format!("{prefix}::{module}::kernel"),
            started.elapsed(),
            Verdict::Failed(why),
        );
    }
    Ok(())
}

fn script(module: &str, tests: &[&str]) -> String {
    let patterns: String = tests.iter().map(|test| format!(" -k {test}")).collect();
    format!(
        "mkdir -p /tmp/pyverbs && cd /tmp/pyverbs && cp -r /usr/share/doc/rdma-core/tests . && gunzip -f tests/*.gz
         cd tests && PYTHONPATH=/tmp/pyverbs python3 run_tests.py \
             --dev $RDMA_DEV --gid $GID_INDEX -v{patterns} 2>&1 | tee /tmp/artefacts/{module}.log"
    )
}

/// What Python's verbose output says about one test. Skipped is failed: each is within reach of the device.
fn verdict(output: &str, test: &str) -> Verdict {
    let begin = format!("{test} (");
    let Some(position) = output
        .match_indices(&begin)
        .map(|(at, _)| at)
        .find(|&at| at == 0 || output.as_bytes().get(at - 1) == Some(&b'\n'))
    else {
        return Verdict::Failed("it did not run".into());
    };
    let rest = output.get(position..).unwrap_or_default();
    // What the test prints may come between its name and its result.
    let end = rest
        .match_indices("\ntest_")
        .map(|(at, _)| at)
        .chain(rest.find("\n====="))
        .chain(rest.find("\n-----"))
        .min()
        .unwrap_or(rest.len());
    let own = rest.get(..end).unwrap_or(rest);
    let result = own
        .split_once(" ... ")
        .map_or(own, |(_, result)| result)
        .trim();
    if let Some(reason) = result.split_once("skipped ").map(|(_, reason)| reason) {
        return Verdict::Failed(format!("skipped: {}", reason.trim_matches('\'')));
    }
    if result == "ok" || result.ends_with("\nok") {
        return Verdict::Passed;
    }
    Verdict::Failed(format!("{result}\n{}", details(output, test)))
}

/// The traceback that Python prints at the end.
fn details(output: &str, test: &str) -> String {
    let wanted = [format!("ERROR: {test} ("), format!("FAIL: {test} (")];
    let Some(position) = wanted.iter().find_map(|head| output.find(head.as_str())) else {
        return String::new();
    };
    let rest = output.get(position..).unwrap_or_default();
    let end = rest.find("\n=====").unwrap_or(rest.len());
    tail(rest.get(..end).unwrap_or(rest).as_bytes(), 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "test_a (tests.test_odp.T.test_a) ... ok\n\
        test_ab (tests.test_odp.T.test_ab) ... skipped 'no ODP'\n\
        test_c (tests.test_odp.T.test_c) ... ERROR\n\
        test_d (tests.test_odp.T.test_d) ... a line of its own\nok\n\
        \n=====\nERROR: test_c (tests.test_odp.T.test_c)\n-----\nTraceback\nOops: it broke\n\n-----\nRan 4 tests\n";

    #[test]
    fn python_results_are_read() {
        assert_eq!(verdict(OUTPUT, "test_a"), Verdict::Passed);
        assert_eq!(verdict(OUTPUT, "test_d"), Verdict::Passed);
        assert_eq!(
            verdict(OUTPUT, "test_ab"),
            Verdict::Failed("skipped: no ODP".into())
        );
        let Verdict::Failed(why) = verdict(OUTPUT, "test_c") else {
            panic!("an error passed");
        };
        assert!(
            why.starts_with("ERROR") && why.contains("it broke"),
            "{why}"
        );
        assert_eq!(
            verdict(OUTPUT, "test_absent"),
            Verdict::Failed("it did not run".into())
        );
    }

    #[test]
    fn only_the_chosen_tests_are_asked_for() {
        let script = script("test_odp", &["test_a", "test_b"]);
        assert!(script.contains(" -k test_a -k test_b"), "{script}");
    }

    #[test]
    fn there_are_seventeen_tests_of_odp() {
        assert_eq!(ODP.len(), 17);
    }
}
