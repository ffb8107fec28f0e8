#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs a program that keeps its queue pairs as long as its peer may need them: linger COMMAND…
LD_PRELOAD=/usr/local/bin/lingering.so exec "$@"
