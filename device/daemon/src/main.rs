//! The faultline binary: configuration, vfio-user servers, engine.

fn main() {}
