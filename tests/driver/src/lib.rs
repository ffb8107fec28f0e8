//! Files of the kernel driver, compiled into a process with AddressSanitizer and run with a device that lies; see `c/` and `tests/`.
//!
//! `c/shim.h` stands in for the headers of the kernel, `c/device.c` for the device and for the files of the driver that are not
//! compiled. Not tested: what other processors do meanwhile, and memory that a real device writes.
#![forbid(unsafe_code)]
