// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * An MPI program of two or more ranks whose data depends on its position, its sender and the round: messages in both
 * directions at once, collectives, and one-sided access to windows. It ends with "all right" if every byte of every
 * rank was right.
 *
 * It is compiled in the guests, by their mpicc: the lab's own root has no MPI.
 *
 *	mpi_data [--rounds N] [--fresh]
 *
 * --fresh: each message has memory of its own, mapped for it and unmapped behind it, often at the same addresses, which a
 * registration cache must notice.
 */
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LARGEST ((1 << 20) + 3)
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* Eager, both sides of the limits of rendezvous and of the MTU, not aligned. */
static const int sizes[] = { 1, 7, 1024, 4097, 8191, 65537, 300001, LARGEST };

static int rank, ranks;
static bool fresh;
static long wrong;
static uint8_t *pool[2];

static uint8_t byte_of(unsigned int sender, unsigned int round, size_t offset)
{
	uint64_t word = (offset / 8 + 1) * 0x9e3779b97f4a7c15 + sender * 0xbf58476d1ce4e5b9 +
			round * 0x94d049bb133111eb;

	word ^= word >> 29;
	word *= 0xff51afd7ed558ccd;
	return word >> (offset % 8 * 8);
}

static void fill(uint8_t *to, unsigned int sender, unsigned int round, size_t length)
{
	for (size_t i = 0; i < length; i++)
		to[i] = byte_of(sender, round, i);
}

static void check(const char *what, const uint8_t *at, unsigned int sender, unsigned int round,
		  size_t length)
{
	long bad = 0;

	for (size_t i = 0; i < length; i++)
		bad += at[i] != byte_of(sender, round, i);
	if (bad)
		printf("rank %d: %s of %zu bytes from %u in round %u: %ld are wrong\n", rank, what,
		       length, sender, round, bad);
	wrong += bad;
}

static uint8_t *take(int which, size_t length)
{
	uint8_t *memory;

	if (!fresh) {
		/* Not at the start of a page, and each length elsewhere. */
		memory = pool[which] + length % 61;
	} else {
		memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory == MAP_FAILED) {
			perror("mmap");
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	}
	return memory;
}

static void give_back(uint8_t *memory, size_t length)
{
	if (fresh)
		munmap(memory, length);
}

/* Each rank sends to the next one and receives from the one before it. */
static void messages(unsigned int round)
{
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		int length = sizes[i], count;
		uint8_t *out = take(0, length), *in = take(1, length);
		MPI_Request requests[2];
		MPI_Status status[2];

		fill(out, rank, round, length);
		memset(in, 0xee, length);
		MPI_Irecv(in, length, MPI_BYTE, before, 7, MPI_COMM_WORLD, &requests[0]);
		/* Every other round waits for the receiver. */
		if (round % 2)
			MPI_Issend(out, length, MPI_BYTE, next, 7, MPI_COMM_WORLD, &requests[1]);
		else
			MPI_Isend(out, length, MPI_BYTE, next, 7, MPI_COMM_WORLD, &requests[1]);
		MPI_Waitall(2, requests, status);
		MPI_Get_count(&status[0], MPI_BYTE, &count);
		wrong += count != length;
		check("a message", in, before, round, length);
		give_back(out, length);
		give_back(in, length);
	}
}

static void collectives(unsigned int round)
{
	enum { PART = 20000, NUMBERS = 3000 };
	static long numbers[NUMBERS], sums[NUMBERS];
	uint8_t *out = take(0, (size_t)ranks * PART), *in = take(1, (size_t)ranks * PART);

	for (int root = 0; root < ranks; root++) {
		fill(in, rank, round, PART);
		MPI_Bcast(in, PART, MPI_BYTE, root, MPI_COMM_WORLD);
		check("a broadcast", in, root, round, PART);
	}
	fill(out, rank, round, PART);
	memset(in, 0xee, (size_t)ranks * PART);
	MPI_Allgather(out, PART, MPI_BYTE, in, PART, MPI_BYTE, MPI_COMM_WORLD);
	for (int from = 0; from < ranks; from++)
		check("a gathering", in + (size_t)from * PART, from, round, PART);
	for (int to = 0; to < ranks; to++)
		fill(out + (size_t)to * PART, rank, round + to, PART);
	memset(in, 0xee, (size_t)ranks * PART);
	MPI_Alltoall(out, PART, MPI_BYTE, in, PART, MPI_BYTE, MPI_COMM_WORLD);
	for (int from = 0; from < ranks; from++)
		check("an exchange", in + (size_t)from * PART, from, round + rank, PART);
	for (int i = 0; i < NUMBERS; i++)
		numbers[i] = (long)(round + 1) * i + rank;
	MPI_Allreduce(numbers, sums, NUMBERS, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < NUMBERS; i++)
		wrong += sums[i] != (long)ranks * (round + 1) * i + (long)ranks * (ranks - 1) / 2;
	give_back(out, (size_t)ranks * PART);
	give_back(in, (size_t)ranks * PART);
}

/* WRITE, READ and atomics, as far as the transport has them. */
static void windows(unsigned int round)
{
	enum { PART = 50001 };
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	uint8_t *out = take(0, PART), *in = take(1, PART);
	uint8_t *base;
	long one = 1, *counter;
	MPI_Win window;

	/* The data that the other one puts, the data that it gets from here, a counter. */
	MPI_Win_allocate(2 * 65536 + sizeof(long), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);
	counter = (long *)(base + 2 * 65536);
	MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
	fill(base + 65536, rank, round, PART);
	*counter = rank;
	MPI_Win_unlock(rank, window);
	MPI_Barrier(MPI_COMM_WORLD);
	fill(out, rank, round, PART);
	MPI_Win_lock_all(0, window);
	MPI_Put(out, PART, MPI_BYTE, next, 0, PART, MPI_BYTE, window);
	MPI_Get(in, PART, MPI_BYTE, next, 65536, PART, MPI_BYTE, window);
	for (int i = 0; i < 10; i++)
		MPI_Accumulate(&one, 1, MPI_LONG, next, 2 * 65536, 1, MPI_LONG, MPI_SUM, window);
	MPI_Win_flush_all(window);
	MPI_Win_unlock_all(window);
	check("what was got", in, next, round, PART);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
	check("what was put", base, before, round, PART);
	wrong += *counter != rank + 10;
	MPI_Win_unlock(rank, window);
	MPI_Win_free(&window);
	give_back(out, PART);
	give_back(in, PART);
}

int main(int argc, char **argv)
{
	unsigned int rounds = 2;
	long all;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--fresh")) {
			fresh = true;
		} else if (!strcmp(argv[i], "--rounds") && i + 1 < argc) {
			rounds = strtoul(argv[++i], NULL, 10);
		} else {
			fprintf(stderr, "mpi_data [--rounds N] [--fresh]\n");
			MPI_Abort(MPI_COMM_WORLD, 2);
		}
	}
	for (size_t i = 0; i < ARRAY_SIZE(pool); i++) {
		pool[i] = malloc(LARGEST + 64);
		if (!pool[i])
			MPI_Abort(MPI_COMM_WORLD, 1);
	}
	for (unsigned int round = 0; round < rounds; round++) {
		messages(round);
		collectives(round);
		windows(round);
	}
	/* Also that there is another rank at all. */
	wrong += ranks < 2;
	MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	if (!rank)
		printf("%d ranks, %u rounds, %ld wrong: %s\n", ranks, rounds, all, all ? "WRONG" : "verified");
	MPI_Finalize();
	return all != 0;
}
