//! The program and its commands, as processes.

#![cfg(test)]

mod capture;
mod check;
mod ctl;
mod full_disk;
mod process;
mod program;
mod running;
mod scenario;
mod supervisor;
mod top;
mod trace;
mod vopr;
