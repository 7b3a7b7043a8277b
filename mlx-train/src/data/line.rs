//! One line of a data file.

use mlx_infer::chat::{prepare, prompt_text};
use mlx_infer::{Message, RenderOptions, Tokenizer};
use serde_json::{Map, Value};

use super::{DataOptions, Encoder};
use crate::batch::Example;
use crate::error::{Result, argument, format};

const KNOWN: &str = "messages, prompt and completion, text, or tokens";

pub(super) fn example(line: &str, encoder: &Encoder, options: &DataOptions) -> Result<Example> {
    let json = serde_json::from_str(line).map_err(|error| format(error.to_string()))?;
    let Value::Object(mut object) = json else {
        return Err(format("expected an object".to_owned()));
    };
    let tools = match object.shift_remove("tools") {
        None | Some(Value::Null) => None,
        Some(Value::Array(tools)) => Some(tools),
        Some(other) => return Err(format(format!("tools: expected a list, found {other}"))),
    };
    let mut example = if let Some(tokens) = object.get("tokens") {
        let example = ids(tokens, object.get("prompt_tokens"), options.vocab)?;
        weighted(example, object.get("weights"))?
    } else if let Some(messages) = object.shift_remove("messages") {
        let messages = Message::list_from_json(messages)?;
        conversation(&messages, tools, encoder, options.mask_prompt)?
    } else if object.contains_key("prompt") && object.contains_key("completion") {
        let (prompt, completion) = (text(&object, "prompt")?, text(&object, "completion")?);
        if encoder.template.is_some() {
            let messages = [
                Message::new("user", prompt),
                Message::new("assistant", completion),
            ];
            conversation(&messages, tools, encoder, options.mask_prompt)?
        } else {
            let tokenizer = tokenizer(encoder)?;
            let mut tokens = tokenizer.encode(prompt, true)?;
            let prompt = tokens.len();
            tokens.extend(tokenizer.encode(completion, false)?);
            ended(tokens, prompt, tokenizer)
        }
    } else if object.contains_key("text") {
        let tokenizer = tokenizer(encoder)?;
        let tokens = tokenizer.encode(text(&object, "text")?, true)?;
        ended(tokens, 0, tokenizer)
    } else {
        let found: Vec<&str> = object.keys().map(String::as_str).collect();
        let found = found.join(", ");
        return Err(format(format!(
            "expected {KNOWN}; found the keys {found:?}"
        )));
    };
    if !options.mask_prompt && !object.contains_key("tokens") {
        example.prompt = 0;
    }
    match example.tokens.iter().find(|&&id| id >= options.vocab) {
        None => Ok(example),
        Some(id) => Err(format(format!(
            "token {id} is outside the model's vocabulary of {}",
            options.vocab
        ))),
    }
}

fn text<'o>(object: &'o Map<String, Value>, key: &str) -> Result<&'o str> {
    let found = &object[key];
    found
        .as_str()
        .ok_or_else(|| format(format!("{key}: expected a text, found {found}")))
}

fn tokenizer(encoder: &Encoder) -> Result<&Tokenizer> {
    encoder
        .tokenizer
        .as_ref()
        .ok_or_else(|| argument("the model has no tokenizer.json; only tokens can be used"))
}

/// The ids, followed by an end token, as in mlx-lm.
fn ended(mut tokens: Vec<u32>, prompt: usize, tokenizer: &Tokenizer) -> Example {
    if let Some(&eos) = tokenizer.eos_ids().first()
        && !tokens
            .last()
            .is_some_and(|last| tokenizer.eos_ids().contains(last))
    {
        tokens.push(eos);
    }
    Example::new(tokens, prompt)
}

fn conversation(
    messages: &[Message],
    tools: Option<Vec<Value>>,
    encoder: &Encoder,
    mask_prompt: bool,
) -> Result<Example> {
    let tokenizer = tokenizer(encoder)?;
    let (template, form) = encoder
        .template
        .as_ref()
        .ok_or_else(|| argument(encoder.no_template.clone()))?;
    let encode = |messages: &[Message], add_generation_prompt: bool| {
        let options = RenderOptions {
            tools: tools.clone(),
            add_generation_prompt,
            ..RenderOptions::default()
        };
        // The template has written the special tokens itself.
        tokenizer.encode(&prompt_text(template, form, messages, &options)?, false)
    };
    let messages = &prepare(messages.to_vec(), form)?;
    let mut tokens = encode(messages, false)?;
    // Templates write a line break after the end token of the last answer, which generation never
    // reaches.
    let is_end = |id: &u32| tokenizer.eos_ids().contains(id);
    if messages.last().and_then(Message::role) == Some("assistant")
        && let Some(end) = tokens.iter().rposition(is_end)
        && tokenizer
            .decode(&tokens[end + 1..], false)?
            .trim()
            .is_empty()
    {
        tokens.truncate(end + 1);
    }
    let Some((last, before)) = messages.split_last() else {
        return Err(format("messages: expected at least one".to_owned()));
    };
    if !mask_prompt || before.is_empty() {
        return Ok(Example::new(tokens, 0));
    }
    let prompt = encode(before, last.role() == Some("assistant"))?;
    if !tokens.starts_with(&prompt) {
        return Err(format(
            "the chat template renders the messages before the last one differently when it follows, \
             so that the prompt cannot be told from the answer"
                .to_owned(),
        ));
    }
    let prompt = prompt.len();
    Ok(Example::new(tokens, prompt))
}

fn ids(tokens: &Value, prompt: Option<&Value>, vocab: u32) -> Result<Example> {
    let wrong = |what: &str, found: &Value| {
        format(format!(
            "{what} below the vocabulary of {vocab}, found {found}"
        ))
    };
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| wrong("tokens: expected ids", value))
    };
    let list = tokens.as_array();
    let list = list.ok_or_else(|| wrong("tokens: expected a list of ids", tokens))?;
    let tokens: Vec<u32> = list.iter().map(id).collect::<Result<_>>()?;
    let prompt = match prompt {
        None => 0,
        Some(value) => value
            .as_u64()
            .map(|count| count as usize)
            .filter(|&count| count <= tokens.len())
            .ok_or_else(|| {
                format(format!(
                    "prompt_tokens: expected at most {}, found {value}",
                    tokens.len()
                ))
            })?,
    };
    Ok(Example::new(tokens, prompt))
}

/// The example with the weights of its line, if the line has any.
fn weighted(mut example: Example, weights: Option<&Value>) -> Result<Example> {
    let Some(value) = weights else {
        return Ok(example);
    };
    let number = |value: &Value| {
        let number = value.as_f64().map(|number| number as f32);
        number.filter(|number| number.is_finite() && *number >= 0.0)
    };
    let numbers = value.as_array().map(|list| list.iter().map(number));
    let numbers: Option<Vec<f32>> = numbers.and_then(Iterator::collect);
    let tokens = example.tokens.len();
    match numbers.filter(|numbers| numbers.len() == tokens) {
        Some(numbers) => example.weights = Some(numbers),
        None => {
            return Err(format(format!(
                "weights: expected {tokens} numbers of at least 0, as many as tokens, found {value}"
            )));
        }
    }
    Ok(example)
}
