//! Messages of bytes between the first rank of a ring and the others.

use std::io::{self, BufReader, ErrorKind as IoErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::hosts::Hosts;
use super::ring::notice_silence;
use super::{Backend, Group};
use crate::error::{Error, ErrorKind, Result};

/// The first bytes that a rank sends to the first one, before its number and the number of ranks, and those of the
/// answer. The digit is the version of this form.
const CALL: [u8; 8] = *b"mlxrank1";
const ANSWER: [u8; 8] = *b"mlxhost1";
/// The bytes of a number.
const WORD: usize = size_of::<u64>();
/// For how long a connection may leave open which rank has made it.
const UNKNOWN: Duration = Duration::from_secs(2);
/// For how long a rank may take nothing of a message, before it counts as lost.
const STUCK: Duration = Duration::from_secs(10);
/// The time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(5);
/// No message has more bytes.
const LARGEST: u64 = 1 << 30;

/// Carries messages of bytes between the first rank of a ring and the others.
///
/// It has TCP connections of its own, between rank 0 and each other rank. A message waits for no stream and for no queue
/// of a GPU, and a rank that waits for a message sleeps. Rank 0 does not wait for the others when it sends. A rank that
/// ends or dies is noticed at once, and a machine that vanishes after some twelve seconds.
///
/// ```
/// use std::time::Duration;
/// use mlx_core::distributed::{Backend, Messenger, init};
///
/// # fn main() -> mlx_core::Result<()> {
/// let ring = init(false, Backend::Ring)?;
/// let messenger = Messenger::connect(&ring, Duration::from_secs(10))?;
/// let message = match ring.rank() {
///     0 => {
///         messenger.tell(b"begin")?;
///         b"begin".to_vec()
///     }
///     _ => messenger.hear()?,
/// };
/// assert_eq!(message, b"begin");
/// assert_eq!(messenger.gather(&message)?.len(), ring.size());
/// # Ok(())
/// # }
/// ```
pub struct Messenger {
    rank: usize,
    /// On rank 0 the others, in their order; on another rank only rank 0.
    peers: Vec<Peer>,
    loss: Loss,
}

/// Another rank.
struct Peer {
    rank: usize,
    stream: TcpStream,
    /// The messages that a thread has read. It ends with the connection.
    messages: Receiver<Vec<u8>>,
}

/// Tells any thread whether a [`Messenger`] has lost another rank.
#[derive(Clone, Debug, Default)]
pub struct Loss(Arc<Mutex<LossState>>);

#[derive(Debug, Default)]
struct LossState {
    first: Option<(String, Instant)>,
    /// Whether the messenger was dropped, after which a connection may end.
    has_ended: bool,
}

impl Loss {
    fn state(&self) -> MutexGuard<'_, LossState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the first reason, and returns it.
    fn record(&self, reason: &str) -> String {
        let mut state = self.state();
        let first = state
            .first
            .get_or_insert_with(|| (reason.to_owned(), Instant::now()));
        first.0.clone()
    }

    /// Which connection was lost, and since when. `None` while all work, and after the messenger was dropped.
    pub fn get(&self) -> Option<(String, Instant)> {
        let state = self.state();
        state.first.clone().filter(|_| !state.has_ended)
    }
}

impl Messenger {
    /// Connects the ranks of `ring`. Rank 0 listens at its first address in `MLX_HOSTFILE`, whose port the ring does not
    /// need any more. All ranks call it after they have made the ring.
    ///
    /// # Errors
    /// The group is no ring. Another rank does not connect within `limit`.
    pub fn connect(ring: &Group, limit: Duration) -> Result<Self> {
        let (rank, size) = (ring.rank(), ring.size());
        let mut messenger = Self {
            rank,
            peers: Vec::new(),
            loss: Loss::default(),
        };
        if size == 1 {
            return Ok(messenger);
        }
        let hosts = match ring.backend() {
            Backend::Ring => Hosts::of_environment()?,
            _ => None,
        };
        let hosts = hosts.ok_or_else(|| ring.unsupported("Messenger::connect"))?;
        let address = hosts.addresses[0][0];
        let streams = match rank {
            0 => meet(address, size, limit),
            _ => call(address, rank, size, limit).map(|stream| vec![(0, stream)]),
        };
        let streams = streams.map_err(|error| {
            error.context(format!("the messages of rank {rank} of the ring of {size}"))
        })?;
        for (rank, stream) in streams {
            let peer = Peer::new(rank, stream, messenger.loss.clone());
            messenger.peers.push(peer?);
        }
        Ok(messenger)
    }

    /// What has been lost, for any thread.
    pub fn loss(&self) -> Loss {
        self.loss.clone()
    }

    /// Sends a message to every other rank. Only rank 0 can.
    ///
    /// # Errors
    /// This is another rank. A rank was lost, or takes nothing for ten seconds.
    pub fn tell(&self, message: &[u8]) -> Result<()> {
        self.expect_rank(self.rank == 0, "tell")?;
        if let Some((reason, _)) = self.loss.get() {
            return Err(Error::new(ErrorKind::Eval, reason));
        }
        let message = framed(message)?;
        let mut peers = self.peers.iter();
        peers.try_for_each(|peer| self.send(peer, &message))
    }

    /// The next message of rank 0. Waits for it. Only other ranks can.
    ///
    /// # Errors
    /// This is rank 0. Rank 0 was lost.
    pub fn hear(&self) -> Result<Vec<u8>> {
        self.expect_rank(self.rank > 0, "hear")?;
        self.receive(&self.peers[0])
    }

    /// The messages of all ranks, in their order. Every rank calls it at the same place among its messages.
    ///
    /// # Errors
    /// Another rank was lost.
    pub fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.rank > 0 {
            self.send(&self.peers[0], &framed(own)?)?;
            let all = self.hear()?;
            let mut rest = &all[..];
            let mut each = Vec::new();
            while !rest.is_empty() {
                let message = read_message(&mut rest);
                each.push(message.map_err(|error| {
                    Error::from(error).context("rank 0 has sent something else than all messages")
                })?);
            }
            return Ok(each);
        }
        let mut each = vec![own.to_vec()];
        for peer in &self.peers {
            each.push(self.receive(peer)?);
        }
        let all = each.iter().map(|message| framed(message));
        self.tell(&all.collect::<Result<Vec<_>>>()?.concat())?;
        Ok(each)
    }

    fn send(&self, peer: &Peer, message: &[u8]) -> Result<()> {
        (&peer.stream).write_all(message).map_err(|error| {
            let reason = match error.kind() {
                IoErrorKind::WouldBlock | IoErrorKind::TimedOut => {
                    format!("rank {} has taken no message for {STUCK:?}", peer.rank)
                }
                _ => closed(peer.rank),
            };
            Error::new(ErrorKind::Eval, self.loss.record(&reason))
        })
    }

    fn receive(&self, peer: &Peer) -> Result<Vec<u8>> {
        let message = peer.messages.recv();
        message.map_err(|_| Error::new(ErrorKind::Eval, self.loss.record(&closed(peer.rank))))
    }

    fn expect_rank(&self, is_right: bool, what: &str) -> Result<()> {
        if is_right {
            return Ok(());
        }
        let message = format!(
            "{what}: rank 0 tells and the others hear, given rank {}",
            self.rank
        );
        Err(Error::new(ErrorKind::Invalid, message))
    }
}

impl Drop for Messenger {
    /// Ends the connections, after what was sent.
    fn drop(&mut self) {
        self.loss.state().has_ended = true;
        for peer in &self.peers {
            // An error says that it has ended already.
            let _ = peer.stream.shutdown(Shutdown::Both);
        }
    }
}

impl std::fmt::Debug for Messenger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let peers: Vec<usize> = self.peers.iter().map(|peer| peer.rank).collect();
        write!(f, "rank {} beside {peers:?}", self.rank)
    }
}

impl Peer {
    fn new(rank: usize, stream: TcpStream, loss: Loss) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(STUCK))?;
        notice_silence(&stream)?;
        let (to, messages) = mpsc::channel();
        let from = stream.try_clone()?;
        thread::Builder::new()
            .name(format!("mlx-rank-{rank}"))
            .spawn(move || read(from, rank, &to, &loss))?;
        Ok(Self {
            rank,
            stream,
            messages,
        })
    }
}

/// Reads messages until the connection ends.
fn read(stream: TcpStream, rank: usize, to: &Sender<Vec<u8>>, loss: &Loss) {
    let mut stream = BufReader::new(stream);
    let error = loop {
        match read_message(&mut stream).map(|message| to.send(message)) {
            Ok(Ok(())) => {}
            // The messenger was dropped.
            Ok(Err(_)) => return,
            Err(error) => break error,
        }
    };
    loss.record(&match error.kind() {
        IoErrorKind::InvalidData => format!("rank {rank} has sent {error}"),
        _ => closed(rank),
    });
}

fn closed(rank: usize) -> String {
    format!("the connection to rank {rank} was lost")
}

/// A message behind its length.
fn framed(message: &[u8]) -> Result<Vec<u8>> {
    let length = message.len() as u64;
    check_length(length)?;
    Ok([&length.to_le_bytes(), message].concat())
}

fn check_length(length: u64) -> io::Result<()> {
    if length <= LARGEST {
        return Ok(());
    }
    let message = format!("a message of {length} bytes, of at most {LARGEST}");
    Err(io::Error::new(IoErrorKind::InvalidData, message))
}

fn read_message(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; WORD];
    from.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    check_length(length)?;
    let mut message = Vec::new();
    match from.take(length).read_to_end(&mut message)? as u64 == length {
        true => Ok(message),
        false => Err(IoErrorKind::UnexpectedEof.into()),
    }
}

/// Waits for the other ranks, each of which says its number.
fn meet(address: SocketAddr, size: usize, limit: Duration) -> Result<Vec<(usize, TcpStream)>> {
    let listen = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let listener = listen().map_err(|error: io::Error| {
        Error::from(error).context(format!("rank 0 cannot listen at {address}"))
    })?;
    let deadline = Instant::now() + limit;
    let mut found: Vec<Option<TcpStream>> = (1..size).map(|_| None).collect();
    while let Some(missing) = found.iter().position(Option::is_none) {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(_) if Instant::now() < deadline => {
                thread::sleep(RETRY);
                continue;
            }
            Err(error) => {
                let message = format!(
                    "rank {} has not connected to {address} within {limit:?}: {error}",
                    missing + 1
                );
                return Err(Error::new(ErrorKind::Eval, message));
            }
        };
        // Whoever else connects is left alone.
        if let Ok(rank) = answer(&stream, size)
            && let Some(place @ None) = rank.checked_sub(1).and_then(|at| found.get_mut(at))
            && (&stream).write_all(&ANSWER).is_ok()
        {
            *place = Some(stream);
        }
    }
    Ok((1..).zip(found.into_iter().flatten()).collect())
}

/// The number of the rank that has connected.
fn answer(stream: &TcpStream, size: usize) -> io::Result<usize> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(UNKNOWN))?;
    let mut call = [0; CALL.len() + 2 * WORD];
    let mut from = stream;
    from.read_exact(&mut call)?;
    let (name, numbers) = call.split_at(CALL.len());
    let (rank, of) = numbers.split_at(WORD);
    match name == CALL && of == (size as u64).to_le_bytes() {
        true => {
            let rank = rank.iter().rev();
            Ok(rank.fold(0, |sum, &byte| sum << 8 | usize::from(byte)))
        }
        false => Err(IoErrorKind::InvalidData.into()),
    }
}

/// Connects to rank 0, as soon as it listens.
fn call(address: SocketAddr, rank: usize, size: usize, limit: Duration) -> Result<TcpStream> {
    let deadline = Instant::now() + limit;
    let attempt = || -> io::Result<TcpStream> {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = left.max(RETRY);
        let mut stream = TcpStream::connect_timeout(&address, left)?;
        stream.set_read_timeout(Some(left))?;
        let numbers = [rank, size].map(|number| (number as u64).to_le_bytes());
        stream.write_all(&[&CALL[..], &numbers.concat()].concat())?;
        let mut answer = ANSWER;
        stream.read_exact(&mut answer)?;
        match answer == ANSWER {
            true => Ok(stream),
            false => Err(IoErrorKind::InvalidData.into()),
        }
    };
    loop {
        match attempt() {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() >= deadline => {
                let message =
                    format!("rank 0 has not answered at {address} within {limit:?}: {error}");
                return Err(Error::new(ErrorKind::Eval, message));
            }
            Err(_) => thread::sleep(RETRY),
        }
    }
}
