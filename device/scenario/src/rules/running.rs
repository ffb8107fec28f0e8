//! The state of running rules: counts, requests and results of all kinds of events.

use std::collections::VecDeque;

use faultline_abi::doorbell::Doorbell;
use faultline_nic::{Instant, Nanos};

use super::counts::Counts;
use super::point_use::PointUse;
use super::request::{CallerRequest, NicRequest, Subject};
use super::schedule::{Late, Schedule};
use super::unmet::{Misses, Unmet};
use super::view::{NicView, PacketSide, PacketSides};
use crate::frames::{HeldFrame, HeldFrames};
use crate::plan::{Plan, PlannedRule, Thing};
use crate::random::Rng;
use crate::trigger::Direction;
use crate::value::Range;

/// Most entries of the schedule and of each queue. Effects beyond it are omitted, or have no delay.
pub(super) const MAX_WAITING: usize = 4096;
/// Most problems that are kept.
const MAX_PROBLEMS: usize = 64;
/// The time of entries that only the end of the run makes due.
pub(super) const NEVER: Instant = Instant(u64::MAX);

/// The number of effects of a rule or a timed action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired {
    /// Its name.
    pub name: String,
    /// Number of its effects, over all NICs.
    pub times: u64,
    /// How often it must have.
    pub expected: Range,
}

/// A rule with its counts.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) rule: PlannedRule,
    /// Matches, by site. The NIC counts those inside it.
    pub(super) matched: Vec<u64>,
    /// Actions, by site.
    pub(super) fired: Vec<u64>,
    /// Bytes of matching packets, by site.
    pub(super) bytes: Vec<u64>,
    /// Conditions that did not hold.
    pub(super) misses: Misses,
}

/// Counts of a timed action.
#[derive(Debug)]
pub(super) struct RunningTime {
    pub(super) left: u64,
    pub(super) fired: u64,
}

/// The running rules.
#[derive(Debug)]
pub struct Rules {
    /// Number of the live rule that these are; 0: those of a scenario.
    pub(super) number: u16,
    pub(super) plan: Plan,
    pub(super) start: Instant,
    /// False while existing connections are taken, in steps.
    pub(super) begun: bool,
    pub(super) rules: Vec<Running>,
    pub(super) timed: Vec<RunningTime>,
    pub(super) nics: Vec<NicView>,
    pub(super) ports: Vec<PacketSides>,
    pub(super) random: Rng,
    pub(super) counts: Counts,
    pub(super) requests: VecDeque<(usize, NicRequest)>,
    pub(super) schedule: Schedule,
    pub(super) late: VecDeque<Late>,
    pub(super) frames: HeldFrames,
    /// The conditions of the rules about doorbells that are compared first.
    pub(super) doorbells: Vec<DoorbellFilter>,
    /// By NIC, the last doorbells that rules have not passed, with their pages.
    pub(super) taken: Vec<VecDeque<(u32, Doorbell)>>,
    /// Rules and expectations about points inside NICs.
    pub(super) points: Vec<PointUse>,
    pub(super) problems: Vec<String>,
    pub(super) ended: bool,
}

/// Minimal conditions of a rule about doorbells. Rules are large and doorbells frequent, so most of them are told apart
/// by this.
#[derive(Debug)]
pub(super) struct DoorbellFilter {
    pub(super) nic: Option<usize>,
    pub(super) kind: Option<u8>,
    pub(super) object: Option<u32>,
}

impl DoorbellFilter {
    /// `None`: the rule is about something else.
    pub(super) fn of(rule: &PlannedRule) -> Option<Self> {
        match rule.thing {
            Thing::Doorbell(kind) => Some(Self {
                nic: rule.nic,
                kind,
                object: rule.conditions.qpn,
            }),
            _ => None,
        }
    }

    pub(super) fn may_match(&self, nic: usize, bell: &Doorbell) -> bool {
        self.nic.is_none_or(|only| only == nic)
            && self.kind.is_none_or(|only| only == bell.kind)
            && self.object.is_none_or(|only| only == bell.object)
    }
}

impl Rules {
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

    /// Counts for expectations.
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

    /// Failures, such as an action on a connection that does not exist. A run with a problem has failed.
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

    /// The next request of a rule: the number of the NIC, and the request.
    pub fn poll_request(&mut self) -> Option<(usize, NicRequest)> {
        self.requests.pop_front()
    }

    /// Takes a frame that is due.
    pub fn poll_frame(&mut self, now: Instant) -> Option<HeldFrame> {
        self.frames.pop(now)
    }

    /// Takes a doorbell or an interrupt that is due.
    pub fn poll_late(&mut self) -> Option<Late> {
        self.late.pop_front()
    }

    /// Rules and expectations about the packets of a site in a direction.
    pub(super) fn side(&self, site: usize, dir: Direction) -> Option<&PacketSide> {
        match site.checked_sub(self.nics.len()) {
            None => self.nics.get(site).map(|view| view.packets.of(dir)),
            Some(port) => self.ports.get(port).map(|sides| sides.of(dir)),
        }
    }

    /// True if the conditions of a rule hold.
    pub(super) fn holds(
        &mut self,
        now: Instant,
        index: usize,
        site: usize,
        subject: &Subject,
    ) -> bool {
        let unmet = self.unmet(now, index, site, subject);
        unmet.map(|unmet| self.missed(index, unmet)).is_none()
    }

    /// The first condition of a rule that does not hold.
    fn unmet(&self, now: Instant, index: usize, site: usize, subject: &Subject) -> Option<Unmet> {
        let rule = &self.rules.get(index)?.rule;
        let since = Nanos(now.0.saturating_sub(self.start.0));
        let conditions = &rule.conditions;
        let (observes, unmet) = match self.nics.get(site) {
            Some(view) => (
                rule.port.is_none() && rule.nic.is_none_or(|only| only == site),
                view.unmet(conditions, subject),
            ),
            None => {
                let is_pair = conditions.qpn.is_none_or(|only| subject.qpn == Some(only));
                (
                    rule.port == site.checked_sub(self.nics.len()),
                    (!is_pair).then_some(Unmet::Qpn),
                )
            }
        };
        if !observes {
            return Some(Unmet::Place);
        }
        let is_early = conditions.after.is_some_and(|after| since < after);
        let is_late = conditions.before.is_some_and(|before| since > before);
        unmet
            .or(is_early.then_some(Unmet::After))
            .or(is_late.then_some(Unmet::Before))
    }

    /// A condition of a rule did not hold.
    pub(super) fn missed(&mut self, index: usize, unmet: Unmet) {
        if let Some(running) = self.rules.get_mut(index) {
            running.misses.note(unmet);
        }
    }

    /// Counts a match. Returns true if the rule acts on it.
    pub(super) fn is_due(&mut self, index: usize, nic: usize) -> bool {
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
        let acts = in_turn && *fired < choice.times && self.random.millionths(choice.per_million);
        if !acts {
            self.missed(index, Unmet::Choice);
        }
        acts
    }

    pub(super) fn note_fired(&mut self, index: usize, nic: usize) {
        let running = self.rules.get_mut(index);
        if let Some(fired) = running.and_then(|running| running.fired.get_mut(nic)) {
            *fired = fired.saturating_add(1);
        }
    }

    pub(super) fn request(&mut self, nic: usize, request: NicRequest) {
        self.ended |= matches!(request, NicRequest::Caller(CallerRequest::End));
        if self.requests.len() < MAX_WAITING {
            self.requests.push_back((nic, request));
        } else {
            self.note_problem(format!(
                "NIC {nic}: too many actions at a time: {request:?} was not done"
            ));
        }
    }
}
