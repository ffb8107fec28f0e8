//! Closures for the engines, asynchronously and few at a time.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use faultline_fabric::PortId;
use faultline_scenario::profile::Profile;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::error::ApiError;
use faultline_config::Config;
use faultline_daemon::engines::Engines;
use faultline_daemon::engines::engine::Engine;
use faultline_daemon::engines::handle::Ended;
use faultline_daemon::server::nic_sockets::NicSockets;

/// Largest number of closures that wait for the engines, and so the largest number that one pass executes.
const IN_ENGINE: usize = 4;
/// How long a request waits for the engine.
const PATIENCE: Duration = Duration::from_secs(5);

type Request = Box<dyn FnOnce(&mut Engine) + Send>;

/// What every handler of a request has.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    engines: Engines,
    /// Sockets of the NICs.
    pub(crate) sockets: NicSockets,
    /// Names of the engines.
    pub(crate) engine_names: Arc<[String]>,
    /// Names of the NICs, by port.
    pub(crate) names: Arc<[String]>,
    /// Names of the ports that lead out of the process, whose numbers follow those of the NICs.
    pub(crate) externals: Arc<[String]>,
    /// Names and contents of the profiles of the NICs, by port.
    pub(crate) profiles: Arc<[Option<(String, Profile)>]>,
    /// When the process has started to serve.
    pub(crate) start: SystemTime,
    permits: Arc<Semaphore>,
}

impl Access {
    pub(crate) fn new(engines: Engines, sockets: NicSockets, config: &Config) -> Self {
        let nics = config.nics.iter();
        let names: Vec<String> = nics.clone().map(|nic| nic.name.clone()).collect();
        let externals: Vec<String> = config.ports.iter().map(|port| port.name.clone()).collect();
        Self {
            externals: externals.into(),
            profiles: nics.map(|nic| config.profile(nic)).collect(),
            engines,
            sockets,
            engine_names: config.engine_layout().names.into(),
            names: names.into(),
            start: SystemTime::now(),
            permits: Arc::new(Semaphore::new(IN_ENGINE)),
        }
    }

    /// The port of the NIC with this name.
    pub(crate) fn port(&self, name: &str) -> Result<PortId, ApiError> {
        let port = self.names.iter().position(|known| known == name);
        port.ok_or_else(|| ApiError::no_nic(name, &self.names))
    }

    /// Queues `work` to run in all engines, and does not wait for it.
    pub(crate) fn post_all(&self, work: impl Fn(&mut Engine) + Clone + Send + 'static) {
        self.engines.post_all(work);
    }

    /// Runs `work` in the engine of a NIC, between two steps.
    pub(crate) async fn call<R: Send + 'static>(
        &self,
        nic: PortId,
        work: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> Result<R, ApiError> {
        self.queue(work, |request| self.engines.post(nic, request))
            .await
    }

    /// Runs `work` in the first engine, which has the external ports, and all NICs while a scenario runs or the process is paused.
    pub(crate) async fn call_first<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> Result<R, ApiError> {
        self.call_engine(0, work).await
    }

    /// Runs `work` in an engine, between two steps.
    pub(crate) async fn call_engine<R: Send + 'static>(
        &self,
        engine: usize,
        work: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> Result<R, ApiError> {
        let handle = self.engines.all().get(engine);
        let handle = handle.ok_or_else(ApiError::engine_ended)?;
        self.queue(work, |request| handle.post(request)).await
    }

    /// Runs `work` in all engines, one after the other, between two steps of each. Returns the results in the order of the engines.
    pub(crate) async fn call_all<R: Send + 'static>(
        &self,
        work: impl Fn(&mut Engine) -> R + Clone + Send + 'static,
    ) -> Result<Vec<R>, ApiError> {
        let mut results = Vec::new();
        for engine in 0..self.engine_names.len() {
            results.push(self.call_engine(engine, work.clone()).await?);
        }
        Ok(results)
    }

    /// Runs `work` in the first engine while it has the NICs of all engines. They stay there while a scenario runs or the process is
    /// paused.
    pub(crate) async fn call_gathered<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> Result<R, ApiError> {
        let permit = timeout(PATIENCE, Arc::clone(&self.permits).acquire_owned()).await;
        let permit = permit
            .map_err(|_| ApiError::engine_busy())?
            .map_err(|_| ApiError::engine_ended())?;
        let engines = self.engines.clone();
        // It waits for several engines, one after the other.
        let called = tokio::task::spawn_blocking(move || {
            let result = engines.call_gathered(|engine: &mut Engine| {
                engine.control_requests = engine.control_requests.wrapping_add(1);
                work(engine)
            });
            drop(permit);
            result
        });
        match timeout(PATIENCE, called).await {
            Ok(Ok(Ok(result))) => Ok(result),
            Ok(_) => Err(ApiError::engine_ended()),
            Err(_) => Err(ApiError::engine_busy()),
        }
    }

    /// Queues `work` to run as that of [`Access::call_gathered`], and does not wait for it.
    pub(crate) fn post_gathered(&self, work: impl FnOnce(&mut Engine) + Send + 'static) {
        let engines = self.engines.clone();
        // An engine that has ended needs none.
        tokio::task::spawn_blocking(move || engines.call_gathered(work));
    }

    /// Queues `work` in an engine by `post`, and waits for its result.
    async fn queue<R: Send + 'static, W: FnOnce(&mut Engine) -> R + Send + 'static>(
        &self,
        work: W,
        post: impl FnOnce(Request) -> Result<(), Ended>,
    ) -> Result<R, ApiError> {
        let permit = timeout(PATIENCE, Arc::clone(&self.permits).acquire_owned()).await;
        let permit = permit
            .map_err(|_| ApiError::engine_busy())?
            .map_err(|_| ApiError::engine_ended())?;
        let (tx, rx) = oneshot::channel();
        let request = move |engine: &mut Engine| {
            engine.control_requests = engine.control_requests.wrapping_add(1);
            // If the request was given up, the result is dropped.
            let _ = tx.send(work(engine));
            // Also if the request was given up, the permit is held until here.
            drop(permit);
        };
        post(Box::new(request)).map_err(|_| ApiError::engine_ended())?;
        match timeout(PATIENCE, rx).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) => Err(ApiError::engine_ended()),
            Err(_) => Err(ApiError::engine_busy()),
        }
    }
}
