//! `cache`: lists the native builds in the user's cache, and removes those that are no longer used.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow};

use crate::build_mlx;
use crate::native::host::Backend;
use crate::native::prefix::{self, Prefix};
use crate::native::store::{self, MARKER};
use crate::native::{self, Options, host};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The builds to remove.
#[derive(clap::Args)]
pub struct Arguments {
    /// Remove the native builds that were not used for this number of days, except those of this source tree, and the
    /// folders of builds that were stopped
    #[arg(long, value_name = "DAYS")]
    prune: Option<u32>,
}

/// A finished libmlxc.
#[derive(Debug)]
struct Build {
    folder: PathBuf,
    bytes: u64,
    /// The last time when a build or a program read the library, as far as the file system records it.
    used: SystemTime,
    in_use: Option<&'static str>,
}

/// Lists the builds, and removes old ones if asked.
pub fn run(arguments: &Arguments) -> Result<()> {
    let options = build_mlx::from_env()?;
    let days = arguments.prune.unwrap_or(0);
    let builds = builds(&options.root, &of_this_tree(&options))?;
    println!("{}", options.root.display());
    for build in &builds {
        println!(
            "  {} {:>9}  used {} days ago{}",
            name(&build.folder),
            megabytes(build.bytes),
            build.idle().as_secs() / DAY.as_secs(),
            build.in_use.map_or(String::new(), |by| format!(", {by}"))
        );
    }
    let others = others(&options.root)?;
    for (folder, bytes) in &others {
        println!(
            "  {} {:>9}{}",
            name(folder),
            megabytes(*bytes),
            build_of(folder).map_or("", |_| "  of a build that was stopped, or is running")
        );
    }
    let old: Vec<&Build> = builds
        .iter()
        .filter(|build| build.is_older(DAY * days))
        .collect();
    let bytes = old.iter().map(|build| build.bytes).sum();
    let total = format!("{} builds, {}", old.len(), megabytes(bytes));
    if arguments.prune.is_none() {
        println!("not in use: {total}; `cargo xtask cache --prune DAYS` removes the older of them");
        return Ok(());
    }
    for build in old {
        remove(&build.folder)?;
    }
    for (folder, _) in &others {
        remove_leftover(folder)?;
    }
    Ok(())
}

/// Removes every finished build that is not in use.
pub fn prune(options: &Options, kept: &Prefix) -> Result<()> {
    let mut keep = of_this_tree(options);
    keep.push(kept.dir.clone());
    let builds = builds(&options.root, &keep)?;
    builds
        .iter()
        .filter(|build| build.in_use.is_none())
        .try_for_each(|build| remove(&build.folder))
}

impl Build {
    fn idle(&self) -> Duration {
        // A time in the future counts as now.
        self.used.elapsed().unwrap_or_default()
    }

    fn is_older(&self, limit: Duration) -> bool {
        self.in_use.is_none() && self.idle() >= limit
    }
}

/// The folders of the builds that this source tree makes, one for each back end.
fn of_this_tree(options: &Options) -> Vec<PathBuf> {
    let folder = |backend: Backend| {
        let options = Options {
            backend,
            ..options.clone()
        };
        let mlx = match (&options.mlx_dir, options.from_source) {
            (Some(given), _) => prefix::installed_mlx(given).ok()?,
            (None, true) => return Some(Prefix::find(&options, None).ok()?.dir),
            (None, false) => native::wheel_dir(&options).join("mlx"),
        };
        Some(Prefix::find(&options, Some(&mlx)).ok()?.dir)
    };
    let folders = Backend::ALL.into_iter().filter_map(folder);
    folders.chain(options.mlx_c_dir.clone()).collect()
}

/// The finished builds below `root`, the latest used first.
fn builds(root: &Path, of_this_tree: &[PathBuf]) -> Result<Vec<Build>> {
    let mapped = mapped_files();
    let mut builds = Vec::new();
    for folder in folders(root)?.into_iter().filter(|folder| is_build(folder)) {
        let inside = format!("{}/", folder.display());
        let in_use = if of_this_tree.contains(&folder) {
            Some("of this source tree")
        } else if mapped.contains(&inside) {
            Some("open in a process")
        } else {
            None
        };
        builds.push(Build {
            bytes: bytes(&folder)?,
            used: used(&folder)?,
            in_use,
            folder,
        });
    }
    builds.sort_by_key(Build::idle);
    Ok(builds)
}

/// The other folders below `root` and their bytes: wheels, tools, compiled kernels.
fn others(root: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let folders = folders(root)?.into_iter();
    let others = folders.filter(|folder| !is_build(folder));
    others
        .map(|folder| {
            let bytes = bytes(&folder)?;
            Ok((folder, bytes))
        })
        .collect()
}

fn is_build(folder: &Path) -> bool {
    folder.join(MARKER).is_file() && folder.join("include/mlxrs.h").is_file()
}

fn folders(root: &Path) -> Result<Vec<PathBuf>> {
    let items = match fs::read_dir(root) {
        Ok(items) => items,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| root.display().to_string()),
    };
    let mut folders = Vec::new();
    for item in items {
        let item = item?;
        if item.file_type()?.is_dir() {
            folders.push(item.path());
        }
    }
    folders.sort();
    Ok(folders)
}

fn bytes(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for item in fs::read_dir(folder)? {
        let item = item?;
        let meta = item.metadata()?;
        sum += match meta.is_dir() {
            true => bytes(&item.path())?,
            false => meta.len(),
        };
    }
    Ok(sum)
}

/// The last access to the library. The build reads it whole to verify it, and programs map it.
fn used(folder: &Path) -> Result<SystemTime> {
    let library = folder.join("lib").join(host::library("mlxc"));
    let meta = match fs::metadata(&library) {
        Ok(meta) => meta,
        Err(_) => fs::metadata(folder)?,
    };
    let modified = meta.modified()?;
    Ok(meta
        .accessed()
        .map_or(modified, |accessed| accessed.max(modified)))
}

/// The names of the files that processes have mapped, if the system reports them.
fn mapped_files() -> String {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|process| fs::read_to_string(process.path().join("maps")).ok())
        .collect()
}

/// The lock of a build. `None` if a process is building it.
fn lock(build: &Path) -> Result<Option<File>> {
    let path = store::sibling(build, "lock");
    let lock = File::create(&path).with_context(|| path.display().to_string())?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => {
            eprintln!("kept      {}: it is being built", build.display());
            Ok(None)
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// Removes a build, unless a process is building it. The lock of the build is held meanwhile.
fn remove(folder: &Path) -> Result<()> {
    // The lock file stays, because another process may wait for it.
    let Some(_lock) = lock(folder)? else {
        return Ok(());
    };
    // Moved away first: a folder that is removed in part must not count as finished.
    let old = store::sibling(folder, "old");
    store::remove(&old).map_err(|e| anyhow!("{e}"))?;
    fs::rename(folder, &old).with_context(|| format!("cannot move {}", folder.display()))?;
    store::remove(&old).map_err(|e| anyhow!("{e}"))?;
    eprintln!("removed   {}", folder.display());
    Ok(())
}

/// The build that uses this folder while it runs. `None` if the folder's name is not that of such a
/// folder.
fn build_of(folder: &Path) -> Option<PathBuf> {
    let ending = folder.extension()?;
    ["partial", "work", "old"]
        .into_iter()
        .any(|of_build| ending == of_build)
        .then(|| folder.with_extension(""))
}

/// Removes a folder that a stopped build has left. Other folders stay.
fn remove_leftover(folder: &Path) -> Result<()> {
    let Some(build) = build_of(folder) else {
        return Ok(());
    };
    if let Some(_lock) = lock(&build)? {
        store::remove(folder).map_err(|e| anyhow!("{e}"))?;
        eprintln!("removed   {}", folder.display());
    }
    Ok(())
}

fn name(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    format!("{name:<44}")
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use std::fs::FileTimes;

    use super::*;

    /// A finished build whose library was read this many days ago.
    fn finished(root: &Path, name: &str, days: u32) -> PathBuf {
        let folder = root.join(name);
        fs::create_dir_all(folder.join("include")).unwrap();
        fs::create_dir_all(folder.join("lib")).unwrap();
        fs::write(folder.join("include/mlxrs.h"), "header").unwrap();
        fs::write(folder.join(MARKER), "").unwrap();
        let library = File::create(folder.join("lib").join(host::library("mlxc"))).unwrap();
        let time = SystemTime::now() - DAY * days;
        let times = FileTimes::new().set_accessed(time).set_modified(time);
        library.set_times(times).unwrap();
        folder
    }

    #[test]
    fn builds_are_listed_with_size_age_and_use() {
        let root = tempfile::tempdir().unwrap();
        let own = finished(root.path(), "cpu-1", 40);
        let other = finished(root.path(), "cpu-2", 3);
        fs::create_dir(root.path().join("tools")).unwrap();
        fs::write(root.path().join("tools/cmake"), "program").unwrap();
        // Not finished: it has no marker.
        fs::create_dir(root.path().join("cpu-3.partial")).unwrap();

        let builds = builds(root.path(), std::slice::from_ref(&own)).unwrap();
        let folders: Vec<&Path> = builds.iter().map(|build| &*build.folder).collect();
        assert_eq!(folders, [&*other, &*own]);
        assert_eq!(builds[0].bytes, 6);
        assert_eq!(builds[0].idle().as_secs() / DAY.as_secs(), 3);
        assert!(builds[0].is_older(DAY * 2) && !builds[0].is_older(DAY * 4));
        assert!(!builds[1].is_older(DAY), "it is of this tree");
        let others = others(root.path()).unwrap();
        assert_eq!(others.len(), 2);
        assert_eq!(others[1], (root.path().join("tools"), 7));
        assert!(
            self::builds(&root.path().join("none"), &[])
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn a_build_that_is_being_made_stays_and_others_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let (busy, idle) = (
            finished(root.path(), "cpu-1", 9),
            finished(root.path(), "cpu-2", 9),
        );
        let lock = File::create(store::sibling(&busy, "lock")).unwrap();
        lock.lock().unwrap();
        remove(&busy).unwrap();
        remove(&idle).unwrap();
        assert!(busy.exists() && !idle.exists());
        drop(lock);
        remove(&busy).unwrap();
        assert!(!busy.exists());
    }

    #[test]
    fn what_stopped_builds_have_left_is_removed() {
        let root = tempfile::tempdir().unwrap();
        // Versions contain dots too.
        let folders = [
            "cpu-0.32.4-1.partial",
            "cpu-0.32.4-1.work",
            "cpu-0.32.4-2.work",
            "wheel-cpu-0.32.4",
        ];
        let [stopped, unpacked, running, wheel] = folders.map(|name| root.path().join(name));
        for folder in [&stopped, &unpacked, &running, &wheel] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("file"), "text").unwrap();
        }
        let lock = File::create(root.path().join("cpu-0.32.4-2.lock")).unwrap();
        lock.lock().unwrap();
        for (folder, _) in others(root.path()).unwrap() {
            remove_leftover(&folder).unwrap();
        }
        assert!(!stopped.exists() && !unpacked.exists());
        assert!(running.exists() && wheel.exists());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_build_that_a_process_has_open_is_in_use() {
        // This process has mapped at least its own program.
        let program = std::env::current_exe().unwrap().canonicalize().unwrap();
        let folder = program.parent().unwrap().display();
        assert!(mapped_files().contains(&format!("{folder}/")));
    }

    #[test]
    fn the_builds_of_this_tree_are_found_without_reading_them() {
        let options = Options {
            root: "/nowhere".into(),
            mlx_c_dir: None,
            mlx_dir: None,
            prebuilt_dir: None,
            from_source: false,
            ..build_mlx::from_env().unwrap()
        };
        let folders = of_this_tree(&options);
        let mlx = native::wheel_dir(&options).join("mlx");
        if let Ok(own) = Prefix::find(&options, Some(&mlx)) {
            assert!(folders.contains(&own.dir), "{folders:?}");
        }
    }
}
