//! Guest images, QEMU command lines, and the project's test, demo and bench commands.

fn main() {}
