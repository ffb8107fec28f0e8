//! Why bytes were refused, or could not be written.

use core::fmt;

/// Why a header or packet was refused on parse, or could not be emitted.
///
/// Every parser in this crate returns one of these instead of panicking, whatever the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WireError {
    /// The bytes end before the header does, or before the length that the header declares.
    Truncated {
        /// Bytes that were needed.
        need: usize,
        /// Bytes that were there.
        have: usize,
    },
    /// The version field (IP version, or BTH transport version) is not one that is spoken here.
    BadVersion(u8),
    /// The IPv4 header checksum does not match (RFC 791 section 3.1).
    BadChecksum,
    /// Length fields contradict each other, or the pad count does not fit the payload.
    BadLength {
        /// What the contradicting field says, in bytes.
        declared: usize,
        /// What the enclosing layer leaves for it, in bytes.
        available: usize,
    },
    /// The BTH opcode is reserved, or of a service that RoCEv2 here does not carry (RD).
    UnknownOpcode(u8),
    /// An IPv4 fragment. RoCEv2 packets are never fragmented: the path MTU bounds them.
    Fragment,
    /// An IPv4 header with options, of this many bytes in all. The iCRC is not defined over them.
    IpOptions(usize),
    /// Not UDP to port 4791: a plain Ethernet frame, for the network stack to judge.
    NotRoce,
    /// A code has no meaning in its field (for example path MTU 0 or 6).
    UnknownCode(u8),
    /// The output buffer cannot hold what would be written.
    BufferTooSmall {
        /// Bytes that were needed.
        need: usize,
        /// Bytes that were there.
        have: usize,
    },
    /// A value does not fit the width of its field on the wire.
    FieldOutOfRange {
        /// The field, as it is named in the representation.
        field: &'static str,
        /// The value.
        value: u32,
    },
    /// The extended headers that are present are not those that this opcode carries.
    WrongHeaders(u8),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Truncated { need, have } => {
                write!(f, "truncated: {need} bytes needed, {have} present")
            }
            Self::BadVersion(version) => write!(f, "unsupported version {version}"),
            Self::BadChecksum => write!(f, "IPv4 header checksum mismatch"),
            Self::BadLength {
                declared,
                available,
            } => {
                write!(
                    f,
                    "inconsistent length: {declared} bytes declared, {available} available"
                )
            }
            Self::UnknownOpcode(opcode) => write!(f, "unknown BTH opcode {opcode:#04x}"),
            Self::Fragment => write!(f, "IPv4 fragment"),
            Self::IpOptions(len) => write!(f, "IPv4 options ({len}-byte header)"),
            Self::NotRoce => write!(f, "not a RoCEv2 packet"),
            Self::UnknownCode(code) => write!(f, "unknown code {code}"),
            Self::BufferTooSmall { need, have } => {
                write!(
                    f,
                    "output buffer too small: {need} bytes needed, {have} present"
                )
            }
            Self::FieldOutOfRange { field, value } => {
                write!(f, "{field} = {value:#x} does not fit its field")
            }
            Self::WrongHeaders(opcode) => {
                write!(f, "extended headers do not match opcode {opcode:#04x}")
            }
        }
    }
}

impl core::error::Error for WireError {}
