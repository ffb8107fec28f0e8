//! The sets of rules that run at a time: the rules of a scenario, and live rules, each of which is a set of its own.
//!
//! Sets are asked in the order in which they were started. A packet, doorbell or interrupt that one set takes is not shown to later
//! sets. Each set follows connections and regions for itself, so in a live rule `qp = 0` is the first connection after its start.
//!
//! A set that ends undoes what its actions have changed. If an action of another set that lasts has changed the same, its value is set
//! again, that of the last action if there are several.

use std::collections::VecDeque;
use std::fmt;

use faultline_abi::doorbell::Doorbell;
use faultline_nic::{Diagnostic, Instant, Nic};
use faultline_wire::Opcode;

use super::lasting::Lasting;
use super::request::{CallerRequest, NicRequest};
use super::running::Rules;
use super::schedule::Late;
use super::unmet::Miss;
use super::view::PacketFacts;
use crate::frames::{HeldFrame, LIVE, Taking};
use crate::live::LivePlan;
use crate::plan::Plan;
use crate::trigger::Direction;

/// Most live rules that run at a time. Each has a list of the connections of all NICs.
pub const MAX_LIVE: usize = 16;

/// Sets of rules.
#[derive(Debug, Default)]
pub struct RuleSets {
    /// By their start.
    sets: Vec<RuleSet>,
    /// Live rules that have ended by their time and were not removed, the oldest first. At most [`MAX_LIVE`].
    ended: VecDeque<LiveRule>,
    /// Number of the last live rule.
    last: u16,
}

#[derive(Debug)]
struct RuleSet {
    rules: Rules,
    /// `None`: the rules of a scenario.
    live: Option<Live>,
    /// It takes nothing more: only what it has kept is passed.
    has_ended: bool,
}

/// What is known of a live rule besides its plan.
#[derive(Debug)]
struct Live {
    text: String,
    lasts: Option<faultline_nic::Nanos>,
    until: Option<Instant>,
    is_removed: bool,
}

/// State of a live rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveState {
    /// It learns the connections that exist.
    Starting,
    /// It runs.
    Running,
    /// Its time is over.
    Ended,
}

/// A live rule, as its owner shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveRule {
    /// Its number, from 1.
    pub number: u16,
    /// Its name.
    pub name: String,
    /// Its text (TOML).
    pub text: String,
    /// State.
    pub state: LiveState,
    /// How often something has matched, where that is counted outside of NICs: packets, doorbells, interrupts, diagnostics.
    pub matched: Option<u64>,
    /// How often it has acted.
    pub acted: u64,
    /// The nearest miss of a rule that has not matched or not acted.
    pub nearest: Option<Miss>,
    /// When it has begun.
    pub start: Instant,
    /// When it ends.
    pub until: Option<Instant>,
    /// What could not be done.
    pub problems: Vec<String>,
}

/// There are [`MAX_LIVE`] live rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyRules;

impl fmt::Display for TooManyRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{MAX_LIVE} live rules run, which is the limit: remove one (`faultline ctl rules remove ID`, or DELETE /v1/rules/ID)"
        )
    }
}

impl std::error::Error for TooManyRules {}

impl RuleSet {
    fn number(&self) -> u16 {
        self.rules.number
    }

    fn show(&self, live: &Live) -> LiveRule {
        LiveRule {
            number: self.number(),
            name: self.rules.name_of_first(),
            text: live.text.clone(),
            state: match (self.has_ended, self.rules.has_begun()) {
                (true, _) => LiveState::Ended,
                (false, true) => LiveState::Running,
                (false, false) => LiveState::Starting,
            },
            matched: self.rules.matches_of_first(),
            acted: self.rules.fired().iter().map(|fired| fired.times).sum(),
            nearest: self.rules.nearest_of_first(),
            start: self.rules.start(),
            until: live.until,
            problems: self.rules.problems().to_vec(),
        }
    }
}

/// Starts and ends.
impl RuleSets {
    /// True if no rules run.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// The rules of the scenario that runs.
    pub fn scenario(&self) -> Option<&Rules> {
        let set = self.sets.iter().find(|set| set.live.is_none())?;
        Some(&set.rules)
    }

    /// The same, to be changed.
    pub fn scenario_mut(&mut self) -> Option<&mut Rules> {
        self.set_mut(0).map(|set| &mut set.rules)
    }

    /// Prepares the rules of a scenario, as [`Rules::prepare`] does. No other scenario must run.
    pub fn prepare_scenario<'a>(
        &mut self,
        plan: Plan,
        nics: impl IntoIterator<Item = &'a Nic>,
        now: Instant,
    ) {
        let rules = Rules::prepare(plan, nics, now);
        self.add(rules, None);
    }

    /// Ends the rules of the scenario, as [`Rules::stop`] does.
    pub fn stop_scenario(&mut self) {
        self.stop(0);
    }

    /// Takes the rules of the scenario away.
    pub fn take_scenario(&mut self) -> Option<Rules> {
        self.take(0).map(|set| set.rules)
    }

    /// Prepares a live rule, as [`Rules::prepare`] does. Returns its number, for [`RuleSets::begin_live`].
    pub fn prepare_live<'a>(
        &mut self,
        live: LivePlan,
        nics: impl IntoIterator<Item = &'a Nic>,
        now: Instant,
    ) -> Result<u16, TooManyRules> {
        let running = self.sets.iter().filter(|set| set.live.is_some());
        if running.count() >= MAX_LIVE {
            return Err(TooManyRules);
        }
        let number = self.next_number();
        self.last = number;
        let LivePlan {
            mut plan,
            text,
            lasts,
        } = live;
        for rule in &mut plan.rules {
            if rule.name == UNNAMED {
                rule.name = format!("live rule {number}");
            }
        }
        let rules = Rules::prepare_numbered(number, plan, nics, now);
        let live = Live {
            text,
            lasts,
            until: None,
            is_removed: false,
        };
        self.add(rules, Some(live));
        Ok(number)
    }

    /// One step before a live rule begins: it learns some of the connections that exist. Returns false if more steps are needed.
    pub fn begin_live<'a>(
        &mut self,
        number: u16,
        nics: impl IntoIterator<Item = &'a Nic>,
        now: Instant,
    ) -> bool {
        let Some(set) = self.set_mut(number) else {
            return true;
        };
        if set.rules.has_begun() {
            return true;
        }
        if !set.rules.take_existing(nics) {
            return false;
        }
        set.rules.begin(now);
        if let Some(live) = &mut set.live {
            live.until = live.lasts.map(|lasts| now + lasts);
        }
        true
    }

    /// Removes a live rule: it ends as [`Rules::stop`] does, and [`RuleSets::sweep`] forgets it. Returns what has become of it; `None`:
    /// there is none with this number.
    pub fn remove_live(&mut self, number: u16) -> Option<LiveRule> {
        let ended = self.ended.iter().position(|rule| rule.number == number);
        if let Some(index) = ended {
            return self.ended.remove(index);
        }
        self.set_mut(number)?.live.as_mut()?.is_removed = true;
        self.stop(number);
        self.live_rule(number)
    }

    /// Live rules that have ended by their time, then those that run.
    pub fn live(&self) -> Vec<LiveRule> {
        let running = self.sets.iter();
        let running = running.filter_map(|set| Some(set.show(set.live.as_ref()?)));
        self.ended.iter().cloned().chain(running).collect()
    }

    /// The live rule with this number.
    pub fn live_rule(&self, number: u16) -> Option<LiveRule> {
        self.live().into_iter().find(|rule| rule.number == number)
    }

    /// True if a set runs: the live rule with this number, or the scenario (0).
    pub fn runs(&self, number: u16) -> bool {
        let mut running = self.sets.iter().filter(|set| !set.has_ended);
        running.any(|set| set.number() == number)
    }

    /// Adds to the problems of a set: of the live rule with this number, or of the scenario.
    pub fn note_problem(&mut self, number: u16, problem: String) {
        if let Some(set) = self.set_mut(number) {
            set.rules.note_problem(problem);
        }
    }

    fn add(&mut self, mut rules: Rules, live: Option<Live>) {
        for set in &self.sets {
            rules.take_over(&set.rules);
        }
        self.sets.push(RuleSet {
            rules,
            live,
            has_ended: false,
        });
    }

    /// The next number that no live rule has.
    fn next_number(&self) -> u16 {
        let is_used = |number: &u16| {
            self.sets.iter().any(|set| set.number() == *number)
                || self.ended.iter().any(|rule| rule.number == *number)
        };
        let later = self.last.saturating_add(1)..LIVE;
        let free = later.chain(1..LIVE).find(|number| !is_used(number));
        free.unwrap_or(1)
    }

    fn set_mut(&mut self, number: u16) -> Option<&mut RuleSet> {
        self.sets.iter_mut().find(|set| set.number() == number)
    }

    fn take(&mut self, number: u16) -> Option<RuleSet> {
        let index = self.sets.iter().position(|set| set.number() == number)?;
        Some(self.sets.remove(index))
    }

    fn stop(&mut self, number: u16) {
        let Some(index) = self.sets.iter().position(|set| set.number() == number) else {
            return;
        };
        let (before, from) = self.sets.split_at_mut(index);
        let Some((set, after)) = from.split_first_mut().filter(|(set, _)| !set.has_ended) else {
            return;
        };
        set.rules.hand_over_policies(before, after);
        set.rules.stop();
        set.has_ended = true;
    }

    /// Forgets live rules that have ended, and have nothing left to pass. Those that were not removed are still listed.
    pub fn sweep(&mut self, now: Instant) {
        let is_over =
            |set: &RuleSet| set.live.is_some() && set.has_ended && !set.rules.has_work(now);
        while let Some(index) = self.sets.iter().position(is_over) {
            let set = self.sets.remove(index);
            let Some(live) = set.live.as_ref().filter(|live| !live.is_removed) else {
                continue;
            };
            if self.ended.len() >= MAX_LIVE {
                self.ended.pop_front();
            }
            self.ended.push_back(set.show(live));
        }
    }
}

/// Name of a rule without a name, in a plan of one rule.
const UNNAMED: &str = "rule[0]";

/// Events, and what comes of them: see [`super`].
impl RuleSets {
    fn asked(&mut self) -> impl Iterator<Item = &mut Rules> {
        let asked = self.sets.iter_mut().filter(|set| !set.has_ended);
        asked.map(|set| &mut set.rules)
    }

    /// True if a set asks for packets of a site in a direction.
    pub fn takes_packets(&self, site: usize, dir: Direction) -> bool {
        let mut sets = self.sets.iter();
        sets.any(|set| set.rules.takes_packets(site, dir))
    }

    /// True if a set asks for TCP segments of a site in a direction.
    pub fn wants_segments(&self, place: (usize, Direction)) -> bool {
        let mut sets = self.sets.iter();
        sets.any(|set| set.rules.wants_segments(place))
    }

    /// True if no set needs to know of this packet.
    #[inline]
    pub fn ignores_packet(
        &self,
        place: (usize, Direction),
        opcode: Option<Opcode>,
        qpn: impl Fn() -> u32,
    ) -> bool {
        let mut sets = self.sets.iter();
        sets.all(|set| set.rules.ignores_packet(place, opcode, &qpn))
    }

    /// A packet is about to be sent or delivered. If a rule takes it, its octets go to [`RuleSets::take_frame`].
    pub fn packet(
        &mut self,
        now: Instant,
        site: usize,
        dir: Direction,
        qpn: u32,
        packet: PacketFacts<'_>,
    ) -> Option<Taking> {
        self.asked()
            .find_map(|rules| rules.packet(now, site, dir, qpn, packet))
    }

    /// Changes and keeps the octets of a packet that a rule takes.
    pub fn take_frame(&mut self, now: Instant, taking: Taking, frame: HeldFrame) {
        let by = taking.by().rule;
        let number = if by & LIVE == 0 { 0 } else { by & !LIVE };
        if let Some(set) = self.set_mut(number) {
            set.rules.take_frame(now, taking, frame);
        }
    }

    /// An interrupt is about to be sent. Returns false if it must not be.
    #[inline]
    pub fn interrupt(&mut self, now: Instant, nic: usize, vector: u16) -> bool {
        self.is_empty() || self.asked().all(|rules| rules.interrupt(now, nic, vector))
    }

    /// A doorbell was taken. Returns false if it must not be passed to the NIC.
    #[inline]
    pub fn doorbell(&mut self, now: Instant, nic: usize, page: u32, bell: Doorbell) -> bool {
        self.is_empty()
            || self
                .asked()
                .all(|rules| rules.doorbell(now, nic, page, bell))
    }

    /// True if a rule may change this doorbell.
    #[inline]
    pub fn may_change(&self, nic: usize, bell: &Doorbell) -> bool {
        let mut sets = self.sets.iter();
        sets.any(|set| set.rules.may_change(nic, bell))
    }

    /// As [`Rules::has_taken`].
    pub fn has_taken(&mut self, nic: usize, page: u32, bell: Doorbell) -> bool {
        let mut sets = self.sets.iter_mut();
        sets.any(|set| set.rules.has_taken(nic, page, bell))
    }

    /// A name is signalled. Returns false if no rule waits for it.
    pub fn signal(&mut self, now: Instant, name: &str) -> bool {
        let known = self.asked().map(|rules| rules.signal(now, name));
        known.fold(false, |any, known| any | known)
    }

    /// A NIC reports something. `device` is this NIC.
    #[inline]
    pub fn diagnostic(&mut self, now: Instant, nic: usize, diagnostic: &Diagnostic, device: &Nic) {
        for set in &mut self.sets {
            set.rules.diagnostic(now, nic, diagnostic, device);
        }
    }

    /// Diagnostics of a NIC were lost.
    pub fn lost_diagnostics(&mut self, nic: usize, lost: u64) {
        for set in &mut self.sets {
            set.rules.lost_diagnostics(nic, lost);
        }
    }

    /// Handles what is due.
    pub fn advance(&mut self, now: Instant) {
        let over = |set: &RuleSet| {
            let until = set.live.as_ref().and_then(|live| live.until);
            until.is_some_and(|until| until <= now) && !set.has_ended
        };
        let over: Vec<u16> = self
            .sets
            .iter()
            .filter(|set| over(set))
            .map(RuleSet::number)
            .collect();
        for number in over {
            self.stop(number);
        }
        for set in &mut self.sets {
            set.rules.advance(now);
        }
    }

    /// True if a time has come, or one of the polls returns something.
    #[inline]
    pub fn has_work(&self, now: Instant) -> bool {
        let has_work =
            |set: &RuleSet| set.has_ended && set.live.is_some() || set.rules.has_work(now);
        self.sets.iter().any(has_work) || self.next_end().is_some_and(|end| end <= now)
    }

    /// When [`RuleSets::advance`] and [`RuleSets::poll_frame`] are to be called.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.is_empty() {
            return None;
        }
        let sets = self.sets.iter();
        let of_rules = sets.filter_map(|set| set.rules.next_deadline());
        of_rules.chain(self.next_end()).min()
    }

    /// When the next live rule ends.
    fn next_end(&self) -> Option<Instant> {
        let running = self.sets.iter().filter(|set| !set.has_ended);
        let ends = running.filter_map(|set| set.live.as_ref()?.until);
        ends.min()
    }

    /// The next request: the number of the set (0: the scenario), the number of the NIC, and what to do to it.
    pub fn poll_request(&mut self) -> Option<(u16, usize, NicRequest)> {
        for index in 0..self.sets.len() {
            if let Some((number, nic, request)) = self.poll_request_of(index) {
                let of_another = self.kept_by_another(index, nic, &request);
                return Some((number, nic, of_another.unwrap_or(request)));
            }
        }
        None
    }

    fn poll_request_of(&mut self, index: usize) -> Option<(u16, usize, NicRequest)> {
        let set = self.sets.get_mut(index)?;
        let (nic, request) = set.rules.poll_request()?;
        Some((set.number(), nic, request))
    }

    /// If a request undoes what an action of another set has changed, too, and that action lasts: the last request of such an action.
    fn kept_by_another(
        &self,
        index: usize,
        nic: usize,
        request: &NicRequest,
    ) -> Option<NicRequest> {
        let lasting = self.sets.get(index)?.rules.undone_by(nic, request)?;
        let others = self.sets.iter().enumerate();
        let others = others.filter(|(other, _)| *other != index);
        let requested = others.filter_map(|(_, set)| set.rules.lasting_request(nic, lasting));
        let last = requested.max_by_key(|(at, _)| *at)?;
        Some(last.1.clone())
    }

    /// Takes a frame that is to be passed now.
    #[inline]
    pub fn poll_frame(&mut self, now: Instant) -> Option<HeldFrame> {
        let mut sets = self.sets.iter_mut();
        sets.find_map(|set| set.rules.poll_frame(now))
    }

    /// Takes a doorbell or an interrupt that is to happen now.
    #[inline]
    pub fn poll_late(&mut self) -> Option<Late> {
        self.sets.iter_mut().find_map(|set| set.rules.poll_late())
    }
}

/// What sets must know of each other.
impl Rules {
    fn name_of_first(&self) -> String {
        let first = self.rules.first();
        first.map_or_else(String::new, |running| running.rule.name.clone())
    }

    fn nearest_of_first(&self) -> Option<Miss> {
        self.rules.first()?.misses.nearest()
    }

    /// `None`: the NIC counts the matches of the first rule.
    fn matches_of_first(&self) -> Option<u64> {
        let first = self.rules.first()?;
        let is_inside = matches!(first.rule.thing, crate::plan::Thing::Point(..));
        (!is_inside).then(|| first.matched.iter().sum())
    }

    /// The last request of this kind of action, if one lasts, and its time.
    fn lasting_request(&self, nic: usize, lasting: Lasting) -> Option<&(Instant, NicRequest)> {
        let view = self.nics.get(nic)?;
        let requested = view.requested.get(lasting as usize)?.as_ref();
        requested.filter(|_| view.lasts(lasting))
    }

    /// The kind of action that a request undoes.
    fn undone_by(&self, nic: usize, request: &NicRequest) -> Option<Lasting> {
        let usual = self.nics.get(nic).map(|view| view.lookup);
        match request {
            NicRequest::Caller(CallerRequest::Link(true)) => Some(Lasting::PortDown),
            NicRequest::Caller(CallerRequest::Speed(None)) => Some(Lasting::Speed),
            NicRequest::Caller(CallerRequest::Mtu(None)) => Some(Lasting::Mtu),
            NicRequest::HoldFaults(false) => Some(Lasting::HoldFaults),
            NicRequest::FillFaults(false) => Some(Lasting::FillFaults),
            NicRequest::Lookup(takes) if usual == Some(*takes) => Some(Lasting::Lookup),
            _ => None,
        }
    }

    /// Rules that run already have changed the links: takes over the state before.
    fn take_over(&mut self, before: &Self) {
        for (view, other) in self.nics.iter_mut().zip(&before.nics) {
            if other.lasts(Lasting::PortDown) {
                view.was_up = other.was_up;
            }
        }
    }

    /// Agrees with the other sets, before this set ends, on the fault policies that its actions have changed. Without actions, a policy is
    /// what the earliest set that has changed it knows. If another set has changed it, too, that value is set again.
    fn hand_over_policies(&mut self, before: &mut [RuleSet], after: &mut [RuleSet]) {
        for (nic, view) in self.nics.iter_mut().enumerate() {
            for (qpn, policy) in &mut view.policies {
                let of_set = |set: &RuleSet| {
                    let view = set.rules.nics.get(nic)?;
                    view.policies.get(qpn).copied()
                };
                let earliest = before.iter().find_map(of_set);
                let original = earliest.unwrap_or(*policy).restored;
                let others = before.iter().chain(after.iter()).filter_map(of_set);
                let last = others.max_by_key(|other| other.at);
                for set in before.iter_mut().chain(after.iter_mut()) {
                    if let Some(view) = set.rules.nics.get_mut(nic) {
                        view.correct_policy(*qpn, original);
                    }
                }
                policy.restored = last.map_or(original, |last| last.changed);
            }
        }
    }
}
