//! The small files of a checkpoint: in a directory, or embedded in the program.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::ErrorKind as IoErrorKind;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use mlx_core::files;
use serde_json::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::json;
use crate::text::tokenizer::gguf;

/// `tokenizer.json` of the largest published vocabularies is about 35 MB.
pub(super) const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
/// Configurations and templates are at most a few megabytes (tokenizer_config.json lists added tokens).
const MAX_SMALL_FILE_BYTES: u64 = files::JSON_LIMIT;

/// The tokenizer, configuration and template files of one checkpoint.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Files {
    /// A directory, as `save_pretrained` and mlx-lm write them.
    Directory(PathBuf),
    /// Files that are part of the program, such as the default model's.
    Embedded {
        /// Their name in messages.
        name: &'static str,
        /// Name (with `/` between folders) and content of each file.
        files: &'static [(&'static str, &'static [u8])],
    },
    /// Files in memory.
    Given {
        /// Their name in messages.
        name: String,
        /// Name (with `/` between folders) and content of each file.
        files: Arc<BTreeMap<String, Vec<u8>>>,
    },
    /// A model in GGUF, one file or the parts of one, with the tokenizer and the template of its metadata.
    Gguf {
        /// The file, or the folder that has it.
        path: PathBuf,
        /// `general.architecture`.
        architecture: String,
        /// Name and content of the files that its metadata stand for.
        files: Arc<BTreeMap<String, Vec<u8>>>,
    },
}

impl Files {
    /// The files of a directory, which must exist, or of a model in GGUF ([`mlx_core::gguf::find`]).
    ///
    /// # Errors
    /// When `path` is not a directory that can be looked up, and of a model in GGUF when its metadata are malformed or
    /// have a tokenizer that is not supported.
    pub fn directory(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        if let Some(parts) = mlx_core::gguf::find(&path)? {
            let (architecture, files) = gguf::files(&parts[0])?;
            return Ok(Self::Gguf {
                path,
                architecture,
                files: Arc::new(files),
            });
        }
        match std::fs::metadata(&path) {
            Ok(found) if found.is_dir() => Ok(Self::Directory(path)),
            Ok(_) => Err(Error::new(
                ErrorKind::Missing,
                format!(
                    "{} is not a directory; expected a checkpoint's directory",
                    path.display()
                ),
            )),
            Err(error) if error.kind() == IoErrorKind::NotFound => Err(Error::new(
                ErrorKind::Missing,
                format!("{} does not exist", path.display()),
            )),
            Err(error) => Err(io_error(&path.display().to_string(), error)),
        }
    }

    /// Files that are part of the program. `name` is for messages.
    pub fn embedded(name: &'static str, files: &'static [(&'static str, &'static [u8])]) -> Self {
        Self::Embedded { name, files }
    }

    /// Files in memory. `name` is for messages.
    ///
    /// ```
    /// use mlx_infer::Files;
    ///
    /// # fn main() -> mlx_infer::Result<()> {
    /// let files = Files::given("mine", [("chat_template.jinja", "{{ messages[0].content }}")]);
    /// assert_eq!(files.list()?, ["chat_template.jinja"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn given<N: Into<String>, C: Into<Vec<u8>>>(
        name: impl Into<String>,
        files: impl IntoIterator<Item = (N, C)>,
    ) -> Self {
        let files = files.into_iter();
        let files = files.map(|(name, content)| (name.into(), content.into()));
        Self::Given {
            name: name.into(),
            files: Arc::new(files.collect()),
        }
    }

    /// Where the files come from, for messages.
    pub fn describe(&self) -> String {
        match self {
            Self::Directory(path) | Self::Gguf { path, .. } => path.display().to_string(),
            Self::Embedded { name, .. } => (*name).to_owned(),
            Self::Given { name, .. } => name.clone(),
        }
    }

    /// The content of a file, or `None` if no file has this name.
    ///
    /// # Errors
    /// The name leads out of the checkpoint, the file is not an ordinary one (a pipe, a device, a folder) or is larger
    /// than such files are, or reading fails.
    pub fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>> {
        let inside = Path::new(name)
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        if name.is_empty() || !inside {
            return Err(Error::argument(format!(
                "file name {name:?} leaves the checkpoint"
            )));
        }
        match self {
            Self::Directory(path) => {
                let found = files::read_if_present(path.join(name), max_bytes(name))?;
                Ok(found.map(Cow::Owned))
            }
            Self::Embedded { files, .. } => Ok(files
                .iter()
                .find(|(found, _)| *found == name)
                .map(|(_, content)| Cow::Borrowed(*content))),
            Self::Given { files, .. } | Self::Gguf { files, .. } => {
                Ok(files.get(name).cloned().map(Cow::Owned))
            }
        }
    }

    /// The content of a file as text.
    ///
    /// # Errors
    /// Those of [`Files::read`], and text that is not UTF-8.
    pub fn text(&self, name: &str) -> Result<Option<String>> {
        let Some(bytes) = self.read(name)? else {
            return Ok(None);
        };
        String::from_utf8(bytes.into_owned())
            .map(Some)
            .map_err(|error| {
                let at = error.utf8_error().valid_up_to();
                Error::format(format!("{}: not utf-8 at byte {at}", self.locate(name)))
            })
    }

    /// The content of a JSON file.
    ///
    /// # Errors
    /// Those of [`Files::read`], and anything that is not JSON as Python writes it (`Infinity` and `NaN` are numbers).
    pub fn json(&self, name: &str) -> Result<Option<Value>> {
        let Some(bytes) = self.read(name)? else {
            return Ok(None);
        };
        json::parse(&bytes).map(Some).map_err(|error| {
            Error::format(format!("{}: not valid json: {error}", self.locate(name)))
        })
    }

    /// The names of all files, sorted; those of subfolders as `folder/name`, one level deep.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub fn list(&self) -> Result<Vec<String>> {
        let mut names = match self {
            Self::Directory(path) => {
                let mut names = Vec::new();
                for (name, is_dir) in entries(path)? {
                    if is_dir {
                        let inner = entries(&path.join(&name))?;
                        names.extend(
                            inner
                                .into_iter()
                                .filter(|(_, is_dir)| !is_dir)
                                .map(|(inner, _)| format!("{name}/{inner}")),
                        );
                    } else {
                        names.push(name);
                    }
                }
                names
            }
            Self::Embedded { files, .. } => {
                files.iter().map(|(name, _)| (*name).to_owned()).collect()
            }
            Self::Given { files, .. } | Self::Gguf { files, .. } => files.keys().cloned().collect(),
        };
        names.sort();
        Ok(names)
    }

    /// What a model in GGUF calls its architecture.
    pub(crate) fn architecture(&self) -> Option<&str> {
        match self {
            Self::Gguf { architecture, .. } => Some(architecture),
            _ => None,
        }
    }

    /// The folder or the file with the weights, for a checkpoint on disk.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Directory(path) | Self::Gguf { path, .. } => Some(path),
            Self::Embedded { .. } | Self::Given { .. } => None,
        }
    }

    /// The bytes of all files in memory.
    #[cfg(feature = "serve")]
    pub(crate) fn embedded_bytes(&self) -> usize {
        match self {
            Self::Embedded { files, .. } => files.iter().map(|(_, content)| content.len()).sum(),
            Self::Given { files, .. } => files.values().map(Vec::len).sum(),
            Self::Directory(_) | Self::Gguf { .. } => 0,
        }
    }

    /// The location of a file, for messages.
    pub(crate) fn locate(&self, name: &str) -> String {
        match self {
            Self::Directory(path) => path.join(name).display().to_string(),
            Self::Embedded { name: source, .. } => format!("{source}: {name}"),
            Self::Given { name: source, .. } => format!("{source}: {name}"),
            Self::Gguf { path, .. } => format!("{}: {name}", path.display()),
        }
    }
}

fn max_bytes(name: &str) -> u64 {
    if [
        "tokenizer.json",
        "tokenizer.model",
        "tekken.json",
        "tiktoken.model",
        "rwkv_vocab_v20230424.txt",
    ]
    .contains(&name)
    {
        MAX_TOKENIZER_BYTES
    } else {
        MAX_SMALL_FILE_BYTES
    }
}

/// Names that are not UTF-8 are left out: no file that this crate asks for has one.
fn entries(path: &Path) -> Result<Vec<(String, bool)>> {
    let shown = path.display().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|error| io_error(&shown, error))? {
        let entry = entry.map_err(|error| io_error(&shown, error))?;
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if let Ok(name) = entry.file_name().into_string() {
            found.push((name, is_dir));
        }
    }
    Ok(found)
}

fn io_error(shown: &str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot read {shown}: {error}")).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside() {
        let files = Files::embedded("test", &[("a.json", b"{}")]);
        for name in ["../a.json", "/etc/hostname", "a/../../b", "", "."] {
            assert_eq!(
                files.read(name).unwrap_err().kind(),
                ErrorKind::Argument,
                "{name}"
            );
        }
        assert_eq!(files.read("a.json").unwrap().as_deref(), Some(&b"{}"[..]));
        assert!(files.read("b.json").unwrap().is_none());
    }

    #[test]
    fn directories_and_odd_files() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("config.json")).unwrap();
        std::fs::create_dir(dir.path().join("additional_chat_templates")).unwrap();
        std::fs::write(dir.path().join("additional_chat_templates/rag.jinja"), "x").unwrap();
        std::fs::write(dir.path().join("tokenizer_config.json"), b"\xff{").unwrap();
        let files = Files::directory(dir.path()).unwrap();
        assert_eq!(
            files.list().unwrap(),
            [
                "additional_chat_templates/rag.jinja",
                "tokenizer_config.json"
            ]
        );
        assert_eq!(files.read("config.json").unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(
            files.json("tokenizer_config.json").unwrap_err().kind(),
            ErrorKind::Format
        );
        assert_eq!(
            files.text("tokenizer_config.json").unwrap_err().kind(),
            ErrorKind::Format
        );
        assert_eq!(
            Files::directory(dir.path().join("none"))
                .unwrap_err()
                .kind(),
            ErrorKind::Missing
        );
        let large = std::fs::File::create(dir.path().join("tokenizer.json")).unwrap();
        large.set_len(MAX_TOKENIZER_BYTES + 1).unwrap();
        let error = files.read("tokenizer.json").unwrap_err();
        assert!(
            error.to_string().contains("expected at most 268435456"),
            "{error}"
        );
    }
}
