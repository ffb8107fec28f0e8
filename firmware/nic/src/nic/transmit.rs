//! Frames to send: the next frame of the ready queue.

use super::{BURST, Nic};
use crate::core::Core;
use crate::counters::CounterSet;
use crate::diagnostic::DropCause;
use crate::dma::Dma;
use crate::frame::{FrameKind, TxFrame};
use crate::queues::Queue;
use crate::time::Instant;
use crate::work;

/// A frame that a queue has made.
struct Made {
    /// Number of the queue.
    number: u32,
    /// Counter set of the queue.
    set: CounterSet,
    /// Length of the frame.
    len: usize,
    /// Why the gate bars it; `None`: it is sent.
    barred: Option<DropCause>,
    /// The queue has left the ready queue.
    was_last: bool,
}

impl Made {
    /// Counts a frame that queue `number`, the first of the ready queue, has made. Removes the queue from the ready queue if the frame was its
    /// last one.
    #[inline(always)]
    fn new(queue: &mut Queue, core: &mut Core, number: u32, frame: &TxFrame) -> Self {
        let len = frame.len();
        core.charge(work::of_frames(frame.packets, 0));
        let mut made = Self {
            number,
            set: CounterSet::DEVICE,
            len,
            barred: None,
            was_last: false,
        };
        if let Some(last) = queue.last_frame() {
            made.set = last.set;
            made.barred = core.bars_sent(frame, last.source);
            if made.barred.is_none() {
                let traffic = last.traffic;
                traffic.tx_packets = traffic.tx_packets.wrapping_add(u64::from(frame.packets));
                traffic.tx_bytes = traffic.tx_bytes.wrapping_add(len as u64);
            }
            made.was_last = last.is_last;
        }
        if made.was_last {
            core.pop_ready();
            queue.left_ready_queue(core);
        }
        made
    }
}

impl Nic {
    /// Makes `frame` the next one to send. Returns false if there is none. The caller has delivered or copied the frame of the
    /// call before.
    ///
    /// `most` = 0: each frame is one packet, for wires that need octets. Otherwise, for receivers that take frames by
    /// reference: a run or train where possible, of as many packets as carry `most` bytes, at least one.
    ///
    /// A frame that [`Nic::last_barred`] names does not leave.
    pub fn poll_transmit<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        most: usize,
        frame: &mut TxFrame,
    ) -> bool {
        if self.core.is_busy(now) {
            return false;
        }
        self.core.end_lookups(now);
        if self.core.ingress.has_work() {
            self.receive_held(now, mem);
        }
        if self.core.flow_control.has_released() {
            self.end_pauses(now);
        }
        let paused = self.core.flow_control.paused();
        let may_leave = |(kind, _): &mut (FrameKind, _)| !paused.contains(kind.priority());
        if self.is_running()
            && let Some((kind, source)) = self.core.loose_frames.pop_front_if(may_leave)
        {
            frame.set_whole(kind);
            let barred = self.core.bars_sent(frame, source);
            (self.last_sender, self.last_len, self.last_barred) = (0, frame.len(), barred);
            if let Some(cause) = barred {
                self.note_barred(now, 0, cause, 1);
                return true;
            }
            self.count_sent(CounterSet::DEVICE, frame);
            self.sniff(now, mem, frame, mem);
            return true;
        }
        // In turn with those of queue pairs.
        let is_turn = self.last_sender != 0 || self.core.first_ready().is_none();
        if self.core.has_segments() && is_turn && self.poll_shared_segment(now, mem, frame) {
            return true;
        }
        let turn = self.core.begin_turn();
        while self.is_running()
            && let Some(number) = self.core.first_ready()
        {
            let Some((queue, mut cx)) = self.queue_in_context(now, mem, number) else {
                // A queue that was destroyed while it was in the ready queue.
                self.core.pop_ready();
                self.core.charge(work::LOOK);
                if self.core.is_over(turn) {
                    self.core.defer(now);
                    return false;
                }
                continue;
            };
            if !queue.poll_transmit(&mut cx, most, frame) {
                // `Qp::wake` has no effect while the queue pair is in the ready queue, and may have been called.
                self.core.pop_ready();
                if let Some(queue) = self.queues.get_mut(number) {
                    queue.left_ready_queue(&mut self.core);
                }
                self.burst = 0;
                self.core.charge(work::OPERATION);
                // Registrations send nothing, and the ready queue may be long.
                if self.core.is_over(turn) {
                    self.core.defer(now);
                    return false;
                }
                continue;
            }
            let made = Made::new(queue, cx.core, number, frame);
            self.pass_on(now, mem, &made, frame);
            self.report_fatal(now);
            return true;
        }
        self.report_fatal(now);
        false
    }

    /// Replaces `frame`, the frame of the last call, by the next run of the same message, of up to `most` bytes. The
    /// receiver must have taken `frame`. The run is not sent yet: the caller reports with [`Nic::next_run_sent`] how
    /// much of it the receiver has taken. Returns false, and leaves `frame` undefined, if only [`Nic::poll_transmit`]
    /// can determine the next frame.
    pub fn poll_next_run<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        most: usize,
        frame: &mut TxFrame,
    ) -> bool {
        let core = &self.core;
        let comes_first = core.first_ready() == Some(self.last_sender)
            && core.loose_frames.is_empty()
            && !core.has_segments()
            && !core.ingress.has_work()
            && !core.flow_control.has_released();
        // A sniffer copies each frame, and the simulated time of the NIC passes with each.
        let is_plain = !core.delays_packets() && !self.steering.has_sniffers();
        if !comes_first || !is_plain || !self.is_running() || core.is_busy(now) {
            return false;
        }
        let most_packets = match core.ready_count() {
            1 => u32::MAX,
            _ => BURST.saturating_sub(self.burst),
        };
        let Some((qp, mut cx)) = self.qp_in_context(now, mem, self.last_sender) else {
            return false;
        };
        qp.poll_next_run(&mut cx, (most, most_packets), frame)
    }

    /// Records that `frame` is sent, which [`Nic::poll_next_run`] has made. The caller may have removed its last
    /// packets.
    pub fn next_run_sent<M: Dma>(&mut self, now: Instant, mem: &M, frame: &TxFrame) {
        let number = self.last_sender;
        let Some((queue, mut cx)) = self.queue_in_context(now, mem, number) else {
            return;
        };
        queue.next_run_sent(&mut cx, frame);
        let made = Made::new(queue, cx.core, number, frame);
        self.pass_on(now, mem, &made, frame);
    }

    /// Counts a frame that leaves, and passes it to the observers in this NIC.
    #[inline(always)]
    fn pass_on<M: Dma>(&mut self, now: Instant, mem: &M, made: &Made, frame: &TxFrame) {
        let number = made.number;
        self.burst = match made.was_last {
            true => 0,
            false => self.burst.saturating_add(frame.packets),
        };
        if self.burst >= BURST {
            self.burst = 0;
            self.core.rotate_ready();
        }
        (self.last_sender, self.last_len, self.last_barred) = (number, made.len, made.barred);
        if let Some(cause) = made.barred {
            self.note_barred(now, number, cause, frame.packets);
            return;
        }
        self.count_sent(made.set, frame);
        self.core.charge_lookups(now);
        self.core.charge_queue_pair(now, number);
        self.core
            .charge_payload(now, frame.payload_len, frame.packets);
        self.loop_back(now, mem, number, frame);
    }

    /// Wakes the queue pairs that have waited for priorities which are not paused any more.
    fn end_pauses(&mut self, now: Instant) {
        let turn = self.core.begin_turn();
        while let Some((priority, number)) = self.core.flow_control.pop_released() {
            self.core.charge(work::LOOK);
            if let Some(qp) = self.queues.get_mut(number) {
                qp.pause_ended(&mut self.core, priority);
            }
            if self.core.is_over(turn) {
                self.core.defer(now);
                return;
            }
        }
    }
}
