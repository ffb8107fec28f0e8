//! Commands of an iWARP adapter.

use core::mem::offset_of;

use faultline_abi::admin::{
    ACCEPT, CONNECT, CREATE_LISTENER, DESTROY_LISTENER, QUERY_CONNECTION, QUERY_REQUEST, REJECT,
};
use faultline_abi::caps::{Caps, IWARP};
use faultline_abi::event::{CONNECT_FAILED, CONNECTED, CONNECTION_CLOSED, CONNECTION_REQUEST};
use faultline_abi::iwarp::{
    Accept, Connect, ConnectionInfo, ConnectionParam, ConnectionPath, CreateListener,
    QueryConnection,
};
use faultline_abi::{U16, U32, U64, regs};
use faultline_wire::mpa::MpaSetup;
use faultline_wire::{Gid, MacAddr};
use zerocopy::FromBytes;

use crate::bus::Bus;
use crate::driver::{ALL_ACCESS, Driver, Error};
use crate::host::Host;

/// Most octets of private data.
const MAX_PRIVATE: u16 = MpaSetup::MAX_PRIVATE_DATA;

/// Numbers of VLANs in paths that are not in one.
const NO_VLAN: u16 = 0xffff;

/// The path of a listener at an address without VLAN; at all addresses of a version of IP if the address is zero.
pub fn listener_path(address: Gid, port: u16) -> ConnectionPath {
    ConnectionPath {
        local_ip: address.0,
        local_port: U16::new(port),
        vlan: U16::new(NO_VLAN),
        ..ConnectionPath::default()
    }
}

/// The path of a connection without VLAN, from an address and a port to others, whose MAC address is `dmac`.
pub fn connection_path(
    (local, local_port): (Gid, u16),
    (remote, remote_port): (Gid, u16),
    dmac: MacAddr,
) -> ConnectionPath {
    ConnectionPath {
        remote_ip: remote.0,
        remote_port: U16::new(remote_port),
        dmac: dmac.0,
        ..listener_path(local, local_port)
    }
}

type Result<T> = core::result::Result<T, Error>;

/// Private data, and the numbers of READs that this end serves and requests at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Private<'a> {
    /// The data.
    pub data: &'a [u8],
    /// READs that this end serves.
    pub ird: u16,
    /// READs that it requests.
    pub ord: u16,
}

impl Default for Private<'_> {
    fn default() -> Self {
        Self {
            data: &[],
            ird: 4,
            ord: 4,
        }
    }
}

impl<B: Bus> Driver<B> {
    /// True if the NIC is an iWARP adapter.
    pub fn is_iwarp(&mut self) -> bool {
        let features = u32::try_from(offset_of!(Caps, features)).unwrap_or(0);
        let features = regs::CAPS.saturating_add(features);
        self.bus.read_register(features) & IWARP != 0
    }

    fn param(&self, private: &Private<'_>) -> ConnectionParam {
        self.bus.write(self.scratch, private.data);
        ConnectionParam {
            private_addr: U64::new(self.scratch),
            private_len: U16::new(u16::try_from(private.data.len()).unwrap_or(u16::MAX)),
            ird: U16::new(private.ird),
            ord: U16::new(private.ord),
            flags: U16::new(0),
        }
    }

    /// Listens; returns the number of the listener.
    pub fn listen(&mut self, path: ConnectionPath, backlog: u16) -> Result<u32> {
        let body = CreateListener {
            path,
            backlog: U16::new(backlog),
            ..CreateListener::default()
        };
        Ok(self.command(CREATE_LISTENER, 0, &body)?.handle.get())
    }

    /// Ends a listener.
    pub fn unlisten(&mut self, listener: u32) -> Result<()> {
        self.command(DESTROY_LISTENER, listener, &()).map(drop)
    }

    /// Opens a connection for a queue pair.
    pub fn open(&mut self, qpn: u32, path: ConnectionPath, private: &Private<'_>) -> Result<()> {
        let param = self.param(private);
        self.command(CONNECT, qpn, &Connect { path, param })
            .map(drop)
    }

    /// Gives a request to a queue pair.
    pub fn accept(&mut self, qpn: u32, request: u32, private: &Private<'_>) -> Result<()> {
        let body = Accept {
            param: self.param(private),
            request: U32::new(request),
            ..Accept::default()
        };
        self.command(ACCEPT, qpn, &body).map(drop)
    }

    /// Refuses a request, or frees one that has ended.
    pub fn reject(&mut self, request: u32, private: &Private<'_>) -> Result<()> {
        let body = Accept {
            param: self.param(private),
            ..Accept::default()
        };
        self.command(REJECT, request, &body).map(drop)
    }

    /// Properties of a request, and the private data of the peer.
    pub fn query_request(&mut self, request: u32) -> Result<(ConnectionInfo, Vec<u8>)> {
        self.query(QUERY_REQUEST, request)
    }

    /// Properties of the connection of a queue pair, and the private data of the peer.
    pub fn query_connection(&mut self, qpn: u32) -> Result<(ConnectionInfo, Vec<u8>)> {
        self.query(QUERY_CONNECTION, qpn)
    }

    /// Waits for an event of a connection or listener. Returns its token. Other events are discarded.
    fn await_connection(&mut self, kind: u8, object: u32) -> Result<u32> {
        loop {
            for event in self.whole_events() {
                let is_own = event.object.get() == object;
                if is_own && event.kind == kind {
                    return Ok(u32::try_from(event.token.get()).unwrap_or(u32::MAX));
                }
                // Listeners have other numbers than queue pairs.
                let has_failed = matches!(event.kind, CONNECT_FAILED | CONNECTION_CLOSED);
                if is_own && kind == CONNECTED && has_failed {
                    return Err(Error::Silent);
                }
            }
            if !self.bus.wait() {
                return Err(Error::Silent);
            }
        }
    }

    fn query(&mut self, opcode: u16, handle: u32) -> Result<(ConnectionInfo, Vec<u8>)> {
        let body = QueryConnection {
            addr: U64::new(self.scratch),
            len: U16::new(MAX_PRIVATE),
            ..QueryConnection::default()
        };
        let answer = self.command(opcode, handle, &body)?;
        // An answer is longer.
        let read = ConnectionInfo::read_from_prefix(&answer.body);
        let (info, _) = read.map_err(|_| Error::Silent)?;
        let mut data = vec![0; usize::from(info.param.private_len.get()).min(MAX_PRIVATE.into())];
        self.bus.read(self.scratch, &mut data);
        Ok((info, data))
    }
}

/// TCP port of the listener of [`open_stream`].
const LISTENER: u16 = 4791;

/// Opens an iWARP connection from the first of two hosts to the other, for queue pairs in RESET with these numbers. `change` completes the
/// path of each end by its index: that of the connection, and that of the listener, which has any address. Reads the asynchronous events of
/// both drivers.
///
/// # Errors
/// A NIC refuses a command, or an end reports that the connection has failed or ended, or nothing more: [`Error::Silent`].
pub fn open_stream<B: Bus>(
    [active, passive]: [&mut Host<B>; 2],
    qpns: [u32; 2],
    local_port: u16,
    change: impl Fn(usize, ConnectionPath) -> ConnectionPath,
) -> Result<()> {
    // A queue pair may have the number of an earlier one.
    for driver in [&mut active.driver, &mut passive.driver] {
        driver.whole_events();
    }
    active.driver.to_init(qpns[0], ALL_ACCESS)?;
    passive.driver.to_init(qpns[1], ALL_ACCESS)?;
    let any = listener_path(Gid::from_ipv4([0; 4]), LISTENER);
    let (own, remote) = ((active.gid, local_port), (passive.gid, LISTENER));
    let path = change(0, connection_path(own, remote, passive.mac));
    let listener = passive.driver.listen(change(1, any), 1)?;
    active.driver.open(qpns[0], path, &Private::default())?;
    let request = passive
        .driver
        .await_connection(CONNECTION_REQUEST, listener)?;
    passive
        .driver
        .accept(qpns[1], request, &Private::default())?;
    passive.driver.unlisten(listener)?;
    for (host, qpn) in [active, passive].into_iter().zip(qpns) {
        host.driver.await_connection(CONNECTED, qpn)?;
        // The NIC learns that they have been read.
        host.driver.arm_events();
    }
    Ok(())
}
