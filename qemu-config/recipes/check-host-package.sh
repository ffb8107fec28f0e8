#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Installs, uses and removes the package faultline in a root, without systemd: check-host-package PACKAGE LIST-FILES
# LIST-FILES is the text of list-files.sh.
set -eu
package=$1 list=$2
sockets=/run/faultline config=/etc/faultline/faultline.toml
emulator=

fail() {
	echo "check-host-package: $1" >&2
	[ -z "$emulator" ] || kill "$emulator"
	exit 1
}

# Runs a command that must fail with this text on standard error.
refused() {
	text=$1
	shift
	if "$@" >/tmp/out 2>&1; then
		fail "succeeded: $*"
	fi
	grep -qF -- "$text" /tmp/out || fail "$* did not say \"$text\" but: $(cat /tmp/out)"
	echo "ok: $(grep -F -- "$text" /tmp/out | tail -n 1)"
}

sh -c "$list" >/tmp/before
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
dpkg -i "$package"
getent passwd faultline >/dev/null || fail "there is no user faultline"
test -s /var/lib/systemd/deb-systemd-helper-enabled/faultline.service.dsh-also || fail "the service is not enabled"

# As the service's RuntimeDirectory= does.
install -d -m 750 -o faultline -g faultline "$sockets"
setpriv --reuid faultline --regid faultline --init-groups faultline serve --config "$config" >/tmp/emulator.log 2>&1 &
emulator=$!
tries=0
until faultline ctl nics >/tmp/nics 2>/dev/null; do
	tries=$((tries + 1))
	[ "$tries" -lt 100 ] || fail "the service does not answer: $(cat /tmp/emulator.log)"
	sleep 0.1
done
grep -q nic1 /tmp/nics || fail "nic1 is not served: $(cat /tmp/nics)"
[ "$(stat -c '%a %U %G' "$sockets/nic0.sock")" = '660 faultline faultline' ] || fail "$(ls -l "$sockets")"
[ "$(stat -c '%a %U %G' "$sockets/control.sock")" = '600 faultline faultline' ] || fail "$(ls -l "$sockets")"
useradd -M -N member
runuser -u member -g faultline -- nc -N -U "$sockets/nic0.sock" </dev/null || fail "a member of the group cannot connect"
refused 'Permission denied' runuser -u member -- nc -N -U "$sockets/nic0.sock"
userdel member

refused "socket $sockets/nic0.sock is in use by another process" \
	runuser -u faultline -- faultline serve --config "$config"
refused "no permission to create the socket $sockets/nic2.sock" \
	runuser -u nobody -- faultline serve --nic "a=$sockets/nic2.sock"
refused 'no permission to connect to' runuser -u nobody -g faultline -- faultline ctl nics
printf 'socket_group = "absent"\n[[nic]]\nname = "a"\nsocket = "/tmp/a.sock"\n' >/tmp/absent.toml
refused 'there is no group "absent" on this system; create it' \
	faultline serve --config /tmp/absent.toml
printf 'socket_group = "disk"\n[[nic]]\nname = "a"\nsocket = "/run/faultline/a.sock"\n' >/tmp/other.toml
refused 'run faultline as a member of this group, or as root' \
	runuser -u faultline -- faultline serve --config /tmp/other.toml

# A NIC with a group of its own. Members of the service's group reach its folder, but not this socket.
groupadd tenant
useradd -M -N -G faultline neighbour
useradd -M -N -G faultline,tenant tenant
usermod -aG tenant faultline
printf 'socket_group = "faultline"\n[[nic]]\nname = "t"\nsocket = "%s/t.sock"\nsocket_group = "tenant"\n' "$sockets" >/tmp/tenant.toml
setpriv --reuid faultline --regid faultline --init-groups faultline serve --config /tmp/tenant.toml >/tmp/tenant.log 2>&1 &
of_tenant=$!
tries=0
until [ -S "$sockets/t.sock" ] && [ "$(stat -c %G "$sockets/t.sock")" = tenant ]; do
	tries=$((tries + 1))
	[ "$tries" -lt 100 ] || fail "the socket has not the group of its NIC: $(cat /tmp/tenant.log)"
	sleep 0.1
done
runuser -u tenant -- nc -N -U "$sockets/t.sock" </dev/null || fail "a member of the NIC's group cannot connect"
refused 'Permission denied' runuser -u neighbour -- nc -N -U "$sockets/t.sock"
kill "$of_tenant"
wait "$of_tenant" || fail "the emulator of the tenant ended with an error: $(cat /tmp/tenant.log)"
userdel tenant
userdel neighbour
! getent group tenant >/dev/null || groupdel tenant

kill "$emulator"
wait "$emulator" || fail "the emulator ended with an error: $(cat /tmp/emulator.log)"
[ -z "$(ls "$sockets")" ] || fail "sockets remain: $(ls "$sockets")"
emulator=
dpkg -P faultline
sh -c "$list" >/tmp/after
diff /tmp/before /tmp/after || fail "the removal has not left what was there before"
echo "ok: nothing remains"
