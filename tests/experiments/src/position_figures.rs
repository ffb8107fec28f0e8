//! Names of the figures of [`crate::positions`], as the programs `position_cost` and `pages_taken` print them.

/// KiB of the messages.
pub const MESSAGES: [u32; 7] = [4, 16, 64, 256, 1024, 4096, 16384];

/// Names of the positions, as `position_cost` prints them; all are compared with the first.
pub const POSITIONS: [&str; 9] = [
    "pinned for ever",
    "registered and deregistered",
    "naive cache",
    "cache with watch",
    "lease",
    "on demand, present",
    "implicit, present",
    "on demand, absent in the device",
    "prefetched, absent in the device",
];

/// The kernel's requests for pages, as `pages_taken` prints them.
pub const REQUESTS: [&str; 5] = [
    "compaction",
    "move_pages",
    "memory.reclaim",
    "taking pages out of service",
    "collapse into huge pages",
];

/// Kinds of registered memory, as `pages_taken` prints them.
pub const KINDS: [&str; 3] = ["pinned", "on demand", "on demand and locked"];

/// What a cache with watch adds to the send path.
pub const CHECK: &str = "comparison with a watch's counter";
/// `ibv_post_send()`, to compare with.
pub const POSTING: &str = "posting of a WRITE of 8 bytes";

/// Name of the figure for a message.
pub fn message(kib: u32, position: &str) -> String {
    format!("message of {kib} KiB, {position}")
}

/// Name of the figure for pages of a kind that a request has moved.
pub fn moved(request: &str, kind: &str) -> String {
    format!("pages moved by {request}, {kind}")
}

/// Names and units of the figures in guests.
pub fn figures() -> Vec<(String, &'static str)> {
    let messages = MESSAGES.iter().flat_map(|&kib| {
        let of_position = move |position: &&str| (message(kib, position), "us");
        POSITIONS.iter().map(of_position)
    });
    let pages = REQUESTS.iter().flat_map(|request| {
        let of_kind = move |kind: &&str| (moved(request, kind), "pages");
        KINDS.iter().map(of_kind)
    });
    let checks = [CHECK, POSTING].map(|name| (name.to_owned(), "us"));
    messages.chain(pages).chain(checks).collect()
}
