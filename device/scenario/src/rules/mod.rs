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
mod schedule;
mod view;

use std::collections::VecDeque;

use faultline_abi::doorbell::Doorbell;
use faultline_nic::{Diagnostic, Instant, Nanos, Nic, State};
use faultline_telemetry::DiagnosticKind;

use crate::frames::HeldFrames;
use crate::plan::{BoundaryChange, Effect, Plan, PlannedRule, Thing};
use crate::random::Random;
use crate::trigger::Direction;
use crate::value::Range;

use point_use::PointUse;
use schedule::{Due, Schedule};
use view::{NicView, PacketSide, PacketSides};

pub use counts::Counts;
pub use request::{CallerRequest, NicRequest, Pages, Subject};
pub use schedule::Late;
pub use view::PacketFacts;

pub use crate::frames::{ByRule, HeldFrame, Taking};

/// How often a rule or a timed action has acted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired {
    /// Its name.
    pub name: String,
    /// How often its action took place, over all NICs.
    pub times: u64,
    /// How often it must have.
    pub expected: Range,
}

/// A rule with its counts.
#[derive(Debug)]
struct Running {
    rule: PlannedRule,
    /// Matches, by site. The NIC counts those inside it.
    matched: Vec<u64>,
    /// Actions, by site.
    fired: Vec<u64>,
    /// Bytes of matching packets, by site.
    bytes: Vec<u64>,
}

/// Counts of a timed action.
#[derive(Debug)]
struct RunningTime {
    left: u64,
    fired: u64,
}

/// The running rules.
#[derive(Debug)]
pub struct Rules {
    plan: Plan,
    start: Instant,
    /// False while existing connections are taken, in steps.
    begun: bool,
    rules: Vec<Running>,
    timed: Vec<RunningTime>,
    nics: Vec<NicView>,
    ports: Vec<PacketSides>,
    random: Random,
    counts: Counts,
    requests: VecDeque<(usize, NicRequest)>,
    schedule: Schedule,
    late: VecDeque<Late>,
    frames: HeldFrames,
    /// What is compared first of the rules about doorbells.
    doorbells: Vec<DoorbellFilter>,
    /// By NIC, the last doorbells that rules have not passed, with their pages.
    taken: Vec<VecDeque<(u32, Doorbell)>>,
    /// Rules and expectations about points inside NICs.
    points: Vec<PointUse>,
    problems: Vec<String>,
    ended: bool,
}

/// What a rule about doorbells needs at least. Rules are large and doorbells frequent, so most of them are told apart by this.
#[derive(Debug)]
struct DoorbellFilter {
    nic: Option<usize>,
    kind: Option<u8>,
    object: Option<u32>,
}

impl DoorbellFilter {
    /// `None`: the rule is about something else.
    fn of(rule: &PlannedRule) -> Option<Self> {
        match rule.thing {
            Thing::Doorbell(kind) => Some(Self {
                nic: rule.nic,
                kind,
                object: rule.conditions.qpn,
            }),
            _ => None,
        }
    }

    fn may_match(&self, nic: usize, bell: &Doorbell) -> bool {
        self.nic.is_none_or(|only| only == nic)
            && self.kind.is_none_or(|only| only == bell.kind)
            && self.object.is_none_or(|only| only == bell.object)
    }
}

/// Most entries of the schedule and of each queue. What is beyond is not delayed, or not done.
const MAX_WAITING: usize = 4096;
/// Doorbells of a NIC that are remembered after a rule has taken them: as many as there may be processors that write kick pages.
const MAX_TAKEN: usize = 256;
/// Most problems that are kept.
const MAX_PROBLEMS: usize = 64;
/// The time of entries that only the end of the run makes due.
const NEVER: Instant = Instant(u64::MAX);

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

    /// Rules of a plan that has not begun: they follow connections, and do nothing else. [`Rules::take_existing`] is to be called until
    /// it returns true, then [`Rules::begin`].
    pub fn prepare<'a>(plan: Plan, nics: impl IntoIterator<Item = &'a Nic>, now: Instant) -> Self {
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
        };
        let timed = plan.timed.iter().map(|timed| RunningTime {
            left: timed.times,
            fired: 0,
        });
        Self {
            start: now,
            begun: false,
            rules: plan.rules.iter().map(running).collect(),
            timed: timed.collect(),
            nics: views,
            ports: (0..ports).map(|_| PacketSides::default()).collect(),
            random: Random::new(plan.seed),
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

    /// True if the run has begun.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// When the run began.
    pub fn start(&self) -> Instant {
        self.start
    }

    /// What was counted for expectations.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// True if an action has ended the run.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Frames that were dropped because too many were kept.
    pub fn frames_dropped(&self) -> u64 {
        self.frames.dropped
    }

    /// What could not be done, such as an action on a connection that does not exist. A run with a problem has failed.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Adds to [`Rules::problems`], unless there are many already.
    pub fn note_problem(&mut self, problem: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }

    /// Rules, then timed actions, in the order of the file.
    pub fn fired(&self) -> Vec<Fired> {
        let rules = self.rules.iter().map(|running| Fired {
            name: running.rule.name.clone(),
            times: running.fired.iter().sum(),
            expected: running.rule.fired,
        });
        let timed = self.plan.timed.iter().zip(&self.timed);
        let timed = timed.map(|(timed, running)| Fired {
            name: timed.name.clone(),
            times: running.fired,
            expected: Range::from(1),
        });
        rules.chain(timed).collect()
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
            // The device knows nothing of doorbells before, and their pages may have other users.
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

    /// Handles what is due.
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

    /// True if a time has come, or one of the polls returns something.
    #[inline]
    pub fn has_work(&self, now: Instant) -> bool {
        !self.requests.is_empty()
            || !self.late.is_empty()
            || self.next_deadline().is_some_and(|at| at <= now)
    }

    /// When [`Rules::advance`] and [`Rules::poll_frame`] are to be called.
    pub fn next_deadline(&self) -> Option<Instant> {
        let next = self.schedule.next_at().filter(|at| *at < NEVER);
        next.into_iter().chain(self.frames.next_due()).min()
    }

    /// Takes what is to be done to a NIC.
    pub fn poll_request(&mut self) -> Option<(usize, NicRequest)> {
        self.requests.pop_front()
    }

    /// Takes a frame that is to be passed now.
    pub fn poll_frame(&mut self, now: Instant) -> Option<HeldFrame> {
        self.frames.pop(now)
    }

    /// Takes a doorbell or an interrupt that is to happen now.
    pub fn poll_late(&mut self) -> Option<Late> {
        self.late.pop_front()
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

    /// Carries out a change of a doorbell or an interrupt. Returns true if it happens now.
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

    /// Rules and expectations about the packets of a site in a direction.
    fn side(&self, site: usize, dir: Direction) -> Option<&PacketSide> {
        match site.checked_sub(self.nics.len()) {
            None => self.nics.get(site).map(|view| view.packets.of(dir)),
            Some(port) => self.ports.get(port).map(|sides| sides.of(dir)),
        }
    }

    /// True if the conditions of a rule hold.
    fn holds(&self, now: Instant, index: usize, site: usize, subject: &Subject) -> bool {
        let Some(rule) = self.rules.get(index).map(|running| &running.rule) else {
            return false;
        };
        let since = Nanos(now.0.saturating_sub(self.start.0));
        let conditions = &rule.conditions;
        let observes = match self.nics.get(site) {
            Some(view) => {
                rule.port.is_none()
                    && rule.nic.is_none_or(|only| only == site)
                    && view.holds(conditions, subject)
            }
            None => {
                rule.port == site.checked_sub(self.nics.len())
                    && conditions.qpn.is_none_or(|only| subject.qpn == Some(only))
            }
        };
        observes
            && conditions.after.is_none_or(|after| since >= after)
            && conditions.before.is_none_or(|before| since <= before)
    }

    /// Counts a match. Returns true if the rule acts on it.
    fn is_due(&mut self, index: usize, nic: usize) -> bool {
        let Some(running) = self.rules.get_mut(index) else {
            return false;
        };
        let choice = running.rule.choice;
        let counts = (running.matched.get_mut(nic), running.fired.get(nic));
        let (Some(matched), Some(fired)) = counts else {
            return false;
        };
        let before = *matched;
        *matched = matched.saturating_add(1);
        let in_turn = before
            .checked_sub(choice.skip)
            .is_some_and(|n| n.is_multiple_of(choice.every.max(1)));
        in_turn && *fired < choice.times && self.random.chance(choice.per_million)
    }

    fn note_fired(&mut self, index: usize, nic: usize) {
        let running = self.rules.get_mut(index);
        if let Some(fired) = running.and_then(|running| running.fired.get_mut(nic)) {
            *fired = fired.saturating_add(1);
        }
    }

    fn request(&mut self, nic: usize, request: NicRequest) {
        self.ended |= matches!(request, NicRequest::Caller(CallerRequest::End));
        if self.requests.len() < MAX_WAITING {
            self.requests.push_back((nic, request));
        } else {
            self.note_problem(format!(
                "NIC {nic}: too many actions at a time: {request:?} was not done"
            ));
        }
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
            // Not at the same instant again: time must go on.
            self.schedule
                .add(now + Nanos(period.0.max(1)), Due::Timed(index));
        }
    }
}
