//! Makes guest memory durable. A disk takes its time, so a thread for each NIC waits for it: neither the engine nor the
//! other guests do.

use std::cell::{Cell, RefCell};

use crossbeam_channel::{Receiver, Sender, bounded};
use faultline_memory::Lasting;
use faultline_nic::Persist;
use faultline_ports::PortId;

use crate::engine::EngineHandle;
use crate::log_limit::LogLimit;

/// Wishes of one NIC that may wait. A queue pair has one at a time, unless it begins anew.
const MAX_WAITING: usize = 256;

/// Memory that is to become durable, for a queue pair.
#[derive(Debug)]
struct Wish {
    qpn: u32,
    number: u64,
    parts: Vec<Lasting>,
}

/// Where the wishes of a NIC go.
#[derive(Debug)]
pub(crate) struct Keeper {
    port: PortId,
    /// Name of the NIC.
    nic: String,
    engine: EngineHandle,
    /// Numbers are never used twice, whatever is reset.
    number: Cell<u64>,
    /// To the thread, once there is one: few guests have memory that lasts.
    wishes: RefCell<Option<Sender<Wish>>>,
}

impl Keeper {
    pub(crate) fn new(port: PortId, nic: &str, engine: EngineHandle) -> Self {
        Self {
            port,
            nic: nic.to_owned(),
            engine,
            number: Cell::new(0),
            wishes: RefCell::new(None),
        }
    }

    /// Begins to make these parts durable, for a queue pair.
    pub(crate) fn begin(&self, qpn: u32, parts: Vec<Lasting>) -> Persist {
        if parts.is_empty() {
            return Persist::Done;
        }
        let number = self.number.get() + 1;
        let wish = Wish { qpn, number, parts };
        let wishes = &mut *self.wishes.borrow_mut();
        if wishes.is_none() {
            *wishes = self.start();
        }
        match wishes.as_ref().map(|wishes| wishes.try_send(wish)) {
            Some(Ok(())) => {
                self.number.set(number);
                Persist::Begun(number)
            }
            _ => Persist::Busy,
        }
    }

    /// The thread ends with the NIC, or later if the disk keeps it.
    fn start(&self) -> Option<Sender<Wish>> {
        let (tx, rx) = bounded(MAX_WAITING);
        let (port, engine) = (self.port, self.engine.clone());
        let thread = std::thread::Builder::new().name(format!("durable-{port}"));
        let log = LogLimit::new(&self.nic);
        match thread.spawn(move || fulfil(&rx, port, &engine, &log)) {
            Ok(_) => Some(tx),
            Err(error) => {
                tracing::error!(nic = %self.nic, "no thread to make memory durable: {error}");
                None
            }
        }
    }
}

fn fulfil(wishes: &Receiver<Wish>, port: PortId, engine: &EngineHandle, log: &LogLimit) {
    for Wish { qpn, number, parts } in wishes {
        let failed = parts.iter().find_map(|part| part.sync().err());
        if let Some(error) = &failed
            && log.allows()
        {
            tracing::warn!(nic = %log.nic(), "can't make guest memory durable: {error}");
        }
        // Unmapped now if the guest has taken it back meanwhile.
        drop(parts);
        let well = failed.is_none();
        let told = engine.post(move |engine| {
            if let Some(port) = engine.ports.get_mut(port) {
                port.nic.persisted(qpn, number, well);
            }
        });
        if told.is_err() {
            return;
        }
    }
}
