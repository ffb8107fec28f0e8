//! Memory keys: access rights, bounds and translation of lkeys and rkeys.
//!
//! - `access`: rights, ranges, and the reasons why a translation fails
//! - `key`: one key
//! - `table`: all keys of a NIC, and the commands that change them
//! - `translate`: from key and address to guest memory
//! - `local`: work requests that change keys; `lives`: registrations that end with their queue pair

mod access;
mod key;
mod lives;
mod local;
mod table;
mod translate;

#[cfg(test)]
mod tests;

pub use access::{Absent, Access, KeyRange, KeyUser, Miss, PageRange};
pub use key::Mkey;
pub use table::{Destroyed, Mkeys};

pub(crate) use local::{Bind, KeyError, Register};
