//! Replies of OLMo 3, Llama 4, Apertus and DeepSeek V3.2.

use super::super::super::ToolFormat;
use super::Case;

pub(super) fn cases() -> Vec<Case> {
    use ToolFormat::*;
    vec![
        (
            Olmo3,
            None,
            "<function_calls>\nadd(days=1)\nweather(city=\"\\u00fc\")\n</function_calls>",
            "#0add{\"days\":1}##1weather{\"city\":\"ü\"}#",
        ),
        (
            Llama4,
            None,
            "[weather(city=\"[K']\", any=[1, {'a': [2]}]), add()]",
            "#0weather{\"city\":\"[K']\",\"any\":[1,{\"a\":[2]}]}##1add{}#",
        ),
        (Llama4, None, "[1] [add()]", "[1] [add()]"),
        (Llama4, None, "[nope(a=1)]", "[nope(a=1)]"),
        (Llama4, None, "[add(days=1", "[add(days=1"),
        (
            Llama4,
            None,
            "{\"name\": \"add\", \"parameters\": {\"days\": 1}}",
            "#0add{\"days\": 1}#",
        ),
        (
            Llama4,
            None,
            "So: <|python_start|>[{\"name\": \"add\", \"parameters\": {\"days\": 1}}]<|python_end|>",
            "So:#0add{\"days\":1}#",
        ),
        (
            Apertus,
            Some(5),
            "<|inner_prefix|>hm<|inner_suffix|>So:<|tools_prefix|>[{\"weather\": {\"city\": \"Bern\"}}, {\"add\": {}}]<|tools_suffix|>",
            "[hm]So:#0weather{\"city\": \"Bern\"}##1add{}#",
        ),
        (
            Apertus,
            None,
            "<|tools_prefix|>[{\"nope\": {}}]<|tools_suffix|>",
            "<|tools_prefix|>[{\"nope\": {}}]<|tools_suffix|>",
        ),
        (
            Dsml,
            Some(0),
            "</think>Let me see.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">3</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n<｜DSML｜parameter name=\"any\" string=\"true\">null</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"add\">\n<｜DSML｜parameter name=\"any\" string=\"false\">[1, {\"a\": null}]</｜DSML｜parameter>\n<｜DSML｜parameter name=\"city\" string=\"true\"></｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
            "</think>Let me see.#0weather{\"city\": \"3\", \"days\": 3, \"any\": \"null\"}##1add{\"any\": [1,{\"a\":null}], \"city\": \"\"}#",
        ),
    ]
}
