//! The states of a connection, and the table of their transitions.

/// State of a connection (RFC 9293 section 3.3.2). LISTEN is a [`Listener`](crate::Listener).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// A SYN has been sent.
    SynSent,
    /// A SYN has been received and one has been sent, which is not acknowledged.
    SynReceived,
    /// Data flows in both directions.
    Established,
    /// The owner has closed; the FIN is not acknowledged.
    FinWait1,
    /// The FIN is acknowledged; the peer may send.
    FinWait2,
    /// The peer has closed; the owner may send.
    CloseWait,
    /// Both have closed; the FIN is not acknowledged.
    Closing,
    /// The peer has closed, then the owner; the FIN is not acknowledged.
    LastAck,
    /// Both have closed; segments that are still under way are awaited.
    TimeWait,
    /// There is no connection.
    Closed,
}

/// What changes a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A SYN has arrived that does not acknowledge ours: simultaneous open.
    SynReceived,
    /// The peer has acknowledged our SYN, and its own has arrived.
    Opened,
    /// The owner sends no more data.
    Close,
    /// The owner has more data to send after all: the FIN has not been sent.
    Retract,
    /// The peer has acknowledged our FIN.
    FinAcknowledged,
    /// All octets up to the peer's FIN have arrived, and the FIN.
    FinReceived,
    /// A reset, a timeout, an abort, or the end of TIME-WAIT.
    End,
}

impl State {
    /// The state after an event (RFC 9293, figure 5). An event that means nothing in this state does not change it.
    pub(crate) fn after(self, event: Event) -> Self {
        use State as S;
        match (self, event) {
            (_, Event::End) => S::Closed,
            (S::SynSent, Event::SynReceived) => S::SynReceived,
            (S::SynSent | S::SynReceived, Event::Opened) => S::Established,
            (S::SynSent, Event::Close) => S::Closed,
            (S::SynReceived | S::Established, Event::Close) => S::FinWait1,
            (S::CloseWait, Event::Close) => S::LastAck,
            (S::FinWait1, Event::Retract) => S::Established,
            (S::Closing | S::LastAck, Event::Retract) => S::CloseWait,
            (S::SynReceived | S::Established, Event::FinReceived) => S::CloseWait,
            (S::FinWait1, Event::FinReceived) => S::Closing,
            (S::FinWait2, Event::FinReceived) => S::TimeWait,
            (S::FinWait1, Event::FinAcknowledged) => S::FinWait2,
            (S::Closing, Event::FinAcknowledged) => S::TimeWait,
            (S::LastAck, Event::FinAcknowledged) => S::Closed,
            (state, _) => state,
        }
    }

    /// True if the handshake is complete and the connection exists.
    pub(crate) fn is_open(self) -> bool {
        !matches!(self, Self::SynSent | Self::SynReceived | Self::Closed)
    }

    /// True if the peer may still send data (RFC 9293 section 3.10.7.4, seventh check).
    pub(crate) fn can_receive(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }

    /// True if the owner may still add data to send.
    pub(crate) fn can_send(self) -> bool {
        let open = [
            Self::SynSent,
            Self::SynReceived,
            Self::Established,
            Self::CloseWait,
        ];
        open.contains(&self)
    }
}

/// How a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Both ends have closed, and all data was acknowledged.
    Finished,
    /// The peer has reset the connection.
    Reset,
    /// The peer has answered the SYN with a reset.
    Refused,
    /// The peer has not answered [`Config::max_retransmissions`](crate::Config::max_retransmissions) times.
    TimedOut,
    /// The owner has aborted the connection.
    Aborted,
}
