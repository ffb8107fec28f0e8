//! The server at its socket: one program, which is linked once.

#![cfg(test)]

mod client;
mod common;
mod malformed;
mod random;
mod relay;
