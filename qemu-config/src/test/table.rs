//! The guest tests: one line each. A server's and a client's command, and what the client must have said.

use std::time::Duration;

use super::needs;
use crate::exchange::{Exchange, Ready};

/// The suites in this table. Those that need the same guests run in this order.
pub const SUITES: &[&str] = &[
    "pingpong",
    "rdmacm",
    "perftest",
    "verbs",
    "tags",
    "torture",
    "torture-long",
    "oversubscribe",
    "coherence",
    "pinned",
    "ulp",
    "apps",
    "swap",
];

/// A test of two guests.
#[derive(Debug, Clone)]
pub struct GuestTest {
    /// Its name within the suite.
    pub name: String,
    /// What runs.
    pub exchange: Exchange,
    /// What the client's output must hold.
    pub expect: &'static str,
    /// Virtual CPUs that it needs if those of its suite won't do.
    pub cpus: Option<u32>,
}

/// The tests of a suite.
pub fn suite(name: &str) -> Vec<GuestTest> {
    match name {
        "pingpong" => pingpong(),
        "rdmacm" => rdmacm(),
        "perftest" => perftest(),
        "verbs" => verbs_left_over(),
        "odp" => odp(),
        "torture" => torture(),
        "torture-long" => torture_long(),
        "oversubscribe" => oversubscribe(),
        "coherence" => coherence(),
        "pinned" => pinned(),
        "ulp" => ulp(),
        "apps" => apps(),
        "swap" => swap(),
        "debug-kernel" => debug_kernel(),
        "tags" => tags(),
        _ => Vec::new(),
    }
}

fn test(
    name: &str,
    server: &str,
    client: &str,
    ready: Ready,
    seconds: u64,
    expect: &'static str,
) -> GuestTest {
    let exchange = Exchange {
        server: server.to_owned(),
        client: client.to_owned(),
        ready,
        limit: Duration::from_secs(seconds),
    };
    GuestTest {
        name: name.to_owned(),
        exchange,
        expect,
        cpus: None,
    }
}

/// A test program for one guest.
fn alone(name: &str, command: &str) -> GuestTest {
    test(name, "true", command, Ready::Now, 120, "PASS")
}

/// One of libibverbs' example programs: the client is the server's command with an address.
fn verbs(name: &str, command: &str) -> GuestTest {
    let command = format!("{command} -d $RDMA_DEV -g $GID_INDEX");
    let expect = if command.contains("xsrq") {
        ""
    } else {
        "usec/iter"
    };
    test(
        name,
        &command,
        &format!("{command} $PEER_IP"),
        Ready::Tcp(18515),
        60,
        expect,
    )
}

/// The MTU of the interfaces, and path MTUs, of which the last is the largest that fits.
fn path_mtu(name: &str, words: &str) -> GuestTest {
    let command = format!("path_mtu {words}");
    test(name, &command, &command, Ready::Now, 120, "all right")
}

/// What ethtool reads is true, and the rings get another size under a link that works before and after.
const ETHTOOL: &str = r#"set -e
    rx_packets() { ethtool -S $NETDEV | sed -n 's/^ *rx_packets: //p'; }
    ring() { ethtool -g $NETDEV | sed '1,/^Current/d' | grep -E '^(RX|TX):' | xargs; }
    works() { ping -q -c 3 -i 0.2 -s 20000 $PEER_IP; }
    ethtool -i $NETDEV | tee /dev/stderr | grep -q '^driver: faultline$'
    ethtool $NETDEV | tee /dev/stderr | grep -q 'Link detected: yes'
    ethtool $NETDEV | grep -q 'Speed: 100000Mb/s'
    ethtool -T $NETDEV | grep -q software-transmit
    before=$(rx_packets); ip_before=$(cat /sys/class/net/$NETDEV/statistics/rx_packets)
    works
    [ $(rx_packets) -ge $((before + 30)) ]
    [ $(cat /sys/class/net/$NETDEV/statistics/rx_packets) -ge $((ip_before + 30)) ]
    ethtool -g $NETDEV; [ "$(ring)" = 'RX: 512 TX: 512' ]
    ethtool -G $NETDEV rx 1000 tx 64; [ "$(ring)" = 'RX: 1024 TX: 64' ]; works
    ! ethtool -G $NETDEV tx 63 || exit 1
    ! ethtool -G $NETDEV rx 1000000 || exit 1
    [ "$(ring)" = 'RX: 1024 TX: 64' ]; works
    moderation() { ethtool -c $NETDEV | tee /dev/stderr | grep -E '^(rx|tx)-(usecs|frames):' | xargs; }
    [ "$(moderation)" = 'rx-usecs: 0 rx-frames: 0 tx-usecs: 0 tx-frames: 0' ]
    # By the median: any other packet may end a wait early, and a busy host make another one longer. It may make all
    # longer: what is compared was measured one after the other, again if it had to be.
    of_seven() { ping -c 7 -i 0.2 $PEER_IP | sed -n 's/.* time=\([0-9]*\).*/\1/p' | sort -n | sed -n $1p; }
    median() { of_seven 4; }
    at_once() { ethtool -C $NETDEV rx-usecs 0 rx-frames 0 tx-usecs 0 tx-frames 0; }
    # Both: any notice makes the driver look at both queues.
    late() { ethtool -C $NETDEV rx-usecs 60000 rx-frames 64 tx-usecs 60000 tx-frames 64; }
    waits() {
        at_once; fast=$(of_seven 1)
        late; slow=$(median); ethtool -G $NETDEV rx $1; resized=$(median)
        at_once; again=$(of_seven 1); echo "ms: $fast, $slow, $resized, then $again ms"
        [ -n "$fast" ] && [ -n "$slow" ] && [ -n "$resized" ] && [ -n "$again" ] || exit 1
        [ $slow -ge $((fast + 25)) ] && [ $resized -ge $((fast + 25)) ] && [ $again -le $((slow - 25)) ]
    }
    waits 512 || waits 1024 || waits 512
    late; [ "$(moderation)" = 'rx-usecs: 60000 rx-frames: 64 tx-usecs: 60000 tx-frames: 64' ]
    ! ethtool -C $NETDEV rx-usecs 0 || exit 1
    ! ethtool -C $NETDEV adaptive-rx on || exit 1
    ethtool -C $NETDEV rx-usecs 0 rx-frames 0 tx-usecs 50 tx-frames 16; works
    [ "$(moderation)" = 'rx-usecs: 0 rx-frames: 0 tx-usecs: 50 tx-frames: 16' ]; at_once
    ip link set $NETDEV down; ethtool -G $NETDEV rx 512 tx 512; ethtool $NETDEV | grep -q 'Link detected: no'
    ip link set $NETDEV up; [ "$(ring)" = 'RX: 512 TX: 512' ]
    lab_until 10 ping -q -c 1 -W 1 $PEER_IP
    works; echo all right"#;

/// Two streams.
const OFFLOAD_RECEIVER: &str = "lab stream-receive 5001 && lab stream-receive 5001";

/// Checksums and the cutting of long packets are left to the device, and its word on received checksums is believed:
/// what the kernel tells of each TCP packet (PACKET_AUXDATA), and what the device has cut, with both and without.
const OFFLOADS: &str = r#"set -e
    cut() { ethtool -S $NETDEV | sed -n 's/^ *tx_segmented: //p'; }
    features() { ethtool -k $NETDEV | grep -E "^\s*($1): " | tee /dev/stderr | grep -c ": $2\$" || true; }
    [ $(features 'tx-checksumming|tx-checksum-ip-generic|rx-checksumming|scatter-gather|tx-scatter-gather' on) = 5 ]
    [ $(features 'tcp-segmentation-offload|tx-tcp-segmentation|tx-tcp6-segmentation' on) = 3 ]
    cat > /tmp/watch.py <<'END'
import os, socket, struct
PARTIAL, VALID = 1 << 3, 1 << 7 # TP_STATUS_CSUMNOTREADY, TP_STATUS_CSUM_VALID
s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
s.bind(('NETDEV', 3))
s.setsockopt(263, 8, 1) # PACKET_AUXDATA
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 26) # SO_RCVBUFFORCE: room for the whole stream
s.settimeout(0.5)
counts = dict.fromkeys(['received', 'valid', 'sent', 'partial', 'long'], 0)
print('watching', flush=True)
while True:
    try:
        packet, data, _, source = s.recvmsg(64, 64)
    except TimeoutError:
        if os.path.exists('/tmp/streamed'):
            break
        continue
    if source[1] != 0x800 or packet[9] != 6:
        continue
    status, length = struct.unpack('=II', data[0][2][:8])
    out = source[2] == 4 # PACKET_OUTGOING
    counts['sent' if out else 'received'] += 1
    if out:
        counts['partial'] += status & PARTIAL != 0
        counts['long'] += length > MTU * 3 // 2
    else:
        counts['valid'] += status & VALID != 0
counts['missed'] = struct.unpack('=II', s.getsockopt(263, 6, 8))[1] # PACKET_STATISTICS
for item in counts.items():
    print('%s=%d' % item)
END
    sed -i "s/NETDEV/$NETDEV/; s/MTU/$(cat /sys/class/net/$NETDEV/mtu)/" /tmp/watch.py
    # Sends a stream and counts what it consisted of.
    stream() {
        rm -f /tmp/streamed; python3 /tmp/watch.py > /tmp/watched & watch=$!
        lab_until 60 grep watching /tmp/watched; before=$(cut)
        lab stream-send $PEER_IP:5001 8388608
        touch /tmp/streamed; wait $watch; sed -i 1d /tmp/watched; . /tmp/watched
        segmented=$(($(cut) - before)); echo "$(xargs < /tmp/watched), $segmented cut"
        [ $missed = 0 ]; [ $sent -ge 100 ]; [ $received -ge 10 ]
    }
    # It looks at checksums itself, and then says the same as the device.
    ethtool -K $NETDEV gro off
    stream
    [ $long -ge 20 ]; [ $segmented -ge $long ]; [ $partial -ge $((sent - 5)) ]; [ $valid = $received ]
    ethtool -K $NETDEV rx off tx off
    [ $(features 'tx-checksumming|rx-checksumming|tcp-segmentation-offload' off) = 3 ]
    stream
    [ $segmented = 0 ]; [ $long = 0 ]; [ $partial = 0 ]; [ $valid = 0 ]
    ethtool -K $NETDEV rx on tx on tso on gro on
    [ $(features 'tx-checksumming|rx-checksumming|tcp-segmentation-offload' on) = 3 ]
    echo all right"#;

/// Takes a stream at each port from 5001 on and says how the receive queues shared them. The first is there last.
const STREAM_RECEIVERS: &str = r#"
    rx() { ethtool -S $NETDEV | sed -n "s/^ *rx$1_packets: //p"; }
    ready() { local port; for port in $(seq 5002 5018); do lab_listens $port || return 1; done; }
    pids=; before0=$(rx 0); before1=$(rx 1)
    for port in $(seq 5002 5018); do lab stream-receive $port & pids="$pids $!"; done
    lab_until 10 ready || exit 1
    lab stream-receive 5001 & pids="$pids $!"
    for pid in $pids; do wait $pid || exit 1; done
    echo "$(($(rx 0) - before0)) packets in queue 0, $(($(rx 1) - before1)) in queue 1"
    [ $(rx 0) -ge $((before0 + 250)) ] && [ $(rx 1) -ge $((before1 + 250)) ]"#;

/// Streams over two queues, queues that come and go under streams, and a table that steers them.
const QUEUES: &str = r#"set -e
    stat() { ethtool -S $NETDEV | sed -n "s/^ *$1: //p"; }
    channels() { ethtool -l $NETDEV | sed '1,/^Current/d' | sed -n 's/^Combined:[^0-9]*//p'; }
    places() { ethtool -x $NETDEV | sed -n 's/^ *[0-9]*: *\([0-9 ]*[0-9]\) *$/\1/p' | tr -s ' ' '\n' | sort | uniq -c | xargs; }
    # Streams to COUNT ports from FIRST on, of so many bytes each.
    streams() {
        pids= ports=$(seq $1 $(($1 + $2 - 1))); shift 2
        for port in $ports; do lab stream-send $PEER_IP:$port "$@" & pids="$pids $!"; done
    }
    end() { for pid in $pids; do wait $pid; done; }
    works() { ping -q -c 3 -i 0.2 -W 2 $PEER_IP; }
    note() { echo "$((SECONDS - began)) s: $*"; }
    began=$SECONDS
    ethtool -l $NETDEV; [ $(channels) = 2 ]
    [ "$(places)" = '64 0 64 1' ]
    ! ethtool -L $NETDEV combined 3 || exit 1
    ! ethtool -L $NETDEV combined 0 || exit 1
    [ "$(cat /sys/class/net/$NETDEV/queues/tx-0/xps_cpus /sys/class/net/$NETDEV/queues/tx-1/xps_cpus | xargs)" = '1 2' ]
    before="$(stat rx0_packets) $(stat rx1_packets) $(stat tx0_packets) $(stat tx1_packets)"
    streams 5001 16 262144; end
    after="$(stat rx0_packets) $(stat rx1_packets) $(stat tx0_packets) $(stat tx1_packets)"
    note "rx0 rx1 tx0 tx1 $before to $after"
    for queue in 1 2 3 4; do
        [ $(echo $after | cut -d ' ' -f $queue) -ge $(($(echo $before | cut -d ' ' -f $queue) + 100)) ]
    done
    # The sum of the queues is what the interface has counted.
    ip_rx=$(cat /sys/class/net/$NETDEV/statistics/rx_packets)
    [ $(($(stat rx0_packets) + $(stat rx1_packets))) -ge $ip_rx ]
    # Channels change while streams run, and nothing of them is lost.
    # Without a program where it can be: beside the streams, starting one takes seconds on the debug kernel.
    sent() { read -r $1 < /sys/class/net/$NETDEV/statistics/tx_packets; }
    # TCP waits about as long again as the change took, which only the test's own limit bounds.
    flows() { sent mark; until sent now; [ $now -ge $((mark + 50)) ]; do sleep 0.1; done; }
    rm -f /run/changed; streams 5017 2 $((1 << 40)) --until /run/changed; flows
    for count in 1 2 1 2; do
        ethtool -L $NETDEV combined $count; note "$count channels"
        [ $(channels) = $count ]; flows
    done
    touch /run/changed; end; note "the streams have ended"
    # One queue: the other is not used. The table and the key go another way at once.
    ethtool -L $NETDEV combined 1; [ "$(places)" = '128 0' ]; before=$(stat rx1_packets); works
    [ $(stat rx1_packets) = $before ]
    ethtool -L $NETDEV combined 2; [ "$(places)" = '64 0 64 1' ]
    for queue in 0 1; do
        ethtool -X $NETDEV start $queue equal 1; [ "$(places)" = "128 $queue" ]
        other=rx$((1 - queue))_packets; before=$(stat $other) own=$(stat rx${queue}_packets); works
        [ $(stat $other) = $before ]; [ $(stat rx${queue}_packets) -ge $((own + 3)) ]
    done
    ! ethtool -L $NETDEV combined 1 || exit 1
    ethtool -X $NETDEV default; [ "$(places)" = '64 0 64 1' ]
    key=$(seq -s : 10 49); ethtool -X $NETDEV hkey $key; ethtool -x $NETDEV | grep -q "^$key\$"; works
    ip link set $NETDEV down; ethtool -L $NETDEV combined 1; ip link set $NETDEV up; [ $(channels) = 1 ]
    lab_until 10 ping -q -c 1 -W 1 $PEER_IP
    # As it was for others.
    ethtool -L $NETDEV combined 2; works; note; echo all right"#;

/// Speaks to a group until the client sends its stream, and has an address for the client's second interface.
const GROUP_SPEAKER: &str = r#"
    ip address add 10.99.0.1/24 dev $NETDEV
    ping -q -i 0.02 -I $NETDEV 239.5.6.7 > /dev/null & speaker=$!
    lab stream-receive 5001; status=$?
    kill $speaker; ip address del 10.99.0.1/24 dev $NETDEV; exit $status"#;

/// The device keeps frames to other groups and addresses away, and gives those that an interface asks for.
const ADDRESSES: &str = r#"set -e
    stat() { ethtool -S $NETDEV | sed -n "s/^ *$1: //p"; }
    promiscuity() { ip -d link show $NETDEV | sed -n 's/.* promiscuity \([0-9]*\) .*/\1/p'; }
    # What the speaker says is kept away; or, once the filter has changed, it comes and nothing is kept away.
    more_away() { [ $(stat rx_filtered) -ge $1 ]; }
    kept_away() { lab_until 20 more_away $(($(stat rx_filtered) + 15)); }
    got() { read -r got < /sys/class/net/$NETDEV/statistics/rx_packets; }
    more() { got; [ $got -ge $1 ]; }
    passes() { local away=$(stat rx_filtered); got; lab_until 5 more $((got + 15)) && [ $(stat rx_filtered) -le $((away + 1)) ]; }
    comes() { lab_until 20 passes; }
    kept_away
    ip maddress add 01:00:5e:05:06:07 dev $NETDEV; comes
    ip maddress del 01:00:5e:05:06:07 dev $NETDEV; kept_away
    ip link set $NETDEV allmulticast on; comes
    ip link set $NETDEV allmulticast off; kept_away
    # More groups than there is room for, until they are gone.
    python3 -c "
import socket, struct, time
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
interface = struct.pack('@I', socket.if_nametoindex('$NETDEV'))
for n in range(150):
    group = socket.inet_pton(socket.AF_INET6, 'ff05::7:%x' % n)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group + interface)
print('joined', flush=True)
time.sleep(300)" > /tmp/joined & many=$!
    lab_until 60 grep joined /tmp/joined; comes
    kill $many; wait $many || true; kept_away
    # A second interface with an address of its own, without all the others.
    ip link add link $NETDEV name second type macvlan mode bridge
    ip address add 10.99.0.2/24 dev second; ip link set second up
    ping -q -c 3 -i 0.2 -W 5 -I second 10.99.0.1
    [ $(promiscuity) = 0 ]; kept_away
    ip link del second
    lab stream-send $PEER_IP:5001 65536; echo all right"#;

/// An interface works with another address of its own, without a single refused frame, and not with its neighbour's, whose
/// traffic it does not take.
const OWN_ADDRESS: &str = r#"set -e
    refused() { ethtool -S $NETDEV | sed -n 's/^ *tx_bad_source: //p'; }
    become() { ip link set $NETDEV down; ip link set $NETDEV address $1; ip link set $NETDEV up; }
    works() { lab_until 20 ping -q -c 1 -W 1 $PEER_IP; ping -q -c 5 -i 0.2 -W 5 $PEER_IP | grep -q ' 0% packet loss'; }
    old=$(cat /sys/class/net/$NETDEV/address); works
    peer=$(ip neigh show $PEER_IP dev $NETDEV | sed -n 's/.*lladdr \([^ ]*\).*/\1/p'); echo "own $old, peer $peer"; [ -n "$peer" ]
    before=$(refused)
    become 02:00:00:00:77:01; works; [ $(refused) = $before ]
    become $peer; ! ping -q -c 3 -W 1 $PEER_IP || exit 1
    [ $(refused) -gt $before ]
    become $old; before=$(refused); works; [ $(refused) = $before ]; echo all right"#;

/// A second pair of interfaces behind two VLAN tags, and then the stream's end.
const TAGGED_SERVER: &str = r#"set -e
    ip link add link $NETDEV name outer type vlan proto 802.1ad id 5; ip link set outer up
    ip link add link outer name inner type vlan id 6; ip link set inner up
    ip address add 10.98.0.1/24 dev inner
    lab stream-receive 5001; ip link del outer"#;

/// Frames that the device would refuse, which would stop a queue: the driver cuts, sums or drops them, and the interface
/// stays up.
const STRANGE_FRAMES: &str = r#"set -e
    changes() { cat /sys/class/net/$NETDEV/carrier_changes; }
    dropped() { cat /sys/class/net/$NETDEV/statistics/tx_dropped; }
    ping -q -c 1 $PEER_IP; before=$(changes); lost=$(dropped)
    python3 -c "
import socket, struct
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300)
s.bind(('$NETDEV', 0))
s.setsockopt(263, 15, 1) # PACKET_VNET_HDR
mac = bytes.fromhex(open('/sys/class/net/$NETDEV/address').read().strip().replace(':', ''))
def send(what, flags, gso, header, size, start, offset, total, payload, fragment=0):
    ip = struct.pack('>BBHHHBBH4s4s', 0x45, 0, total, 1, fragment, 64, 6, 0, bytes([10, 99, 9, 1]), bytes([10, 99, 9, 2]))
    tcp = struct.pack('>HHIIBBHHH', 7, 7, 0, 0, 0x50, 16, 1000, 0, 0)
    frame = bytes([2, 0, 0, 0, 9, 9]) + mac + bytes([8, 0]) + ip + tcp + bytes(payload)
    try:
        s.send(struct.pack('=BBHHHH', flags, gso, header, size, start, offset) + frame)
        print(what, 'sent', flush=True)
    except OSError as error:
        print(what, error, flush=True)
for n in range(5):
    send('a good packet to cut', 1, 1, 54, 1000, 34, 16, 8040, 8000)
    send('pieces longer than the MTU', 1, 1, 54, 3000, 34, 16, 8040, 8000)
    send('one piece longer than the MTU', 1, 1, 54, 60000, 34, 16, 8040, 8000)
    send('a packet of no length', 1, 1, 54, 1000, 34, 16, 0, 8000)
    send('a fragment to cut', 1, 1, 54, 1000, 34, 16, 8040, 8000, 0x2000)
    send('a sum over the addresses', 1, 0, 0, 0, 0, 16, 140, 100)
    send('a sum at the end', 1, 0, 0, 0, 152, 0, 140, 100)
    send('a sum over no TCP', 1, 0, 0, 0, 60, 4, 140, 100)
" | sort | uniq -c | tee /tmp/sent
    [ $(grep -c ' 5 .*sent' /tmp/sent) -ge 4 ]
    sleep 1; [ $(dropped) -gt $lost ]; ping -q -c 3 -i 0.2 -W 2 $PEER_IP
    # As long as frames with two tags may be.
    ip link add link $NETDEV name outer type vlan proto 802.1ad id 5; ip link set outer up
    ip link add link outer name inner type vlan id 6; ip link set inner up
    ip address add 10.98.0.2/24 dev inner
    ping -q -c 3 -i 0.2 -W 5 -M do -s 1472 10.98.0.1
    ip link del outer; [ $(changes) = $before ]
    lab stream-send $PEER_IP:5001 65536; echo all right"#;

fn pingpong() -> Vec<GuestTest> {
    vec![
        GuestTest {
            cpus: Some(2),
            ..test(
                "netdev_queues",
                STREAM_RECEIVERS,
                QUEUES,
                Ready::Tcp(5001),
                120,
                "all right",
            )
        },
        test(
            "ping",
            "true",
            "ping -c 3 -i 0.2 -W 5 $PEER_IP",
            Ready::Now,
            30,
            " 0% packet loss",
        ),
        test(
            "ping6",
            "true",
            "ping -c 3 -i 0.2 -W 5 $PEER_IP6",
            Ready::Now,
            30,
            " 0% packet loss",
        ),
        test(
            "ping_large",
            "true",
            "ping -c 3 -i 0.2 -s 20000 $PEER_IP",
            Ready::Now,
            30,
            " 0% packet loss",
        ),
        verbs("rc", "ibv_rc_pingpong -c"),
        verbs("rc_events", "ibv_rc_pingpong -c -e"),
        verbs("rc_1_byte", "ibv_rc_pingpong -c -s 1"),
        verbs("rc_1_mib", "ibv_rc_pingpong -c -s 1048576 -n 50"),
        verbs("rc_odd_size", "ibv_rc_pingpong -c -s 65537 -n 200"),
        verbs("rc_mtu_256", "ibv_rc_pingpong -c -m 256"),
        verbs("rc_new_send", "ibv_rc_pingpong -c -N"),
        verbs("uc", "ibv_uc_pingpong -c"),
        verbs("uc_events", "ibv_uc_pingpong -c -e"),
        verbs("uc_64_kib", "ibv_uc_pingpong -c -s 65536 -n 200"),
        verbs("ud", "ibv_ud_pingpong -c -s 1024"),
        verbs("ud_events", "ibv_ud_pingpong -c -s 1024 -e"),
        verbs("ud_1_byte", "ibv_ud_pingpong -c -s 1"),
        verbs("srq", "ibv_srq_pingpong -c -n 100"),
        verbs("srq_events", "ibv_srq_pingpong -c -n 100 -e"),
        verbs("srq_64_kib", "ibv_srq_pingpong -c -s 65536 -n 20 -q 4"),
        verbs("xsrq", "ibv_xsrq_pingpong -m 1024 -n 100"),
        test(
            "tcp_1_gib",
            "lab stream-receive 5001",
            "lab stream-send $PEER_IP:5001 1073741824",
            Ready::Tcp(5001),
            300,
            "1073741824 bytes",
        ),
        test(
            "netdev_addresses",
            GROUP_SPEAKER,
            ADDRESSES,
            Ready::Tcp(5001),
            60,
            "all right",
        ),
        test(
            "netdev_own_address",
            "true",
            OWN_ADDRESS,
            Ready::Now,
            120,
            "all right",
        ),
        test(
            "netdev_strange_frames",
            TAGGED_SERVER,
            STRANGE_FRAMES,
            Ready::Tcp(5001),
            60,
            "all right",
        ),
        test(
            "offloads",
            OFFLOAD_RECEIVER,
            OFFLOADS,
            Ready::Tcp(5001),
            120,
            "all right",
        ),
        test("ethtool", "true", ETHTOOL, Ready::Now, 180, "all right"),
        path_mtu("path_mtu_4200", "4200 4096"),
        path_mtu("path_mtu_9000", "9000 256 512 1024 2048 4096"),
    ]
}

/// One of librdmacm's example programs.
fn cm(name: &str, server: &str, client: &str) -> GuestTest {
    test(name, server, client, Ready::Cm, 60, "")
}

/// The same of programs that do not look at the status of completions: the device counts those of failures.
fn without_errors(name: &str, server: &str, client: &str) -> GuestTest {
    let counted = |command: &str| {
        format!(
            "errors() {{ (cd /sys/class/infiniband/$RDMA_DEV/ports/1/hw_counters; cat cqe_error cqe_flush_error | xargs); }}
            before=$(errors); {command} || exit 1; after=$(errors)
            echo \"errors and flushes: $before, then $after\"; [ \"$after\" = \"$before\" ]"
        )
    };
    cm(name, &counted(server), &counted(client))
}

/// A file, and its checksum after it. The server does not say when a file is complete, nor does it end; the client knows.
const RCOPY_SERVER: &str =
    "rcopy & pid=$!; lab barrier rcopy; kill $pid && cd /tmp && sha256sum --check copied.sum";
const RCOPY_CLIENT: &str = "set -e; cd /tmp
    head -c 20000003 /dev/urandom > copied; sha256sum copied > copied.sum
    rcopy copied $PEER_IP:/tmp/copied; rcopy copied.sum $PEER_IP:/tmp/copied.sum
    lab barrier rcopy";

fn rdmacm() -> Vec<GuestTest> {
    vec![
        cm(
            "rping",
            "rping -s -V -a $MY_IP -C 100",
            "rping -c -V -a $PEER_IP -C 100",
        ),
        cm(
            "rping_64_kib",
            "rping -s -V -a $MY_IP -C 50 -S 65535",
            "rping -c -V -a $PEER_IP -C 50 -S 65535",
        ),
        cm(
            "rping_ipv6",
            "rping -s -V -a $MY_IP6 -C 50",
            "rping -c -V -a $PEER_IP6 -C 50",
        ),
        cm(
            "rping_self_modified",
            "rping -s -q -V -a $MY_IP -C 20",
            "rping -c -q -V -a $PEER_IP -C 20",
        ),
        cm(
            "ucmatose",
            "ucmatose -b $MY_IP -C 100",
            "ucmatose -s $PEER_IP -C 100",
        ),
        cm(
            "ucmatose_many",
            "ucmatose -b $MY_IP -c 50 -C 10",
            "ucmatose -s $PEER_IP -c 50 -C 10",
        ),
        cm(
            "udaddy",
            "udaddy -b $MY_IP -C 100",
            "udaddy -s $PEER_IP -C 100",
        ),
        cm(
            "udaddy_many",
            "udaddy -b $MY_IP -c 20",
            "udaddy -s $PEER_IP -c 20",
        ),
        cm("rdma_client", "rdma_server", "rdma_client -s $PEER_IP"),
        without_errors(
            "rdma_xclient",
            "rdma_xserver -c r",
            "rdma_xclient -c r -s $PEER_IP",
        ),
        without_errors(
            "rdma_xclient_xrc",
            "rdma_xserver -c x",
            "rdma_xclient -c x -s $PEER_IP",
        ),
        test(
            "rcopy",
            RCOPY_SERVER,
            RCOPY_CLIENT,
            Ready::Cm,
            60,
            "20000003 bytes in",
        ),
        cm(
            "cmtime",
            "cmtime -b $MY_IP -c 20",
            "cmtime -s $PEER_IP -c 20",
        ),
        cm(
            "rstream",
            "rstream -b $MY_IP -T v -S 65536 -C 20",
            "rstream -s $PEER_IP -T v -S 65536 -C 20",
        ),
        cm(
            "riostream",
            "riostream -b $MY_IP -T v -S 65536 -C 20",
            "riostream -s $PEER_IP -T v -S 65536 -C 20",
        ),
        test(
            "mckey",
            "mckey -m 239.77.0.1 -b $MY_IP -C 10",
            "mckey -m 239.77.0.1 -b $MY_IP -C 10 -s",
            // Its kernel is in the group; its queue pair follows.
            Ready::When("grep -q 01004DEF /proc/net/igmp && sleep 1"),
            60,
            "",
        ),
    ]
}

/// One of perftest's programs, which meet at a TCP port.
fn perf(name: &str, command: &str) -> GuestTest {
    perf_ready(name, command, Ready::Tcp(18515))
}

fn perf_ready(name: &str, command: &str, ready: Ready) -> GuestTest {
    let command = format!("{command} -d $RDMA_DEV -x $GID_INDEX -F");
    test(
        name,
        &command,
        &format!("{command} $PEER_IP"),
        ready,
        90,
        "#bytes",
    )
}

/// Counts packets of queue pairs apart, by type and by hand, while pingpongs run between programs of one guest.
const QP_COUNTERS: &str = r#"
link=$RDMA_DEV/1
pingpong="ibv_rc_pingpong -d $RDMA_DEV -g $GID_INDEX"
total() { cat /sys/class/infiniband/$RDMA_DEV/ports/1/hw_counters/tx_roce_packets; }
shown() { rdma statistic qp show link $link; }
fail() { echo "$1"; shown; exit 1; }
rdma statistic qp set link $link auto type on || fail "no counters by type"
before=$(total)
$pingpong -n 300 > /dev/null & server=$!
lab_until 10 lab_listens 18515
shown | grep -q "type RC" || fail "the queue pair has no counter"
$pingpong -n 300 $MY_IP > /dev/null || fail "no pingpong"
wait $server || fail "no pingpong"
after=$(total)
# A message and its acknowledgement, from either side.
[ $((after - before)) -ge 600 ] || fail "the port has counted $before to $after"
shown | grep -q "type RC" && fail "a counter is left over"
rdma statistic qp set link $link auto off || fail "no end of counters by type"
# Without end: a queue pair that goes takes its counter along.
trap 'kill $server $client; wait' EXIT
$pingpong -n 100000000 > /dev/null & server=$!
lab_until 10 lab_listens 18515
lqpn=$(rdma resource show qp link $link | sed -n 's/.* lqpn \([0-9]*\) .*type RC .*/\1/p' | head -1)
rdma statistic qp bind link $link lqpn $lqpn || fail "can't bind $lqpn"
set_of() { shown | sed -n 's/.* cntn \([0-9]*\) .*/\1/p'; }
cntn=$(set_of)
[ -n "$cntn" ] || fail "no counter"
$pingpong -n 100000000 $MY_IP > /dev/null & client=$!
counts() { shown | grep -q "tx_roce_packets [1-9]"; }
lab_until 10 counts || fail "the counter of $lqpn does not count"
shown | grep -q "tx_packets [1-9]" && fail "the counter of $lqpn counts frames"
rdma statistic qp unbind link $link cntn $cntn lqpn $lqpn || fail "can't unbind"
[ -z "$(set_of)" ] || fail "it is still bound"
kill -0 $client && kill -0 $server && echo PASS
"#;

/// Datagrams of an interface behind a VLAN tag, and of the one below it.
const VLAN: &str = r#"set -e
    ip link add link $NETDEV name tagged type vlan id 291; ip link set tagged up
    ip address add 10.97.0.1/24 dev tagged
    completion_fields vlan 10.97.0.1 291; ip link del tagged"#;

/// What libibverbs' tools say of the device.
const DEVICE_INFO: &str = r#"
fail() { ibv_devices; cat /tmp/devinfo; echo "$1"; exit 1; }
guid=$(tr -d : < /sys/class/infiniband/$RDMA_DEV/node_guid)
ibv_devices | grep -Eq "^ *$RDMA_DEV[[:space:]]+$guid$" || fail "ibv_devices does not list it with its GUID"
ibv_devinfo -v -d $RDMA_DEV > /tmp/devinfo || fail "ibv_devinfo fails"
shows() { grep -Eq "^[[:space:]]*$1$" /tmp/devinfo || fail "there is no line $1"; }
shows "hca_id:[[:space:]]*$RDMA_DEV"
shows "state:[[:space:]]*PORT_ACTIVE \(4\)"
shows "link_layer:[[:space:]]*Ethernet"
shows "GID\[ *$GID_INDEX\]:[[:space:]]*::ffff:$MY_IP, RoCE v2"
# What the kernel shows of it: vectors by the function's address, the driver's own counter among the device's.
pci=$(ethtool -i $NETDEV | sed -n 's/^bus-info: //p')
for vector in async-0 faults-1 comp-2; do
    grep -q "faultline-$vector@pci:$pci$" /proc/interrupts || fail "/proc/interrupts has no $vector of $pci: $(grep faultline /proc/interrupts)"
done
[ $(cat /sys/class/infiniband/$RDMA_DEV/ports/1/hw_counters/lost_interrupts) -ge 0 ] || fail "no counter of lost interrupts"
rdma statistic show link $RDMA_DEV/1 | grep -q "lost_interrupts [0-9]" || fail "rdma does not count lost interrupts"
ethtool -S $NETDEV | grep -q "lost_interrupts: [0-9]" || fail "ethtool does not count lost interrupts"
[ -n "$(modinfo -F author faultline)" ] || fail "the module has no author"
# Up to the next heading.
block() { sed -n "/^\t$1:/,/^\t[a-z]/p" /tmp/devinfo | xargs; }
case $(block general_odp_caps) in *' ODP_SUPPORT ODP_SUPPORT_IMPLICIT '*) ;; *) fail "no on-demand paging" ;; esac
for transport in rc xrc; do
    caps=$(block ${transport}_odp_caps)
    for name in SEND RECV WRITE READ ATOMIC SRQ; do
        case $caps in *" SUPPORT_$name "*) ;; *) fail "$transport has no $name on demand" ;; esac
    done
done
echo PASS"#;

/// A program that waits for the device's events hears of addresses that come, and of the link.
const EVENTS: &str = r#"
ibv_asyncwatch -d $RDMA_DEV > /tmp/events & pid=$!
fail() { echo "$1"; cat /tmp/events; kill $pid; exit 1; }
heard() { lab_until 10 grep -q "event_type $1 .*, port 1$" /tmp/events || fail "no $1"; }
lab_until 10 grep -q "^$RDMA_DEV: async event FD" /tmp/events || fail "it does not start"
sleep 0.5; grep -q event_type /tmp/events && fail "an event of nothing"
ip address add 10.99.1.1/24 dev $NETDEV; heard IBV_EVENT_GID_CHANGE; ip address del 10.99.1.1/24 dev $NETDEV
grep -q PORT_ /tmp/events && fail "the link has not changed"
ip link set $NETDEV down; heard IBV_EVENT_PORT_ERR
grep -q PORT_ACTIVE /tmp/events && fail "the link is not up"
ip link set $NETDEV up; heard IBV_EVENT_PORT_ACTIVE
lab_until 10 ping -c 1 -W 1 $PEER_IP || fail "no link"
kill $pid && echo PASS"#;

/// Requests of a consumer in the kernel: with flags that are not supported, and over a connection.
const KERNEL_REQUESTS: &str = "set -e; trap 'rmmod kernel_verbs' EXIT
    insmod /lib/modules/$(uname -r)/kernel_verbs.ko netdev=$NETDEV gid_index=$GID_INDEX
    echo 1 > /sys/module/kernel_verbs/parameters/refused
    echo 1 > /sys/module/kernel_verbs/parameters/connection
    echo PASS";

/// Without memory for receive buffers the netdev receives what its ring still has buffers for, then nothing; it tries again
/// by a timer, neither never nor without a rest, and goes on when there is memory.
const NO_RECEIVE_BUFFERS: &str = r#"set -e
    parameters=/sys/module/failing_receive/parameters
    trap 'rmmod failing_receive; ethtool -G $NETDEV rx 512' EXIT
    ethtool -G $NETDEV rx 64
    insmod /lib/modules/$(uname -r)/failing_receive.ko netdev=$NETDEV
    reached() { ping -q -c 1 -W 1 $PEER_IP; }
    lab_until 10 reached
    echo Y > $parameters/fail
    ping -q -f -c 300 -W 1 $PEER_IP || true
    ! reached || { echo 'there are still buffers'; exit 1; }
    read -r before < $parameters/failed; sleep 2; read -r after < $parameters/failed
    tries=$((after - before)); echo "$before failures under traffic, $tries in two seconds without"
    # Each 20 ms, on as many channels as there are.
    [ $tries -ge 20 ] && [ $tries -le $((250 * $(nproc))) ]
    ! reached || exit 1
    echo N > $parameters/fail
    lab_until 5 reached
    ping -q -c 200 -i 0.005 $PEER_IP | tee /dev/stderr | grep -q ' 0% packet loss'
    echo PASS"#;

/// What no other suite shows of verbs.
fn verbs_left_over() -> Vec<GuestTest> {
    vec![
        alone("attributes", "attributes"),
        alone("completions", "completions"),
        alone("flow_tags", "completion_fields flows"),
        alone("vlan_tags", VLAN),
        alone("xrc_shared", "xrc_shared"),
        alone("raw_tso", "raw_tso"),
        alone("qp_counters", QP_COUNTERS),
        alone("statuses", "statuses"),
        alone("device_info", DEVICE_INFO),
        alone("kernel_requests", KERNEL_REQUESTS),
        alone("no_receive_buffers", NO_RECEIVE_BUFFERS),
        alone("builders", "builders"),
        test(
            "steering",
            "steering",
            "steering $PEER_IP",
            Ready::Tcp(18680),
            120,
            "all right",
        ),
        alone("events", EVENTS),
        test(
            "bursts",
            "bursts",
            "bursts $PEER_IP",
            Ready::Tcp(18670),
            120,
            "all right",
        ),
    ]
}

fn perftest() -> Vec<GuestTest> {
    vec![
        perf("send_bw_rc", "ib_send_bw -n 500"),
        perf("send_bw_uc", "ib_send_bw -c UC -n 500"),
        perf("send_bw_ud", "ib_send_bw -c UD -s 1024 -n 500"),
        perf("send_lat_rc", "ib_send_lat -n 500"),
        perf("send_lat_uc", "ib_send_lat -c UC -n 500"),
        perf("send_lat_ud", "ib_send_lat -c UD -n 500"),
        perf("write_bw_rc", "ib_write_bw -n 500"),
        perf("write_bw_uc", "ib_write_bw -c UC -n 500"),
        perf("write_lat_rc", "ib_write_lat -n 500"),
        perf("write_lat_uc", "ib_write_lat -c UC -n 500"),
        perf("read_bw_rc", "ib_read_bw -n 500"),
        perf("read_lat_rc", "ib_read_lat -n 500"),
        perf(
            "atomic_bw_fetch_add",
            "ib_atomic_bw -A FETCH_AND_ADD -n 500",
        ),
        perf("atomic_bw_cmp_swap", "ib_atomic_bw -A CMP_AND_SWAP -n 500"),
        perf(
            "atomic_lat_fetch_add",
            "ib_atomic_lat -A FETCH_AND_ADD -n 500",
        ),
        perf(
            "atomic_lat_cmp_swap",
            "ib_atomic_lat -A CMP_AND_SWAP -n 500",
        ),
        perf("write_bw_both_ways", "ib_write_bw -b -n 300"),
        perf("send_bw_both_ways", "ib_send_bw -b -n 300"),
        perf("send_bw_events", "ib_send_bw -e -n 300"),
        perf("write_bw_8_qps", "ib_write_bw -q 8 -n 100"),
        perf("write_bw_all_sizes", "ib_write_bw -a -n 10"),
        perf("send_lat_inline", "ib_send_lat -I 64 -s 64 -n 300"),
        perf_ready("write_bw_cm", "ib_write_bw -R -n 300", Ready::Cm),
    ]
}

/// Regions of buffers that others own, and that one module moves.
const DMA_BUF: &str = "trap 'rmmod moving_buffer' EXIT
    insmod /lib/modules/$(uname -r)/moving_buffer.ko && dma_buf";

/// What other people's programs can do on demand; `suite("odp")` is not the whole suite.
fn odp() -> Vec<GuestTest> {
    vec![
        GuestTest {
            // Its threads must run at the same time.
            cpus: Some(2),
            ..alone("hostile_process", "hostile_process")
        },
        alone("fault_policies", "fault_policy"),
        alone("dma_buf", DMA_BUF),
        alone("refused_changes", "key_refused"),
        alone("zero_based", "zero_based"),
        alone("writes_kept", "odp_faults kept"),
        alone("faults_refused", "odp_faults refused"),
        alone("read_ahead", "odp_faults ahead"),
        alone("huge_entries", "odp_faults huge"),
        alone("empty_regions", "empty_regions"),
        alone("region_statistics", "region_statistics"),
        alone("absent_receive", "absent_receive"),
        alone("file_regions", "file_regions"),
        alone("implicit_space", "implicit_space"),
        alone("key_scope", "key_scope"),
        alone("translation_cache", "translation_cache"),
        verbs("rc", "ibv_rc_pingpong -c -o"),
        verbs("rc_events", "ibv_rc_pingpong -c -o -e"),
        verbs("rc_odd_size", "ibv_rc_pingpong -c -o -s 65537 -n 200"),
        verbs("rc_prefetch", "ibv_rc_pingpong -c -o -P"),
        verbs("rc_implicit", "ibv_rc_pingpong -c -O"),
        verbs("rc_implicit_prefetch", "ibv_rc_pingpong -c -O -P"),
        verbs("srq", "ibv_srq_pingpong -c -o -n 100"),
        verbs("xsrq", "ibv_xsrq_pingpong -o -m 1024 -n 100"),
        perf("send_bw", "ib_send_bw --odp -n 500"),
        perf("send_lat", "ib_send_lat --odp -n 500"),
        perf("write_bw", "ib_write_bw --odp -n 500"),
        perf("write_lat", "ib_write_lat --odp -n 500"),
        perf("write_bw_all_sizes", "ib_write_bw --odp -a -n 10"),
        perf("read_bw", "ib_read_bw --odp -n 500"),
        perf("read_lat", "ib_read_lat --odp -n 500"),
        perf(
            "atomic_bw_fetch_add",
            "ib_atomic_bw --odp -A FETCH_AND_ADD -n 500",
        ),
        perf(
            "atomic_lat_cmp_swap",
            "ib_atomic_lat --odp -A CMP_AND_SWAP -n 500",
        ),
    ]
}

/// One run of `odp_torture`: what the victim is told, what both are told, and for how long the traffic runs.
fn tortured(name: &str, victim: &str, both: &str, seconds: u64) -> GuestTest {
    test(
        name,
        &format!("odp_torture $NIC_LIMITS {both} {victim}"),
        &format!("odp_torture $NIC_LIMITS {both} --seconds {seconds} $PEER_IP"),
        Ready::Tcp(18600),
        // Where not every event has done something in that time it goes on, up to eight times as long. Booked time
        // for what has begun to end: an event, or work that waits for memory.
        9 * seconds + 120,
        "all right",
    )
}

fn torture() -> Vec<GuestTest> {
    let group = |name: &str, events: &str| tortured(name, &format!("--events {events}"), "", 12);
    vec![
        // That the program finds no fault where there is none to find, on regions that everybody can do.
        tortured("pinned", "", "--pinned", 5),
        group("replaced", "munmap,mremap,dontneed,free"),
        group("protected", "mprotect"),
        group("deregistered", "dereg"),
        group("forked", "fork"),
        group("swapped", "pageout,swap,memcg"),
        group("merged", "ksm"),
        group("huge_pages", "split,collapse"),
        group("moved", "migrate,compact"),
        group("exited", "exit"),
        tortured("everything", "", "", 60),
        tortured("everything_short", "", "", 20),
        tortured("everything_other_seed", "", "--seed 20261121", 60),
        tortured("everything_many_qps", "", "--qps 12", 40),
        tortured("everything_implicit", "", "--implicit", 20),
        // Here there is where to swap to.
        test(
            "story",
            "odp_story",
            "odp_story $PEER_IP",
            Ready::Tcp(18610),
            120,
            "as it should be",
        ),
    ]
}

fn torture_long() -> Vec<GuestTest> {
    vec![
        tortured("everything", "", "", 600),
        tortured("everything_implicit", "", "--implicit --seed 20261121", 600),
    ]
}

fn oversubscribe() -> Vec<GuestTest> {
    // The limit is for a disk of a busy host, twice over.
    vec![test(
        "ten_times_memory",
        &format!(
            "odp_oversubscribe ${{NIC_LIMITS%% *}} --mib {}",
            needs::OVERSUBSCRIBED
        ),
        "odp_oversubscribe $PEER_IP",
        Ready::Tcp(18610),
        1500,
        "all right",
    )]
}

fn coherence() -> Vec<GuestTest> {
    let pair = |name: &str, what: &str| {
        test(
            name,
            &format!("odp_coherence {what}"),
            &format!("odp_coherence {what} $PEER_IP"),
            Ready::Tcp(18620),
            120,
            "all right",
        )
    };
    let dax = |name: &str, events: &str| {
        tortured(
            name,
            &format!("--dax /mnt/dax --events {events}"),
            "--qps 1",
            8,
        )
    };
    vec![
        pair("stale_cache", "cache"),
        alone("watched_cache", "watch_cache"),
        alone("restored_regions", "decoherence"),
        pair("lost_memory", "lost"),
        alone("stuck_pages", "odp_stuck /mnt/dax"),
        alone("stuck_targets", "odp_stuck /mnt/dax xrc"),
        alone("slow_page_behind", "odp_faults slow /mnt/dax"),
        dax("dax_truncated", "truncate"),
        dax("dax_punched", "punch"),
        dax("dax_everything", "truncate,punch,mprotect,dereg,fork"),
    ]
}

fn tags() -> Vec<GuestTest> {
    let pair = |name: &str, what: &str| {
        test(
            name,
            &format!("tag_matching {what}"),
            &format!("tag_matching {what} $PEER_IP"),
            Ready::Tcp(18640),
            120,
            "all right",
        )
    };
    vec![pair("pinned", ""), pair("on_demand", "--on-demand")]
}

fn pinned() -> Vec<GuestTest> {
    vec![
        alone("odp_refused", "odp_refused"),
        alone("zero_based", "zero_based --pinned"),
        alone("dma_buf", DMA_BUF),
        test(
            "pingpong_odp_refused",
            "true",
            "! ibv_rc_pingpong -o -d $RDMA_DEV -g $GID_INDEX 2>&1",
            Ready::Now,
            60,
            "isn't ODP capable",
        ),
        verbs("rc", "ibv_rc_pingpong -c"),
        perf("write_bw", "ib_write_bw -n 500"),
        tortured("traffic", "", "--pinned", 5),
    ]
}

/// Kernel consumers: disks, file systems and sockets over RDMA.
fn ulp() -> Vec<GuestTest> {
    let disk = |name: &str, program: &str, pattern: &str| {
        test(
            name,
            &format!("{program} server"),
            &format!("{program} client {pattern} 1 4 16 64"),
            Ready::Cm,
            180,
            "all right",
        )
    };
    let rds = |name: &str, options: &str| {
        let command = format!("modprobe rds_rdma && rds_pair {options} $MY_IP");
        let client = format!("{command} $PEER_IP");
        test(name, &command, &client, Ready::Tcp(18640), 120, "all right")
    };
    vec![
        disk("nvme_random", "ulp_nvme", "randrw"),
        disk("nvme_sequential", "ulp_nvme", "rw"),
        disk("srp_random", "ulp_srp", "randrw"),
        disk("srp_sequential", "ulp_srp", "rw"),
        test(
            "nfs",
            "ulp_nfs server",
            "ulp_nfs client",
            Ready::Cm,
            240,
            "all right",
        ),
        rds("rds", ""),
        // The kernel does not pin files on a DAX device: it registers the windows on demand.
        rds("rds_on_demand", "--file /mnt/dax/window"),
    ]
}

/// Programs of high-performance computing and storage, as users start them: no setting works around the device.
fn apps() -> Vec<GuestTest> {
    let ranks = |name: &str, server: &str, client: &str| {
        let (server, client) = (format!("apps_ucx {server}"), format!("apps_ucx {client}"));
        test(name, &server, &client, Ready::Now, 90, "all right")
    };
    let perftest = |name: &str, transport: &str, family: u32| {
        let tests = "tag_lat tag_bw stream_bw ucp_put_bw ucp_get ucp_am_bw";
        ranks(
            name,
            "server",
            &format!("perftest {transport} {family} {tests}"),
        )
    };
    let data = |name: &str, options: &str| ranks(name, "server data", &format!("data {options}"));
    let fabric = |name: &str, options: &str| {
        let command = format!("fi_pingpong -d $RDMA_DEV -c -I 5 -S all {options}");
        test(
            name,
            &command,
            &format!("{command} $PEER_IP"),
            Ready::Tcp(47592),
            60,
            "bytes",
        )
    };
    let qperf = |name: &str, tests: &str| {
        let client = format!("apps_qperf client {tests}");
        test(
            name,
            "apps_qperf server",
            &client,
            Ready::Tcp(19765),
            90,
            "all right",
        )
    };
    let fio = |verb: &str| {
        test(
            &format!("fio_{verb}"),
            &format!("apps_fio server {verb}"),
            &format!("apps_fio client {verb}"),
            Ready::Cm,
            60,
            "all right",
        )
    };
    vec![
        perftest("ucx_rc", "rc", 4),
        perftest("ucx_rc_ipv6", "rc", 6),
        perftest("ucx_ud", "ud", 4),
        perftest("ucx_ud_ipv6", "ud", 6),
        data("mpi_rc", "rc 4"),
        data("mpi_rc_ipv6", "rc 6"),
        data("mpi_ud", "ud 4"),
        data("mpi_ud_ipv6", "ud 6"),
        data("mpi_rc_long", "rc 4 --rounds 60"),
        data("mpi_ud_long", "ud 4 --rounds 60"),
        ranks("mpi_on_demand", "on_demand server", "on_demand client"),
        fabric("fabric_msg", "-p verbs -e msg"),
        fabric("fabric_rxm", "-p 'verbs;ofi_rxm' -e rdm"),
        qperf("qperf_send", "rc_bw rc_lat"),
        qperf("qperf_write", "rc_rdma_write_bw rc_rdma_write_lat"),
        qperf("qperf_read", "rc_rdma_read_bw rc_rdma_read_lat"),
        qperf("qperf_atomic", "ver_rc_compare_swap ver_rc_fetch_add"),
        fio("write"),
        fio("read"),
        fio("send"),
    ]
}

/// The first guest swaps to a disk of the second, over the NIC that others want its memory through.
fn swap() -> Vec<GuestTest> {
    let swapped = |name: &str, server: &str, client: &str, seconds: u64| {
        test(
            name,
            &format!("ulp_nvme swap && {server}"),
            &format!("ulp_nvme swap_server && {client} $PEER_IP"),
            Ready::Now,
            seconds,
            "all right",
        )
    };
    // The memory of a guest is never all its region's.
    let (much, some) = (3 * needs::SMALL_MEMORY, needs::SMALL_MEMORY);
    vec![
        swapped(
            "rnr",
            &format!("odp_oversubscribe --times 1 --mib {some}"),
            "odp_oversubscribe",
            600,
        ),
        swapped(
            "three_times",
            &format!("odp_oversubscribe --times 3 --mib {much}"),
            "odp_oversubscribe",
            900,
        ),
        swapped(
            "stall",
            &format!("swap_deadlock --mib {}", some * 3 / 2),
            "swap_deadlock",
            300,
        ),
    ]
}

/// What only the debug kernel can do.
fn debug_kernel() -> Vec<GuestTest> {
    vec![alone("failing_allocations", "fail_nth")]
}
