//! Replies of Kimi K3, LongCat, IQuest, Hunyuan 3, Step 3, Muse, dots, MiniCPM 5, InternLM, GigaChat and DeepSeek V4.

use super::super::super::ToolFormat;
use super::Case;

pub(super) fn cases() -> Vec<Case> {
    use ToolFormat::*;
    vec![
        (
            KimiK3,
            Some(6),
            "<|open|>think<|sep|>hm<|close|>think<|sep|><|open|>response<|sep|>So:<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>3<|close|>argument<|sep|><|open|>argument key=\"days\" type=\"number\"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool=\"add\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
            "[hm]So:#0weather{\"city\": \"3\", \"days\": 3}##1add{}#",
        ),
        (
            KimiK3,
            Some(6),
            "<|open|>response<|sep|>a < b<|close|>response<|sep|><|close|>message<|sep|>",
            "a < b",
        ),
        // A call without the mark that ends reasoning.
        (
            KimiK3,
            Some(6),
            "<|open|>think<|sep|>hm<|open|>tools<|sep|><|open|>call tool=\"add\" index=\"1\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
            "[hm]#0add{}#",
        ),
        (
            Kimi,
            Some(0),
            "<think>hm<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
            "[hm]#0add{}#",
        ),
        (
            Hermes,
            Some(0),
            "<think>I call.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>\nThen I go on.</think>So.",
            "[I call.]#0add{}#[Then I go on.]So.",
        ),
        (
            Hermes,
            Some(0),
            "<think>One writes <tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>.\n<tool_call> {\"name\": \"nope\"}</tool_call></think>So.",
            "[One writes <tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>.\n<tool_call> {\"name\": \"nope\"}</tool_call>]So.",
        ),
        (
            Qwen3Coder,
            Some(0),
            "<think>hm\n<tool_call>\n<function=add>\n</function>\n</tool_call>",
            "[hm]#0add{}#",
        ),
        (
            Command,
            Some(4),
            "<|START_THINKING|>hm<|END_THINKING|><|START_TEXT|>Four.<|END_TEXT|>",
            "[hm]Four.",
        ),
        (
            LongCat,
            Some(7),
            "<longcat_think>hm</longcat_think>So:<longcat_tool_call>weather\n<longcat_arg_key>city</longcat_arg_key>\n<longcat_arg_value>Bern</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n<longcat_arg_value>3</longcat_arg_value>\n</longcat_tool_call>",
            "[hm]So:#0weather{\"city\": \"Bern\", \"days\": 3}#",
        ),
        (
            LongCat,
            None,
            "<longcat_tool_call>{\"name\": \"add\", \"arguments\": {\"days\": 1}}</longcat_tool_call>",
            "#0add{\"days\": 1}#",
        ),
        (
            IQuest,
            None,
            "<iquest_tool_call>add<arg_key>days</arg_key><arg_value>1</arg_value></iquest_tool_call><iquest_tool_call>add</iquest_tool_call>",
            "#0add{\"days\": 1}##1add{}#",
        ),
        (
            HunyuanTags,
            Some(0),
            "<think>hm</think>So:\n<tool_calls>\n<tool_call>weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n</tool_call>\n<tool_call>add<tool_sep>\n</tool_call>\n</tool_calls>",
            "[hm]So:#0weather{\"city\": \"Bern\"}##1add{}#",
        ),
        (
            HunyuanOpen,
            Some(8),
            "<think:opensource>hm</think:opensource><tool_calls:opensource>\n<tool_call:opensource>add<tool_sep:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>1</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
            "[hm]#0add{\"days\": 1}#",
        ),
        (
            Step3,
            Some(0),
            "<think>hm</think>So:<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"weather\">\n<steptml:parameter name=\"city\">Bern</steptml:parameter>\n<steptml:parameter name=\"days\">3</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>",
            "[hm]So:#0weather{\"city\": \"Bern\", \"days\": 3}#",
        ),
        (
            Atem,
            Some(10),
            "<|start|>assistant to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>So:<|eom|><|start|>assistant to=functions.add<|message|><atem:function_calls>\n<atem:invoke name=\"add\">\n<atem:parameter name=\"days\">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>",
            "[hm]So:#0add{\"days\": 1}#",
        ),
        (
            Atem,
            Some(10),
            "a <|start|>assistant to=me and <|eot|>b",
            "a  to=me and b",
        ),
        (
            Atem,
            None,
            "So:<atem:function_calls>\n<atem:invoke name=\"weather\">\n<atem:parameter name=\"city\">Bern</atem:parameter>\n<atem:parameter name=\"any\">[1]</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
            "So:#0weather{\"city\": \"Bern\", \"any\": [1]}#",
        ),
        (
            Dots,
            None,
            "<dots_function_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Bern</parameter>\n</invoke>\n<invoke name=\"add\">\n</invoke>\n</dots_function_call>",
            "#0weather{\"city\": \"Bern\"}##1add{}#",
        ),
        (
            Dots,
            None,
            "<dots_function_call>{\"name\": \"add\", \"arguments\": {\"days\": 1}}</dots_function_call>",
            "#0add{\"days\": 1}#",
        ),
        (
            MiniCpm5,
            None,
            "So:\n<function name=\"weather\"><param name=\"city\">Bern</param><param name=\"days\">3</param></function>\n<function name=\"weather\"><param name=\"city\"><![CDATA[a\n</param> b]]></param></function>",
            "So:#0weather{\"city\": \"Bern\", \"days\": 3}##1weather{\"city\": \"a\\n</param> b\"}#",
        ),
        (
            MiniCpm5,
            None,
            "<function name='add'><param name='city'></param></function>",
            "#0add{\"city\": \"\"}#",
        ),
        (
            MiniCpm5,
            None,
            "<function name=\"nope\"></function>",
            "<function name=\"nope\"></function>",
        ),
        (
            InternLm,
            None,
            "So:<|action_start|> <|plugin|>\n{\"name\": \"add\", \"parameters\": {\"days\": 1}}<|action_end|>",
            "So:#0add{\"days\": 1}#",
        ),
        (
            GigaChat,
            None,
            "So:<|function_call|>{\"name\": \"add\", \"arguments\": {\"days\": 1}}",
            "So:#0add{\"days\": 1}#",
        ),
        (
            GigaChat,
            None,
            "function call<|role_sep|>\n{\"name\": \"add\", \"arguments\": {}}",
            "#0add{}#",
        ),
        (
            Gcml,
            None,
            "So:\n<｜GCML｜tool_calls>\n<｜GCML｜invoke name=\"weather\">\n<｜GCML｜parameter name=\"city\" string=\"true\">3</｜GCML｜parameter>\n<｜GCML｜parameter name=\"days\" string=\"false\">3</｜GCML｜parameter>\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>",
            "So:#0weather{\"city\": \"3\", \"days\": 3}#",
        ),
        (
            DsmlCalls,
            Some(0),
            "<think>hm</think>So:<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"add\">\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
            "[hm]So:#0add{\"days\": 3}#",
        ),
        // A repository with a program instead of a template: the form of V3.2 reads the later ones too.
        (
            Dsml,
            None,
            "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"add\">\n<｜DSML｜ parameter name=\"days\" string=\"false\">3</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
            "#0add{\"days\": 3}#",
        ),
        (
            Command,
            Some(4),
            "<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Bern\"}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"add\", \"parameters\": {}}\n]<|END_ACTION|>",
            "[hm]#0weather{\"city\": \"Bern\"}##1add{}#",
        ),
    ]
}
