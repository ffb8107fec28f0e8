//! Two or more NICs, a lossy wire and a virtual clock.
#![forbid(unsafe_code)]
