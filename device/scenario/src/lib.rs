//! Scenarios: faults at precise moments, repeatable, with expectations.
//!
//! - [`mod@file`]: the format of scenario files
//! - [`trigger`], [`action`], [`expectation`], [`traffic`]: its tables
//! - [`value`]: times, ranges, probabilities
//! - [`mod@read`]: reads a file; [`problem`]: its problems, drawn with their source lines; [`whole`]: finds all of them
//! - [`plan`]: a checked scenario, in which names are numbers and defaults are filled in
//! - [`profile`]: profiles of NICs
//! - [`schema`]: the JSON schema of the files; [`mod@reference`]: the part of the documentation that is made from the code
//! - [`rules`]: the rules of a plan while it runs; [`segment`]: TCP segments as rules see them
//! - [`live`]: one rule for a running process
//! - [`lumina`]: imports test files of Lumina
//! - [`negation`]: the opposite of expectations and rules, for tests of scenarios
//! - [`verdict`]: whether rules have fired and expectations hold
//!
//! This crate has no sockets, files or threads: the simulator and the daemon run the same rules.

#![forbid(unsafe_code)]
// Values of scenario files reach this crate; arithmetic on them must not panic, except in tests.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod action;
pub mod expectation;
pub mod file;
mod frames;
pub mod live;
pub mod lumina;
pub mod negation;
pub mod packet_filter;
pub mod plan;
pub mod problem;
pub mod profile;
pub mod random;
pub mod read;
pub mod reference;
pub mod rules;
pub mod schema;
pub mod segment;
mod suggestion;
pub mod traffic;
pub mod trigger;
pub mod value;
pub mod verdict;
pub mod whole;
