//! Guest memory: one program, which is linked once.

#![cfg(test)]

mod guest;
mod lost_pages;
