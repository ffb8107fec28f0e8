// SPDX-License-Identifier: Apache-2.0 OR MIT
/* The options; see torture.h for what this is. */
#include "torture.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
	"odp_torture [options]              the victim, whose memory is under attack\n"
	"odp_torture [options] <address>    the client, which drives verified traffic\n"
	"  --seconds N      how long the client drives traffic (20)\n"
	"  --seed N         of everything random (1)\n"
	"  --qps N          lanes on memory that keeps its content (4)\n"
	"  --events a,b,…   the victim's events, all by default: munmap mremap mprotect\n"
	"                   dontneed free dereg fork pageout swap ksm split collapse\n"
	"                   migrate compact memcg exit; with --dax: punch truncate\n"
	"  --implicit       one region over the whole address space\n"
	"  --same-iova      addresses on the wire are the memory's own\n"
	"  --pinned         pinned regions and no events: a check of this program and the NIC\n"
	"  --policy NAME    what the victim's queue pairs do about absent pages: rnr, drop, stall\n"
	"  --aligned        messages of one packet that begin with a page (for rdma_rxe)\n"
	"  --dax FOLDER     areas are files in this folder, as far as that is possible\n"
	"  --port N         of the control connection (18600)\n"
	"The device and its GID are RDMA_DEV and GID_INDEX of the environment.\n";

static const struct fault_policy *policy_named(const char *name)
{
	static const struct fault_policy policies[] = {
		{ "rnr", FAULTLINEDV_FAULT_RNR, "page_fault_rnr" },
		{ "drop", FAULTLINEDV_FAULT_DROP, "page_fault_drops" },
		{ "stall", FAULTLINEDV_FAULT_STALL, "stalls" },
	};

	for (size_t i = 0; i < sizeof(policies) / sizeof(*policies); i++)
		if (!strcmp(name, policies[i].name))
			return &policies[i];
	die("there is no fault policy %s", name);
}

int main(int argc, char **argv)
{
	static const struct option words[] = {
		{ "seconds", required_argument, NULL, 's' },
		{ "seed", required_argument, NULL, 'r' },
		{ "qps", required_argument, NULL, 'q' },
		{ "events", required_argument, NULL, 'e' },
		{ "implicit", no_argument, NULL, 'i' },
		{ "same-iova", no_argument, NULL, 'I' },
		{ "pinned", no_argument, NULL, 'P' },
		{ "policy", required_argument, NULL, 'f' },
		{ "aligned", no_argument, NULL, '1' },
		{ "dax", required_argument, NULL, 'd' },
		{ "port", required_argument, NULL, 'p' },
		{ "sacrifice", no_argument, NULL, 'x' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	struct options options = { .seconds = 20, .qps = 4, .seed = 1, .port = 18600 };
	bool sacrificed = false;
	int option;

	while ((option = getopt_long(argc, argv, "", words, NULL)) >= 0) {
		switch (option) {
		case 's':
			options.seconds = strtoul(optarg, NULL, 0);
			break;
		case 'r':
			options.seed = strtoull(optarg, NULL, 0);
			break;
		case 'q':
			options.qps = strtoul(optarg, NULL, 0);
			break;
		case 'e':
			options.events = optarg;
			break;
		case 'i':
			options.implicit = true;
			break;
		case 'I':
			options.same_iova = true;
			break;
		case 'P':
			options.pinned = true;
			break;
		case 'f':
			options.policy = policy_named(optarg);
			break;
		case '1':
			options.aligned = true;
			break;
		case 'd':
			options.dax = optarg;
			break;
		case 'p':
			options.port = strtoul(optarg, NULL, 0);
			break;
		case 'x':
			sacrificed = true;
			break;
		default:
			fputs(usage, option == 'h' ? stdout : stderr);
			return option == 'h' ? 0 : 2;
		}
	}
	if (argc - optind > 1 || !options.seconds || !options.qps || options.qps > 16 ||
	    (options.pinned && options.implicit)) {
		fputs(usage, stderr);
		return 2;
	}
	if (sacrificed)
		return sacrifice(&options);
	options.host = argv[optind];
	return options.host ? client(&options) : victim(&options);
}
