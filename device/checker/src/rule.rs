//! The rules, with their sources.

/// A rule of the InfiniBand specification ("IBTA" is volume 1, release 1.4), of RoCEv2 (its annex A17), or of iWARP (RFCs).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// The packet can be parsed: lengths, versions and headers of the opcode agree.
    WellFormed,
    /// The invariant CRC is right.
    InvariantCrc,
    /// Fields that are reserved or have one permitted value.
    FixedField,
    /// Group addresses of Ethernet and IP and the number of all groups' queue pair are used together, by datagrams only.
    Multicast,
    /// Pad bytes are zero.
    Padding,
    /// The opcode permits the payload, and its length.
    PayloadLength,
    /// Packets have as many bytes as the path MTU of their connection demands or permits.
    PathMtu,
    /// All packets of a connection are of one partition, and those of an XRC message are for one shared receive queue.
    ConnectionField,
    /// Each new request has the PSN after that of the last one.
    RequestPsn,
    /// FIRST, MIDDLE and LAST packets of a message follow each other.
    OpcodeSequence,
    /// A message has as many bytes as its RETH says.
    MessageLength,
    /// A request that is sent again is the request that was sent under its PSN.
    Repetition,
    /// A request that was acknowledged is not sent again.
    RepeatedAfterAck,
    /// At most 2^23 PSNs are outstanding.
    Outstanding,
    /// Without credits, only the first packet of a message that takes a receive request is sent, and asks for an acknowledgement.
    Credits,
    /// No more READs, atomics, FLUSHes and ATOMIC WRITEs are outstanding than the connection permits.
    ReadLimit,
    /// After an RNR NAK the requester waits for as long as it says.
    RnrWait,
    /// After a NAK that ends the connection no request is sent.
    SentAfterFailure,
    /// Only requests that have arrived are answered.
    ResponsePsn,
    /// Acknowledgements do not go back.
    AckOrder,
    /// READs and atomics are answered before later requests are acknowledged.
    ResponseOrder,
    /// A request that was refused by a NAK, and later ones, are not acknowledged before it was repeated.
    AckAfterNak,
    /// The MSN of an acknowledgement counts the messages that are completed.
    Msn,
    /// One NAK is sent for a gap, with the PSN that is expected.
    SequenceNak,
    /// READ responses belong to a READ, follow each other, and have its length.
    ReadResponse,
    /// An atomic response that is sent again has the same value.
    AtomicReplay,
    /// Notifications of congestion follow a packet that was marked.
    Cnp,
    /// READY, an operation of Faultline, goes only to an adapter that is known to understand it, after an RNR NAK.
    Ready,
    /// Fields whose other values have no meaning, or are refused by the receiver.
    UnusualField,
    /// A capture has packets in the order in which they were sent.
    Reordered,
    /// Packets of manufacturers' opcodes and of RD are not judged.
    UnjudgedOpcode,
    /// A segment can be parsed, and its checksum is right.
    TcpSegment,
    /// Options are used that both ends have offered, in the segments that have them.
    TcpOption,
    /// Options and data are not longer than the maximum segment size of the peer.
    TcpMss,
    /// New octets follow the last ones that were sent.
    TcpSequence,
    /// Only octets that were sent are acknowledged, and acknowledgments do not go back.
    TcpAck,
    /// No octets but those of window probes are sent beyond the window.
    TcpWindow,
    /// An FPDU that is sent again has the headers that it had.
    TcpRepetition,
    /// No octets follow a FIN, and no segments a reset.
    TcpAfterEnd,
    /// Setup frames have the fields that their revision and role permit.
    MpaSetup,
    /// The setup frames come first, and the active end sends the first FPDU.
    MpaOrder,
    /// The CRC of an FPDU is right.
    MpaCrc,
    /// An FPDU fits into a segment, and its padding is zero.
    MpaLength,
    /// Markers point to the FPDU around them.
    MpaMarker,
    /// A DDP header is whole, with the version 1 and reserved bits of zero.
    DdpHeader,
    /// The untagged messages of each queue are numbered from 1.
    DdpMsn,
    /// The segments of a message follow each other up to the one with the last flag, and offsets do not wrap.
    DdpOffset,
    /// The version is 1, the message type is known, its segments are of its kind and queue, and only messages that invalidate name an STag for it.
    RdmapHeader,
    /// Requests, atomic responses and immediate data are one segment of their length.
    RdmapLength,
    /// Responses answer the oldest request, with its STag, offset and length, or its number.
    RdmapResponse,
    /// No more READs and atomics are outstanding than the peer has said that it serves.
    RdmapReadLimit,
    /// A Terminate message has a known code and the headers that it announces.
    RdmapTerminate,
    /// Nothing follows a Terminate message.
    RdmapAfterTerminate,
    /// iWARP connections of which the beginning or a part was not seen are not judged.
    UnjudgedStream,
}

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// The specification does not permit the packet.
    Violation,
    /// The packet is permitted, or may be the work of the network or of the capture: worth a look.
    Suspicious,
    /// A property of the capture.
    Note,
}

impl Severity {
    /// Its name, as in the output of `faultline check`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Violation => "violation",
            Self::Suspicious => "suspicious",
            Self::Note => "note",
        }
    }
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 54] = [
        Self::WellFormed,
        Self::InvariantCrc,
        Self::FixedField,
        Self::Multicast,
        Self::Padding,
        Self::PayloadLength,
        Self::PathMtu,
        Self::ConnectionField,
        Self::RequestPsn,
        Self::OpcodeSequence,
        Self::MessageLength,
        Self::Repetition,
        Self::RepeatedAfterAck,
        Self::Outstanding,
        Self::Credits,
        Self::ReadLimit,
        Self::RnrWait,
        Self::SentAfterFailure,
        Self::ResponsePsn,
        Self::AckOrder,
        Self::ResponseOrder,
        Self::AckAfterNak,
        Self::Msn,
        Self::SequenceNak,
        Self::ReadResponse,
        Self::AtomicReplay,
        Self::Cnp,
        Self::Ready,
        Self::UnusualField,
        Self::Reordered,
        Self::UnjudgedOpcode,
        Self::TcpSegment,
        Self::TcpOption,
        Self::TcpMss,
        Self::TcpSequence,
        Self::TcpAck,
        Self::TcpWindow,
        Self::TcpRepetition,
        Self::TcpAfterEnd,
        Self::MpaSetup,
        Self::MpaOrder,
        Self::MpaCrc,
        Self::MpaLength,
        Self::MpaMarker,
        Self::DdpHeader,
        Self::DdpMsn,
        Self::DdpOffset,
        Self::RdmapHeader,
        Self::RdmapLength,
        Self::RdmapResponse,
        Self::RdmapReadLimit,
        Self::RdmapTerminate,
        Self::RdmapAfterTerminate,
        Self::UnjudgedStream,
    ];

    /// How serious it is to violate it.
    pub const fn severity(self) -> Severity {
        match self {
            Self::Multicast | Self::UnusualField | Self::Reordered => Severity::Suspicious,
            Self::UnjudgedOpcode | Self::UnjudgedStream => Severity::Note,
            _ => Severity::Violation,
        }
    }

    /// Short name, as in the output of `faultline check`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WellFormed => "well-formed",
            Self::InvariantCrc => "icrc",
            Self::FixedField => "fixed-field",
            Self::Multicast => "multicast",
            Self::Padding => "padding",
            Self::PayloadLength => "payload-length",
            Self::PathMtu => "path-mtu",
            Self::ConnectionField => "connection-field",
            Self::RequestPsn => "request-psn",
            Self::OpcodeSequence => "opcode-sequence",
            Self::MessageLength => "message-length",
            Self::Repetition => "repetition",
            Self::RepeatedAfterAck => "repeated-after-ack",
            Self::Outstanding => "outstanding",
            Self::Credits => "credits",
            Self::ReadLimit => "read-limit",
            Self::RnrWait => "rnr-wait",
            Self::SentAfterFailure => "sent-after-failure",
            Self::ResponsePsn => "response-psn",
            Self::AckOrder => "ack-order",
            Self::ResponseOrder => "response-order",
            Self::AckAfterNak => "ack-after-nak",
            Self::Msn => "msn",
            Self::SequenceNak => "sequence-nak",
            Self::ReadResponse => "read-response",
            Self::AtomicReplay => "atomic-replay",
            Self::Cnp => "cnp",
            Self::Ready => "ready",
            Self::UnusualField => "unusual-field",
            Self::Reordered => "reordered",
            Self::UnjudgedOpcode => "unjudged-opcode",
            Self::TcpSegment => "tcp-segment",
            Self::TcpOption => "tcp-option",
            Self::TcpMss => "tcp-mss",
            Self::TcpSequence => "tcp-sequence",
            Self::TcpAck => "tcp-ack",
            Self::TcpWindow => "tcp-window",
            Self::TcpRepetition => "tcp-repetition",
            Self::TcpAfterEnd => "tcp-after-end",
            Self::MpaSetup => "mpa-setup",
            Self::MpaOrder => "mpa-order",
            Self::MpaCrc => "mpa-crc",
            Self::MpaLength => "mpa-length",
            Self::MpaMarker => "mpa-marker",
            Self::DdpHeader => "ddp-header",
            Self::DdpMsn => "ddp-msn",
            Self::DdpOffset => "ddp-offset",
            Self::RdmapHeader => "rdmap-header",
            Self::RdmapLength => "rdmap-length",
            Self::RdmapResponse => "rdmap-response",
            Self::RdmapReadLimit => "rdmap-read-limit",
            Self::RdmapTerminate => "rdmap-terminate",
            Self::RdmapAfterTerminate => "rdmap-after-terminate",
            Self::UnjudgedStream => "unjudged-stream",
        }
    }

    /// Where the rule is from.
    pub const fn source(self) -> &'static str {
        match self {
            Self::WellFormed => "IBTA 9.6.1, A17.3",
            Self::InvariantCrc => "IBTA 7.8.1, A17.3.3",
            Self::FixedField => "IBTA 9.2, 9.3, A17.3.1",
            Self::Multicast => "IBTA 3.5.1, 10.5.2, A17.4",
            Self::Padding => "IBTA 9.2.4",
            Self::PayloadLength => "IBTA 9.4.1, 9.6",
            Self::PathMtu => "IBTA 9.7.4.1.6, 9.7.5.1.9",
            Self::ConnectionField => "IBTA 9.6.1.2, A14.3",
            Self::RequestPsn => "IBTA 9.7.3.1, 9.8.2",
            Self::OpcodeSequence => "IBTA 9.7.3.2, 9.8.2",
            Self::MessageLength => "IBTA 9.4.3, 9.7.4.1.6",
            Self::Repetition => "IBTA 9.7.5.1.2",
            Self::RepeatedAfterAck => "IBTA 9.7.5.2",
            Self::Outstanding => "IBTA 9.7.2",
            Self::Credits => "IBTA 9.7.7.2",
            Self::ReadLimit => "IBTA 9.7.4.1.4, 11.2.5, 12.6.8",
            Self::RnrWait => "IBTA 9.7.5.2.8",
            Self::SentAfterFailure => "IBTA 9.9.2.4",
            Self::ResponsePsn => "IBTA 9.7.5.1.1",
            Self::AckOrder => "IBTA 9.7.5.1.2",
            Self::ResponseOrder => "IBTA 9.5, 9.7.5.1.3",
            Self::AckAfterNak => "IBTA 9.7.5.2.8, 9.9.3",
            Self::Msn => "IBTA 9.7.7.1",
            Self::SequenceNak => "IBTA 9.7.5.1.3",
            Self::ReadResponse => "IBTA 9.7.5.1.9",
            Self::AtomicReplay => "IBTA 9.4.5, 9.7.5.1.3",
            Self::Cnp => "IBTA A17.9",
            Self::Ready => "IBTA 9.2.1 (manufacturers' opcodes), page-faults.md",
            Self::UnusualField => "IBTA 9.2, 9.4.5, A17.9",
            Self::Reordered => "IBTA 9.7.3.1",
            Self::UnjudgedOpcode => "IBTA 9.2.1, table 38",
            Self::TcpSegment => "RFC 9293 3.1",
            Self::TcpOption => "RFC 7323 2.2, 3.2; RFC 2018 2, 3",
            Self::TcpMss => "RFC 9293 3.7.1, RFC 6691 2",
            Self::TcpSequence => "RFC 9293 3.4",
            Self::TcpAck => "RFC 9293 3.4, 3.10.7.4; RFC 2018 3",
            Self::TcpWindow => "RFC 9293 3.8.6",
            Self::TcpRepetition => "RFC 9293 3.8.1",
            Self::TcpAfterEnd => "RFC 9293 3.5.2, 3.6",
            Self::MpaSetup => "RFC 5044 7.1.1, RFC 6581 4",
            Self::MpaOrder => "RFC 5044 7.1.2",
            Self::MpaCrc => "RFC 5044 4.4",
            Self::MpaLength => "RFC 5044 4.1, 4.5",
            Self::MpaMarker => "RFC 5044 4.3",
            Self::DdpHeader => "RFC 5041 4.1",
            Self::DdpMsn => "RFC 5041 4.3, 5.1.2",
            Self::DdpOffset => "RFC 5041 5.2",
            Self::RdmapHeader => "RFC 5040 4.1 to 4.3, RFC 7306 5.1, 6.1",
            Self::RdmapLength => "RFC 5040 4.4, RFC 7306 5.2, 6.1",
            Self::RdmapResponse => "RFC 5040 4.5, 5.2; RFC 7306 5.2.2",
            Self::RdmapReadLimit => "RFC 6581 4",
            Self::RdmapTerminate => "RFC 5040 4.8",
            Self::RdmapAfterTerminate => "RFC 5040 5.4",
            Self::UnjudgedStream => "RFC 5044 7.1",
        }
    }
}
