//! BARs and the register map of BAR 0.
//!
//! Registers are 32 bits wide; a 64-bit register is two of them, low half first. Reads of any size and
//! alignment are answered from the 32-bit words; writes must be aligned words of 4 or 8 bytes, others are
//! ignored and counted.

abi_consts! {
    /// PCI identity and BARs.
    group PCI: u32, prefix "FAULTLINE_" {
        /// PCI vendor id.
        PCI_VENDOR = 0x1af4;
        /// PCI device id, from the range QEMU leaves to unregistered, experimental use. Vendor and device id are
        /// defaults: a device can have others, which its driver has to be told.
        PCI_DEVICE = 0x10f0;
        /// PCI subsystem vendor id; the same for all vendor and device ids.
        PCI_SUBSYSTEM_VENDOR = 0x1af4;
        /// PCI subsystem id; the same for all vendor and device ids.
        PCI_SUBSYSTEM = 0x10f0;
        /// BAR of the registers.
        BAR_REGS = 0;
        /// BAR of the doorbell pages, followed by the kick pages.
        BAR_DOORBELL = 2;
        /// BAR of the MSI-X table and pending bits.
        BAR_MSIX = 4;
        /// Size of the register BAR in bytes.
        REGS_SIZE = 0x10000;
        /// Size of a doorbell page and of a kick page in bytes.
        PAGE_SIZE = 0x1000;
        /// Number of MSI-X vectors.
        MSIX_VECTORS = 16;
    }
}

abi_consts! {
    /// Offsets of the registers in BAR 0.
    group OFFSETS: u32, prefix "FAULTLINE_REG_" {
        /// RO. "FLTL", first letter in the lowest byte; all ones: the device was removed.
        MAGIC = 0x00;
        /// RO. Version of this contract, major << 16 | minor.
        ABI_VERSION = 0x04;
        /// RO. FAULTLINE_STATUS_* bits.
        STATUS = 0x08;
        /// RW. FAULTLINE_CONTROL_* bits.
        CONTROL = 0x0c;
        /// RO, 64 bits. FAULTLINE_FEATURE_* bits.
        FEATURES = 0x10;
        /// RO, 64 bits. Permanent MAC address: byte 0 in the lowest byte.
        MAC = 0x20;
        /// RO. Cause of FAULTLINE_STATUS_FATAL: FAULTLINE_FATAL_*.
        FATAL_CODE = 0x28;
        /// RO, 64 bits. Device clock in nanoseconds. Reading the low half latches the high half.
        CLOCK = 0x30;
        /// RW, 64 bits. DMA address of the admin submission ring (4 KiB aligned).
        ADMIN_SQ_BASE = 0x40;
        /// RW, 64 bits. DMA address of the admin completion ring (4 KiB aligned).
        ADMIN_CQ_BASE = 0x48;
        /// RW. log2 of the number of entries in each admin ring, 1..=8.
        ADMIN_LOG_DEPTH = 0x50;
        /// RW. Event queue that gets FAULTLINE_EVENT_ADMIN, or all ones for none.
        ADMIN_EQN = 0x54;
        /// RW, 64 bits. DMA address of the translation submission ring (4 KiB aligned).
        TRANSLATION_SQ_BASE = 0x60;
        /// RW, 64 bits. DMA address of the translation completion ring (4 KiB aligned).
        TRANSLATION_CQ_BASE = 0x68;
        /// RW. log2 of the number of entries in each translation ring, 1..=8.
        TRANSLATION_LOG_DEPTH = 0x70;
        /// RO. Number of doorbell pages at the start of BAR 2. Page 0 belongs to the kernel.
        DOORBELL_PAGES = 0x78;
        /// RO. Offset in BAR 2 of kick page 0, in bytes.
        KICK_OFFSET = 0x7c;
        /// RO. Speed of the link in Mbit/s; 0: unknown. A change raises no event.
        LINK_SPEED = 0x80;
        /// RO. struct faultline_caps.
        CAPS = 0x100;
    }
}

abi_consts! {
    /// Bits of FAULTLINE_REG_STATUS.
    group STATUS_BITS: u32, prefix "FAULTLINE_STATUS_" {
        /// The rings are accepted; the device serves commands and doorbells.
        ENABLED = 1 << 0;
        /// The link is up.
        LINK_UP = 1 << 1;
        /// The device has stopped and needs a reset. See FAULTLINE_REG_FATAL_CODE.
        FATAL = 1 << 2;
    }
}

abi_consts! {
    /// Bits of FAULTLINE_REG_CONTROL.
    group CONTROL_BITS: u32, prefix "FAULTLINE_CONTROL_" {
        /// Set: read the ring registers and start. Clear: stop and destroy every object.
        ENABLE = 1 << 0;
        /// Reset the function as FLR does; reads as zero.
        RESET = 1 << 1;
    }
}

abi_consts! {
    /// Values of FAULTLINE_REG_FATAL_CODE.
    group FATAL_CODES: u32, prefix "FAULTLINE_FATAL_" {
        /// No fatal error.
        NONE = 0;
        /// A ring register was out of range when ENABLE was set.
        BAD_RINGS = 1;
        /// An admin or translation ring can't be read or written.
        RING_DMA = 2;
        /// An event queue can't be written, or overflowed.
        EVENT_QUEUE = 3;
        /// Requested by the operator.
        INJECTED = 4;
    }
}

abi_consts! {
    /// Bits of FAULTLINE_REG_FEATURES.
    group FEATURE_BITS: u64, prefix "FAULTLINE_FEATURE_" {
        /// Regions may be registered on demand; absent pages raise page-fault events.
        ODP = 1 << 0;
        /// Implicit regions over the whole address space.
        ODP_IMPLICIT = 1 << 1;
        /// Extended reliable connections.
        XRC = 1 << 2;
        /// Memory windows type 1 and 2B.
        MEMORY_WINDOWS = 1 << 3;
        /// Fast registration work requests.
        FAST_REG = 1 << 4;
        /// Attach queue pairs to multicast groups.
        MULTICAST = 1 << 5;
        /// Flow steering for raw packet queue pairs.
        FLOW_STEERING = 1 << 6;
        /// Checksum offload on raw Ethernet queue pairs.
        CHECKSUM = 1 << 7;
    }
}
