//! Congestion control of connections: DCQCN (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015) with
//! the congestion notification packets of RoCEv2 (IBTA volume 1, annex A17.9).
//!
//! A switch marks packets of a long queue. The receiver of a marked packet, the *notification point*, sends a CNP to the queue pair that
//! has sent it. That queue pair, the *reaction point*, sends more slowly, and raises its rate again in three phases: *fast recovery*
//! halves the distance to the rate before the cut in each round; *additive increase* raises this target rate by a constant, *hyper
//! increase* by a constant times the number of rounds. A round ends with a timer, or after a number of sent bytes.
//!
//! A queue pair has this state from its first marked packet or CNP on, until its rate is that of the link again.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "rates and alpha are limited to those of the link and to 1; sums of them saturate"
)]

use crate::time::{Instant, Nanos};

/// Parameters of DCQCN. The default values are for links of 40 Gb/s: intervals, bytes and rounds, the weight and the additive increase
/// are those of the paper; the least rate, the hyper increase and the DSCP are a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dcqcn {
    /// Rate of a queue pair without congestion, in Mb/s: that of the link.
    pub line_rate_mbps: u32,
    /// A queue pair does not fall below this rate, in Mb/s.
    pub min_rate_mbps: u32,
    /// Shortest time between two CNPs of a queue pair.
    pub cnp_interval: Nanos,
    /// DSCP of CNPs, 0 to 63.
    pub cnp_dscp: u8,
    /// Binary logarithm of 1/g, the weight of one notification in the estimate of congestion.
    pub g_shift: u8,
    /// Time after which the estimate decreases if no CNP arrives.
    pub alpha_interval: Nanos,
    /// Time of a round.
    pub increase_interval: Nanos,
    /// Bytes of a round.
    pub increase_bytes: u32,
    /// Rounds of fast recovery.
    pub fast_recovery_rounds: u32,
    /// Additive increase, in Mb/s.
    pub additive_mbps: u32,
    /// Hyper increase, in Mb/s.
    pub hyper_mbps: u32,
}

impl Default for Dcqcn {
    fn default() -> Self {
        Self {
            line_rate_mbps: 40_000,
            min_rate_mbps: 10,
            cnp_interval: Nanos::from_micros(50),
            cnp_dscp: 48,
            g_shift: 8,
            alpha_interval: Nanos::from_micros(55),
            increase_interval: Nanos::from_micros(55),
            increase_bytes: 10_000_000,
            fast_recovery_rounds: 5,
            additive_mbps: 40,
            hyper_mbps: 200,
        }
    }
}

/// The value 1 of [`RateControl::alpha`].
const ONE: u64 = 1 << 16;
/// Largest number of expired timers that one call handles; the others are skipped, because the rate has reached that of
/// the link by then.
const MAX_ROUNDS: u32 = 256;

/// Bytes per second.
fn bytes_per_second(mbps: u32) -> u64 {
    u64::from(mbps) * 125_000
}

/// Congestion state of a queue pair's path.
#[derive(Debug, Default)]
pub(crate) struct Congestion {
    /// The next CNP is not sent before this.
    next_cnp: Instant,
    /// A CNP is to be sent.
    owes_cnp: bool,
    /// The queue pair sends at a limited rate.
    limit: Option<RateControl>,
    /// The queue pair has frames to send, and waits for its rate.
    waits: bool,
}

impl Congestion {
    /// A marked packet has arrived. Returns true if a CNP must be sent.
    pub(crate) fn marked(&mut self, now: Instant, config: &Dcqcn) -> bool {
        if now < self.next_cnp {
            return false;
        }
        self.next_cnp = now + config.cnp_interval;
        self.owes_cnp = true;
        true
    }

    /// Returns true if a CNP must be sent.
    pub(crate) fn owes_cnp(&self) -> bool {
        self.owes_cnp
    }

    /// The same; the caller sends it.
    pub(crate) fn take_cnp(&mut self) -> bool {
        std::mem::take(&mut self.owes_cnp)
    }

    /// A CNP has arrived.
    pub(crate) fn notified(&mut self, now: Instant, config: &Dcqcn) {
        let limit = self
            .limit
            .get_or_insert_with(|| RateControl::new(now, config));
        limit.advance(now, config);
        limit.cut(now, config);
    }

    /// Whether payload may be sent now. If not, [`deadline`](Self::deadline) is the time at which it may.
    pub(crate) fn may_send(&mut self, now: Instant, config: &Dcqcn) -> bool {
        if let Some(limit) = &mut self.limit {
            limit.advance(now, config);
            if limit.is_over(config) {
                self.limit = None;
            }
        }
        self.waits = self
            .limit
            .as_ref()
            .is_some_and(|limit| now < limit.next_send);
        !self.waits
    }

    /// Whether the rate is limited.
    pub(crate) fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// A packet with payload has been sent.
    pub(crate) fn sent(&mut self, now: Instant, bytes: usize, config: &Dcqcn) {
        if let Some(limit) = &mut self.limit {
            limit.sent(now, bytes, config);
        }
    }

    /// Ends the wait if it is over. Returns true if it was.
    pub(crate) fn end_wait(&mut self, now: Instant) -> bool {
        let is_over = self.deadline().is_some_and(|at| at <= now);
        self.waits &= !is_over;
        is_over
    }

    /// When sending continues, if it waits.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let limit = self.limit.as_ref().filter(|_| self.waits)?;
        Some(limit.next_send)
    }
}

/// The reaction point. Rates are in bytes per second.
#[derive(Debug)]
struct RateControl {
    /// The rate now.
    current: u64,
    /// The rate that is approached.
    target: u64,
    /// Estimate of congestion, 0 to [`ONE`].
    alpha: u64,
    next_alpha: Instant,
    next_increase: Instant,
    /// Rounds since the last CNP that have ended with the timer.
    timer_rounds: u32,
    /// Rounds since the last CNP that have ended with the number of bytes.
    byte_rounds: u32,
    /// Bytes sent in this round.
    bytes: u64,
    /// The next packet is not sent before this.
    next_send: Instant,
}

impl RateControl {
    fn new(now: Instant, config: &Dcqcn) -> Self {
        let line = bytes_per_second(config.line_rate_mbps);
        Self {
            current: line,
            target: line,
            alpha: ONE,
            next_alpha: now + config.alpha_interval,
            next_increase: now + config.increase_interval,
            timer_rounds: 0,
            byte_rounds: 0,
            bytes: 0,
            next_send: now,
        }
    }

    /// Reduces the rate (equation 1).
    fn cut(&mut self, now: Instant, config: &Dcqcn) {
        self.target = self.current;
        let cut = u128::from(self.current) * u128::from(self.alpha) / u128::from(2 * ONE);
        let cut = u64::try_from(cut).unwrap_or(self.current);
        let least = bytes_per_second(config.min_rate_mbps);
        self.current = self.current.saturating_sub(cut).max(least);
        self.alpha =
            (self.alpha - (self.alpha >> config.g_shift) + (ONE >> config.g_shift)).min(ONE);
        self.next_alpha = now + config.alpha_interval;
        self.next_increase = now + config.increase_interval;
        (self.timer_rounds, self.byte_rounds, self.bytes) = (0, 0, 0);
    }

    /// Handles the timers that are due (equation 2; figure 7).
    fn advance(&mut self, now: Instant, config: &Dcqcn) {
        let mut rounds = 0;
        while now >= self.next_alpha && rounds < MAX_ROUNDS {
            self.alpha -= self.alpha >> config.g_shift;
            self.next_alpha = self.next_alpha + config.alpha_interval;
            rounds += 1;
        }
        let mut rounds = 0;
        while now >= self.next_increase && rounds < MAX_ROUNDS && !self.is_over(config) {
            self.timer_rounds = self.timer_rounds.saturating_add(1);
            self.increase(config);
            self.next_increase = self.next_increase + config.increase_interval;
            rounds += 1;
        }
        self.next_alpha = self.next_alpha.max(now);
        self.next_increase = self.next_increase.max(now);
    }

    /// Raises the rate at the end of a round (equations 3 and 4).
    fn increase(&mut self, config: &Dcqcn) {
        let rounds = (self.timer_rounds, self.byte_rounds);
        let (most, least) = (rounds.0.max(rounds.1), rounds.0.min(rounds.1));
        let recovery = config.fast_recovery_rounds;
        let step = if most <= recovery {
            0
        } else if least <= recovery {
            bytes_per_second(config.additive_mbps)
        } else {
            bytes_per_second(config.hyper_mbps).saturating_mul(u64::from(least - recovery))
        };
        let line = bytes_per_second(config.line_rate_mbps);
        self.target = self.target.saturating_add(step).min(line);
        self.current = self.target.midpoint(self.current);
    }

    fn sent(&mut self, now: Instant, bytes: usize, config: &Dcqcn) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let time = bytes.saturating_mul(1_000_000_000) / self.current.max(1);
        self.next_send = self.next_send.max(now) + Nanos(time);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= u64::from(config.increase_bytes) {
            self.bytes = 0;
            self.byte_rounds = self.byte_rounds.saturating_add(1);
            self.increase(config);
        }
    }

    /// True if the rate is less than one step of the increase below that of the link.
    fn is_over(&self, config: &Dcqcn) -> bool {
        let line = bytes_per_second(config.line_rate_mbps);
        let step = bytes_per_second(config.additive_mbps.max(1));
        line.saturating_sub(self.current) < step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: Dcqcn = Dcqcn {
        line_rate_mbps: 8000,
        min_rate_mbps: 8,
        cnp_interval: Nanos(50_000),
        cnp_dscp: 48,
        g_shift: 8,
        alpha_interval: Nanos(55_000),
        increase_interval: Nanos(55_000),
        increase_bytes: 10_000_000,
        fast_recovery_rounds: 5,
        additive_mbps: 40,
        hyper_mbps: 200,
    };

    /// Sends packets of 1000 bytes as fast as is allowed; returns their number from `start` to `end`.
    fn send(congestion: &mut Congestion, start: u64, end: u64) -> u64 {
        let (mut now, mut sent) = (start, 0);
        while now < end {
            match congestion.may_send(Instant(now), &CONFIG) {
                true => {
                    congestion.sent(Instant(now), 1000, &CONFIG);
                    sent += 1;
                    // The link itself: 1 GB/s.
                    now += 1000;
                }
                false => now = congestion.deadline().unwrap().0,
            }
        }
        sent
    }

    #[test]
    fn one_cnp_in_each_interval() {
        let mut congestion = Congestion::default();
        let at = |us: u64| Instant(us * 1000);
        assert!(!congestion.take_cnp());
        let marked: Vec<u64> = (0..200)
            .filter(|us| congestion.marked(at(*us), &CONFIG))
            .collect();
        assert_eq!(marked, [0, 50, 100, 150]);
        assert!(congestion.take_cnp());
        assert!(!congestion.take_cnp());
    }

    #[test]
    fn the_first_cnp_halves_the_rate_and_five_rounds_recover_it() {
        let mut congestion = Congestion::default();
        assert!(congestion.may_send(Instant(0), &CONFIG));
        assert!(!congestion.is_limited());
        congestion.notified(Instant(0), &CONFIG);
        // alpha is 1: half of 1 GB/s, 55 packets of 1000 bytes in 110 us.
        let first = send(&mut congestion, 0, 55_000);
        assert!((27..=29).contains(&first), "{first}");
        // Each round halves the rest.
        let second = send(&mut congestion, 55_000, 110_000);
        assert!((40..=42).contains(&second), "{second}");
        let fifth = send(&mut congestion, 110_000, 440_000);
        assert!((300..330).contains(&fifth), "{fifth}");
        // Additive increase has no room, and the limit ends.
        send(&mut congestion, 440_000, 600_000);
        assert!(!congestion.is_limited());
    }

    #[test]
    fn cnps_without_end_lead_to_the_smallest_rate_and_no_further() {
        let mut congestion = Congestion::default();
        for n in 0..1000 {
            congestion.notified(Instant(n * 50_000), &CONFIG);
        }
        // 8 Mb/s: a packet of 1000 bytes in a millisecond.
        let start = 1000 * 50_000;
        assert!(congestion.may_send(Instant(start), &CONFIG));
        congestion.sent(Instant(start), 1000, &CONFIG);
        assert!(!congestion.may_send(Instant(start + 1), &CONFIG));
        assert_eq!(congestion.deadline(), Some(Instant(start + 1_000_000)));
    }

    #[test]
    fn additive_and_hyper_increase_follow() {
        let mut control = RateControl::new(Instant(0), &CONFIG);
        for n in 0..20 {
            control.cut(Instant(n), &CONFIG);
        }
        let low = control.target;
        (control.timer_rounds, control.byte_rounds) = (5, 0);
        control.increase(&CONFIG);
        assert_eq!(control.target, low);
        control.timer_rounds = 6;
        control.increase(&CONFIG);
        assert_eq!(control.target, low + 5_000_000);
        (control.timer_rounds, control.byte_rounds) = (9, 8);
        control.increase(&CONFIG);
        assert_eq!(control.target, low + 5_000_000 + 3 * 25_000_000);
        // Never above the link.
        for _ in 0..1000 {
            control.increase(&CONFIG);
        }
        assert_eq!(control.target, 1_000_000_000);
        assert!(control.is_over(&CONFIG));
    }

    #[test]
    fn a_long_pause_costs_few_steps_and_ends_the_limit() {
        let mut congestion = Congestion::default();
        congestion.notified(Instant(0), &CONFIG);
        assert!(congestion.may_send(Instant(u64::MAX / 2), &CONFIG));
        assert!(!congestion.is_limited());
        // Extreme parameters: timers that are always due, rates that never increase.
        let odd = Dcqcn {
            alpha_interval: Nanos(0),
            increase_interval: Nanos(0),
            additive_mbps: 0,
            hyper_mbps: 0,
            ..CONFIG
        };
        let mut congestion = Congestion::default();
        (0..10).for_each(|n| congestion.notified(Instant(n), &odd));
        congestion.may_send(Instant(1_000_000), &odd);
        congestion.sent(Instant(1_000_000), usize::MAX, &odd);
    }
}
