//! Reasons for the end of an iWARP stream: the error codes of all of its layers.

/// Why a stream is terminated: layer, error type and error code (RFC 5040 section 4.8, RFC 5041 section 7.1, RFC 5044 section 8, RFC 6581 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TerminateCode {
    /// Layer, 4 bits.
    pub layer: u8,
    /// Error type, 4 bits.
    pub error_type: u8,
    /// Error code.
    pub code: u8,
}

macro_rules! terminate_codes {
    ($($name:ident = ($layer:literal, $error_type:literal, $code:literal), $doc:literal;)*) => {
        impl TerminateCode {
            $(
                #[doc = $doc]
                pub const $name: Self = Self { layer: $layer, error_type: $error_type, code: $code };
            )*
            /// All codes that the standards define, with their names.
            pub const ALL: &'static [(&'static str, Self)] = &[$((stringify!($name), Self::$name)),*];
        }
    };
}

terminate_codes! {
    RDMAP_LOCAL_CATASTROPHIC = (0, 0, 0x00), "RDMAP: local catastrophic error.";
    RDMAP_INVALID_STAG = (0, 1, 0x00), "RDMAP, remote protection error: invalid STag.";
    RDMAP_BOUNDS = (0, 1, 0x01), "RDMAP, remote protection error: base or bounds violation.";
    RDMAP_ACCESS = (0, 1, 0x02), "RDMAP, remote protection error: access rights violation.";
    RDMAP_NOT_ASSOCIATED = (0, 1, 0x03), "RDMAP, remote protection error: STag not associated with the stream.";
    RDMAP_OFFSET_WRAP = (0, 1, 0x04), "RDMAP, remote protection error: tagged offset wraps.";
    RDMAP_CANNOT_INVALIDATE_PROTECTED = (0, 1, 0x09), "RDMAP, remote protection error: the STag cannot be invalidated.";
    RDMAP_PROTECTION_UNSPECIFIED = (0, 1, 0xff), "RDMAP, remote protection error: unspecified.";
    RDMAP_VERSION = (0, 2, 0x05), "RDMAP, remote operation error: invalid version.";
    RDMAP_OPCODE = (0, 2, 0x06), "RDMAP, remote operation error: unexpected opcode.";
    RDMAP_CATASTROPHIC_STREAM = (0, 2, 0x07), "RDMAP, remote operation error: catastrophic for the stream.";
    RDMAP_CATASTROPHIC_GLOBAL = (0, 2, 0x08), "RDMAP, remote operation error: catastrophic for all streams.";
    RDMAP_CANNOT_INVALIDATE = (0, 2, 0x09), "RDMAP, remote operation error: the STag cannot be invalidated.";
    RDMAP_UNSPECIFIED = (0, 2, 0xff), "RDMAP, remote operation error: unspecified.";
    DDP_LOCAL_CATASTROPHIC = (1, 0, 0x00), "DDP: local catastrophic error.";
    DDP_TAGGED_INVALID_STAG = (1, 1, 0x00), "DDP, tagged buffer: invalid STag.";
    DDP_TAGGED_BOUNDS = (1, 1, 0x01), "DDP, tagged buffer: base or bounds violation.";
    DDP_TAGGED_NOT_ASSOCIATED = (1, 1, 0x02), "DDP, tagged buffer: STag not associated with the stream.";
    DDP_TAGGED_OFFSET_WRAP = (1, 1, 0x03), "DDP, tagged buffer: tagged offset wraps.";
    DDP_TAGGED_VERSION = (1, 1, 0x04), "DDP, tagged buffer: invalid version.";
    DDP_UNTAGGED_QUEUE = (1, 2, 0x01), "DDP, untagged buffer: invalid queue number.";
    DDP_UNTAGGED_NO_BUFFER = (1, 2, 0x02), "DDP, untagged buffer: invalid MSN, no buffer available.";
    DDP_UNTAGGED_MSN_RANGE = (1, 2, 0x03), "DDP, untagged buffer: invalid MSN, out of range.";
    DDP_UNTAGGED_OFFSET = (1, 2, 0x04), "DDP, untagged buffer: invalid message offset.";
    DDP_UNTAGGED_TOO_LONG = (1, 2, 0x05), "DDP, untagged buffer: message too long for its buffer.";
    DDP_UNTAGGED_VERSION = (1, 2, 0x06), "DDP, untagged buffer: invalid version.";
    MPA_STREAM_LOST = (2, 0, 0x01), "MPA: the TCP connection is lost.";
    MPA_CRC = (2, 0, 0x02), "MPA: CRC error.";
    MPA_MARKER = (2, 0, 0x03), "MPA: marker and length do not match.";
    MPA_SETUP = (2, 0, 0x04), "MPA: invalid setup frame.";
    MPA_LOCAL_CATASTROPHIC = (2, 0, 0x05), "MPA: local catastrophic error.";
    MPA_INSUFFICIENT_IRD = (2, 0, 0x06), "MPA: the inbound READ queue is too short.";
    MPA_NO_MATCHING_RTR = (2, 0, 0x07), "MPA: no matching first message (RTR).";
}
