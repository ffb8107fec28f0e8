//! Segments that are legal, or not those of the adapter: nothing false is found.

use super::*;

impl Stream {
    /// An unknown sender has sent a segment, which arrives.
    fn arrives(&mut self, from: usize, tcp: &Tcp, data: &[u8]) {
        let octets = frame(from, tcp, data);
        self.checker.passed_to(0, 1 - from, &octets);
    }

    /// The stream of an end is followed: a wrong MSN is found, and nothing else.
    #[track_caller]
    fn is_followed(&mut self, from: usize) {
        self.is_clean();
        self.msns[from][0] += 50;
        self.send(from);
        self.violates(Rule::DdpMsn);
    }
}

/// A SYN with another number changes nothing in a connection that exists.
#[test]
fn a_forged_syn_is_ignored() {
    let mut stream = Stream::open();
    let mut tcp = stream.header(1);
    tcp.flags |= TcpFlags::SYN;
    tcp.seq = Seq(ISN[1] + 1000);
    stream.arrives(1, &tcp, &[]);
    stream.data(0, &[]);
    stream.send(0);
    stream.send(1);
    stream.data(0, &[]);
    stream.is_followed(1);
}

/// A listener refuses an old segment or a SYN, and answers the next SYN.
#[test]
fn a_refusal_before_the_handshake_ends_nothing() {
    for is_answered in [false, true] {
        let mut stream = Stream::new();
        stream.syn(0);
        if is_answered {
            stream.syn(1);
        }
        stream.change(|tcp, _| tcp.flags = TcpFlags::RST | TcpFlags::ACK);
        stream.data(1, &[]);
        stream.set_up();
        stream.send(1);
        stream.is_followed(1);
    }
}

/// An RST counts if it lies in the window, and its sender is that of the connection.
#[test]
fn resets_that_do_not_count() {
    let mut stream = Stream::open();
    stream.change(|tcp, _| {
        tcp.flags = TcpFlags::RST;
        tcp.seq = tcp.seq.add(5000);
    });
    stream.data(1, &[]);
    let mut tcp = stream.header(1);
    tcp.flags = TcpFlags::RST;
    stream.arrives(1, &tcp, &[]);
    stream.send(1);
    stream.is_followed(1);
}

/// An end whose segments are all seen has sent no more than that, whatever a forged segment acknowledges.
#[test]
fn a_forged_acknowledgment_is_not_believed() {
    for is_block in [false, true] {
        let mut stream = Stream::open();
        let mut tcp = stream.header(1);
        if is_block {
            tcp.options.sack.push(tcp.ack.add(10), tcp.ack.add(20));
        } else {
            tcp.ack = tcp.ack.add(1000);
        }
        stream.arrives(1, &tcp, &[]);
        stream.violates(Rule::TcpAck);
        stream.data(1, &[]);
        stream.send(0);
        assert_eq!(stream.rules(), [Rule::TcpAck].into());
        stream.msns[0][0] += 50;
        stream.send(0);
        assert_eq!(stream.rules(), [Rule::TcpAck, Rule::DdpMsn].into());
    }
}

/// Segments that were changed on their way are not judged; the same ones are, when they come again.
#[test]
fn segments_with_a_wrong_checksum_arrive() {
    let changes: [fn(&mut Vec<u8>); 4] = [
        // The ULPDU, the sequence number, the flags (RST), and the length of the header.
        |octets| octets[34 + 20 + 30] ^= 1,
        |octets| octets[34 + 5] ^= 1,
        |octets| octets[34 + 13] ^= 4,
        |octets| octets[34 + 12] = 0x10,
    ];
    for change in changes {
        let mut stream = Stream::at(Place::Link);
        stream.set_up();
        let octets = fpdu(&stream.untagged(0, RdmapOpcode::Send, &[7; 101]));
        stream.spoil = Some(Box::new(change));
        stream.again(0, 0, &octets);
        stream.data(0, &octets);
        stream.data(1, &[]);
        stream.is_followed(0);
    }
    // The receiver has taken it: an adapter has added its checksum later.
    let mut stream = Stream::at(Place::Link);
    stream.set_up();
    stream.spoil = Some(Box::new(|octets| octets[34 + 16] ^= 1));
    stream.send(0);
    stream.data(1, &[]);
    stream.violates(Rule::UnjudgedStream);
}

/// The first FPDU of the active end is empty, if both ends permit it (RFC 6581).
#[test]
fn an_empty_fpdu_begins() {
    for permitted in [[true, true], [true, false], [false, true]] {
        let mut stream = Stream::new();
        stream.handshake();
        for (from, role) in [(0, MpaRole::Request), (1, MpaRole::Reply)] {
            let mut frame = setup(role);
            // Flags A and B.
            frame[20] |= if permitted[from] { 0xc0 } else { 0x80 };
            stream.data(from, &frame);
        }
        stream.send_fpdu(0, &[]);
        if permitted == [true, true] {
            stream.send(1);
            stream.is_clean();
            stream.send_fpdu(0, &[]);
        }
        stream.violates(Rule::DdpHeader);
    }
}

/// A keep-alive has one old octet, after a FIN, too.
#[test]
fn a_keep_alive_follows_a_fin() {
    let mut stream = Stream::open();
    stream.fin(0);
    stream.again(0, 1, &[0]);
    stream.is_clean();
    stream.again(0, 1, &[0, 0]);
    stream.violates(Rule::TcpAfterEnd);
}

/// On a link, a FIN comes before the data, and a short segment after a longer one with the same begin.
#[test]
fn a_fin_and_a_short_segment_are_early() {
    let mut stream = Stream::at(Place::Link);
    stream.set_up();
    let octets = fpdu(&stream.untagged(0, RdmapOpcode::Send, &[7; 101]));
    let rest = u32::try_from(octets.len() - 10).unwrap();
    let begin = stream.header(0);
    let middle = Tcp {
        seq: begin.seq.add(10),
        ..begin
    };
    stream.sent[0] += 10 + rest;
    stream.fin(0);
    stream.pass(0, middle, &octets[10..]);
    stream.pass(0, middle, &octets[10..20]);
    stream.pass(0, begin, &octets[..10]);
    stream.data(1, &[]);
    stream.is_clean();
    stream.send(0);
    stream.violates(Rule::TcpAfterEnd);
}

/// The header of a forged segment cannot be read.
#[test]
fn a_malformed_segment_of_another_adapter_is_not_charged() {
    let mut stream = Stream::open();
    let mut forged = frame(0, &stream.header(0), &[]);
    forged[34 + 12] = 0x10;
    stream.checker.sent(0, 7, None, &forged);
    stream.send(0);
    stream.is_followed(0);
}
