//! The stages of a page fault's latency (`docs/control.md`).

use faultline_nic::{DriverTimes, Instant};

/// A stage of the latency of a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Raised, until the record is in the fault queue: 0 unless the queue is full, held or delayed.
    Record,
    /// Until the driver has read the record.
    Interrupt,
    /// Until the driver begins to serve it.
    Wait,
    /// Until the pages are mapped.
    Map,
    /// Until the RESUME command is posted.
    Post,
    /// Resumed, until the access is executed.
    Data,
    /// Raised, until the access is executed: the sum of the others.
    Total,
}

impl Stage {
    /// All stages, in their order.
    pub const ALL: [Self; 7] = [
        Self::Record,
        Self::Interrupt,
        Self::Wait,
        Self::Map,
        Self::Post,
        Self::Data,
        Self::Total,
    ];
    /// Number of stages.
    pub const COUNT: usize = Self::ALL.len();

    /// The name in metrics, traces and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Interrupt => "interrupt",
            Self::Wait => "wait",
            Self::Map => "map",
            Self::Post => "post",
            Self::Data => "data",
            Self::Total => "total",
        }
    }
}

/// The stages from the miss until RESUME, in nanoseconds. Their sum is the time between these two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// [`Stage::Record`].
    pub record: u64,
    /// [`Stage::Interrupt`].
    pub interrupt: u64,
    /// [`Stage::Wait`], [`Stage::Map`] and [`Stage::Post`]; `None` if the driver reports no times.
    pub driver: Option<[u64; 3]>,
}

impl Service {
    /// Divides the time between `raised` and `resumed`. The durations come from the guest and are not verified: those
    /// that do not fit into this time are cut, the earliest first.
    pub fn new(raised: Instant, resumed: Instant, record_ns: u32, driver: DriverTimes) -> Self {
        let mut left = resumed.0.saturating_sub(raised.0);
        let record = u64::from(record_ns).min(left);
        left = left.saturating_sub(record);
        if driver == DriverTimes::default() {
            return Self {
                record,
                interrupt: left,
                driver: None,
            };
        }
        let mut cut = |reported: u32| {
            let part = u64::from(reported).min(left);
            left = left.saturating_sub(part);
            part
        };
        let post = cut(driver.post_ns);
        let map = cut(driver.map_ns);
        let wait = cut(driver.wait_ns);
        Self {
            record,
            interrupt: left,
            driver: Some([wait, map, post]),
        }
    }

    /// The stages that are known, in their order, with their durations.
    pub fn stages(self) -> impl Iterator<Item = (Stage, u64)> {
        let driver = self
            .driver
            .map(|[wait, map, post]| [(Stage::Wait, wait), (Stage::Map, map), (Stage::Post, post)]);
        let device = [
            (Stage::Record, self.record),
            (Stage::Interrupt, self.interrupt),
        ];
        device.into_iter().chain(driver.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(record_ns: u32, [wait_ns, map_ns, post_ns]: [u32; 3]) -> Vec<(Stage, u64)> {
        let driver = DriverTimes {
            wait_ns,
            map_ns,
            post_ns,
        };
        Service::new(Instant(1000), Instant(2000), record_ns, driver)
            .stages()
            .collect()
    }

    #[test]
    fn the_stages_add_up_to_the_time_until_resume() {
        use Stage::{Interrupt, Map, Post, Record, Wait};
        let stages = |record, interrupt, driver: &[(Stage, u64)]| {
            let device = [(Record, record), (Interrupt, interrupt)];
            [&device[..], driver].concat()
        };
        assert_eq!(
            service(0, [100, 200, 50]),
            stages(0, 650, &[(Wait, 100), (Map, 200), (Post, 50)])
        );
        assert_eq!(
            service(300, [100, 200, 50]),
            stages(300, 350, &[(Wait, 100), (Map, 200), (Post, 50)])
        );
        // A driver without times, and one whose times cannot be.
        assert_eq!(service(0, [0, 0, 0]), stages(0, 1000, &[]));
        assert_eq!(
            service(100, [900, 200, 50]),
            stages(100, 0, &[(Wait, 650), (Map, 200), (Post, 50)])
        );
        assert_eq!(
            service(u32::MAX, [1, u32::MAX, u32::MAX]),
            stages(1000, 0, &[(Wait, 0), (Map, 0), (Post, 0)])
        );
    }
}
