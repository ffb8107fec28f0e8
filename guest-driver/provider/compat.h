/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Differences between releases of rdma-core. Functions of libibverbs that
 * providers call have got further parameters, which this one does not use.
 * CMakeLists.txt finds out which of them the release declares. Each macro is
 * such a parameter in a declaration, or its argument in a call; it expands to
 * nothing if the release does not declare the parameter. Releases before 45
 * have no FLUSH.
 */
#ifndef FAULTLINE_COMPAT_H
#define FAULTLINE_COMPAT_H

/* ibv_cmd_create_cq_ex(): memory of the CQ. */
#ifdef FAULTLINE_HAVE_CQ_PROV_ATTR
#define FL_CQ_PROV_ATTR(parameter)	parameter,
#else
#define FL_CQ_PROV_ATTR(parameter)
#endif

/* ibv_cmd_create_qp_ex2(): attributes of the driver. The last parameter. */
#ifdef FAULTLINE_HAVE_QP_DRIVER_ATTRS
#define FL_QP_DRIVER_ATTRS(parameter)	, parameter
#else
#define FL_QP_DRIVER_ATTRS(parameter)
#endif

/* ibv_cmd_get_context(): file descriptors for the kernel. */
#ifdef FAULTLINE_HAVE_CONTEXT_FDS
#define FL_CONTEXT_FDS(parameter)	parameter,
#else
#define FL_CONTEXT_FDS(parameter)
#endif

/* ibv_cmd_reg_dmabuf_mr(): attributes of the driver. The last parameter. */
#ifdef FAULTLINE_HAVE_MR_DRIVER_ATTRS
#define FL_MR_DRIVER_ATTRS(parameter)	, parameter
#else
#define FL_MR_DRIVER_ATTRS(parameter)
#endif

/* The operation FLUSH of extended queue pairs, if there is one. */
#ifdef FAULTLINE_HAVE_FLUSH
#define FL_QP_EX_WITH_FLUSH	IBV_QP_EX_WITH_FLUSH
#else
#define FL_QP_EX_WITH_FLUSH	0
#endif

#endif /* FAULTLINE_COMPAT_H */
