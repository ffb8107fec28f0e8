//! Restrictions on senders: paused priorities, and held queue pairs.

use faultline_wire::PrioritySet;

use super::Nic;

impl Nic {
    /// Pauses these priorities, as a priority-based pause frame does (IEEE 802.1Qbb), and no others: [`Nic::poll_transmit`] returns no
    /// frame of a paused priority. Queue pairs whose next frame has one of them wait; the others continue. A reset ends all pauses.
    #[inline]
    pub fn set_paused_priorities(&mut self, paused: PrioritySet) {
        self.core.flow_control.set_paused(paused);
    }

    /// Returns false if [`Nic::poll_transmit`] has no frame to send, and no work that could cause one.
    #[inline]
    pub fn may_send(&self) -> bool {
        self.core.first_ready().is_some()
            || !self.core.loose_frames.is_empty()
            || self.core.ingress.has_work()
            || self.core.flow_control.has_released()
            || self.core.has_segments()
    }

    /// True if [`Nic::poll_interrupt`] or [`Nic::poll_diagnostic`] returns something.
    #[inline]
    pub fn has_events(&self) -> bool {
        self.core.has_interrupt() || self.has_diagnostics()
    }

    /// True if [`Nic::handle_deadline`] has work to continue that was put off.
    #[inline]
    pub fn has_deferred_work(&self) -> bool {
        self.core.has_deferred_work()
    }

    /// True if a priority is paused, or a queue pair waits for the end of a pause.
    #[inline]
    pub fn waits_for_pause(&self) -> bool {
        self.core.flow_control.is_in_use()
    }

    /// The queue pair that has sent the frame of the last [`Nic::poll_transmit`]; 0 if the frame was the last
    /// acknowledgement of a destroyed queue pair.
    #[inline]
    pub fn last_sender(&self) -> u32 {
        self.last_sender
    }

    /// The [length](crate::TxFrame::len) of the frame of the last [`Nic::poll_transmit`].
    #[inline]
    pub fn last_len(&self) -> usize {
        self.last_len
    }

    /// Holds the connection that has sent the frame of the last [`Nic::poll_transmit`]: it sends no frames until [`Nic::release`], while
    /// others continue. Returns the number of its queue pair; `None` if the sender has no connection. RESET ends the hold too.
    pub fn hold_sender(&mut self) -> Option<u32> {
        let qp = self.queues.get_mut(self.last_sender)?;
        qp.hold().then_some(self.last_sender)
    }

    /// Ends the hold of a queue pair, if it is held.
    pub fn release(&mut self, queue_pair: u32) {
        if let Some(qp) = self.queues.get_mut(queue_pair) {
            qp.end_hold(&mut self.core);
        }
    }
}
