//! Runs the program of each package: the archive, the wheel and the Debian package in a root without anything else, and
//! the image by docker or podman.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::bare::{self, Root, post};
use super::formats::{PackedFolder, fresh};
use crate::cargo;

/// The files that `dist` has made.
pub struct Packages<'a> {
    pub packed: &'a PackedFolder<'a>,
    pub archive: &'a Path,
    pub debian: &'a Path,
    pub wheel: &'a Path,
    /// A folder for what is unpacked.
    pub work: &'a Path,
}

/// What the built-in model is asked on the command line, and its answer.
const PROMPT: &str = "47 + 38 =";
const ANSWER: &str = " 85\n";

/// What it is asked over HTTP, and a part of the answer.
const ROUTE: &str = "/v1/chat/completions";
const BODY: &str =
    r#"{"messages": [{"role": "user", "content": "What is 20 + 22?"}], "temperature": 0}"#;
const PART: &str = r#""content":"42""#;

/// The largest image for the CPU: bytes of its files.
const IMAGE_LIMIT: u64 = 120_000_000;

impl Packages<'_> {
    /// Runs the program of each package but the image in a root without anything else.
    pub fn try_all(&self) -> Result<()> {
        let program = self.packed.program;
        if !bare::possible() {
            return Ok(());
        }
        let folder = |name: &str| fresh(&self.work.join(name));
        let of_archive = folder("archive")?;
        let mut untar = Command::new("tar");
        untar
            .arg("-xzf")
            .arg(self.archive)
            .arg("--strip-components=1");
        cargo::run(untar.arg("-C").arg(&of_archive))?;
        self.try_folder(&of_archive, program)?;
        let of_wheel = folder("wheel")?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-index"])
            .args(["--disable-pip-version-check", "--root-user-action=ignore"])
            .arg("--target");
        cargo::run(pip.arg(&of_wheel).arg(self.wheel))?;
        self.try_folder(&of_wheel, &format!("mlx_rust/program/{program}"))?;
        let of_debian = folder("debian")?;
        let mut unpack = Command::new("dpkg-deb");
        match unpack.arg("-x").arg(self.debian).arg(&of_debian).status() {
            Err(_) => eprintln!("left out: there is no dpkg-deb to unpack the Debian package with"),
            Ok(status) if !status.success() => {
                bail!("dpkg-deb cannot unpack {}", self.debian.display())
            }
            Ok(_) => {
                // The link in usr/bin is not followed when files are copied.
                fs::remove_dir_all(of_debian.join("usr/bin"))?;
                self.try_folder(&of_debian, &format!("usr/lib/{program}/{program}"))?;
            }
        }
        fs::remove_dir_all(self.work).with_context(|| self.work.display().to_string())
    }

    /// Version, an answer of the built-in model, one of a checkpoint, and one of the server.
    fn try_folder(&self, folder: &Path, place: &str) -> Result<()> {
        let root = Root::new(folder, place, self.work)?;
        root.prints(&["--version"], &self.version())?;
        root.prints(&["generate", "--prompt", PROMPT], ANSWER)?;
        let checkpoint = cargo::repository().join("mlx-infer/assets/default-model");
        root.add(&checkpoint, "model")?;
        let with_model = ["generate", "--model", "/model", "--prompt", PROMPT];
        root.prints(&with_model, ANSWER)?;
        let answer = root.serves(&["serve", "--port", "0"], ROUTE, BODY)?;
        if !answer.contains(PART) {
            bail!("the server of {place} answers in a bare root without {PART:?}: {answer}");
        }
        Ok(())
    }

    fn version(&self) -> String {
        format!("{} {}\n", self.packed.program, self.packed.version)
    }

    /// Builds the image by docker, or else by podman, compares its size with the limit, and runs it.
    pub fn try_image(&self, dockerfile: &Path) -> Result<()> {
        let engine = engine()?;
        let image = Image {
            engine,
            name: format!("{}-tried-{}", self.packed.program, std::process::id()),
        };
        let folder = dockerfile.parent().unwrap_or(Path::new("."));
        // Other files of the folder are not sent to the engine.
        let context = fresh(&self.work.join("image"))?;
        let name = self.archive.file_name().context("the archive has a name")?;
        super::copy(self.archive, &context.join(name))?;
        let mut build = image.command(&["build", "-t", &image.name, "-f"]);
        cargo::run(build.arg(dockerfile).arg(&context).current_dir(folder))?;
        let size = image.printed(&["image", "inspect", "--format", "{{.Size}}", &image.name])?;
        let bytes: u64 = size.trim().parse().context("the size of the image")?;
        println!("the image has {:.1} MB", bytes as f64 / 1e6);
        if bytes > IMAGE_LIMIT {
            bail!("the image has {bytes} bytes, and at most {IMAGE_LIMIT} are wanted");
        }
        let version = image.printed(&["run", "--rm", &image.name, "--version"])?;
        let answer =
            image.printed(&["run", "--rm", &image.name, "generate", "--prompt", PROMPT])?;
        if (&*version, &*answer) != (&*self.version(), ANSWER) {
            bail!("the image prints {version:?} and {answer:?}");
        }
        // Without a key the server refuses to listen at other addresses than this machine's.
        let run = ["run", "--rm", "-d", "-p", "127.0.0.1::8080", "-e"];
        let mut run = image.command(&run);
        run.args(["MLX_INFER_API_KEY=tried", &image.name]);
        let container = Container {
            image: &image,
            id: printed(&mut run)?.trim().to_owned(),
        };
        let address = image.printed(&["port", &container.id, "8080"])?;
        let address = address.lines().next().unwrap_or_default().to_owned();
        let answer = post(&address, ROUTE, "Authorization: Bearer tried\r\n", BODY)?;
        if !answer.contains(PART) {
            bail!("the server of the image answers without {PART:?}: {answer}");
        }
        Ok(())
    }
}

/// The first of docker and podman that works.
fn engine() -> Result<PathBuf> {
    for engine in ["docker", "podman"] {
        let info = Command::new(engine)
            .arg("info")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if info.is_ok_and(|status| status.success()) {
            return Ok(engine.into());
        }
    }
    bail!("neither docker nor podman works here (`docker info`, `podman info`)")
}

/// The standard output of a command that succeeds.
fn printed(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}: {}", output.status, errors.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// An image that is removed when it is dropped.
struct Image {
    engine: PathBuf,
    name: String,
}

impl Image {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.engine);
        command.args(arguments);
        command
    }

    fn printed(&self, arguments: &[&str]) -> Result<String> {
        printed(&mut self.command(arguments))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // An image that was not built cannot be removed.
        let _ = self.printed(&["image", "rm", "--force", &self.name]);
    }
}

/// A container that is stopped when it is dropped.
struct Container<'a> {
    image: &'a Image,
    id: String,
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let _ = self.image.printed(&["rm", "--force", &self.id]);
    }
}
