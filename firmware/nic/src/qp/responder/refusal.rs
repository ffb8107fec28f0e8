//! Why a responder does not carry out a request.

use faultline_abi::cqe;
use faultline_abi::event;
use faultline_wire::aeth::NakCode;
use faultline_wire::bth::Psn;

use crate::fault::Need;
use crate::mkey::Miss;
use crate::qp::types::{Failure, Fatal, PlaceError};

/// What becomes of a receive work request that is too small.
pub(super) const TOO_LONG: Failure = Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH);

/// A page for a request is not there.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) struct IngressNeed {
    pub need: Need,
    /// It is a buffer of a receive work request, else memory that the peer named.
    pub receive: bool,
}

/// Why a packet has stopped.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) enum Stopped {
    /// A page is not there: the fault policy says what is done.
    Absent(IngressNeed),
    /// The queue pair fails.
    Fatal(Fatal),
}

impl Stopped {
    /// The page that is not there, unless the queue pair fails.
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

/// Why a request is not carried out, and what that means for the connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    /// The packet's payload can't be read: it counts as lost on the way.
    Lost,
    /// No receive work request: the requester is told to send the request again.
    NotReady,
    /// A page is not there.
    Absent(IngressNeed),
    /// Memory is not durable yet.
    NotDurable,
    /// More than the receive buffer takes.
    TooLong,
    /// The connection ends.
    Fatal(Rejection),
}

/// A request that ends the connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rejection {
    /// What the peer is told. None: nothing.
    pub code: Option<NakCode>,
    /// The asynchronous event.
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

    /// More than the receive buffer takes.
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

    /// The same of a request that has taken a receive work request: a WRITE with immediate data (IBTA 11.6.2, local access
    /// error).
    pub(crate) const ACCESS_WITH_RECEIVE: Self = Self {
        receive: Some(Failure::new(cqe::LOC_ACCESS_ERR, cqe::LKEY)),
        ..Self::ACCESS
    };

    /// This side can't do what it should, for instance because a receive buffer can't be used.
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

    /// The key that a SEND names can't be invalidated: the message has arrived, and it is for the receiver's program
    /// to say what is wrong (IBTA 9.9.6.3, class J).
    pub(crate) const NOT_INVALIDATED: Self = Self::Fatal(Rejection {
        code: None,
        event: event::QP_ACCESS_ERROR,
        receive: Some(Failure::new(cqe::REM_INV_REQ_ERR, cqe::KEY_STATE)),
    });

    /// See [`Rejection::operational`].
    pub(crate) const fn operational(receive: Option<Failure>) -> Self {
        Self::Fatal(Rejection::operational(receive))
    }

    /// Whether the peer may not access memory that it has named.
    pub(crate) const fn is_of_access(&self) -> bool {
        matches!(
            self,
            Self::Fatal(Rejection {
                code: Some(NakCode::RemoteAccessError),
                ..
            })
        )
    }

    /// A miss in memory that the peer has named, of which `left` bytes from `va` on belong to the message.
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
