//! The control server and its clients.

#![cfg(test)]

mod clients;
mod control;
mod openapi;
mod random_requests;
