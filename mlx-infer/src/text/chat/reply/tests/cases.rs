//! Replies and their parts.

use super::super::ToolFormat;

mod marked;
mod tagged;

/// Form, reasoning marks, reply, and its parts as `shown` writes them.
type Case = (ToolFormat, Option<usize>, &'static str, &'static str);

pub(super) fn cases() -> Vec<Case> {
    use ToolFormat::*;
    let mut cases = marked::cases();
    cases.extend(tagged::cases());
    cases.extend([
        (
            Hermes,
            Some(0),
            "<think>\nwhy\n</think>\n\nhello",
            "[why]hello",
        ),
        (
            Hermes,
            Some(0),
            "hello <think> there",
            "hello <think> there",
        ),
        (Hermes, None, "hello <tool", "hello <tool"),
        (
            Seed,
            Some(3),
            "<seed:think>why</seed:think>So:<seed:tool_call>\n<function=weather>\n<parameter=city>New\nYork</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
            "[why]So:#0weather{\"city\": \"New\\nYork\", \"days\": 3}#",
        ),
        (
            Granite,
            None,
            "<|tool_call|>[{\"name\": \"add\", \"arguments\": {\"days\": 1}}, {\"name\": \"weather\", \"arguments\": {}}]",
            "#0add{\"days\": 1}##1weather{}#",
        ),
        (
            Command,
            Some(4),
            "<|START_THINKING|>I look.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"add\", \"parameters\": {\"days\": 1}}\n]<|END_ACTION|>",
            "[I look.]#0add{\"days\": 1}#",
        ),
        (
            Hunyuan,
            Some(0),
            "<think>\nwhy\n</think>\n<tool_calls>[{\"name\": \"add\", \"arguments\": {}}]</tool_calls>",
            "[why]#0add{}#",
        ),
        (
            Nemotron,
            None,
            "<TOOLCALL>[{\"name\": \"nope\", \"arguments\": {}}]</TOOLCALL>",
            "<TOOLCALL>[{\"name\": \"nope\", \"arguments\": {}}]</TOOLCALL>",
        ),
        (
            Lfm2,
            None,
            "So: <|tool_call_start|>[weather(city='K\\'<|tool_call_end|>', days=3, any={'a': [True, None, -1.5]}), add()]<|tool_call_end|>",
            "So:#0weather{\"city\":\"K'<|tool_call_end|>\",\"days\":3,\"any\":{\"a\":[true,null,-1.5]}}##1add{}#",
        ),
        (
            Lfm2,
            None,
            "<|tool_call_start|>[{\"name\": \"add\", \"arguments\": {\"days\": 1}}]<|tool_call_end|>",
            "#0add{\"days\":1}#",
        ),
        (
            Lfm2,
            None,
            "<|tool_call_start|>[add(days=)]<|tool_call_end|>",
            "<|tool_call_start|>[add(days=)]<|tool_call_end|>",
        ),
        (
            Hermes,
            Some(0),
            "<think>a</think>So:\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"K\\\"}öln\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>",
            "[a]So:#0weather{\"city\": \"K\\\"}öln\"}##1add{}#",
        ),
        (
            Hermes,
            None,
            "<tool_call>{\"arguments\": {\"days\": 3}, \"name\": \"add\"}</tool_call>bye",
            "#0add{\"days\": 3}#bye",
        ),
        (
            Hermes,
            None,
            "<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"days\\\": 3}\"}</tool_call>",
            "#0add{\"days\": 3}#",
        ),
        (
            Hermes,
            None,
            "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>",
        ),
        (
            Hermes,
            None,
            "<tool_call>{\"name\": \"add\"",
            "<tool_call>{\"name\": \"add\"",
        ),
        (
            Hermes,
            None,
            "<tool_call>no json</tool_call>",
            "<tool_call>no json</tool_call>",
        ),
        // A reply that breaks off: the beginning of its call is returned.
        (
            Hermes,
            None,
            "<tool_call>{\"name\": \"add\", \"arguments\": {\"days\": 1",
            "#0add{\"days\": 1",
        ),
        (
            Qwen3Coder,
            Some(0),
            "<tool_call>\n<function=weather>\n<parameter=city>\nNew\nYork\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            "#0weather{\"city\": \"New\\nYork\", \"days\": 3}#",
        ),
        (
            Qwen3Coder,
            None,
            "x<function=add>\n</function>y",
            "x#0add{}#y",
        ),
        (
            Qwen3Coder,
            None,
            "<function=nope><parameter=a>1</parameter></function>",
            "<function=nope><parameter=a>1</parameter></function>",
        ),
        (
            Glm,
            Some(0),
            "<think></think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>3</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
            "#0weather{\"city\": \"3\", \"days\": 3}#",
        ),
        (
            Llama3,
            None,
            "{\"name\": \"add\", \"parameters\": {\"days\": 1}}; {\"name\": \"add\", \"parameters\": {}}",
            "#0add{\"days\": 1}##1add{}#",
        ),
        (
            Llama3,
            None,
            "<|python_tag|>{\"type\": \"function\", \"name\": \"add\", \"parameters\": {\"days\": 1}}",
            "#0add{\"days\": 1}#",
        ),
        (Llama3, None, "{\"answer\": 42}", "{\"answer\": 42}"),
        (
            Llama3,
            None,
            "text {\"name\": \"add\", \"parameters\": {}}",
            "text {\"name\": \"add\", \"parameters\": {}}",
        ),
        (
            Mistral,
            Some(1),
            "[THINK]hm[/THINK]ok[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"days\": 1}}, {\"name\": \"weather\", \"arguments\": {}}]",
            "[hm]ok#0add{\"days\": 1}##1weather{}#",
        ),
        (
            MistralArgs,
            None,
            "[TOOL_CALLS]add[ARGS]{\"days\": 1}[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{}",
            "#0add{\"days\": 1}##1weather{}#",
        ),
        (
            Mistral,
            None,
            "[TOOL_CALLS]nope[ARGS]{}",
            "[TOOL_CALLS]nope[ARGS]{}",
        ),
        (
            Gemma4,
            Some(2),
            "<|channel>thought\nhm<channel|><|tool_call>call:weather{city:<|\"|>Köln<|\"|>,days:2}<tool_call|>",
            "[hm]#0weather{\"city\": \"Köln\", \"days\": 2}#",
        ),
        (
            Gemma4,
            None,
            "<|tool_call>call:nope{}<tool_call|>",
            "<|tool_call>call:nope{}<tool_call|>",
        ),
        (
            FunctionGemma,
            None,
            "<start_function_call>call:add{days:2}<end_function_call>",
            "#0add{\"days\": 2}#",
        ),
        (
            DeepSeek,
            Some(0),
            "</think>hi<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"days\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"a\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "</think>hi#0add{\"days\": 1}##1weather{\"city\": \"a\"}#",
        ),
        (
            Harmony,
            None,
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"days\": 1}<|call|>",
            "[hm]#0add{\"days\": 1}#",
        ),
        (
            Harmony,
            None,
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>hello",
            "[hm]hello",
        ),
        (Harmony, None, "plain", "plain"),
        // Malformed JSON, or JSON that is not an object: the whole text is content.
        (
            Hermes,
            None,
            "<tool_call>{\"name\": \"add\", \"arguments\": {\"days\": }}</tool_call>",
            "<tool_call>{\"name\": \"add\", \"arguments\": {\"days\": }}</tool_call>",
        ),
        (
            Hermes,
            None,
            "<tool_call>{\"name\": \"add\", \"arguments\": [1]}</tool_call>",
            "<tool_call>{\"name\": \"add\", \"arguments\": [1]}</tool_call>",
        ),
        (
            Hermes,
            None,
            "<tool_call>{\"name\": \"add\"}</tool_call>",
            "#0add{}#",
        ),
        (
            Hermes,
            None,
            "<tool_call>{\"name\": \"add\", \"arguments\": null}</tool_call>",
            "#0add{}#",
        ),
        (
            Hermes,
            None,
            "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"add\", \"arguments\": {}}, \"id\": 7}</tool_call>",
            "#0add{}#",
        ),
        // A missing closing mark, and a call after one that is malformed.
        (
            Hermes,
            None,
            "<tool_call>{\"name\": \"add\", \"arguments\": {}}<tool_call>{\"name\": \"add\", \"arguments\": {}}",
            "#0add{}##1add{}#",
        ),
        (
            Hermes,
            None,
            "<tool_call>{\"name\": <tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\":#0add{}#",
        ),
        (
            Hermes,
            None,
            "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_ca",
            "#0add{}#",
        ),
        (
            Hermes,
            None,
            "a <tool_call>[{\"name\": \"add\"}]</tool_call>\n\nb",
            "a#0add{}# \n\nb",
        ),
        (
            Hermes,
            Some(0),
            "<think>a <tool_call> b",
            "[a <tool_call> b]",
        ),
        (
            Hermes,
            Some(0),
            "<think>\n\n</think>\n\nx <think>y</think>",
            "x <think>y</think>",
        ),
        (
            Qwen3Coder,
            None,
            "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>",
            "#0add{}#",
        ),
        (
            Qwen3Coder,
            None,
            "<tool_call>\n<function=weather>\n<parameter=city>\n\n a < b\n\n</parameter>\n<parameter=deep>\n{\"a\": [1]}\n</parameter>\n<parameter=new>\n5\n</parameter>\n</function>\n<function=add>\n</function>\n</tool_call>",
            "#0weather{\"city\": \"\\n a < b\\n\", \"deep\": {\"a\":[1]}, \"new\": \"5\"}##1add{}#",
        ),
        (
            Qwen3Coder,
            None,
            "<function=weather>\n<parameter=city>\nnull\n</parameter>\n<parameter=days>\nsoon\n</parameter>\n</function>",
            "#0weather{\"city\": null, \"days\": \"soon\"}#",
        ),
        (
            Qwen3Coder,
            None,
            "<function=weather>\n<parameter=city>\nNu",
            "#0weather{\"city\": ",
        ),
        (Qwen3Coder, None, "<function=add>\n", "<function=add>\n"),
        (
            MiniMax,
            Some(0),
            "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Köln</parameter>\n</invoke>\n<invoke name=\"add\">\n<parameter name=\"days\">2</parameter>\n</invoke>\n</minimax:tool_call>",
            "#0weather{\"city\": \"Köln\"}##1add{\"days\": 2}#",
        ),
        (Glm, None, "<tool_call>add</tool_call>", "#0add{}#"),
        (
            Glm,
            None,
            "<tool_call>nope\n</tool_call>",
            "<tool_call>nope\n</tool_call>",
        ),
        (
            Llama3,
            None,
            "{\"name\": \"no\", \"parameters\": {}}",
            "{\"name\": \"no\", \"parameters\": {}}",
        ),
        (
            Llama3,
            None,
            "<|python_tag|>print(1)",
            "<|python_tag|>print(1)",
        ),
        (
            Mistral,
            None,
            "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {}}, {\"name\": 3}]",
            "#0add{}#, {\"name\": 3}]",
        ),
        (
            Gemma4,
            None,
            "<|tool_call>call:add{deep:{l:[1,<|\"|>x\"y\n<|\"|>,true,[]],<|\"|>a:b<|\"|>:null,o:{}},city:\"q\",days:-2.5}<tool_call|><|tool_call>call:add{}<tool_call|>",
            "#0add{\"deep\": {\"l\": [1, \"x\\\"y\\n\", true, []], \"a:b\": null, \"o\": {}}, \"city\": \"q\", \"days\": -2.5}##1add{}#",
        ),
        (
            Gemma4,
            None,
            "<|tool_call>call:add{city:Bad Ems}<tool_call|>",
            "#0add{\"city\": \"Bad Ems\"}#",
        ),
        (
            Gemma4,
            None,
            "<|tool_call>call:add{city:]}<tool_call|>",
            "<|tool_call>call:add{city:]}<tool_call|>",
        ),
        (
            Gemma4,
            Some(2),
            "a<|channel>thought\nb\n<channel|>c",
            "a[b]c",
        ),
        (
            FunctionGemma,
            None,
            "<start_function_call>call:weather{city:<escape>a,b}<escape>}<end_function_call><start_function_call>call:add{}<end_function_call>",
            "#0weather{\"city\": \"a,b}\"}##1add{}#",
        ),
        (
            Kimi,
            Some(0),
            "ok<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{\"days\": 1}<|tool_call_end|><|tool_calls_section_end|>",
            "ok#0add{\"days\": 1}#",
        ),
        (
            Harmony,
            None,
            "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant to=functions.add<|channel|>commentary json<|message|>{\"days\": 1",
            "Let me see.#0add{\"days\": 1",
        ),
        (
            Harmony,
            None,
            "<|channel|>commentary to=functions.nope <|constrain|>json<|message|>{\"days\": 1}<|call|>",
            "{\"days\": 1}",
        ),
        (
            Harmony,
            None,
            "<|channel|>commentary to=functions.add<|message|>{days}",
            "{days}",
        ),
    ]);
    cases
}
