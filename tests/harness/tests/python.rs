//! The Python client on a served process.

use std::path::Path;
use std::process::Command;

use faultline_config::Config;
use faultline_harness::testbed::Fabric;

/// Its tests need Python 3.11 and two NICs without drivers. Those of the plugin need pytest, and are skipped without it.
#[test]
fn the_python_client_passes_its_tests() {
    let fabric = Fabric::start_controlled(Config::default(), &["a", "b"]).unwrap();
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    let ran = Command::new("python3")
        .args(["-B", "-m", "unittest", "discover", "-s", "tests"])
        .current_dir(&python)
        .env("FAULTLINE_CONTROL", fabric.control())
        .output()
        .expect("python3 is installed");
    let shown = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{shown}");
    // Not a run that has found no test.
    assert!(shown.contains("Ran 13 tests"), "{shown}");
}
