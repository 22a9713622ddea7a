//! What libibverbs and its callers agree on: structs, numbers, and the calls that its header makes through a table.
//!
//! Kept by hand, and no more than is used (docs/decisions/0020). The structs are those of the version 1.1 symbols, which have
//! not changed since 2007; what the library allocates may be longer than what is described here, and is only reached by
//! pointers. Sizes and offsets are held below, and a test compares them with the header where it is installed.

use std::ffi::{c_int, c_uint, c_void};
use std::marker::{PhantomData, PhantomPinned};
use std::mem::{offset_of, size_of};

/// Something of which only the library knows what it is.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Opaque {
    pub(super) nothing: [u8; 0],
    pub(super) not_ours: PhantomData<(*mut u8, PhantomPinned)>,
}

pub(super) type Device = Opaque;
pub(super) type Domain = Opaque;

/// `struct ibv_context_ops`: the calls that never enter the library itself. The other slots are of no use to callers.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) before_poll: [*const c_void; 11],
    pub(super) poll_cq: Option<unsafe extern "C" fn(*mut Queue, c_int, *mut Report) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut Queue, c_int) -> c_int>,
    pub(super) before_post: [*const c_void; 12],
    pub(super) post_send:
        Option<unsafe extern "C" fn(*mut Pair, *mut Send, *mut *mut Send) -> c_int>,
    pub(super) post_recv:
        Option<unsafe extern "C" fn(*mut Pair, *mut Receive, *mut *mut Receive) -> c_int>,
    pub(super) behind_post: [*const c_void; 5],
}

/// `struct ibv_context`, its beginning.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Context {
    pub(super) device: *mut Device,
    pub(super) calls: Calls,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) context: *mut Context,
    pub(super) fd: c_int,
    pub(super) refcnt: c_int,
}

/// `struct ibv_cq`, its beginning.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) context: *mut Context,
    pub(super) channel: *mut Channel,
    pub(super) cq_context: *mut c_void,
    pub(super) handle: u32,
    /// Places, as the device has granted them.
    pub(super) cqe: c_int,
}

/// `struct ibv_mr`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) context: *mut Context,
    pub(super) pd: *mut Domain,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_qp`, its beginning.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) context: *mut Context,
    pub(super) qp_context: *mut c_void,
    pub(super) pd: *mut Domain,
    pub(super) send_cq: *mut Queue,
    pub(super) recv_cq: *mut Queue,
    pub(super) srq: *mut c_void,
    pub(super) handle: u32,
    pub(super) qp_num: u32,
}

/// `struct ibv_sge`: bytes of registered memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

impl Piece {
    pub(super) const NONE: Self = Self {
        addr: 0,
        length: 0,
        lkey: 0,
    };
}

/// `struct ibv_send_wr`, with the half of its unions that writes use.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Send {
    pub(super) wr_id: u64,
    pub(super) next: *mut Send,
    pub(super) sg_list: *mut Piece,
    pub(super) num_sge: c_int,
    pub(super) opcode: u32,
    pub(super) send_flags: c_uint,
    pub(super) imm_data: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    /// The rest of `wr`, then `qp_type` and the last union, which no call for connected pairs reads.
    pub(super) rest: [u64; 9],
}

impl Send {
    pub(super) const NONE: Self = Self {
        wr_id: 0,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_data: 0,
        remote_addr: 0,
        rkey: 0,
        rest: [0; 9],
    };
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Receive {
    pub(super) wr_id: u64,
    pub(super) next: *mut Receive,
    pub(super) sg_list: *mut Piece,
    pub(super) num_sge: c_int,
}

impl Receive {
    pub(super) const NONE: Self = Self {
        wr_id: 0,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null_mut(),
        num_sge: 0,
    };
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Report {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Capacity {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct PairOptions {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Queue,
    pub(super) recv_cq: *mut Queue,
    pub(super) srq: *mut c_void,
    pub(super) cap: Capacity,
    pub(super) qp_type: u32,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_ah_attr`, with the `struct ibv_global_route` at its beginning.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Route {
    pub(super) grh: GlobalRoute,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `struct ibv_global_route`. The GID is a union with two u64, hence the alignment.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct GlobalRoute {
    pub(super) dgid: [u8; 16],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PairState {
    pub(super) qp_state: u32,
    pub(super) cur_qp_state: u32,
    pub(super) path_mtu: u32,
    pub(super) path_mig_state: u32,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: Capacity,
    pub(super) ah_attr: Route,
    pub(super) alt_ah_attr: Route,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PortState {
    pub(super) state: u32,
    pub(super) max_mtu: u32,
    pub(super) active_mtu: u32,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) lmc: u8,
    pub(super) max_vl_num: u8,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    pub(super) phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    port_cap_flags2: u16,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceState {
    pub(super) before_max_qp_wr: [u64; 14],
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) before_ports: [c_int; 22],
    pub(super) max_pkeys: u16,
    pub(super) local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

impl DeviceState {
    pub(super) const NONE: Self = Self {
        before_max_qp_wr: [0; 14],
        max_qp_wr: 0,
        device_cap_flags: 0,
        max_sge: 0,
        max_sge_rd: 0,
        max_cq: 0,
        max_cqe: 0,
        before_ports: [0; 22],
        max_pkeys: 0,
        local_ca_ack_delay: 0,
        phys_port_cnt: 0,
    };
}

/// `struct ibv_async_event`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    pub(super) element: Element,
    pub(super) event_type: u32,
}

/// What an event is about; which of them, its type says.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Element {
    pub(super) pair: *mut Pair,
    pub(super) port_num: c_int,
}

impl std::fmt::Debug for Element {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Element")
    }
}

/// `enum ibv_access_flags`.
pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;

/// `enum ibv_qp_type`.
pub(super) const TYPE_RC: u32 = 2;

/// `enum ibv_qp_state`.
pub(super) const STATE_INIT: u32 = 1;
pub(super) const STATE_RTR: u32 = 2;
pub(super) const STATE_RTS: u32 = 3;
pub(super) const STATE_ERROR: u32 = 6;

/// `enum ibv_qp_attr_mask`.
pub(super) const WITH_STATE: c_int = 1;
pub(super) const WITH_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const WITH_PKEY_INDEX: c_int = 1 << 4;
pub(super) const WITH_PORT: c_int = 1 << 5;
pub(super) const WITH_ROUTE: c_int = 1 << 7;
pub(super) const WITH_PATH_MTU: c_int = 1 << 8;
pub(super) const WITH_TIMEOUT: c_int = 1 << 9;
pub(super) const WITH_RETRY_CNT: c_int = 1 << 10;
pub(super) const WITH_RNR_RETRY: c_int = 1 << 11;
pub(super) const WITH_RQ_PSN: c_int = 1 << 12;
pub(super) const WITH_MAX_RD_ATOMIC: c_int = 1 << 13;
pub(super) const WITH_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const WITH_SQ_PSN: c_int = 1 << 16;
pub(super) const WITH_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const WITH_DEST_QPN: c_int = 1 << 20;

/// `enum ibv_wr_opcode`.
pub(super) const SEND_WRITE: u32 = 0;
pub(super) const SEND_MESSAGE: u32 = 2;

/// `enum ibv_send_flags`.
pub(super) const FLAG_SIGNALED: c_uint = 1 << 1;
pub(super) const FLAG_SOLICITED: c_uint = 1 << 2;
pub(super) const FLAG_INLINE: c_uint = 1 << 3;

/// The bit of `enum ibv_wc_opcode` that all receives have.
pub(super) const REPORT_RECEIVE: u32 = 1 << 7;

/// `enum ibv_event_type`.
pub(super) const EVENT_QUEUE: u32 = 0;
pub(super) const EVENT_PAIR_FATAL: u32 = 1;
pub(super) const EVENT_PAIR_REQUEST: u32 = 2;
pub(super) const EVENT_PAIR_ACCESS: u32 = 3;
pub(super) const EVENT_DEVICE_FATAL: u32 = 8;
pub(super) const EVENT_PORT_ACTIVE: u32 = 9;
pub(super) const EVENT_PORT_ERROR: u32 = 10;
pub(super) const EVENT_GID_CHANGE: u32 = 18;

/// Holds a struct to what the header says: its size, if it is whole here, and where its fields lie. Expands to a check at
/// compile time, and to a list that a test compares with the header.
macro_rules! layouts {
    ($( $ours:ident = $theirs:literal $(size $size:literal)? { $( $field:ident $(. $inner:ident)* = $name:literal at $at:literal ),* $(,)? } )*) => {
        const _: () = {
            $(
                $( assert!(size_of::<$ours>() == $size, $theirs); )?
                $( assert!(offset_of!($ours, $field $(. $inner)*) == $at, $name); )*
            )*
        };

        /// (struct, its size if it is whole here, fields and their offsets), in the header's words.
        #[cfg(test)]
        type Layout = (&'static str, Option<usize>, &'static [(&'static str, usize)]);

        #[cfg(test)]
        const LAYOUTS: &[Layout] = &[
            $( ($theirs, layouts!(@size $($size)?), &[ $( ($name, $at) ),* ]) ),*
        ];
    };
    (@size) => { None };
    (@size $size:literal) => { Some($size) };
}

// Pointers have eight bytes on every machine that Linux has RDMA for and this crate is built for.
#[cfg(target_pointer_width = "64")]
layouts! {
    Calls = "ibv_context_ops" size 256 {
        poll_cq = "poll_cq" at 88, req_notify_cq = "req_notify_cq" at 96,
        post_send = "post_send" at 200, post_recv = "post_recv" at 208,
    }
    Context = "ibv_context" { calls = "ops" at 8, cmd_fd = "cmd_fd" at 264, async_fd = "async_fd" at 268 }
    Channel = "ibv_comp_channel" size 16 { context = "context" at 0, fd = "fd" at 8 }
    Queue = "ibv_cq" { context = "context" at 0, channel = "channel" at 8, cqe = "cqe" at 28 }
    Memory = "ibv_mr" size 48 { addr = "addr" at 16, length = "length" at 24, lkey = "lkey" at 36, rkey = "rkey" at 40 }
    Pair = "ibv_qp" { context = "context" at 0, send_cq = "send_cq" at 24, qp_num = "qp_num" at 52 }
    Piece = "ibv_sge" size 16 { addr = "addr" at 0, length = "length" at 8, lkey = "lkey" at 12 }
    Send = "ibv_send_wr" size 128 {
        wr_id = "wr_id" at 0, next = "next" at 8, sg_list = "sg_list" at 16, num_sge = "num_sge" at 24,
        opcode = "opcode" at 28, send_flags = "send_flags" at 32, imm_data = "imm_data" at 36,
        remote_addr = "wr.rdma.remote_addr" at 40, rkey = "wr.rdma.rkey" at 48,
    }
    Receive = "ibv_recv_wr" size 32 {
        wr_id = "wr_id" at 0, next = "next" at 8, sg_list = "sg_list" at 16, num_sge = "num_sge" at 24,
    }
    Report = "ibv_wc" size 48 {
        wr_id = "wr_id" at 0, status = "status" at 8, opcode = "opcode" at 12, byte_len = "byte_len" at 20,
        qp_num = "qp_num" at 28, wc_flags = "wc_flags" at 36, dlid_path_bits = "dlid_path_bits" at 45,
    }
    Capacity = "ibv_qp_cap" size 20 {
        max_send_wr = "max_send_wr" at 0, max_recv_wr = "max_recv_wr" at 4, max_send_sge = "max_send_sge" at 8,
        max_recv_sge = "max_recv_sge" at 12, max_inline_data = "max_inline_data" at 16,
    }
    PairOptions = "ibv_qp_init_attr" size 64 {
        qp_context = "qp_context" at 0, send_cq = "send_cq" at 8, recv_cq = "recv_cq" at 16, srq = "srq" at 24,
        cap = "cap" at 32, qp_type = "qp_type" at 52, sq_sig_all = "sq_sig_all" at 56,
    }
    GlobalRoute = "ibv_global_route" size 24 {
        dgid = "dgid" at 0, flow_label = "flow_label" at 16, sgid_index = "sgid_index" at 20,
        hop_limit = "hop_limit" at 21, traffic_class = "traffic_class" at 22,
    }
    Route = "ibv_ah_attr" size 32 { grh = "grh" at 0, is_global = "is_global" at 29, port_num = "port_num" at 30 }
    PairState = "ibv_qp_attr" size 144 {
        qp_state = "qp_state" at 0, path_mtu = "path_mtu" at 8, rq_psn = "rq_psn" at 20, sq_psn = "sq_psn" at 24,
        dest_qp_num = "dest_qp_num" at 28, qp_access_flags = "qp_access_flags" at 32, cap = "cap" at 36,
        ah_attr = "ah_attr" at 56, alt_ah_attr = "alt_ah_attr" at 88, pkey_index = "pkey_index" at 120,
        max_rd_atomic = "max_rd_atomic" at 126, max_dest_rd_atomic = "max_dest_rd_atomic" at 127,
        min_rnr_timer = "min_rnr_timer" at 128, port_num = "port_num" at 129, timeout = "timeout" at 130,
        retry_cnt = "retry_cnt" at 131, rnr_retry = "rnr_retry" at 132, rate_limit = "rate_limit" at 136,
    }
    PortState = "ibv_port_attr" size 52 {
        state = "state" at 0, active_mtu = "active_mtu" at 8, gid_tbl_len = "gid_tbl_len" at 12,
        max_msg_sz = "max_msg_sz" at 20, link_layer = "link_layer" at 46, port_cap_flags2 = "port_cap_flags2" at 48,
    }
    DeviceState = "ibv_device_attr" size 232 {
        max_qp_wr = "max_qp_wr" at 112, max_sge = "max_sge" at 120, max_cqe = "max_cqe" at 132,
        phys_port_cnt = "phys_port_cnt" at 227,
    }
    Event = "ibv_async_event" size 16 {
        element.pair = "element.qp" at 0, element.port_num = "element.port_num" at 0, event_type = "event_type" at 8,
    }
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;
    use std::fmt::Write;
    use std::process::Command;

    const HEADER: &str = "/usr/include/infiniband/verbs.h";

    /// A program that prints each size and offset of [`LAYOUTS`] and each number, as the header has them.
    fn program(numbers: &[(&str, i64)]) -> String {
        let mut text = "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n".to_owned();
        for (name, size, fields) in LAYOUTS {
            if size.is_some() {
                let _ = writeln!(text, "printf(\"{name} %zu\\n\", sizeof(struct {name}));");
            }
            for (field, _) in *fields {
                let _ = writeln!(
                    text,
                    "printf(\"{name}.{field} %zu\\n\", offsetof(struct {name}, {field}));"
                );
            }
        }
        for (name, _) in numbers {
            let _ = writeln!(text, "printf(\"{name} %lld\\n\", (long long){name});");
        }
        text + "return 0; }\n"
    }

    /// What that program should print.
    fn expected(numbers: &[(&str, i64)]) -> String {
        let mut text = String::new();
        for (name, size, fields) in LAYOUTS {
            if let Some(size) = size {
                let _ = writeln!(text, "{name} {size}");
            }
            for (field, at) in *fields {
                let _ = writeln!(text, "{name}.{field} {at}");
            }
        }
        for (name, number) in numbers {
            let _ = writeln!(text, "{name} {number}");
        }
        text
    }

    fn numbers() -> Vec<(&'static str, i64)> {
        vec![
            ("IBV_ACCESS_LOCAL_WRITE", ACCESS_LOCAL_WRITE.into()),
            ("IBV_ACCESS_REMOTE_WRITE", ACCESS_REMOTE_WRITE.into()),
            ("IBV_QPT_RC", TYPE_RC.into()),
            ("IBV_QPS_INIT", STATE_INIT.into()),
            ("IBV_QPS_RTR", STATE_RTR.into()),
            ("IBV_QPS_RTS", STATE_RTS.into()),
            ("IBV_QPS_ERR", STATE_ERROR.into()),
            ("IBV_QP_STATE", WITH_STATE.into()),
            ("IBV_QP_ACCESS_FLAGS", WITH_ACCESS_FLAGS.into()),
            ("IBV_QP_PKEY_INDEX", WITH_PKEY_INDEX.into()),
            ("IBV_QP_PORT", WITH_PORT.into()),
            ("IBV_QP_AV", WITH_ROUTE.into()),
            ("IBV_QP_PATH_MTU", WITH_PATH_MTU.into()),
            ("IBV_QP_TIMEOUT", WITH_TIMEOUT.into()),
            ("IBV_QP_RETRY_CNT", WITH_RETRY_CNT.into()),
            ("IBV_QP_RNR_RETRY", WITH_RNR_RETRY.into()),
            ("IBV_QP_RQ_PSN", WITH_RQ_PSN.into()),
            ("IBV_QP_MAX_QP_RD_ATOMIC", WITH_MAX_RD_ATOMIC.into()),
            ("IBV_QP_MIN_RNR_TIMER", WITH_MIN_RNR_TIMER.into()),
            ("IBV_QP_SQ_PSN", WITH_SQ_PSN.into()),
            ("IBV_QP_MAX_DEST_RD_ATOMIC", WITH_MAX_DEST_RD_ATOMIC.into()),
            ("IBV_QP_DEST_QPN", WITH_DEST_QPN.into()),
            ("IBV_WR_RDMA_WRITE", SEND_WRITE.into()),
            ("IBV_WR_SEND", SEND_MESSAGE.into()),
            ("IBV_SEND_SIGNALED", FLAG_SIGNALED.into()),
            ("IBV_SEND_SOLICITED", FLAG_SOLICITED.into()),
            ("IBV_SEND_INLINE", FLAG_INLINE.into()),
            ("IBV_WC_RECV", REPORT_RECEIVE.into()),
            ("IBV_EVENT_CQ_ERR", EVENT_QUEUE.into()),
            ("IBV_EVENT_QP_FATAL", EVENT_PAIR_FATAL.into()),
            ("IBV_EVENT_QP_REQ_ERR", EVENT_PAIR_REQUEST.into()),
            ("IBV_EVENT_QP_ACCESS_ERR", EVENT_PAIR_ACCESS.into()),
            ("IBV_EVENT_DEVICE_FATAL", EVENT_DEVICE_FATAL.into()),
            ("IBV_EVENT_PORT_ACTIVE", EVENT_PORT_ACTIVE.into()),
            ("IBV_EVENT_PORT_ERR", EVENT_PORT_ERROR.into()),
            ("IBV_EVENT_GID_CHANGE", EVENT_GID_CHANGE.into()),
        ]
    }

    #[test]
    fn everything_is_as_the_header_has_it() {
        if !std::path::Path::new(HEADER).exists() {
            return eprintln!(
                "not checked: {HEADER} is not installed (libibverbs-dev, rdma-core-devel)"
            );
        }
        let folder = super::super::fake::Folder::new("layout");
        let source = folder.path().join("layout.c");
        let binary = folder.path().join("layout");
        std::fs::write(&source, program(&numbers())).expect("the folder can be written");
        let built = Command::new("cc")
            .arg("-o")
            .arg(&binary)
            .arg(&source)
            .output();
        let built = match built {
            Ok(built) => built,
            Err(error) => return eprintln!("not checked: cc: {error}"),
        };
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        let printed = Command::new(&binary).output().expect("the program runs");
        assert_eq!(
            String::from_utf8_lossy(&printed.stdout),
            expected(&numbers())
        );
    }
}
