//! Multicast groups: bodies of admin commands.

abi_struct! {
    /// ATTACH_MCAST, DETACH_MCAST: handle is a UD queue pair.
    "faultline_mcast" Mcast [16] {
        /// Group; IPv4 as ::ffff:a.b.c.d.
        gid: [u8; 16],
    }
}
