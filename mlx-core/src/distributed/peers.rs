//! Sums of small arrays through memory of GPUs of one machine. NCCL takes some 25 µs for a sum of 8 KiB on two GPUs,
//! which is more than a small layer computes.

use mlx_c_sys as sys;

use super::{Backend, Group, all_gather, all_min};
use crate::array::Array;
use crate::error::{ErrorKind, Result};
use crate::ffi::{self, Arg, op};

const HANDLE: usize = sys::MLXRS_PEERS_HANDLE as usize;

impl Group {
    /// Lets [`all_sum`](super::all_sum) of small arrays of this group, NCCL's, go through memory of each GPU that all ranks
    /// write to. `messages` is a group of the same ranks on the CPU. Returns whether all ranks could do it: they must be
    /// on one machine whose GPUs reach each other, and be at most 8. If not, sums stay with NCCL. All ranks call it once.
    ///
    /// The sums are the same bits on all ranks: elements are added in F32, in the order of the ranks. They have no
    /// derivatives of their own; inside of transformations NCCL computes them.
    ///
    /// # Errors
    /// `messages` fails.
    pub fn share_memory(&mut self, messages: &Group) -> Result<bool> {
        let (size, rank) = (self.size(), self.rank());
        let is_possible = self.backend == Backend::Nccl
            && (2..=sys::MLXRS_PEERS_MOST as usize).contains(&size)
            && (messages.size(), messages.rank()) == (size, rank);
        let mut handle = [0u8; HANDLE];
        // SAFETY: the function writes HANDLE bytes.
        let offered = ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlxrs_peers_offer(handle.as_mut_ptr())
        });
        let is_offered = agreed(is_possible && offered.is_ok(), messages)?;
        let own = Array::from_slice(&handle, &[1, HANDLE as i32])?;
        let handles = all_gather(&own, messages)?.to_vec::<u8>()?;
        if !is_offered || handles.len() != size * HANDLE {
            return Ok(false);
        }
        // SAFETY: `handles` has HANDLE bytes for each rank.
        let opened = ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlxrs_peers_open(handles.as_ptr(), self.rank, self.size)
        });
        self.shares_memory = agreed(opened.is_ok(), messages)?;
        Ok(self.shares_memory)
    }
}

/// Whether it is so on all ranks.
fn agreed(here: bool, messages: &Group) -> Result<bool> {
    all_min(&Array::scalar(i32::from(here))?, messages)?
        .item::<i32>()
        .map(|least| least == 1)
}

/// Whether [`sum`] is for `x`: all ranks decide the same by shape and dtype.
pub(super) fn takes(x: &Array) -> Result<bool> {
    let stream = crate::stream::current()?;
    let mut takes = false;
    // SAFETY: live handles, and a local variable.
    ffi::call(ErrorKind::Mlx, || unsafe {
        sys::mlxrs_peers_takes(&mut takes, x.c(), stream)
    })?;
    Ok(takes)
}

/// The sum of all ranks' x.
pub(super) fn sum(x: &Array) -> Result<Array> {
    op!(mlxrs_peers_sum(x))
}
