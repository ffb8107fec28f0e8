// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Definitions of the tracepoints that faultline_trace.h declares. */
#define CREATE_TRACE_POINTS
#include "faultline_trace.h"
