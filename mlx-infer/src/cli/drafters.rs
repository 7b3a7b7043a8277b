//! `--draft-model` and `--mtp`: the drafters of rows that speculate, besides their own texts.

use std::path::PathBuf;

use clap::Args;
use mlx_infer::{Files, LoadOptions, LoadedModel, Speculative, hub};

use super::{Failure, Result, backend};

/// The drafters of rows that speculate, besides their own texts.
#[derive(Args, Clone)]
pub(super) struct Drafters {
    /// With --speculative: folder or name of a drafter, which guesses the next tokens: a smaller model with the same
    /// vocabulary, an EAGLE-3 head, a DFlash drafter, or an assistant of Gemma 4
    #[arg(long, value_name = "DIR|ORG/NAME[@REV]")]
    draft_model: Option<PathBuf>,
    /// With --speculative: folder or name of a head for multi-token prediction, for a model without one
    #[arg(
        long,
        value_name = "DIR|ORG/NAME[@REV]",
        conflicts_with = "context_len"
    )]
    mtp: Option<PathBuf>,
}

impl Drafters {
    /// Checks the flags for drafters.
    ///
    /// # Errors
    /// A drafter is given although nothing speculates, or with a back end other than the native
    /// one.
    pub(super) fn check(&self, choice: &backend::BackendArgs, speculative: Speculative) -> Result {
        let flags = self.flags();
        choice.refuse(&flags)?;
        match flags.iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) if speculative == Speculative::Off => Err(Failure::Usage(format!(
                "--{name} drafts only with --speculative auto or a number"
            ))),
            _ => Ok(()),
        }
    }

    /// The flags, and whether each is given.
    pub(super) fn flags(&self) -> [(&'static str, bool); 2] {
        [
            ("draft-model", self.draft_model.is_some()),
            ("mtp", self.mtp.is_some()),
        ]
    }

    /// Loads the model in `files` with its drafters.
    pub(super) fn load(
        &self,
        files: Files,
        mut options: LoadOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<LoadedModel> {
        let named = |path: &Option<PathBuf>| path.as_deref().map(hub::open).transpose();
        let (head, draft) = (named(&self.mtp)?, named(&self.draft_model)?);
        let reads_model = match &draft {
            Some(draft) => LoadedModel::reads_model(draft)?,
            None => false,
        };
        if reads_model && self.mtp.is_some() {
            return Err(Failure::Usage(
                "--draft-model names a drafter that reads the model, and --mtp another one; give one of them".to_owned(),
            ));
        }
        options.no_head |= reads_model;
        let mut model = match &head {
            Some(Files::Directory(head)) => {
                LoadedModel::load_with_head(files, head, options, progress)?
            }
            _ => LoadedModel::load_files(files, options, progress)?,
        };
        if let Some(draft) = draft {
            model.load_draft_model(draft)?;
        }
        Ok(model)
    }
}
