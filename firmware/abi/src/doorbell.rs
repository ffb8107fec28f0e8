//! Doorbell pages and kick pages (BAR 2).
//!
//! A doorbell page is plain shared memory: software appends a doorbell to the ring in its page and the device polls it.
//! [`crate::ring`] has the algorithm, which is lock-free. While the device sleeps (`asleep` is not zero, read after a
//! full barrier that follows the store) software also writes the doorbell to the kick page of the same number. This
//! wakes the device, which handles the doorbell at once. An emulator with a scenario rule for this doorbell only wakes,
//! and takes the doorbell from its ring. Doorbells carry absolute indices, so a doorbell that is handled twice or late
//! has no effect.
//!
//! A doorbell is valid only for objects of the context that owns its page; page 0 belongs to the kernel.

abi_struct! {
    /// Head of a doorbell page.
    "faultline_doorbell_page" DoorbellPage [4096] {
        /// Written by the device: not zero while it sleeps.
        asleep: crate::U32,
        /// Written by the device, page 0 only: incremented at least once a second while the device works.
        heartbeat: crate::U32,
        /// Written by the device: not zero while the page's context exists. When the kernel revokes the device from a
        /// process it replaces the page by an empty one, so the process reads zero.
        alive: crate::U32,
        /// Reserved; zero.
        reserved0: [u8; 52],
        /// Index of the next doorbell: one past the last that was stored, or one less until the thread that stored it has
        /// advanced this index. For software; the device does not read it.
        producer: crate::U64,
        /// Reserved; zero.
        reserved1: [u8; 56],
        /// Doorbells that the device has handled.
        consumer: crate::U64,
        /// Reserved; zero.
        reserved2: [u8; 1912],
        /// The ring. Slot `i % 256` holds doorbell i, or the mark that it is free for doorbell i.
        ring: [crate::U64; 256],
    }
}

abi_consts! {
    /// Fields of a doorbell: `lap << 63 | type << 56 | object << 32 | value`.
    ///
    /// The lap bit of the doorbell with index i is `!(i >> 8) & 1`. A slot whose type is zero is free for one doorbell
    /// i; its 64 bits are `i >> 8`. So all slots of a zeroed page are free for the first lap.
    group FIELDS: u64, prefix "FAULTLINE_DB_" {
        /// Number of slots in the ring of a page.
        RING_ENTRIES = 256;
        /// Bits to shift an index right to find its lap.
        LAP_SHIFT = 8;
        /// Shift of the lap bit.
        PHASE_SHIFT = 63;
        /// Shift of the type.
        TYPE_SHIFT = 56;
        /// Mask of the type, after the shift.
        TYPE_MASK = 0x7f;
        /// Shift of the object number.
        OBJECT_SHIFT = 32;
        /// Mask of the object number, after the shift.
        OBJECT_MASK = 0xff_ffff;
    }
}

abi_consts! {
    /// Types of doorbells.
    group TYPES: u8, prefix "FAULTLINE_DB_" {
        /// Send queue of QP `object`: `value` is the producer index (modulo 2^32).
        SQ = 1;
        /// Completion queue `object`: notify on the next completion after consumer index `value`.
        CQ_ARM = 2;
        /// As CQ_ARM, but only a solicited or failed completion causes the event.
        CQ_ARM_SOLICITED = 3;
        /// Event queue `object`, page 0 only: consumer index is `value`, interrupt on the next event.
        EQ_ARM = 4;
        /// Admin ring, page 0 only: `value` is the producer index.
        ADMIN = 5;
        /// Translation ring, page 0 only: `value` is the producer index.
        TRANSLATION = 6;
        /// Wakes the device and has no other effect.
        NOP = 7;
        /// Receive queue of QP `object`: `value` is the producer index. Rung only when its record requests it.
        RQ = 8;
        /// Tag matching SRQ `object`: `value` is the producer index of its operations.
        TM_OPS = 32;
    }
}

/// The fields of a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell {
    /// One of [`SQ`], [`CQ_ARM`], … ; not checked.
    pub kind: u8,
    /// Number of the object, 24 bits.
    pub object: u32,
    /// Index, meaning by kind.
    pub value: u32,
}

impl Doorbell {
    /// Decodes a doorbell; the lap bit is ignored.
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            kind: ((bits >> TYPE_SHIFT) & TYPE_MASK) as u8,
            object: ((bits >> OBJECT_SHIFT) & OBJECT_MASK) as u32,
            value: (bits & 0xffff_ffff) as u32,
        }
    }

    /// Encodes it, with lap bit zero.
    pub const fn to_bits(self) -> u64 {
        ((self.kind as u64 & TYPE_MASK) << TYPE_SHIFT)
            | ((self.object as u64 & OBJECT_MASK) << OBJECT_SHIFT)
            | self.value as u64
    }

    /// Encodes it for the slot with this index, in a ring of `2^lap_shift` slots.
    pub const fn to_slot(self, index: u64, lap_shift: u32) -> u64 {
        self.to_bits() | (lap_bit(index, lap_shift) << PHASE_SHIFT)
    }
}

/// The lap bit that a doorbell with this index carries, in a ring of `2^lap_shift` slots.
pub const fn lap_bit(index: u64, lap_shift: u32) -> u64 {
    !(index >> lap_shift) & 1
}

/// Bits of the type in a slot. At least one is set if the slot holds a doorbell, of any lap.
pub const TYPE_BITS: u64 = TYPE_MASK << TYPE_SHIFT;

/// Returns true if a slot holds a doorbell, of any lap.
pub const fn is_doorbell(bits: u64) -> bool {
    bits & TYPE_BITS != 0
}
