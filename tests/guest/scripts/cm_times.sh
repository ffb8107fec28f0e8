#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Times of the steps of 20 connections, with librdmacm's cmtime: cm_times server|client
. /lab/lib.sh

# In newer releases one of the two controls the steps; each names its own address and the controller's.
if cmtime -h 2>&1 | grep -q controller_address; then
	case $1 in
	server) exec cmtime -L -C "$MY_IP" -b "$MY_IP" -c 20 ;;
	client) exec cmtime -C "$PEER_IP" -b "$MY_IP" -c 20 ;;
	esac
fi
case $1 in
server) exec cmtime -b "$MY_IP" -c 20 ;;
client) exec cmtime -s "$PEER_IP" -c 20 ;;
esac
