/* SPDX-License-Identifier: (GPL-2.0 OR BSD-3-Clause) OR Apache-2.0 OR MIT */
/*
 * Contract between the Faultline device and its drivers.
 *
 * Generated from firmware/abi; do not edit. See docs/hardware-manual.md.
 */
#ifndef FAULTLINE_ABI_H
#define FAULTLINE_ABI_H

#include <linux/types.h>

#define FAULTLINE_ABI_VERSION 0x20004
#define FAULTLINE_MAGIC 0x4c544c46

/* PCI identity and BARs. */
/* PCI vendor id. */
#define FAULTLINE_PCI_VENDOR 0x1af4
/*
 * PCI device id, from the range QEMU leaves to unregistered, experimental use.
 * Vendor and device id are defaults: a device can have others, which its driver
 * has to be told.
 */
#define FAULTLINE_PCI_DEVICE 0x10f0
/* PCI subsystem vendor id; the same for all vendor and device ids. */
#define FAULTLINE_PCI_SUBSYSTEM_VENDOR 0x1af4
/* PCI subsystem id; the same for all vendor and device ids. */
#define FAULTLINE_PCI_SUBSYSTEM 0x10f0
/* BAR of the registers. */
#define FAULTLINE_BAR_REGS 0
/* BAR of the doorbell pages, followed by the kick pages. */
#define FAULTLINE_BAR_DOORBELL 2
/* BAR of the MSI-X table and pending bits. */
#define FAULTLINE_BAR_MSIX 4
/* Size of the register BAR in bytes. */
#define FAULTLINE_REGS_SIZE 0x10000
/* Size of a doorbell page and of a kick page in bytes. */
#define FAULTLINE_PAGE_SIZE 0x1000
/* Number of MSI-X vectors. */
#define FAULTLINE_MSIX_VECTORS 0x10

/* Offsets of the registers in BAR 0. */
/*
 * RO. "FLTL", first letter in the lowest byte; all ones: the device was
 * removed.
 */
#define FAULTLINE_REG_MAGIC 0
/* RO. Version of this contract, major << 16 | minor. */
#define FAULTLINE_REG_ABI_VERSION 4
/* RO. FAULTLINE_STATUS_* bits. */
#define FAULTLINE_REG_STATUS 8
/* RW. FAULTLINE_CONTROL_* bits. */
#define FAULTLINE_REG_CONTROL 0xc
/* RO, 64 bits. FAULTLINE_FEATURE_* bits. */
#define FAULTLINE_REG_FEATURES 0x10
/* RO, 64 bits. Permanent MAC address: byte 0 in the lowest byte. */
#define FAULTLINE_REG_MAC 0x20
/* RO. Cause of FAULTLINE_STATUS_FATAL: FAULTLINE_FATAL_*. */
#define FAULTLINE_REG_FATAL_CODE 0x28
/*
 * RO, 64 bits. Device clock in nanoseconds. Reading the low half latches the
 * high half.
 */
#define FAULTLINE_REG_CLOCK 0x30
/* RW, 64 bits. DMA address of the admin submission ring (4 KiB aligned). */
#define FAULTLINE_REG_ADMIN_SQ_BASE 0x40
/* RW, 64 bits. DMA address of the admin completion ring (4 KiB aligned). */
#define FAULTLINE_REG_ADMIN_CQ_BASE 0x48
/* RW. log2 of the number of entries in each admin ring, 1..=8. */
#define FAULTLINE_REG_ADMIN_LOG_DEPTH 0x50
/* RW. Event queue that gets FAULTLINE_EVENT_ADMIN, or all ones for none. */
#define FAULTLINE_REG_ADMIN_EQN 0x54
/*
 * RW, 64 bits. DMA address of the translation submission ring (4 KiB aligned).
 */
#define FAULTLINE_REG_TRANSLATION_SQ_BASE 0x60
/*
 * RW, 64 bits. DMA address of the translation completion ring (4 KiB aligned).
 */
#define FAULTLINE_REG_TRANSLATION_CQ_BASE 0x68
/* RW. log2 of the number of entries in each translation ring, 1..=8. */
#define FAULTLINE_REG_TRANSLATION_LOG_DEPTH 0x70
/*
 * RO. Number of doorbell pages at the start of BAR 2. Page 0 belongs to the
 * kernel.
 */
#define FAULTLINE_REG_DOORBELL_PAGES 0x78
/* RO. Offset in BAR 2 of kick page 0, in bytes. */
#define FAULTLINE_REG_KICK_OFFSET 0x7c
/* RO. Speed of the link in Mbit/s; 0: unknown. A change raises no event. */
#define FAULTLINE_REG_LINK_SPEED 0x80
/* RO. struct faultline_caps. */
#define FAULTLINE_REG_CAPS 0x100

/* Bits of FAULTLINE_REG_STATUS. */
/* The rings are accepted; the device serves commands and doorbells. */
#define FAULTLINE_STATUS_ENABLED 1
/* The link is up. */
#define FAULTLINE_STATUS_LINK_UP 2
/* The device has stopped and needs a reset. See FAULTLINE_REG_FATAL_CODE. */
#define FAULTLINE_STATUS_FATAL 4

/* Bits of FAULTLINE_REG_CONTROL. */
/*
 * Set: read the ring registers and start. Clear: stop and destroy every object.
 */
#define FAULTLINE_CONTROL_ENABLE 1
/* Reset the function as FLR does; reads as zero. */
#define FAULTLINE_CONTROL_RESET 2

/* Values of FAULTLINE_REG_FATAL_CODE. */
/* No fatal error. */
#define FAULTLINE_FATAL_NONE 0
/* A ring register was out of range when ENABLE was set. */
#define FAULTLINE_FATAL_BAD_RINGS 1
/* An admin or translation ring can't be read or written. */
#define FAULTLINE_FATAL_RING_DMA 2
/* An event queue can't be written, or overflowed. */
#define FAULTLINE_FATAL_EVENT_QUEUE 3
/* Requested by the operator. */
#define FAULTLINE_FATAL_INJECTED 4

/* Bits of FAULTLINE_REG_FEATURES. */
/* Regions may be registered on demand; absent pages raise page-fault events. */
#define FAULTLINE_FEATURE_ODP 1
/* Implicit regions over the whole address space. */
#define FAULTLINE_FEATURE_ODP_IMPLICIT 2
/* Extended reliable connections. */
#define FAULTLINE_FEATURE_XRC 4
/* Memory windows type 1 and 2B. */
#define FAULTLINE_FEATURE_MEMORY_WINDOWS 8
/* Fast registration work requests. */
#define FAULTLINE_FEATURE_FAST_REG 0x10
/* Attach queue pairs to multicast groups. */
#define FAULTLINE_FEATURE_MULTICAST 0x20
/* Flow steering for raw packet queue pairs. */
#define FAULTLINE_FEATURE_FLOW_STEERING 0x40
/* Checksum offload on raw Ethernet queue pairs. */
#define FAULTLINE_FEATURE_CHECKSUM 0x80

/* Command status. */
/* Done. */
#define FAULTLINE_OK 0
/* No such command. */
#define FAULTLINE_BAD_OPCODE 1
/* A reserved field is not zero. */
#define FAULTLINE_RESERVED_NOT_ZERO 2
/* A field that has no status of its own is out of range. */
#define FAULTLINE_BAD_PARAMETER 3
/* The limit on objects of this kind is reached. */
#define FAULTLINE_NO_RESOURCES 4
/* Other objects refer to the object. */
#define FAULTLINE_IN_USE 5
/* The device does not have this feature. */
#define FAULTLINE_NOT_SUPPORTED 6
/* The device could not read or write the memory that the command refers to. */
#define FAULTLINE_DMA_ERROR 7
/* No such protection domain. */
#define FAULTLINE_BAD_PD 8
/* No such memory key. */
#define FAULTLINE_BAD_MKEY 9
/* No such completion queue. */
#define FAULTLINE_BAD_CQ 0xa
/* No such event queue. */
#define FAULTLINE_BAD_EQ 0xb
/* No such queue pair. */
#define FAULTLINE_BAD_QP 0xc
/* No such shared receive queue. */
#define FAULTLINE_BAD_SRQ 0xd
/* No such address handle. */
#define FAULTLINE_BAD_AH 0xe
/* No such user context. */
#define FAULTLINE_BAD_UCTX 0xf
/* No such entry of the GID table, or the entry is empty. */
#define FAULTLINE_BAD_GID 0x10
/* The ring description is malformed or too small for the depth. */
#define FAULTLINE_BAD_RING 0x11
/* The depth is zero, no power of two where one is needed, or too large. */
#define FAULTLINE_BAD_DEPTH 0x12
/* The stride, SGE count or inline size is out of range. */
#define FAULTLINE_BAD_STRIDE 0x13
/* Unknown access bits, or a combination that the specification forbids. */
#define FAULTLINE_BAD_ACCESS 0x14
/* A range wraps, is empty, or leaves the object. */
#define FAULTLINE_BAD_RANGE 0x15
/* The page size is not supported or an address is not aligned to it. */
#define FAULTLINE_BAD_PAGE_SIZE 0x16
/* The transition is not in the state table. */
#define FAULTLINE_BAD_TRANSITION 0x17
/* The transition lacks an attribute that it requires. */
#define FAULTLINE_MISSING_ATTRIBUTE 0x18
/* The transition or the QP type does not allow one of the attributes. */
#define FAULTLINE_EXTRA_ATTRIBUTE 0x19
/* The value of an attribute is out of range. */
#define FAULTLINE_BAD_ATTRIBUTE 0x1a
/* The QP is not in the state that the caller named as the current one. */
#define FAULTLINE_WRONG_STATE 0x1b
/* Unknown QP type, or one this command can't handle. */
#define FAULTLINE_BAD_QP_TYPE 0x1c
/* The vector does not exist. */
#define FAULTLINE_BAD_VECTOR 0x1d
/* The completion queue holds more entries than the new depth. */
#define FAULTLINE_CQ_NOT_EMPTY 0x1e
/* No fault is outstanding under this token. */
#define FAULTLINE_BAD_TOKEN 0x1f
/*
 * Objects that belong to different protection domains or contexts were
 * combined.
 */
#define FAULTLINE_DOMAIN_MISMATCH 0x20
/* No such XRC domain. */
#define FAULTLINE_BAD_XRCD 0x21
/* No such flow. */
#define FAULTLINE_BAD_FLOW 0x3c
/* The flow matches fields of headers that it does not require. */
#define FAULTLINE_BAD_FLOW_FIELDS 0x3d
/* No such work queue. */
#define FAULTLINE_BAD_WQ 0x3e
/* No such indirection table. */
#define FAULTLINE_BAD_RWQ_IND_TABLE 0x3f
/* The address is not a multicast group. */
#define FAULTLINE_BAD_GROUP 0x40
/* The queue pair is not attached to the group. */
#define FAULTLINE_NOT_ATTACHED 0x41
/* No such allocation of device memory. */
#define FAULTLINE_BAD_DM 0x50
/* No free range of device memory is large enough. */
#define FAULTLINE_NO_DEVICE_MEMORY 0x51
/* No such counter set. */
#define FAULTLINE_BAD_COUNTERS 0x52
/* No such listener. */
#define FAULTLINE_BAD_LISTENER 0x5a
/* No such request for a connection. */
#define FAULTLINE_BAD_REQUEST 0x5b
/* The request has ended: its peer has gone, or it has waited for too long. */
#define FAULTLINE_REQUEST_GONE 0x5c
/* Another listener or connection has these addresses and ports. */
#define FAULTLINE_ADDRESS_IN_USE 0x5d
/*
 * The addresses are of different families, or none that a connection can have.
 */
#define FAULTLINE_BAD_ADDRESS 0x5e

/*
 * Fields of a doorbell: `lap << 63 | type << 56 | object << 32 | value`.
 *
 * The lap bit of the doorbell with index i is `!(i >> 8) & 1`. A slot whose
 * type is zero is free for one doorbell i; its 64 bits are `i >> 8`. So all
 * slots of a zeroed page are free for the first lap.
 */
/* Number of slots in the ring of a page. */
#define FAULTLINE_DB_RING_ENTRIES 0x100
/* Bits to shift an index right to find its lap. */
#define FAULTLINE_DB_LAP_SHIFT 8
/* Shift of the lap bit. */
#define FAULTLINE_DB_PHASE_SHIFT 0x3f
/* Shift of the type. */
#define FAULTLINE_DB_TYPE_SHIFT 0x38
/* Mask of the type, after the shift. */
#define FAULTLINE_DB_TYPE_MASK 0x7f
/* Shift of the object number. */
#define FAULTLINE_DB_OBJECT_SHIFT 0x20
/* Mask of the object number, after the shift. */
#define FAULTLINE_DB_OBJECT_MASK 0xffffff

/* Types of doorbells. */
/* Send queue of QP `object`: `value` is the producer index (modulo 2^32). */
#define FAULTLINE_DB_SQ 1
/*
 * Completion queue `object`: notify on the next completion after consumer index
 * `value`.
 */
#define FAULTLINE_DB_CQ_ARM 2
/* As CQ_ARM, but only a solicited or failed completion causes the event. */
#define FAULTLINE_DB_CQ_ARM_SOLICITED 3
/*
 * Event queue `object`, page 0 only: consumer index is `value`, interrupt on
 * the next event.
 */
#define FAULTLINE_DB_EQ_ARM 4
/* Admin ring, page 0 only: `value` is the producer index. */
#define FAULTLINE_DB_ADMIN 5
/* Translation ring, page 0 only: `value` is the producer index. */
#define FAULTLINE_DB_TRANSLATION 6
/* Wakes the device and has no other effect. */
#define FAULTLINE_DB_NOP 7
/*
 * Receive queue of QP `object`: `value` is the producer index. Rung only when
 * its record requests it.
 */
#define FAULTLINE_DB_RQ 8
/*
 * Tag matching SRQ `object`: `value` is the producer index of its operations.
 */
#define FAULTLINE_DB_TM_OPS 0x20

/*
 * Operations that may access an on-demand region; the values of `enum
 * ib_odp_transport_cap_bits`.
 */
/* SEND gathers. */
#define FAULTLINE_ODP_SEND 1
/* Receives scatter. */
#define FAULTLINE_ODP_RECV 2
/* RDMA WRITE. */
#define FAULTLINE_ODP_WRITE 4
/* RDMA READ. */
#define FAULTLINE_ODP_READ 8
/* Atomics. */
#define FAULTLINE_ODP_ATOMIC 0x10
/* Shared receive queues scatter. */
#define FAULTLINE_ODP_SRQ_RECV 0x20

/* Behaviour that the device requests of its driver. */
/*
 * The driver adds an entry of RoCE v1 before each entry of RoCE v2 to the
 * software's GID table, as adapters that support both have. The device has the
 * entries of RoCE v2 only, at the same indices.
 */
#define FAULTLINE_FEATURE_ROCE_V1_GIDS 1
/*
 * The device is an iWARP adapter (RFC 5040): queue pairs of type RC have TCP
 * connections, and there are no others but those for raw Ethernet frames.
 * Address handles and multicast groups are not used; the GID table has the own
 * addresses.
 */
#define FAULTLINE_FEATURE_IWARP 2

/* QP types. */
/* General services (QP1). */
#define FAULTLINE_QPT_GSI 1
/* Reliable connection. */
#define FAULTLINE_QPT_RC 2
/* Unreliable connection. */
#define FAULTLINE_QPT_UC 3
/* Unreliable datagram. */
#define FAULTLINE_QPT_UD 4
/* Raw Ethernet frames. */
#define FAULTLINE_QPT_RAW 8
/* XRC initiator. */
#define FAULTLINE_QPT_XRC_INI 9
/* XRC target. */
#define FAULTLINE_QPT_XRC_TGT 0xa

/* QP states; the values of `enum ib_qp_state`. */
/* Reset. */
#define FAULTLINE_QPS_RESET 0
/* Initialized. */
#define FAULTLINE_QPS_INIT 1
/* Ready to receive. */
#define FAULTLINE_QPS_RTR 2
/* Ready to send. */
#define FAULTLINE_QPS_RTS 3
/* Send queue drained. */
#define FAULTLINE_QPS_SQD 4
/* Send queue error. */
#define FAULTLINE_QPS_SQE 5
/* Error. */
#define FAULTLINE_QPS_ERR 6

/*
 * Attribute bits; the values of `enum ib_qp_attr_mask`, and the device's own
 * from bit 28.
 */
/* `state`. */
#define FAULTLINE_QP_ATTR_STATE 1
/* `cur_state`. */
#define FAULTLINE_QP_ATTR_CUR_STATE 2
/* `sqd_notify`. */
#define FAULTLINE_QP_ATTR_EN_SQD_ASYNC_NOTIFY 4
/* `access`. */
#define FAULTLINE_QP_ATTR_ACCESS_FLAGS 8
/* `pkey_index`. */
#define FAULTLINE_QP_ATTR_PKEY_INDEX 0x10
/* `port`. */
#define FAULTLINE_QP_ATTR_PORT 0x20
/* `qkey`. */
#define FAULTLINE_QP_ATTR_QKEY 0x40
/* `av`. */
#define FAULTLINE_QP_ATTR_AV 0x80
/* `path_mtu`. */
#define FAULTLINE_QP_ATTR_PATH_MTU 0x100
/* `timeout`. */
#define FAULTLINE_QP_ATTR_TIMEOUT 0x200
/* `retry_cnt`. */
#define FAULTLINE_QP_ATTR_RETRY_CNT 0x400
/* `rnr_retry`. */
#define FAULTLINE_QP_ATTR_RNR_RETRY 0x800
/* `rq_psn`. */
#define FAULTLINE_QP_ATTR_RQ_PSN 0x1000
/* `max_rd_atomic`. */
#define FAULTLINE_QP_ATTR_MAX_QP_RD_ATOMIC 0x2000
/* `min_rnr_timer`. */
#define FAULTLINE_QP_ATTR_MIN_RNR_TIMER 0x8000
/* `sq_psn`. */
#define FAULTLINE_QP_ATTR_SQ_PSN 0x10000
/* `max_dest_rd_atomic`. */
#define FAULTLINE_QP_ATTR_MAX_DEST_RD_ATOMIC 0x20000
/* `dest_qpn`. */
#define FAULTLINE_QP_ATTR_DEST_QPN 0x100000
/* `udp_sport`. */
#define FAULTLINE_QP_ATTR_UDP_SPORT 0x10000000
/* `fault_policy`. */
#define FAULTLINE_QP_ATTR_FAULT_POLICY 0x20000000

/* Access rights; the values of `enum ib_access_flags`. */
/* The device may write for local operations. */
#define FAULTLINE_ACCESS_LOCAL_WRITE 1
/* Peers may WRITE. */
#define FAULTLINE_ACCESS_REMOTE_WRITE 2
/* Peers may READ. */
#define FAULTLINE_ACCESS_REMOTE_READ 4
/* Peers may use atomics. */
#define FAULTLINE_ACCESS_REMOTE_ATOMIC 8
/* Windows may be bound. */
#define FAULTLINE_ACCESS_MW_BIND 0x10
/* Addresses count from zero. */
#define FAULTLINE_ACCESS_ZERO_BASED 0x20
/* Pages may be absent. */
#define FAULTLINE_ACCESS_ON_DEMAND 0x40
/* Backed by huge pages. */
#define FAULTLINE_ACCESS_HUGETLB 0x80
/* Peers may FLUSH to global visibility. */
#define FAULTLINE_ACCESS_FLUSH_GLOBAL 0x100
/* Peers may FLUSH to persistence. */
#define FAULTLINE_ACCESS_FLUSH_PERSISTENT 0x200

/* How a QP treats a packet that accesses an absent page. */
/* Answer with an RNR NAK. */
#define FAULTLINE_FAULT_POLICY_RNR 0
/* Drop the packet before it is acknowledged. */
#define FAULTLINE_FAULT_POLICY_DROP 1
/* Pause ingress: the packet and all packets after it wait. */
#define FAULTLINE_FAULT_POLICY_STALL 2
/* Terminate the connection. */
#define FAULTLINE_FAULT_POLICY_TERMINATE 3

/* Send opcodes. */
/* SEND. */
#define FAULTLINE_WR_SEND 0
/* SEND with immediate data. */
#define FAULTLINE_WR_SEND_IMM 1
/* SEND with invalidate. */
#define FAULTLINE_WR_SEND_INV 2
/* RDMA WRITE. */
#define FAULTLINE_WR_WRITE 3
/* RDMA WRITE with immediate data. */
#define FAULTLINE_WR_WRITE_IMM 4
/* RDMA READ. */
#define FAULTLINE_WR_READ 5
/* Compare and swap of 8 bytes. */
#define FAULTLINE_WR_COMP_SWAP 6
/* Fetch and add of 8 bytes. */
#define FAULTLINE_WR_FETCH_ADD 7
/*
 * Local invalidate: `rkey` is the key of a fast registration or of a window of
 * type 2.
 */
#define FAULTLINE_WR_LOCAL_INV 8
/* Fast registration (RegMrWqe). */
#define FAULTLINE_WR_REG_MR 9
/* Bind a memory window (BindMwWqe). */
#define FAULTLINE_WR_BIND_MW 0xa
/* FLUSH (FlushWqe). */
#define FAULTLINE_WR_FLUSH 0xb
/*
 * Atomic write of 8 bytes: as a WRITE, to an address that is a multiple of 8.
 */
#define FAULTLINE_WR_ATOMIC_WRITE 0xc
/* Raw Ethernet frame, without FCS. */
#define FAULTLINE_WR_RAW 0xd
/*
 * iWARP: RDMA READ with one SGE, after which `imm`, the key of the SGE, is
 * invalidated as by WR_LOCAL_INV.
 */
#define FAULTLINE_WR_READ_INV 0xe

/* Flags of a send work request. */
/* Write a completion. */
#define FAULTLINE_WR_FLAG_SIGNALED 1
/* Ask the responder for a solicited event. */
#define FAULTLINE_WR_FLAG_SOLICITED 2
/*
 * Wait for earlier READs, atomics, FLUSHes and atomic writes; a local
 * invalidate waits for all earlier work requests.
 */
#define FAULTLINE_WR_FLAG_FENCE 4
/* The data is in the work request. */
#define FAULTLINE_WR_FLAG_INLINE 8
/* Raw: fill the IPv4 header checksum and the TCP or UDP checksum. */
#define FAULTLINE_WR_FLAG_CSUM 0x10

/* Geometry. */
/* Offset of the first SGE, or of inline data, in a send work request. */
#define FAULTLINE_SQ_WQE_DATA 0x30
/* Offset of the first SGE in a receive work request. */
#define FAULTLINE_RQ_WQE_DATA 0x10
/* Smallest stride of a send queue, as log2. */
#define FAULTLINE_SQ_MIN_STRIDE_SHIFT 6
/* Largest stride of a queue, as log2. */
#define FAULTLINE_MAX_STRIDE_SHIFT 0xa
/* Smallest stride of a receive queue, as log2. */
#define FAULTLINE_RQ_MIN_STRIDE_SHIFT 5
/* Bytes of the record after a ring. */
#define FAULTLINE_RING_RECORD_SIZE 0x40
/*
 * Bytes at the start of a raw frame that the device parses for headers and in
 * which it fills in checksums.
 */
#define FAULTLINE_MAX_RAW_HEADERS 0x8a

/* Completion opcodes. */
/* SEND, with or without immediate data. */
#define FAULTLINE_WC_SEND 0
/* RDMA WRITE. */
#define FAULTLINE_WC_RDMA_WRITE 1
/* RDMA READ. */
#define FAULTLINE_WC_RDMA_READ 2
/* Compare and swap. */
#define FAULTLINE_WC_COMP_SWAP 3
/* Fetch and add. */
#define FAULTLINE_WC_FETCH_ADD 4
/* Bind a memory window. */
#define FAULTLINE_WC_BIND_MW 5
/* Local invalidate. */
#define FAULTLINE_WC_LOCAL_INV 6
/* A raw frame that was segmented. */
#define FAULTLINE_WC_TSO 7
/* Fast registration. */
#define FAULTLINE_WC_REG_MR 8
/* FLUSH. */
#define FAULTLINE_WC_FLUSH 9
/* Atomic write. */
#define FAULTLINE_WC_ATOMIC_WRITE 0xa
/* Tag added. `wqe` is the number of the operation. */
#define FAULTLINE_WC_TM_ADD 0x20
/* Tag removed. */
#define FAULTLINE_WC_TM_DEL 0x21
/* The count of unexpected messages was taken. */
#define FAULTLINE_WC_TM_SYNC 0x22
/* Receive of a SEND. */
#define FAULTLINE_WC_RECV 0x80
/* Receive consumed by a WRITE with immediate data. */
#define FAULTLINE_WC_RECV_RDMA_WITH_IMM 0x81
/* Receive of a tag matching SRQ. */
#define FAULTLINE_WC_TM_RECV 0xa0
/* Receive of a tag matching SRQ, of a message without a tag. */
#define FAULTLINE_WC_TM_NO_TAG 0xa1

/* Completion status; the values of `enum ib_wc_status`. */
/* Success. */
#define FAULTLINE_WC_STATUS_SUCCESS 0
/* Local length error. */
#define FAULTLINE_WC_STATUS_LOC_LEN_ERR 1
/* Local QP operation error. */
#define FAULTLINE_WC_STATUS_LOC_QP_OP_ERR 2
/* Local EE context operation error; not used. */
#define FAULTLINE_WC_STATUS_LOC_EEC_OP_ERR 3
/* Local protection error. */
#define FAULTLINE_WC_STATUS_LOC_PROT_ERR 4
/* Flushed: the QP went to error. */
#define FAULTLINE_WC_STATUS_WR_FLUSH_ERR 5
/* Memory window bind error. */
#define FAULTLINE_WC_STATUS_MW_BIND_ERR 6
/* Bad response. */
#define FAULTLINE_WC_STATUS_BAD_RESP_ERR 7
/* Local access error. */
#define FAULTLINE_WC_STATUS_LOC_ACCESS_ERR 8
/* Remote invalid request. */
#define FAULTLINE_WC_STATUS_REM_INV_REQ_ERR 9
/* Remote access error. */
#define FAULTLINE_WC_STATUS_REM_ACCESS_ERR 0xa
/* Remote operation error. */
#define FAULTLINE_WC_STATUS_REM_OP_ERR 0xb
/* Transport retries exhausted. */
#define FAULTLINE_WC_STATUS_RETRY_EXC_ERR 0xc
/* RNR retries exhausted. */
#define FAULTLINE_WC_STATUS_RNR_RETRY_EXC_ERR 0xd
/* Local RDD violation; not used. */
#define FAULTLINE_WC_STATUS_LOC_RDD_VIOL_ERR 0xe
/* Remote invalid RD request; not used. */
#define FAULTLINE_WC_STATUS_REM_INV_RD_REQ_ERR 0xf
/* Remote abort. */
#define FAULTLINE_WC_STATUS_REM_ABORT_ERR 0x10
/* Invalid EE context number; not used. */
#define FAULTLINE_WC_STATUS_INV_EECN_ERR 0x11
/* Invalid EE context state; not used. */
#define FAULTLINE_WC_STATUS_INV_EEC_STATE_ERR 0x12
/* Fatal error. */
#define FAULTLINE_WC_STATUS_FATAL_ERR 0x13
/* Response timeout. */
#define FAULTLINE_WC_STATUS_RESP_TIMEOUT_ERR 0x14
/* General error. */
#define FAULTLINE_WC_STATUS_GENERAL_ERR 0x15
/* Operation on a tag list failed. */
#define FAULTLINE_WC_STATUS_TM_ERR 0x16
/* The data of a rendezvous does not fit; both headers are in the buffer. */
#define FAULTLINE_WC_STATUS_TM_RNDV_INCOMPLETE 0x17

/* Flags of a completion. */
/*
 * 40 bytes of GRH (for IPv4: the header in the last 20 of them) precede the
 * payload.
 */
#define FAULTLINE_CQE_GRH 1
/* `imm` is immediate data. */
#define FAULTLINE_CQE_IMM 2
/* `imm` is the rkey that a SEND with invalidate carried. */
#define FAULTLINE_CQE_INVALIDATE 4
/* The sender requested a solicited event. */
#define FAULTLINE_CQE_SOLICITED 8
/* `vlan_tci` is valid. */
#define FAULTLINE_CQE_VLAN 0x10
/* The IP and TCP/UDP checksums of a raw frame are correct. */
#define FAULTLINE_CQE_CSUM_OK 0x20
/* A receive of an XRC target; `srqn` is valid. */
#define FAULTLINE_CQE_XRC 0x40
/*
 * `imm` is the hash of addresses and ports by which an RSS queue pair selected
 * this queue.
 */
#define FAULTLINE_CQE_HASH 0x80

/* Vendor errors: which check failed. */
/* None. */
#define FAULTLINE_VENDOR_ERR_NONE 0
/* Unknown opcode, or one that the QP type does not have. */
#define FAULTLINE_VENDOR_ERR_OPCODE 1
/* Too many SGEs, or too much inline data. */
#define FAULTLINE_VENDOR_ERR_SGE_COUNT 2
/* Message longer than the device, the QP type or the receive buffer allows. */
#define FAULTLINE_VENDOR_ERR_LENGTH 3
/* lkey unknown, of another PD, or without the right. */
#define FAULTLINE_VENDOR_ERR_LKEY 4
/* Address outside of the region. */
#define FAULTLINE_VENDOR_ERR_BOUNDS 5
/* Address handle unknown or of another PD. */
#define FAULTLINE_VENDOR_ERR_AH 6
/* The work queue itself can't be read. */
#define FAULTLINE_VENDOR_ERR_WQE_FETCH 7
/* DMA to the page failed. */
#define FAULTLINE_VENDOR_ERR_DMA 8
/* Reserved bits set. */
#define FAULTLINE_VENDOR_ERR_RESERVED 9
/* Reported by the peer. */
#define FAULTLINE_VENDOR_ERR_REMOTE 0xa
/* Page fault answered with an error, or never answered. */
#define FAULTLINE_VENDOR_ERR_FAULT 0xb
/* Atomic operand not aligned to 8 bytes. */
#define FAULTLINE_VENDOR_ERR_ALIGNMENT 0xc
/* The peer's packet breaks the protocol. */
#define FAULTLINE_VENDOR_ERR_PROTOCOL 0xd
/* The key is not of the kind, or not in the state, that the operation needs. */
#define FAULTLINE_VENDOR_ERR_KEY_STATE 0xe
/*
 * Raw: the frame does not permit the checksums or the segmentation that the
 * request asks for.
 */
#define FAULTLINE_VENDOR_ERR_OFFLOAD 0xf

/* Kinds of events. */
/* Completion event of CQ `object`. */
#define FAULTLINE_EVENT_COMPLETION 1
/* One or more admin commands have completed. */
#define FAULTLINE_EVENT_ADMIN 2
/* Page fault of QP `object`. */
#define FAULTLINE_EVENT_PAGE_FAULT 3
/* CQ `object` overflowed or can't be written. */
#define FAULTLINE_EVENT_CQ_ERROR 0x10
/* QP `object` had an error that no completion can report. */
#define FAULTLINE_EVENT_QP_FATAL 0x11
/* QP `object` refused a malformed request. */
#define FAULTLINE_EVENT_QP_REQUEST_ERROR 0x12
/* QP `object` refused a request because of access rights. */
#define FAULTLINE_EVENT_QP_ACCESS_ERROR 0x13
/* First packet of an established connection arrived in RTR on QP `object`. */
#define FAULTLINE_EVENT_COMM_ESTABLISHED 0x14
/* Send queue of QP `object` has drained in SQD. */
#define FAULTLINE_EVENT_SQ_DRAINED 0x15
/* QP `object`, in error, consumed its last SRQ work request. */
#define FAULTLINE_EVENT_LAST_WQE_REACHED 0x16
/* SRQ `object` fell below its limit. */
#define FAULTLINE_EVENT_SRQ_LIMIT 0x17
/* SRQ `object` can't be read. */
#define FAULTLINE_EVENT_SRQ_ERROR 0x18
/* The link came up. */
#define FAULTLINE_EVENT_PORT_UP 0x20
/* The link went down. */
#define FAULTLINE_EVENT_PORT_DOWN 0x21
/* The device has stopped; the cause is in FAULTLINE_REG_FATAL_CODE. */
#define FAULTLINE_EVENT_DEVICE_FATAL 0x22
/*
 * Ingress was paused too long for a page of QP `object`; the packet that waited
 * was dropped.
 */
#define FAULTLINE_EVENT_STALL_TIMEOUT 0x23
/*
 * iWARP: a peer wants to connect to listener `object`; the number of the
 * request is in `token`.
 */
#define FAULTLINE_EVENT_CONNECTION_REQUEST 0x30
/* iWARP: request `object` has ended without an answer, and waits for REJECT. */
#define FAULTLINE_EVENT_REQUEST_GONE 0x31
/* iWARP: QP `object` is connected and in state RTS. */
#define FAULTLINE_EVENT_CONNECTED 0x32
/*
 * iWARP: the connection of QP `object` was not opened; the reason is in `token`
 * (FAULTLINE_CLOSE_*). The QP is in state ERR.
 */
#define FAULTLINE_EVENT_CONNECT_FAILED 0x33
/*
 * iWARP: the peer of QP `object` has closed in order. The QP is in state SQD,
 * and its send queue is being flushed.
 */
#define FAULTLINE_EVENT_PEER_CLOSED 0x34
/*
 * iWARP: the connection of QP `object` has ended; the reason is in `token`
 * (FAULTLINE_CLOSE_*). The QP is in state ERR.
 */
#define FAULTLINE_EVENT_CONNECTION_CLOSED 0x35

/* Bits of `fault_flags`. */
/* The access is a write. */
#define FAULTLINE_FAULT_WRITE 1
/*
 * The QP is the requester (its own gather or landing buffer), else the
 * responder.
 */
#define FAULTLINE_FAULT_REQUESTER 2

/* Translation opcodes. */
/* Write page entries. */
#define FAULTLINE_TQ_MAP 1
/*
 * Remove all entries that overlap a range; after completion the device does not
 * access the pages.
 */
#define FAULTLINE_TQ_INVALIDATE 2
/* Answer a fault: the access continues or fails. */
#define FAULTLINE_TQ_RESUME 3
/*
 * Like MAP, but writes only entries that are present: moves the pages of a key
 * that is in use.
 */
#define FAULTLINE_TQ_REPLACE 4

/* Flags of a translation command. */
/*
 * MAP: `list` is the entry of the first page of a physically contiguous range.
 */
#define FAULTLINE_TQ_FLAG_CONTIGUOUS 1

/*
 * Page entry: DMA address of the page, and permissions in its low bits. Zero
 * permissions: absent.
 */
/* The device may read the page. */
#define FAULTLINE_PTE_READ 1
/* The device may write the page. */
#define FAULTLINE_PTE_WRITE 2
/* Bits of the address. */
#define FAULTLINE_PTE_ADDR_MASK 0xfffffffffffff000ULL

/* Admin opcodes. */
/* Does nothing. */
#define FAULTLINE_ADMIN_NOP 0
/*
 * Allocate a user context; the answer's handle is the number of its doorbell
 * and kick page.
 */
#define FAULTLINE_ADMIN_ALLOC_UCTX 1
/* Free a user context. */
#define FAULTLINE_ADMIN_DEALLOC_UCTX 2
/* Create an event queue. */
#define FAULTLINE_ADMIN_CREATE_EQ 8
/* Destroy an event queue. */
#define FAULTLINE_ADMIN_DESTROY_EQ 9
/* Allocate a protection domain. */
#define FAULTLINE_ADMIN_ALLOC_PD 0x10
/* Free a protection domain. */
#define FAULTLINE_ADMIN_DEALLOC_PD 0x11
/* Allocate an XRC domain. */
#define FAULTLINE_ADMIN_ALLOC_XRCD 0x12
/* Free an XRC domain. */
#define FAULTLINE_ADMIN_DEALLOC_XRCD 0x13
/* Create a memory key; FAULTLINE_TQ_MAP writes its page table. */
#define FAULTLINE_ADMIN_CREATE_MKEY 0x18
/* Destroy a memory key. */
#define FAULTLINE_ADMIN_DESTROY_MKEY 0x19
/*
 * Change a memory key, which keeps its number: all parameters of CREATE_MKEY
 * but the variant.
 */
#define FAULTLINE_ADMIN_MODIFY_MKEY 0x1a
/* Create a completion queue. */
#define FAULTLINE_ADMIN_CREATE_CQ 0x20
/* Destroy a completion queue. */
#define FAULTLINE_ADMIN_DESTROY_CQ 0x21
/* Resize a completion queue. */
#define FAULTLINE_ADMIN_RESIZE_CQ 0x22
/* Create a shared receive queue. */
#define FAULTLINE_ADMIN_CREATE_SRQ 0x28
/* Destroy a shared receive queue. */
#define FAULTLINE_ADMIN_DESTROY_SRQ 0x29
/* Change an SRQ. */
#define FAULTLINE_ADMIN_MODIFY_SRQ 0x2a
/* Query an SRQ. */
#define FAULTLINE_ADMIN_QUERY_SRQ 0x2b
/* Create a queue pair. */
#define FAULTLINE_ADMIN_CREATE_QP 0x30
/* Destroy a queue pair. */
#define FAULTLINE_ADMIN_DESTROY_QP 0x31
/* Change a queue pair. */
#define FAULTLINE_ADMIN_MODIFY_QP 0x32
/* Query a queue pair. */
#define FAULTLINE_ADMIN_QUERY_QP 0x33
/* Create an address handle. */
#define FAULTLINE_ADMIN_CREATE_AH 0x38
/* Destroy an address handle. */
#define FAULTLINE_ADMIN_DESTROY_AH 0x39
/* Set or clear an entry of the GID table. */
#define FAULTLINE_ADMIN_SET_GID 0x40
/* Configure the Ethernet interface. */
#define FAULTLINE_ADMIN_SET_NETDEV 0x41
/* Set the additional addresses that the Ethernet interface receives. */
#define FAULTLINE_ADMIN_SET_MAC_FILTER 0x42
/* Read the counters. */
#define FAULTLINE_ADMIN_QUERY_COUNTERS 0x48
/* Attach a queue pair to a multicast group. */
#define FAULTLINE_ADMIN_ATTACH_MCAST 0x58
/* Detach a queue pair from a multicast group. */
#define FAULTLINE_ADMIN_DETACH_MCAST 0x59
/* Create a flow: a rule that steers received frames to a queue pair. */
#define FAULTLINE_ADMIN_CREATE_FLOW 0x5a
/* Destroy a flow. */
#define FAULTLINE_ADMIN_DESTROY_FLOW 0x5b
/* Allocate device memory. */
#define FAULTLINE_ADMIN_ALLOC_DM 0x70
/* Free device memory. */
#define FAULTLINE_ADMIN_DEALLOC_DM 0x71
/* Create a memory key for device memory; DESTROY_MKEY destroys it. */
#define FAULTLINE_ADMIN_CREATE_DM_MKEY 0x72
/* Change the moderation of a completion queue. */
#define FAULTLINE_ADMIN_MODIFY_CQ 0x74
/* Move an SRQ to another ring. */
#define FAULTLINE_ADMIN_RESIZE_SRQ 0x75
/* Allocate a set of counters, all zero. */
#define FAULTLINE_ADMIN_ALLOC_COUNTERS 0x76
/* Free a set of counters. */
#define FAULTLINE_ADMIN_DEALLOC_COUNTERS 0x77
/* Bind a queue pair to a set of counters. */
#define FAULTLINE_ADMIN_BIND_COUNTERS 0x78
/* Create a work queue, the receive half of a raw queue pair. */
#define FAULTLINE_ADMIN_CREATE_WQ 0x5c
/* Destroy a work queue. */
#define FAULTLINE_ADMIN_DESTROY_WQ 0x5d
/* Change the state of a work queue. */
#define FAULTLINE_ADMIN_MODIFY_WQ 0x5e
/* Create an indirection table of work queues. */
#define FAULTLINE_ADMIN_CREATE_RWQ_IND_TABLE 0x5f
/* Destroy an indirection table. */
#define FAULTLINE_ADMIN_DESTROY_RWQ_IND_TABLE 0x60
/* Create an RSS queue pair, which distributes frames over work queues. */
#define FAULTLINE_ADMIN_CREATE_RSS_QP 0x61
/* Create a shared receive queue with tag matching; DESTROY_SRQ destroys it. */
#define FAULTLINE_ADMIN_CREATE_TM_SRQ 0x79
/* iWARP: listen at a TCP port. */
#define FAULTLINE_ADMIN_CREATE_LISTENER 0x80
/*
 * iWARP: end a listener, and its connections that are being opened. Requests
 * stay.
 */
#define FAULTLINE_ADMIN_DESTROY_LISTENER 0x81
/* iWARP: open a connection for a queue pair. */
#define FAULTLINE_ADMIN_CONNECT 0x82
/* iWARP: give a request to a queue pair. */
#define FAULTLINE_ADMIN_ACCEPT 0x83
/* iWARP: refuse a request, or free one that has ended. */
#define FAULTLINE_ADMIN_REJECT 0x84
/* iWARP: read a request. */
#define FAULTLINE_ADMIN_QUERY_REQUEST 0x85
/* iWARP: read the connection of a queue pair. */
#define FAULTLINE_ADMIN_QUERY_CONNECTION 0x86

/* Flags of CREATE_EQ. */
/* This queue gets the asynchronous events of all objects. */
#define FAULTLINE_EQ_FLAG_EQ_ASYNC 1
/* This queue gets page faults. */
#define FAULTLINE_EQ_FLAG_EQ_FAULTS 2

/* Flags of CREATE_MKEY. */
/*
 * No page table: addresses are DMA addresses; the whole space if `length` is
 * zero.
 */
#define FAULTLINE_MKEY_PHYSICAL 1
/* MODIFY_MKEY: the region is the same and keeps its pages. */
#define FAULTLINE_MKEY_KEEP_PAGES 2
/*
 * For WR_REG_MR; without access before it. `length` is the largest number of
 * pages; access and address are zero.
 */
#define FAULTLINE_MKEY_FAST_REG 4
/* A memory window of type 1, not bound. Access, address and length are zero. */
#define FAULTLINE_MKEY_WINDOW_1 8
/* A memory window of type 2, not bound. Access, address and length are zero. */
#define FAULTLINE_MKEY_WINDOW_2 0x10

/* Flags of CREATE_QP. */
/* Every send work request makes a completion. */
#define FAULTLINE_QP_FLAG_SIG_ALL 1
/* Receives come from SRQ `srqn`. */
#define FAULTLINE_QP_FLAG_SRQ 2

/* Flags of SET_NETDEV. */
/* Receive every frame. */
#define FAULTLINE_NETDEV_PROMISC 1
/* Receive every multicast frame. */
#define FAULTLINE_NETDEV_ALLMULTI 2
/* The interface is up. */
#define FAULTLINE_NETDEV_UP 4

/* Indices in the answer of QUERY_COUNTERS. */
/* Frames sent. */
#define FAULTLINE_CNT_tx_packets 0
/* Bytes of frames sent. */
#define FAULTLINE_CNT_tx_bytes 1
/* Frames received. */
#define FAULTLINE_CNT_rx_packets 2
/* Bytes of frames received. */
#define FAULTLINE_CNT_rx_bytes 3
/* RoCE packets sent. */
#define FAULTLINE_CNT_tx_roce_packets 4
/* RoCE packets received. */
#define FAULTLINE_CNT_rx_roce_packets 5
/* Frames that no rule matched. */
#define FAULTLINE_CNT_rx_filtered 6
/* Raw Ethernet frames dropped because no receive buffer was posted. */
#define FAULTLINE_CNT_rx_no_buffer 7
/* Packets with a malformed header. */
#define FAULTLINE_CNT_rx_malformed 8
/* Packets with a wrong invariant CRC. */
#define FAULTLINE_CNT_rx_icrc_errors 9
/* Packets to a QP that does not exist or can't receive. */
#define FAULTLINE_CNT_rx_bad_qp 0xa
/* Packets with a wrong P_Key. */
#define FAULTLINE_CNT_rx_bad_pkey 0xb
/* Datagrams with a wrong Q_Key. */
#define FAULTLINE_CNT_rx_bad_qkey 0xc
/* Packets from another address than the QP's peer. */
#define FAULTLINE_CNT_rx_bad_source 0xd
/*
 * Messages refused because no receive was posted: datagrams and UC packets
 * dropped, RC and XRC requests answered by an RNR NAK.
 */
#define FAULTLINE_CNT_out_of_buffer 0xe
/* Packets with a PSN ahead of the expected one. */
#define FAULTLINE_CNT_out_of_sequence 0xf
/* Duplicate requests. */
#define FAULTLINE_CNT_duplicate_request 0x10
/* Acknowledgement timeouts. */
#define FAULTLINE_CNT_local_ack_timeout_err 0x11
/* Packets sent again. */
#define FAULTLINE_CNT_retransmitted_packets 0x12
/* RNR NAKs sent. */
#define FAULTLINE_CNT_rnr_nak_sent 0x13
/* RNR NAKs received. */
#define FAULTLINE_CNT_rnr_nak_received 0x14
/* Sequence error NAKs sent. */
#define FAULTLINE_CNT_packet_seq_err_sent 0x15
/* Sequence error NAKs received. */
#define FAULTLINE_CNT_packet_seq_err 0x16
/* Remote access errors sent. */
#define FAULTLINE_CNT_resp_remote_access_errors 0x17
/* Remote access errors received. */
#define FAULTLINE_CNT_req_remote_access_errors 0x18
/* Invalid requests refused. */
#define FAULTLINE_CNT_resp_invalid_request 0x19
/* Invalid requests reported by a peer. */
#define FAULTLINE_CNT_req_remote_invalid_request 0x1a
/*
 * Completions with an error status other than flush, of send and receive
 * queues.
 */
#define FAULTLINE_CNT_cqe_error 0x1b
/* Completions flushed, of send and receive queues. */
#define FAULTLINE_CNT_cqe_flush_error 0x1c
/* ECN marked packets received. */
#define FAULTLINE_CNT_np_ecn_marked_roce_packets 0x1d
/* Congestion notifications sent. */
#define FAULTLINE_CNT_np_cnp_sent 0x1e
/* Congestion notifications received that a queue pair obeys. */
#define FAULTLINE_CNT_rp_cnp_handled 0x1f
/* Doorbells refused: unknown object, wrong page, index out of range. */
#define FAULTLINE_CNT_doorbell_errors 0x20
/* Register accesses refused. */
#define FAULTLINE_CNT_register_errors 0x21
/* Accesses to guest memory that failed. */
#define FAULTLINE_CNT_dma_errors 0x22
/* Admin and translation commands refused. */
#define FAULTLINE_CNT_command_errors 0x23
/* Page faults raised. */
#define FAULTLINE_CNT_page_faults 0x24
/* Page faults resumed. */
#define FAULTLINE_CNT_page_faults_resumed 0x25
/* Accesses to absent pages that joined an outstanding fault. */
#define FAULTLINE_CNT_page_faults_joined 0x26
/* Accesses to absent pages refused because the fault queue was full. */
#define FAULTLINE_CNT_page_fault_overflow 0x27
/* Translation entries removed by invalidations. */
#define FAULTLINE_CNT_page_invalidations 0x28
/* Page faults that the driver answered with an error. */
#define FAULTLINE_CNT_page_faults_failed 0x29
/* Page faults that the driver did not answer in time. */
#define FAULTLINE_CNT_page_fault_timeouts 0x2a
/* RNR NAKs sent because of a page fault. */
#define FAULTLINE_CNT_page_fault_rnr 0x2b
/* Packets dropped because of a page fault. */
#define FAULTLINE_CNT_page_fault_drops 0x2c
/* Packets that wait for a page in the device. */
#define FAULTLINE_CNT_parked_packets 0x2d
/* Packets dropped because the memory for waiting packets was full. */
#define FAULTLINE_CNT_park_overflow 0x2e
/* Times that ingress was paused by a page fault (policy `stall`). */
#define FAULTLINE_CNT_stalls 0x2f
/*
 * Times that ingress was paused for longer than the limit, and the packet that
 * waited was dropped.
 */
#define FAULTLINE_CNT_stall_timeouts 0x30
/* Packets dropped because the queue of a paused ingress was full. */
#define FAULTLINE_CNT_stall_overflow 0x31
/* READY packets sent, which tell a requester that a page is present now. */
#define FAULTLINE_CNT_ready_notices 0x32
/* Look-ups that the translation cache answered. */
#define FAULTLINE_CNT_tlb_hits 0x33
/* Look-ups that the translation cache missed. */
#define FAULTLINE_CNT_tlb_misses 0x34
/* Times that a region's entries in the translation cache were dropped. */
#define FAULTLINE_CNT_tlb_shootdowns 0x35
/* Datagrams sent to a multicast group. */
#define FAULTLINE_CNT_tx_mcast_packets 0x36
/* Datagrams to a multicast group that a queue pair here is attached to. */
#define FAULTLINE_CNT_rx_mcast_packets 0x37
/* Copies of such datagrams for queue pairs. */
#define FAULTLINE_CNT_rx_mcast_copies 0x38
/* Frames that a flow has taken, or copied. */
#define FAULTLINE_CNT_rx_steered 0x39
/* Frames that a flow has dropped. */
#define FAULTLINE_CNT_rx_flow_drops 0x3a
/* Received frames with a wrong IPv4, TCP or UDP checksum. */
#define FAULTLINE_CNT_rx_csum_errors 0x3b
/* Requests that were segmented. */
#define FAULTLINE_CNT_tx_segmented 0x3c
/* Messages that are longer than their receive buffer. */
#define FAULTLINE_CNT_resp_local_length_error 0x3d
/*
 * Sent frames that the switch dropped because their source address belongs to
 * another NIC.
 */
#define FAULTLINE_CNT_tx_bad_source 0x3e
/*
 * Bytes that page tables, page lists of rings and queue pairs occupy now. The
 * only counter that can decrease.
 */
#define FAULTLINE_CNT_table_bytes 0x3f
/* READY packets received from peers that are known to be Faultlines. */
#define FAULTLINE_CNT_ready_received 0x40
/* READY packets dropped because their sender is not known to be a Faultline. */
#define FAULTLINE_CNT_ready_refused 0x41
/* Frames not sent because the interface is down. */
#define FAULTLINE_CNT_tx_interface_down 0x42
/* Frames not received because the interface is down. */
#define FAULTLINE_CNT_rx_interface_down 0x43
/*
 * RoCE packets not sent because they are longer than the MTU of the interface.
 */
#define FAULTLINE_CNT_tx_over_mtu 0x44
/*
 * RoCE packets not received because they are longer than the MTU of the
 * interface.
 */
#define FAULTLINE_CNT_rx_over_mtu 0x45
/*
 * RoCE packets not sent because their entry of the GID table has changed since
 * their path was set.
 */
#define FAULTLINE_CNT_tx_bad_gid 0x46
/* RoCE packets to a GID that no entry of the GID table has, in their VLAN. */
#define FAULTLINE_CNT_rx_bad_gid 0x47
/*
 * Raw frames not sent because they are from, or announce, an address that the
 * guest may not use.
 */
#define FAULTLINE_CNT_tx_bad_address 0x48
/* Frames sent that are not RoCE packets of a queue pair. */
#define FAULTLINE_CNT_tx_ethernet_packets 0x49
/* Bytes of these frames. */
#define FAULTLINE_CNT_tx_ethernet_bytes 0x4a
/* Frames received that are not RoCE packets. */
#define FAULTLINE_CNT_rx_ethernet_packets 0x4b
/* Bytes of these frames. */
#define FAULTLINE_CNT_rx_ethernet_bytes 0x4c
/*
 * RoCE packets to a multicast group that arrived at the port, whether a queue
 * pair is attached to it or not.
 */
#define FAULTLINE_CNT_rx_port_mcast_packets 0x4d
/* READs executed. A repetition is a duplicate request. */
#define FAULTLINE_CNT_rx_read_requests 0x4e
/* WRITEs whose first packet was executed. */
#define FAULTLINE_CNT_rx_write_requests 0x4f
/*
 * Atomic operations executed, ATOMIC WRITE included. A repetition is a
 * duplicate request.
 */
#define FAULTLINE_CNT_rx_atomic_requests 0x50
/* RNR NAKs received after which the request is sent again. */
#define FAULTLINE_CNT_rnr_nak_retry_err 0x51
/*
 * Times that transmission went back because a later response showed that one
 * was lost.
 */
#define FAULTLINE_CNT_implied_nak_seq_err 0x52
/* Completions of send queues with an error status, flush included. */
#define FAULTLINE_CNT_req_cqe_error 0x53
/* Completions of send queues flushed. */
#define FAULTLINE_CNT_req_cqe_flush_error 0x54
/* Completions of receive queues with an error status, flush included. */
#define FAULTLINE_CNT_resp_cqe_error 0x55
/* Completions of receive queues flushed. */
#define FAULTLINE_CNT_resp_cqe_flush_error 0x56
/* Requests that failed because no transport retry was left. */
#define FAULTLINE_CNT_req_transport_retries_exceeded 0x57
/* Requests that failed because no RNR retry was left. */
#define FAULTLINE_CNT_req_rnr_retries_exceeded 0x58
/* Congestion notifications received that no queue pair obeys. */
#define FAULTLINE_CNT_rp_cnp_ignored 0x59

/* Flags of a connection. */
/* The private data has been cut to the available bytes. Answer only. */
#define FAULTLINE_CONNECTION_PRIVATE_CUT 1
/* The peer speaks MPA revision 2 (RFC 6581). Answer only. */
#define FAULTLINE_CONNECTION_ENHANCED 2

/* Reasons for the end of a connection. */
/* Both ends have closed in order. */
#define FAULTLINE_CLOSE_FINISHED 1
/* CONNECT: the peer has answered the SYN with a reset. */
#define FAULTLINE_CLOSE_REFUSED 2
/* CONNECT: the peer has rejected; there may be private data. */
#define FAULTLINE_CLOSE_REJECTED 3
/* The peer does not answer. */
#define FAULTLINE_CLOSE_TIMED_OUT 4
/* The peer has reset the connection. */
#define FAULTLINE_CLOSE_RESET 5
/* The peer breaks the rules of MPA while the connection is set up. */
#define FAULTLINE_CLOSE_SETUP 6
/* The device has sent a Terminate message. */
#define FAULTLINE_CLOSE_TERMINATED 7
/* The peer has sent a Terminate message. */
#define FAULTLINE_CLOSE_TERMINATED_BY_PEER 8
/*
 * MODIFY_QP to ERR, or a failure of this end for which it could not send a
 * Terminate message: it had sent a FIN, or octets that were lost cannot be read
 * again.
 */
#define FAULTLINE_CLOSE_ABORTED 9

/* Geometry of connections. */
/* Longest private data in bytes (RFC 5044 section 7.1). */
#define FAULTLINE_MAX_PRIVATE_DATA 0x200
/* Milliseconds after which a request without answer ends. */
#define FAULTLINE_REQUEST_TIMEOUT_MS 0xea60

/* Kinds of flows; the values of `enum ib_flow_attr_type`. */
/* Frames that match. */
#define FAULTLINE_FLOW_KIND_NORMAL 0
/* Frames that neither a flow nor the netdev matches. */
#define FAULTLINE_FLOW_KIND_ALL_DEFAULT 1
/* Multicast frames that neither a flow nor the netdev matches. */
#define FAULTLINE_FLOW_KIND_MC_DEFAULT 2
/* A copy of every frame that is sent or received. */
#define FAULTLINE_FLOW_KIND_SNIFFER 3

/* Flags of CREATE_FLOW. */
/* Later flows can match the frame too. */
#define FAULTLINE_FLOW_FLAG_DONT_TRAP 1
/* The frame is dropped. */
#define FAULTLINE_FLOW_FLAG_DROP 2

/* Headers of a frame. */
/* Ethernet. Every frame has it. */
#define FAULTLINE_FLOW_HAS_ETH 1
/* IPv4. */
#define FAULTLINE_FLOW_HAS_IPV4 2
/* IPv6. */
#define FAULTLINE_FLOW_HAS_IPV6 4
/* TCP, in the first or only fragment. */
#define FAULTLINE_FLOW_HAS_TCP 8
/* UDP, likewise. */
#define FAULTLINE_FLOW_HAS_UDP 0x10

/* States of a WQ; the values of `enum ib_wq_state`. */
/* Reset: frames are dropped. */
#define FAULTLINE_WQS_RESET 0
/* Ready to receive. */
#define FAULTLINE_WQS_RDY 1
/* Error: receive work requests are flushed. */
#define FAULTLINE_WQS_ERR 2

/*
 * Fields that an RSS queue pair hashes; the values of `enum
 * ibv_rx_hash_fields`.
 */
/* IPv4 source address. */
#define FAULTLINE_HASH_SRC_IPV4 1
/* IPv4 destination address. */
#define FAULTLINE_HASH_DST_IPV4 2
/* IPv6 source address. */
#define FAULTLINE_HASH_SRC_IPV6 4
/* IPv6 destination address. */
#define FAULTLINE_HASH_DST_IPV6 8
/* TCP source port. */
#define FAULTLINE_HASH_SRC_PORT_TCP 0x10
/* TCP destination port. */
#define FAULTLINE_HASH_DST_PORT_TCP 0x20
/* UDP source port. */
#define FAULTLINE_HASH_SRC_PORT_UDP 0x40
/* UDP destination port. */
#define FAULTLINE_HASH_DST_PORT_UDP 0x80

/* Operations on a tag list. */
/* Add a tagged buffer. */
#define FAULTLINE_TM_OP_ADD 1
/*
 * Remove a tagged buffer. Fails (WC_STATUS_TM_ERR) if a message has consumed
 * the buffer.
 */
#define FAULTLINE_TM_OP_DEL 2
/* Report the count of unexpected messages that software has handled. */
#define FAULTLINE_TM_OP_SYNC 3

/* Flags of an operation. */
/* Write a completion. An operation that fails always writes one. */
#define FAULTLINE_TM_OP_FLAG_SIGNALED 1
/* `unexpected` is valid. */
#define FAULTLINE_TM_OP_FLAG_SYNC 2

/* Opcodes of a tagged message. */
/* No tag: the fields after the opcode are ignored. */
#define FAULTLINE_TMH_NO_TAG 0
/* Rendezvous: the receiver reads the data. */
#define FAULTLINE_TMH_RNDV 1
/* The receiver has read the data. */
#define FAULTLINE_TMH_FIN 2
/* Eager: the data follows the header. */
#define FAULTLINE_TMH_EAGER 3

/* Flags of a completion of a tag matching SRQ (`tm_flags`). */
/* `wqe` is an index in the tag list, not the tag of a receive work request. */
#define FAULTLINE_CQE_TM_TAGGED 1
/* The message matched a tagged buffer. */
#define FAULTLINE_CQE_TM_MATCH 2
/* All data is in the buffer; the buffer is complete. */
#define FAULTLINE_CQE_TM_DATA_VALID 4
/*
 * Buffers added after this message match only when software has reported the
 * count of unexpected messages.
 */
#define FAULTLINE_CQE_TM_SYNC_REQ 8

/* Geometry of tag matching. */
/* log2 of the size of an operation. */
#define FAULTLINE_TM_OP_SHIFT 7
/* Most SGEs of a tagged buffer. */
#define FAULTLINE_TM_MAX_SGE 4
/* Longest rendezvous request, headers included. */
#define FAULTLINE_TM_MAX_RNDV 0x40

/* Head of a doorbell page. */
struct faultline_doorbell_page {
	/* Written by the device: not zero while it sleeps. */
	__le32 asleep;
	/*
	 * Written by the device, page 0 only: incremented at least once a
	 * second while the device works.
	 */
	__le32 heartbeat;
	/*
	 * Written by the device: not zero while the page's context exists. When
	 * the kernel revokes the device from a process it replaces the page by
	 * an empty one, so the process reads zero.
	 */
	__le32 alive;
	/* Reserved; zero. */
	__u8 reserved0[52];
	/*
	 * Index of the next doorbell: one past the last that was stored, or one
	 * less until the thread that stored it has advanced this index. For
	 * software; the device does not read it.
	 */
	__le64 producer;
	/* Reserved; zero. */
	__u8 reserved1[56];
	/* Doorbells that the device has handled. */
	__le64 consumer;
	/* Reserved; zero. */
	__u8 reserved2[1912];
	/*
	 * The ring. Slot `i % 256` holds doorbell i, or the mark that it is
	 * free for doorbell i.
	 */
	__le64 ring[256];
};

/* Limits and capabilities, at FAULTLINE_REG_CAPS. */
struct faultline_caps {
	/* Firmware version: major << 32 | minor << 16 | patch. */
	__le64 fw_version;
	/* Node GUID, EUI-64 of the permanent MAC address. */
	__le64 node_guid;
	/* Bit n set: pages of 2^n bytes are supported in a memory region. */
	__le64 page_sizes;
	/* Longest memory region in bytes. */
	__le64 max_mr_size;
	/* Queue pairs. */
	__le32 max_qp;
	/* Work requests in a send or receive queue. */
	__le32 max_qp_wr;
	/* Scatter/gather entries in a send or receive work request. */
	__le32 max_sge;
	/* Bytes of inline data in a send work request. */
	__le32 max_inline;
	/* Completion queues. */
	__le32 max_cq;
	/* Entries in a completion queue. */
	__le32 max_cqe;
	/* Memory keys. */
	__le32 max_mkey;
	/* Protection domains. */
	__le32 max_pd;
	/* Address handles. */
	__le32 max_ah;
	/* Shared receive queues. */
	__le32 max_srq;
	/* Work requests in a shared receive queue. */
	__le32 max_srq_wr;
	/* User contexts (doorbell pages that can be allocated). */
	__le32 max_uctx;
	/* Event queues; queue n may use any vector. */
	__le32 max_eq;
	/* Entries in an event queue. */
	__le32 max_eqe;
	/* Entries of the GID table. */
	__le32 max_gid;
	/* Longest message in bytes. */
	__le32 max_msg_size;
	/* READs and atomics that a QP serves concurrently as responder. */
	__le32 max_rd_atomic;
	/* READs and atomics that a QP may have outstanding as requester. */
	__le32 max_init_rd_atomic;
	/* Largest Ethernet MTU (payload of a frame) in bytes. */
	__le32 max_mtu;
	/* Entries of a page list in one translation command. */
	__le32 max_map_pages;
	/* Multicast groups. */
	__le32 max_mcast_grp;
	/* QPs in one multicast group. */
	__le32 max_mcast_qp;
	/* FAULTLINE_ODP_* bits for RC. */
	__le32 rc_odp_caps;
	/* FAULTLINE_ODP_* bits for UC. */
	__le32 uc_odp_caps;
	/* FAULTLINE_ODP_* bits for UD. */
	__le32 ud_odp_caps;
	/* FAULTLINE_ODP_* bits for XRC. */
	__le32 xrc_odp_caps;
	/*
	 * Page faults outstanding at a time; a fault queue with this many
	 * entries never overflows.
	 */
	__le32 max_faults;
	/* Leaves of a page table that one translation command may write. */
	__le32 max_map_leaves;
	/* Pages of a fast registration. */
	__le32 max_fast_reg_pages;
	/* Reserved; zero. */
	__u8 reserved0[28];
	/* Flows. */
	__le32 max_flow;
	/* Indirection tables. */
	__le32 max_rwq_ind_table;
	/* log2 of the entries of an indirection table. */
	__le32 max_rwq_ind_table_log_size;
	/*
	 * Bytes of payload of a raw work request that is segmented; 0 =
	 * segmentation is not supported.
	 */
	__le32 max_tso;
	/* Entries of SET_MAC_FILTER. */
	__le32 max_mac_filter;
	/* Reserved; zero. */
	__u8 reserved[12];
	/* Bytes of device memory; 0 = none. */
	__le64 device_memory;
	/* Allocations of device memory. */
	__le32 max_dm;
	/*
	 * Tagged buffers of a tag matching SRQ; 0 = tag matching is not
	 * supported.
	 */
	__le32 max_tm_tags;
	/* Operations in the ring of a tag matching SRQ. */
	__le32 max_tm_ops;
	/* Counter sets. */
	__le32 max_counters;
	/*
	 * Largest completion count of CQ moderation; 0 = moderation is not
	 * supported.
	 */
	__le16 max_cq_count;
	/* Longest period of CQ moderation in microseconds. */
	__le16 max_cq_period;
	/* FAULTLINE_FEATURE_* bits. */
	__le32 features;
	/* iWARP: listeners, and requests that wait for an answer. */
	__le32 max_listener;
	/* iWARP: backlog of a listener. */
	__le32 max_backlog;
	/* Reserved; zero. */
	__u8 reserved2[8];
};

/* Path to a destination. */
struct faultline_av {
	/* Destination GID; IPv4 as ::ffff:a.b.c.d. */
	__u8 dgid[16];
	/* Destination MAC address. */
	__u8 dmac[6];
	/* Source GID, index in the table. */
	__le16 sgid_index;
	/* IPv6 flow label. */
	__le32 flow_label;
	/* Service level: VLAN priority. */
	__u8 sl;
	/* Traffic class, IPv4 ToS. */
	__u8 traffic_class;
	/* Hop limit, IPv4 TTL. Zero means 64. */
	__u8 hop_limit;
	/* Port, 1. */
	__u8 port;
	/* Reserved; zero. */
	__u8 reserved[8];
};

/* Attributes of a QP, for MODIFY_QP and QUERY_QP. */
struct faultline_qp_attr {
	/* FAULTLINE_QP_ATTR_* bits: the attributes that are given. */
	__le32 mask;
	/* FAULTLINE_QPS_*. */
	__u8 state;
	/* Current state that the caller assumes (QP_ATTR_CUR_STATE). */
	__u8 cur_state;
	/* Path MTU: 1 = 256 … 5 = 4096 bytes. */
	__u8 path_mtu;
	/* FAULTLINE_FAULT_POLICY_*. */
	__u8 fault_policy;
	/* Q_Key. */
	__le32 qkey;
	/* First PSN expected. */
	__le32 rq_psn;
	/* First PSN sent. */
	__le32 sq_psn;
	/* Remote QP. */
	__le32 dest_qpn;
	/* FAULTLINE_ACCESS_REMOTE_* that the peer may use. */
	__le32 access;
	/* P_Key index. */
	__le16 pkey_index;
	/* READs and atomics outstanding as requester. */
	__u8 max_rd_atomic;
	/* READs and atomics served as responder. */
	__u8 max_dest_rd_atomic;
	/* RNR NAK timer code, IBTA table 45. */
	__u8 min_rnr_timer;
	/* Local ACK timeout: 4.096 us * 2^n, 0 = none. */
	__u8 timeout;
	/* Transport retries, 0..=7. */
	__u8 retry_cnt;
	/* RNR retries, 0..=6, 7 = without limit. */
	__u8 rnr_retry;
	/* Port, 1. */
	__u8 port;
	/* Answer only: the send queue is draining. */
	__u8 sq_draining;
	/* Raise FAULTLINE_EVENT_SQ_DRAINED (on transition to SQD). */
	__u8 sqd_notify;
	/* Reserved; zero. */
	__u8 reserved0;
	/* Primary path. */
	struct faultline_av av;
	/* UDP source port, 0 = derived from the QP numbers. */
	__le16 udp_sport;
	/* Reserved; zero. */
	__u8 reserved1[30];
};

/* Scatter/gather entry. */
struct faultline_sge {
	/* I/O virtual address. */
	__le64 addr;
	/* Bytes; 0 is a length of zero. */
	__le32 length;
	/* Local key. */
	__le32 lkey;
};

/*
 * First 48 bytes of a send work request. `sge[num_sge]`, or the inline data,
 * follows at offset 48. A raw frame may have both: inline data, and at the next
 * multiple of 16 the SGEs of the rest of the frame.
 */
struct faultline_sq_wqe {
	/* FAULTLINE_WR_*. */
	__u8 opcode;
	/* FAULTLINE_WR_FLAG_*. */
	__u8 flags;
	/* Number of SGEs; zero with WR_FLAG_INLINE, but for raw frames. */
	__u8 num_sge;
	/* Reserved; zero. */
	__u8 reserved0;
	/* Immediate data in wire order, or the rkey to invalidate. */
	__le32 imm;
	/* Bytes of inline data with WR_FLAG_INLINE, else zero. */
	__le32 inline_len;
	/* Remote key (WRITE, READ, atomics). */
	__le32 rkey;
	/* Remote address (WRITE, READ, atomics). */
	__le64 remote_addr;
	/* Compare value of a compare-and-swap, addend of a fetch-and-add. */
	__le64 compare_add;
	/* Swap value of a compare-and-swap. */
	__le64 swap;
	/* UD, GSI: address handle. */
	__le32 ah;
	/* UD, GSI: destination QP. XRC: destination SRQ. */
	__le32 remote_qpn;
};

/*
 * First 48 bytes of a WR_REG_MR. Allowed on queue pairs of context 0 only,
 * because the list has DMA addresses.
 */
struct faultline_reg_mr_wqe {
	/* WR_REG_MR. */
	__u8 opcode;
	/* FAULTLINE_WR_FLAG_*, not INLINE. */
	__u8 flags;
	/* Reserved; zero. */
	__le16 reserved0;
	/* FAULTLINE_ACCESS_*: local and remote rights. */
	__le32 access;
	/* Reserved; zero. */
	__le32 reserved1;
	/* The new key: that of a free MKEY_FAST_REG, with any low 8 bits. */
	__le32 key;
	/* First address of the region. */
	__le64 iova;
	/* Bytes. */
	__le64 length;
	/* DMA address of the list: for each page its DMA address as 64 bits. */
	__le64 list;
	/* Pages in the list; the first one holds `iova`. */
	__le32 num_pages;
	/* log2 of the page size; 12..=30. */
	__le32 page_shift;
};

/* First 48 bytes of a WR_BIND_MW. */
struct faultline_bind_mw_wqe {
	/* WR_BIND_MW. */
	__u8 opcode;
	/* FAULTLINE_WR_FLAG_*, not INLINE. */
	__u8 flags;
	/* Reserved; zero. */
	__le16 reserved0;
	/* Key of the region. */
	__le32 lkey;
	/* Reserved; zero. */
	__le32 reserved1;
	/* The new key of the window, with any low 8 bits. */
	__le32 rkey;
	/* First address, in the region. */
	__le64 addr;
	/* Bytes. Type 1: zero unbinds. */
	__le64 length;
	/*
	 * FAULTLINE_ACCESS_*: remote rights, and type 2 ACCESS_ZERO_BASED.
	 * ACCESS_LOCAL_WRITE is ignored.
	 */
	__le32 access;
	/* Reserved; zero. */
	__u8 reserved2[12];
};

/* First 48 bytes of a WR_FLUSH. */
struct faultline_flush_wqe {
	/* WR_FLUSH. */
	__u8 opcode;
	/* FAULTLINE_WR_FLAG_*, not INLINE. */
	__u8 flags;
	/* Reserved; zero. */
	__le16 reserved0;
	/* FAULTLINE_FLUSH_*. */
	__le32 placement;
	/* Reserved; zero. */
	__le32 reserved1;
	/* Remote key. */
	__le32 rkey;
	/* Remote address. */
	__le64 remote_addr;
	/* Bytes, fewer than 2^32. */
	__le64 length;
	/* 0: the range, 1: all of the region. */
	__le32 selectivity;
	/* Reserved; zero. */
	__u8 reserved2[8];
	/* XRC: destination SRQ. */
	__le32 remote_qpn;
};

/* UD and GSI: replaces `compare_add` and `swap`, at the same offsets. */
struct faultline_ud_seg {
	/* Q_Key; if the top bit is set the QP's own is used (IBTA 10.2.5). */
	__le32 qkey;
	/* Reserved; zero. */
	__u8 reserved[12];
};

/* Raw frames: replaces `compare_add` and `swap`, at the same offsets. */
struct faultline_raw_seg {
	/*
	 * WR_FLAG_CSUM: offset in the frame at which the sum begins. 0: the
	 * device finds all checksum fields.
	 */
	__le16 csum_start;
	/*
	 * Offset of the checksum field from `csum_start`. Its previous value is
	 * included in the sum.
	 */
	__le16 csum_offset;
	/*
	 * Not 0: the frame is segmented into frames with this many bytes of TCP
	 * payload. All checksums are filled in.
	 */
	__le16 mss;
	/* With `mss`: bytes of headers, up to the end of the TCP header. */
	__le16 header_len;
	/* Reserved; zero. */
	__u8 reserved[8];
};

/* First 16 bytes of a receive work request. `sge[num_sge]` follows. */
struct faultline_rq_wqe {
	/* Returned in the completion. */
	__le32 tag;
	/* Number of SGEs. */
	__u8 num_sge;
	/* Reserved; zero. */
	__u8 reserved[11];
};

/*
 * Record after the ring of a receive queue or SRQ. The one after a send queue
 * is not used.
 */
struct faultline_wq_record {
	/* Producer index, written by software. */
	__le32 producer;
	/* Reserved; zero. */
	__u8 reserved0[28];
	/* Entries consumed, written by the device. */
	__le32 consumer;
	/*
	 * Not zero, written by the device: ring FAULTLINE_DB_RQ after posting
	 * (receive queues, not SRQs).
	 */
	__le32 notify;
	/* Reserved; zero. */
	__u8 reserved1[24];
};

/* Record after the ring of a completion queue. */
struct faultline_cq_record {
	/*
	 * Consumer index, written by software; read by the device when the
	 * queue looks full.
	 */
	__le32 consumer;
	/* Reserved; zero. */
	__u8 reserved[60];
};

/* Completion queue entry. */
struct faultline_cqe {
	/*
	 * Send: index of the work request (producer index when it was posted,
	 * modulo 2^32); all earlier ones of the queue are complete too.
	 * Receive: `tag` of the receive work request.
	 */
	__le32 wqe;
	/* Local QP. */
	__le32 qpn;
	/* Bytes received, or returned by a READ or an atomic. */
	__le32 byte_len;
	/*
	 * Immediate data in wire order (big-endian), the invalidated rkey, or
	 * the RSS hash.
	 */
	__le32 imm;
	/* UD, GSI: source QP. */
	__le32 src_qp;
	/* FAULTLINE_WC_* opcode. */
	__u8 opcode;
	/* FAULTLINE_WC_STATUS_*, the values of `enum ib_wc_status`. */
	__u8 status;
	/* FAULTLINE_CQE_* bits. */
	__u8 flags;
	/* Cause, if `status` is not zero: FAULTLINE_VENDOR_ERR_*. */
	__u8 vendor_err;
	/* Index of the P_Key that matched. */
	__le16 pkey_index;
	/* VLAN id and priority if CQE_VLAN is set. */
	__le16 vlan_tci;
	/* Source MAC address (UD, GSI, raw). */
	__u8 smac[6];
	/* Service level (VLAN priority). */
	__u8 sl;
	/* IP version of the packet (UD, GSI): 4 or 6. */
	__u8 ip_version;
	/*
	 * Flow tag of the steering rule, or zero. Tag matching: `app_ctx` of
	 * the message in wire order.
	 */
	__le32 flow_tag;
	/* Device clock in nanoseconds when the completion was written. */
	__le64 timestamp;
	/*
	 * Shared receive queue of a receive if CQE_XRC is set (`qpn` may then
	 * be a QP of another process), and of every completion of tag matching.
	 */
	__le32 srqn;
	/* Tag matching: tag of the message, low half first. */
	__le32 tm_tag[2];
	/* Tag matching: FAULTLINE_CQE_TM_* bits. */
	__u8 tm_flags;
	/* Reserved; zero. */
	__u8 reserved[2];
	/* Written last. */
	__u8 phase;
};

/* Event queue entry. */
struct faultline_eqe {
	/* FAULTLINE_EVENT_*. */
	__u8 kind;
	/* Reserved; zero. */
	__u8 reserved0[3];
	/* Number of the CQ, QP, SRQ, listener or request, by kind. */
	__le32 object;
	/*
	 * Page fault: token to resume with. Events of connections: number of
	 * the request, or FAULTLINE_CLOSE_*; see the kind.
	 */
	__le64 token;
	/*
	 * Page fault: virtual address (I/O virtual address of the region) that
	 * is absent.
	 */
	__le64 va;
	/* Page fault: memory key that was used. */
	__le32 key;
	/* Page fault: bytes needed at `va` before the transfer can continue. */
	__le32 bytes;
	/*
	 * Page fault: bytes from `va` that the rest of the message will need;
	 * at least `bytes`.
	 */
	__le64 hint_bytes;
	/* Page fault: FAULTLINE_FAULT_* bits. */
	__le32 fault_flags;
	/*
	 * Page fault: packet sequence number of the packet that found the page
	 * absent.
	 */
	__le32 psn;
	/* Device clock in nanoseconds. */
	__le64 timestamp;
	/* Reserved; zero. */
	__u8 reserved1[7];
	/* Written last. */
	__u8 phase;
};

/* Translation command. */
struct faultline_tq_cmd {
	/* FAULTLINE_TQ_*. */
	__u8 opcode;
	/* FAULTLINE_TQ_FLAG_*. */
	__u8 flags;
	/* Returned in the completion. */
	__le16 id;
	/* Memory key. */
	__le32 key;
	/* First I/O virtual address; aligned to the page size. */
	__le64 iova;
	/*
	 * MAP, REPLACE: number of pages. INVALIDATE: length of the range in
	 * bytes.
	 */
	__le64 count;
	/*
	 * MAP, REPLACE: DMA address of the list of `count` page entries, or
	 * with FLAG_CONTIGUOUS the page entry of the first page; the other
	 * pages follow it in memory.
	 */
	__le64 list;
	/* RESUME: the token. */
	__le64 token;
	/* MAP, REPLACE: log2 of the page size. */
	__u8 page_shift;
	/* Reserved; zero. */
	__u8 reserved0;
	/* RESUME: FAULTLINE_OK, or the status with which the access fails. */
	__le16 resume_status;
	/*
	 * RESUME: nanoseconds of the guest's clock from reading the fault
	 * record until its service began; at most u32::MAX. With `map_ns` and
	 * `post_ns` zero: not reported. Other opcodes: reserved; zero.
	 */
	__le32 wait_ns;
	/*
	 * RESUME: nanoseconds from then until the pages were mapped. Other
	 * opcodes: reserved; zero.
	 */
	__le32 map_ns;
	/*
	 * RESUME: nanoseconds from then until this command was posted. Other
	 * opcodes: reserved; zero.
	 */
	__le32 post_ns;
	/* Reserved; zero. */
	__u8 reserved1[8];
};

/* Translation completion. */
struct faultline_tq_comp {
	/* `id` of the command. */
	__le16 id;
	/* Status. */
	__le16 status;
	/*
	 * MAP, REPLACE: entries written. INVALIDATE: entries that were present.
	 * RESUME: QPs that waited.
	 */
	__le32 count;
	/* Reserved; zero. */
	__u8 reserved[7];
	/* Written last. */
	__u8 phase;
};

/* Location of a ring in guest memory. */
struct faultline_ring {
	/*
	 * Levels 0: DMA address of the (contiguous) ring. Levels 1: of a list
	 * of page addresses. Levels 2: of a list of addresses of 4 KiB pages,
	 * each a list of 512 page addresses (the last may hold fewer).
	 */
	__le64 addr;
	/* Pages of the ring. */
	__le32 num_pages;
	/* log2 of the page size; at least 12. */
	__u8 page_shift;
	/* 0, 1 or 2. */
	__u8 levels;
	/* Reserved; zero. */
	__le16 reserved;
};

/* Head of every command. */
struct faultline_admin_hdr {
	/* FAULTLINE_ADMIN_*. */
	__le16 opcode;
	/* Returned in the completion. */
	__le16 id;
	/* Reserved; zero. */
	__le32 reserved0;
	/*
	 * Number of the object that the command refers to; zero for commands
	 * that create an object.
	 */
	__le32 handle;
	/* Reserved; zero. */
	__le32 reserved1;
};

/* Entry of the admin submission ring; `body` depends on the opcode. */
struct faultline_admin_cmd {
	/* Common head. */
	struct faultline_admin_hdr hdr;
	/* Parameters; unused bytes must be zero. */
	__u8 body[112];
};

/* Entry of the admin completion ring. */
struct faultline_admin_comp {
	/* `id` of the command. */
	__le16 id;
	/* Status. */
	__le16 status;
	/*
	 * Number of the new object (CREATE, ALLOC), else `handle` of the
	 * command.
	 */
	__le32 handle;
	/* Answer of a QUERY command. */
	__u8 body[112];
	/* Reserved; zero. */
	__u8 reserved[7];
	/* Written last. */
	__u8 phase;
};

/* CREATE_EQ. Ring of 2^log_depth entries of 64 bytes. Answer: handle. */
struct faultline_create_eq {
	/* Ring of the queue. */
	struct faultline_ring ring;
	/* log2 of the number of entries. */
	__u8 log_depth;
	/* Reserved; zero. */
	__u8 reserved0;
	/* MSI-X vector. */
	__le16 vector;
	/* FAULTLINE_EQ_FLAG_*: which device-wide events this queue gets. */
	__le32 flags;
};

/* CREATE_MKEY. Answer: handle is the key. */
struct faultline_create_mkey {
	/* Protection domain. */
	__le32 pd;
	/* FAULTLINE_ACCESS_*. */
	__le32 access;
	/* First address. */
	__le64 iova;
	/*
	 * Length in bytes. Zero: the key gives access to no byte, or with
	 * MKEY_PHYSICAL to the whole address space.
	 */
	__le64 length;
	/* FAULTLINE_MKEY_*. */
	__le32 flags;
	/* log2 of the page size that most MAP commands will use; 12..=30. */
	__u8 page_shift;
	/*
	 * Low 8 bits of the key. Ignored for a window of type 2, for which they
	 * are zero.
	 */
	__u8 variant;
	/* Reserved; zero. */
	__u8 reserved[18];
};

/*
 * CREATE_CQ: ring of 2^log_depth entries of 64 bytes, and a record. Answer:
 * handle.
 */
struct faultline_create_cq {
	/* Ring of the queue. */
	struct faultline_ring ring;
	/* log2 of the number of entries. */
	__u8 log_depth;
	/* Reserved; zero. */
	__u8 reserved0[3];
	/* Event queue for completion events. */
	__le32 eqn;
	/* User context whose page may arm it; 0 for the kernel. */
	__le32 uctx;
	/* Reserved; zero. */
	__le32 reserved1;
};

/*
 * RESIZE_CQ: software has stopped polling at consumer index `consumer`. The
 * indices restart at 0 in the new ring, which must be zeroed: the unread
 * entries become its entries 0, 1, …, and the consumer index is 0.
 */
struct faultline_resize_cq {
	/* The new ring. */
	struct faultline_ring ring;
	/* log2 of the new number of entries. */
	__u8 log_depth;
	/* Reserved; zero. */
	__u8 reserved[3];
	/* Consumer index in the old ring. */
	__le32 consumer;
};

/* ALLOC_UCTX: the process and the user that own the context. Answer: handle. */
struct faultline_alloc_uctx {
	/*
	 * Process id (thread group id) in the guest's initial PID namespace; 0
	 * = not reported.
	 */
	__le32 pid;
	/*
	 * Number of the user who owns the process. All contexts of one user
	 * share a limit of outstanding page faults. On Linux: user id in the
	 * initial user namespace, plus 1. 0 = not reported: only the context's
	 * own limit applies.
	 */
	__le32 user;
	/* Name of the process, up to the first NUL. Any bytes. */
	__u8 comm[16];
};

/* ALLOC_PD. Answer: handle. */
struct faultline_alloc_pd {
	/*
	 * User context that it belongs to; 0 = the kernel. Page faults of its
	 * keys count against the limit of this context.
	 */
	__le32 uctx;
	/* Reserved; zero. */
	__le32 reserved;
};

/* CREATE_SRQ. Answer: handle. */
struct faultline_create_srq {
	/* Ring of the queue. */
	struct faultline_ring ring;
	/* Protection domain. */
	__le32 pd;
	/* User context that it belongs to; 0 = the kernel. */
	__le32 uctx;
	/* log2 of the number of entries. */
	__u8 log_depth;
	/* log2 of the bytes in an entry. */
	__u8 stride_shift;
	/* Scatter/gather entries of a work request. */
	__u8 max_sge;
	/* 0 basic, 1 XRC. */
	__u8 kind;
	/*
	 * Raise FAULTLINE_EVENT_SRQ_LIMIT when fewer than this many are posted;
	 * 0 = never.
	 */
	__le32 limit;
	/* XRC: domain. */
	__le32 xrcd;
	/* XRC: CQ. */
	__le32 cqn;
	/* Reserved; zero. */
	__u8 reserved[8];
};

/* MODIFY_SRQ. */
struct faultline_modify_srq {
	/* New limit. */
	__le32 limit;
	/* Reserved; zero. */
	__le32 reserved;
};

/* QUERY_SRQ: answer. */
struct faultline_query_srq {
	/* Limit, zero once the event was raised. */
	__le32 limit;
	/* Reserved; zero. */
	__le32 reserved;
};

/* CREATE_QP. Answer: handle. GSI gives QP number 1. */
struct faultline_create_qp {
	/* Send queue. */
	struct faultline_ring sq;
	/* Receive queue; all zero with an SRQ. */
	struct faultline_ring rq;
	/* Protection domain. */
	__le32 pd;
	/* User context whose doorbell page rings it; 0 = the kernel. */
	__le32 uctx;
	/* CQ of the send queue. */
	__le32 send_cqn;
	/* CQ of the receive queue. */
	__le32 recv_cqn;
	/* SRQ, if QP_FLAG_SRQ is set. */
	__le32 srqn;
	/* FAULTLINE_QP_FLAG_*. */
	__le32 flags;
	/* FAULTLINE_QPT_*. */
	__u8 qp_type;
	/* Send queue: log2 of the number of entries. */
	__u8 sq_log_depth;
	/* Send queue: log2 of the bytes in an entry. */
	__u8 sq_stride_shift;
	/* Receive queue: log2 of the number of entries. */
	__u8 rq_log_depth;
	/* Receive queue: log2 of the bytes in an entry. */
	__u8 rq_stride_shift;
	/* Scatter/gather entries of a send work request. */
	__u8 max_send_sge;
	/* Scatter/gather entries of a receive work request. */
	__u8 max_recv_sge;
	/* Reserved; zero. */
	__u8 reserved0;
	/* Bytes of inline data in a send work request. */
	__le32 max_inline;
	/*
	 * XRC target: its domain. Such a QP has no queues, no PD, no CQs, and
	 * belongs to context 0.
	 */
	__le32 xrcd;
	/* Reserved; zero. */
	__u8 reserved1[8];
};

/* CREATE_AH. Answer: handle. */
struct faultline_create_ah {
	/* Protection domain. */
	__le32 pd;
	/* Reserved; zero. */
	__le32 reserved;
	/* Path to the destination. */
	struct faultline_av av;
};

/*
 * SET_GID: handle is the index. An iWARP adapter has its own addresses in this
 * table.
 */
struct faultline_set_gid {
	/* GID; IPv4 as ::ffff:a.b.c.d. */
	__u8 gid[16];
	/* Source MAC address. */
	__u8 mac[6];
	/* VLAN id, or 0xffff for none. */
	__le16 vlan;
	/* 1: in use, 0: remove. */
	__u8 valid;
	/* Reserved; zero. */
	__u8 reserved[7];
};

/* SET_NETDEV: receive configuration of the Ethernet interface. */
struct faultline_set_netdev {
	/* Unicast MAC address that it receives, byte 0 first. */
	__u8 mac[6];
	/* Largest payload of a frame; 68..=max_mtu. */
	__le16 mtu;
	/* FAULTLINE_NETDEV_*. */
	__le32 flags;
	/*
	 * Raw or RSS QP that receives the frames that no other rule matches, or
	 * 0.
	 */
	__le32 qpn;
};

/*
 * SET_MAC_FILTER: unicast and multicast addresses that the Ethernet interface
 * receives in addition to its own address and broadcast. They replace those of
 * the previous command.
 */
struct faultline_set_mac_filter {
	/*
	 * DMA address of an array of `count` `faultline_mac_filter_entry`; not
	 * read if `count` is 0.
	 */
	__le64 addr;
	/* 0..=max_mac_filter. */
	__le32 count;
	/* Reserved; zero. */
	__le32 reserved;
};

/* Element of the array of SET_MAC_FILTER. */
struct faultline_mac_filter_entry {
	/* MAC address, byte 0 first. */
	__u8 mac[6];
	/* Reserved; zero. */
	__u8 reserved[2];
};

/*
 * QUERY_COUNTERS: the device writes an array of 64-bit counters; those of a set
 * if the handle is not zero.
 */
struct faultline_query_counters {
	/* DMA address. */
	__le64 addr;
	/*
	 * Bytes available at `addr`. The device writes at most the counters
	 * that it has; `handle` of the completion is their number.
	 */
	__le32 len;
	/* Reserved; zero. */
	__le32 reserved;
};

/* ATTACH_MCAST, DETACH_MCAST: handle is a UD queue pair. */
struct faultline_mcast {
	/* Group; IPv4 as ::ffff:a.b.c.d. */
	__u8 gid[16];
};

/* Header fields of a frame, in the order of the wire. */
struct faultline_flow_fields {
	/* Destination MAC address. */
	__u8 dmac[6];
	/* Source MAC address. */
	__u8 smac[6];
	/* EtherType, behind a VLAN tag if there is one. */
	__u8 ether_type[2];
	/* VLAN tag; zero if the frame has none. */
	__u8 vlan_tci[2];
	/* Source IP address; IPv4 in the last four bytes, zeroes before. */
	__u8 src_ip[16];
	/* Destination IP address, likewise. */
	__u8 dst_ip[16];
	/* IPv6 flow label, 20 bits. */
	__u8 flow_label[4];
	/* IPv4 protocol, IPv6 next header. */
	__u8 protocol;
	/* IPv4 ToS, IPv6 traffic class. */
	__u8 traffic_class;
	/* IPv4 TTL, IPv6 hop limit. */
	__u8 hop_limit;
	/* IPv4: the three flag bits, more-fragments lowest. */
	__u8 ip_flags;
	/* TCP or UDP source port. */
	__u8 src_port[2];
	/* TCP or UDP destination port. */
	__u8 dst_port[2];
	/* Reserved; zero. */
	__u8 reserved[4];
};

/* CREATE_FLOW. Answer: handle. */
struct faultline_create_flow {
	/*
	 * NORMAL: DMA address of two `faultline_flow_fields`: the values, then
	 * the mask of the bits that are compared. Else 0.
	 */
	__le64 fields_addr;
	/* Raw or RSS queue pair that receives the frames. */
	__le32 qpn;
	/* NORMAL: FAULTLINE_FLOW_HAS_*, the headers that a frame must have. */
	__le32 headers;
	/* Returned in completions. */
	__le32 tag;
	/* NORMAL: lower values match first. Else 0. */
	__le16 priority;
	/* FAULTLINE_FLOW_KIND_*. */
	__u8 kind;
	/* FAULTLINE_FLOW_FLAG_*. */
	__u8 flags;
	/* Reserved; zero. */
	__u8 reserved[8];
};

/* BIND_COUNTERS: handle is a QP. */
struct faultline_bind_counters {
	/*
	 * Set that counts for this QP instead of the device's counters; 0 =
	 * none.
	 */
	__le32 counters;
	/* Reserved; zero. */
	__le32 reserved;
};

/*
 * MODIFY_CQ: a completion event is delayed until `count` completions are
 * queued, or until `period` after the first of them, whichever is earlier. No
 * event is delayed if both are zero or if `count` is one, nor for a completion
 * with an error.
 */
struct faultline_modify_cq {
	/* 0..=max_cq_count; 0: only the period applies. */
	__le16 count;
	/*
	 * Microseconds, 0..=max_cq_period; not zero if `count` is more than
	 * one.
	 */
	__le16 period;
	/* Reserved; zero. */
	__le32 reserved;
};

/*
 * RESIZE_SRQ: software has stopped posting. The indices restart at 0 in the new
 * ring: the requests that have not been consumed become its entries 0, 1, …;
 * the device writes `producer` and `consumer` of its record.
 */
struct faultline_resize_srq {
	/* The new ring; the stride is unchanged. */
	struct faultline_ring ring;
	/* log2 of the new number of entries. */
	__u8 log_depth;
	/* Reserved; zero. */
	__u8 reserved[7];
};

/* ALLOC_DM. Answer: handle, and `faultline_dm_place`. */
struct faultline_alloc_dm {
	/* Bytes; not zero. Rounded up to pages. */
	__le64 length;
	/* Reserved; zero. */
	__le64 reserved;
};

/* ALLOC_DM: location of the allocation. */
struct faultline_dm_place {
	/* Offset of its first page in BAR 2. */
	__le64 offset;
	/* Bytes, whole pages. */
	__le64 length;
};

/*
 * CREATE_DM_MKEY: a zero-based key for device memory. Answer: handle is the
 * key.
 */
struct faultline_create_dm_mkey {
	/* Protection domain. */
	__le32 pd;
	/* FAULTLINE_ACCESS_*; not ON_DEMAND. */
	__le32 access;
	/* The allocation. */
	__le32 dm;
	/* Low 8 bits of the key. */
	__u8 variant;
	/* Reserved; zero. */
	__u8 reserved[3];
	/*
	 * Offset of the first byte in the allocation; a multiple of 8 if the
	 * key allows atomics.
	 */
	__le64 offset;
	/* Bytes; may be zero. */
	__le64 length;
	/* Reserved; zero. */
	__le64 reserved1;
};

/*
 * CREATE_WQ: ring of 2^(log_depth + stride_shift) bytes and a record, as for a
 * receive queue. Answer: handle.
 */
struct faultline_create_wq {
	/* Ring of the queue. */
	struct faultline_ring ring;
	/* Protection domain. */
	__le32 pd;
	/* User context that it belongs to; 0 = the kernel. */
	__le32 uctx;
	/* CQ of the receives. */
	__le32 cqn;
	/* log2 of the number of entries. */
	__u8 log_depth;
	/* log2 of the bytes in an entry. */
	__u8 stride_shift;
	/* Scatter/gather entries of a work request. */
	__u8 max_sge;
	/* Reserved; zero. */
	__u8 reserved[9];
};

/* MODIFY_WQ. */
struct faultline_modify_wq {
	/* FAULTLINE_WQS_*. */
	__u8 state;
	/* Reserved; zero. */
	__u8 reserved[7];
};

/* CREATE_RWQ_IND_TABLE. Answer: handle. */
struct faultline_create_rwq_ind_table {
	/*
	 * DMA address of 2^log_size numbers of WQs, or of raw queue pairs, 32
	 * bits each.
	 */
	__le64 addr;
	/* log2 of the number of entries; 0..=max_rwq_ind_table_log_size. */
	__u8 log_size;
	/* Reserved; zero. */
	__u8 reserved[7];
};

/* CREATE_RSS_QP. Answer: handle, a queue pair. */
struct faultline_create_rss_qp {
	/* Protection domain. */
	__le32 pd;
	/* User context that it belongs to; 0 = the kernel. */
	__le32 uctx;
	/* Indirection table. */
	__le32 table;
	/*
	 * FAULTLINE_HASH_*: fields that are hashed if the frame has them. Ports
	 * of TCP or of UDP, not of both.
	 */
	__le32 hash_fields;
	/* Toeplitz key. */
	__u8 key[40];
	/* Reserved; zero. */
	__u8 reserved[8];
};

/*
 * The way of a connection. IPv4 addresses as ::ffff:a.b.c.d; both are of one
 * family.
 */
struct faultline_connection_path {
	/*
	 * Own address: with `vlan` an entry of the GID table, else BAD_ADDRESS.
	 * Listener: `::` for all IPv6 addresses of the table in `vlan`,
	 * `::ffff:0.0.0.0` for all IPv4 addresses.
	 */
	__u8 local_ip[16];
	/* Address of the peer. Listener: zero. */
	__u8 remote_ip[16];
	/* Own TCP port; not 0. */
	__le16 local_port;
	/* TCP port of the peer. Listener: zero. */
	__le16 remote_port;
	/* MAC address of the peer or of the router. Listener: zero. */
	__u8 dmac[6];
	/* VLAN id, or 0xffff for none. */
	__le16 vlan;
	/*
	 * Service level: VLAN priority. Listener: zero, the priority of the
	 * peer is used.
	 */
	__u8 sl;
	/*
	 * Traffic class, IPv4 ToS; the two bits of ECN are ignored. Listener:
	 * zero.
	 */
	__u8 traffic_class;
	/* Hop limit, IPv4 TTL. Zero means 64. */
	__u8 hop_limit;
	/* Reserved; zero. */
	__u8 reserved0;
	/* MTU of the path in bytes; 0 = that of the interface. */
	__le16 mtu;
	/* Reserved; zero. */
	__u8 reserved1[6];
};

/*
 * Properties of a connection that its two ends exchange in the MPA request and
 * reply (RFC 6581).
 */
struct faultline_connection_param {
	/* DMA address of the private data. */
	__le64 private_addr;
	/*
	 * Bytes of private data, 0..=512. Answer: bytes that the peer has sent.
	 */
	__le16 private_len;
	/*
	 * READs and atomics that this end serves concurrently; at most
	 * max_rd_atomic.
	 */
	__le16 ird;
	/*
	 * READs and atomics that this end has outstanding; at most
	 * max_init_rd_atomic.
	 */
	__le16 ord;
	/* FAULTLINE_CONNECTION_*. */
	__le16 flags;
};

/* CREATE_LISTENER. Answer: handle. */
struct faultline_create_listener {
	/* Own address, port and VLAN. */
	struct faultline_connection_path path;
	/*
	 * Connections that are being opened or wait for ACCEPT;
	 * 1..=max_backlog.
	 */
	__le16 backlog;
	/* Reserved; zero. */
	__u8 reserved[6];
};

/* CONNECT: handle is a queue pair. */
struct faultline_connect {
	/* Way of the connection. */
	struct faultline_connection_path path;
	/* Its properties. */
	struct faultline_connection_param param;
};

/*
 * ACCEPT: handle is a queue pair. REJECT: handle is the request, `request` is
 * zero, and only the private data of `param` is used.
 */
struct faultline_accept {
	/* Its properties. */
	struct faultline_connection_param param;
	/* Number of the request. */
	__le32 request;
	/* Reserved; zero. */
	__le32 reserved;
};

/*
 * QUERY_REQUEST: handle is a request. QUERY_CONNECTION: handle is a queue pair.
 * The device writes the private data of the peer.
 */
struct faultline_query_connection {
	/* DMA address for the private data; not written if `len` is zero. */
	__le64 addr;
	/* Bytes available at `addr`. */
	__le16 len;
	/* Reserved; zero. */
	__u8 reserved[6];
};

/* Answer of QUERY_REQUEST and QUERY_CONNECTION. */
struct faultline_connection_info {
	/* Way of the connection. */
	struct faultline_connection_path path;
	/*
	 * What the peer has said; with QUERY_CONNECTION the smaller of it and
	 * the own values. `private_addr` is zero.
	 */
	struct faultline_connection_param param;
	/* QUERY_REQUEST: the listener. */
	__le32 listener;
	/* FAULTLINE_CLOSE_*: how the connection ended; 0 while it has not. */
	__u8 close_reason;
	/*
	 * CLOSE_TERMINATED, CLOSE_TERMINATED_BY_PEER: layer in the upper four
	 * bits and error type of the Terminate message (RFC 5040 section 4.8).
	 */
	__u8 terminate_type;
	/* Its error code. */
	__u8 terminate_code;
	/* Reserved; zero. */
	__u8 reserved[9];
};

/* CREATE_TM_SRQ. Answer: handle. */
struct faultline_create_tm_srq {
	/*
	 * As in CREATE_SRQ, with `kind` zero and `cqn` the CQ of all
	 * completions.
	 */
	struct faultline_create_srq srq;
	/* Ring of 2^ops_log_depth operations of 128 bytes, and a record. */
	struct faultline_ring ops;
	/* Capacity of the list of tagged buffers; 1..=max_tm_tags. */
	__le32 max_tags;
	/* log2 of the number of operations; at most that of max_tm_ops. */
	__u8 ops_log_depth;
	/* Reserved; zero. */
	__u8 reserved[11];
};

/*
 * An operation on the list. Operation number i (a 32-bit count) is in entry `i
 * mod 2^n`; ring FAULTLINE_DB_TM_OPS with the producer index. The record's
 * `consumer` is the number of operations consumed.
 */
struct faultline_tm_op {
	/* FAULTLINE_TM_OP_*. */
	__u8 opcode;
	/* FAULTLINE_TM_OP_FLAG_*. */
	__u8 flags;
	/* ADD: number of SGEs. */
	__u8 num_sge;
	/* Reserved; zero. */
	__u8 reserved0;
	/*
	 * Unexpected messages that software has handled, modulo 2^32; only with
	 * TM_OP_FLAG_SYNC.
	 */
	__le32 unexpected;
	/*
	 * ADD: index of an empty entry of the list, below max_tags; `wqe` of
	 * the completions of the buffer. DEL: index of the entry to remove.
	 */
	__le32 slot;
	/* Reserved; zero. */
	__le32 reserved1;
	/* ADD: a message matches if its tag AND `mask` equals this value. */
	__le64 tag;
	/* ADD: bits of the tag that are compared. */
	__le64 mask;
	/* Reserved; zero. */
	__u8 reserved2[32];
	/* ADD: the buffer. */
	struct faultline_sge sge[4];
};

/* Header of a tagged message (ibv_tmh). */
struct faultline_tmh {
	/* FAULTLINE_TMH_*. */
	__u8 opcode;
	/* Reserved; zero. */
	__u8 reserved[3];
	/* Returned in the completion that has TM_MATCH set. */
	__u8 app_ctx[4];
	/* Tag of the message, big-endian. */
	__u8 tag[8];
};

/*
 * Second header of a rendezvous request (ibv_rvh): location of the data. FIN
 * repeats both headers.
 */
struct faultline_rvh {
	/* Address of the data, big-endian. */
	__u8 va[8];
	/* Remote key of the data, big-endian. */
	__u8 rkey[4];
	/* Bytes of data, big-endian. */
	__u8 len[4];
};

#endif /* FAULTLINE_ABI_H */
