//! Device memory: memory of the device, in BAR 2, which processes map and which memory keys can refer to.
//!
//! An allocation consists of whole, zeroed pages of FAULTLINE_PAGE_SIZE, so that no two processes map the same page.

abi_struct! {
    /// ALLOC_DM. Answer: handle, and `faultline_dm_place`.
    "faultline_alloc_dm" AllocDm [16] {
        /// Bytes; not zero. Rounded up to pages.
        length: crate::U64,
        /// Reserved; zero.
        reserved: crate::U64,
    }

    /// ALLOC_DM: location of the allocation.
    "faultline_dm_place" DmPlace [16] {
        /// Offset of its first page in BAR 2.
        offset: crate::U64,
        /// Bytes, whole pages.
        length: crate::U64,
    }

    /// CREATE_DM_MKEY: a zero-based key for device memory. Answer: handle is the key.
    "faultline_create_dm_mkey" CreateDmMkey [40] {
        /// Protection domain.
        pd: crate::U32,
        /// FAULTLINE_ACCESS_*; not ON_DEMAND.
        access: crate::U32,
        /// The allocation.
        dm: crate::U32,
        /// Low 8 bits of the key.
        variant: u8,
        /// Reserved; zero.
        reserved: [u8; 3],
        /// Offset of the first byte in the allocation; a multiple of 8 if the key allows atomics.
        offset: crate::U64,
        /// Bytes; may be zero.
        length: crate::U64,
        /// Reserved; zero.
        reserved1: crate::U64,
    }
}
