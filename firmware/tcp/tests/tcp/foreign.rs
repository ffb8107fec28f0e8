//! A foreign peer: smoltcp.

use std::collections::VecDeque;

use faultline_tcp::{Config, Instant, Nanos};
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant as TheirInstant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

use crate::network::{Host, Network, Ours, run};
use crate::support::{octet, octets};

const PORT: u16 = 4000;

/// Packets of the host.
#[derive(Default)]
struct Queues {
    arriving: VecDeque<Vec<u8>>,
    leaving: VecDeque<Vec<u8>>,
}

struct Arriving(Vec<u8>);
struct Leaving<'a>(&'a mut VecDeque<Vec<u8>>);

impl RxToken for Arriving {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.push_back(packet);
        result
    }
}

impl Device for Queues {
    type RxToken<'a> = Arriving;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _: TheirInstant) -> Option<(Arriving, Leaving<'_>)> {
        let packet = self.arriving.pop_front()?;
        Some((Arriving(packet), Leaving(&mut self.leaving)))
    }

    fn transmit(&mut self, _: TheirInstant) -> Option<Leaving<'_>> {
        Some(Leaving(&mut self.leaving))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = 1500;
        capabilities
    }
}

/// A host with smoltcp.
struct Theirs {
    peer: u8,
    number: u8,
    queues: Queues,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    to_send: u64,
    sent: u64,
    received: u64,
    is_closed: bool,
}

fn their_time(now: Instant) -> TheirInstant {
    TheirInstant::from_micros((now.0 / 1000) as i64)
}

impl Theirs {
    fn new(number: u8, peer: u8, to_send: u64, buffer: usize, is_active: bool) -> Self {
        let mut queues = Queues::default();
        let mut config = smoltcp::iface::Config::new(HardwareAddress::Ip);
        config.random_seed = 5;
        let mut interface = Interface::new(config, &mut queues, their_time(Instant(1_000_000_000)));
        interface.update_ip_addrs(|addresses| {
            let address = IpCidr::new(IpAddress::v4(10, 0, 0, number), 24);
            addresses.push(address).unwrap();
        });
        let buffers = || SocketBuffer::new(vec![0; buffer]);
        let mut sockets = SocketSet::new(vec![]);
        let handle = sockets.add(Socket::new(buffers(), buffers()));
        let socket = sockets.get_mut::<Socket>(handle);
        if is_active {
            let remote = (IpAddress::v4(10, 0, 0, peer), PORT);
            socket.connect(interface.context(), remote, PORT).unwrap();
        } else {
            socket.listen(PORT).unwrap();
        }
        Self {
            peer,
            number,
            queues,
            interface,
            sockets,
            handle,
            to_send,
            sent: 0,
            received: 0,
            is_closed: false,
        }
    }

    /// The program: reads and verifies, writes, closes.
    fn work(&mut self) {
        let socket = self.sockets.get_mut::<Socket>(self.handle);
        while socket.can_recv() {
            let (peer, received) = (self.peer, self.received);
            let len = socket.recv(|data| {
                for (at, value) in (received..).zip(data.iter()) {
                    assert_eq!(*value, octet(peer, at), "octet {at}");
                }
                (data.len(), data.len())
            });
            self.received += len.unwrap() as u64;
        }
        while socket.can_send() && self.sent < self.to_send {
            let len = (self.to_send - self.sent).min(5000);
            let data = octets(self.number, self.sent, len);
            self.sent += socket.send_slice(&data).unwrap() as u64;
        }
        if self.sent == self.to_send && !self.is_closed && socket.may_send() {
            socket.close();
            self.is_closed = true;
        }
    }
}

impl Host for Theirs {
    fn input(&mut self, packet: &[u8], now: Instant) {
        self.queues.arriving.push_back(packet.to_vec());
        self.wake(now);
    }

    fn output(&mut self, _: Instant) -> Option<Vec<u8>> {
        self.queues.leaving.pop_front()
    }

    fn wake(&mut self, now: Instant) {
        self.work();
        self.interface
            .poll(their_time(now), &mut self.queues, &mut self.sockets);
        self.work();
        self.interface
            .poll(their_time(now), &mut self.queues, &mut self.sockets);
    }

    fn deadline(&mut self, now: Instant) -> Option<Instant> {
        let next = self.interface.poll_at(their_time(now), &self.sockets)?;
        // Their time is in microseconds, so a deadline may round to the past.
        let next = Instant(next.total_micros().max(0) as u64 * 1000);
        Some(next.max(now + Nanos(1000)))
    }

    fn received(&self) -> u64 {
        self.received
    }

    fn is_finished(&self) -> bool {
        let state = self.sockets.get::<Socket>(self.handle).state();
        self.is_closed && matches!(state, State::Closed | State::TimeWait)
    }
}

fn transfer(
    network: Network,
    seed: u64,
    we_connect: bool,
    config: Config,
    buffer: usize,
    octets: [u64; 2],
) {
    let mut ours = match we_connect {
        true => Ours::active(config, 1, 2, octets[0], 1000),
        false => Ours::passive(config, 1, 2, octets[0], 4096),
    };
    let mut theirs = Theirs::new(2, 1, octets[1], buffer, !we_connect);
    run(network, seed, &mut ours, &mut theirs);
    assert_eq!(theirs.received(), octets[0], "{network:?} {seed}");
    assert_eq!(ours.received(), octets[1], "{network:?} {seed}");
}

#[test]
fn smoltcp_understands_us_in_both_roles() {
    for we_connect in [true, false] {
        for seed in 0..15 {
            for (loss, reordering) in [(0, 0), (10, 0), (100, 0), (0, 200), (100, 100)] {
                let network = Network {
                    loss,
                    reordering,
                    duplication: reordering / 4,
                    marking: 0,
                    delay: Nanos::from_millis(2),
                };
                let window = [1 << 20, 60_000, 3000, 100][seed as usize % 4];
                let config = Config {
                    receive_window: window,
                    sack: seed % 2 == 0,
                    timestamps: seed % 3 == 0,
                    ..Config::default()
                };
                let buffer = [65_536, 2000, 200_000][seed as usize % 3];
                // A window of 100 octets takes a while.
                let back = u64::from(window).min(20_000);
                transfer(network, seed, we_connect, config, buffer, [20_000, back]);
            }
        }
    }
}

#[test]
fn smoltcp_retransmits_what_is_refused_and_waits_for_what_is_held() {
    for (holding, refusing) in [(100, 0), (0, 100), (50, 50)] {
        for seed in 0..10 {
            let network = Network {
                loss: 10,
                delay: Nanos::from_millis(1),
                ..Network::default()
            };
            let config = Config {
                receive_window: 20_000,
                ..Config::default()
            };
            let mut ours = Ours::passive(config, 1, 2, 100, 1000);
            (ours.holding, ours.refusing) = (holding, refusing);
            let mut theirs = Theirs::new(2, 1, 100_000, 30_000, true);
            run(network, seed, &mut ours, &mut theirs);
            assert_eq!((ours.received(), theirs.received()), (100_000, 100));
        }
    }
}
