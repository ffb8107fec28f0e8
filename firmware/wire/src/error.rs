//! Errors of parsing and writing.

use core::fmt;

/// Why `parse` refused a header or packet, or `emit` could not write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WireError {
    /// The bytes end before the header does, or before the length that the header declares.
    Truncated {
        /// Number of bytes needed.
        need: usize,
        /// Number of bytes present.
        have: usize,
    },
    /// The IP version or BTH transport version is not supported.
    BadVersion(u8),
    /// The IPv4 header checksum does not match (RFC 791 section 3.1).
    BadChecksum,
    /// The UDP checksum is neither zero nor right (RFC 768, RFC 1122 section 4.1.3.4).
    BadUdpChecksum,
    /// Length fields contradict each other, or the pad count does not fit the payload.
    BadLength {
        /// Value of the length field, in bytes.
        declared: usize,
        /// Space in the enclosing layer, in bytes.
        available: usize,
    },
    /// The BTH opcode is reserved or belongs to an unsupported service (RD).
    UnknownOpcode(u8),
    /// An IPv4 fragment. RoCEv2 packets are never fragmented: the path MTU bounds them.
    Fragment,
    /// An IPv4 header with options; the value is its length in bytes. The iCRC is not defined for options.
    IpOptions(usize),
    /// Not UDP to port 4791: an Ethernet frame for the network stack.
    NotRoce,
    /// The field does not define this code (for example path MTU 0 or 6).
    UnknownCode(u8),
    /// The output buffer is too small.
    BufferTooSmall {
        /// Number of bytes needed.
        need: usize,
        /// Number of bytes present.
        have: usize,
    },
    /// A value exceeds the width of its field on the wire.
    FieldOutOfRange {
        /// Name of the field in the typed header.
        field: &'static str,
        /// The value.
        value: u32,
    },
    /// The extended headers present differ from those of this opcode.
    WrongHeaders(u8),
    /// A TCP option of this kind has a length that its kind does not have, or that exceeds the header.
    BadOption(u8),
    /// Not a setup frame of MPA: it begins with neither key (RFC 5044 section 7.1.1).
    BadKey,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Truncated { need, have } => {
                write!(f, "truncated: {need} bytes needed, {have} present")
            }
            Self::BadVersion(version) => write!(f, "unsupported version {version}"),
            Self::BadChecksum => write!(f, "IPv4 header checksum mismatch"),
            Self::BadUdpChecksum => write!(f, "UDP checksum mismatch"),
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
            Self::Fragment => write!(f, "IPv4 fragments are not supported"),
            Self::IpOptions(len) => write!(f, "IPv4 options are not supported ({len}-byte header)"),
            Self::NotRoce => write!(f, "not a RoCEv2 packet"),
            Self::UnknownCode(code) => write!(f, "unknown code {code}"),
            Self::BufferTooSmall { need, have } => {
                write!(
                    f,
                    "output buffer too small: {need} bytes needed, {have} present"
                )
            }
            Self::FieldOutOfRange { field, value } => {
                write!(f, "{field} = {value:#x} exceeds the width of the field")
            }
            Self::WrongHeaders(opcode) => {
                write!(f, "extended headers do not match opcode {opcode:#04x}")
            }
            Self::BadOption(kind) => write!(f, "malformed TCP option of kind {kind}"),
            Self::BadKey => write!(f, "not a setup frame of MPA"),
        }
    }
}

impl core::error::Error for WireError {}
