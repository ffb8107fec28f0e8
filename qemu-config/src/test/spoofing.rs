//! The test of suite `robustness` in which a guest speaks in the name of its neighbour: over a connection with its neighbour's IP address, and
//! with frames that its software builds.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::failover::{must_succeed, said, start, three};
use super::traffic::{DEVICE, await_counters, counters};
use crate::cluster::{Cluster, Plan};
use crate::guest::Guest;

const SHORT: Duration = Duration::from_secs(60);

/// A guest with the IP address of its neighbour reaches no connection of the neighbour; with port security it cannot even use the
/// address.
pub fn neighbours_address_is_of_no_use(cluster: &Cluster, _: &Plan) -> Result<()> {
    let (victim, owner, attacker) = three(cluster)?;
    let attacked = start(victim, "spoofed victim")?;
    victim.must("lab_until 20 lab_listens 18730", SHORT)?;
    let owning = start(owner, "spoofed owner $PEER_IP")?;
    said(victim, "the first message is verified", 1)?;
    frames_in_others_names(victim, owner, attacker)?;
    // Its kernel answers no ARP for the address, and its own resolution does not announce it.
    let take = "ping -q -c 1 -W 5 $PEER_IP && sysctl -qw net.ipv4.conf.all.arp_ignore=8 && \
        mac=$(ip neigh show $PEER_IP dev $NETDEV | sed -n 's/.*lladdr \\([^ ]*\\).*/\\1/p') && \
        ip neigh replace $PEER_IP lladdr $mac dev $NETDEV nud permanent && \
        ip address add 10.77.0.2/32 dev $NETDEV noprefixroute && lab_until 20 lab_has_gid 10.77.0.2";
    attacker.must(take, SHORT)?;
    let outcome = attacker.run(
        "GID_INDEX=$(lab_gid_index 10.77.0.2) spoofed attacker $PEER_IP",
        SHORT,
    )?;
    ensure!(
        outcome.success(),
        "the attacker: {}\n{}",
        outcome.describe(),
        outcome.text()
    );
    must_succeed(attacked, "the victim")?;
    must_succeed(owning, "the owner")?;
    let leave = "ip address del 10.77.0.2/32 dev $NETDEV && ip neigh del $PEER_IP dev $NETDEV && \
        sysctl -qw net.ipv4.conf.all.arp_ignore=1 && lab_until 20 lab_has_no_gid 10.77.0.2";
    attacker.must(leave, SHORT)?;
    attacker.must("address_refused 10.78.0.2", 2 * SHORT)?;
    Ok(())
}

/// A network of the guests' NICs.
#[derive(Debug)]
struct Network {
    /// Suffix of the variables of its NICs.
    nic: &'static str,
    v4: &'static str,
    v6: &'static str,
}

/// The network of the first NICs, whose guests may use any address.
const OPEN: Network = Network {
    nic: "",
    v4: "10.77.0.",
    v6: "fd77::",
};

/// That of the second NICs. The attacker may use its own addresses only.
const SECURED: Network = Network {
    nic: "2",
    v4: "10.78.0.",
    v6: "fd78::",
};

/// The entry of the victim for the MAC address of a host that does not exist. If it were the owner, forged ARP would
/// end the test.
const BELIEVED: &str = "02:00:00:00:00:99";

impl Network {
    fn device(&self) -> String {
        format!("{DEVICE}{}", self.nic)
    }

    /// Gives the victim the MAC address of the host that does not exist, and lets it accept another one at once.
    fn believe(&self, victim: &Guest) -> Result<()> {
        let Self { nic, v4, v6 } = self;
        let command = format!(
            "sysctl -qw net.ipv4.neigh.$NETDEV{nic}.locktime=0 && for address in {v4}99 {v6}99; do \
             ip neigh replace $address lladdr {BELIEVED} dev $NETDEV{nic} nud stale || exit; done"
        );
        victim.must(&command, SHORT).map(|_| ())
    }

    /// Waits until the victim believes that the host that does not exist has this MAC address.
    fn await_belief(&self, victim: &Guest, mac: &str) -> Result<()> {
        let Self { nic, v4, v6 } = self;
        let command = format!(
            "believes() {{ ip neigh show $1 dev $NETDEV{nic} | grep -q 'lladdr {mac}'; }}; \
             for address in {v4}99 {v6}99; do lab_until 20 believes $address || \
             {{ ip neigh show dev $NETDEV{nic}; exit 1; }}; done"
        );
        victim.must(&command, 2 * SHORT).map(|_| ())
    }

    fn forget(&self, victim: &Guest) -> Result<()> {
        let Self { nic, v4, v6 } = self;
        let command = format!(
            "sysctl -qw net.ipv4.neigh.$NETDEV{nic}.locktime=100 && for address in {v4}99 {v6}99; do \
             ip neigh del $address dev $NETDEV{nic} || exit; done"
        );
        victim.must(&command, SHORT).map(|_| ())
    }

    fn mac(&self, guest: &Guest) -> Result<String> {
        let command = format!("cat /sys/class/net/$NETDEV{}/address", self.nic);
        Ok(guest.must(&command, SHORT)?.trim().to_owned())
    }

    /// Sends [`FORGED`] frames from a guest to the victim: in the name of the owner, and of the host that does not exist.
    fn forge(&self, from: &Guest, victim: &Guest, qpn: &str) -> Result<()> {
        let Self { nic, v4, v6 } = self;
        let mac = self.mac(victim)?;
        let command =
            format!("forged_frames $NETDEV{nic} {mac} {v4}1 {v6}1 {qpn} {v4}2 {v6}99 {v4}99");
        from.must(&command, SHORT).map(|_| ())
    }
}

/// Frames of [`Network::forge`], and those of them that are RoCE packets: a congestion notification and a datagram.
const FORGED: u64 = 4;
const FORGED_ROCE: u64 = 2;
const HANDLED: &str = "rp_cnp_handled";
const IGNORED: &str = "rp_cnp_ignored";
const ARRIVED: &str = "rx_roce_packets";
const REFUSED: &str = "tx_bad_address";

/// Frames that software builds in the name of others. Where guests may use any address they arrive, and the congestion notification has an
/// effect only if it is the owner's. With port security they do not leave.
fn frames_in_others_names(victim: &Guest, owner: &Guest, attacker: &Guest) -> Result<()> {
    let qpn = victim.must(
        "rdma resource show qp link $RDMA_DEV/1 | sed -n 's/.* lqpn \\([0-9]*\\) .* comm spoofed.*/\\1/p'",
        SHORT,
    )?;
    let qpn = qpn.trim();
    let of_victim = |network: &Network, name| -> Result<u64> {
        let [count] = counters(victim, &network.device(), [name])?;
        Ok(count)
    };
    for network in [&OPEN, &SECURED] {
        network.believe(victim)?;
    }

    let (handled, ignored) = (of_victim(&OPEN, HANDLED)?, of_victim(&OPEN, IGNORED)?);
    let arrived = of_victim(&OPEN, ARRIVED)?;
    OPEN.forge(owner, victim, qpn)?;
    await_counters(victim, &OPEN.device(), &[HANDLED], handled + 1)?;
    OPEN.await_belief(victim, &OPEN.mac(owner)?)?;
    OPEN.forge(attacker, victim, qpn)?;
    OPEN.await_belief(victim, &OPEN.mac(attacker)?)?;
    await_counters(victim, &OPEN.device(), &[IGNORED], ignored + 1)?;
    await_counters(
        victim,
        &OPEN.device(),
        &[ARRIVED],
        arrived + 2 * FORGED_ROCE,
    )?;
    ensure!(
        of_victim(&OPEN, HANDLED)? == handled + 1,
        "the victim's connection has obeyed a notification of the attacker"
    );

    let arrived = of_victim(&SECURED, ARRIVED)?;
    SECURED.forge(owner, victim, qpn)?;
    await_counters(victim, &SECURED.device(), &[ARRIVED], arrived + FORGED_ROCE)?;
    SECURED.await_belief(victim, &SECURED.mac(owner)?)?;
    SECURED.believe(victim)?;
    let [refused] = counters(attacker, &SECURED.device(), [REFUSED])?;
    SECURED.forge(attacker, victim, qpn)?;
    await_counters(attacker, &SECURED.device(), &[REFUSED], refused + FORGED)?;
    SECURED.await_belief(victim, BELIEVED)?;
    let after = of_victim(&SECURED, ARRIVED)?;
    ensure!(
        after == arrived + FORGED_ROCE,
        "{} RoCE packets of the attacker have arrived",
        after.saturating_sub(arrived + FORGED_ROCE)
    );
    for network in [&OPEN, &SECURED] {
        network.forget(victim)?;
    }
    Ok(())
}
