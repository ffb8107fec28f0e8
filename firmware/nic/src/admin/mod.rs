//! The admin queue: objects are created, changed, queried and destroyed.
//!
//! - `queue`: the rings, turns and completions; the dispatch
//! - `command`: an entry of the ring becomes a typed command, or a status
//! - `contexts`, `keys`, `queues`, `queue_pairs`, `ethernet`, `counters`, `iwarp`: one function for each command
//!
//! Reference counts keep an object from being destroyed while another one uses it.

mod command;
mod contexts;
mod counters;
mod ethernet;
mod iwarp;
mod keys;
mod queue;
mod queue_pairs;
mod queues;
mod sizes;
