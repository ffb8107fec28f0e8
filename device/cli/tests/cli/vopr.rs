//! `faultline vopr` as a program.

use std::process::Command;

#[test]
fn a_seed_gives_the_same_run_again() {
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
        let output = command
            .args(["vopr", "7", "--count", "2"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let first = run();
    let lines: Vec<&str> = first.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("seed 7: ") && lines[1].starts_with("seed 8: "));
    assert_eq!(first, run());
}
