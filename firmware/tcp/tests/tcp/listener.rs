//! Connections that peers open.

use faultline_tcp::{Config, Instant, Listener, Nanos, Segment, Start, State, Tuple, reset_for};
use faultline_wire::{Gid, Seq, Tcp, TcpFlags};

use crate::script::plain;
use crate::support::{Owner, octets};

fn tuple(port: u16) -> Tuple {
    Tuple {
        local: Gid::from_ipv4([10, 0, 0, 1]),
        local_port: 1,
        remote: Gid::from_ipv4([10, 0, 0, 2]),
        remote_port: port,
    }
}

fn segment(port: u16, flags: TcpFlags, seq: u32, ack: u32, len: u32) -> Segment {
    let header = Tcp {
        src_port: port,
        dst_port: 1,
        seq: Seq(seq),
        ack: Seq(ack),
        flags,
        window: 1000,
        ..Tcp::default()
    };
    Segment {
        header,
        len,
        congestion_experienced: false,
    }
}

const START: Start = Start {
    seq: Seq(500),
    clock: 0,
};
const NOW: Instant = Instant(0);

fn receive(listener: &mut Listener, segment: &Segment, now: Instant) -> bool {
    let tuple = tuple(segment.header.src_port);
    assert!(listener.complete(&tuple, segment).is_none());
    listener.receive(&tuple, segment, START, now)
}

#[test]
fn data_may_complete_the_handshake() {
    let mut listener = Listener::new(plain(), 4);
    assert!(receive(
        &mut listener,
        &segment(7, TcpFlags::SYN, 99, 0, 0),
        NOW
    ));
    let (ends, answer) = listener.poll_transmit(NOW).unwrap();
    assert_eq!((ends, answer.header.ack), (tuple(7), Seq(100)));
    assert!(listener.poll_transmit(NOW).is_none());

    // Of another peer, and with a wrong acknowledgment.
    let data = |port, ack| segment(port, TcpFlags::ACK, 100, ack, 10);
    assert!(!receive(&mut listener, &data(8, 501), NOW));
    let wrong = data(7, 502);
    assert!(receive(&mut listener, &wrong, NOW));
    let (_, reset) = listener.poll_transmit(NOW).unwrap();
    assert_eq!(
        (reset.header.flags, reset.header.seq),
        (TcpFlags::RST, Seq(502))
    );

    let mut connection = listener.complete(&tuple(7), &data(7, 501)).unwrap();
    assert_eq!(
        (listener.half_open(), connection.state()),
        (0, State::SynReceived)
    );
    let mut owner = Owner::new(2);
    owner.segment = octets(2, 0, 10);
    connection.receive(&data(7, 501), NOW, &mut owner);
    assert_eq!(
        (connection.state(), connection.taken()),
        (State::Established, 10)
    );
}

#[test]
fn a_flood_fills_the_backlog_and_no_more() {
    let config = Config {
        max_syn_retransmissions: 1,
        ..plain()
    };
    let mut listener = Listener::new(config, 3);
    for port in 0..100 {
        assert!(receive(
            &mut listener,
            &segment(port, TcpFlags::SYN, 99, 0, 0),
            NOW
        ));
    }
    assert_eq!((listener.half_open(), listener.overflows()), (3, 97));
    let mut answers = 0;
    while listener.poll_transmit(NOW).is_some() {
        answers += 1;
    }
    assert_eq!(answers, 3);
    // One repetition after 1 s; after 2 s more there is room again.
    let mut now = NOW;
    while let Some(deadline) = listener.next_deadline() {
        assert!(deadline > now || now == NOW);
        now = deadline;
        listener.handle_deadline(now);
        while listener.poll_transmit(now).is_some() {
            answers += 1;
        }
    }
    assert_eq!(
        (now, answers, listener.half_open()),
        (NOW + Nanos::from_millis(3000), 6, 0)
    );
}

/// A peer that answers an answer is no peer that opens at once with this end: nobody would own the connection.
#[test]
fn a_syn_with_an_acknowledgment_opens_nothing() {
    let mut listener = Listener::new(plain(), 2);
    for port in [7, 8] {
        let syn = segment(port, TcpFlags::SYN, 99, 0, 0);
        assert!(receive(&mut listener, &syn, NOW));
        assert!(listener.poll_transmit(NOW).is_some());
        let answer = segment(port, TcpFlags::SYN | TcpFlags::ACK, 99, 501, 0);
        assert!(receive(&mut listener, &answer, NOW));
        assert!(listener.poll_transmit(NOW).is_none());
    }
    // Both can still be completed, and give up if they are not.
    let ack = segment(8, TcpFlags::ACK, 100, 501, 0);
    assert!(listener.complete(&tuple(8), &ack).is_some());
    assert_eq!(listener.half_open(), 1);
    while let Some(deadline) = listener.next_deadline() {
        listener.handle_deadline(deadline);
        while listener.poll_transmit(deadline).is_some() {}
    }
    assert_eq!(listener.half_open(), 0);
}

#[test]
fn a_connection_that_is_not_taken_from_the_backlog_is_dropped() {
    let mut listener = Listener::new(plain(), 2);
    let syn = segment(7, TcpFlags::SYN, 99, 0, 0);
    assert!(receive(&mut listener, &syn, NOW));
    assert!(listener.poll_transmit(NOW).is_some());
    // The owner has forgotten to call `complete`.
    let ack = segment(7, TcpFlags::ACK, 100, 501, 0);
    assert!(listener.receive(&tuple(7), &ack, START, NOW));
    assert_eq!(listener.half_open(), 0);
    assert!(!receive(&mut listener, &ack, NOW), "to be reset");
}

#[test]
fn a_reset_removes_a_half_open_connection() {
    let mut listener = Listener::new(plain(), 3);
    assert!(receive(
        &mut listener,
        &segment(7, TcpFlags::SYN, 99, 0, 0),
        NOW
    ));
    assert!(listener.poll_transmit(NOW).is_some());
    assert!(receive(
        &mut listener,
        &segment(7, TcpFlags::RST, 101, 0, 0),
        NOW
    ));
    assert_eq!(listener.half_open(), 1, "not the expected number");
    assert!(receive(
        &mut listener,
        &segment(7, TcpFlags::RST, 100, 0, 0),
        NOW
    ));
    assert_eq!(listener.half_open(), 0);
    assert!(
        receive(&mut listener, &segment(7, TcpFlags::RST, 100, 0, 0), NOW),
        "ignored"
    );
}

#[test]
fn segments_for_no_connection_are_answered_with_resets() {
    let reset = |flags, seq, ack, len| {
        reset_for(&segment(7, flags, seq, ack, len)).map(|transmit| {
            let Tcp {
                src_port,
                dst_port,
                seq,
                ack,
                flags,
                ..
            } = transmit.header;
            assert_eq!((src_port, dst_port), (1, 7));
            (flags, seq.0, ack.0)
        })
    };
    assert_eq!(reset(TcpFlags::RST, 5, 6, 0), None);
    assert_eq!(reset(TcpFlags::ACK, 5, 6, 9), Some((TcpFlags::RST, 6, 0)));
    let syn = reset(TcpFlags::SYN, 5, 0, 9);
    assert_eq!(syn, Some((TcpFlags::RST | TcpFlags::ACK, 0, 15)));
}
