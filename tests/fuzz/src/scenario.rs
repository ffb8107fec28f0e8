//! Scenario files, profiles, and files of Lumina.

use faultline_nic::NicConfig;
use faultline_scenario::{lumina, profile, read};
use faultline_wire::MacAddr;

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

/// Any text: a profile that can be applied to a NIC, or problems that can be drawn.
pub fn profile(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match profile::read("profile.toml", text) {
        Ok(profile) => profile.apply(&mut NicConfig::new(MacAddr([2, 0, 0, 0, 0, 1]))),
        Err(problems) => {
            assert!(!problems.list().is_empty());
            assert!(problems.to_string().starts_with("error: "));
        }
    }
}

/// Any text: a scenario that can be simulated, or problems that can be drawn.
pub fn lumina(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match lumina::import("lumina.yml", text) {
        Ok(imported) => {
            let scenario = read::read("lumina.toml", &imported.text);
            let scenario = scenario.unwrap_or_else(|problems| panic!("{problems}"));
            if let Err(problems) = scenario.plan_simulation() {
                panic!("{problems:?}\n{}", imported.text);
            }
            let _ = imported.warnings.to_string();
        }
        Err(problems) => assert!(problems.to_string().starts_with("error: ")),
    }
}
