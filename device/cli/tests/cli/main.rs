//! The program and its commands, as processes.

#![cfg(test)]

mod capture;
mod check;
mod ctl;
mod demo;
mod full_disk;
mod manners;
mod process;
mod program;
mod running;
mod scenario;
mod supervisor;
mod terminal;
mod top;
mod trace;
mod ui;
mod ui_browser;
mod vopr;
