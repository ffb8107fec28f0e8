//! Metrics of the process itself, with the names that the Prometheus client libraries use, and its version.

use std::fmt::Error;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// Metrics of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessSnapshot {
    /// Version of the program.
    pub version: &'static str,
    /// Its start, since 1970.
    pub start: Duration,
    /// Processor time, user and system.
    pub cpu: Duration,
    /// Bytes of resident memory.
    pub resident: u64,
    /// Bytes of address space.
    pub address_space: u64,
    /// Open descriptors.
    pub open_fds: u64,
    /// Descriptors that it may have; `None`: not limited.
    pub max_fds: Option<u64>,
    /// Threads.
    pub threads: u64,
}

impl Collector for ProcessSnapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "1; the label is the version of the program";
        encoder
            .encode_descriptor("faultline_build_info", help, None, MetricType::Gauge)?
            .encode_family(&[("version", self.version)])?
            .encode_gauge(&1_u64)?;
        let help = "User and system processor time";
        encoder
            .encode_descriptor(
                "process_cpu",
                help,
                Some(&Unit::Seconds),
                MetricType::Counter,
            )?
            .encode_counter::<NoLabelSet, _, f64>(&self.cpu.as_secs_f64(), None)?;
        let help = "Start of the process since 1970";
        encoder
            .encode_descriptor(
                "process_start_time",
                help,
                Some(&Unit::Seconds),
                MetricType::Gauge,
            )?
            .encode_gauge(&self.start.as_secs_f64())?;
        let gauges = [
            (
                "process_resident_memory",
                "Resident memory",
                Some(&Unit::Bytes),
                Some(self.resident),
            ),
            (
                "process_virtual_memory",
                "Address space",
                Some(&Unit::Bytes),
                Some(self.address_space),
            ),
            (
                "process_open_fds",
                "Open descriptors",
                None,
                Some(self.open_fds),
            ),
            (
                "process_max_fds",
                "Descriptors that the process may have",
                None,
                self.max_fds,
            ),
            (
                "process_threads",
                "Threads of the process",
                None,
                Some(self.threads),
            ),
        ];
        for (name, help, unit, value) in gauges {
            if let Some(value) = value {
                encoder
                    .encode_descriptor(name, help, unit, MetricType::Gauge)?
                    .encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}
