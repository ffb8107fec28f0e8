//! Files of the kernel driver, compiled into a process with AddressSanitizer and run with a device that lies; see `c/` and `tests/`.
//!
//! `c/shim.h` stands in for the headers of the kernel (`c/net.h` for those of the network, `c/threads.h` for threads and PCI), `c/device.c`
//! for the device and for the files of the driver that are not compiled. Queues are tested in one thread, shutdown (`c/shutdown.c`) in
//! threads that take turns in virtual time. Not tested: what other processors do meanwhile, and memory that a real device writes.
#![forbid(unsafe_code)]
