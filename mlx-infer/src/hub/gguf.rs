//! Models in GGUF on a hub: a repository has one model in several quantisations, and a name chooses one,
//! `org/name:Q4_K_M`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Name;
use crate::error::{Error, ErrorKind, Result};

/// How deep the folders of a snapshot are searched.
const MAX_DEPTH: usize = 2;

/// The files of the model that the name chooses, in order. `None` if the name chooses none and there are no such files.
///
/// # Errors
/// The name chooses one that is not there, or there are several and it chooses none.
pub(super) fn choose(name: &Name, all: &[String]) -> Result<Option<Vec<String>>> {
    let models = models(all);
    let several = |what: &str| {
        let known: Vec<&str> = models.keys().copied().collect();
        let known = match known.is_empty() {
            true => "no files in GGUF".to_owned(),
            false => known.join(", "),
        };
        let message = format!(
            "{name}: {what}; it has {known} (a name ends with the quantisation: {}:Q4_K_M)",
            name.repo()
        );
        Err(Error::new(ErrorKind::Missing, message))
    };
    let files = |stem: &str| {
        Ok(models
            .get(stem)
            .map(|files| files.iter().map(|&file| file.to_owned()).collect()))
    };
    let Some(variant) = name.variant() else {
        return match models.len() {
            0 => Ok(None),
            1 => files(models.keys().next().copied().unwrap_or_default()),
            _ => several("there are several models in GGUF"),
        };
    };
    let mut fits: Vec<&str> = models
        .keys()
        .copied()
        .filter(|stem| ends_with(stem, variant))
        .collect();
    // `model-Q4_K_M` rather than `model-UD-Q4_K_M`.
    fits.sort_by_key(|stem| stem.len());
    match fits[..] {
        [] => several(&format!("no file in GGUF is called …{variant}")),
        [a, b, ..] if a.len() == b.len() => several(&format!("{variant} fits {a} and {b}")),
        [stem, ..] => files(stem),
    }
}

/// The first file of the model that the name chooses, if the folder has all its files.
pub(super) fn kept(dir: &Path, name: &Name) -> Option<PathBuf> {
    let mut all = Vec::new();
    list(dir, "", 0, &mut all);
    let files = choose(name, &all).ok().flatten()?;
    let count = part(files.first()?).map_or(1, |(_, count)| count);
    (files.len() == count).then(|| dir.join(&files[0]))
}

/// Whether the folder has all files of a model.
pub(super) fn has_model(dir: &Path) -> bool {
    let mut all = Vec::new();
    list(dir, "", 0, &mut all);
    models(&all).values().any(|files| {
        let count = files.first().and_then(|name| part(name));
        files.len() == count.map_or(1, |(_, count)| count)
    })
}

/// The files of each model, by their common stems, without those of image towers.
fn models(all: &[String]) -> BTreeMap<&str, Vec<&str>> {
    let mut models: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut sorted: Vec<&str> = all.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    for name in sorted {
        let Some(stem) = name.strip_suffix(".gguf") else {
            continue;
        };
        let file = name.rsplit_once('/').map_or(name, |(_, file)| file);
        if file.starts_with("mmproj") {
            continue;
        }
        let stem = part(name).map_or(stem, |(stem, _)| stem);
        models.entry(stem).or_default().push(name);
    }
    models
}

/// The stem and the number of parts of `stem-00001-of-00003.gguf`.
fn part(name: &str) -> Option<(&str, usize)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, at) = rest.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    match digits(at) && digits(count) {
        true => Some((stem, count.parse().ok()?)),
        false => None,
    }
}

/// Whether the last words of a stem are the variant, in letters of any case.
fn ends_with(stem: &str, variant: &str) -> bool {
    let variant = variant.strip_suffix(".gguf").unwrap_or(variant);
    let Some(start) = stem.len().checked_sub(variant.len()) else {
        return false;
    };
    stem.is_char_boundary(start)
        && stem[start..].eq_ignore_ascii_case(variant)
        && !stem[..start].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_')
}

fn list(dir: &Path, within: &str, depth: usize, all: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if path.is_dir() && depth < MAX_DEPTH {
            list(&path, &format!("{within}{name}/"), depth + 1, all);
        } else if path.is_file() {
            all.push(format!("{within}{name}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(name: &str, all: &[&str]) -> Result<Option<Vec<String>>> {
        let all: Vec<String> = all.iter().map(|&file| file.to_owned()).collect();
        choose(&Name::parse(name).unwrap(), &all)
    }

    #[test]
    fn a_name_chooses_a_quantisation() {
        let all = [
            "README.md",
            "mmproj-model-f16.gguf",
            "model-IQ4_XS.gguf",
            "model-Q4_K_M.gguf",
            "model-UD-Q4_K_M.gguf",
            "Q8_0/model-Q8_0-00002-of-00002.gguf",
            "Q8_0/model-Q8_0-00001-of-00002.gguf",
        ];
        let found = |name: &str| chosen(name, &all).unwrap().unwrap();
        assert_eq!(found("org/name:Q4_K_M"), ["model-Q4_K_M.gguf"]);
        assert_eq!(found("org/name:q4_k_m"), ["model-Q4_K_M.gguf"]);
        assert_eq!(found("org/name:UD-Q4_K_M"), ["model-UD-Q4_K_M.gguf"]);
        assert_eq!(found("org/name:model-IQ4_XS.gguf"), ["model-IQ4_XS.gguf"]);
        let parts = [
            "Q8_0/model-Q8_0-00001-of-00002.gguf",
            "Q8_0/model-Q8_0-00002-of-00002.gguf",
        ];
        assert_eq!(found("org/name@main:Q8_0"), parts);
        for (name, expected) in [
            ("org/name:K_M", "no file in GGUF is called …K_M"),
            ("org/name:Q4_K_S", "model-IQ4_XS"),
            ("org/name", "several models in GGUF"),
        ] {
            let error = chosen(name, &all).unwrap_err().to_string();
            assert!(error.contains(expected), "{name}: {error}");
        }
        assert_eq!(
            chosen("org/name", &["a.gguf"]).unwrap().unwrap(),
            ["a.gguf"]
        );
        assert_eq!(chosen("org/name", &["model.safetensors"]).unwrap(), None);
        let error = chosen("org/name:Q4_0", &["model.safetensors"]).unwrap_err();
        assert!(error.to_string().contains("no files in GGUF"), "{error}");
    }

    #[test]
    fn a_folder_with_all_parts_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let name = Name::parse("org/name:Q8_0").unwrap();
        let parts = [1, 2].map(|at| dir.path().join(format!("m-Q8_0-0000{at}-of-00002.gguf")));
        std::fs::write(&parts[0], b"GGUF").unwrap();
        assert_eq!(kept(dir.path(), &name), None);
        assert!(!has_model(dir.path()));
        std::fs::write(&parts[1], b"GGUF").unwrap();
        assert_eq!(kept(dir.path(), &name), Some(parts[0].clone()));
        assert!(has_model(dir.path()));
        assert_eq!(
            kept(dir.path(), &Name::parse("org/name:Q4_0").unwrap()),
            None
        );
    }
}
