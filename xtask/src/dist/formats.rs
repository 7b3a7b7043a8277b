//! What is made of a packed folder besides its archive: a Debian package, a wheel, a `Dockerfile`.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo;

/// A folder with a program, its libraries and its licences.
pub struct PackedFolder<'a> {
    pub folder: &'a Path,
    /// The program's name, which is that of its file.
    pub program: &'a str,
    pub version: &'a str,
    /// `x86_64` or `aarch64`.
    pub processor: &'a str,
    /// The name of the back end.
    pub backend: &'a str,
}

impl PackedFolder<'_> {
    /// A Debian package in the folder `to`: everything in `/usr/lib/PROGRAM`, and a link to the
    /// program in `/usr/bin`.
    pub fn debian(&self, to: &Path) -> Result<PathBuf> {
        let Self {
            program, version, ..
        } = self;
        let machine = match self.processor {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => bail!("Debian has no name here for the processor {other}"),
        };
        let root = fresh(&to.join("debian"))?;
        let data = root.join("data");
        let own = data.join("usr/lib").join(program);
        copy_all(self.folder, &own)?;
        let documents = data.join("usr/share/doc").join(program);
        fs::create_dir_all(&documents)?;
        fs::rename(own.join("licenses"), documents.join("licenses"))?;
        fs::write(
            documents.join("copyright"),
            "MIT OR Apache-2.0, and the licences in the folder licenses.\n",
        )?;
        fs::create_dir_all(data.join("usr/bin"))?;
        link(
            &format!("../lib/{program}/{program}"),
            &data.join("usr/bin").join(program),
        )?;
        let control = root.join("control");
        fs::create_dir_all(&control)?;
        let mut text = String::new();
        writeln!(text, "Package: {program}")?;
        writeln!(text, "Version: {version}")?;
        writeln!(text, "Architecture: {machine}")?;
        writeln!(
            text,
            "Maintainer: mlx-rust <mlx-rust@users.noreply.github.com>"
        )?;
        writeln!(text, "Installed-Size: {}", bytes_in(&data)?.div_ceil(1024))?;
        writeln!(text, "Depends: libc6 (>= {}), libstdc++6", self.glibc()?)?;
        writeln!(text, "Section: science\nPriority: optional")?;
        writeln!(text, "Homepage: https://github.com/mlx-rust/mlx-rust")?;
        writeln!(
            text,
            "Description: language models on MLX, from the command line and over HTTP"
        )?;
        fs::write(control.join("control"), text)?;
        let members = [
            ("debian-binary", b"2.0\n".to_vec()),
            ("control.tar.gz", tar(&control)?),
            ("data.tar.gz", tar(&data)?),
        ];
        let package = to.join(format!(
            "{program}_{version}_{machine}_{}.deb",
            self.backend
        ));
        fs::write(&package, ar(&members)?)?;
        fs::remove_dir_all(root)?;
        Ok(package)
    }

    /// A wheel in the folder `to`, whose command is the program.
    pub fn wheel(&self, to: &Path) -> Result<PathBuf> {
        let platform = format!(
            "manylinux_{}_{}",
            self.glibc()?.replace('.', "_"),
            self.processor
        );
        let local = match self.backend {
            "cpu" => self.version.to_owned(),
            other => format!("{}+{other}", self.version),
        };
        let wheel = to.join(format!("mlx_rust-{local}-py3-none-{platform}.whl"));
        let script = cargo::repository().join("xtask/src/dist/wheel.py");
        let mut command = Command::new("python3");
        command
            .arg(script)
            .arg(self.folder)
            .arg(self.program)
            .arg(local)
            .arg(platform);
        cargo::run(command.arg(&wheel))?;
        Ok(wheel)
    }

    /// A `Dockerfile` in the folder `to`, for the archive there.
    pub fn dockerfile(&self, to: &Path, archive: &str) -> Result<PathBuf> {
        let program = self.program;
        let folder = archive.trim_end_matches(".tar.gz");
        let of_gpu = match self.backend.starts_with("cuda") {
            true => "ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility\n",
            false => "",
        };
        let text = format!(
            "# docker build -t {program} . && docker run -p 8080:8080 -e MLX_INFER_API_KEY=… {program}\n\
             # The system has glibc and libstdc++, which is all that the program needs.\n\
             FROM debian:trixie-slim\n\
             ADD {archive} /usr/local/lib/\n\
             RUN ln -s /usr/local/lib/{folder}/{program} /usr/local/bin/{program} && mkdir /models && chown 65534 /models\n\
             {of_gpu}ENV HF_HOME=/models\n\
             VOLUME /models\n\
             USER 65534\n\
             EXPOSE 8080\n\
             ENTRYPOINT [\"{program}\"]\n\
             CMD [\"serve\", \"--host\", \"0.0.0.0\"]\n"
        );
        let file = to.join(format!("Dockerfile.{}", self.backend));
        fs::write(&file, text)?;
        Ok(file)
    }

    /// The version of glibc that the program and its libraries need: the largest that their
    /// symbols name.
    fn glibc(&self) -> Result<String> {
        let mut most = (2, 17);
        for file in all_files(self.folder)? {
            most = most.max(named_glibc(&fs::read(&file)?).unwrap_or(most));
        }
        Ok(format!("{}.{}", most.0, most.1))
    }
}

/// The largest version of glibc that the bytes of a program or a library name.
fn named_glibc(bytes: &[u8]) -> Option<(u32, u32)> {
    const MARK: &[u8] = b"GLIBC_2.";
    if !bytes.starts_with(b"\x7fELF") {
        return None;
    }
    let found = bytes
        .windows(MARK.len())
        .enumerate()
        .filter(|(_, part)| *part == MARK);
    let minor = found.filter_map(|(at, _)| {
        let rest = &bytes[at + MARK.len()..];
        let digits: String = rest
            .iter()
            .map(|&byte| byte as char)
            .take_while(char::is_ascii_digit)
            .take(3)
            .collect();
        digits.parse::<u32>().ok()
    });
    minor.max().map(|minor| (2, minor))
}

/// An archive of `ar`, which a Debian package is.
fn ar(members: &[(&str, Vec<u8>)]) -> Result<Vec<u8>> {
    let mut out = b"!<arch>\n".to_vec();
    for (name, content) in members {
        writeln!(
            out,
            "{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`",
            0,
            0,
            0,
            "100644",
            content.len()
        )?;
        out.extend_from_slice(content);
        if content.len() % 2 == 1 {
            out.push(b'\n');
        }
    }
    Ok(out)
}

/// A compressed archive of a folder's content, owned by root.
fn tar(folder: &Path) -> Result<Vec<u8>> {
    let output = Command::new("tar")
        .args([
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--sort=name",
            "--mtime=@0",
            "-czf",
            "-",
            "-C",
        ])
        .arg(folder)
        .arg(".")
        .output()
        .context("cannot run tar")?;
    if !output.status.success() {
        bail!("tar: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}

/// The files below a folder, in the order of their names.
pub fn all_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        match path.is_dir() {
            true => files.extend(all_files(&path)?),
            false => files.push(path),
        }
    }
    files.sort();
    Ok(files)
}

fn bytes_in(folder: &Path) -> Result<u64> {
    let lengths = all_files(folder)?
        .into_iter()
        .map(|file| Ok(fs::symlink_metadata(file)?.len()));
    lengths.sum()
}

/// Copies all files of a folder.
pub fn copy_all(from: &Path, to: &Path) -> Result<()> {
    for file in all_files(from)? {
        super::copy(&file, &to.join(file.strip_prefix(from)?))?;
    }
    Ok(())
}

/// An empty folder.
pub fn fresh(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    Ok(folder.to_owned())
}

#[cfg(unix)]
fn link(target: &str, place: &Path) -> Result<()> {
    Ok(std::os::unix::fs::symlink(target, place)?)
}

#[cfg(not(unix))]
fn link(_target: &str, _place: &Path) -> Result<()> {
    bail!("a Debian package is made on Linux")
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A folder with a program that prints its arguments and its library.
    fn packed(folder: &Path) {
        fs::create_dir_all(folder.join("lib/mlx/lib")).unwrap();
        fs::create_dir_all(folder.join("licenses/mlx-rust")).unwrap();
        fs::write(folder.join("licenses/mlx-rust/LICENSE-MIT"), "MIT").unwrap();
        fs::write(
            folder.join("lib/mlx/lib/libmlxc.so"),
            b"\x7fELF..GLIBC_2.9.GLIBC_2.35\0GLIBC_2.4",
        )
        .unwrap();
        let program = folder.join("mlx-infer");
        fs::write(
            &program,
            "#!/bin/sh\necho \"$@\"; ls \"$(dirname \"$(readlink -f \"$0\")\")/lib/mlx/lib\"\n",
        )
        .unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn of(folder: &Path) -> PackedFolder<'_> {
        PackedFolder {
            folder,
            program: "mlx-infer",
            version: "0.1.0",
            processor: "x86_64",
            backend: "cpu",
        }
    }

    fn printed(command: &mut Command) -> String {
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    const SAID: &str = "--version now\nlibmlxc.so\n";

    #[test]
    fn a_debian_package_has_the_program_its_libraries_and_its_needs() {
        let work = tempfile::tempdir().unwrap();
        let folder = work.path().join("packed");
        packed(&folder);
        let package = of(&folder).debian(work.path()).unwrap();
        assert!(package.ends_with("mlx-infer_0.1.0_amd64_cpu.deb"));
        if Command::new("dpkg-deb").arg("--version").output().is_err() {
            return eprintln!("left out: there is no dpkg-deb to read the package with");
        }
        let field =
            |name: &str| printed(Command::new("dpkg-deb").arg("-f").arg(&package).arg(name));
        assert_eq!(field("Depends").trim(), "libc6 (>= 2.35), libstdc++6");
        assert_eq!(
            (field("Package").trim(), field("Architecture").trim()),
            ("mlx-infer", "amd64")
        );
        let root = work.path().join("root");
        printed(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&root));
        assert_eq!(
            printed(Command::new(root.join("usr/bin/mlx-infer")).args(["--version", "now"])),
            SAID
        );
        assert!(
            root.join("usr/share/doc/mlx-infer/licenses/mlx-rust/LICENSE-MIT")
                .is_file()
        );
    }

    #[test]
    fn a_wheel_installs_the_program() {
        let work = tempfile::tempdir().unwrap();
        let folder = work.path().join("packed");
        packed(&folder);
        let wheel = of(&folder).wheel(work.path()).unwrap();
        assert!(wheel.ends_with("mlx_rust-0.1.0-py3-none-manylinux_2_35_x86_64.whl"));
        let python = work.path().join("python");
        printed(Command::new("python3").args(["-m", "venv"]).arg(&python));
        let pip = [
            "-m",
            "pip",
            "install",
            "--no-index",
            "--quiet",
            "--disable-pip-version-check",
        ];
        printed(
            Command::new(python.join("bin/python"))
                .args(pip)
                .arg(&wheel),
        );
        assert_eq!(
            printed(Command::new(python.join("bin/mlx-infer")).args(["--version", "now"])),
            SAID
        );
    }

    #[test]
    fn a_dockerfile_is_of_the_archive() {
        let work = tempfile::tempdir().unwrap();
        let archive = "mlx-infer-0.1.0-x86_64-unknown-linux-gnu-cpu.tar.gz";
        let file = of(work.path()).dockerfile(work.path(), archive).unwrap();
        let text = fs::read_to_string(file).unwrap();
        assert!(
            text.contains(&format!("ADD {archive} /usr/local/lib/\n")),
            "{text}"
        );
        assert!(
            text.contains("/usr/local/lib/mlx-infer-0.1.0-x86_64-unknown-linux-gnu-cpu/mlx-infer "),
            "{text}"
        );
        assert!(!text.contains("NVIDIA"), "{text}");
    }
}
