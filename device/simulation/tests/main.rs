//! Simulated hosts: one program, which is linked once.

#![cfg(test)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "test data are made of numbers that fit"
)]

mod addresses;
mod back_pressure;
mod bursts;
mod captures;
mod common;
mod engines;
mod flow_control;
mod library;
mod links;
mod live_rules;
mod many_connections;
mod process_rules;
mod profiles;
mod ready;
mod scenarios;
mod stations;
mod traffic;
mod turns;
mod vlans;
mod vopr;
