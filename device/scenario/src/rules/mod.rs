//! The rules of a scenario while it runs.
//!
//! The caller owns the NICs, the clock and the wire: the engine of the daemon, or the simulation. One thread calls everything.
//! NICs have numbers in the order of the configuration.
//!
//! # Calls that take events
//!
//! | Event | Call |
//! |---|---|
//! | a packet is about to be sent or delivered | [`packet`](Rules::packet); if it returns a change, the frame's octets go to [`take_frame`](Rules::take_frame) instead |
//! | an interrupt is about to be sent | [`interrupt`](Rules::interrupt); only if it returns true, send it |
//! | a doorbell was taken | [`doorbell`](Rules::doorbell); only if it returns true, pass it to the NIC |
//! | a NIC has a diagnostic | [`diagnostic`](Rules::diagnostic), before further packets of this NIC |
//! | a client of the API signals a name | [`signal`](Rules::signal) |
//! | the time of [`next_deadline`](Rules::next_deadline) | [`advance`](Rules::advance) |
//!
//! # Calls that return actions, after each event
//!
//! 1. [`poll_request`](Rules::poll_request) until `None`: what is to be done to a NIC. [`NicRequest::carry_out`] does what the NIC
//!    itself can do and returns the rest. After [`Rules::new`], too.
//! 2. [`poll_frame`](Rules::poll_frame) until `None`: frames to pass on now. Rules are not asked about them again.
//! 3. [`poll_late`](Rules::poll_late) until `None`: doorbells and interrupts that were delayed or happen twice. Rules are not
//!    asked about them again.
//! 4. [`next_deadline`](Rules::next_deadline).
//!
//! Packets have a *site*: the index of a NIC, or, for a port that leads out of the process, the number of NICs and the index of the port.
//!
//! While [`takes_packets`](Rules::takes_packets) is false, the caller need not ask about packets of a NIC in a direction. While it
//! is true for a NIC that sends or receives, each frame must be one packet (`poll_transmit` with `most` of 0).
//!
//! # Order
//!
//! Rules are tried in the order of the file. All that match count the match. The first one that is due and changes the thing
//! decides; later ones that change it only count the match. Rules that count or that act on the NIC do not keep later ones from deciding.
//! Inside a NIC its injection table decides in the same way.

mod actions;
mod counts;
mod follow;
mod lasting;
mod packets;
mod point_use;
mod points;
mod request;
mod running;
mod schedule;
mod sets;
mod stop;
mod unmet;
mod view;

use std::collections::VecDeque;

use faultline_abi::doorbell::Doorbell;
use faultline_nic::{Diagnostic, Instant, Nanos, Nic, State};
use faultline_telemetry::DiagnosticKind;

use crate::frames::HeldFrames;
use crate::plan::{BoundaryChange, Effect, Plan, PlannedRule, Thing};
use crate::random::Rng;

use running::{DoorbellFilter, MAX_WAITING, Running, RunningTime};
use schedule::{Due, Schedule};
use unmet::Misses;
use view::{NicView, PacketSides};

pub use counts::Counts;
pub use request::{CallerRequest, NicRequest, Pages, Subject};
pub use running::{Fired, Rules};
pub use schedule::Late;
pub use sets::{LiveRule, LiveState, MAX_LIVE, RuleSets, TooManyRules};
pub use unmet::Miss;
pub use view::PacketFacts;

pub use crate::frames::{ByRule, HeldFrame, LIVE, Taking};

/// Doorbells of a NIC that are remembered after a rule has taken them: as many as there may be processors that write kick pages.
const MAX_TAKEN: usize = 256;

impl Rules {
    /// Starts a plan for these NICs at `now`, in one step: its length depends on the number of queue pairs.
    pub fn new<'a, I>(plan: Plan, nics: I, now: Instant) -> Self
    where
        I: IntoIterator<Item = &'a Nic>,
        I::IntoIter: Clone,
    {
        let nics = nics.into_iter();
        let mut rules = Self::prepare(plan, nics.clone(), now);
        while !rules.take_existing(nics.clone()) {}
        rules.begin(now);
        rules
    }

    /// Rules of a plan that has not begun: they only follow connections. The caller calls [`Rules::take_existing`]
    /// until it returns true, then [`Rules::begin`].
    pub fn prepare<'a>(plan: Plan, nics: impl IntoIterator<Item = &'a Nic>, now: Instant) -> Self {
        Self::prepare_numbered(0, plan, nics, now)
    }

    /// As [`Rules::prepare`]. `number`: that of the live rule; 0: rules of a scenario.
    fn prepare_numbered<'a>(
        number: u16,
        plan: Plan,
        nics: impl IntoIterator<Item = &'a Nic>,
        now: Instant,
    ) -> Self {
        let views: Vec<_> = nics.into_iter().map(NicView::new).collect();
        let nics = views.len();
        let named = plan.rules.iter().filter_map(|rule| rule.port);
        let ports = named.max().map_or(0, |last| last.saturating_add(1));
        let sites = nics.saturating_add(ports);
        let running = |rule: &PlannedRule| Running {
            rule: rule.clone(),
            matched: vec![0; sites],
            fired: vec![0; sites],
            bytes: vec![0; sites],
            misses: Misses::default(),
        };
        let timed = plan.timed.iter().map(|timed| RunningTime {
            left: timed.times,
            fired: 0,
        });
        Self {
            number,
            start: now,
            begun: false,
            rules: plan.rules.iter().map(running).collect(),
            timed: timed.collect(),
            nics: views,
            ports: (0..ports).map(|_| PacketSides::default()).collect(),
            random: Rng::new(plan.seed),
            counts: Counts::new(&plan, nics),
            requests: VecDeque::new(),
            schedule: Schedule::default(),
            late: VecDeque::new(),
            frames: HeldFrames::default(),
            doorbells: Vec::new(),
            taken: vec![VecDeque::new(); nics],
            points: point_use::uses_of(&plan),
            problems: Vec::new(),
            ended: false,
            plan,
        }
    }

    /// Begins the run.
    pub fn begin(&mut self, now: Instant) {
        self.start = now;
        self.begun = true;
        let doorbells = self.plan.rules.iter().filter_map(DoorbellFilter::of);
        self.doorbells = doorbells.collect();
        self.index_packet_rules();
        let times: Vec<_> = self
            .plan
            .timed
            .iter()
            .map(|timed| now + timed.time)
            .collect();
        for (index, at) in times.into_iter().enumerate() {
            self.schedule.add(at, Due::Timed(index));
        }
        self.begin_points(now);
    }

    /// An interrupt is about to be sent. Returns false if it must not be.
    pub fn interrupt(&mut self, now: Instant, nic: usize, vector: u16) -> bool {
        let change = self.try_rules(now, nic, Subject::default(), |thing| {
            matches!(thing, Thing::Interrupt(only) if only.is_none_or(|only| only == vector))
        });
        self.passes(now, change, Late::Interrupt { nic, vector })
    }

    /// True if a rule may change this doorbell.
    pub fn may_change(&self, nic: usize, bell: &Doorbell) -> bool {
        let mut filters = self.doorbells.iter();
        filters.any(|filter| filter.may_match(nic, bell))
    }

    /// True if this doorbell is one of the last that [`doorbell`](Rules::doorbell) has not passed; true once for each. For a caller
    /// that has a second path for the same doorbell.
    pub fn has_taken(&mut self, nic: usize, page: u32, bell: Doorbell) -> bool {
        let Some(taken) = self.taken.get_mut(nic) else {
            return false;
        };
        let found = taken.iter().position(|taken| *taken == (page, bell));
        found.is_some_and(|at| taken.remove(at).is_some())
    }

    /// A doorbell was taken. Returns false if it must not be passed to the NIC.
    pub fn doorbell(&mut self, now: Instant, nic: usize, page: u32, bell: Doorbell) -> bool {
        if !self.may_change(nic, &bell) {
            return true;
        }
        let subject = Subject::of_doorbell(&bell);
        let change = self.try_rules(now, nic, subject, |thing| {
            matches!(thing, Thing::Doorbell(only) if only.is_none_or(|only| only == bell.kind))
        });
        let passes = self.passes(now, change, Late::Doorbell { nic, page, bell });
        if !passes && let Some(taken) = self.taken.get_mut(nic) {
            if taken.len() >= MAX_TAKEN {
                taken.pop_front();
            }
            taken.push_back((page, bell));
        }
        passes
    }

    /// A name is signalled. Returns false if no rule waits for it.
    pub fn signal(&mut self, now: Instant, name: &str) -> bool {
        let fits = |thing: &Thing| matches!(thing, Thing::Signal(only) if only == name);
        let known = self.rules.iter().any(|running| fits(&running.rule.thing));
        for nic in 0..self.nics.len() {
            self.try_rules(now, nic, Subject::default(), fits);
        }
        known
    }

    /// A NIC reports something. `device` is this NIC.
    pub fn diagnostic(&mut self, now: Instant, nic: usize, diagnostic: &Diagnostic, device: &Nic) {
        if !self.begun {
            self.follow(nic, diagnostic, device);
            return;
        }
        self.counts.diagnostic(now, nic, diagnostic);
        // Rules for the end of a connection still know the connection.
        let ends = matches!(
            diagnostic,
            Diagnostic::QpState {
                to: State::Reset,
                ..
            }
        );
        if !ends {
            self.follow(nic, diagnostic, device);
        }
        if matches!(diagnostic, Diagnostic::Reset) {
            // Doorbells from before the reset have no effect, and their pages may have other users.
            self.schedule.forget_late(nic);
            self.late.retain(|late| late.nic() != nic);
            if let Some(taken) = self.taken.get_mut(nic) {
                taken.clear();
            }
        }
        if let Diagnostic::Injected { id, .. } = *diagnostic {
            self.injected(now, nic, id, Subject::of_diagnostic(diagnostic));
            return;
        }
        let kind = DiagnosticKind::of(diagnostic);
        let entered = match diagnostic {
            Diagnostic::QpState { to, .. } => Some(*to),
            _ => None,
        };
        self.try_rules(
            now,
            nic,
            Subject::of_diagnostic(diagnostic),
            |thing| match thing {
                Thing::Diagnostic(only) => *only == kind,
                Thing::QpState(state) => Some(*state) == entered,
                _ => false,
            },
        );
        if ends {
            self.follow(nic, diagnostic, device);
        }
    }

    /// Diagnostics of a NIC were lost, so that rules and expectations have not seen them.
    pub fn lost_diagnostics(&mut self, nic: usize, lost: u64) {
        self.note_problem(format!(
            "NIC {nic}: {lost} diagnostics were lost: counts of rules and expectations may be too small"
        ));
    }

    /// Executes the entries of the schedule that are due.
    pub fn advance(&mut self, now: Instant) {
        while let Some(due) = self.schedule.pop(now) {
            match due {
                Due::Timed(index) => self.act_at_time(now, index),
                Due::End(nic, lasting) => self.end_lasting(nic, lasting),
                Due::Late(late) => self.late.push_back(late),
                Due::BeginPoint(index) => self.begin_point(index),
                Due::EndPoint(index) => self.end_point(index),
            }
        }
    }

    /// Tries the rules for a thing that is not a packet.
    fn try_rules(
        &mut self,
        now: Instant,
        nic: usize,
        subject: Subject,
        fits: impl Fn(&Thing) -> bool,
    ) -> Option<BoundaryChange> {
        let mut decided = None;
        if !self.begun {
            return decided;
        }
        for index in 0..self.rules.len() {
            let running = self.rules.get(index);
            if !running.is_some_and(|running| fits(&running.rule.thing))
                || !self.holds(now, index, nic, &subject)
                || !self.is_due(index, nic)
            {
                continue;
            }
            match self
                .rules
                .get(index)
                .map(|running| running.rule.effect.clone())
            {
                Some(Effect::Boundary(change)) if decided.is_none() => {
                    decided = Some(change);
                    self.note_fired(index, nic);
                }
                Some(Effect::Nic(action)) => {
                    self.note_fired(index, nic);
                    self.act(now, nic, &action, subject);
                }
                Some(Effect::Count) => self.note_fired(index, nic),
                _ => {}
            }
        }
        decided
    }

    /// Executes a change of a doorbell or an interrupt. Returns true if it happens now.
    fn passes(&mut self, now: Instant, change: Option<BoundaryChange>, late: Late) -> bool {
        match change {
            None => return true,
            Some(BoundaryChange::Drop) => {}
            // Both come from `poll_late`, so that the second has the effect that it has on hardware.
            Some(BoundaryChange::Duplicate) => self.late.extend([late, late]),
            Some(BoundaryChange::Delay(_)) if self.schedule.len() >= MAX_WAITING => return true,
            Some(BoundaryChange::Delay(by)) => self.schedule.add(now + by, Due::Late(late)),
        }
        false
    }

    fn act_at_time(&mut self, now: Instant, index: usize) {
        let Some(timed) = self.plan.timed.get(index).cloned() else {
            return;
        };
        let Some(running) = self.timed.get_mut(index).filter(|running| running.left > 0) else {
            return;
        };
        running.left = running.left.saturating_sub(1);
        running.fired = running.fired.saturating_add(1);
        let again = timed.every.filter(|_| running.left > 0);
        for nic in 0..self.nics.len() {
            if timed.nic.is_none_or(|only| only == nic) {
                self.act(now, nic, &timed.action, Subject::default());
            }
        }
        if let Some(period) = again {
            // Not at the same instant again: the clock must advance.
            self.schedule
                .add(now + Nanos(period.0.max(1)), Due::Timed(index));
        }
    }
}
