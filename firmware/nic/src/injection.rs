//! The injection table: errors and delays that an operator injects into the NIC at named points, like the error injection
//! registers of hardware.
//!
//! The table knows no rules, connections or scenarios. An [`Injection`] names a [`Point`], a [`Filter`] that is compared with
//! the facts of each pass through this point, and an [`Outcome`]. What happens outside of the NIC (packets on the wire,
//! doorbells, interrupts) is not injected here but by the NIC's caller.
//!
//! # Points, facts and outcomes
//!
//! A filter on a field that the point does not have is refused, and so is an outcome that the point does not have.
//! [`Outcome::Report`] is allowed everywhere: the diagnostic is its only effect.
//!
//! | Point | Facts | Outcomes |
//! |---|---|---|
//! | [`Point::FaultRecord`]: a fault record is about to be written | `qpn`, unless an operator requests the pages; `key`; `va`: first missing byte; `code`: 0 responder, 1 requester; level: faults without an answer, this one excluded | `Drop`: the fault exists, but no record is written, so that it ends by the fault timeout. `Delay`: the record is written later, unless the fault has ended by then. `Duplicate`: two records with the same token. `Corrupt`: the record names the page after the right one. `Fail`: the record is written, and the fault is answered as failed at once (the number has no meaning). `Overrun`: as if the fault queue had no room for 100 µs. |
//! | [`Point::FaultAnswer`]: a RESUME command for an outstanding fault is executed | `qpn`: the queue pair that has waited longest; `key`; `va`: first address of the fault's first page; `code`: the command's `resume_status` | `Drop`: the command succeeds, and the fault stays unanswered. `Delay`: the command succeeds, and the fault is answered later. `Duplicate`: executed twice; the second execution counts as a command error. `Corrupt`: the command is refused with BAD_TOKEN, and the fault stays unanswered. `Fail`: as if the driver had answered with an error (the number has no meaning). |
//! | [`Point::Completion`]: a CQE is about to be written | `qpn`; `object`: the CQ; `code`: status; level: unread entries of the CQ | `Drop`. `Delay`: written later, and all completions of this CQ behind it wait, too. `Duplicate`. `Fail(status)`: written with this status (1–23, `enum ib_wc_status`); the queue pair's state does not change. `Corrupt`: `qpn`, `srqn` and `byte_len` have all bits inverted, so the entry names a queue pair that does not exist, and a driver must discard it. `Overrun`: as if the CQ were full: the CQ and the queue pair fail. |
//! | [`Point::Event`]: an entry of an event queue that is not a fault record | `object`: number in the event; `code`: kind; level: unread entries of the event queue | `Drop`. `Delay`: others may overtake it. `Duplicate`. `Overrun`: the device stops. |
//! | [`Point::AdminCommand`], [`Point::TranslationCommand`]: a command is about to be executed | `code`: opcode; translation: `key` | `Drop`: the queue hangs: this command and those behind it are never executed, until a reset. `Delay`: executed later, and the commands behind it wait. `Fail(status)`: refused with this status (`faultline_abi::Status`), not executed. |
//! | [`Point::Lookup`]: a look-up in a page table, because the translation cache had no entry | `qpn`; `key`; `va` | `Delay`: added to the time of the look-up ([`NicConfig::lookup`](crate::NicConfig::lookup)). |
//! | [`Point::Request`]: a reliable responder has checked the PSN of a request packet, and is about to execute it | `qpn`; `code`: BTH opcode; `key` and `va` if the packet has a RETH or AtomicETH | `Drop`: as if the packet had been lost. `Fail(nak)`: a NAK code of IBTA table 45 (0–4) is sent; 0 requests the packet again, and the others end the connection. `Fail(`[`RNR_NAK`]`)`: an RNR NAK with the timer of the queue pair. |
//!
//! # Which injection has an effect
//!
//! Injections are compared in the order in which they were added. Each one that matches counts the match. Of those that are
//! due by `skip`, `every` and `times`, and by the random number if `per_million` requires one, the first has its effect; the others
//! count the match only. Injections with [`Outcome::Report`] do not count as the first, and each of them that is due reports.
//!
//! # Bounds
//!
//! The table holds [`MAX_INJECTIONS`] injections. At most [`MAX_DELAYED`] delayed effects wait; further ones take place at once. A reset
//! of the device drops delayed effects. The injections survive it, because they belong to the operator.

pub(crate) mod commands;
mod completions;
pub(crate) mod delayed;
mod due;
pub(crate) mod entry;
mod events;
mod faults;
mod hooks;
mod lookups;
pub(crate) mod point;
mod random;
pub(crate) mod table;

pub use delayed::MAX_DELAYED;
pub use entry::{ALWAYS, Filter, Injection, InjectionError, InjectionUse, MAX_INJECTIONS};
pub use point::{Fact, Outcome, Point, RNR_NAK};
