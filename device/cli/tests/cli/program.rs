//! Functions for tests of the program's commands.
use std::path::Path;
use std::process::Output;

use faultline_config::{Config, ControlSettings};
use faultline_daemon::Server;

/// A process with NICs of these names; its sockets are in `directory`, that of the control server is `control`.
pub(crate) fn server(directory: &Path, names: &[&str]) -> Server {
    let nic = |name: &&str| format!("{name}={}", directory.join(name).display());
    let config = Config {
        nics: names
            .iter()
            .map(|name| nic(name).parse().unwrap())
            .collect(),
        control: ControlSettings {
            socket: Some(directory.join("control")),
            ..ControlSettings::default()
        },
        ..Config::default()
    };
    faultline_control::serve(&config).unwrap()
}

/// Output of a command, which must have succeeded.
#[track_caller]
pub(crate) fn printed_by(output: Output, arguments: &[&str]) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}
