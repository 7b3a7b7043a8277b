//! A template's source, made ready for minijinja.
//!
//! Three things that jinja2, or transformers' extension of it, does and minijinja does not: every line
//! ending becomes `\n`; `{% generation %}` marks what an assistant wrote, which renders as its body; and
//! what is assigned is bounded, because a template is input and must not fill the memory.

/// The name of the filter that bounds an assigned value.
pub(super) const BOUNDED: &str = "__bounded";

/// The source with these three done.
pub(super) fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    let mut raw = false;
    while let Some(at) = rest.find('{') {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let length = match tag.as_bytes().get(1) {
            Some(b'#') if !raw => tag.find("#}").map_or(tag.len(), |end| end + 2),
            Some(b'{') if !raw => tag_length(tag, "}}"),
            Some(b'%') => tag_length(tag, "%}"),
            _ => 1,
        };
        let (tag, after) = tag.split_at(length);
        let inside = tag
            .strip_prefix("{%")
            .and_then(|tag| tag.strip_suffix("%}"));
        match inside {
            Some(inside) => {
                let word = inside.trim_matches(['-', '+']).trim();
                match word {
                    "raw" => raw = true,
                    "endraw" => raw = false,
                    _ => {}
                }
                if raw {
                    out.push_str(tag);
                } else {
                    out.push_str(&rewrite(inside, word));
                }
            }
            None => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// How long a tag is that begins `text`; closing marks inside strings do not count.
fn tag_length(text: &str, close: &str) -> usize {
    let bytes = text.as_bytes();
    let mut quote = None;
    let mut at = 2;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(mark), byte) if byte == mark => quote = None,
            (None, byte @ (b'"' | b'\'')) => quote = Some(byte),
            (None, _) if bytes[at..].starts_with(close.as_bytes()) => return at + close.len(),
            _ => {}
        }
        at += 1;
    }
    // Not closed: a syntax error, which is minijinja's to report.
    text.len()
}

fn rewrite(inside: &str, word: &str) -> String {
    let tag = |inner: &str| format!("{{%{inner}%}}");
    // The tag's body has a scope of its own, as a block of jinja2's `call` has.
    if word == "generation" || word == "endgeneration" {
        return tag(&inside
            .replace("endgeneration", "endwith")
            .replace("generation", "with"));
    }
    let Some(assigned) = word.strip_prefix("set").and_then(assignment) else {
        return tag(inside);
    };
    let lead = inside.len() - inside.trim_start_matches(['-', '+']).trim_start().len();
    let (head, tail) = inside.split_at(lead + word.len() - assigned.len());
    tag(&format!(
        "{head}({assigned})|{BOUNDED} {}",
        &tail[assigned.len()..]
    ))
}

/// The expression of `name = expression` or `name.attribute = expression`.
fn assignment(text: &str) -> Option<&str> {
    let text = text.strip_prefix(char::is_whitespace)?;
    let (target, value) = text.split_once('=')?;
    let target = target.trim();
    let is_name = !target.is_empty()
        && target
            .chars()
            .all(|c| c.is_alphanumeric() || c == '_' || c == '.');
    let value = value.trim();
    // What is no expression by itself must not become one by being put into parentheses.
    (is_name && !value.starts_with('=') && is_balanced(value)).then_some(value)
}

/// Whether every parenthesis outside of strings has its other half; false for nothing at all.
fn is_balanced(text: &str) -> bool {
    let mut depth = 0_usize;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(_), '\\') => drop(chars.next()),
            (Some(mark), c) if c == mark => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '(') => depth += 1,
            (None, ')') if depth == 0 => return false,
            (None, ')') => depth -= 1,
            _ => {}
        }
    }
    depth == 0 && !text.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewrites_only_what_it_must() {
        let same = [
            "a {{ '{% generation %}' }} b",
            "{% raw %}{% generation %}{% set a = 1 %}{% endraw %}",
            "{# {% set a = 1 %} #}",
            "{% set a %}x{% endset %}",
            "{% set a | replace('a', b='c') %}x{% endset %}",
            "{% settle = 1 %}",
            "{% if a == 'b' %}{ %}{% endif %}",
            "{% if 'unclosed",
            "{% set a = %}",
            "{% set a = 1) + (2 %}",
            "{",
        ];
        for source in same {
            assert_eq!(prepare(source), source);
        }
        assert_eq!(
            prepare("{%- generation -%}x{%+ endgeneration %}"),
            "{%- with -%}x{%+ endwith %}"
        );
        assert_eq!(prepare("a\r\nb\rc"), "a\nb\nc");
        assert_eq!(
            prepare("{%- set ns.a = b['%}'] -%}"),
            "{%- set ns.a = (b['%}'])|__bounded  -%}"
        );
        assert_eq!(prepare("{% set a = a %}"), "{% set a = (a)|__bounded  %}");
        assert_eq!(
            prepare("{% set a = 1, 2 %}"),
            "{% set a = (1, 2)|__bounded  %}"
        );
    }
}
