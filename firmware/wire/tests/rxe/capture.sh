# Captures one packet of each kind that rdma_rxe sends, over IPv4 and over IPv6:
#   cargo lab run --nic rxe --guests 2 --script firmware/wire/tests/rxe/capture.sh
# The packets are in the artefacts of the guests, one in hexadecimal digits a line.
cd $ARTEFACTS
cat > sniff.py <<'PY'
import socket, sys, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind((sys.argv[1], 0)); s.settimeout(0.5)
seen = {}
end = time.time() + float(sys.argv[2])
out = open('packets.txt', 'w')
while time.time() < end:
    try: f, a = s.recvfrom(10000)
    except socket.timeout: continue
    if a[2] == 4: continue          # ours, checksums not filled in yet
    et = f[12:14]
    if et == b'\x08\x00' and f[23] == 17: off = 14 + (f[14] & 15) * 4
    elif et == b'\x86\xdd' and f[20] == 17: off = 54
    else: continue
    if f[off+2:off+4] != b'\x12\xb7': continue
    op = f[off+8]; pad = (f[off+9] >> 4) & 3
    synd = f[off+20] if op in (0x11,) else 0
    k = (et, op, pad, synd >> 5)
    if seen.get(k, 0) >= 1 or len(f) > 700: continue
    seen[k] = seen.get(k, 0) + 1
    out.write(f.hex() + '\n'); out.flush()
PY
DEV=$(ls /sys/class/infiniband | head -1); ND=$(ls /sys/class/infiniband/$DEV/device/net 2>/dev/null | head -1); [ -n "$ND" ] || ND=$(cat /sys/class/infiniband/$DEV/parent)
echo dev $DEV netdev $ND; rdma link; uname -r; dpkg -s rdma-core | grep ^Version
for i in 0 1 2 3 4; do echo gid $i $(cat /sys/class/infiniband/$DEV/ports/1/gids/$i) $(cat /sys/class/infiniband/$DEV/ports/1/gid_attrs/types/$i 2>/dev/null); done
python3 sniff.py $ND 60 & S=$!
G4=""; G6=""
for i in 0 1 2 3 4; do g=$(cat /sys/class/infiniband/$DEV/ports/1/gids/$i 2>/dev/null); case $g in *ffff:*) G4=$i;; fe80*) G6=$i;; esac; done
echo G4 $G4 G6 $G6
lab barrier start
run() { # name, command
  n=$1; shift
  if [ $GUEST_INDEX = 0 ]; then timeout 10 "$@" > /dev/null 2>&1 & P=$!; sleep 0.7; lab barrier $n; wait $P; else lab barrier $n; sleep 0.3; timeout 10 "$@" $PEER_IP >/dev/null 2>&1; fi
  lab barrier done$n; }
for g in $G4 $G6; do
 run p1$g ibv_rc_pingpong -d $DEV -g $g -m 256 -s 600 -n 3
 run p2$g ibv_rc_pingpong -d $DEV -g $g -m 256 -s 37 -n 3
 run p3$g ibv_uc_pingpong -d $DEV -g $g -m 256 -s 601 -n 3
 run p4$g ibv_ud_pingpong -d $DEV -g $g -s 102 -n 3
 run p5$g ib_write_bw -d $DEV -x $g -m 256 -s 600 -n 5 -F
 run p6$g ib_read_bw -d $DEV -x $g -m 256 -s 600 -n 5 -F
 run p7$g ib_atomic_bw -d $DEV -x $g -n 5 -F -A FETCH_AND_ADD
 run p8$g ib_atomic_bw -d $DEV -x $g -n 5 -F -A CMP_AND_SWAP
 run p9$g ib_write_lat -d $DEV -x $g -s 3 -n 5 -F
done
wait $S; wc packets.txt
