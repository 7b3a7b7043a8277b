//! No operation changes an array that its caller owns: its primitive, its inputs and its siblings
//! stay as they were made.

/// The shim's code.
const SHIM: &str = "mlx-c-sys/shim/";

/// The only file that may: a replayed step replaces the graph of the caller's roots by the node of
/// its launch.
const ALLOWED: &str = "mlx-c-sys/shim/cuda/replay.cpp";

/// The members of `mx::array` that give access to its node.
const MEMBERS: [&str; 3] = ["primitive_ptr()", "inputs()", "siblings()"];

/// Calls that change a list.
const CHANGES: [&str; 10] = [
    "assign",
    "clear",
    "emplace",
    "emplace_back",
    "erase",
    "insert",
    "pop_back",
    "push_back",
    "resize",
    "swap",
];

/// The fault in a line of a file, if it changes the node of an array.
pub(super) fn fault(file: &str, line: &str) -> Option<String> {
    let is_shim = file.starts_with(SHIM) && (file.ends_with(".cpp") || file.ends_with(".h"));
    if !is_shim || file == ALLOWED {
        return None;
    }
    let code = line.split("//").next().unwrap_or_default();
    let changed = code.contains("set_siblings(").then_some("set_siblings()");
    let changed = changed.or_else(|| MEMBERS.into_iter().find(|member| changes(code, member)));
    changed.map(|member| {
        format!(
            "{member} of an array is changed: no operation may change its caller's arrays (only {ALLOWED} may)"
        )
    })
}

/// Whether the code assigns to the result of `member`, changes it, moves it away, or takes a
/// reference through which it can be changed.
fn changes(code: &str, member: &str) -> bool {
    let mut from = 0;
    while let Some(at) = code[from..].find(member).map(|at| from + at) {
        let (before, after) = (&code[..at], code[at + member.len()..].trim_start());
        from = at + member.len();
        let is_member = before.ends_with('.') || before.ends_with("->");
        let is_call = |name: &&str| {
            let rest = after
                .strip_prefix('.')
                .and_then(|rest| rest.strip_prefix(*name));
            rest.is_some_and(|rest| rest.starts_with('('))
        };
        let element = after
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'));
        let is_assigned = |rest: &str| rest.starts_with('=') && !rest.starts_with("==");
        let is_element_assigned = element.is_some_and(|(_, rest)| is_assigned(rest.trim_start()));
        let is_moved = before.rsplit_once("std::move(").is_some_and(|(_, object)| {
            object
                .chars()
                .all(|c| c.is_alphanumeric() || "_.->[]".contains(c))
        });
        let is_reference = before.rsplit_once("& ").is_some_and(|(kind, rest)| {
            rest.contains('=') && !kind.contains("const") && kind.trim_end().ends_with("auto")
        });
        let changes = is_assigned(after)
            || is_element_assigned
            || CHANGES.iter().any(is_call)
            || is_moved
            || is_reference;
        if is_member && changes {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::fault;

    #[test]
    fn changes_of_a_node_are_found() {
        let file = "mlx-c-sys/shim/ops/norm/node.cpp";
        for line in [
            "  first.primitive_ptr() = std::move(both);",
            "  first.inputs() = std::move(inputs);",
            "  first.set_siblings({normed}, 0);",
            "  sum.inputs().push_back(weight);",
            "  x->inputs()[0] = y;",
            "  auto& inputs = sum.inputs();",
            "  auto taken = std::move(sum.inputs());",
        ] {
            assert!(fault(file, line).is_some(), "{line}");
            assert!(fault("mlx-c-sys/shim/cuda/replay.cpp", line).is_none());
            assert!(fault("mlx-core/src/array.rs", line).is_none());
        }
    }

    #[test]
    fn reading_a_node_is_allowed() {
        let file = "mlx-c-sys/shim/graph.cpp";
        for line in [
            "  Graph::Node node{head.primitive_ptr(), {}, {}, {}};",
            "  for (const auto& input : head.inputs()) {",
            "  const auto& inputs = head.inputs();",
            "  auto in = graph.heads[i].inputs();",
            "  if (head.inputs()[i].id() == from.id()) {",
            "  left.insert(left.end(), a.inputs().begin(), a.inputs().end());",
            "  Arrays inputs(mx::Stream s) const;",
            "  // first.inputs() = x is not code",
            "  auto primitive = is_replaced(a) ? std::make_shared<AnyShape>(a.primitive_ptr()) : a.primitive_ptr();",
        ] {
            assert_eq!(fault(file, line), None, "{line}");
        }
    }
}
