//! What is made of a packed folder besides its archive: a Debian package, a wheel, a `Dockerfile`.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::bare::is_elf;
use crate::cargo;

/// The system of the image.
const IMAGE: System = System {
    name: "debian:trixie-slim",
    glibc: 41,
    glibcxx: 33,
};

/// A system, with the newest minor versions of the symbols that its glibc (GLIBC_2.…) and libstdc++ (GLIBCXX_3.4.…) have.
struct System {
    name: &'static str,
    glibc: u32,
    glibcxx: u32,
}

/// The newest symbols of libstdc++ (GLIBCXX_3.4.…), the release of GCC that they came with, and the first glibc (2.…) of
/// the systems that have it.
const RELEASES_OF_GCC: [(u32, u32, u32); 6] = [
    (29, 11, 34),
    (30, 12, 35),
    (31, 13, 38),
    (32, 13, 38),
    (33, 14, 40),
    (34, 15, 42),
];

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
        let needs = Needs::of(self.folder)?;
        writeln!(
            text,
            "Depends: libc6 (>= 2.{}), libstdc++6 (>= {}), libgcc-s1",
            needs.glibc,
            needs.release()?.1
        )?;
        writeln!(text, "Section: science\nPriority: optional")?;
        writeln!(text, "Homepage: https://github.com/mlx-rust/mlx-rust")?;
        writeln!(
            text,
            "Description: language models on MLX, from the command line and over HTTP"
        )?;
        fs::write(control.join("control"), text)?;
        let members = [
            ("debian-binary", b"2.0\n".to_vec()),
            ("control.tar.gz", tar(&control, ".")?),
            ("data.tar.gz", tar(&data, ".")?),
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
        let platform = platform(self.folder, self.processor)?;
        let local = match self.backend {
            "cpu" => self.version.to_owned(),
            other => format!("{}+{other}", self.version),
        };
        let wheel_file = to.join(format!("mlx_rust-{local}-py3-none-{platform}.whl"));
        wheel(
            self.folder,
            &wheel_file,
            &Project {
                name: "mlx-rust",
                version: &local,
                platform: &platform,
                summary: &format!(
                    "The command {}: models on MLX, from the command line and over HTTP",
                    self.program
                ),
                program: Some(self.program),
            },
        )?;
        Ok(wheel_file)
    }

    /// A `Dockerfile` in the folder `to`, for the archive there. `None`, and says why, where the program needs a newer
    /// system than the image has.
    pub fn dockerfile(&self, to: &Path, archive: &str) -> Result<Option<PathBuf>> {
        let program = self.program;
        let needs = Needs::of(self.folder)?;
        if needs.glibc > IMAGE.glibc || needs.glibcxx > IMAGE.glibcxx {
            eprintln!(
                "left out: a Dockerfile on {}: the program needs GLIBC_2.{} and GLIBCXX_3.4.{}, and the image has 2.{} and \
                 3.4.{}; build on an older system",
                IMAGE.name, needs.glibc, needs.glibcxx, IMAGE.glibc, IMAGE.glibcxx
            );
            return Ok(None);
        }
        let folder = archive.trim_end_matches(".tar.gz");
        let file_name = format!("Dockerfile.{}", self.backend);
        let system = match self.backend.starts_with("cuda") {
            // NVIDIA's runtime puts the driver's libraries into a usual system.
            true => format!(
                "FROM {}\n\
                 ADD {archive} /usr/local/lib/\n\
                 RUN ln -s /usr/local/lib/{folder} /usr/local/lib/{program} && mkdir /models && chown 65534 /models\n\
                 ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility\n",
                IMAGE.name
            ),
            // Of the system, only the libraries that the program and its own libraries need.
            false => format!(
                "FROM {} AS system\n\
                 ADD {archive} /image/usr/local/lib/\n\
                 RUN set -e; cd /image; mkdir -m 1777 tmp; mkdir models; chown 65534 models; \\\n\
                 \x20   ln -s {folder} usr/local/lib/{program}; \\\n\
                 \x20   find usr -type f \\( -name {program} -o -name '*.so*' \\) -exec ldd {{}} + \\\n\
                 \x20     | sed -nE 's,.*[[:space:]](/[^[:space:]]+) \\(0x.*,\\1,p' | grep -v ^/image/ | sort -u \\\n\
                 \x20     | xargs cp -L --parents -t .\n\
                 FROM scratch\n\
                 COPY --from=system /image /\n",
                IMAGE.name
            ),
        };
        let text = format!(
            "# docker build -f {file_name} -t {program} . && docker run -p 8080:8080 -e MLX_INFER_API_KEY=… {program}\n\
             {system}\
             ENV HF_HOME=/models\n\
             VOLUME /models\n\
             USER 65534\n\
             EXPOSE 8080\n\
             ENTRYPOINT [\"/usr/local/lib/{program}/{program}\"]\n\
             CMD [\"serve\", \"--host\", \"0.0.0.0\"]\n"
        );
        let file = to.join(file_name);
        fs::write(&file, text)?;
        Ok(Some(file))
    }
}

/// The newest symbols that a program needs: GLIBC_2.… and GLIBCXX_3.4.…
#[derive(Debug, PartialEq, Eq)]
struct Needs {
    glibc: u32,
    glibcxx: u32,
}

impl Needs {
    /// What the programs and libraries below a folder need of a system: the largest versions that their symbols name.
    fn of(folder: &Path) -> Result<Self> {
        let mut needs = Self {
            glibc: 17,
            glibcxx: 0,
        };
        for file in all_files(folder)? {
            if is_elf(&file)? {
                let bytes = fs::read(&file)?;
                needs.glibc = needs.glibc.max(named(&bytes, b"GLIBC_2."));
                needs.glibcxx = needs.glibcxx.max(named(&bytes, b"GLIBCXX_3.4."));
            }
        }
        Ok(needs)
    }

    /// The row of `RELEASES_OF_GCC` whose libstdc++ is enough.
    fn release(&self) -> Result<(u32, u32, u32)> {
        let mut enough = RELEASES_OF_GCC.into_iter();
        enough
            .find(|(newest, ..)| *newest >= self.glibcxx)
            .with_context(|| {
                format!(
                    "it is not known here which release of GCC has GLIBCXX_3.4.{}",
                    self.glibcxx
                )
            })
    }
}

/// The platform of a wheel with the programs and libraries of a folder. Its name promises a glibc only: here the first one
/// that came with the libstdc++ that they need.
pub fn platform(folder: &Path, processor: &str) -> Result<String> {
    let needs = Needs::of(folder)?;
    let glibc = needs.glibc.max(needs.release()?.2);
    Ok(format!("manylinux_2_{glibc}_{processor}"))
}

/// What a wheel says of itself.
pub struct Project<'a> {
    pub name: &'a str,
    pub version: &'a str,
    pub platform: &'a str,
    pub summary: &'a str,
    /// The program for which the wheel has a command.
    pub program: Option<&'a str>,
}

/// Writes a wheel of a folder (wheel.py).
pub fn wheel(folder: &Path, file: &Path, project: &Project<'_>) -> Result<()> {
    let script = cargo::repository().join("xtask/src/dist/wheel.py");
    let mut command = Command::new("python3");
    command
        .arg(script)
        .arg(folder)
        .args([project.name, project.version, project.platform])
        .arg(file)
        .arg(project.summary)
        .args(project.program);
    cargo::run(&mut command)
}

/// The largest number that follows `mark` in the bytes of a program or a library, or 0.
fn named(bytes: &[u8], mark: &[u8]) -> u32 {
    let places = bytes
        .windows(mark.len())
        .enumerate()
        .filter(|(_, part)| *part == mark);
    let numbers = places.filter_map(|(at, _)| {
        let digits: String = bytes[at + mark.len()..]
            .iter()
            .map(|&byte| byte as char)
            .take_while(char::is_ascii_digit)
            .take(3)
            .collect();
        digits.parse::<u32>().ok()
    });
    numbers.max().unwrap_or(0)
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

/// A compressed archive of a file or folder of `parent`. On Linux the same files give the same archive: they belong to
/// root, and everyone may read them.
pub fn tar(parent: &Path, name: &str) -> Result<Vec<u8>> {
    let mut command = Command::new("tar");
    if cfg!(target_os = "linux") {
        command.args([
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--mode=u=rwX,go=rX",
            "--sort=name",
            "--mtime=@0",
            "--use-compress-program=gzip -n",
        ]);
        command.args(["-cf", "-"]);
    } else {
        command.args(["-czf", "-"]);
    }
    let output = command
        .arg("-C")
        .arg(parent)
        .arg(name)
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
            b"\x7fELF..GLIBC_2.9.GLIBC_2.34\0GLIBC_2.4\0GLIBCXX_3.4\0GLIBCXX_3.4.30\0GLIBCXX_3.4.9",
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
        assert_eq!(
            field("Depends").trim(),
            "libc6 (>= 2.34), libstdc++6 (>= 12), libgcc-s1"
        );
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
        let folder = work.path().join("packed");
        packed(&folder);
        let read = |packed: PackedFolder<'_>| {
            let file = packed.dockerfile(work.path(), archive).unwrap();
            file.map(|file| fs::read_to_string(file).unwrap())
        };
        let text = read(of(&folder)).unwrap();
        assert!(
            text.contains(&format!("ADD {archive} /image/usr/local/lib/\n")),
            "{text}"
        );
        assert!(
            text.contains(
                "ln -s mlx-infer-0.1.0-x86_64-unknown-linux-gnu-cpu usr/local/lib/mlx-infer;"
            ),
            "{text}"
        );
        assert!(
            text.contains("FROM scratch\n") && !text.contains("NVIDIA"),
            "{text}"
        );
        let cuda = PackedFolder {
            backend: "cuda13",
            ..of(&folder)
        };
        let text = read(cuda).unwrap();
        assert!(
            text.contains("NVIDIA_VISIBLE_DEVICES") && !text.contains("scratch"),
            "{text}"
        );
        // A program that needs a newer system than the image has.
        fs::write(folder.join("lib/new.so"), b"\x7fELF GLIBC_2.42").unwrap();
        assert_eq!(read(of(&folder)), None);
    }

    #[test]
    fn the_needs_of_a_program_name_a_release_of_gcc() {
        let release = |glibcxx| Needs { glibc: 35, glibcxx }.release();
        assert_eq!(release(0).unwrap(), (29, 11, 34));
        assert_eq!(release(30).unwrap(), (30, 12, 35));
        assert_eq!(release(32).unwrap(), (32, 13, 38));
        let error = release(99).unwrap_err().to_string();
        assert!(error.contains("GLIBCXX_3.4.99"), "{error}");
    }

    #[test]
    fn the_same_files_give_the_same_archive() {
        let work = tempfile::tempdir().unwrap();
        let folder = work.path().join("packed");
        packed(&folder);
        let first = tar(work.path(), "packed").unwrap();
        let program = fs::File::open(folder.join("mlx-infer")).unwrap();
        let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
        program.set_modified(old).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(first == tar(work.path(), "packed").unwrap());
    }
}
