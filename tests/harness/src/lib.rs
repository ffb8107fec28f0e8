//! A user-space driver over a device socket.
#![forbid(unsafe_code)]
