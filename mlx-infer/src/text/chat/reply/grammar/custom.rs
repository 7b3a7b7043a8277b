//! Grammars of tools whose input is a text in place of arguments, OpenAI's tools of `type: custom`.
//!
//! A call of such a tool has one argument, the text. In forms with JSON the text stands within a
//! JSON string. Its grammar is then rewritten, so that it matches the string: each character
//! becomes the character's spelling in JSON. A lexer that does not go back cannot tell where a
//! terminal ends before a backslash. So terminals become rules there, and each spelling with a
//! backslash is a terminal of its own.

use regex_syntax::hir::{
    Capture, Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Repetition,
};
use serde_json::Value;

/// The name of the argument that holds the text.
pub(crate) const INPUT: &str = "input";

/// A text as it stands within a JSON string.
fn spelled(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// The grammar in Lark of a text, given in a syntax; `is_quoted`: of the text within a JSON string.
///
/// # Errors
/// The syntax is not known, or the grammar has a part that cannot be rewritten.
pub(super) fn of_text(syntax: &str, definition: &str, is_quoted: bool) -> Result<String, String> {
    match syntax {
        "lark" => rewritten(definition, is_quoted),
        "regex" => Ok(format!("start: {}", pattern(definition, is_quoted)?)),
        other => Err(format!("its syntax must be lark or regex, given {other:?}")),
    }
}

/// A regular expression of the text, without anchors at its ends.
fn parsed(regex: &str) -> Result<Hir, String> {
    let hir = regex_syntax::parse(regex).map_err(|error| {
        let said = error.to_string();
        let last = said.lines().last().unwrap_or_default();
        let last = last.trim_start_matches("error: ");
        format!("its regular expression {regex:?}: {last}")
    })?;
    let hir = without_ends(hir);
    if hir.properties().maximum_len() == Some(0) {
        return Err(format!(
            "its regular expression {regex:?} matches the empty text only"
        ));
    }
    if !hir.properties().look_set().is_empty() {
        return Err(format!(
            "its regular expression {regex:?} has an anchor within"
        ));
    }
    Ok(hir)
}

/// A regular expression as a part of a rule.
fn pattern(regex: &str, is_quoted: bool) -> Result<String, String> {
    let hir = parsed(regex)?;
    match is_quoted {
        true => rule(&hir, true),
        false => Ok(terminal(&hir.to_string())),
    }
}

/// A terminal of Lark.
fn terminal(regex: &str) -> String {
    // In Lark a slash ends the expression, and a line break is no part of it.
    let mut written = String::from("/");
    let mut is_escape = false;
    for c in regex.chars() {
        match c {
            '/' if !is_escape => written.push_str("\\/"),
            '\n' => written.push_str("\\n"),
            '\r' => written.push_str("\\r"),
            c => written.push(c),
        }
        is_escape = c == '\\' && !is_escape;
    }
    written + "/"
}

/// The expression without anchors at its ends, because it matches the whole text.
fn without_ends(hir: Hir) -> Hir {
    let is_look = |hir: &Hir| matches!(hir.kind(), HirKind::Look(_));
    match hir.into_kind() {
        HirKind::Concat(mut parts) => {
            if parts.first().is_some_and(is_look) {
                parts.remove(0);
            }
            if parts.last().is_some_and(is_look) {
                parts.pop();
            }
            Hir::concat(parts)
        }
        HirKind::Capture(capture) => without_ends(*capture.sub),
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(literal) => Hir::literal(literal.0),
        HirKind::Class(class) => Hir::class(class),
        HirKind::Look(look) => Hir::look(look),
        HirKind::Repetition(repetition) => Hir::repetition(repetition),
        HirKind::Alternation(parts) => Hir::alternation(parts),
    }
}

/// A rule of a text's spelling within a JSON string. `is_last`: nothing follows in the terminal
/// that it stands for, which matches as much as it can.
fn rule(hir: &Hir, is_last: bool) -> Result<String, String> {
    Ok(match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => "\"\"".to_owned(),
        HirKind::Literal(literal) => literals(
            std::str::from_utf8(&literal.0)
                .map_err(|_| "its regular expressions match bytes".to_owned())?,
        ),
        HirKind::Class(Class::Bytes(_)) => {
            return Err("its regular expressions match bytes".to_owned());
        }
        HirKind::Class(Class::Unicode(class)) => characters(class, ""),
        HirKind::Repetition(repetition) => {
            let Repetition { min, max, sub, .. } = repetition;
            if let HirKind::Class(Class::Unicode(class)) = sub.kind()
                && (is_last, max.is_none()) == (true, true)
                && *min < 2
            {
                let times = ["*", "+"][*min as usize];
                return Ok(format!("{}{times}", characters(class, "+")));
            }
            let sub = rule(sub, false)?;
            let times = match (min, max) {
                (0, Some(1)) => "?".to_owned(),
                (0, None) => "*".to_owned(),
                (1, None) => "+".to_owned(),
                (min, None) => format!("{{{min},}}"),
                (min, Some(max)) => format!("{{{min},{max}}}"),
            };
            format!("({sub}){times}")
        }
        HirKind::Capture(Capture { sub, .. }) => rule(sub, is_last)?,
        HirKind::Concat(parts) => {
            let last = parts.len() - 1;
            let parts = parts.iter().enumerate();
            let parts = parts.map(|(at, part)| rule(part, is_last && at == last));
            format!("({})", parts.collect::<Result<Vec<_>, _>>()?.join(" "))
        }
        HirKind::Alternation(parts) => {
            let parts = parts.iter().map(|part| rule(part, is_last));
            format!("({})", parts.collect::<Result<Vec<_>, _>>()?.join(" | "))
        }
    })
}

/// Strings of Lark for a text: its characters with a backslash, and the parts between them.
fn literals(text: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut is_plain = false;
    for c in text.chars() {
        let spelled = spelled(&c.to_string());
        let is_single = spelled.starts_with('\\');
        match parts.last_mut().filter(|_| is_plain && !is_single) {
            Some(part) => part.push_str(&spelled),
            None => parts.push(spelled),
        }
        is_plain = !is_single;
    }
    let parts = parts.into_iter().map(|part| Value::from(part).to_string());
    format!("({})", parts.collect::<Vec<_>>().join(" "))
}

/// One character of a class. `times` follows the terminal of those without a backslash.
fn characters(class: &ClassUnicode, times: &str) -> String {
    let escaped = ClassUnicode::new([
        ClassUnicodeRange::new('\0', '\u{1f}'),
        ClassUnicodeRange::new('"', '"'),
        ClassUnicodeRange::new('\\', '\\'),
    ]);
    let (mut plain, mut special) = (class.clone(), class.clone());
    plain.difference(&escaped);
    special.intersect(&escaped);
    let mut parts = Vec::new();
    if !plain.ranges().is_empty() {
        let plain = Hir::class(Class::Unicode(plain));
        parts.push(terminal(&format!("(?:{plain}){times}")));
    }
    let special = special.iter().flat_map(|range| range.start()..=range.end());
    let special = special.map(|c| regex_syntax::escape(&spelled(&c.to_string())));
    let special: Vec<String> = special.collect();
    if !special.is_empty() {
        parts.push(terminal(&special.join("|")));
    }
    format!("({})", parts.join(" | "))
}

/// A part of a grammar in Lark.
enum Piece<'g> {
    /// A string in quotation marks, and whether its case does not matter.
    Text(&'g str, bool),
    /// A regular expression with its flags.
    Regex(&'g str, &'g str),
    /// The name of a rule or a terminal.
    Name(&'g str),
    /// A directive, with the rest of its line.
    Directive(&'g str),
    /// Anything else.
    Other(&'g str),
}

/// A grammar in Lark for the same text; `is_quoted`: for the text within a JSON string.
///
/// # Errors
/// It has a part that cannot stand in a grammar of a tool.
fn rewritten(grammar: &str, is_quoted: bool) -> Result<String, String> {
    let mut written = String::new();
    let mut rest = grammar;
    while let Some((piece, behind)) = next(rest)? {
        rest = behind;
        match piece {
            Piece::Text(text, ignores_case) => {
                let range = behind.trim_start().strip_prefix("..");
                if let Some((Piece::Text(last, false), behind)) = range
                    .map(|range| next(range.trim_start()))
                    .transpose()?
                    .flatten()
                {
                    rest = behind;
                    written += &pattern(&range_of(&string(text)?, &string(last)?)?, is_quoted)?;
                } else if ignores_case {
                    let text = regex_syntax::escape(&string(text)?);
                    written += &pattern(&format!("(?i:{text})"), is_quoted)?;
                } else {
                    let text = string(text)?;
                    written += &match is_quoted {
                        true => literals(&text),
                        false => Value::from(text).to_string(),
                    };
                }
            }
            Piece::Regex(regex, flags) => {
                let flags: String = flags
                    .chars()
                    .filter(|flag| "imsx".contains(*flag))
                    .collect();
                let regex = regex.replace("\\/", "/");
                let regex = match flags.is_empty() {
                    true => regex,
                    false => format!("(?{flags}:{regex})"),
                };
                written += &pattern(&regex, is_quoted)?;
            }
            Piece::Name(name) if is_quoted && is_terminal(name) => {
                written += &rule_of(name);
                // Rules have no priorities.
                if let Some(number) = rest.strip_prefix('.')
                    && number.starts_with(|c: char| c.is_ascii_digit())
                {
                    rest = number.trim_start_matches(|c: char| c.is_ascii_digit());
                }
            }
            Piece::Name(name) => written += name,
            Piece::Directive(line) => written += &directive(line, is_quoted)?,
            Piece::Other("&") if is_quoted => {
                return Err("& cannot stand in the grammar of a tool".to_owned());
            }
            Piece::Other(other) => written += other,
        }
    }
    Ok(written)
}

fn is_terminal(name: &str) -> bool {
    name.contains(|c: char| c.is_ascii_uppercase())
}

/// The name of the rule that stands for a terminal.
fn rule_of(terminal: &str) -> String {
    format!("term_{}", terminal.to_ascii_lowercase())
}

/// A class of the characters from one text of one character to another.
fn range_of(first: &str, last: &str) -> Result<String, String> {
    let one = |text: &str| {
        let mut chars = text.chars();
        chars.next().filter(|_| chars.next().is_none())
    };
    match (one(first), one(last)) {
        (Some(first), Some(last)) if first <= last => Ok(format!(
            "[\\x{{{:x}}}-\\x{{{:x}}}]",
            u32::from(first),
            u32::from(last)
        )),
        _ => Err(format!(
            "its range {first:?}..{last:?} is not of two characters in their order"
        )),
    }
}

/// The text of a string in quotation marks.
fn string(quoted: &str) -> Result<String, String> {
    let text = serde_json::from_str(quoted);
    text.map_err(|error| format!("its string {quoted}: {error}"))
}

/// A directive in the grammar of a text.
fn directive(line: &str, is_quoted: bool) -> Result<String, String> {
    let words = line.strip_prefix("%import").map(str::trim);
    let Some(words) = words else {
        let name = line.split_whitespace().next().unwrap_or(line);
        let what = line.strip_prefix("%ignore").map(str::trim);
        return what.map_or_else(
            || Err(format!("{name} cannot stand in the grammar of a tool")),
            |what| ignored(what, is_quoted),
        );
    };
    let (words, alias) = match words.split_once("->") {
        Some((words, alias)) => (words.trim(), Some(alias.trim())),
        None => (words, None),
    };
    let names: Vec<&str> = match words.strip_prefix("common") {
        Some(rest) if rest.starts_with('.') => vec![rest[1..].trim()],
        Some(rest) => {
            let list = rest
                .trim()
                .strip_prefix('(')
                .and_then(|list| list.strip_suffix(')'));
            let list = list.ok_or_else(|| format!("{line}: expected names of common"))?;
            list.split(',').map(str::trim).collect()
        }
        None => return Err(format!("{line}: only names of common can be imported")),
    };
    let mut rules = Vec::new();
    for name in names {
        let known = COMMON.iter().find(|(known, _)| *known == name);
        let (_, regex) = known.ok_or_else(|| format!("{line}: common has no {name}"))?;
        let name = alias.unwrap_or(name);
        let name = match is_quoted {
            true => rule_of(name),
            false => name.to_owned(),
        };
        rules.push(format!("{name}: {}", pattern(regex, is_quoted)?));
    }
    Ok(rules.join("\n"))
}

/// The directive by which a text is ignored between terminals.
fn ignored(what: &str, is_quoted: bool) -> Result<String, String> {
    let common = what.strip_prefix("common.").unwrap_or(what);
    let common = COMMON.iter().find(|(name, _)| *name == common);
    if !is_quoted {
        let directive = |(_, regex): &(&str, &str)| pattern(regex, false);
        let what = common.map_or_else(|| Ok(what.to_owned()), directive);
        return what.map(|what: String| format!("%ignore {what}"));
    }
    let regex = match (common, next(what)?) {
        (Some((_, regex)), _) => parsed(regex)?,
        (None, Some((Piece::Regex(regex, ""), ""))) => parsed(&regex.replace("\\/", "/"))?,
        (None, Some((Piece::Text(text, false), ""))) => Hir::literal(string(text)?.into_bytes()),
        _ => {
            return Err(format!(
                "%ignore {what}: expected a string, a regular expression or a terminal of common"
            ));
        }
    };
    // Each character is ignored alone, so that the lexer need not go back.
    let class = match regex.kind() {
        HirKind::Repetition(repetition) => &*repetition.sub,
        _ => &regex,
    };
    let chars = match class.kind() {
        HirKind::Literal(literal) if regex_len(class) == Some(1) => {
            String::from_utf8_lossy(&literal.0).into_owned()
        }
        HirKind::Class(Class::Unicode(class)) => {
            let ranges = class.iter().flat_map(|range| range.start()..=range.end());
            ranges.take(MOST_IGNORED + 1).collect()
        }
        _ => String::new(),
    };
    match chars.chars().count() {
        1..=MOST_IGNORED => Ok(chars
            .chars()
            .map(|c| format!("%ignore {}", Value::from(spelled(&c.to_string()))))
            .collect::<Vec<_>>()
            .join("\n")),
        _ => Err(format!(
            "%ignore {what}: expected at most {MOST_IGNORED} different characters"
        )),
    }
}

/// The most characters that a grammar within JSON ignores.
const MOST_IGNORED: usize = 64;

/// The number of characters of a literal.
fn regex_len(hir: &Hir) -> Option<usize> {
    match hir.kind() {
        HirKind::Literal(literal) => Some(std::str::from_utf8(&literal.0).ok()?.chars().count()),
        _ => None,
    }
}

/// The terminals of Lark's library `common`.
const COMMON: [(&str, &str); 19] = [
    ("DIGIT", "[0-9]"),
    ("HEXDIGIT", "[0-9a-fA-F]"),
    ("INT", "[0-9]+"),
    ("SIGNED_INT", "[+-]?[0-9]+"),
    ("DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"),
    (
        "FLOAT",
        "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?",
    ),
    (
        "SIGNED_FLOAT",
        "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)",
    ),
    (
        "NUMBER",
        "[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?",
    ),
    (
        "SIGNED_NUMBER",
        "[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)",
    ),
    ("ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\.)*\""),
    ("LCASE_LETTER", "[a-z]"),
    ("UCASE_LETTER", "[A-Z]"),
    ("LETTER", "[A-Za-z]"),
    ("WORD", "[A-Za-z]+"),
    ("CNAME", "[_A-Za-z][_A-Za-z0-9]*"),
    ("WS_INLINE", "[ \\t]+"),
    ("WS", "[ \\t\\f\\r\\n]+"),
    ("CR", "\\r"),
    ("LF", "\\n"),
];

/// The first part of a grammar, and the rest. Comments are left out.
///
/// # Errors
/// The part cannot stand in a grammar of a tool.
fn next(grammar: &str) -> Result<Option<(Piece<'_>, &str)>, String> {
    let Some(first) = grammar.chars().next() else {
        return Ok(None);
    };
    let cut = |len: usize| grammar.split_at(len);
    let line = || cut(grammar.find('\n').unwrap_or(grammar.len()));
    Ok(Some(match first {
        '#' => (Piece::Other(""), line().1),
        '/' if grammar.starts_with("//") => (Piece::Other(""), line().1),
        '"' => {
            let (text, rest) = cut(end_of(grammar, '"')?);
            match rest.strip_prefix('i') {
                Some(rest) => (Piece::Text(text, true), rest),
                None => (Piece::Text(text, false), rest),
            }
        }
        '/' => {
            let end = end_of(grammar, '/')?;
            let flags = grammar[end..].chars().take_while(char::is_ascii_lowercase);
            let (whole, rest) = cut(end + flags.count());
            (Piece::Regex(&whole[1..end - 1], &whole[end..]), rest)
        }
        '%' => {
            let (text, rest) = line();
            (Piece::Directive(text.trim_end()), rest)
        }
        c if c.is_ascii_alphabetic() || c == '_' => {
            let is_part = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
            let (name, rest) = cut(grammar.find(|c| !is_part(c)).unwrap_or(grammar.len()));
            if rest.starts_with('[') {
                return Err(format!(
                    "{name}[: attributes cannot stand in the grammar of a tool"
                ));
            }
            (Piece::Name(name), rest)
        }
        '<' | '@' | '{' => {
            return Err(format!("{first} cannot stand in the grammar of a tool"));
        }
        _ => (
            Piece::Other(&grammar[..first.len_utf8()]),
            &grammar[first.len_utf8()..],
        ),
    }))
}

/// The length of a text that begins with this mark, up to the next one.
fn end_of(text: &str, mark: char) -> Result<usize, String> {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\n' => break,
            '\\' => is_escaped = true,
            c if c == mark => return Ok(at + 1),
            _ => {}
        }
    }
    let line = text.lines().next().unwrap_or_default();
    Err(format!("it has no second {mark} in {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_match_what_stands_in_a_json_string() {
        for (regex, quoted, raw) in [
            ("a\"b", r#"("a" "\\\"" "b")"#, r#"/(?:a"b)/"#),
            ("^x\n$", r#"("x" "\\n")"#, r"/(?:x\n)/"),
            ("[\"a]/", r#"((/(?:a)/ | /\\"/) ("/"))"#, r#"/(?:["a]\/)/"#),
            ("[a\t]*", r"(/(?:a)+/ | /\\t/)*", "/[\ta]*/"),
            ("a{2,}b?", r#"((("a")){2,} (("b"))?)"#, r"/(?:a{2,}b?)/"),
        ] {
            assert_eq!(pattern(regex, true).unwrap(), quoted);
            assert_eq!(pattern(regex, false).unwrap(), raw);
        }
        let lark = "start: \"a\\n\" B /x\\/\"/ \"q\"i \"0\"..\"9\" # no\nB.2: \"\\\"\"\n%import common.LF -> NL\n%ignore /[ \\n]+/";
        assert_eq!(
            rewritten(lark, true).unwrap(),
            concat!(
                r#"start: ("a" "\\n") term_b ("x/" "\\\"") (/(?:[Qq])/) (/(?:[0-9])/) "#,
                "\nterm_b: (\"\\\\\\\"\")\nterm_nl: (\"\\\\n\")\n%ignore \"\\\\n\"\n%ignore \" \""
            )
        );
    }

    #[test]
    fn parts_that_cannot_be_rewritten_are_named() {
        for (syntax, definition, what) in [
            ("lark", "start: %json {}", "%json"),
            ("lark", "start: <|im_end|>", "<"),
            ("lark", "start: \"a", "no second \""),
            ("lark", "%import python.NAME", "only names of common"),
            ("lark", "%import common.NAME", "common has no NAME"),
            ("lark", "start: /(/", "unclosed group"),
            ("lark", "start: a\na[lazy]: /x/", "attributes"),
            ("regex", "a^b", "an anchor within"),
            ("regex", "", "the empty text only"),
            ("ebnf", "x", "lark or regex"),
        ] {
            for is_quoted in [true, false] {
                let error = of_text(syntax, definition, is_quoted).unwrap_err();
                assert!(error.contains(what), "{definition}: {error}");
            }
        }
    }
}
