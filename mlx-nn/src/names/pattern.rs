//! [`Pattern`]: names with placeholders for the parts that differ from tensor to tensor.

/// A name in which `*` stands for any run of characters and `#` for a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    text: String,
    /// The literal text between the placeholders. A name that lacks one of these texts does not match.
    literals: Vec<String>,
}

/// The text of each placeholder in a name that the pattern matches.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Captures<'n> {
    runs: Vec<&'n str>,
    numbers: Vec<&'n str>,
}

impl Captures<'_> {
    /// Removes the last number, and returns it.
    pub(super) fn pop_number(&mut self) -> Option<usize> {
        self.numbers.pop()?.parse().ok()
    }
}

impl Pattern {
    pub(super) fn new(text: &str) -> Self {
        let literals = text.split(['*', '#']).filter(|literal| !literal.is_empty());
        Self {
            text: text.to_owned(),
            literals: literals.map(str::to_owned).collect(),
        }
    }

    /// The number of `#` placeholders.
    pub(super) fn numbers(&self) -> usize {
        self.text.matches('#').count()
    }

    /// Whether names that match `self` give values for all placeholders of `to`, except for `fewer` numbers.
    pub(super) fn fills(&self, to: &Self, fewer: usize) -> bool {
        let runs = |pattern: &Self| pattern.text.matches('*').count();
        runs(self) == runs(to) && self.numbers() == to.numbers() + fewer
    }

    /// The text of each placeholder in `name`, as short as possible. `None` if the name does not match.
    pub(super) fn captures<'n>(&self, name: &'n str) -> Option<Captures<'n>> {
        // Large checkpoints have 90,000 names, and most rules are for few of them.
        let all = self.literals.iter().all(|literal| name.contains(literal));
        let mut found = Captures::default();
        (all && matches(&self.text, name, &mut found)).then_some(found)
    }

    /// The name with these values in its placeholders.
    pub(super) fn fill(&self, captures: &Captures<'_>) -> String {
        let (mut runs, mut numbers) = (captures.runs.iter(), captures.numbers.iter());
        let mut name = String::new();
        for part in self.text.split_inclusive(['*', '#']) {
            let literal = part.trim_end_matches(['*', '#']);
            name.push_str(literal);
            let value = match &part[literal.len()..] {
                "*" => runs.next(),
                "#" => numbers.next(),
                _ => None,
            };
            name.push_str(value.unwrap_or(&""));
        }
        name
    }
}

fn matches<'n>(pattern: &str, name: &'n str, found: &mut Captures<'n>) -> bool {
    let Some(place) = pattern.find(['*', '#']) else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(&pattern[..place]) else {
        return false;
    };
    let rest = &pattern[place + 1..];
    if pattern[place..].starts_with('#') {
        let digits = name.len() - name.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        found.numbers.push(&name[..digits]);
        if digits > 0 && matches(rest, &name[digits..], found) {
            return true;
        }
        found.numbers.pop();
        return false;
    }
    let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
    for end in ends {
        let held = (found.runs.len(), found.numbers.len());
        found.runs.push(&name[..end]);
        if matches(rest, &name[end..], found) {
            return true;
        }
        found.runs.truncate(held.0);
        found.numbers.truncate(held.1);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_and_put_together() {
        let from = Pattern::new("*.layers.#.experts.#.*");
        let name = "model.layers.12.experts.3.up_proj.weight";
        let mut found = from.captures(name).unwrap();
        assert_eq!(from.fill(&found), name);
        assert_eq!(found.pop_number(), Some(3));
        let to = Pattern::new("*.layers.#.switch.*");
        assert!(from.fills(&to, 1) && !from.fills(&to, 0));
        assert_eq!(to.fill(&found), "model.layers.12.switch.up_proj.weight");
        for other in [
            "model.layers.x.experts.3.up_proj.weight",
            "model.layers.12.experts..up_proj",
            "layers.12.experts.3.up_proj",
        ] {
            assert_eq!(from.captures(other), None, "{other}");
        }
        assert!(
            Pattern::new("*.weight")
                .captures("a.weight.weight")
                .is_some()
        );
        assert!(Pattern::new("*.weight").captures("a.weight.bias").is_none());
        assert!(Pattern::new("a").captures("ab").is_none());
    }
}
