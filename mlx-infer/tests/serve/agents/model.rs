//! A model that follows a script of replies. The last token of a prompt names the reply, and the
//! model's attention finds that token again at each position of the reply. So several rows at a
//! time, chunks of a prompt, stored prefixes and drafts work as with any other model.

use std::sync::Mutex;

use mlx_core::ops::create::{arange, full, zeros};
use mlx_core::{Array, DType, Result, concat};
use mlx_infer::serve::ServeOptions;
use mlx_models::causal::{CausalLm, DecoderLayer};
use mlx_models::{Family, Model, Source};
use mlx_nn::{Attend, Residual, Step};

use crate::client::TestServer;
use crate::scripted::{self, ModelFolder};

use super::script::AgentTask;

/// The vocabulary of the model: the tokenizer's, and a token for each reply.
const VOCAB: usize = 640;
/// Features of a head: a position, the number of a reply, whether there is one, and zeros.
const HEAD: i32 = 8;
pub const POSITIONS: usize = 1 << 18;
/// The score of a token that names a reply. Beside it the weight of all other tokens, whose score
/// is 0, is exactly 0 in f32.
const FOUND: f32 = 1e4;

/// The replies of the model that is loaded next. Tests run one at a time.
static REPLIES: Mutex<Option<ReplyTable>> = Mutex::new(None);

/// The tokens of all replies.
#[derive(Clone)]
struct ReplyTable {
    /// For each token of the vocabulary: 0, or 1 and the number of the reply that it names.
    names: Vec<f32>,
    /// The tokens of all replies one after another. Reply 0 is only an end.
    tokens: Vec<u32>,
    /// The places in `tokens` at which each reply begins and ends.
    starts: Vec<i32>,
    ends: Vec<i32>,
}

const FAMILY: Family = Family {
    tied: true,
    ..Family::new(&["replies"], build)
};

fn build(_: &Source<'_>) -> Result<Box<dyn Model>> {
    let replies = REPLIES.lock().unwrap().clone().expect("a script");
    let list = |values: &[i32]| Array::from_slice(values, &[values.len() as i32]);
    let layer = ReplyLayer {
        names: Array::from_slice(&replies.names, &[VOCAB as i32, 1])?,
        tokens: Array::from_slice(&replies.tokens, &[replies.tokens.len() as i32])?,
        starts: list(&replies.starts)?,
        ends: list(&replies.ends)?,
    };
    let around = scripted::around(VOCAB, HEAD, POSITIONS);
    Ok(Box::new(CausalLm::around(vec![layer], around)?))
}

#[derive(Clone)]
struct ReplyLayer {
    names: Array,
    tokens: Array,
    starts: Array,
    ends: Array,
}

impl mlx_nn::Module for ReplyLayer {
    fn visit(&self, _: &mut mlx_nn::Path, _: &mut dyn mlx_nn::Visit) -> Result<()> {
        Ok(())
    }
    fn visit_mut(&mut self, _: &mut mlx_nn::Path, _: &mut dyn mlx_nn::VisitMut) -> Result<()> {
        Ok(())
    }
}

impl DecoderLayer for ReplyLayer {
    /// Returns 1 for the feature of the next token, which the head reads as its logit. The features
    /// that come in are 1 for the token itself.
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let x = x.sum()?;
        let length = x.shape()[1];
        let named = x.matmul(&self.names)?;
        let is_named = named.minimum(1.0)?;
        let at = step.positions().astype(DType::F32)?;
        let at = at.reshape(&[1, length, 1])?;
        let rest = |count: i32| zeros(&[1, length, count], DType::F32);
        let head = |parts: &[Array]| concat(parts, 2)?.reshape(&[1, 1, length, HEAD]);
        let q = head(&[full(&[1, length, 1], FOUND, DType::F32)?, rest(HEAD - 1)?])?;
        let k = head(&[is_named.clone(), rest(HEAD - 1)?])?;
        let v = head(&[at.clone(), named, is_named, rest(HEAD - 3)?])?;
        let options = Attend {
            scale: 1.0,
            softcap: None,
            sinks: None,
            alibi: None,
        };
        let found = step.attend(state, &q, &k, &v, &options)?;
        let part = |index: i32| {
            let part = found.slice_axis(3, index, index + 1)?;
            part.reshape(&[1, length, 1])?.round()?.astype(DType::I32)
        };
        // Without a name in sight this is 0, and reply 0 is an end.
        let reply = part(1)?.multiply(part(2)?)?;
        let passed = at.astype(DType::I32)?.subtract(part(0)?)?;
        let place = self.starts.take(&reply, 0)?.add(passed)?;
        let last = self.ends.take(&reply, 0)?.subtract(1)?;
        let next = self.tokens.take(&place.minimum(last)?.maximum(0)?, 0)?;
        let ids = arange(0.0, VOCAB as f64, 1.0, DType::U32)?;
        Ok(next.equal(ids)?.astype(DType::F32)?.into())
    }
}

/// The token that names a reply.
fn name(reply: usize) -> String {
    format!("<|reply-{reply}|>")
}

/// The end of the chat template, which names the reply to a conversation: that of the last task
/// that a message of the user names, and within it the next one after those that were given since.
/// Tasks with tools are those of requests with tools: agents send the same texts without tools to ask for titles.
fn choice(tasks: &[AgentTask]) -> String {
    let mut first = 2;
    let mut table = Vec::new();
    for task in tasks {
        let (name, count, has_tools) = (task.name, task.replies.len(), task.has_tools);
        table.push(format!("['{name}', {first}, {count}, {has_tools}]"));
        first += task.replies.len();
    }
    let table = table.join(", ");
    format!(
        "{{%- if add_generation_prompt %}}
    {{%- set turn = namespace(first=1, count=1, given=0) %}}
    {{%- for message in messages %}}
        {{%- if message.role == 'assistant' %}}
            {{%- set turn.given = turn.given + 1 %}}
        {{%- elif message.role == 'user' and message.content is string %}}
            {{%- for task in [{table}] %}}
                {{%- if task[0] in message.content and (tools and true or false) == task[3] %}}
                    {{%- set turn.first = task[1] %}}
                    {{%- set turn.count = task[2] %}}
                    {{%- set turn.given = 0 %}}
                {{%- endif %}}
            {{%- endfor %}}
        {{%- endif %}}
    {{%- endfor %}}
    {{%- if turn.given >= turn.count %}}
        {{%- set turn.given = turn.count - 1 %}}
    {{%- endif %}}
    {{{{- '<|reply-' ~ (turn.first + turn.given) ~ '|>' }}}}
{{%- endif %}}
"
    )
}

/// A server of the model.
pub struct AgentServer {
    pub server: TestServer,
    _folder: ModelFolder,
}

/// Starts a server of the model. Reply 1 is that of requests that name no task.
pub fn start(
    tasks: &[AgentTask],
    aside: &str,
    change: impl FnOnce(&mut ServeOptions),
) -> AgentServer {
    let texts = [String::new(), aside.to_owned()].into_iter();
    let texts: Vec<String> = texts
        .chain(tasks.iter().flat_map(AgentTask::texts))
        .collect();
    let names: Vec<String> = (0..texts.len()).map(name).collect();
    let marks: Vec<&str> = names.iter().map(String::as_str).collect();
    let folder = ModelFolder::new("replies", VOCAB, "qwen3", &marks, &["<|im_end|>"]);
    let template = folder.path("chat_template.jinja");
    let whole = std::fs::read_to_string(&template).unwrap() + &choice(tasks);
    std::fs::write(&template, whole).unwrap();
    let mut replies = ReplyTable {
        names: vec![0.0; VOCAB],
        tokens: Vec::new(),
        starts: Vec::new(),
        ends: Vec::new(),
    };
    for (number, (name, text)) in names.iter().zip(&texts).enumerate() {
        let id = folder.tokenizer.token_to_id(name).unwrap() as usize;
        replies.names[id] = number as f32;
        replies.starts.push(replies.tokens.len() as i32);
        replies
            .tokens
            .extend(folder.tokenizer.encode(text, false).unwrap());
        replies.tokens.push(folder.ends[0]);
        replies.ends.push(replies.tokens.len() as i32);
    }
    *REPLIES.lock().unwrap() = Some(replies);
    AgentServer {
        server: folder.serve(FAMILY, change),
        _folder: folder,
    }
}
