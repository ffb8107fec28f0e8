//! The NIC itself: objects, transport, page tables, timers; no threads, clocks, files or sockets.
