//! Flags of `mlx-infer serve` from a file (`--config`) and from variables (`MLX_INFER_*`).
//!
//! A flag on the command line takes precedence over a variable, and a variable over the file.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::builder::BoolishValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, Command, Error};
use mlx_infer::input::{MAX_TEXT, read_text};
use toml::{Table, Value};

const SERVE: &str = "serve";
const PREFIX: &str = "MLX_INFER_";
/// Flags without a variable of this kind: those that end the command, and `--python`, whose variable
/// all commands read.
const WITHOUT: [&str; 3] = ["help", "version", "python"];

/// The variable of a flag: `MLX_INFER_MAX_OUTPUT` for `--max-output`.
fn variable(flag: &str) -> String {
    format!("{PREFIX}{}", flag.to_uppercase().replace('-', "_"))
}

/// Lets each flag of `serve` come from a variable too. A switch is then `true` or `false`, `1` or
/// `0`, `yes` or `no`, `on` or `off`.
pub(super) fn with_variables(flags: Command) -> Command {
    let with_variable = |arg: Arg| {
        let Some(flag) = arg.get_long().filter(|flag| !WITHOUT.contains(flag)) else {
            return arg;
        };
        if arg.get_env().is_some() {
            return arg;
        }
        // The command line is read once, so the names are not freed.
        let name: &'static str = variable(flag).leak();
        let is_switch = matches!(arg.get_action(), ArgAction::SetTrue);
        let arg = arg.env(name).hide_env(true);
        match is_switch {
            true => arg.value_parser(BoolishValueParser::new()),
            false => arg,
        }
    };
    flags.mut_subcommand(SERVE, |serve| serve.mut_args(with_variable))
}

/// Variables of this program's kind that name no flag of `serve`.
pub(super) fn unknown_variables() -> Vec<String> {
    let flags = super::flags();
    let serve = flags.find_subcommand(SERVE);
    let known: Vec<String> = serve
        .into_iter()
        .flat_map(Command::get_arguments)
        .filter_map(|arg| arg.get_long().map(variable))
        .collect();
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut unknown: Vec<String> = names
        .filter(|name| name.starts_with(PREFIX) && !known.contains(name))
        .collect();
    unknown.sort();
    unknown
}

/// The command line with the flags of the file that `--config` names.
///
/// # Errors
/// The file cannot be read, is not TOML, or has a key or a value that is not that of a flag.
pub(super) fn with_file(flags: &Command, given: Vec<OsString>) -> Result<Vec<OsString>, Error> {
    if given.get(1).map(OsString::as_os_str) != Some(OsStr::new(SERVE)) {
        return Ok(given);
    }
    let lenient = flags.clone().ignore_errors(true);
    let mut lenient = lenient.mut_subcommand(SERVE, |serve| serve.ignore_errors(true));
    // Help and the version are left to the caller.
    let Ok(found) = lenient.try_get_matches_from_mut(&given) else {
        return Ok(given);
    };
    let (Some(serve), Some(found)) = (
        flags.find_subcommand(SERVE),
        found.subcommand_matches(SERVE),
    ) else {
        return Ok(given);
    };
    let Some(file) = found.get_one::<PathBuf>("config") else {
        return Ok(given);
    };
    let fail = |message: String| serve.clone().error(ErrorKind::ValueValidation, message);
    let place = |what: String| fail(format!("{}: {what}", file.display()));
    let is_given = |id: &str| {
        let source = found.value_source(id);
        matches!(
            source,
            Some(ValueSource::CommandLine | ValueSource::EnvVariable)
        )
    };
    let mut all = given[..2].to_vec();
    for (key, value) in read(file).map_err(&fail)? {
        let arg = flag(serve, &key).map_err(&place)?;
        let words = words(arg, &key, &value).map_err(&place)?;
        let mut others = other_places(&key).iter();
        if !is_given(arg.get_id().as_str()) && !others.any(|id| is_given(id)) {
            all.extend(words);
        }
    }
    all.extend_from_slice(&given[2..]);
    // An error that the command line alone does not have comes from the file.
    let parse = |words: &[OsString]| flags.clone().try_get_matches_from(words);
    match parse(&all) {
        Err(error) if parse(&given).is_ok() => Err(place(message(&error))),
        _ => Ok(all),
    }
}

/// The ids of flags for another place to listen at than the one that a key is for.
fn other_places(key: &str) -> &'static [&'static str] {
    match key {
        "host" | "port" => &["unix_socket"],
        "unix-socket" => &["host", "port"],
        _ => &[],
    }
}

/// The message of an error, without the usage.
fn message(error: &Error) -> String {
    let text = error.to_string();
    let text = text.split("\n\nUsage:").next().unwrap_or_default();
    let text = text.split("\n\nFor more").next().unwrap_or_default();
    text.trim_start_matches("error: ").trim_end().to_owned()
}

/// An error of the command line. If the refused value is that of a variable, or a flag that another
/// one excludes comes from a variable, the message names the variable.
pub(super) fn of_variable(flags: &Command, given: &[OsString], error: Error) -> Error {
    let text = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let arg = text(ContextKind::InvalidArg).and_then(|arg| arg.strip_prefix("--"));
    let name_of = |arg: &str| arg.split([' ', '=']).next().unwrap_or(arg).to_owned();
    let is_given = |flag: &str| {
        let mut words = given.iter().filter_map(|word| word.to_str());
        words.any(|word| {
            let word = word.strip_prefix("--");
            word.is_some_and(|word| word.split('=').next() == Some(flag))
        })
    };
    let of_serve = |message: String| {
        let serve = flags.find_subcommand(SERVE).unwrap_or(flags);
        serve.clone().error(ErrorKind::ValueValidation, message)
    };
    if error.kind() == ErrorKind::ArgumentConflict {
        let prior = match error.get(ContextKind::PriorArg) {
            Some(ContextValue::String(one)) => vec![one.clone()],
            Some(ContextValue::Strings(many)) => many.clone(),
            _ => Vec::new(),
        };
        let prior = prior.iter().filter_map(|arg| arg.strip_prefix("--"));
        let set: Vec<String> = (arg.into_iter().chain(prior).map(name_of))
            .filter(|flag| !is_given(flag))
            .map(|flag| variable(&flag))
            .filter(|name| std::env::var_os(name).is_some())
            .collect();
        return match set.is_empty() {
            true => error,
            false => of_serve(format!("{} is set: {}", set.join(" and "), message(&error))),
        };
    }
    let (Some(arg), Some(value)) = (arg, text(ContextKind::InvalidValue)) else {
        return error;
    };
    let flag = name_of(arg);
    let name = variable(&flag);
    let is_variable = std::env::var_os(&name).is_some_and(|set| set == value);
    match is_variable && !is_given(&flag) {
        true => of_serve(format!("{name}: {}", message(&error))),
        false => error,
    }
}

fn read(file: &Path) -> Result<Table, String> {
    let text = read_text(file, MAX_TEXT).map_err(|error| error.to_string())?;
    let table = text.parse::<Table>();
    table.map_err(|error| {
        format!(
            "{}: not valid TOML: {}",
            file.display(),
            error.to_string().trim_end()
        )
    })
}

/// The flag that a key names.
fn flag<'a>(serve: &'a Command, key: &str) -> Result<&'a Arg, String> {
    let ends = ["help", "version", "config"].contains(&key);
    let mut args = serve.get_arguments();
    let found = args.find(|arg| !ends && arg.get_long() == Some(key));
    found.ok_or_else(|| {
        let dashed = key.replace('_', "-");
        let mut args = serve.get_arguments();
        let meant = args.any(|arg| dashed != key && arg.get_long() == Some(&dashed));
        let hint = match meant {
            true => format!("; the flag is {dashed}"),
            false => "; keys are names of flags of mlx-infer serve, as in max-output".to_owned(),
        };
        format!("unknown key {key:?}{hint}")
    })
}

/// A key and its value as words of a command line.
fn words(arg: &Arg, key: &str, value: &Value) -> Result<Vec<OsString>, String> {
    let takes = |what: &str| Err(format!("{key} takes {what}, given {value}"));
    let word = |value: &Value| match value {
        Value::String(text) => Some(format!("--{key}={text}").into()),
        Value::Integer(number) => Some(format!("--{key}={number}").into()),
        Value::Float(number) => Some(format!("--{key}={number}").into()),
        _ => None,
    };
    match (arg.get_action(), value) {
        (ArgAction::SetTrue, Value::Boolean(true)) => Ok(vec![format!("--{key}").into()]),
        (ArgAction::SetTrue, Value::Boolean(false)) => Ok(Vec::new()),
        (ArgAction::SetTrue, _) => takes("true or false"),
        (ArgAction::Append, Value::Array(list)) => {
            let words: Option<Vec<OsString>> = list.iter().map(word).collect();
            words.map_or_else(|| takes("a list of texts and numbers"), Ok)
        }
        (ArgAction::Append, value) => {
            word(value).map_or_else(|| takes("a text or a list"), |word| Ok(vec![word]))
        }
        (_, value) => {
            word(value).map_or_else(|| takes("a text or a number"), |word| Ok(vec![word]))
        }
    }
}
