//! The name of a model on a hub.

use std::fmt;

use crate::error::{Error, Result};

/// The revision of a name without one.
const MAIN: &str = "main";
/// Longest name, and longest revision.
const MAX_CHARS: usize = 96;
const MAX_REVISION_CHARS: usize = 256;

/// `org/name`, a branch, tag or commit of it, and a quantisation of a model in GGUF.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    repo: String,
    revision: String,
    variant: Option<String>,
}

impl Name {
    /// Reads `org/name` or `org/name@revision`, and behind it the quantisation of a model in GGUF: `org/name:Q4_K_M`.
    ///
    /// # Errors
    /// The text does not have this form.
    pub fn parse(text: &str) -> Result<Self> {
        let (rest, variant) = match text.rsplit_once(':') {
            Some((rest, variant)) => (rest, Some(variant)),
            None => (text, None),
        };
        let (repo, revision) = rest.split_once('@').unwrap_or((rest, MAIN));
        let fail = |what: &str| {
            Error::argument(format!(
                "{text:?} is no name of a model: {what}; expected org/name, org/name@revision or org/name:quantisation"
            ))
        };
        let Some((org, model)) = repo.split_once('/') else {
            return Err(fail("there is no / in it"));
        };
        if !is_part(org) || !is_part(model) || repo.len() > MAX_CHARS || repo.contains("--") {
            return Err(fail(
                "org and name are letters, digits, -, _ and . (one at a time, neither first nor last), at most 96 characters",
            ));
        }
        if revision.len() > MAX_REVISION_CHARS || !revision.split('/').all(is_revision_part) {
            return Err(fail("the revision is no branch, tag or commit"));
        }
        if variant.is_some_and(|variant| !is_part(variant) || variant.len() > MAX_CHARS) {
            return Err(fail("the quantisation is not letters, digits, -, _ and ."));
        }
        Ok(Self {
            repo: repo.to_owned(),
            revision: revision.to_owned(),
            variant: variant.map(str::to_owned),
        })
    }

    /// `org/name`.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// The branch, tag or commit; `main` if none was given.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// The quantisation of a model in GGUF, if one was given.
    pub fn variant(&self) -> Option<&str> {
        self.variant.as_deref()
    }

    /// The model's folder in a cache.
    pub(super) fn folder(&self) -> String {
        format!("models--{}", self.repo.replace('/', "--"))
    }

    /// Whether the revision is a commit, whose files never change.
    pub(super) fn is_commit(&self) -> bool {
        is_commit(&self.revision)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.revision.as_str() {
            MAIN => f.write_str(&self.repo)?,
            revision => write!(f, "{}@{revision}", self.repo)?,
        }
        match &self.variant {
            Some(variant) => write!(f, ":{variant}"),
            None => Ok(()),
        }
    }
}

fn is_part(part: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = |c: Option<char>| !matches!(c, None | Some('-' | '.'));
    part.chars().all(fits)
        && ends(part.chars().next())
        && ends(part.chars().next_back())
        && !part.contains("..")
}

/// Whether a text is a valid part of a revision between slashes, which is also a file name in the cache.
fn is_revision_part(part: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '=');
    !part.is_empty() && part.chars().all(fits) && !part.starts_with('.') && !part.contains("..")
}

/// Whether a text is a full commit hash.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_and_invalid_names() {
        let name = Name::parse("org/Name-1.5_b").unwrap();
        assert_eq!((name.repo(), name.revision()), ("org/Name-1.5_b", "main"));
        assert_eq!(name.folder(), "models--org--Name-1.5_b");
        let name = Name::parse("a/b@refs/pr/1").unwrap();
        assert_eq!((name.repo(), name.revision()), ("a/b", "refs/pr/1"));
        assert_eq!(name.to_string(), "a/b@refs/pr/1");
        assert_eq!(name.variant(), None);
        let name = Name::parse("a/b@v1:Q4_K_M").unwrap();
        assert_eq!((name.repo(), name.revision()), ("a/b", "v1"));
        assert_eq!(name.variant(), Some("Q4_K_M"));
        assert_eq!(name.to_string(), "a/b@v1:Q4_K_M");
        for text in [
            "",
            "name",
            "/name",
            "org/",
            "org/a/b",
            "../name",
            "org/..",
            "org/a..b",
            "org/a--b",
            "-org/a",
            "org/a.",
            "org/a b",
            "org/a@",
            "org/a@../../x",
            "org/a@/x",
            "org/a@x//y",
            "org/a@x?y",
            "org/a@.git",
            "org/a:",
            "org/a:../x",
            "org/a:b/c",
            "org/ä",
            "C:/models",
            "~/models",
            "./models",
        ] {
            assert!(Name::parse(text).is_err(), "{text}");
        }
        assert!(Name::parse(&format!("org/{}", "x".repeat(93))).is_err());
    }
}
