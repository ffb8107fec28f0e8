#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Boots two virtual machines with libvirt, by the steps of the package's README.Debian, in a root without systemd:
# boot-with-libvirt SERVE CMDLINE
# SERVE is the text of serve-from-package.sh, CMDLINE is for the kernel. /mnt has the packages, `disk`, `kernel` and `initrd`, and gets
# the folder `logs`.
set -eu
serve=$1 cmdline=$2
docs=/usr/share/doc/faultline
images=/var/lib/libvirt/images
logs=/mnt/logs
# For a boot and the messages. Machines without hardware virtualization take a minute on an idle host.
limit=600
reason='a command failed; its message is above the logs'

# Keeps the logs, and prints the ends of those that explain a failure.
finish() {
	status=$?
	cp -r /var/log/libvirt "$logs" || true
	[ "$status" != 0 ] || return 0
	tail -n 6 "$logs"/faultline.log "$logs"/libvirtd.log "$logs"/libvirt/qemu/*.log || true
	echo "boot-with-libvirt: $reason"
}

fail() {
	reason=$1
	exit 1
}

# Waits until a command succeeds: until_is SECONDS COMMAND…
until_is() {
	tries=$(($1 * 5))
	shift
	until "$@" >/dev/null 2>&1; do
		tries=$((tries - 1))
		[ "$tries" -gt 0 ] || return 1
		sleep 0.2
	done
}

# What libvirt needs of a booted system and this root does not have.
make_devices() {
	mount -t sysfs -o ro sysfs /sys
	mkdir -p /dev/pts /dev/net
	mount -t devpts -o gid=tty,mode=620,ptmxmode=666 devpts /dev/pts
	mknod -m 666 /dev/net/tun c 10 200
}

start_daemons() {
	# Processes that enter a mount namespace leave a chroot: no QEMU gets a /dev of its own.
	echo 'namespaces = []' >>/etc/libvirt/qemu.conf
	virtlogd >"$logs/virtlogd.log" 2>&1 &
	# In a network of its own: the bridge of the network `default` is none of the host's.
	unshare --net libvirtd >"$logs/libvirtd.log" 2>&1 &
	until_is 30 virsh version || fail 'libvirtd does not answer'
}

# The disk of a machine. A user has one: this one is backed by that of the test, which stays unchanged.
make_disk() {
	qemu-img create -q -f qcow2 -F raw -b /mnt/disk "$images/$1.qcow2"
}

# Replaces a part of the domain, which must have it: change DOMAIN PART REPLACEMENT
change() {
	grep -q -- "$2" "$1" || fail "domain.xml has no \"$2\""
	sed -i "s|$2|$3|" "$1"
}

# Makes a domain of the example: adapt EXAMPLE INDEX
adapt() {
	domain=/tmp/rdma$2.xml
	cp "$1" "$domain"
	# The second machine has another name, disk and NIC.
	change "$domain" rdma0 "rdma$2"
	change "$domain" nic0.sock "nic$2.sock"
	# The host may have no hardware virtualization. Without it, QEMU has a race between several processors (Plan::cpus).
	change "$domain" "type='kvm'" "type='qemu'"
	change "$domain" "mode='host-passthrough'" "mode='maximum'"
	change "$domain" '<vcpu>2<' '<vcpu>1<'
	# The disk has no boot loader.
	change "$domain" '</type>' "</type><kernel>/mnt/kernel</kernel><initrd>/mnt/initrd</initrd>\
<cmdline>$cmdline systemd.run=\"/usr/local/bin/domain_of_libvirt $2\" systemd.run_success_action=none\
 systemd.run_failure_action=none</cmdline>"
	# This test reads the console.
	change "$domain" "<console type='pty'/>" "<console type='pty'><log file='/var/log/libvirt/qemu/console$2.log'/></console>"
	virsh define "$domain"
}

console() {
	cat "/var/log/libvirt/qemu/console$1.log"
}

# True when a machine has ended its part or its kernel has stopped.
has_ended() {
	console "$1" | grep -E 'domain_of_libvirt: exit status|Kernel panic'
}

has_passed() {
	until_is "$limit" has_ended "$1" || fail "machine $1 has not ended its part after $limit s"
	console "$1" | grep 'domain_of_libvirt: exit status 0' || fail "machine $1 has failed"
	console "$1" | grep 'usec/iter' || fail "machine $1 has sent nothing"
	console "$1" | grep '/updates/dkms/faultline' || fail "machine $1 has another driver than that of the package"
}

trap finish EXIT
mkdir "$logs"
# libvirt's QEMU, which is another user, opens files there.
chmod 711 /mnt
make_devices
printf 'APT::Get::Assume-Yes "true";\nAPT::Install-Recommends "false";\n' >/etc/apt/apt.conf.d/90test
sh -euc "$serve" serve 'apt install ./faultline_*.deb' >"$logs/faultline.log" 2>&1 &
until_is 60 faultline ctl nics || fail 'the package of the host serves no NICs'
apt-get update

sed -n '/^libvirt$/,/^Ports/s/^    //p' $docs/README.Debian >/tmp/steps
grep -q '^virsh start rdma0' /tmp/steps || fail 'README.Debian starts no machine'
exec 3</tmp/steps
while IFS= read -r step <&3; do
	echo "+ $step"
	case $step in
	# As systemd does. The daemon is not started again after the further steps.
	'apt install libvirt-daemon-system '*)
		sh -euc "$step"
		start_daemons
		;;
	'virsh define '*)
		apt-get install qemu-utils
		make_disk rdma0
		make_disk rdma1
		adapt "${step#virsh define }" 0
		adapt "${step#virsh define }" 1
		;;
	*) sh -euc "$step" ;;
	esac
done
virsh start rdma1

for index in 0 1; do
	virsh qemu-monitor-command "rdma$index" --hmp 'info pci' >/tmp/pci
	grep -A 1 'Bus  0, device  30, function 0' /tmp/pci | grep -i '1af4:10f0' || fail "machine $index has no NIC: $(cat /tmp/pci)"
	[ "$(stat -c %U "/proc/$(cat "/run/libvirt/qemu/rdma$index.pid")")" = libvirt-qemu ] || fail "QEMU $index runs as another user"
done
has_passed 1
has_passed 0

for index in 0 1; do
	virsh destroy "rdma$index"
done
# Without its group, QEMU is refused.
gpasswd -d libvirt-qemu faultline
if virsh start rdma0 >/tmp/refused 2>&1; then
	fail 'QEMU connects to a NIC although it is not a member of the group'
fi
grep "Failed to connect to '/run/faultline/nic0.sock': Permission denied" /tmp/refused || fail "$(cat /tmp/refused)"
for index in 0 1; do
	virsh undefine "rdma$index"
done
[ -z "$(virsh list --all --name)" ] || fail "$(virsh list --all)"
if pgrep -l qemu-system; then
	fail 'a QEMU is left'
fi
virsh net-destroy default
faultline ctl nics
