//! `kernels`: compiles the CUDA kernels without a GPU, and compares the registers, spills and shared memory of each
//! with the committed table, so that an increase is noticed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};

use crate::native::cuda::{ARCHITECTURES, Architecture, Toolkit, VARIABLE};
use crate::native::kernels::Compiled;
use crate::native::{self, kernels, pins, source};
use crate::scratch::Scratch;
use crate::{build_mlx, cargo};

mod host;

/// The committed table.
const TABLE: &str = "mlx-c-sys/kernels.txt";
/// The architecture of a quick run.
const ONE: &str = "90a";

/// The cards to compile for, and whether to write the table.
#[derive(clap::Args)]
pub struct Arguments {
    /// Compile for every architecture of a build instead of 90a or those in MLX_CUDA_ARCHITECTURES
    #[arg(long)]
    all: bool,
    /// Write the table instead of comparing with it
    #[arg(long)]
    update: bool,
}

/// The resources that a kernel uses, as the assembler reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Use {
    /// Per thread.
    registers: u32,
    /// Bytes per thread that are spilled to memory because there are too few registers.
    spilled: u32,
    /// Static, per block.
    shared: u32,
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.registers)?;
        if self.spilled > 0 {
            write!(f, "+{}", self.spilled)?;
        }
        write!(f, "/{}", self.shared)
    }
}

impl Use {
    fn parse(text: &str) -> Option<Self> {
        let (first, shared) = text.split_once('/')?;
        let (registers, spilled) = first.split_once('+').unwrap_or((first, "0"));
        Some(Self {
            registers: registers.parse().ok()?,
            spilled: spilled.parse().ok()?,
            shared: shared.parse().ok()?,
        })
    }
}

/// The use of each kernel ("norm/norm add_norm_bf16") by each architecture.
type Table = BTreeMap<String, BTreeMap<String, Use>>;

/// Compiles, and compares or writes.
pub fn run(arguments: &Arguments) -> Result<()> {
    if !cfg!(target_os = "linux") {
        println!("left out: the CUDA compiler exists for Linux only");
        return Ok(());
    }
    let start = Instant::now();
    let options = build_mlx::from_env()?;
    let architectures = match (arguments.all, std::env::var_os(VARIABLE)) {
        (false, Some(_)) => options.architectures.clone(),
        (all, _) => {
            Architecture::list(if all { ARCHITECTURES } else { ONE }).map_err(|e| anyhow!("{e}"))?
        }
    };
    let mut say = |step: &str| println!("{step}");
    let toolkit = Toolkit::ensure(&options.root, &mut say).map_err(|e| anyhow!("{e}"))?;
    let cache = native::kernel_cache(&options.root);
    // A copy, so that a source that is edited during the compilation is not stored under the digest
    // of its old text.
    let work = Scratch::new("kernels")?;
    let (mlx_c, shim) = source::unpack(work.path()).map_err(|e| anyhow!("{e}"))?;
    let compiled = kernels::compile(
        &toolkit,
        &cache,
        &shim,
        &pins::SHIM,
        &architectures,
        &mut say,
    )
    .map_err(|e| anyhow!("{e}"))?;
    let (found, mut faults) = read_logs(&compiled)?;
    let path = cargo::repository().join(TABLE);
    let known = read_table(&path)?;
    // PTX is compiled later by the driver, so it has no register counts.
    let cubins = architectures.iter().filter(|one| !one.ptx);
    let names: BTreeSet<String> = cubins.map(ToString::to_string).collect();
    if arguments.update {
        fs::write(&path, table_text(&updated(known, found.clone(), &names)))?;
        println!("wrote {TABLE}");
    } else {
        let (listed, unlisted): (BTreeSet<_>, BTreeSet<_>) =
            names.into_iter().partition(|name| is_listed(&known, name));
        for name in &unlisted {
            println!("{TABLE} has nothing for {name}: `cargo xtask kernels --update` writes it");
        }
        faults.extend(differences(&known, &found, &listed));
        let prefix = native::ensure(&options, &mut say).map_err(|e| anyhow!("{e}"))?;
        faults.extend(host::faults(&toolkit, &prefix.mlx, &mlx_c, &shim)?);
    }
    println!(
        "{} kernels for {} in {:.0} s",
        found.len(),
        joined(&architectures),
        start.elapsed().as_secs_f64()
    );
    for fault in &faults {
        eprintln!("{fault}");
    }
    match faults.len() {
        0 => Ok(()),
        n => bail!("kernels: {n} faults; if they are meant, run `cargo xtask kernels --update`"),
    }
}

fn joined(architectures: &[Architecture]) -> String {
    let names: Vec<String> = architectures.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// Whether the table covers an architecture. The one of quick runs is always covered.
fn is_listed(known: &Table, architecture: &str) -> bool {
    architecture == ONE || known.values().any(|row| row.contains_key(architecture))
}

/// The assembler's report, and the compiler's warnings.
fn read_logs(compiled: &[Compiled]) -> Result<(Table, Vec<String>)> {
    let mut table = Table::new();
    let mut warnings = Vec::new();
    for one in compiled {
        let (unit, architecture) = (&one.unit.name, one.architecture.to_string());
        let warned = one.log.lines().filter(|line| line.contains("warning"));
        warnings.extend(warned.map(|line| format!("{unit} for {architecture}: {line}")));
        if one.architecture.ptx {
            continue;
        }
        for (kernel, of) in uses(&one.log).with_context(|| format!("the log of {unit}"))? {
            let row = table.entry(format!("{unit} {kernel}")).or_default();
            row.insert(architecture.clone(), of);
        }
    }
    Ok((table, warnings))
}

/// The kernels of a log of `ptxas -v`.
fn uses(log: &str) -> Result<Vec<(String, Use)>> {
    let mut found = Vec::new();
    let mut open: Option<(String, u32)> = None;
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let (name, _) = rest.split_once('\'').context("a name without an end")?;
            open = Some((name.to_owned(), 0));
        } else if let Some(stores) = before(line, " bytes spill stores") {
            // Functions that are not inlined have such a line too, but outside of a kernel.
            if let Some((_, spilled)) = &mut open {
                *spilled += stores;
            }
        } else if let Some(registers) = before(line, " registers")
            && let Some((name, spilled)) = open.take()
        {
            let shared = before(line, " bytes smem").unwrap_or(0);
            let of = Use {
                registers,
                spilled,
                shared,
            };
            found.push((name, of));
        }
    }
    match open {
        Some((name, _)) => bail!("it says nothing of the registers of {name}"),
        None => Ok(found),
    }
}

/// The number before `unit`.
fn before(line: &str, unit: &str) -> Option<u32> {
    let (head, _) = line.split_once(unit)?;
    head.rsplit(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

fn read_table(path: &Path) -> Result<Table> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let mut table = Table::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let mut row = || -> Option<_> {
            let name = format!("{} {}", words.next()?, words.next()?);
            let of = words.by_ref().map(|word| {
                let (architecture, of) = word.split_once('=')?;
                Some((architecture.to_owned(), Use::parse(of)?))
            });
            Some((name, of.collect::<Option<BTreeMap<_, _>>>()?))
        };
        let (name, of) = row().with_context(|| format!("{TABLE}: not a row: {line}"))?;
        table.insert(name, of);
    }
    Ok(table)
}

fn table_text(table: &Table) -> String {
    let mut text = String::from(
        "# What each CUDA kernel takes, written by `cargo xtask kernels --update`: its file, its name, and for each\n\
         # architecture the registers of a thread, +bytes spilled, /bytes of static shared memory of a block.\n",
    );
    for (name, of) in table {
        text += name;
        for (architecture, of) in of {
            let _ = write!(text, " {architecture}={of}");
        }
        text.push('\n');
    }
    text
}

/// The table with new values for `architectures`, and with the old values for the others.
fn updated(mut known: Table, found: Table, architectures: &BTreeSet<String>) -> Table {
    known.retain(|name, _| found.contains_key(name));
    for (name, new) in found {
        let row = known.entry(name).or_default();
        row.retain(|architecture, _| !architectures.contains(architecture));
        row.extend(new);
    }
    known
}

/// The differences for `architectures`, one per line.
fn differences(known: &Table, found: &Table, architectures: &BTreeSet<String>) -> Vec<String> {
    let names: BTreeSet<&String> = known.keys().chain(found.keys()).collect();
    let mut lines = Vec::new();
    for name in names {
        for architecture in architectures {
            let of = |table: &Table| table.get(name)?.get(architecture).copied();
            let line = match (of(known), of(found)) {
                (old, new) if old == new => continue,
                (None, Some(new)) => format!("is new: {new}"),
                (_, None) => "does not exist any more".to_owned(),
                (Some(old), Some(new)) if new.spilled > old.spilled => {
                    format!("spills {} bytes: was {old}, is {new}", new.spilled)
                }
                (Some(old), Some(new)) => format!("was {old}, is {new}"),
            };
            lines.push(format!("{name} for {architecture} {line}"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'wide' for 'sm_90a'
ptxas info    : Function properties for wide
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 34816 bytes smem
ptxas info    : Compile time = 324.367 ms
ptxas info    : Compiling entry function 'small' for 'sm_90a'
ptxas info    : Function properties for small
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
";

    fn table(wide: &str, small: &str) -> Table {
        let row = |text: &str| BTreeMap::from([("90a".to_owned(), Use::parse(text).unwrap())]);
        BTreeMap::from([
            ("a/b wide".into(), row(wide)),
            ("a/b small".into(), row(small)),
        ])
    }

    fn only(name: &str) -> BTreeSet<String> {
        BTreeSet::from([name.to_owned()])
    }

    #[test]
    fn the_assemblers_report_is_read() {
        let found = uses(LOG).unwrap();
        let text: Vec<String> = found
            .iter()
            .map(|(name, of)| format!("{name} {of}"))
            .collect();
        assert_eq!(text, ["wide 255+4/34816", "small 8/0"]);
        let cut = LOG.rsplit_once("ptxas info    : Used 8").unwrap().0;
        assert!(uses(cut).unwrap_err().to_string().contains("small"));
    }

    #[test]
    fn every_difference_is_a_fault() {
        let known = table("128/0", "8/0");
        let against = |found: &Table| differences(&known, found, &only("90a"));
        assert_eq!(against(&known), [""; 0]);
        assert_eq!(
            against(&table("128+16/0", "9/0")),
            [
                "a/b small for 90a was 8/0, is 9/0",
                "a/b wide for 90a spills 16 bytes: was 128/0, is 128+16/0",
            ]
        );
        let mut one = known.clone();
        one.remove("a/b wide");
        assert_eq!(against(&one), ["a/b wide for 90a does not exist any more"]);
        assert_eq!(
            differences(&one, &known, &only("90a")),
            ["a/b wide for 90a is new: 128/0"]
        );
        assert!(
            is_listed(&known, "90a") && !is_listed(&known, "80") && is_listed(&Table::new(), "90a")
        );
        // Other architectures are not compared.
        assert_eq!(differences(&known, &one, &only("80")), [""; 0]);
    }

    #[test]
    fn the_table_is_read_as_it_is_written_and_keeps_other_architectures() {
        let mut known = table("255+4/34816", "8/0");
        let ampere = Use::parse("40/0").unwrap();
        known
            .get_mut("a/b small")
            .unwrap()
            .insert("80".into(), ampere);
        let file = std::env::temp_dir().join(format!("kernels-{}.txt", std::process::id()));
        fs::write(&file, table_text(&known)).unwrap();
        let read = read_table(&file);
        fs::remove_file(&file).unwrap();
        assert_eq!(read.unwrap(), known);

        let mut found = table("255/0", "9/0");
        found.remove("a/b wide");
        let new = updated(known, found, &only("90a"));
        assert!(
            table_text(&new).ends_with("\na/b small 80=40/0 90a=9/0\n"),
            "{new:?}"
        );
    }
}
