//! The wire between fabrics: a modelled link of the product from each host to the others.

use faultline_fabric::link_model::{LinkModel, ModelledLink};
use faultline_nic::Origin;
use faultline_simulation::Rng;
use faultline_wire::ip::mark_congestion;

/// Time from one end to the other.
const LATENCY_NS: u64 = 1_000;

/// The way of a frame: the port of its sender, the port with its destination address (`None`: all), and its origin.
pub(crate) type Way = (usize, Option<usize>, Origin);

/// All frames on their way.
#[derive(Debug)]
pub(crate) struct Wire {
    seed: u64,
    /// By sender: its link.
    links: Vec<ModelledLink<Way>>,
    /// Links of earlier models that have frames.
    earlier: Vec<ModelledLink<Way>>,
    /// Frames in 1000 that get the mark of congestion, if their senders react to it (RFC 3168).
    pub(crate) marking: u32,
    rng: Rng,
    /// Time that each frame takes up its sender's line.
    pub(crate) gap: u64,
    /// By sender: when its line is free again.
    free_at: Vec<u64>,
}

impl Wire {
    pub(crate) fn new(hosts: usize, seed: u64) -> Self {
        let mut wire = Self {
            seed,
            links: Vec::new(),
            earlier: Vec::new(),
            marking: 0,
            rng: Rng::new(seed),
            gap: 0,
            free_at: vec![0; hosts],
        };
        wire.set_model(LinkModel::PLAIN);
        wire
    }

    /// Sets the model of all links for frames from now on. Its delay is in addition to that of the wire.
    pub(crate) fn set_model(&mut self, model: LinkModel) {
        let link = |_: &u64| {
            self.seed = self.seed.wrapping_add(1);
            ModelledLink::new(LinkModel {
                delay_ns: model.delay_ns + LATENCY_NS,
                seed: self.seed,
                ..model
            })
        };
        let links = self.free_at.iter().map(link).collect();
        self.earlier
            .extend(std::mem::replace(&mut self.links, links));
        self.earlier.retain(|link| link.octets() > 0);
    }

    pub(crate) fn send(&mut self, now: u64, way: Way, mut bytes: Vec<u8>) {
        let (from, ..) = way;
        let start = now.max(self.free_at[from]);
        self.free_at[from] = start + self.gap;
        if self.marking > 0 && self.rng.chance(self.marking) {
            mark_congestion(&mut bytes);
        }
        self.links[from].send(start, &bytes, way);
    }

    fn all(&mut self) -> impl Iterator<Item = &mut ModelledLink<Way>> {
        self.earlier.iter_mut().chain(&mut self.links)
    }

    pub(crate) fn next_at(&self) -> Option<u64> {
        let all = self.earlier.iter().chain(&self.links);
        all.filter_map(ModelledLink::next_deadline).min()
    }

    /// The next frame that has arrived. No link has a queue limit, so no frame is lost late.
    pub(crate) fn pop(&mut self, now: u64) -> Option<(Way, Vec<u8>)> {
        let mut bytes = Vec::new();
        // A frame that was overtaken begins its way when it is due.
        while let Some(at) = self.next_at().filter(|at| *at <= now) {
            let link = self.all().find(|link| link.next_deadline() == Some(at))?;
            if let Some((way, _)) = link.receive(now, &mut bytes) {
                return Some((way, bytes));
            }
        }
        None
    }
}
