//! Targets of coverage-guided fuzzing.
//!
//! A target is a function of some octets that panics if the code under test does what it must not. `cargo lab fuzz` runs them
//! under libFuzzer (`src/main.rs`); `tests/replay.rs` runs each on its corpus, in `corpus/TARGET`, with every
//! `cargo test`. What an input means belongs to its target: a change of one makes its corpus less useful, not wrong.
//!
//! libFuzzer, because its instrumentation (SanitizerCoverage) is in the stable compiler, by `-C passes` and
//! `-C llvm-args`, and an input costs a function call: no nightly, no fork, and no tool to install.

#![forbid(unsafe_code)]

mod config;
mod device;
mod forger;
mod input;
mod offload;
mod packet_checker;
mod page_table;
mod peer;
mod port_stream;
mod scenario;
mod scenario_run;
mod stream;
mod vhost_user;
mod wire;

/// A name, and the function for an input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("packet", wire::packet),
    ("responder", peer::responder),
    ("forger", forger::forger),
    ("commands", device::commands),
    ("offload", offload::offload),
    ("stream", stream::vfio_user),
    ("port_stream", port_stream::frames),
    ("vhost_user", vhost_user::front_end),
    ("packet_checker", packet_checker::packet_checker),
    ("page_table", page_table::against_model),
    ("config", config::text),
    ("scenario", scenario::text),
    ("scenario_run", scenario_run::run),
    ("profile", scenario::profile),
    ("lumina", scenario::lumina),
];

/// The target of this name.
pub fn target(name: &str) -> Option<fn(&[u8])> {
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.map(|(_, run)| *run)
}
