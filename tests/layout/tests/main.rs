//! The rules of the source tree: one program, which is linked once.

mod barriers;
mod compatibility;
mod links;
mod requirements;
mod tree;
mod upstream;
mod words;
