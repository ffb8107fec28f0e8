/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* How a test ends that finds something wrong. */
#ifndef CHECK_H
#define CHECK_H

/* The last message of the driver. */
extern char last_message[1024];

#define CHECK(condition)							\
	do {									\
		if (!(condition)) {						\
			fprintf(stderr, "%s:%d: %s: false: %s\n", __FILE__,	\
				__LINE__, __func__, #condition);		\
			fprintf(stderr, "last message: %s", last_message);	\
			exit(1);						\
		}								\
	} while (0)

#endif
