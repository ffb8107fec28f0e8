//! Scenario files: one program, which is linked once.

#![cfg(test)]

mod documents;
mod examples;
mod lumina;
mod random_files;
mod rules;
mod sets;
mod wrong_files;
