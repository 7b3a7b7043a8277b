//! Calls that return when their work is finished: generations, batches, classifications, scores,
//! and computed prompts. They are methods of [`LoadedModel`].

pub(crate) mod batch;
pub(crate) mod classify;
pub(crate) mod embed;
pub(crate) mod generate;
mod pack;
pub(crate) mod score;
mod shared;
#[cfg(test)]
mod tests;
pub(crate) mod work;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use self::batch::Batch;
use self::classify::{ClassifyOptions, ClassifyResult, Run};
use self::embed::{
    EmbedOptions, EmbedRun, RerankOptions, TextEmbedding, encode_pairs, encode_texts,
};
use self::generate::Generation;
use self::score::{Score, ScoreOptions, Scoring};
use self::shared::TextRun;
use self::work::{TextWork, Together, flow};
use crate::engine::Tiered;
use crate::engine::prompt_cache::PromptCache;
use crate::error::{Error, Result};
use crate::model::{LoadedModel, memory};
use crate::request::Request;
use crate::request::generation::{GenerateOptions, Prompt};
use crate::request::limits::Limits;
use crate::request::result::BatchResult;
use crate::text::chat::{Message, RenderOptions};

impl LoadedModel {
    /// Starts to continue a prompt. Nothing is computed before the first event is requested.
    ///
    /// # Errors
    /// An option is out of range, the prompt is empty or too long for the model, or an id is not in the vocabulary.
    pub fn generate(
        &self,
        prompt: impl Into<Prompt>,
        options: &GenerateOptions,
    ) -> Result<Generation<'_>> {
        let requested = Instant::now();
        Generation::new(self, prompt.into(), options, requested)
    }

    /// Starts to answer a conversation. The template adds the start of the answer.
    ///
    /// # Errors
    /// As [`generate`](Self::generate), or the template refuses the conversation.
    pub fn chat(
        &self,
        messages: &[Message],
        render: &RenderOptions,
        options: &GenerateOptions,
    ) -> Result<Generation<'_>> {
        let requested = Instant::now();
        let ids = self.chat_ids(messages, render)?;
        Generation::new(self, ids.into(), options, requested)
    }

    /// A batch without requests.
    ///
    /// # Errors
    /// A limit is 0.
    pub fn batch(&self, limits: &Limits) -> Result<Batch<'_>> {
        limits.check()?;
        let limits = memory::resolve(limits, self, 1)?;
        let pool = memory::reserve(self, &limits)?;
        let worker = Tiered::new(self, limits, pool);
        Ok(Batch::new(worker, self.frontend().clone()))
    }

    /// Continues several prompts at a time. Each has its own settings, stop conditions and seed.
    /// Its tokens are those that it would have alone (in single precision, with the same bits), and
    /// an error affects only its own request.
    ///
    /// `on_done` gets each result as soon as it is ready, with the index of its request. A break
    /// ends everything.
    ///
    /// # Errors
    /// A limit is 0.
    pub fn batch_generate_with(
        &self,
        requests: Vec<Request>,
        limits: &Limits,
        mut on_done: impl FnMut(usize, BatchResult) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut batch = self.batch(limits)?;
        for (index, request) in requests.into_iter().enumerate() {
            batch.submit(index, request);
        }
        while !batch.is_idle() {
            for (index, result) in batch.advance() {
                if on_done(index, result).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Continues several prompts at a time. Results are in the order of the requests.
    ///
    /// ```
    /// # fn main() -> mlx_infer::Result<()> {
    /// use mlx_infer::{GenerateOptions, Limits, LoadedModel, Request};
    /// let model = LoadedModel::load_default()?;
    /// let options = GenerateOptions { max_tokens: 8, ..Default::default() };
    /// let prompts = ["The red fox", "The old man"];
    /// let requests = prompts.map(|prompt| Request::new(prompt, options.clone()));
    /// for result in model.batch_generate(requests.into(), &Limits::default())? {
    ///     println!("{}", result.text.unwrap_or_default());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A limit is 0.
    pub fn batch_generate(
        &self,
        requests: Vec<Request>,
        limits: &Limits,
    ) -> Result<Vec<BatchResult>> {
        let mut results: Vec<Option<BatchResult>> = requests.iter().map(|_| None).collect();
        self.batch_generate_with(requests, limits, |index, result| {
            results[index] = Some(result);
            ControlFlow::Continue(())
        })?;
        Ok(results
            .into_iter()
            .map(|result| result.expect("every request ends"))
            .collect())
    }

    /// Finds the token or label that follows each text. Results are in the order of the texts. If a
    /// text is empty, too long or cannot be encoded, its result is an error.
    ///
    /// ```
    /// # fn main() -> mlx_infer::Result<()> {
    /// use mlx_infer::{ClassifyOptions, LoadedModel};
    /// let model = LoadedModel::load_default()?;
    /// let options = ClassifyOptions {
    ///     labels: vec![" 4".into(), " 7".into()],
    ///     ..Default::default()
    /// };
    /// let sums = ["2 + 2 =", "3 + 4 ="].map(Into::into);
    /// for result in model.classify(sums.into(), &options)? {
    ///     let labels = result?.labels.unwrap();
    ///     println!("{} {:?}", options.labels[labels.best], labels.probabilities);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// An option is out of range, or there are labels and no tokenizer.
    pub fn classify(
        &self,
        prompts: Vec<Prompt>,
        options: &ClassifyOptions,
    ) -> Result<Vec<Result<ClassifyResult>>> {
        let mut results: Vec<_> = prompts.iter().map(|_| None).collect();
        self.classify_with(prompts, options, |index, result| {
            results[index] = Some(result);
        })?;
        Ok(results
            .into_iter()
            .map(|result| result.expect("every text gets a result"))
            .collect())
    }

    /// As [`classify`](Self::classify), but calls `on_done` with the index of a text and its result when its batch is
    /// finished.
    ///
    /// # Errors
    /// As [`classify`](Self::classify).
    pub fn classify_with(
        &self,
        prompts: Vec<Prompt>,
        options: &ClassifyOptions,
        mut on_done: impl FnMut(usize, Result<ClassifyResult>),
    ) -> Result<()> {
        let encoded = (self.frontend()).encode(prompts.into_iter().map(Ok).collect(), options)?;
        let work = || TextWork::classify(&encoded, options);
        let together = Together::begin(self, work, &options.cancel)?;
        let options = ClassifyOptions {
            cancel: together.cancel.clone(),
            ..options.clone()
        };
        let mut run = Run::begin(self, encoded, &options);
        together.run(|| flow(run.advance(self, &mut on_done)))
    }

    /// Embeds texts. Results are in the order of the texts. If a text cannot be encoded, its result
    /// is an error. A text that is longer than the checkpoint's limit is cut, as in
    /// sentence-transformers, unless [`truncate`](EmbedOptions::truncate) is false.
    ///
    /// Pooling, dense layers and prompts are those of the checkpoint's `modules.json`. Without that
    /// file an encoder takes the mean of a text's tokens and a decoder its last token, and vectors
    /// have length 1.
    ///
    /// ```
    /// # fn main() -> mlx_infer::Result<()> {
    /// use mlx_infer::{EmbedOptions, LoadedModel};
    /// let model = LoadedModel::load_default()?;
    /// let texts = ["The red fox", "The old man"].map(Into::into);
    /// for embedding in model.embed(texts.into(), &EmbedOptions::default())? {
    ///     let embedding = embedding?;
    ///     assert_eq!(embedding.values.len(), model.info().hidden as usize);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// An option is out of range, there is no tokenizer, or a module is not supported.
    pub fn embed(
        &self,
        texts: Vec<Prompt>,
        options: &EmbedOptions,
    ) -> Result<Vec<Result<TextEmbedding>>> {
        in_order(texts.len(), |on_done| {
            self.embed_with(texts, options, on_done)
        })
    }

    /// As [`embed`](Self::embed), but calls `on_done` with the index of a text and its result when
    /// its batch is finished.
    ///
    /// # Errors
    /// As [`embed`](Self::embed).
    pub fn embed_with(
        &self,
        texts: Vec<Prompt>,
        options: &EmbedOptions,
        mut on_done: impl FnMut(usize, Result<TextEmbedding>),
    ) -> Result<()> {
        let texts = texts.into_iter().map(Ok).collect();
        let encoded = encode_texts(self.frontend(), texts, options)?;
        let work = || TextWork::embed(&encoded, options);
        let together = Together::begin(self, work, &options.cancel)?;
        let options = EmbedOptions {
            cancel: together.cancel.clone(),
            ..options.clone()
        };
        let run = EmbedRun::embed(self, encoded, &options);
        self.run_texts(&together, run, &mut on_done)
    }

    fn run_texts(
        &self,
        together: &Together,
        mut run: Result<EmbedRun>,
        on_done: &mut impl FnMut(usize, Result<TextEmbedding>),
    ) -> Result<()> {
        together.run(|| match &mut run {
            Ok(run) => flow(run.advance(self, on_done)),
            Err(_) => ControlFlow::Break(()),
        })?;
        run.map(drop)
    }

    /// The relevance of each document for a query, in the order of the documents. The model is a
    /// cross-encoder with one class, or a decoder trained as Qwen3-Reranker, whose relevance is the
    /// probability of the answer yes.
    ///
    /// ```no_run
    /// # fn main() -> mlx_infer::Result<()> {
    /// use mlx_infer::{LoadOptions, LoadedModel, RerankOptions};
    /// let model = LoadedModel::load("bge-reranker-base", LoadOptions::default())?;
    /// let documents = ["Foxes eat mice.", "Trains are late."].map(str::to_owned);
    /// for relevance in model.rerank("What do foxes eat?", &documents, &RerankOptions::default())? {
    ///     println!("{}", relevance?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The model does not score pairs, an option is out of range, or there is no tokenizer.
    pub fn rerank(
        &self,
        query: &str,
        documents: &[String],
        options: &RerankOptions,
    ) -> Result<Vec<Result<f32>>> {
        let pair = |document: &String| (query.to_owned(), document.clone());
        self.score_pairs(documents.iter().map(pair).collect(), options)
    }

    /// The relevance of pairs of a query and a document, as [`rerank`](Self::rerank) computes it.
    ///
    /// # Errors
    /// As [`rerank`](Self::rerank).
    pub fn score_pairs(
        &self,
        pairs: Vec<(String, String)>,
        options: &RerankOptions,
    ) -> Result<Vec<Result<f32>>> {
        let n = pairs.len();
        let encoded = encode_pairs(self.frontend(), pairs, options)?;
        let together = Together::begin(
            self,
            || TextWork::relate(&encoded, options),
            &options.cancel,
        )?;
        let options = RerankOptions {
            cancel: together.cancel.clone(),
            ..options.clone()
        };
        let run = EmbedRun::score(self, encoded, &options);
        let found = in_order(n, |mut on_done| {
            self.run_texts(&together, run, &mut on_done)
        })?;
        let first = |found: Result<TextEmbedding>| found.map(|found| found.values[0]);
        Ok(found.into_iter().map(first).collect())
    }

    /// Scores a text or ids. The logits of only a few positions exist at a time, for any length of the text.
    ///
    /// # Errors
    /// The text is empty or too long for the model, an id is not in the vocabulary, or the computation fails.
    pub fn score(&self, prompt: impl Into<Prompt>, options: &ScoreOptions) -> Result<Score> {
        let prompt = Prompt::Tokens(self.prompt_ids(prompt.into())?);
        let together =
            Together::begin(self, || TextWork::score(&prompt, options), &options.cancel)?;
        let options = ScoreOptions {
            cancel: together.cancel.clone(),
            ..options.clone()
        };
        let mut scoring = Scoring::begin(self, prompt, &options);
        let mut score = None;
        together.run(|| {
            score = match &mut scoring {
                Ok(scoring) => scoring.advance(self).transpose(),
                Err(error) => Some(Err(Error::new(error.kind(), error.to_string()))),
            };
            flow(score.is_none())
        })?;
        score.expect("the last piece has a result")
    }

    /// Computes, on any rank of a shared model but the first, what the first one embeds, classifies and scores, until it
    /// calls [`end_texts`](Self::end_texts). The results are the first rank's.
    ///
    /// ```
    /// # fn main() -> mlx_infer::Result<()> {
    /// use mlx_infer::{EmbedOptions, LoadedModel};
    /// let model = LoadedModel::load_default()?;
    /// match model.options().ranks.rank() {
    ///     0 => {
    ///         let texts = vec!["The red fox".into()];
    ///         println!("{:?}", model.embed(texts, &EmbedOptions::default())?);
    ///         model.end_texts()?;
    ///     }
    ///     _ => model.follow_texts()?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Another rank has died.
    pub fn follow_texts(&self) -> Result<()> {
        work::follow(self)
    }

    /// Ends [`follow_texts`](Self::follow_texts) of the other ranks. Called on the first one, after its last work.
    ///
    /// # Errors
    /// Another rank has died.
    pub fn end_texts(&self) -> Result<()> {
        work::end(self)
    }

    /// Computes a prompt and stores its layer states. Only the options `prefill_chunk` and `cancel`
    /// have an effect.
    ///
    /// # Errors
    /// The prompt is empty or too long for the model, an id is not in the vocabulary, or the call was cancelled.
    pub fn prompt_cache(
        &self,
        prompt: impl Into<Prompt>,
        options: &GenerateOptions,
    ) -> Result<PromptCache> {
        PromptCache::compute(self, prompt.into(), options)
    }

    /// Writes a prompt cache of this model to a safetensors file. The file is complete or does not
    /// exist.
    ///
    /// # Errors
    /// The cache is of another model, or the file cannot be written.
    pub fn save_prompt_cache(&self, cache: &PromptCache, path: impl AsRef<Path>) -> Result<()> {
        cache.save(self, path.as_ref())
    }

    /// Reads a file that [`save_prompt_cache`](Self::save_prompt_cache) wrote with the same model.
    ///
    /// # Errors
    /// It cannot be read, is not such a file or is damaged, or was written with another model; the message names the
    /// difference.
    pub fn load_prompt_cache(&self, path: impl AsRef<Path>) -> Result<PromptCache> {
        PromptCache::load(self, path.as_ref())
    }
}

/// The results of `n` texts in order, from a call that gives them in any order.
fn in_order<T>(
    n: usize,
    run: impl FnOnce(&mut dyn FnMut(usize, Result<T>)) -> Result<()>,
) -> Result<Vec<Result<T>>> {
    let mut results: Vec<_> = (0..n).map(|_| None).collect();
    run(&mut |index, result| results[index] = Some(result))?;
    let whole = results.into_iter();
    Ok(whole
        .map(|result| result.expect("every text gets a result"))
        .collect())
}
