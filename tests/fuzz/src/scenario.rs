//! Scenario files.

use faultline_scenario::read;

/// Any text: a plan, or problems that can be drawn.
pub fn text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let nics = ["nic0", "nic1"].map(str::to_owned);
    match read::load("scenario.toml", text, &nics) {
        Ok((scenario, plan)) => {
            assert_eq!(plan.rules.len(), scenario.rules.len());
            assert_eq!(plan.expectations.len(), scenario.expectations.len());
        }
        Err(problems) => {
            assert!(!problems.list().is_empty());
            assert!(problems.to_string().starts_with("error: "));
        }
    }
}
