//! Whether a draft model fits a model.

use super::LoadedModel;
use crate::text::tokenizer::Tokenizer;

/// Whether both models have the same tokens. The error says what differs.
pub(super) fn check_vocabulary(model: &LoadedModel, draft: &LoadedModel) -> Result<(), String> {
    let (sizes, tokenizers) = (
        [model.vocab(), draft.vocab()],
        [model.tokenizer_if_any(), draft.tokenizer_if_any()],
    );
    match tokenizers {
        [Some(own), Some(other)] => {
            let differs = |id: &u32| differs(own, other, *id);
            let shared = sizes[0].min(sizes[1]) as u32;
            let Some(first) = (0..shared).find(differs) else {
                return Ok(());
            };
            let all = (first..shared).filter(differs).count();
            let [own, other] = [own, other].map(|of| of.id_to_token(first).unwrap_or_default());
            Err(format!(
                "its vocabulary is not the model's: token {first} is {other:?} there and {own:?} in the model, and {} more differ",
                all - 1
            ))
        }
        [None, None] if sizes[0] == sizes[1] => Ok(()),
        [None, None] => Err(format!(
            "its vocabulary has {} tokens and the model's {}, and there are no tokenizers to compare them by",
            sizes[1], sizes[0]
        )),
        [Some(_), None] => Err(
            "it has no supported tokenizer, so its vocabulary cannot be compared with the model's"
                .to_owned(),
        ),
        [None, Some(_)] => Err(
            "the model has no supported tokenizer, so the vocabularies cannot be compared"
                .to_owned(),
        ),
    }
}

/// Whether an id is one token in one vocabulary, and another in the other. Either may have ids without a token.
fn differs(a: &Tokenizer, b: &Tokenizer, id: u32) -> bool {
    matches!((a.id_to_token(id), b.id_to_token(id)), (Some(a), Some(b)) if a != b)
}
