//! Reasons why a responder does not execute a request.

use faultline_abi::cqe;
use faultline_abi::event;
use faultline_wire::aeth::NakCode;
use faultline_wire::bth::Psn;

use crate::fault::Need;
use crate::mkey::Miss;
use crate::qp::types::{Failure, Fatal, PlaceError};

/// Failure of a receive work request whose buffers are too small.
pub(super) const TOO_LONG: Failure = Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH);

/// A missing page of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IngressNeed {
    pub need: Need,
    /// True if the page belongs to a buffer of a receive work request, false if to memory that the peer named.
    pub receive: bool,
}

/// Reasons why the execution of a packet has stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stopped {
    /// A page is missing: the fault policy determines the reaction.
    Absent(IngressNeed),
    /// The queue pair fails.
    Fatal(Fatal),
}

impl Stopped {
    /// Returns the missing page, or the error if the queue pair fails.
    pub(crate) fn absent(self) -> Result<IngressNeed, Fatal> {
        match self {
            Self::Absent(need) => Ok(need),
            Self::Fatal(fatal) => Err(fatal),
        }
    }
}

impl From<Fatal> for Stopped {
    fn from(fatal: Fatal) -> Self {
        Self::Fatal(fatal)
    }
}

/// Reasons why a request is not executed, with their effect on the connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    /// The packet's payload can't be read: the packet counts as lost.
    Lost,
    /// No receive work request: the requester must send the request again.
    NotReady,
    /// A page is missing.
    Absent(IngressNeed),
    /// The memory is not durable yet.
    NotDurable,
    /// The message is longer than the receive buffer.
    TooLong,
    /// The connection ends.
    Fatal(Rejection),
}

/// A request that ends the connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rejection {
    /// Code of the NAK. `None`: no NAK is sent.
    pub code: Option<NakCode>,
    /// The asynchronous event, if no completion reports the error (IBTA 11.6.3).
    pub event: u8,
    /// Status for the receive work request that was being filled.
    pub receive: Option<Failure>,
}

impl Rejection {
    const INVALID: Self = Self {
        code: Some(NakCode::InvalidRequest),
        event: event::QP_REQUEST_ERROR,
        receive: None,
    };

    /// The message is longer than the receive buffer.
    pub(crate) const TOO_LONG: Self = Self {
        receive: Some(TOO_LONG),
        ..Self::INVALID
    };

    /// The peer may not access this memory.
    pub(crate) const ACCESS: Self = Self {
        code: Some(NakCode::RemoteAccessError),
        event: event::QP_ACCESS_ERROR,
        receive: None,
    };

    /// The same for a request that has taken a receive work request: a WRITE with immediate data (IBTA 11.6.2, local
    /// access error).
    pub(crate) const ACCESS_WITH_RECEIVE: Self = Self {
        receive: Some(Failure::new(cqe::LOC_ACCESS_ERR, cqe::LKEY)),
        ..Self::ACCESS
    };

    /// This side has an error, for instance a receive buffer that can't be used.
    pub(crate) const fn operational(receive: Option<Failure>) -> Self {
        Self {
            code: Some(NakCode::RemoteOperationalError),
            event: event::QP_FATAL,
            receive,
        }
    }
}

impl Refusal {
    pub(crate) const INVALID: Self = Self::Fatal(Rejection::INVALID);

    /// The key that a SEND names can't be invalidated. The message has arrived, so it is up to the receiver's program
    /// to report the error (IBTA 9.9.6.3, class J).
    pub(crate) const NOT_INVALIDATED: Self = Self::Fatal(Rejection {
        code: None,
        event: event::QP_ACCESS_ERROR,
        receive: Some(Failure::new(cqe::REM_INV_REQ_ERR, cqe::KEY_STATE)),
    });

    /// See [`Rejection::operational`].
    pub(crate) const fn operational(receive: Option<Failure>) -> Self {
        Self::Fatal(Rejection::operational(receive))
    }

    /// True if the peer may not access the memory that it has named.
    pub(crate) const fn is_of_access(&self) -> bool {
        matches!(
            self,
            Self::Fatal(Rejection {
                code: Some(NakCode::RemoteAccessError),
                ..
            })
        )
    }

    /// A miss in the peer's range. `left`: bytes of the message from `va` on.
    pub(crate) fn of_key(miss: Miss, va: u64, left: u32, psn: Psn) -> Self {
        match (PlaceError::new(miss, va, left), miss) {
            (PlaceError::Absent(absent, hint), _) => Self::Absent(IngressNeed {
                need: Need::new(absent, hint, psn.get()),
                receive: false,
            }),
            (_, Miss::NotPresent(_)) => Self::operational(None),
            _ => Self::Fatal(Rejection::ACCESS),
        }
    }
}
