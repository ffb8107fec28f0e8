//! Congestion control: NewReno (RFC 5681) with the initial window of RFC 6928.

/// Congestion window and slow start threshold in octets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Congestion {
    window: u64,
    threshold: u64,
    /// Octets acknowledged in congestion avoidance since the window grew.
    acknowledged: u64,
}

impl Congestion {
    pub(crate) fn new(mss: u64) -> Self {
        Self {
            window: initial_window(mss),
            threshold: u64::MAX,
            acknowledged: 0,
        }
    }

    /// The congestion window.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// New data was acknowledged outside of loss recovery. `flight` octets were in flight before. A window that is not in use
    /// does not grow (RFC 7661 section 3).
    pub(crate) fn acknowledged(&mut self, octets: u64, flight: u64, mss: u64) {
        if flight.saturating_mul(2) < self.window {
            return;
        }
        if self.window < self.threshold {
            // Slow start (RFC 5681, equation 2).
            self.window = self.window.saturating_add(octets.min(mss));
        } else {
            // One segment for each window of acknowledged octets (RFC 5681 section 3.1).
            self.acknowledged = self.acknowledged.saturating_add(octets);
            if self.acknowledged >= self.window {
                self.acknowledged = self.acknowledged.saturating_sub(self.window);
                self.window = self.window.saturating_add(mss);
            }
        }
    }

    /// A segment was lost, or a congestion mark has arrived (RFC 5681, equation 4; RFC 3168 section 6.1.2).
    pub(crate) fn congested(&mut self, flight: u64, mss: u64) {
        self.threshold = (flight / 2).max(mss.saturating_mul(2));
        self.window = self.threshold;
        self.acknowledged = 0;
    }

    /// The retransmission timer has expired. The threshold keeps its value when it expires again for the same data.
    pub(crate) fn timed_out(&mut self, flight: u64, mss: u64, is_first: bool) {
        if is_first {
            self.congested(flight, mss);
        }
        self.window = mss;
        self.acknowledged = 0;
    }

    /// Nothing was sent for a retransmission timeout (RFC 5681 section 4.1).
    pub(crate) fn restarted(&mut self, mss: u64) {
        self.window = self.window.min(initial_window(mss));
    }
}

/// The initial window (RFC 6928 section 2).
fn initial_window(mss: u64) -> u64 {
    let upper = mss.saturating_mul(2).max(14_600);
    mss.saturating_mul(10).min(upper)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_grows_and_falls() {
        let mut congestion = Congestion::new(1000);
        assert_eq!(congestion.window(), 10_000);
        congestion.acknowledged(2000, 10_000, 1000);
        assert_eq!(congestion.window(), 11_000, "slow start");
        congestion.acknowledged(1000, 3000, 1000);
        assert_eq!(congestion.window(), 11_000, "not in use");
        congestion.congested(11_000, 1000);
        assert_eq!(congestion.window(), 5500);
        congestion.acknowledged(5000, 5500, 1000);
        assert_eq!(congestion.window(), 5500);
        congestion.acknowledged(500, 5500, 1000);
        assert_eq!(congestion.window(), 6500, "congestion avoidance");
        congestion.timed_out(6500, 1000, true);
        assert_eq!((congestion.window(), congestion.threshold), (1000, 3250));
        congestion.timed_out(1000, 1000, false);
        assert_eq!((congestion.window(), congestion.threshold), (1000, 3250));
    }
}
