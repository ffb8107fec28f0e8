//! Effects of rules: which action is possible for which kind of things.

use faultline_nic::{Nanos, Outcome, Point};

use super::check::{Checker, in_quotes, range};
use super::names::{self, Names};
use super::things::Kind;
use super::{BoundaryChange, Effect, PacketChange};
use crate::action::{Action, Evict, Part};
use crate::problem::Path;
use crate::value::{Range, Time};

/// Octets of an Ethernet header.
const ETHERNET_HEADER: u64 = 14;
/// Smallest MTU of IPv4 (RFC 791).
const MIN_MTU: u64 = 68;
/// Most packets that overtake another.
const MAX_REORDER: u64 = 1000;
/// Largest number of a queue pair.
const MAX_QPN: u64 = (1 << 24) - 1;

/// Actions that change the matched thing.
pub(crate) const CHANGES: [&str; 11] = [
    "drop",
    "delay",
    "duplicate",
    "corrupt",
    "fail",
    "overrun",
    "reorder",
    "truncate",
    "ecn_mark",
    "mig_req",
    "count",
];

/// Actions on the NIC.
const NIC_ACTIONS: [&str; 19] = [
    "port_down",
    "speed",
    "mtu",
    "pause_storm",
    "fatal",
    "reset",
    "remove",
    "pause",
    "fail_faults",
    "hold_faults",
    "fill_faults",
    "evict",
    "prefetch",
    "lookup",
    "fail_qp",
    "overrun_cq",
    "overrun_eq",
    "fault_policy",
    "end",
];

/// All actions.
pub(crate) fn action_names() -> impl Iterator<Item = &'static str> {
    CHANGES.into_iter().chain(NIC_ACTIONS)
}

impl Kind {
    /// True if packets on the wire may violate the specification after a change of such a thing: the packet itself, or
    /// the answer to a request that should have another one. Packets that are lost, late, doubled or in another order
    /// are legal on a wire, and so are a mark of congestion and both migration states.
    pub(crate) fn is_illegal(self, change: &str) -> bool {
        match self {
            Self::Packet => matches!(change, "corrupt" | "truncate"),
            Self::Point(Point::Request) => change == "fail",
            Self::Point(_)
            | Self::Interrupt
            | Self::Doorbell(_)
            | Self::Diagnostic(_)
            | Self::QpState
            | Self::Signal => false,
        }
    }

    /// Changes that are possible for such things. Actions on the NIC are possible for all.
    pub(crate) fn changes(self) -> Vec<&'static str> {
        let possible = |change: &&str| match self {
            Self::Packet => !matches!(*change, "fail" | "overrun"),
            Self::Interrupt | Self::Doorbell(_) => {
                matches!(*change, "drop" | "delay" | "duplicate" | "count")
            }
            Self::Diagnostic(_) | Self::QpState | Self::Signal => *change == "count",
            Self::Point(point) => point_allows(point, change),
        };
        CHANGES
            .into_iter()
            .filter(|change| possible(change))
            .collect()
    }
}

fn point_allows(point: Point, change: &str) -> bool {
    let outcome = match change {
        "drop" => Outcome::Drop,
        "delay" => Outcome::Delay(Nanos(1)),
        "duplicate" => Outcome::Duplicate,
        "corrupt" => Outcome::Corrupt,
        // 1 is a status or a code at each point that has some.
        "fail" => Outcome::Fail(1),
        "overrun" => Outcome::Overrun,
        "count" => Outcome::Report,
        _ => return false,
    };
    point.allows(outcome)
}

/// The name of an action in a file.
pub(crate) fn action_name(action: &Action) -> &'static str {
    match action {
        Action::Drop(_) => "drop",
        Action::Delay(_) => "delay",
        Action::Duplicate(_) => "duplicate",
        Action::Corrupt(_) => "corrupt",
        Action::Fail(_) => "fail",
        Action::Overrun(_) => "overrun",
        Action::Reorder(_) => "reorder",
        Action::Truncate(_) => "truncate",
        Action::EcnMark(_) => "ecn_mark",
        Action::MigReq(_) => "mig_req",
        Action::Count(_) => "count",
        Action::PortDown(_) => "port_down",
        Action::Speed(_) => "speed",
        Action::Mtu(_) => "mtu",
        Action::PauseStorm(_) => "pause_storm",
        Action::Fatal(_) => "fatal",
        Action::Reset(_) => "reset",
        Action::Remove(_) => "remove",
        Action::Pause(_) => "pause",
        Action::FailFaults(_) => "fail_faults",
        Action::HoldFaults(_) => "hold_faults",
        Action::FillFaults(_) => "fill_faults",
        Action::Evict(_) => "evict",
        Action::Prefetch(_) => "prefetch",
        Action::Lookup(_) => "lookup",
        Action::FailQp(_) => "fail_qp",
        Action::OverrunCq(_) => "overrun_cq",
        Action::OverrunEq(_) => "overrun_eq",
        Action::FaultPolicy(_) => "fault_policy",
        Action::End(_) => "end",
    }
}

/// The limit of an action's effects.
pub(super) fn times(action: &Action) -> Option<u64> {
    match action {
        Action::Drop(often)
        | Action::Duplicate(often)
        | Action::Overrun(often)
        | Action::EcnMark(often)
        | Action::Count(often) => often.times,
        Action::Delay(delay) => delay.times,
        Action::Corrupt(corrupt) => corrupt.times,
        Action::Fail(fail) => fail.times,
        Action::Reorder(reorder) => reorder.times,
        Action::Truncate(truncate) => truncate.times,
        Action::MigReq(mig_req) => mig_req.times,
        _ => None,
    }
}

/// True if an action changes the matched thing.
pub(super) fn is_change(action: &Action) -> bool {
    CHANGES.contains(&action_name(action))
}

impl Checker<'_> {
    /// The effect of an action on things of a kind. `path` is that of the key `do`.
    pub(super) fn effect(&mut self, path: &Path, action: &Action, kind: Kind) -> Option<Effect> {
        let name = action_name(action);
        let inner = path.key(name);
        if !is_change(action) {
            self.nic_action(&inner, action, Some(kind));
            return Some(Effect::Nic(action.clone()));
        }
        self.optional_limits(inner.key("times"), times(action), Range::from(1));
        let changes = kind.changes();
        if !changes.contains(&name) {
            let message = format!(
                "`{name}` is not possible for {}: possible are {}, and the actions on the NIC",
                kind.name(),
                in_quotes(&changes)
            );
            self.wrong_key(inner, message);
            return None;
        }
        match kind {
            _ if matches!(action, Action::Count(_)) => Some(Effect::Count),
            Kind::Packet => self.packet_change(&inner, action).map(Effect::Packet),
            Kind::Point(point) => self.outcome(&inner, action, point).map(Effect::Inject),
            Kind::Interrupt | Kind::Doorbell(_) => {
                self.boundary_change(&inner, action).map(Effect::Boundary)
            }
            Kind::Diagnostic(_) | Kind::QpState | Kind::Signal => None,
        }
    }

    fn packet_change(&mut self, path: &Path, action: &Action) -> Option<PacketChange> {
        Some(match action {
            Action::Drop(_) => PacketChange::Drop,
            Action::Delay(delay) => PacketChange::Delay(self.duration(path.key("by"), delay.by)),
            Action::Duplicate(_) => PacketChange::Duplicate,
            Action::Corrupt(corrupt) => {
                PacketChange::Corrupt(corrupt.part.unwrap_or(Part::Payload))
            }
            Action::Reorder(reorder) => {
                self.limits(path.key("by"), reorder.by.into(), range(1, MAX_REORDER));
                PacketChange::Reorder(reorder.by)
            }
            Action::Truncate(truncate) => {
                let octets = range(ETHERNET_HEADER, u16::MAX.into());
                self.limits(path.key("to"), truncate.to.into(), octets);
                PacketChange::Truncate(truncate.to)
            }
            Action::EcnMark(_) => PacketChange::EcnMark,
            Action::MigReq(mig_req) => PacketChange::MigReq(mig_req.value),
            _ => return None,
        })
    }

    fn boundary_change(&mut self, path: &Path, action: &Action) -> Option<BoundaryChange> {
        Some(match action {
            Action::Drop(_) => BoundaryChange::Drop,
            Action::Delay(delay) => BoundaryChange::Delay(self.duration(path.key("by"), delay.by)),
            Action::Duplicate(_) => BoundaryChange::Duplicate,
            _ => return None,
        })
    }

    fn outcome(&mut self, path: &Path, action: &Action, point: Point) -> Option<Outcome> {
        Some(match action {
            Action::Drop(_) => Outcome::Drop,
            Action::Delay(delay) => Outcome::Delay(self.duration(path.key("by"), delay.by)),
            Action::Duplicate(_) => Outcome::Duplicate,
            Action::Corrupt(corrupt) => {
                if corrupt.part.is_some() {
                    self.wrong_key(path.key("part"), "only packets have parts");
                }
                Outcome::Corrupt
            }
            Action::Overrun(_) => Outcome::Overrun,
            Action::Fail(fail) => {
                Outcome::Fail(self.failure(path, fail.status.as_deref(), point)?)
            }
            _ => return None,
        })
    }

    /// The number of a failure.
    fn failure(&mut self, path: &Path, with: Option<&str>, point: Point) -> Option<u16> {
        let names: Option<&Names> = match point {
            Point::Completion => Some(&names::FAILED_STATUSES),
            Point::AdminCommand | Point::TranslationCommand => Some(&names::COMMAND_STATUSES),
            Point::Request => Some(&names::REQUEST_FAILURES),
            Point::FaultRecord | Point::FaultAnswer | Point::Event | Point::Lookup => None,
        };
        match (names, with) {
            (Some(names), Some(with)) => self.name(path.key("with"), names, with),
            (Some(names), None) => {
                let allowed: Vec<&str> = names.names().collect();
                let message = format!(
                    "the key `with` is missing: a {}, one of {}",
                    names.what,
                    in_quotes(&allowed)
                );
                self.wrong_key(path.clone(), message);
                None
            }
            (None, Some(_)) => {
                let message = "a fault fails without a status: `with` belongs to completions, commands and requests";
                self.wrong_key(path.key("with"), message);
                None
            }
            (None, None) => Some(0),
        }
    }

    /// Checks an action on a NIC. `kind`: the kind of the matched thing; `None`: a timed action. `path` is that of the
    /// action.
    pub(super) fn nic_action(&mut self, path: &Path, action: &Action, kind: Option<Kind>) {
        match action {
            Action::PortDown(down) => self.lasts(path, down.time),
            Action::Speed(speed) => {
                self.limits(path.key("mbps"), speed.mbps.into(), Range::from(1));
            }
            Action::Mtu(mtu) => {
                let octets = range(MIN_MTU, u16::MAX.into());
                self.limits(path.key("bytes"), mtu.bytes.into(), octets);
            }
            Action::PauseStorm(lasts)
            | Action::Pause(lasts)
            | Action::HoldFaults(lasts)
            | Action::FillFaults(lasts) => self.lasts(path, Some(lasts.time)),
            Action::Evict(pages) | Action::Prefetch(pages) => self.pages(path, pages),
            Action::Lookup(lookup) => {
                self.time(path.key("takes"), lookup.takes);
                self.lasts(path, lookup.time);
            }
            Action::FailQp(pair) => self.queue_pair(path, pair.qp, pair.qpn, kind),
            Action::OverrunCq(queue) => {
                self.queue(path, queue.number, kind.is_some_and(Kind::has_cq));
            }
            Action::OverrunEq(queue) => {
                self.queue(path, queue.number, kind.is_some_and(Kind::has_eq));
            }
            Action::FaultPolicy(set) => {
                self.queue_pair(path, set.qp, set.qpn, kind);
                self.name(path.key("policy"), &names::FAULT_POLICIES, &set.policy);
            }
            _ => {}
        }
    }

    fn lasts(&mut self, path: &Path, time: Option<Time>) {
        if let Some(time) = time {
            self.duration(path.key("for"), time);
        }
    }

    fn pages(&mut self, path: &Path, pages: &Evict) {
        self.not_both(
            path,
            ("key", pages.key.is_some()),
            ("region", pages.region.is_some()),
        );
        self.optional_limits(path.key("pages"), pages.pages, Range::from(1));
    }

    fn queue_pair(
        &mut self,
        path: &Path,
        connection: Option<u32>,
        qpn: Option<u32>,
        kind: Option<Kind>,
    ) {
        self.not_both(path, ("qp", connection.is_some()), ("qpn", qpn.is_some()));
        self.optional_limits(path.key("qpn"), qpn.map(u64::from), range(0, MAX_QPN));
        if connection.is_some() || qpn.is_some() {
            return;
        }
        match kind {
            Some(kind) if kind.has_queue_pair() => {}
            Some(kind) => self.wrong_key(
                path.clone(),
                format!(
                    "{} belong to no queue pair: `qp` or `qpn` is needed",
                    kind.name()
                ),
            ),
            None => self.wrong_key(path.clone(), "at a time, `qp` or `qpn` is needed"),
        }
    }

    fn queue(&mut self, path: &Path, number: Option<u32>, matched: bool) {
        if number.is_none() && !matched {
            let message = "nothing that has matched names such a queue: `number` is needed";
            self.wrong_key(path.clone(), message);
        }
    }
}

impl Kind {
    /// True if a completion queue belongs to each thing of this kind.
    fn has_cq(self) -> bool {
        use faultline_abi::doorbell::{CQ_ARM, CQ_ARM_SOLICITED};
        match self {
            Self::Point(Point::Completion) => true,
            Self::Doorbell(Some(kind)) => matches!(kind, CQ_ARM | CQ_ARM_SOLICITED),
            _ => false,
        }
    }

    /// True if an event queue belongs to each thing of this kind.
    fn has_eq(self) -> bool {
        matches!(self, Self::Doorbell(Some(faultline_abi::doorbell::EQ_ARM)))
    }
}
