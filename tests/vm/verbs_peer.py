"""The other end of a queue pair, by pyverbs and so by none of our code: run with the interpreter that has pyverbs.

``verbs_peer.py DEVICE GID_INDEX`` speaks JSON, one line each way at a time: it says where its pair and its memory are, is told the
same of the other end, and then does what it is told (`order`) and says what it saw.
"""

import json
import sys
import time

import pyverbs.device as d
import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

MEMORY = 1 << 16
PLACE = 8200  # bytes of each receive, the messages to send being behind the last
RECEIVES = 4
PSN = 0x123456
PATIENCE = 30.0  # seconds


def devices():
    """[name, [index, GID as hexadecimal digits] of the first port] of each device."""
    found = []
    for device in d.get_device_list():
        name = device.name.decode()
        with d.Context(name=name) as ctx:
            length = ctx.query_port(1).gid_tbl_len
            gids = [[index, digits(ctx.query_gid(1, index))] for index in range(length)]
        found.append([name, [[index, gid] for index, gid in gids if gid.strip("0")]])
    return sorted(found)


def digits(gid):
    return gid.gid.replace(":", "")


def attributes():
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
    return attr


class Peer:
    """A pair with memory that the other end may write."""

    def __init__(self, name, gid_index):
        self.ctx = d.Context(name=name)
        self.gid_index = gid_index
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 64)
        self.memory = MR(self.pd, MEMORY, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        self.places = MR(self.pd, (RECEIVES + 2) * PLACE, e.IBV_ACCESS_LOCAL_WRITE)
        cap = QPCap(max_send_wr=8, max_recv_wr=8, max_send_sge=1, max_recv_sge=1)
        self.pair = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap), attributes())

    def where(self):
        return {
            "gid": digits(self.ctx.query_gid(1, self.gid_index)),
            "number": self.pair.qp_num,
            "first_packet": PSN,
            "address": self.memory.buf,
            "key": self.memory.rkey,
        }

    def connect(self, far):
        self.far = far
        text = ":".join(far["gid"][at : at + 4] for at in range(0, 32, 4))
        route = GlobalRoute(dgid=GID(text), sgid_index=self.gid_index, hop_limit=1)
        attr = attributes()
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attr.path_mtu = far["mtu"]
        attr.dest_qp_num = far["number"]
        attr.rq_psn = far["first_packet"]
        attr.sq_psn = PSN
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 1
        attr.min_rnr_timer = 5
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 15, 6, 7
        for place in range(RECEIVES):
            self.receive(place)
        self.pair.to_rts(attr)

    def receive(self, place):
        piece = SGE(self.places.buf + place * PLACE, PLACE, self.places.lkey)
        self.pair.post_recv(RecvWR(wr_id=place, num_sge=1, sg=[piece]))

    def send(self, order):
        """Writes `bytes` at `to`, if there are any, and sends `message`; in one post."""
        message, bytes_ = bytes.fromhex(order["message"]), bytes.fromhex(order.get("bytes", ""))
        at = RECEIVES * PLACE
        self.places.write(message, len(message), at)
        piece = SGE(self.places.buf + at, len(message), self.places.lkey)
        post = SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[piece], send_flags=e.IBV_SEND_SIGNALED)
        if bytes_:
            self.memory.write(bytes_, len(bytes_))
            piece = SGE(self.memory.buf, len(bytes_), self.memory.lkey)
            write = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[piece], send_flags=0, next_wr=post)
            write.set_wr_rdma(self.far["key"], self.far["address"] + order["to"])
            post = write
        self.pair.post_send(post)
        return {"status": self.completion(receive=False).status}

    def take(self, order):
        """The next message, and `count` bytes of the memory from `offset` on."""
        report = self.completion(receive=True)
        message = self.places.read(report.byte_len, report.wr_id * PLACE)
        self.receive(report.wr_id)
        return {"message": message.hex(), "bytes": self.memory.read(order["count"], order["offset"]).hex()}

    def devices(self, _order):
        return devices()

    def completion(self, *, receive):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            count, reports = self.cq.poll(1)
            if count:
                assert bool(reports[0].opcode & e.IBV_WC_RECV) == receive or reports[0].status, "out of turn"
                return reports[0]
        raise TimeoutError("no completion")


def main():
    def say(what):
        print(json.dumps(what), flush=True)

    peer = Peer(sys.argv[1], int(sys.argv[2]))
    say(peer.where())
    peer.connect(json.loads(sys.stdin.readline()))
    say({})
    for line in sys.stdin:
        order = json.loads(line)
        say(getattr(peer, order["order"])(order))


main()
