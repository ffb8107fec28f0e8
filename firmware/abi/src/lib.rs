//! The contract between device and driver: registers, doorbells, commands, queue entries.
