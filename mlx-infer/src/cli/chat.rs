//! `mlx-infer chat`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Args;
use mlx_infer::chat::reply::ReplyFormat;
use mlx_infer::input::{Lines, MAX_TEXT, read_text};
use mlx_infer::{
    BackEnd, ChatTemplate, Error, ErrorKind, GenerateOptions, Generated, Message, Prompt,
    PromptCache, RenderOptions, TextModel, Tokenizer, chat, console,
};
use serde_json::Value;

use super::{Result, args, backend, drafters, interrupt, output};

#[derive(Args)]
pub(super) struct ChatArgs {
    #[command(flatten)]
    load: args::LoadArgs,
    #[command(flatten)]
    drafters: drafters::Drafters,
    #[command(flatten)]
    backend: backend::BackendArgs,
    /// Answer the conversation in this file instead: a JSON list of messages, or an object with
    /// messages and tools; - is stdin
    #[arg(long, value_name = "FILE")]
    messages: Option<PathBuf>,
    /// Print the prompt text that the template renders, and stop
    #[arg(long, requires = "messages", conflicts_with_all = ["json", "stats"])]
    render: bool,
    /// Begin with this system message
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Most tokens of reasoning of an answer, after which the mark that ends it is forced; 0: no
    /// reasoning [default: no limit]
    #[arg(long, value_name = "N")]
    reasoning_budget: Option<usize>,
    #[command(flatten)]
    generation: args::GenerationArgs,
    /// Print counts, times and memory to stderr after each answer
    #[arg(long)]
    stats: bool,
    /// Print one JSON document an answer: text, tokens, finish_reason, usage, timings
    #[arg(long)]
    json: bool,
}

impl ChatArgs {
    pub(super) fn run(self) -> Result {
        let mut options = self.generation.options()?;
        let mut messages: Vec<Message> = self
            .system
            .iter()
            .map(|text| Message::new("system", text.as_str()))
            .collect();
        let mut render = RenderOptions {
            add_generation_prompt: true,
            ..Default::default()
        };
        if let Some(path) = &self.messages {
            let (given, tools) = read_messages(path)?;
            messages.extend(given);
            render.tools = tools;
        }
        if let Some(tokens) = self.reasoning_budget {
            // The names that templates have for it.
            (render.kwargs).insert("thinking_budget".to_owned(), tokens.into());
            if tokens == 0 {
                render
                    .kwargs
                    .insert("enable_thinking".to_owned(), false.into());
            }
        }
        if self.render {
            let files = self.load.files()?;
            let tokenizer = Tokenizer::load(&files)?;
            let template = ChatTemplate::load(&files, &tokenizer)?;
            return output::print(&text(&template, &tokenizer, messages, &render)?);
        }
        self.backend.check(&options)?;
        options.cancel = interrupt::cancels()?;
        let model = self
            .load
            .load_in(&self.backend, &self.drafters, options.speculative)?;
        output::warn_of_keywords(model.frontend(), &options);
        // Reports a fault of the template before the first question.
        let template = model.frontend().chat_template()?;
        let tokenizer = model.frontend().tokenizer()?;
        let format = ReplyFormat::detect(template, tokenizer);
        if self.reasoning_budget.is_some() && !format.has_reasoning() {
            let message = "reasoning_budget: the model has no marks of reasoning";
            return Err(Error::new(ErrorKind::Argument, message).into());
        }
        let prompt = |messages: &[Message]| -> Result<(Prompt, GenerateOptions)> {
            let text = text(template, tokenizer, messages.to_vec(), &render)?;
            let budget = self.reasoning_budget;
            let budget = budget.and_then(|n| model.frontend().reasoning_budget(&format, &text, n));
            let options = GenerateOptions {
                reasoning_budget: budget,
                ..options.clone()
            };
            Ok((tokenizer.encode(&text, false)?.into(), options))
        };
        let is_one = self.messages.is_some();
        // The prompt cache of the earlier turns. Tokens that the template now renders differently are computed again.
        let mut computed: Option<PromptCache> = None;
        let mut answer = |messages: &[Message]| -> Result<Generated> {
            let generated = match &model {
                BackEnd::Native(model) => {
                    let (prompt, options) = prompt(messages)?;
                    let mut generation = model.generate(prompt, &options)?;
                    if let Some(computed) = computed.take() {
                        generation = generation.with_prompt_cache(&computed)?;
                    }
                    let generated = output::show(self.json, |on_event| generation.run(on_event))?;
                    if !is_one {
                        computed = generation.into_prompt_cache()?;
                    }
                    generated
                }
                BackEnd::MlxLm(model) => {
                    let (prompt, options) = prompt(messages)?;
                    output::show(self.json, |on_event| {
                        model.generate(&prompt, &options, on_event)
                    })?
                }
            };
            if self.stats {
                output::print_stats(&generated);
            }
            Ok(generated)
        };
        if is_one {
            return output::not_cancelled(&answer(&messages)?);
        }
        let mut questions = Questions::open()?;
        while let Some(line) = questions.next()? {
            options.cancel.reset();
            messages.push(Message::new("user", line));
            let generated = answer(&messages)?;
            messages.push(Message::new(
                "assistant",
                generated.text.unwrap_or_default(),
            ));
        }
        Ok(())
    }
}

/// The prompt text of a conversation, in the same form as the server's.
fn text(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: Vec<Message>,
    render: &RenderOptions,
) -> Result<String> {
    let format = ReplyFormat::detect(template, tokenizer);
    let messages = chat::prepare(messages, &format)?;
    Ok(chat::prompt_text(template, &format, &messages, render)?)
}

/// The messages in a file, and its tools if it has some.
fn read_messages(path: &Path) -> Result<(Vec<Message>, Option<Vec<Value>>)> {
    let text = read_text(path, MAX_TEXT)?;
    let fail = |what: String| Error::new(ErrorKind::Format, format!("{}: {what}", path.display()));
    let json: Value =
        serde_json::from_str(&text).map_err(|error| fail(format!("not valid json: {error}")))?;
    let tools = match json.get("tools") {
        None | Some(Value::Null) => None,
        Some(Value::Array(tools)) => Some(tools.clone()),
        Some(_) => return Err(fail("tools: expected a list".to_owned()).into()),
    };
    let messages = Message::list_from_json(json).map_err(|error| fail(error.to_string()))?;
    Ok((messages, tools))
}

/// The lines that the user types. Empty lines are skipped; `/exit` ends the conversation.
struct Questions {
    lines: Lines,
    is_terminal: bool,
}

impl Questions {
    fn open() -> Result<Self> {
        let is_terminal = std::io::stdin().is_terminal();
        if is_terminal {
            console::note("one message a line; /exit or end of file ends, Ctrl-C stops an answer");
        }
        Ok(Self {
            lines: Lines::open(Path::new("-"))?,
            is_terminal,
        })
    }

    fn next(&mut self) -> Result<Option<String>> {
        loop {
            if self.is_terminal {
                console::prompt(">>> ");
            }
            let Some((number, line)) = self.lines.next()? else {
                return Ok(None);
            };
            let fail = |what| Error::new(ErrorKind::Format, format!("line {number}: {what}"));
            match line.map_err(fail)?.trim() {
                "/exit" => return Ok(None),
                "" => {}
                text => return Ok(Some(text.to_owned())),
            }
        }
    }
}
