//! The translation queue: page tables and fault resumes.
//!
//! Entries complete in order, in bounded time, independent of data traffic; the driver polls the
//! completion ring. Completion i of a ring with 2^n entries is new when its phase equals `!(i >> n) & 1`.

abi_struct! {
    /// Translation command.
    "faultline_tq_cmd" TqCmd [64] {
        /// FAULTLINE_TQ_*.
        opcode: u8,
        /// FAULTLINE_TQ_FLAG_*.
        flags: u8,
        /// Returned in the completion.
        id: crate::U16,
        /// Memory key.
        key: crate::U32,
        /// First I/O virtual address; aligned to the page size.
        iova: crate::U64,
        /// MAP, REPLACE: number of pages. INVALIDATE: length of the range in bytes.
        count: crate::U64,
        /// MAP, REPLACE: DMA address of the list of `count` page entries, or with FLAG_CONTIGUOUS the page
        /// entry of the first page; the other pages follow it in memory.
        list: crate::U64,
        /// RESUME: the token.
        token: crate::U64,
        /// MAP, REPLACE: log2 of the page size.
        page_shift: u8,
        /// Reserved; zero.
        reserved0: u8,
        /// RESUME: FAULTLINE_OK, or the status with which the access fails.
        resume_status: crate::U16,
        /// RESUME: nanoseconds of the guest's clock from reading the fault record until its service began; at most
        /// u32::MAX. With `map_ns` and `post_ns` zero: not reported. Other opcodes: reserved; zero.
        wait_ns: crate::U32,
        /// RESUME: nanoseconds from then until the pages were mapped. Other opcodes: reserved; zero.
        map_ns: crate::U32,
        /// RESUME: nanoseconds from then until this command was posted. Other opcodes: reserved; zero.
        post_ns: crate::U32,
        /// Reserved; zero.
        reserved1: [u8; 8],
    }

    /// Translation completion.
    "faultline_tq_comp" TqComp [16] {
        /// `id` of the command.
        id: crate::U16,
        /// Status.
        status: crate::U16,
        /// MAP, REPLACE: entries written. INVALIDATE: entries that were present. RESUME: QPs that waited.
        count: crate::U32,
        /// Reserved; zero.
        reserved: [u8; 7],
        /// Written last.
        phase: u8,
    }
}

abi_consts! {
    /// Translation opcodes.
    group OPCODES: u8, prefix "FAULTLINE_TQ_" {
        /// Write page entries.
        MAP = 1;
        /// Remove all entries that overlap a range; after completion the device does not access the pages.
        INVALIDATE = 2;
        /// Answer a fault: the access continues or fails.
        RESUME = 3;
        /// Like MAP, but writes only entries that are present: moves the pages of a key that is in use.
        REPLACE = 4;
    }
}

abi_consts! {
    /// Flags of a translation command.
    group FLAGS: u8, prefix "FAULTLINE_TQ_FLAG_" {
        /// MAP: `list` is the entry of the first page of a physically contiguous range.
        CONTIGUOUS = 1 << 0;
    }
}

abi_consts! {
    /// Page entry: DMA address of the page, and permissions in its low bits. Zero permissions: absent.
    group ENTRY: u64, prefix "FAULTLINE_PTE_" {
        /// The device may read the page.
        READ = 1 << 0;
        /// The device may write the page.
        WRITE = 1 << 1;
        /// Bits of the address.
        ADDR_MASK = 0xffff_ffff_ffff_f000;
    }
}
