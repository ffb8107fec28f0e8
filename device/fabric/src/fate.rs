//! The fate of a frame at the interface of a port.

use faultline_nic::DropCause;

use crate::link_model::Effects;

macro_rules! fates {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// The fate of a frame at an interface: passed, or dropped for a reason. [`Effects`] are changes of a frame
        /// that passes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Fate {
            $($(#[doc = $doc])* $name,)*
        }

        impl Fate {
            /// All fates, by their numbers.
            const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

fates! {
    /// It was passed on.
    Passed,
    /// The link of the NIC is down.
    LinkDown,
    /// It is longer than the MTU of the interface.
    TooLong,
    /// An operator has requested its drop.
    Requested,
    /// A rule has taken it, and drops it or passes it on later.
    Rule,
    /// Its source address belongs to another NIC.
    Forged,
    /// The external port has no peer.
    NoPeer,
    /// The queue of the external port is full.
    Overrun,
    /// It is shorter than an Ethernet header.
    TooShort,
    /// A modelled link has lost it.
    LinkLost,
    /// The queue of a modelled link is full.
    LinkFull,
    /// The interface is no member of its VLAN.
    NoMember,
    /// The NIC does not send or receive it, because the interface is down.
    InterfaceDown,
    /// The NIC does not send or receive it, because it is longer than the MTU of the interface.
    OverMtu,
    /// The NIC does not send it, because its source entry of the GID table has changed, or does not receive it, because no entry has its
    /// destination.
    BadGid,
    /// The NIC does not send it, because the guest may not use its address.
    BadAddress,
}

impl Fate {
    /// All fates.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied()
    }

    /// Its number in records.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The inverse of [`Fate::number`]; `None`: no fate has this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The fate of a frame that a NIC does not send or receive.
    pub(crate) fn barred(cause: DropCause) -> Self {
        match cause {
            DropCause::InterfaceDown => Self::InterfaceDown,
            DropCause::OverMtu => Self::OverMtu,
            DropCause::SourceGid { .. } | DropCause::DestinationGid => Self::BadGid,
            DropCause::SourceAddress => Self::BadAddress,
        }
    }

    /// The fate of a frame on a modelled link.
    pub fn on_link(effects: Effects) -> Self {
        if effects.contains(Effects::LOST) {
            Self::LinkLost
        } else if effects.contains(Effects::QUEUE_FULL) {
            Self::LinkFull
        } else {
            Self::Passed
        }
    }
}
