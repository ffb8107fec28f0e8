//! Fault policies: what becomes of a packet that needs a page which is missing.
//!
//! | policy | request of RC or XRC | UC, UD, raw frame | READ that is being answered |
//! |---|---|---|---|
//! | `rnr` | RNR NAK; the requester sends it again, at once when the READY acknowledgement says so | parked in the device and delivered in order | waits; a repeated READ gets an RNR NAK |
//! | `drop` | dropped; after the repair a NAK requests it again | dropped | waits |
//! | `stall` | stops the whole input of the NIC | the same | waits |
//! | `terminate` | the connection ends | the queue pair fails | the connection ends |
//!
//! A new policy is one variant here and one row of [`FaultPolicy::reactions`].

use faultline_abi::qp::{FAULT_POLICY_DROP, FAULT_POLICY_STALL, FAULT_POLICY_TERMINATE};

/// The policy of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultPolicy {
    Rnr,
    Drop,
    Stall,
    Terminate,
}

/// What is done with a packet whose page is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    /// RNR NAK. For reliable services.
    RnrNak,
    /// Kept in the device until the page is present. For services that don't send again.
    Park,
    /// Dropped. The page is requested all the same.
    Drop,
    /// The input of the NIC stops.
    Stall,
    /// The queue pair fails.
    Fail,
}

/// What is done with a READ that is being answered, if the page of the next response is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadReaction {
    /// It waits, and a requester that repeats it gets an RNR NAK.
    WaitWithRnrNak,
    /// It waits.
    Wait,
    /// The queue pair fails.
    Fail,
}

/// The row of a policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reactions {
    pub reliable: Reaction,
    pub unreliable: Reaction,
    pub read: ReadReaction,
}

impl FaultPolicy {
    /// The policy with this number (`FAULT_POLICY_*`). MODIFY_QP and the configuration accept no others.
    pub fn from_abi(policy: u8) -> Self {
        match policy {
            FAULT_POLICY_DROP => Self::Drop,
            FAULT_POLICY_STALL => Self::Stall,
            FAULT_POLICY_TERMINATE => Self::Terminate,
            _ => Self::Rnr,
        }
    }

    /// What the policy does.
    pub(super) fn reactions(self) -> Reactions {
        let (reliable, unreliable, read) = match self {
            Self::Rnr => (
                Reaction::RnrNak,
                Reaction::Park,
                ReadReaction::WaitWithRnrNak,
            ),
            Self::Drop => (Reaction::Drop, Reaction::Drop, ReadReaction::Wait),
            Self::Stall => (Reaction::Stall, Reaction::Stall, ReadReaction::Wait),
            Self::Terminate => (Reaction::Fail, Reaction::Fail, ReadReaction::Fail),
        };
        Reactions {
            reliable,
            unreliable,
            read,
        }
    }
}
