//! Fault policies: the handling of a packet that needs a missing page.
//!
//! | policy | request of RC or XRC | UC, UD, raw frame | READ that is being answered |
//! |---|---|---|---|
//! | `rnr` | RNR NAK; the requester sends it again, at once when READY says so | parked in the device and delivered in order | waits; a repeated READ gets an RNR NAK |
//! | `drop` | dropped; after the repair a NAK requests it again | dropped | waits |
//! | `stall` | stops the whole input of the NIC | the same | waits |
//! | `terminate` | the connection ends | the queue pair fails | the connection ends |
//!
//! A new policy is, in the firmware, one variant here, one entry of [`FaultPolicy::ALL`] and one arm of [`FaultPolicy::row`]. A new
//! reaction is also an arm in `responder/fault.rs` and `responder/parked.rs`, and its state of a message is a new field of `Responder`,
//! for `end_message` to clear. `docs/architecture.md` lists the places outside of the firmware.

use faultline_abi::qp::{
    FAULT_POLICY_DROP, FAULT_POLICY_RNR, FAULT_POLICY_STALL, FAULT_POLICY_TERMINATE,
};

/// The policy of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum FaultPolicy {
    /// RNR NAK; packets of unreliable services are parked.
    #[default]
    Rnr,
    /// Dropped before it is acknowledged.
    Drop,
    /// Stops the input of the NIC.
    Stall,
    /// Ends the connection.
    Terminate,
}

/// The reaction to a packet whose page is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
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

/// The reaction if the page of the next response of a READ is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadReaction {
    /// It waits, and a requester that repeats it gets an RNR NAK.
    WaitWithRnrNak,
    /// It waits.
    Wait,
    /// The queue pair fails.
    Fail,
}

/// The reactions of a policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reactions {
    pub reliable: Reaction,
    pub unreliable: Reaction,
    pub read: ReadReaction,
}

/// The row of a policy: its number in the ABI, its name in configurations, and its reactions.
struct Row {
    number: u8,
    name: &'static str,
    reactions: Reactions,
}

impl FaultPolicy {
    /// All policies.
    pub const ALL: [Self; 4] = [Self::Rnr, Self::Drop, Self::Stall, Self::Terminate];

    const fn row(self) -> Row {
        let (number, name, (reliable, unreliable, read)) = match self {
            Self::Rnr => (
                FAULT_POLICY_RNR,
                "rnr",
                (
                    Reaction::RnrNak,
                    Reaction::Park,
                    ReadReaction::WaitWithRnrNak,
                ),
            ),
            Self::Drop => (
                FAULT_POLICY_DROP,
                "drop",
                (Reaction::Drop, Reaction::Drop, ReadReaction::Wait),
            ),
            Self::Stall => (
                FAULT_POLICY_STALL,
                "stall",
                (Reaction::Stall, Reaction::Stall, ReadReaction::Wait),
            ),
            Self::Terminate => (
                FAULT_POLICY_TERMINATE,
                "terminate",
                (Reaction::Fail, Reaction::Fail, ReadReaction::Fail),
            ),
        };
        Row {
            number,
            name,
            reactions: Reactions {
                reliable,
                unreliable,
                read,
            },
        }
    }

    /// The policy with this number (`FAULT_POLICY_*`).
    pub fn from_abi(number: u8) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|policy| policy.number() == number)
    }

    /// `FAULT_POLICY_*`.
    pub const fn number(self) -> u8 {
        self.row().number
    }

    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The reactions of the policy.
    pub(crate) const fn reactions(self) -> Reactions {
        self.row().reactions
    }
}

#[cfg(test)]
mod tests {
    use faultline_abi::qp::FAULT_POLICIES;

    use super::*;

    #[test]
    fn each_number_of_the_abi_has_its_policy() {
        assert_eq!(FaultPolicy::ALL.len(), FAULT_POLICIES.constants.len());
        for constant in FAULT_POLICIES.constants {
            let number = u8::try_from(constant.value).unwrap();
            let policy = FaultPolicy::from_abi(number);
            assert_eq!(
                policy.map(FaultPolicy::number),
                Some(number),
                "{}",
                constant.name
            );
        }
    }
}
