//! What the environment says about a ring. MLX reads the same variables, and checks little.

use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};

use crate::error::{Error, ErrorKind, Result};

/// The addresses of a ring's ranks.
pub(super) struct Hosts {
    pub(super) rank: usize,
    /// By rank. All ranks have the same number of addresses, one for each connection.
    pub(super) addresses: Vec<Vec<SocketAddr>>,
}

impl Hosts {
    /// `None` if the variables are not set.
    pub(super) fn of_environment() -> Result<Option<Self>> {
        let (rank, file) = (
            std::env::var_os("MLX_RANK"),
            std::env::var_os("MLX_HOSTFILE"),
        );
        // Other back ends use MLX_RANK too.
        let Some(file) = file else { return Ok(None) };
        let rank = rank.ok_or_else(|| {
            invalid(format!(
                "MLX_HOSTFILE is set ({}), and MLX_RANK is not",
                file.to_string_lossy()
            ))
        })?;
        Self::read(&rank, &file).map(Some)
    }

    fn read(rank: &OsString, file: &OsString) -> Result<Self> {
        let path = std::path::Path::new(file);
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::from(e).context(format!("MLX_HOSTFILE, {}", path.display())))?;
        Self::parse(&rank.to_string_lossy(), &text)
            .map_err(|error| error.context(format!("the ring of MLX_HOSTFILE, {}", path.display())))
    }

    fn parse(rank: &str, text: &str) -> Result<Self> {
        let names: Vec<Vec<String>> = serde_json::from_str(text).map_err(|e| {
            let form = "expected a JSON list with a list of \"address:port\" for each rank";
            Error::new(ErrorKind::Format, format!("{form}: {e}"))
        })?;
        let connections = names.first().map_or(0, Vec::len);
        if connections == 0 {
            return Err(invalid("rank 0 has no address".to_owned()));
        }
        if let Some(other) = names.iter().position(|own| own.len() != connections) {
            return Err(invalid(format!(
                "rank 0 has {connections} addresses and rank {other} has {}: all must have the same number",
                names[other].len()
            )));
        }
        let rank = rank.parse().ok().filter(|rank| *rank < names.len());
        let rank = rank.ok_or_else(|| {
            invalid(format!(
                "MLX_RANK must be a number from 0 to {}",
                names.len() - 1
            ))
        })?;
        let addresses = names
            .iter()
            .map(|own| own.iter().map(|name| address(name)).collect())
            .collect::<Result<_>>()?;
        Ok(Self { rank, addresses })
    }

    pub(super) fn size(&self) -> usize {
        self.addresses.len()
    }
}

/// The first address of a name, as MLX takes it. MLX's ring has no IPv6.
fn address(name: &str) -> Result<SocketAddr> {
    let mut found = name
        .to_socket_addrs()
        .map_err(|e| invalid(format!("{name:?} is no address:port: {e}")))?;
    found.find(SocketAddr::is_ipv4).ok_or_else(|| {
        invalid(format!(
            "{name:?} has no IPv4 address, which MLX's ring needs"
        ))
    })
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(rank: &str, text: &str) -> String {
        match Hosts::parse(rank, text) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_ring_is_checked() {
        let two = r#"[["127.0.0.1:5000"], ["127.0.0.1:5001"]]"#;
        let hosts = Hosts::parse("1", two).unwrap();
        assert_eq!((hosts.rank, hosts.size()), (1, 2));
        assert_eq!(hosts.addresses[1][0].port(), 5001);
        for (rank, text, part) in [
            ("2", two, "MLX_RANK must be a number from 0 to 1"),
            ("-1", two, "MLX_RANK must be a number from 0 to 1"),
            ("one", two, "MLX_RANK must be a number from 0 to 1"),
            ("0", "[]", "rank 0 has no address"),
            ("0", "[[]]", "rank 0 has no address"),
            ("0", "{", "expected a JSON list"),
            ("0", r#"["127.0.0.1:5000"]"#, "expected a JSON list"),
            ("0", r#"[["127.0.0.1:1"], []]"#, "rank 1 has 0"),
            ("0", r#"[["127.0.0.1"]]"#, "is no address:port"),
            ("0", r#"[["127.0.0.1:70000"]]"#, "is no address:port"),
            ("0", r#"[["[::1]:5000"]]"#, "has no IPv4 address"),
        ] {
            let fault = fault(rank, text);
            assert!(fault.contains(part), "{text}: {fault}");
        }
    }
}
