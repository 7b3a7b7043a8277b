//! Grammars in GBNF, the notation of llama.cpp, as grammars in Lark.
//!
//! GBNF describes characters. Lark describes terminals, and its lexer takes the longest match of
//! each. A GBNF rule that is not recursive becomes one terminal, which matches the same texts.
//! Recursive rules become Lark rules over terminals: every text that they allow matches the GBNF
//! grammar, but some texts of the GBNF grammar may be refused.

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::Value;

/// The deepest nesting of groups. The compiler's own limit is a little higher.
const DEEPEST: usize = 24;

/// The most repetitions.
const REPEATED: u32 = 100_000;

/// The number of rules of a GBNF grammar, including those in strings and comments.
pub(super) fn rules(text: &str) -> usize {
    text.matches("::=").count()
}

/// Whether the text is GBNF: a line begins with a name and `::=`.
pub(super) fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim_start();
        let rest = line.trim_start_matches(is_name);
        rest.len() < line.len() && rest.trim_start().starts_with("::=")
    })
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// The same grammar in Lark.
///
/// # Errors
/// It is malformed, with the line of the error.
pub(super) fn to_lark(text: &str) -> Result<String, String> {
    let mut parser = Parser {
        text,
        at: 0,
        rules: Vec::new(),
        places: HashMap::new(),
    };
    parser.grammar()?;
    let Parser { rules, places, .. } = parser;
    let Some(&root) = places.get("root") else {
        return Err("GBNF: there is no rule root".to_owned());
    };
    if let Some(name) = rules.iter().find(|rule| rule.body.is_none()) {
        return Err(format!("GBNF: rule {} is not defined", name.name));
    }
    let mut kinds = vec![None; rules.len()];
    for rule in 0..rules.len() {
        is_regular(rule, &rules, &mut kinds);
    }
    let is_terminal = |rule: usize| kinds[rule] == Some(true);
    let name = |rule: usize| match is_terminal(rule) {
        true => format!("T{rule}"),
        false => format!("r{rule}"),
    };
    let mut lark = format!("start: {}\n", name(root));
    for (at, rule) in rules.iter().enumerate() {
        let mut body = String::new();
        let node = rule.body.as_ref().expect("it is defined");
        write_node(node, &name, &mut body);
        let _ = writeln!(lark, "{}: {body}", name(at));
    }
    Ok(lark)
}

struct Rule {
    name: String,
    /// `None` until it is defined.
    body: Option<Node>,
}

enum Node {
    /// A text as it stands.
    Text(String),
    /// A regular expression of one character.
    Character(String),
    /// A special token, as Lark writes it.
    Token(String),
    Rule(usize),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    Repeated(Box<Node>, u32, Option<u32>),
}

/// Whether a rule is not recursive, directly or through others, and refers to no special token.
fn is_regular(rule: usize, rules: &[Rule], kinds: &mut [Option<bool>]) -> bool {
    fn holds(node: &Node, rules: &[Rule], kinds: &mut [Option<bool>]) -> bool {
        match node {
            Node::Text(_) | Node::Character(_) => true,
            Node::Token(_) => false,
            Node::Rule(rule) => is_regular(*rule, rules, kinds),
            Node::Sequence(nodes) | Node::Choice(nodes) => {
                // All are visited, so that every rule gets its kind.
                let kinds = nodes.iter().map(|node| holds(node, rules, kinds));
                kinds.fold(true, |all, one| all & one)
            }
            Node::Repeated(node, ..) => holds(node, rules, kinds),
        }
    }
    if let Some(known) = kinds[rule] {
        return known;
    }
    // A rule that is met again is recursive.
    kinds[rule] = Some(false);
    let body = rules[rule].body.as_ref();
    let found = body.is_some_and(|body| holds(body, rules, kinds));
    kinds[rule] = Some(found);
    found
}

fn write_node(node: &Node, name: &impl Fn(usize) -> String, to: &mut String) {
    match node {
        // A JSON string is a string of Lark.
        Node::Text(text) => to.push_str(
            &Value::from(text.as_str())
                .to_string()
                .replace('\u{7f}', "\\u007f"),
        ),
        Node::Character(class) => {
            let _ = write!(to, "/{class}/");
        }
        Node::Token(token) => to.push_str(token),
        Node::Rule(rule) => to.push_str(&name(*rule)),
        Node::Sequence(nodes) | Node::Choice(nodes) => {
            let between = match node {
                Node::Choice(_) => " | ",
                _ => " ",
            };
            to.push('(');
            for (at, node) in nodes.iter().enumerate() {
                to.push_str(if at == 0 { "" } else { between });
                write_node(node, name, to);
            }
            if nodes.is_empty() {
                to.push_str("\"\"");
            }
            to.push(')');
        }
        Node::Repeated(_, _, Some(0)) => to.push_str("\"\""),
        Node::Repeated(node, least, most) => {
            let is_single = matches!(**node, Node::Character(_) | Node::Rule(_));
            to.push_str(if is_single { "" } else { "(" });
            write_node(node, name, to);
            to.push_str(if is_single { "" } else { ")" });
            let _ = match (least, most) {
                (0, None) => write!(to, "*"),
                (1, None) => write!(to, "+"),
                (0, Some(1)) => write!(to, "?"),
                (least, None) => write!(to, "{{{least},}}"),
                (least, Some(most)) => write!(to, "{{{least},{most}}}"),
            };
        }
    }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    rules: Vec<Rule>,
    /// The index of each name in `rules`.
    places: HashMap<String, usize>,
}

impl<'t> Parser<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn error<T>(&self, what: &str) -> Result<T, String> {
        let line = 1 + self.text[..self.at].matches('\n').count();
        Err(format!("GBNF, line {line}: {what}"))
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest().chars().next()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn take(&mut self, text: &str) -> bool {
        let is_there = self.rest().starts_with(text);
        self.at += if is_there { text.len() } else { 0 };
        is_there
    }

    /// Skips blanks and comments, and line breaks too if `lines`.
    fn space(&mut self, lines: bool) {
        while let Some(next) = self.rest().chars().next() {
            match next {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if lines => self.at += 1,
                '#' => self.at += self.rest().find(['\r', '\n']).unwrap_or(self.rest().len()),
                _ => return,
            }
        }
    }

    fn name(&mut self) -> &'t str {
        let rest = self.rest();
        let name = &rest[..rest.len() - rest.trim_start_matches(is_name).len()];
        self.at += name.len();
        name
    }

    fn place(&mut self, name: &str) -> usize {
        if let Some(&place) = self.places.get(name) {
            return place;
        }
        self.rules.push(Rule {
            name: name.to_owned(),
            body: None,
        });
        self.places.insert(name.to_owned(), self.rules.len() - 1);
        self.rules.len() - 1
    }

    fn grammar(&mut self) -> Result<(), String> {
        loop {
            self.space(true);
            if self.rest().is_empty() {
                return Ok(());
            }
            let name = self.name();
            if name.is_empty() {
                return self.error("expected the name of a rule");
            }
            self.space(false);
            if !self.take("::=") {
                return self.error(&format!("expected ::= behind {name}"));
            }
            let place = self.place(name);
            if self.rules[place].body.is_some() {
                return self.error(&format!("rule {name} is defined twice"));
            }
            self.space(true);
            let body = self.choice(0)?;
            self.rules[place].body = Some(body);
            self.space(false);
            if !self.rest().is_empty() && !self.rest().starts_with(['\r', '\n']) {
                let found = self.rest().chars().next().unwrap_or_default();
                return self.error(&format!("unexpected {found:?}"));
            }
        }
    }

    fn choice(&mut self, depth: usize) -> Result<Node, String> {
        if depth > DEEPEST {
            return self.error(&format!("groups are nested deeper than {DEEPEST} levels"));
        }
        let mut choices = vec![self.sequence(depth)?];
        loop {
            let before = self.at;
            self.space(true);
            if !self.take("|") {
                self.at = if depth > 0 { self.at } else { before };
                break;
            }
            self.space(true);
            choices.push(self.sequence(depth)?);
        }
        Ok(match choices.len() {
            1 => choices.remove(0),
            _ => Node::Choice(choices),
        })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, String> {
        let mut nodes = Vec::new();
        loop {
            let before = self.at;
            self.space(depth > 0);
            let node = match self.rest().chars().next() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.at += 1;
                    Node::Character("(?s:.)".to_owned())
                }
                Some('(') => {
                    self.at += 1;
                    let inner = self.choice(depth + 1)?;
                    self.space(true);
                    if !self.take(")") {
                        return self.error("expected )");
                    }
                    inner
                }
                Some('<') => self.token()?,
                Some('!') => {
                    return self.error("negated tokens are not supported: Lark has none");
                }
                Some('*' | '+' | '?' | '{') => {
                    return self.error("a repetition without anything in front of it");
                }
                Some(c) if is_name(c) => {
                    let name = self.name();
                    let behind = self.at;
                    self.space(false);
                    if self.rest().starts_with("::=") {
                        self.at = before;
                        return self.error(&format!("rule {name} must begin on a line of its own"));
                    }
                    self.at = behind;
                    Node::Rule(self.place(name))
                }
                _ => {
                    self.at = before;
                    return Ok(match nodes.len() {
                        1 => nodes.remove(0),
                        _ => Node::Sequence(nodes),
                    });
                }
            };
            let node = self.repeated(node)?;
            nodes.push(node);
        }
    }

    /// The node with the repetitions behind it.
    fn repeated(&mut self, mut node: Node) -> Result<Node, String> {
        let mut signs = 0;
        loop {
            self.space(false);
            let (least, most) = match self.rest().chars().next() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.range()?,
                _ => return Ok(node),
            };
            signs += 1;
            if signs > 4 {
                return self.error("more than 4 repetitions of one part");
            }
            // The closing brace, or the sign.
            self.at += 1;
            node = Node::Repeated(Box::new(node), least, most);
        }
    }

    /// The numbers of `{2}`, `{2,}`, `{,3}` or `{2,3}`, up to the closing brace.
    fn range(&mut self) -> Result<(u32, Option<u32>), String> {
        self.at += 1;
        let least = self.number()?;
        self.space(false);
        let range = match self.take(",") {
            false => (least.unwrap_or(0), least),
            true => (least.unwrap_or(0), self.number()?),
        };
        self.space(false);
        if !self.rest().starts_with('}') || (least.is_none() && range.1.is_none()) {
            return self.error("expected a repetition such as {2}, {2,} or {2,3}");
        }
        if range.1.is_some_and(|most| most < range.0) {
            return self.error("a repetition ends below its start");
        }
        Ok(range)
    }

    fn number(&mut self) -> Result<Option<u32>, String> {
        self.space(false);
        let rest = self.rest();
        let digits =
            &rest[..rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len()];
        if digits.is_empty() {
            return Ok(None);
        }
        self.at += digits.len();
        match digits.parse() {
            Ok(number) if number <= REPEATED => Ok(Some(number)),
            _ => self.error(&format!(
                "{digits} repetitions; at most {REPEATED} are supported"
            )),
        }
    }

    fn literal(&mut self) -> Result<Node, String> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.next() {
                Some('"') => return Ok(Node::Text(text)),
                Some('\\') => text.push(self.escape()?),
                None | Some('\n' | '\r') => return self.error("a string does not end on its line"),
                Some(c) => text.push(c),
            }
        }
    }

    fn class(&mut self) -> Result<Node, String> {
        self.at += 1;
        let mut class = String::from(if self.take("^") { "[^" } else { "[" });
        let empty = class.len();
        loop {
            let first = match self.next() {
                Some(']') if class.len() == empty => {
                    return self.error("a class without characters");
                }
                Some(']') => return Ok(Node::Character(class + "]")),
                Some('\\') => self.escape()?,
                None | Some('\n' | '\r') => return self.error("a class does not end on its line"),
                Some(c) => c,
            };
            let _ = write!(class, "\\x{{{:x}}}", u32::from(first));
            if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.at += 1;
                let last = match self.next() {
                    Some('\\') => self.escape()?,
                    None | Some('\n' | '\r') => {
                        return self.error("a class does not end on its line");
                    }
                    Some(c) => c,
                };
                if last < first {
                    return self.error(&format!("the range {first:?} to {last:?} is empty"));
                }
                let _ = write!(class, "-\\x{{{:x}}}", u32::from(last));
            }
        }
    }

    /// The character of an escape, behind the backslash.
    fn escape(&mut self) -> Result<char, String> {
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            other => {
                let other = other.map_or_else(String::new, |c| c.to_string());
                return self.error(&format!("unknown escape \\{other}"));
            }
        };
        let code = self.rest().get(..digits);
        let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
        let Some(found) = code.and_then(char::from_u32) else {
            return self.error(&format!(
                "expected a character of {digits} hexadecimal digits"
            ));
        };
        self.at += digits;
        Ok(found)
    }

    /// A special token by id or by name: `<[7]>`, `<|end|>`.
    fn token(&mut self) -> Result<Node, String> {
        let rest = self.rest();
        let end = rest.find('>').filter(|&end| {
            end > 1 && !rest[1..end].contains(|c: char| c.is_whitespace() || c == '<')
        });
        let Some(end) = end else {
            return self.error("expected a token such as <[7]> or <|end|>");
        };
        self.at += end + 1;
        Ok(Node::Token(rest[..=end].to_owned()))
    }
}
