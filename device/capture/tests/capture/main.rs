//! Tests of the crate, as one program.

#![cfg(test)]

mod foreign;
