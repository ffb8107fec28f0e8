//! The configuration file.

use faultline_config::{Config, NicEntry};

/// Any text: an error, or a configuration that answers everything that a start asks.
pub fn text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _ = text.parse::<NicEntry>();
    let Ok(config) = Config::from_toml(text) else {
        return;
    };
    if config.check().is_err() {
        return;
    }
    assert!(!config.nics.is_empty());
    config.poll_time();
    for nic in &config.nics {
        config.nic_config(nic);
    }
}
