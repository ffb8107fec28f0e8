//! Tests of the suite `robustness` in which traffic continues over another NIC, or to another guest: two NICs of a
//! guest, an address that moves, and a bond. They run in three guests with two NICs each.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::image_packages;
use super::traffic::{DEVICE, await_counters, counters, end, must_fail, pair, traffic_of, works};
use crate::cluster::{Cluster, Plan};
use crate::exchange::{self, Exchange, Ready};
use crate::guest::{Guest, Running};
use crate::protocol::Exec;
use crate::qemu::Hardware;

/// Devices of the guests beyond those of plain ones.
const CONFIG: &str = "qemu-config/nics/failover.toml";
const SHORT: Duration = Duration::from_secs(60);

/// Output of a program in its guest, while it runs.
const LOG: &str = "/run/failover.log";
/// The file that ends the stream of `failover`.
const END: &str = "/run/failover.end";

/// The guests of these tests.
pub fn plan(plain: &Plan) -> Plan {
    Plan {
        guests: 3,
        packages: image_packages::packages(),
        config: Some(
            PathBuf::from(env!("CARGO_MANIFEST_DIR"))
                .join("..")
                .join(CONFIG),
        ),
        hardware: Hardware {
            further_nics: 1,
            ..Hardware::default()
        },
        ..plain.clone()
    }
}

pub fn three(cluster: &Cluster) -> Result<(&Guest, &Guest, &Guest)> {
    match cluster.guests.as_slice() {
        [first, second, third] => Ok((first, second, third)),
        guests => bail!("there are {} guests instead of three", guests.len()),
    }
}

/// Starts a command whose output goes to [`LOG`] at once, and to the result at its end.
pub fn start<'a>(guest: &'a Guest, command: &str) -> Result<Running<'a>> {
    guest.start(&Exec {
        script: format!("rm -f {LOG}; {command} >{LOG} 2>&1; status=$?; cat {LOG}; exit $status"),
        ..Exec::default()
    })
}

/// Waits until a program has written a text at least `times` times.
pub fn said(guest: &Guest, text: &str, times: u32) -> Result<()> {
    let said = format!("said() {{ [ \"$(grep -c '{text}' {LOG})\" -ge {times} ]; }}");
    guest
        .must(
            &format!("{said}; lab_until 30 said || {{ cat {LOG}; exit 1; }}"),
            2 * SHORT,
        )
        .map(|_| ())
}

/// The program must end by itself, without an error. Returns its output.
pub fn must_succeed(running: Running<'_>, who: &str) -> Result<String> {
    let outcome = running.wait_more(SHORT)?;
    let text = String::from_utf8_lossy(&outcome.both).into_owned();
    ensure!(outcome.success(), "{who}: {}:\n{text}", outcome.describe());
    Ok(text)
}

/// A stream leaves the first NIC of the sender when its port has an error, and the first NIC of the receiver when retries end, and
/// comes back each time.
pub fn nic_fails_over(cluster: &Cluster, _: &Plan) -> Result<()> {
    let (receiver, sender, _) = three(cluster)?;
    sender.must(&format!("rm -f {END}"), SHORT)?;
    let program = format!("FAILOVER_END={END} failover");
    // The receiver does not print the state of its port, so the sender must notice.
    let receiving = start(receiver, &format!("{program} --waits $MY_IP2"))?;
    let sending = start(sender, &format!("{program} --sends $PEER_IP2"))?;
    said(sender, "NIC 0 carries the stream", 1)?;
    for (round, guest) in [(1, sender), (2, sender), (3, receiver)] {
        guest.must("ip link set $NETDEV down", SHORT)?;
        for end in [sender, receiver] {
            said(end, "NIC 1 carries the stream", round)?;
        }
        if guest.index == sender.index {
            said(sender, "NIC 0: port error", round)?;
        } else {
            // Both ends have requests without an answer. The first end that runs out of retries informs the other.
            let grep = format!("grep -q 'NIC 0: retries have ended' {LOG}");
            let has_ended = |end: &Guest| anyhow::Ok(end.run(&grep, SHORT)?.success());
            let is_by_retries = has_ended(sender)? || has_ended(receiver)?;
            ensure!(is_by_retries, "the stream left the NIC without a failure");
        }
        guest.must("ip link set $NETDEV up", SHORT)?;
        said(guest, "NIC 0: port active", 1)?;
        for end in [sender, receiver] {
            said(end, "NIC 0 carries the stream", 1 + round)?;
        }
    }
    sender.must(&format!("touch {END}"), SHORT)?;
    for (running, who) in [(sending, "the sender"), (receiving, "the receiver")] {
        let text = must_succeed(running, who)?;
        ensure!(text.contains("all right"), "{who}:\n{text}");
    }
    Ok(())
}

/// The address that moves, as one of a cluster's service.
const SERVICE: &str = "10.77.0.100";

/// Gives a guest the address of the service, and announces it to the others.
const TAKE_SERVICE: &str = "ip address add $SERVICE/24 dev $NETDEV && lab_until 20 lab_has_gid $SERVICE && \
    announce_address $NETDEV $SERVICE";
const LEAVE_SERVICE: &str =
    "ip address del $SERVICE/24 dev $NETDEV && lab_until 20 lab_has_no_gid $SERVICE";

fn of_service(command: &str) -> String {
    command.replace("$SERVICE", SERVICE)
}

/// Starts traffic in both directions over a connection of the connection manager to an address, and waits until it flows.
fn managed_traffic<'a>(
    server: &'a Guest,
    client: &'a Guest,
    address: &str,
) -> Result<(Running<'a>, Running<'a>)> {
    let command = "ib_write_bw -R -b -F -D 300";
    let serving = start(server, command)?;
    server.must("lab_until 20 lab_listens_cm ib_write_bw", SHORT)?;
    let sending = start(client, &format!("{command} {address}"))?;
    client
        .must(
            "lab_until 20 lab_is_connected ib_write_bw && lab_flows 200",
            2 * SHORT,
        )
        .context("the traffic did not start")?;
    Ok((serving, sending))
}

/// Both ends of traffic must end because no answers come.
fn retries_end(both: (Running<'_>, Running<'_>)) -> Result<()> {
    for (running, who) in [(both.0, "the server"), (both.1, "the client")] {
        let outcome = must_fail(running, who)?;
        let text = String::from_utf8_lossy(&outcome.both);
        // IBV_WC_RETRY_EXC_ERR
        ensure!(
            text.contains("status 12"),
            "{who} has another error:\n{text}"
        );
    }
    Ok(())
}

/// Data that `rping` compares, over a new connection to an address; the server must see it.
fn connects(server: &Guest, client: &Guest, address: &str) -> Result<()> {
    let serving = start(server, &format!("rping -s -V -C 20 -a {address}"))?;
    server.must("lab_until 20 lab_listens_cm rping", SHORT)?;
    let outcome = client.run(&format!("rping -c -V -C 20 -a {address}"), SHORT)?;
    ensure!(
        outcome.success(),
        "no new connection to {address}: {}\n{}",
        outcome.describe(),
        outcome.text()
    );
    must_succeed(serving, "the server of rping").map(|_| ())
}

/// An address moves to another guest under traffic of the connection manager.
pub fn address_moves_to_another_guest(cluster: &Cluster, _: &Plan) -> Result<()> {
    let (client, first, second) = three(cluster)?;
    first.must(&of_service(TAKE_SERVICE), SHORT)?;
    for (from, to) in [(first, second), (second, first)] {
        let both = managed_traffic(from, client, SERVICE)?;
        leave_service(from)?;
        to.must(&of_service(TAKE_SERVICE), SHORT)?;
        retries_end(both)?;
        connects(to, client, SERVICE)?;
    }
    first.must(&of_service(LEAVE_SERVICE), SHORT)?;
    Ok(())
}

/// Counters of the packets that a NIC does not send, and does not receive, because an address has been removed.
const OF_REMOVED: [&str; 2] = ["tx_bad_gid", "rx_bad_gid"];

/// A guest loses the address of the service under traffic, which must stop at once. The kernel's connection manager ends the connection only
/// when the peer learns the MAC address of the next guest.
fn leave_service(guest: &Guest) -> Result<()> {
    let before: u64 = counters(guest, DEVICE, OF_REMOVED)?.iter().sum();
    guest.must(&of_service(LEAVE_SERVICE), SHORT)?;
    await_counters(guest, DEVICE, &OF_REMOVED, before.saturating_add(1))
        .context("packets of the removed address")
}

/// The kernel's RDS connects anew to an address that has moved to another guest.
pub fn rds_follows_a_moved_address(cluster: &Cluster, _: &Plan) -> Result<()> {
    let (client, first, second) = three(cluster)?;
    let serve = |guest| {
        let running = start(guest, &of_service("rds_pair $SERVICE"))?;
        guest.must("lab_until 20 lab_listens 18640", SHORT)?;
        anyhow::Ok(running)
    };
    for guest in &cluster.guests {
        guest.must("modprobe rds_rdma", SHORT)?;
    }
    first.must(&of_service(TAKE_SERVICE), SHORT)?;
    let serving = serve(first)?;
    let until = "rds_pair --until /run/rds.end $MY_IP $SERVICE";
    let asking = start(client, &of_service(until))?;
    said(client, "the first message is verified", 1)?;
    leave_service(first)?;
    second.must(&of_service(TAKE_SERVICE), SHORT)?;
    // No answer comes to messages that the first server has taken.
    end(asking, "the client")?;
    end(serving, "the first server")?;
    let serving = serve(second)?;
    let outcome = client.run(&of_service("rds_pair $MY_IP $SERVICE"), 2 * SHORT)?;
    ensure!(
        outcome.success() && outcome.text().contains("all right"),
        "messages do not reach the second server: {}\n{}",
        outcome.describe(),
        outcome.text()
    );
    must_succeed(serving, "the second server")?;
    second.must(&of_service(LEAVE_SERVICE), SHORT)?;
    for guest in &cluster.guests {
        guest.must("lab_until 20 modprobe -r rds_rdma", SHORT)?;
    }
    Ok(())
}

const MOUNT: &str = "mount -t nfs -o vers=4.2,proto=rdma,port=20049,sec=sys,soft,timeo=30,retrans=1 $SERVICE:/ /mnt/nfs";

/// A client of NFS writes to a server whose address moves to another server: the client connects to that server, and
/// writes there.
pub fn nfs_follows_a_moved_address(cluster: &Cluster, _: &Plan) -> Result<()> {
    let (client, first, second) = three(cluster)?;
    for (server, name) in [(first, "first"), (second, "second")] {
        let command = format!("ulp_nfs server && echo {name} >/srv/nfs/name");
        server.must(&command, 2 * SHORT)?;
    }
    first.must(&of_service(TAKE_SERVICE), SHORT)?;
    let prepare = format!("modprobe -a nfs rpcrdma && mkdir -p /mnt/nfs && lab_until 60 {MOUNT}");
    client.must(&of_service(&prepare), 3 * SHORT)?;
    client.must("[ \"$(cat /mnt/nfs/name)\" = first ]", SHORT)?;
    let writing = start(
        client,
        "sh -c 'rm -f /run/nfs.end; until [ -e /run/nfs.end ]; do dd if=/dev/zero of=/mnt/nfs/data bs=64k count=16 conv=fsync; done'",
    )?;
    client.must("lab_flows 1000", SHORT)?;
    leave_service(first)?;
    second.must(&of_service(TAKE_SERVICE), SHORT)?;
    second.must("lab_until 60 test -s /srv/nfs/data", 3 * SHORT)?;
    client.must("touch /run/nfs.end", SHORT)?;
    must_succeed(writing, "the client")?;
    let again = format!("umount -f /mnt/nfs || umount -l /mnt/nfs; lab_until 60 {MOUNT}");
    client.must(&of_service(&again), 3 * SHORT)?;
    // The content is read from the server, not from the cache.
    let compare = format!(
        "[ \"$(cat /mnt/nfs/name)\" = second ] && head -c 3000001 /dev/urandom >/tmp/data && \
         cp /tmp/data /mnt/nfs/data && umount /mnt/nfs && {MOUNT} && cmp /tmp/data /mnt/nfs/data && \
         umount /mnt/nfs"
    );
    client.must(&of_service(&compare), 2 * SHORT)?;
    second.must(&of_service(LEAVE_SERVICE), SHORT)?;
    for server in [first, second] {
        server.must("rpc.nfsd 0 && exportfs -ua && umount /srv/nfs", SHORT)?;
    }
    Ok(())
}

/// An active-backup bond of the two NICs of a guest. Its address and GIDs are those of the active NIC.
const BOND: &str = "10.79.0.1";
const MAKE_BOND: &str = "modprobe bonding max_bonds=0 && \
    ip link add bond0 type bond mode active-backup miimon 50 fail_over_mac active && \
    ip link set $NETDEV down && ip link set $NETDEV master bond0 && \
    ip link set $NETDEV2 down && ip link set $NETDEV2 master bond0 && \
    ip link set bond0 up && ip address add $BOND/24 dev bond0 && lab_until 20 lab_has_gid $BOND";

/// The slave of a bond fails under traffic; new connections use the other one.
pub fn bond_fails_over(cluster: &Cluster, _: &Plan) -> Result<()> {
    let (server, client, _) = three(cluster)?;
    let of_bond = |text: &str| text.replace("$BOND", BOND);
    server.must(&of_bond(MAKE_BOND), SHORT)?;
    client.must("ip address add 10.79.0.2/24 dev $NETDEV", SHORT)?;
    for (active, backup) in [("", "2"), ("2", "")] {
        let is_on = |number: &str, has: &str| {
            let check = format!(
                "RDMA_DEV=$RDMA_DEV{number}; lab_until 20 lab_has_{has} $BOND || \
                 {{ cat /proc/net/bonding/bond0; exit 1; }}"
            );
            server.must(&of_bond(&check), SHORT).map(|_| ())
        };
        is_on(active, "gid")?;
        is_on(backup, "no_gid")?;
        let both = managed_traffic(server, client, BOND)?;
        server.must(&format!("ip link set $NETDEV{active} down"), SHORT)?;
        retries_end(both)?;
        is_on(backup, "gid")?;
        is_on(active, "no_gid")?;
        let sent = format!("RDMA_DEV=$RDMA_DEV{backup}; lab_sent sent; echo $sent");
        let sent = || -> Result<u64> { Ok(server.must(&sent, SHORT)?.trim().parse()?) };
        let before = sent()?;
        connects(server, client, BOND)?;
        ensure!(sent()? > before, "the other NIC has sent nothing");
        server.must(&format!("ip link set $NETDEV{active} up"), SHORT)?;
    }
    client.must("ip address del 10.79.0.2/24 dev $NETDEV", SHORT)?;
    server.must(
        "ip link del bond0 && ip link set $NETDEV up && ip link set $NETDEV2 up && lab_until 20 lab_has_gid $MY_IP",
        SHORT,
    )?;
    Ok(())
}

/// An address of both guests that can be removed and added again.
#[derive(Debug)]
pub struct Further {
    /// Creates it.
    create: &'static str,
    /// Removes it.
    remove: &'static str,
    /// All of it but the number of the guest.
    prefix: &'static str,
    /// Counters of the packets that are sent from it, and that arrive for it, while it is removed.
    counters: &'static [&'static str],
}

/// Of a VLAN.
pub const VLAN: Further = Further {
    create: "ip link add link $NETDEV name further type vlan id 77 && ip link set further up && \
        ip address add $ADDRESS/24 dev further",
    remove: "ip link del further",
    prefix: "10.97.0.",
    counters: &OF_REMOVED,
};

/// Of a macvlan interface, which has a MAC address of its own. Only that interface answers ARP for its address:
/// otherwise the peer would use the MAC address of the netdev, which is not the source of the packets. After the
/// removal of the interface, packets to it belong to another host, and the NIC does not count them.
pub const MACVLAN: Further = Further {
    create: "sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 && \
        ip link add link $NETDEV name further address 02:00:00:00:96:0${MY_IP##*.} type macvlan mode bridge && \
        ip link set further up && ip address add $ADDRESS/24 dev further",
    remove: "ip link del further && \
        sysctl -qw net.ipv4.conf.all.arp_ignore=0 net.ipv4.conf.all.arp_announce=0",
    prefix: "10.96.0.",
    counters: &["tx_bad_gid"],
};

/// Of IPv6.
pub const IPV6: Further = Further {
    create: "ip address add $ADDRESS/64 dev $NETDEV nodad",
    remove: "ip address del $ADDRESS/64 dev $NETDEV",
    prefix: "fd99::",
    counters: &OF_REMOVED,
};

/// Both ends of a connection of a further address notice that it has been removed. When it is back, new connections work.
pub fn further_address_returns(cluster: &Cluster, further: &Further) -> Result<()> {
    let (server, client) = pair(cluster)?;
    let text = |guest: &Guest, command: &str| {
        let address = format!("{}{}", further.prefix, guest.index + 1);
        command.replace("$ADDRESS", &address)
    };
    let must = |guest: &Guest, command: &str| guest.must(&text(guest, command), SHORT);
    let create = format!("{} && lab_until 20 lab_has_gid $ADDRESS", further.create);
    let remove = format!("{} && lab_until 20 lab_has_no_gid $ADDRESS", further.remove);
    for guest in [server, client] {
        must(guest, &create)?;
    }
    let connected = "-d $RDMA_DEV -x $(lab_gid_index $ADDRESS)";
    for _ in 0..2 {
        let program = text(server, &format!("ib_write_bw -b {connected}"));
        let serving = start(server, &format!("{program} -F -D 300"))?;
        server.must("lab_until 10 lab_listens 18515", SHORT)?;
        let program = text(client, &format!("ib_write_bw -b {connected}"));
        let sending = start(client, &format!("{program} -F -D 300 $PEER_IP"))?;
        client.must(
            "lab_until 20 lab_is_connected ib_write_bw && lab_flows 200",
            2 * SHORT,
        )?;
        let mut before = Vec::new();
        for name in further.counters {
            let [count] = counters(client, DEVICE, [name])?;
            before.push((name, count));
        }
        must(client, &remove)?;
        // Then the NIC has removed the GID, too.
        for (name, before) in before {
            await_counters(client, DEVICE, &[name], before.saturating_add(1))?;
        }
        let executed = counters(client, DEVICE, EXECUTED)?;
        retries_end((serving, sending))?;
        let after = counters(client, DEVICE, EXECUTED)?;
        ensure!(
            after == executed,
            "the client has executed requests for a removed GID: {EXECUTED:?}: {executed:?}, {after:?}"
        );
        must(client, &create)?;
        let command = "ibv_rc_pingpong -c -n 100 -d $RDMA_DEV -g $(lab_gid_index $ADDRESS)";
        let report = exchange::run(
            server,
            client,
            &Exchange {
                server: text(server, command),
                client: text(client, &format!("{command} $PEER_IP")),
                ready: Ready::Tcp(18515),
                limit: SHORT,
            },
        )?;
        ensure!(report.success(), "a ping-pong fails:\n{}", report.text(30));
    }
    for guest in [server, client] {
        must(guest, &remove)?;
    }
    works(cluster)
}

/// Counters of the requests that a NIC executes for `ib_write_bw`, and of those that it would execute again.
const EXECUTED: [&str; 2] = ["rx_write_requests", "duplicate_request"];

/// A round adds and removes some 300 addresses, which takes 3 to 10 seconds under TCG.
const ROUND_LIMIT: Duration = Duration::from_secs(30);

/// A guest gets more addresses than its GID table has entries, and loses them, again and again beside traffic: the GIDs from before are all
/// there, and the connection manager finds the device.
pub fn more_addresses_than_gids(cluster: &Cluster, rounds: u32) -> Result<()> {
    let (server, client) = pair(cluster)?;
    // It leaves most of the guest's time to the kernel, which changes the table.
    let paced = "ib_send_bw -s 4096 --rate_limit=50 --rate_units=p --rate_limit_type=SW";
    let (serving, sending) = traffic_of(server, client, paced)?;
    let limit = ROUND_LIMIT * rounds + SHORT;
    let outcome = client.run(&format!("more_addresses {rounds}"), limit)?;
    ensure!(
        outcome.success(),
        "{}:\n{}",
        outcome.describe(),
        outcome.text()
    );
    client
        .must("lab_is_connected ib_send_bw && lab_flows 200", SHORT)
        .context("the traffic has ended")?;
    end(sending, "the client")?;
    end(serving, "the server")?;
    works(cluster)?;
    connects(server, client, "10.77.0.1")?;
    connects(client, server, "10.77.0.2")
}
