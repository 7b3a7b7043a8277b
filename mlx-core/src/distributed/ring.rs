//! The connections of MLX's ring, which MLX keeps to itself. They are found among the files of the process, so that
//! silent peers are noticed and waits can end.

use std::ffi::CString;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use std::sync::OnceLock;

use mlx_c_sys as sys;

use super::Handle;
use super::hosts::Hosts;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi;

/// Seconds without traffic before the system asks a silent machine, between two questions, and the number of questions.
const IDLE: [libc::c_int; 3] = [6, 2, 3];

/// In a ring of two, this rank's end of the connection to the first address of rank 1, which both have found.
static PAIR: OnceLock<RawFd> = OnceLock::new();

/// Makes the sums and gathers of a ring of two one exchange between its ranks. Other rings stay as they are.
pub(super) fn pair(ring: &mut Handle) -> Result<()> {
    let Some(&socket) = PAIR.get() else {
        return Ok(());
    };
    // SAFETY: a live group, and a socket that is never closed.
    ffi::call(ErrorKind::Mlx, || unsafe {
        sys::mlxrs_ring_pair(&mut ring.0, socket)
    })
}

/// Hands the ring's connections to the library, which closes them when one is lost.
pub(super) fn watch(hosts: &Hosts) -> Result<()> {
    let (rank, size) = (hosts.rank, hosts.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    let (mut sockets, mut ranks) = (Vec::new(), Vec::new());
    let mut of_pair = None;
    let last = &hosts.addresses[size - 1][0];
    for stream in open_connections()? {
        let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else {
            continue;
        };
        // A connection to the next rank, or one that the rank before has made to an address of this rank.
        let is_at = |address: &SocketAddr| {
            let ip = address.ip();
            address.port() == peer.port() && (ip == peer.ip() || ip.is_unspecified())
        };
        let is_own = |address: &SocketAddr| address.port() == local.port();
        let (neighbour, is_of_last) = if hosts.addresses[right].iter().any(is_at) {
            (right, right == size - 1 && is_at(last))
        } else if hosts.addresses[rank].iter().any(is_own) {
            (left, rank == size - 1 && is_own(last))
        } else {
            continue;
        };
        notice_silence(&stream)?;
        if is_of_last {
            of_pair.get_or_insert(stream.as_raw_fd());
        }
        // Duplicates of MLX's sockets, kept to the end of the process as MLX keeps its own.
        sockets.push(stream.into_raw_fd());
        ranks.push(i32::try_from(neighbour).unwrap_or(i32::MAX));
    }
    let expected = 2 * hosts.addresses[rank].len();
    if sockets.len() != expected {
        let found = sockets.len();
        let message = format!("the ring has {expected} connections, and {found} were found");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    // Ranks with several addresses may use one port on each, so that a port tells no connection from another.
    let has_own_port = |rank: &Vec<SocketAddr>| {
        let first = rank[0].port();
        rank.iter()
            .filter(|address| address.port() == first)
            .count()
            == 1
    };
    if size == 2 && hosts.addresses.iter().all(has_own_port) {
        // The other rank has it too.
        let socket = of_pair.ok_or_else(|| {
            let message = format!("the connection to {last} was not found");
            Error::new(ErrorKind::Unsupported, message)
        })?;
        PAIR.get_or_init(|| socket);
    }
    let name = ffi::cstring(&format!("rank {rank} of the ring of {size}"))?;
    // SAFETY: a C string, and two slices of the length that is given.
    ffi::call(ErrorKind::Mlx, || unsafe {
        sys::mlxrs_ring_watch(
            name.as_ptr(),
            sockets.as_ptr(),
            ranks.as_ptr(),
            sockets.len(),
        )
    })
}

/// Duplicates of the process's open TCP connections.
fn open_connections() -> Result<Vec<TcpStream>> {
    let mut connections = Vec::new();
    for entry in std::fs::read_dir("/dev/fd")? {
        let name = entry?.file_name();
        let Some(fd) = name.to_str().and_then(|name| name.parse::<RawFd>().ok()) else {
            continue;
        };
        // SAFETY: only for the length of the call, which reports a descriptor that was closed meanwhile as an error.
        let duplicate = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
        // The descriptor of the folder itself is closed by now.
        let Ok(duplicate) = duplicate else { continue };
        let stream = TcpStream::from(duplicate);
        // An error for what is no connected socket.
        if stream.peer_addr().is_ok() {
            connections.push(stream);
        }
    }
    Ok(connections)
}

/// Makes the system report a peer whose machine is gone.
pub(super) fn notice_silence(stream: &TcpStream) -> Result<()> {
    #[cfg(target_os = "linux")]
    let idle = libc::TCP_KEEPIDLE;
    #[cfg(not(target_os = "linux"))]
    let idle = libc::TCP_KEEPALIVE;
    let [wait, between, count] = IDLE;
    let mut settings = vec![
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, idle, wait),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, between),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, count),
    ];
    // For data that is never acknowledged, in milliseconds.
    #[cfg(target_os = "linux")]
    settings.push((
        libc::IPPROTO_TCP,
        libc::TCP_USER_TIMEOUT,
        1000 * (wait + between * count),
    ));
    for (level, name, value) in settings {
        let value: libc::c_int = value;
        let size = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or_default();
        // SAFETY: an open socket, and an integer of the size that is given.
        let status = unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                size,
            )
        };
        if status != 0 {
            let error = Error::from(std::io::Error::last_os_error());
            return Err(error.context("a connection of ranks takes no limit for silence"));
        }
    }
    Ok(())
}

/// Closes the connections, so that this rank's collectives fail with `reason`.
pub(super) fn shut(reason: &str) {
    let reason = CString::new(reason).unwrap_or_default();
    // SAFETY: a live C string. The call fails only without memory for the reason; then the connections stay open.
    unsafe { sys::mlxrs_ring_shut(reason.as_ptr()) };
}

/// Why the ring was lost.
pub(super) fn lost() -> Option<String> {
    // SAFETY: fills a fresh handle.
    let reason = ffi::vector::string(|res| unsafe { sys::mlxrs_ring_lost(res) });
    match reason {
        Ok(reason) => (!reason.is_empty()).then_some(reason),
        Err(error) => Some(error.to_string()),
    }
}
