//! Actions on NICs.

use faultline_nic::{FaultPolicy, Instant};

use super::lasting::Lasting;
use super::request::{CallerRequest as Caller, NicRequest as Nic, Pages, Subject};
use super::running::{MAX_WAITING, NEVER, Rules};
use super::schedule::Due;
use crate::action::{Action, Evict};

impl Rules {
    /// An action that lasts has ended.
    pub(super) fn end_lasting(&mut self, nic: usize, lasting: Lasting) {
        let Some(view) = self.nics.get_mut(nic) else {
            return;
        };
        let Some(count) = view.lasting.get_mut(lasting as usize) else {
            return;
        };
        *count = count.saturating_sub(1);
        if *count > 0 {
            return;
        }
        let request = match lasting {
            Lasting::PortDown => Nic::Caller(Caller::Link(view.was_up)),
            Lasting::Speed => Nic::Caller(Caller::Speed(None)),
            Lasting::Mtu => Nic::Caller(Caller::Mtu(None)),
            Lasting::HoldFaults => Nic::HoldFaults(false),
            Lasting::FillFaults => Nic::FillFaults(false),
            Lasting::Lookup => Nic::Lookup(view.lookup),
        };
        self.requests.push_back((nic, request));
    }

    /// Executes an action on a NIC.
    pub(super) fn act(&mut self, now: Instant, nic: usize, action: &Action, subject: Subject) {
        let view = self.nics.get(nic);
        let qpn = |qp: Option<u32>, qpn: Option<u32>| {
            let named = qp.and_then(|number| view.and_then(|view| view.qpn_of(number)));
            qpn.or(named).or(subject.qpn.filter(|_| qp.is_none()))
        };
        let pages = |evict: &Evict| {
            let region = |number| view.and_then(|view| view.region(number));
            let key = match evict.region {
                Some(number) => Some(region(number)?.key),
                None => evict.key,
            };
            Some(Pages {
                key,
                first: evict.page,
                count: evict.pages,
            })
        };
        // The request, and the action that ends it later.
        let (request, end) = match action {
            Action::PortDown(down) => {
                if down.move_gid {
                    self.request(nic, Nic::Caller(Caller::MoveGids));
                }
                let at = down.time.map_or(NEVER, |time| now + time.0);
                (
                    Some(Nic::Caller(Caller::Link(false))),
                    Some((at, Lasting::PortDown)),
                )
            }
            Action::Speed(speed) => (
                Some(Nic::Caller(Caller::Speed(Some(speed.mbps)))),
                Some((NEVER, Lasting::Speed)),
            ),
            Action::Mtu(mtu) => (
                Some(Nic::Caller(Caller::Mtu(Some(mtu.bytes)))),
                Some((NEVER, Lasting::Mtu)),
            ),
            Action::PauseStorm(lasts) => (Some(Nic::PauseIngress(lasts.time.0)), None),
            Action::Fatal(_) => (Some(Nic::Fatal), None),
            Action::Reset(_) => (Some(Nic::Caller(Caller::Reset)), None),
            Action::Remove(_) => (Some(Nic::Caller(Caller::Remove)), None),
            Action::Pause(lasts) => (Some(Nic::Caller(Caller::Pause(lasts.time.0))), None),
            Action::FailFaults(_) => (Some(Nic::FailFaults), None),
            Action::HoldFaults(lasts) => (
                Some(Nic::HoldFaults(true)),
                Some((now + lasts.time.0, Lasting::HoldFaults)),
            ),
            Action::FillFaults(lasts) => (
                Some(Nic::FillFaults(true)),
                Some((now + lasts.time.0, Lasting::FillFaults)),
            ),
            Action::Evict(evict) => (pages(evict).map(Nic::Evict), None),
            Action::Prefetch(evict) => (pages(evict).map(Nic::Prefetch), None),
            Action::Lookup(lookup) => {
                let at = lookup.time.map_or(NEVER, |time| now + time.0);
                (
                    Some(Nic::Lookup(lookup.takes.0)),
                    Some((at, Lasting::Lookup)),
                )
            }
            Action::FailQp(pair) => (qpn(pair.qp, pair.qpn).map(Nic::FailQp), None),
            Action::OverrunCq(queue) => (queue.number.or(subject.object).map(Nic::OverrunCq), None),
            Action::OverrunEq(queue) => (queue.number.or(subject.object).map(Nic::OverrunEq), None),
            Action::FaultPolicy(set) => {
                let mut policies = FaultPolicy::ALL.into_iter();
                let policy = policies.find(|policy| policy.name() == set.policy);
                let pair = qpn(set.qp, set.qpn).zip(policy);
                (
                    pair.map(|(qpn, policy)| Nic::FaultPolicy(qpn, policy)),
                    None,
                )
            }
            Action::End(_) => (Some(Nic::Caller(Caller::End)), None),
            // Changes of the matched thing: the plan does not allow them here.
            Action::Drop(_)
            | Action::Delay(_)
            | Action::Duplicate(_)
            | Action::Corrupt(_)
            | Action::Fail(_)
            | Action::Overrun(_)
            | Action::Reorder(_)
            | Action::Truncate(_)
            | Action::EcnMark(_)
            | Action::MigReq(_)
            | Action::Count(_) => return,
        };
        self.request_action(now, nic, action, request, end);
    }

    /// Requests an action. `end`: time and kind of its end, if it lasts.
    fn request_action(
        &mut self,
        now: Instant,
        nic: usize,
        action: &Action,
        request: Option<Nic>,
        end: Option<(Instant, Lasting)>,
    ) {
        if end.is_some() && self.schedule.len() >= MAX_WAITING {
            self.note_problem(format!(
                "NIC {nic}: too many actions last at a time: {action:?} was not done"
            ));
            return;
        }
        if let (Some(view), Some(request)) = (self.nics.get_mut(nic), &request) {
            if let Nic::FaultPolicy(qpn, policy) = *request {
                view.change_policy(now, qpn, policy);
            }
            let requested = end.and_then(|(_, kind)| view.requested.get_mut(kind as usize));
            if let Some(requested) = requested {
                *requested = Some((now, request.clone()));
            }
        }
        match request {
            Some(request) => self.request(nic, request),
            None => self.note_problem(format!(
                "an action on NIC {nic} names a connection, region or queue that does not exist: {action:?}"
            )),
        }
        if let Some((at, lasting)) = end {
            self.begin_lasting(nic, at, lasting);
        }
    }

    /// An action lasts until then.
    fn begin_lasting(&mut self, nic: usize, at: Instant, lasting: Lasting) {
        let Some(view) = self.nics.get_mut(nic) else {
            return;
        };
        if at == NEVER
            && let Some(until_stop) = view.until_stop.get_mut(lasting as usize)
            && std::mem::replace(until_stop, true)
        {
            // It lasts as long already.
            return;
        }
        if let Some(count) = view.lasting.get_mut(lasting as usize) {
            *count = count.saturating_add(1);
        }
        self.schedule.add(at, Due::End(nic, lasting));
    }
}
