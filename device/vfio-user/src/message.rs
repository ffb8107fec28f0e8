//! Receives whole messages.

use crate::protocol::{HEADER, HEADER_LEN, Header, MAX_DRAIN, MAX_MESSAGE};
use crate::socket::{Connection, Stop, eof_inside_message};
use rustix::io::Errno;
use tracing::{debug, warn};

/// What has arrived.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message, whose body is in the buffer.
    Message(Header),
    /// A message that was skipped, because it is longer than [`MAX_MESSAGE`].
    TooLong(Header),
    /// A header whose size does not show the start of the next message, and the errno for it.
    Desynchronized(Header, Errno),
}

impl Connection<'_> {
    /// Receives a message. Its body replaces the contents of `body`, and its descriptors are in
    /// [`Connection::fds`].
    pub(crate) fn receive(&mut self, body: &mut Vec<u8>) -> Result<Received, Stop> {
        self.fds.clear();
        self.fds_lost = false;
        let mut bytes = [0u8; HEADER];
        self.recv_exact(&mut bytes)?;
        let header = Header::parse(&bytes);
        let Some(len) = header.size.checked_sub(HEADER_LEN) else {
            warn!(
                ?header,
                "message size is below {HEADER} bytes; closing the connection"
            );
            return Ok(Received::Desynchronized(header, Errno::INVAL));
        };
        if header.size > MAX_MESSAGE {
            if header.size > MAX_DRAIN {
                warn!(
                    ?header,
                    "message is longer than {MAX_DRAIN} bytes; closing the connection"
                );
                return Ok(Received::Desynchronized(header, Errno::MSGSIZE));
            }
            self.drain(len)?;
            self.fds.clear();
            return Ok(Received::TooLong(header));
        }
        body.clear();
        body.resize(len as usize, 0);
        self.recv_exact(body).map_err(eof_inside_message)?;
        Ok(Received::Message(header))
    }

    /// Receives a request as [`Connection::receive`] does. Returns none if it was too long and has been refused.
    pub(crate) fn receive_request(&mut self, body: &mut Vec<u8>) -> Result<Option<Header>, Stop> {
        match self.receive(body)? {
            Received::Message(header) => Ok(Some(header)),
            Received::TooLong(header) => self.refuse(&header, Errno::MSGSIZE).map(|()| None),
            Received::Desynchronized(header, errno) => {
                self.refuse(&header, errno)?;
                Err(Stop::Desynchronized)
            }
        }
    }

    /// Sends an error reply, unless the message has the no-reply flag or is a reply.
    pub(crate) fn refuse(&mut self, header: &Header, errno: Errno) -> Result<(), Stop> {
        debug!(?header, %errno, "message refused");
        if header.no_reply() || header.is_reply() {
            return Ok(());
        }
        self.send(&header.error(errno), &[])
    }
}
