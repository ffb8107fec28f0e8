//! Status of an admin or translation command.

macro_rules! statuses {
    ($( $(#[doc = $doc:literal])* $name:ident / $cname:literal = $value:literal, )*) => {
        /// Result of a command. Each reason for which a command is refused has its own value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Status { $( $(#[doc = $doc])* $name = $value, )* }

        impl Status {
            /// The status with this number, or `None` if it is not defined.
            pub const fn from_u16(value: u16) -> Option<Self> {
                match value { $( $value => Some(Self::$name), )* _ => None }
            }
        }

        /// Command status.
        pub const STATUSES: crate::ConstantGroup = crate::ConstantGroup {
            doc: &[" Command status."],
            prefix: "FAULTLINE_",
            constants: &[$( crate::Constant {
                name: concat!("FAULTLINE_", $cname), value: $value, doc: &[$($doc),*],
            } ),*],
        };
    };
}

statuses! {
    /// Done.
    Ok / "OK" = 0,
    /// No such command.
    BadOpcode / "BAD_OPCODE" = 1,
    /// A reserved field is not zero.
    ReservedNotZero / "RESERVED_NOT_ZERO" = 2,
    /// A field that has no status of its own is out of range.
    BadParameter / "BAD_PARAMETER" = 3,
    /// The limit on objects of this kind is reached.
    NoResources / "NO_RESOURCES" = 4,
    /// Other objects refer to the object.
    InUse / "IN_USE" = 5,
    /// The device does not have this feature.
    NotSupported / "NOT_SUPPORTED" = 6,
    /// The device could not read or write the memory that the command refers to.
    DmaError / "DMA_ERROR" = 7,
    /// No such protection domain.
    BadPd / "BAD_PD" = 8,
    /// No such memory key.
    BadMkey / "BAD_MKEY" = 9,
    /// No such completion queue.
    BadCq / "BAD_CQ" = 10,
    /// No such event queue.
    BadEq / "BAD_EQ" = 11,
    /// No such queue pair.
    BadQp / "BAD_QP" = 12,
    /// No such shared receive queue.
    BadSrq / "BAD_SRQ" = 13,
    /// No such address handle.
    BadAh / "BAD_AH" = 14,
    /// No such user context.
    BadUctx / "BAD_UCTX" = 15,
    /// No such entry of the GID table, or the entry is empty.
    BadGid / "BAD_GID" = 16,
    /// The ring description is malformed or too small for the depth.
    BadRing / "BAD_RING" = 17,
    /// The depth is zero, no power of two where one is needed, or too large.
    BadDepth / "BAD_DEPTH" = 18,
    /// The stride, SGE count or inline size is out of range.
    BadStride / "BAD_STRIDE" = 19,
    /// Unknown access bits, or a combination that the specification forbids.
    BadAccess / "BAD_ACCESS" = 20,
    /// A range wraps, is empty, or leaves the object.
    BadRange / "BAD_RANGE" = 21,
    /// The page size is not supported or an address is not aligned to it.
    BadPageSize / "BAD_PAGE_SIZE" = 22,
    /// The transition is not in the state table.
    BadTransition / "BAD_TRANSITION" = 23,
    /// The transition lacks an attribute that it requires.
    MissingAttribute / "MISSING_ATTRIBUTE" = 24,
    /// The transition or the QP type does not allow one of the attributes.
    ExtraAttribute / "EXTRA_ATTRIBUTE" = 25,
    /// The value of an attribute is out of range.
    BadAttribute / "BAD_ATTRIBUTE" = 26,
    /// The QP is not in the state that the caller named as the current one.
    WrongState / "WRONG_STATE" = 27,
    /// Unknown QP type, or one this command can't handle.
    BadQpType / "BAD_QP_TYPE" = 28,
    /// The vector does not exist.
    BadVector / "BAD_VECTOR" = 29,
    /// The completion queue holds more entries than the new depth.
    CqNotEmpty / "CQ_NOT_EMPTY" = 30,
    /// No fault is outstanding under this token.
    BadToken / "BAD_TOKEN" = 31,
    /// Objects that belong to different protection domains or contexts were combined.
    DomainMismatch / "DOMAIN_MISMATCH" = 32,
    /// No such XRC domain.
    BadXrcd / "BAD_XRCD" = 33,
    /// No such flow.
    BadFlow / "BAD_FLOW" = 60,
    /// The flow matches fields of headers that it does not require.
    BadFlowFields / "BAD_FLOW_FIELDS" = 61,
    /// No such work queue.
    BadWq / "BAD_WQ" = 62,
    /// No such indirection table.
    BadRwqIndTable / "BAD_RWQ_IND_TABLE" = 63,
    /// The address is not a multicast group.
    BadGroup / "BAD_GROUP" = 64,
    /// The queue pair is not attached to the group.
    NotAttached / "NOT_ATTACHED" = 65,
    /// No such allocation of device memory.
    BadDm / "BAD_DM" = 80,
    /// No free range of device memory is large enough.
    NoDeviceMemory / "NO_DEVICE_MEMORY" = 81,
    /// No such counter set.
    BadCounters / "BAD_COUNTERS" = 82,
    /// No such listener.
    BadListener / "BAD_LISTENER" = 90,
    /// No such request for a connection.
    BadRequest / "BAD_REQUEST" = 91,
    /// The request has ended: its peer has gone, or it has waited for too long.
    RequestGone / "REQUEST_GONE" = 92,
    /// Another listener or connection has these addresses and ports.
    AddressInUse / "ADDRESS_IN_USE" = 93,
    /// The addresses are of different families, or none that a connection can have.
    BadAddress / "BAD_ADDRESS" = 94,
}
