//! Samples of a running process, made once for all browsers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use faultline_control::diagnostics::DiagnosticView;
use faultline_telemetry::{QueuePairOwner, TraceHeader};
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::super::client::{Remote, segment};
use super::super::top::rates::rows;
use super::super::top::sample::{Reader, Snapshot, printable};
use super::tail::Tail;
use super::view::{Event, EventLog, FaultTimes, Live};

/// Time without a browser after which the next one gets no older sample. A page that asks again for its stream takes less.
const PAUSE: Duration = Duration::from_secs(2);

/// The samples, for the server.
#[derive(Debug)]
pub(super) struct Samples {
    newest: watch::Receiver<String>,
    wanted: Arc<Notify>,
}

impl Samples {
    /// A receiver for a browser: samples as JSON in one line, empty while there is none. All browsers have the same, and a browser that is late
    /// misses samples: none waits for it.
    pub(super) fn receive(&self) -> watch::Receiver<String> {
        let newest = self.newest.clone();
        self.wanted.notify_one();
        newest
    }
}

/// Makes samples while a browser waits for them.
#[derive(Debug)]
pub(super) struct Feed {
    sampler: Sampler,
    interval: Duration,
    newest: watch::Sender<String>,
    wanted: Arc<Notify>,
}

impl Feed {
    /// Makes the first sample.
    pub(super) async fn start(remote: Remote, interval: Duration) -> anyhow::Result<Self> {
        let mut sampler = Sampler {
            reader: Reader::new(remote.clone(), None),
            remote,
            interval,
            before: None,
            tail: Tail::default(),
            events: EventLog::default(),
        };
        let first = sampler.sample().await?;
        let (newest, _) = watch::channel(serde_json::to_string(&first)?);
        Ok(Self {
            sampler,
            interval,
            newest,
            wanted: Arc::default(),
        })
    }

    /// The samples, for the server.
    pub(super) fn samples(&self) -> Samples {
        Samples {
            newest: self.newest.subscribe(),
            wanted: self.wanted.clone(),
        }
    }

    /// Makes a sample for each interval in which a browser is connected, beside the server's own receiver.
    pub(super) async fn run(mut self) {
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Instant::now();
        let mut pauses = false;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.wanted.notified(), if pauses => {}
            }
            if self.newest.receiver_count() <= 1 {
                if !pauses && last.elapsed() >= PAUSE {
                    pauses = true;
                    self.newest.send_replace(String::new());
                }
                continue;
            }
            if pauses {
                pauses = false;
                ticks.reset();
                self.sampler.start_anew();
            }
            let text = match self.sampler.sample().await {
                Ok(sample) => serde_json::to_string(&sample).map_err(Into::into),
                Err(error) => Err(error),
            };
            let text = text.unwrap_or_else(|error| {
                json!({"error": printable(&format!("{error:#}"))}).to_string()
            });
            self.newest.send_replace(text);
            last = Instant::now();
        }
    }
}

#[derive(Debug)]
struct Sampler {
    remote: Remote,
    reader: Reader,
    interval: Duration,
    before: Option<Snapshot>,
    tail: Tail,
    events: EventLog,
}

impl Sampler {
    /// Forgets earlier samples: the next one is as the first.
    fn start_anew(&mut self) {
        self.before = None;
        self.tail = Tail::default();
        self.events.clear();
    }

    async fn sample(&mut self) -> anyhow::Result<Live> {
        let snapshot = self.reader.read().await?;
        let rows = rows(self.before.as_ref(), &snapshot);
        let uptime = |snapshot: &Snapshot| snapshot.engine.item.uptime_ns;
        let is_other = |before: &Snapshot| uptime(before) > uptime(&snapshot);
        if self.before.as_ref().is_some_and(is_other) {
            self.start_anew();
        }
        let new = self.tail.read(&self.remote).await?;
        let header = self.header(&snapshot);
        for record in &new {
            Event::of_record(&header, record)
                .into_iter()
                .for_each(|event| self.events.add(event));
        }
        for nic in &snapshot.nics {
            let name = &nic.nic.item.name;
            // A flood of frames hides nothing here.
            let path = format!("/v1/nics/{}/diagnostics", segment(name));
            let recent: Option<Vec<DiagnosticView>> = self.remote.find(&path).await?;
            let events = recent
                .unwrap_or_default()
                .into_iter()
                .map(|view| Event::of_diagnostic(name, view));
            events.for_each(|event| self.events.add(event));
        }
        let kept = self.tail.diagnostics.iter().copied().collect();
        let live = Live {
            source: printable(&self.remote.socket().to_string_lossy()),
            interval_s: self.interval.as_secs_f64(),
            engine: snapshot.engine.item.clone(),
            nics: snapshot
                .nics
                .iter()
                .map(|nic| (&nic.nic.item).into())
                .collect(),
            ports: self.remote.get("/v1/ports").await?,
            links: self.remote.get("/v1/links").await?,
            scenario: self.remote.find("/v1/scenario").await?,
            rules: self.remote.find("/v1/rules").await?.unwrap_or_default(),
            faults: FaultTimes::of_records(header, kept),
            events: self.events.newest(),
            skipped: self.tail.skipped,
            rows,
        };
        self.before = Some(snapshot);
        Ok(live)
    }

    /// The names for the records of the trace.
    fn header(&self, snapshot: &Snapshot) -> TraceHeader {
        let mut header = TraceHeader::new(self.tail.nics.clone());
        let at = faultline_nic::Instant(snapshot.engine.item.device_time_ns);
        for sample in &snapshot.nics {
            let nic = self
                .tail
                .nics
                .iter()
                .position(|name| *name == sample.nic.item.name);
            let Some(nic) = nic.and_then(|nic| u16::try_from(nic).ok()) else {
                continue;
            };
            let contexts = sample.contexts.items.iter();
            let contexts: HashMap<_, _> = contexts
                .map(|context| (context.item.context, &context.item))
                .collect();
            let owners = sample.pairs.items.iter().filter_map(|pair| {
                let context = contexts.get(&pair.item.context)?;
                Some(QueuePairOwner {
                    nic,
                    qpn: pair.item.qpn,
                    process: context.program.clone()?,
                    pid: context.pid?,
                    at,
                })
            });
            header.queue_pairs.extend(owners);
        }
        header
    }
}
