//! The path of a driver to its NIC, and to the memory of its host.

use std::cell::RefCell;
use std::rc::Rc;

use faultline_abi::doorbell::Doorbell;
use faultline_nic::{Dma, Instant, Nic};

use super::{RAM, State};
use crate::bus::Bus;
use crate::event::What;

/// The bus of a host.
#[derive(Clone, Debug)]
pub struct ProcessBus {
    state: Rc<RefCell<State>>,
    host: usize,
}

impl ProcessBus {
    pub(crate) fn new(state: Rc<RefCell<State>>, host: usize) -> Self {
        Self { state, host }
    }

    /// Looks at the NIC.
    pub(crate) fn with_nic<T>(&self, look: impl FnOnce(&Nic) -> T) -> Option<T> {
        Some(look(&self.state.borrow_mut().nic(self.host)?.nic))
    }

    /// Keeps an event of the scenario.
    pub(crate) fn event(&self, what: What) {
        self.state.borrow().event(self.host, what);
    }

    /// Vectors of interrupts since the last call, as bits.
    pub fn take_interrupts(&self) -> u64 {
        let mut state = self.state.borrow_mut();
        let engine = state.engine_of(self.host);
        let vectors = engine.and_then(|engine| engine.around.interrupts.get_mut(self.host));
        vectors.map_or(0, std::mem::take)
    }
}

/// Addresses outside of the memory read as zero, and are not written.
impl Bus for ProcessBus {
    fn ram_len(&self) -> u64 {
        RAM
    }

    fn read(&self, addr: u64, buf: &mut [u8]) {
        let state = self.state.borrow();
        let memory = state.memories.get(self.host);
        if memory.is_none_or(|memory| memory.read(addr, buf).is_err()) {
            buf.fill(0);
        }
    }

    fn write(&self, addr: u64, data: &[u8]) {
        if let Some(memory) = self.state.borrow().memories.get(self.host) {
            let _ = memory.write(addr, data);
        }
    }

    fn read_register(&mut self, offset: u32) -> u32 {
        let mut state = self.state.borrow_mut();
        let (host, now) = (self.host, Instant(state.now));
        let port = state.present_nic(host);
        port.map_or(u32::MAX, |port| port.nic.read_register(now, offset))
    }

    fn write_register(&mut self, offset: u32, value: u32) {
        let mut state = self.state.borrow_mut();
        let (host, now) = (self.host, Instant(state.now));
        if let Some(port) = state.present_nic(host) {
            port.nic.write_register(now, offset, value);
        }
    }

    fn doorbell(&mut self, page: u32, bell: Doorbell) {
        let mut state = self.state.borrow_mut();
        let (host, now) = (self.host, Instant(state.now));
        if let Some(engine) = state.engine_of(host) {
            engine.ring(now, host, page, bell);
        }
        state.settle();
    }

    fn renewed(&mut self, qpn: u32) {
        self.state
            .borrow()
            .watch
            .borrow_mut()
            .restart_queue_pair(self.host, qpn);
    }

    fn wait(&mut self) -> bool {
        self.state.borrow_mut().step(u64::MAX)
    }
}
