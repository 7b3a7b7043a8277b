//! The GPUs of the processes that NCCL connects: each process sees one.

use std::process::Command;

use mlx_core::distributed::{Backend, is_available};
use mlx_core::stream::device_count;
use mlx_core::{Device, DeviceKind};

use super::{LaunchFault, Link, Result, number};
use crate::error::Error;

/// CUDA's list of the GPUs that a process sees.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Whether NCCL orders captured collectives and others by events of its own, which takes time in each of them.
const MIXING: &str = "NCCL_GRAPH_MIXING_SUPPORT";

/// What NCCL needs to know.
pub(super) struct Gpus {
    /// Address and port of rank 0, at which the ranks meet.
    host: String,
    port: usize,
    /// The number of ranks.
    size: usize,
    /// The GPU of each process that is started here, as CUDA names it.
    devices: Vec<String>,
}

impl Gpus {
    /// The GPUs of `ranks`, the processes that are started here. `hosts` has the ring's addresses of all ranks. `port` is
    /// free on the first one's machine.
    ///
    /// # Errors
    /// NCCL is wanted and there is none. There are fewer GPUs than processes of this machine.
    pub(super) fn of(
        link: Option<Link>,
        hosts: &[Vec<String>],
        ranks: &[usize],
        port: Option<usize>,
    ) -> Result<Option<Self>> {
        let has_nccl = || -> std::result::Result<bool, Error> {
            Ok(is_available(Backend::Nccl)? && Device::GPU.is_available()?)
        };
        match link {
            Some(Link::Ring) => return Ok(None),
            Some(Link::Nccl) if !has_nccl()? => {
                return Err(LaunchFault::Usage(
                    "--backend nccl needs an NVIDIA GPU, and a program built with MLX_BACKEND=cuda13"
                        .to_owned(),
                ));
            }
            None if !has_nccl()? => return Ok(None),
            _ => {}
        }
        let named = std::env::var(VISIBLE).ok().filter(|list| !list.is_empty());
        let visible = match &named {
            Some(list) => list.split(',').map(|name| name.trim().to_owned()).collect(),
            None => numbered(device_count(DeviceKind::Gpu).map_err(Error::from)?),
        };
        let devices = choose(hosts, ranks, &visible).map_err(LaunchFault::Usage)?;
        let first = hosts.first().and_then(|own| own.first());
        let (host, ring) = first
            .and_then(|address| address.rsplit_once(':'))
            .and_then(|(host, port)| Some((host, port.parse::<usize>().ok()?)))
            .ok_or_else(|| LaunchFault::Usage("rank 0 has no address:port".to_owned()))?;
        Ok(Some(Self {
            host: std::env::var("NCCL_HOST_IP").unwrap_or_else(|_| host.to_owned()),
            port: port
                .or_else(|| number("NCCL_PORT"))
                .unwrap_or(ring + hosts.len()),
            size: hosts.len(),
            devices,
        }))
    }

    /// Tells the process at `place` of those that are started here.
    pub(super) fn tell(&self, process: &mut Command, place: usize) {
        process
            .env(VISIBLE, &self.devices[place])
            .env("MLX_WORLD_SIZE", self.size.to_string())
            .env("NCCL_HOST_IP", &self.host)
            .env("NCCL_PORT", self.port.to_string());
        // A rank has one stream with collectives, so NCCL need not order captured steps and others.
        if std::env::var_os(MIXING).is_none() {
            process.env(MIXING, "0");
        }
    }
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|device| device.to_string()).collect()
}

/// The GPU of each of `ranks`: the ranks of a machine get its GPUs in their order.
fn choose(
    hosts: &[Vec<String>],
    ranks: &[usize],
    visible: &[String],
) -> std::result::Result<Vec<String>, String> {
    let machine = |rank: usize| {
        let address = hosts.get(rank).and_then(|own| own.first());
        address.and_then(|address| Some(address.rsplit_once(':')?.0))
    };
    // Launchers of one process each may show it only its own GPU.
    if let ([_], [only]) = (ranks, visible) {
        return Ok(vec![only.clone()]);
    }
    let place = |rank: usize| {
        let own = machine(rank);
        (0..rank).filter(|&before| machine(before) == own).count()
    };
    let device = |&rank: &usize| {
        visible.get(place(rank)).cloned().ok_or_else(|| {
            format!(
                "rank {rank} needs a GPU of its own, and this machine shows {}: start fewer ranks, or connect them by --backend ring",
                visible.len()
            )
        })
    };
    ranks.iter().map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(machines: &[&str]) -> Vec<Vec<String>> {
        let address = |(at, machine): (usize, &&str)| vec![format!("{machine}:{}", 5000 + at)];
        machines.iter().enumerate().map(address).collect()
    }

    #[test]
    fn the_ranks_of_a_machine_have_its_gpus_in_their_order() {
        let four = hosts(&["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2"]);
        assert_eq!(choose(&four, &[1], &numbered(2)).unwrap(), ["1"]);
        assert_eq!(choose(&four, &[2], &numbered(2)).unwrap(), ["0"]);
        assert_eq!(choose(&four, &[3], &numbered(1)).unwrap(), ["0"]);
        let own = ["6".to_owned(), "7".to_owned()];
        let two = hosts(&["127.0.0.1"; 2]);
        assert_eq!(choose(&two, &[0, 1], &own).unwrap(), own);
    }

    #[test]
    fn a_rank_without_a_gpu_is_refused() {
        let three = hosts(&["127.0.0.1"; 3]);
        let message = choose(&three, &[0, 1, 2], &numbered(2)).unwrap_err();
        assert!(
            message.contains("rank 2") && message.contains("--backend ring"),
            "{message}"
        );
    }
}
