//! The replies of the model to each agent.

use serde_json::{Value, json};

use crate::forms::api::Reply;

/// A conversation, or a part of one, that begins where a message of the user has its name.
pub struct AgentTask {
    pub name: &'static str,
    /// Whether requests with tools get the replies, or those without.
    pub has_tools: bool,
    pub replies: Vec<ScriptedReply>,
}

/// A reply: reasoning, a text and calls of tools.
#[derive(Clone, Debug, Default)]
pub struct ScriptedReply {
    pub reasoning: &'static str,
    pub text: String,
    pub calls: Vec<(&'static str, Value)>,
}

impl AgentTask {
    /// The replies as the model writes them.
    pub fn texts(&self) -> impl Iterator<Item = String> {
        self.replies.iter().map(ScriptedReply::written)
    }
}

impl ScriptedReply {
    /// The reply as a client reads it.
    pub fn reply(&self) -> Reply {
        let calls = self.calls.iter();
        Reply {
            reasoning: self.reasoning.to_owned(),
            content: self.text.clone(),
            calls: calls
                .map(|(name, arguments)| ((*name).to_owned(), arguments.clone()))
                .collect(),
            end: if self.calls.is_empty() {
                "stop"
            } else {
                "tool_calls"
            },
        }
    }

    fn written(&self) -> String {
        let mut parts = Vec::new();
        if !self.text.is_empty() {
            parts.push(self.text.clone());
        }
        for (name, arguments) in &self.calls {
            parts.push(format!(
                "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>"
            ));
        }
        let said = parts.join("\n");
        match self.reasoning {
            "" => said,
            reasoning => format!("<think>\n{reasoning}\n</think>\n\n{said}"),
        }
    }
}

fn says(reasoning: &'static str, text: &str) -> ScriptedReply {
    ScriptedReply {
        reasoning,
        text: text.to_owned(),
        calls: Vec::new(),
    }
}

fn calls(reasoning: &'static str, text: &str, calls: &[(&'static str, Value)]) -> ScriptedReply {
    ScriptedReply {
        calls: calls.to_vec(),
        ..says(reasoning, text)
    }
}

/// The fault: the price is divided by 10 in place of 100, and the sum starts at 1.
const PRICE: [&str; 2] = ["return cents / 10", "return cents / 100"];
/// A change of a text that is not in the file.
const WRONG: [&str; 2] = ["return cents / 12", "return cents / 100"];
const ORDER: [&str; 2] = ["total = 1", "total = 0"];
const TEST: &str = "python3 test_order.py";
const END: &str = "Both files are mended: é, \"quotes\" and 日本.";

/// The patch of a file in the form of Codex, as a command of the shell.
fn patch(file: &str, [old, new]: [&str; 2]) -> (&'static str, Value) {
    let lines = format!(
        "*** Begin Patch\n*** Update File: {file}\n@@\n-    {old}\n+    {new}\n*** End Patch"
    );
    (
        "exec_command",
        json!({"cmd": format!("apply_patch <<'PATCH'\n{lines}\nPATCH")}),
    )
}

/// The conversation in which an agent mends the fault: it reads both files at a time, changes a text
/// that is not there, changes both files, runs the test and tells the end.
fn mend(name: &'static str, tools: [Vec<(&'static str, Value)>; 4]) -> AgentTask {
    let [read, wrong, change, test] = tools;
    AgentTask {
        name,
        has_tools: true,
        replies: vec![
            calls("Both files may be at fault.", "I read both files.", &read),
            calls("", "", &wrong),
            calls(
                "That text is not there.",
                "I look again, and change both files.",
                &change,
            ),
            calls("", "", &test),
            says("The test passes.", END),
        ],
    }
}

fn claude() -> AgentTask {
    let read = |path: &str| ("Read", json!({"file_path": path}));
    let edit = |path: &str, [old, new]: [&str; 2]| {
        (
            "Edit",
            json!({"file_path": path, "old_string": old, "new_string": new}),
        )
    };
    mend(
        "[claude-mend]",
        [
            vec![read("price.py"), read("order.py")],
            vec![edit("price.py", WRONG)],
            vec![edit("price.py", PRICE), edit("order.py", ORDER)],
            vec![(
                "Bash",
                json!({"command": TEST, "description": "Runs the test"}),
            )],
        ],
    )
}

fn codex() -> AgentTask {
    let run = |command: &str| ("exec_command", json!({"cmd": command}));
    mend(
        "[codex-mend]",
        [
            vec![run("cat price.py"), run("cat order.py")],
            vec![patch("price.py", WRONG)],
            vec![patch("price.py", PRICE), patch("order.py", ORDER)],
            vec![run(TEST)],
        ],
    )
}

fn opencode() -> AgentTask {
    let read = |path: &str| ("read", json!({"filePath": path}));
    let edit = |path: &str, [old, new]: [&str; 2]| {
        (
            "edit",
            json!({"filePath": path, "oldString": old, "newString": new}),
        )
    };
    mend(
        "[opencode-mend]",
        [
            vec![read("price.py"), read("order.py")],
            vec![edit("price.py", WRONG)],
            vec![edit("price.py", PRICE), edit("order.py", ORDER)],
            vec![("bash", json!({"command": TEST}))],
        ],
    )
}

fn continue_() -> AgentTask {
    let read = |path: &str| ("Read", json!({"filepath": path}));
    let edit = |path: &str, [old, new]: [&str; 2]| {
        (
            "Edit",
            json!({"file_path": path, "old_string": old, "new_string": new}),
        )
    };
    mend(
        "[continue-mend]",
        [
            vec![read("price.py"), read("order.py")],
            vec![edit("price.py", WRONG)],
            vec![edit("price.py", PRICE), edit("order.py", ORDER)],
            vec![("Bash", json!({"command": TEST}))],
        ],
    )
}

fn cline() -> AgentTask {
    let edit = |path: &str, [old, new]: [&str; 2]| {
        (
            "editor",
            json!({"path": path, "old_text": old, "new_text": new}),
        )
    };
    let read = |path: &str| ("read_files", json!({"files": [{"path": path}]}));
    mend(
        "[cline-mend]",
        [
            vec![read("price.py"), read("order.py")],
            vec![edit("price.py", WRONG)],
            vec![edit("price.py", PRICE), edit("order.py", ORDER)],
            vec![("run_commands", json!({"commands": [TEST]}))],
        ],
    )
}

/// A change in the form of aider, which offers no tools: it reads blocks of the text.
fn block(file: &str, [old, new]: [&str; 2]) -> String {
    format!(
        "{file}\n```python\n<<<<<<< SEARCH\n    {old}\n=======\n    {new}\n>>>>>>> REPLACE\n```\n"
    )
}

/// Aider has the files in its prompt, tells of a block that does not match, and runs the test itself.
fn aider() -> AgentTask {
    let wrong = format!("I change the price.\n\n{}", block("price.py", WRONG));
    let [price, order] = [block("price.py", PRICE), block("order.py", ORDER)];
    let right = format!("{END}\n\n{price}\n{order}");
    AgentTask {
        name: "[aider-mend]",
        has_tools: false,
        replies: vec![
            says("Both files may be at fault.", wrong.trim_end()),
            says("That text is not there.", right.trim_end()),
        ],
    }
}

/// Open WebUI's model calls one of its own tools.
fn open_webui() -> AgentTask {
    AgentTask {
        name: "[open-webui-mend]",
        has_tools: true,
        replies: vec![
            calls(
                "A clock is needed.",
                "I look at the clock.",
                &[("get_current_timestamp", json!({}))],
            ),
            says(
                "The clock was read.",
                "The clock was read: é, \"quotes\" and 日本.",
            ),
        ],
    }
}

pub fn tasks() -> Vec<AgentTask> {
    let lines: Vec<String> = (1..=2000)
        .map(|line| format!("This is line {line}."))
        .collect();
    let long = says("A long list.", &lines.join("\n"));
    let next = says("", "The list was interrupted, and this is the next answer.");
    let single = |name: &'static str, has_tools: bool, reply: &ScriptedReply| AgentTask {
        name,
        has_tools,
        replies: vec![reply.clone()],
    };
    vec![
        claude(),
        codex(),
        opencode(),
        continue_(),
        cline(),
        aider(),
        open_webui(),
        single("[long]", true, &long),
        single("[next]", true, &next),
        single("[long-text]", false, &long),
        single("[next-text]", false, &next),
    ]
}
