//! Closures for the engine, asynchronously and few at a time.

use std::sync::Arc;
use std::time::Duration;

use faultline_ports::PortId;
use faultline_scenario::profile::Profile;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::error::ApiError;
use crate::config::Config;
use crate::engine::{Engine, EngineHandle};

/// Largest number of closures that wait for the engine, and so the largest number that one pass executes.
const IN_ENGINE: usize = 4;
/// How long a request waits for the engine.
const PATIENCE: Duration = Duration::from_secs(5);

/// What every handler of a request has.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    engine: EngineHandle,
    /// Names of the NICs, by port.
    pub(crate) names: Arc<[String]>,
    /// Names of the ports that lead out of the process, whose numbers follow those of the NICs.
    pub(crate) externals: Arc<[String]>,
    /// Names and contents of the profiles of the NICs, by port.
    pub(crate) profiles: Arc<[Option<(String, Profile)>]>,
    permits: Arc<Semaphore>,
}

impl Access {
    pub(crate) fn new(engine: EngineHandle, config: &Config) -> Self {
        let nics = config.nics.iter();
        let names: Vec<String> = nics.clone().map(|nic| nic.name.clone()).collect();
        let externals: Vec<String> = config.ports.iter().map(|port| port.name.clone()).collect();
        Self {
            externals: externals.into(),
            profiles: nics.map(|nic| config.profile(nic)).collect(),
            engine,
            names: names.into(),
            permits: Arc::new(Semaphore::new(IN_ENGINE)),
        }
    }

    /// The port of the NIC with this name.
    pub(crate) fn port(&self, name: &str) -> Result<PortId, ApiError> {
        let port = self.names.iter().position(|known| known == name);
        port.ok_or_else(|| ApiError::no_nic(name, &self.names))
    }

    /// Queues `work` to run in the engine, and does not wait for it.
    pub(crate) fn post(&self, work: impl FnOnce(&mut Engine) + Send + 'static) {
        // An engine that has ended needs none.
        let _ = self.engine.post(work);
    }

    /// Runs `work` in the engine, between two steps.
    pub(crate) async fn call<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> R + Send + 'static,
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
        self.engine
            .post(request)
            .map_err(|_| ApiError::engine_ended())?;
        match timeout(PATIENCE, rx).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) => Err(ApiError::engine_ended()),
            Err(_) => Err(ApiError::engine_busy()),
        }
    }
}
