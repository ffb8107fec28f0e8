//! A user-space driver over a device socket.
