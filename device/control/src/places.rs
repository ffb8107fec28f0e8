//! Places of a listener: a limit for its connections that clients without a token cannot use up.
//!
//! Any local user can connect to a TCP address. A connection is *unproven* until its first request with the token. If there is
//! no place for a new connection, the oldest unproven one is closed. So idle connections keep out no client; a client that has
//! the token needs only a moment to prove it. Only connections with the token can occupy all places, for as long as the time
//! limits of [`listen`](crate::listen) allow.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Whether a connection has had a request with the token. Requests carry it as an extension.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proof(Arc<State>);

#[derive(Debug, Default)]
struct State {
    given: AtomicBool,
    evicted: Notify,
}

impl Proof {
    /// The connection has had a request with the token.
    pub(crate) fn give(&self) {
        self.0.given.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_given(&self) -> bool {
        self.0.given.load(Ordering::Relaxed)
    }

    /// Waits until another connection needs the place.
    pub(crate) async fn evicted(&self) {
        self.0.evicted.notified().await;
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The places of a listener.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    free: Arc<Semaphore>,
    /// Connections without a proof when they began, the oldest first. No more than there are places.
    unproven: Arc<Mutex<VecDeque<Proof>>>,
}

/// A place, which is free again when this value is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Places,
    _permit: OwnedSemaphorePermit,
    pub(crate) proof: Proof,
}

impl Places {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(count)),
            unproven: Arc::default(),
        }
    }

    /// A place for a connection. If none is free, closes the oldest unproven connection, and waits if there is none either.
    /// `None` if the listener ends.
    pub(crate) async fn take(&self, proof: Proof) -> Option<Place> {
        if self.free.available_permits() == 0 {
            self.evict();
        }
        let permit = Arc::clone(&self.free).acquire_owned().await.ok()?;
        if !proof.is_given() {
            self.with_unproven(|unproven| unproven.push_back(proof.clone()));
        }
        Some(Place {
            places: self.clone(),
            _permit: permit,
            proof,
        })
    }

    fn evict(&self) {
        self.with_unproven(|unproven| {
            unproven.retain(|proof| !proof.is_given());
            if let Some(oldest) = unproven.pop_front() {
                // Remembered if the connection does not wait yet.
                oldest.0.evicted.notify_one();
            }
        });
    }

    fn with_unproven<T>(&self, work: impl FnOnce(&mut VecDeque<Proof>) -> T) -> T {
        work(&mut self.unproven.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let proof = &self.proof;
        self.places
            .with_unproven(|unproven| unproven.retain(|other| !other.is(proof)));
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// What a future gives at once.
    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(future).poll(&mut context) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    fn take(places: &Places) -> Option<Place> {
        now(places.take(Proof::default())).flatten()
    }

    #[test]
    fn the_oldest_unproven_connection_gives_way() {
        let places = Places::new(3);
        let all: Vec<Place> = (0..3).map(|_| take(&places).unwrap()).collect();
        all[0].proof.give();
        let mut wanted = pin!(places.take(Proof::default()));
        assert!(now(wanted.as_mut()).is_none());
        let evicted = |place: &Place| now(place.proof.evicted()).is_some();
        assert_eq!(
            [evicted(&all[0]), evicted(&all[1]), evicted(&all[2])],
            [false, true, false]
        );
        let mut all = all.into_iter();
        let (proven, _, last) = (all.next(), all.next(), all.next());
        assert!(now(wanted).flatten().is_some());
        drop((proven, last));
    }

    #[test]
    fn proven_connections_keep_their_places() {
        let places = Places::new(2);
        let all: Vec<Place> = (0..2).map(|_| take(&places).unwrap()).collect();
        all.iter().for_each(|place| place.proof.give());
        assert!(take(&places).is_none());
        assert!(all.iter().all(|place| now(place.proof.evicted()).is_none()));
        drop(all);
        assert!(take(&places).is_some());
        assert!(places.with_unproven(|unproven| unproven.is_empty()));
    }
}
