//! Device memory: memory of the device itself, part of BAR 2, that processes map and keys give access to.
//!
//! An allocation is whole pages of FAULTLINE_PAGE_SIZE, zeroed, so that what one process maps is no other's.

abi_struct! {
    /// ALLOC_DM. Answer: handle, and faultline_dm_place.
    "faultline_alloc_dm" AllocDm [16] {
        /// Bytes; not zero. Rounded up to pages.
        length: crate::U64,
        reserved: crate::U64,
    }

    /// ALLOC_DM: where it is.
    "faultline_dm_place" DmPlace [16] {
        /// Offset of its first page in BAR 2.
        offset: crate::U64,
        /// Bytes, whole pages.
        length: crate::U64,
    }

    /// CREATE_DM_MKEY: a key for device memory; its addresses count from zero. Answer: handle is the key.
    "faultline_create_dm_mkey" CreateDmMkey [40] {
        pd: crate::U32,
        /// FAULTLINE_ACCESS_*; not ON_DEMAND.
        access: crate::U32,
        /// The allocation.
        dm: crate::U32,
        /// Low 8 bits of the key.
        variant: u8,
        reserved: [u8; 3],
        /// First byte of the allocation that the key is for; a multiple of 8 if it gives the right to atomics.
        offset: crate::U64,
        /// Bytes; may be zero.
        length: crate::U64,
        reserved1: crate::U64,
    }
}
