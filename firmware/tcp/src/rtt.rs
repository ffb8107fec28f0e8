//! Round-trip time and retransmission timeout (RFC 6298).

use crate::config::Config;
use crate::time::Nanos;

/// Granularity of the clock (G of RFC 6298 section 2).
const GRANULARITY: u64 = 1_000_000;

/// Estimator of the retransmission timeout.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    /// SRTT and RTTVAR in nanoseconds; `None` before the first measurement.
    estimate: Option<(u64, u64)>,
    /// How often the timeout is doubled.
    backoff: u8,
    /// A SYN was retransmitted before the first measurement (RFC 6298 section 5.7).
    syn_lost: bool,
}

impl Rtt {
    /// Adds a measurement, and ends the back-off (RFC 6298 section 5, Karn's algorithm).
    pub(crate) fn measure(&mut self, Nanos(rtt): Nanos) {
        // Weights of 1/8 and 1/4.
        let (smoothed, variance) = match self.estimate {
            None => (rtt, rtt / 2),
            Some((smoothed, variance)) => (
                (smoothed / 8).saturating_mul(7).saturating_add(rtt / 8),
                (variance / 4)
                    .saturating_mul(3)
                    .saturating_add(smoothed.abs_diff(rtt) / 4),
            ),
        };
        self.estimate = Some((smoothed, variance));
        self.backoff = 0;
    }

    /// Doubles the timeout.
    pub(crate) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// True after a timeout without a later measurement.
    pub(crate) fn is_backed_off(&self) -> bool {
        self.backoff > 0
    }

    /// The handshake is over. If a SYN was lost, the timeout is 3 s until a measurement.
    pub(crate) fn open(&mut self) {
        self.syn_lost = self.backoff > 0 && self.estimate.is_none();
        self.backoff = 0;
    }

    /// The retransmission timeout.
    pub(crate) fn timeout(&self, config: &Config) -> Nanos {
        let timeout = match self.estimate {
            None if self.syn_lost => config.initial_rto.max(Nanos::from_millis(3000)),
            None => config.initial_rto,
            Some((smoothed, variance)) => {
                let margin = variance.saturating_mul(4).max(GRANULARITY);
                Nanos(smoothed.saturating_add(margin)).max(config.min_rto)
            }
        };
        timeout.doubled(self.backoff.into()).min(config.max_rto)
    }

    /// The smoothed round-trip time.
    pub(crate) fn smoothed(&self) -> Option<Nanos> {
        self.estimate.map(|(smoothed, _)| Nanos(smoothed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_follows_rfc_6298() {
        let ms = Nanos::from_millis;
        let config = Config {
            min_rto: ms(1),
            ..Config::default()
        };
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(&config), ms(1000));
        rtt.measure(ms(80));
        // SRTT = R, RTTVAR = R/2, RTO = SRTT + 4 RTTVAR.
        assert_eq!(rtt.timeout(&config), ms(240));
        rtt.measure(ms(160));
        // RTTVAR = 3/4 40 + 1/4 80, SRTT = 7/8 80 + 1/8 160.
        assert_eq!(rtt.timeout(&config), ms(90 + 4 * 50));
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.timeout(&config), ms(4 * 290));
        for _ in 0..300 {
            rtt.back_off();
        }
        assert_eq!(rtt.timeout(&config), ms(60_000));
        rtt.measure(ms(90));
        assert!(rtt.timeout(&config) < ms(290));
    }

    #[test]
    fn a_lost_syn_lengthens_the_first_timeout() {
        let mut rtt = Rtt::default();
        rtt.back_off();
        rtt.open();
        assert_eq!(rtt.timeout(&Config::default()), Nanos::from_millis(3000));
        rtt.measure(Nanos::from_millis(1));
        assert_eq!(rtt.timeout(&Config::default()), Nanos::from_millis(200));
    }
}
