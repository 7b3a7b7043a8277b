//! Small sums and gathers of the GPUs of one machine as exchanges over each other's memory, which take less time than those
//! of NCCL.

use std::sync::OnceLock;

use mlx_c_sys as sys;

use super::{Group, all_gather};
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi;

/// What tells one machine, or one start of it, from others.
const MACHINE: &str = "/proc/sys/kernel/random/boot_id";
/// Whether to exchange over the memory of peers. The library reads it, and gives the same reason for "off" and for a fault.
const SETTING: &str = "MLX_CUDA_PEERS";
/// The bytes of a name of a machine that ranks compare.
const NAME: usize = 36;
const HANDLE: usize = sys::MLXRS_PEER_HANDLE as usize;

/// Why this process does not exchange over the memory of peers; `None` if it does. All ranks do, or none does.
static FAULT: OnceLock<Option<String>> = OnceLock::new();

/// Makes small sums and gathers of a group of NCCL exchanges over the memory of peers, if every rank can map that of all
/// others. Else all use NCCL. Every rank calls it at the same place.
///
/// # Errors
/// The ranks do not reach each other. `MLX_CUDA_PEERS` is neither on nor off.
pub(super) fn join(group: &mut Group) -> Result<()> {
    let fault = match FAULT.get() {
        Some(fault) => fault,
        None => {
            let value = std::env::var(SETTING).unwrap_or_default();
            if !["", "on", "off"].contains(&value.as_str()) {
                let message = format!("{SETTING} must be on or off, given {value:?}");
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            let fault = map(group)?;
            FAULT.get_or_init(|| fault)
        }
    };
    if fault.is_none() {
        // SAFETY: a live group of NCCL. This rank and all others have mapped the memory.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlxrs_peers_use(&mut group.handle.0)
        })?;
    }
    Ok(())
}

/// Why the ranks of NCCL do not exchange over the memory of peers.
pub(super) fn fault() -> Option<&'static str> {
    FAULT.get()?.as_deref()
}

/// Maps the memory of the other ranks. Returns why a rank cannot, in which case none may use it.
///
/// # Errors
/// The ranks do not reach each other.
fn map(group: &Group) -> Result<Option<String>> {
    let mut own = [0u8; NAME + HANDLE];
    let machine = std::fs::read(MACHINE).unwrap_or_default();
    let name = &machine[..machine.len().min(NAME)];
    own[..name.len()].copy_from_slice(name);
    // SAFETY: a live group, and as many bytes as a handle has.
    let offered = ffi::call(ErrorKind::Unsupported, || unsafe {
        sys::mlxrs_peers_offer(group.handle.0, own[NAME..].as_mut_ptr())
    });
    if offered.is_err() {
        // The others then map nothing of this machine.
        own[..NAME].fill(0);
    }
    let all = Array::from_slice(&own, &[1, own.len() as i32])?;
    let all = all_gather(&all, group)?.to_vec::<u8>()?;
    let offers = all.chunks_exact(own.len());
    let is_one_machine = offers
        .clone()
        .all(|offer| offer[0] != 0 && offer[..NAME] == own[..NAME]);
    let handles: Vec<u8> = offers.flat_map(|offer| offer[NAME..].to_vec()).collect();
    let mapped = offered.and_then(|()| {
        if !is_one_machine {
            let message = "a rank is on another machine, or has no memory for exchanges";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        // SAFETY: a live group, and a handle for each of its ranks.
        ffi::call(ErrorKind::Unsupported, || unsafe {
            sys::mlxrs_peers_map(group.handle.0, handles.as_ptr())
        })
    });
    let can = Array::from_slice(&[u8::from(mapped.is_ok())], &[1])?;
    let all = all_gather(&can, group)?.to_vec::<u8>()?;
    Ok(match (mapped, all.iter().position(|&can| can == 0)) {
        (Err(error), _) => Some(error.to_string()),
        (Ok(()), Some(rank)) => Some(format!("rank {rank} does not map the memory of the others")),
        (Ok(()), None) => None,
    })
}
