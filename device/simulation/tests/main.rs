//! Simulated hosts: one program, which is linked once.

#![cfg(test)]

mod library;
mod many_connections;
mod process;
mod process_rules;
mod profiles;
mod scenarios;
mod traffic;
mod vopr;
