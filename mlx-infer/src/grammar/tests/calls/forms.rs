//! Calls in the forms of all families.

/// Marks of a template, a call of `weather`, and two calls of `now` (empty: not tested).
pub(super) const FORMS: [(&str, &str, &str); 22] = [
    (
        "<tool_call>",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
    ),
    (
        "<|python_tag|>",
        "{\"name\": \"weather\", \"parameters\": {\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}}",
        "{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}}",
    ),
    (
        "<|python_start|>",
        "{\"name\": \"weather\", \"parameters\": {\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}}",
        "{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}}",
    ),
    (
        "<|tools_prefix|>",
        "<|tools_prefix|>[{\"weather\": {\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}}]<|tools_suffix|>",
        "<|tools_prefix|>[{\"now\": {}}, {\"now\": {}}]<|tools_suffix|>",
    ),
    (
        "<｜DSML｜",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Ulm</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n<｜DSML｜parameter name=\"unit\" string=\"true\">C</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
    (
        "[TOOL_CALLS]",
        "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}}]",
        "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": {}}]",
    ),
    (
        "[TOOL_CALLS] [ARGS]",
        "[TOOL_CALLS]weather[ARGS]{\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}",
        "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}",
    ),
    (
        "<｜tool▁call▁begin｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "<｜tool▁call▁begin｜> ```json",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
    ),
    (
        "<|tool_call_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}<|tool_call_end|><|tool_calls_section_end|>",
        "",
    ),
    (
        "<|tool_call>",
        "<|tool_call>call:weather{city:<|\"|>Ulm<|\"|>,days:3,unit:<|\"|>C<|\"|>}<tool_call|>",
        "<|tool_call>call:now{}<tool_call|><|tool_call>call:now{}<tool_call|>",
    ),
    (
        "<start_function_call>",
        "<start_function_call>call:weather{city:<escape>Ulm<escape>,days:3,unit:<escape>C<escape>}<end_function_call>",
        "",
    ),
    (
        "<tool_call> <function=",
        "<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=unit>\nC\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    ),
    (
        "<minimax:tool_call>",
        "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">\nUlm\n</parameter>\n<parameter name=\"days\">\n3\n</parameter>\n<parameter name=\"unit\">\nC\n</parameter>\n</invoke>\n</minimax:tool_call>",
        "",
    ),
    (
        "<arg_key>",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Ulm</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>unit</arg_key>\n<arg_value>C</arg_value>\n</tool_call>",
        "",
    ),
    (
        "<|tool_call|>",
        "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}}]",
        "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": {}}]",
    ),
    (
        "<tool_calls>",
        "<tool_calls>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}}]</tool_calls>",
        "<tool_calls>[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": {}}]</tool_calls>",
    ),
    (
        "<TOOLCALL>",
        "<TOOLCALL>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}}]</TOOLCALL>",
        "<TOOLCALL>[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": {}}]</TOOLCALL>",
    ),
    (
        "<|tool_call_start|>",
        "<|tool_call_start|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}}]<|tool_call_end|>",
        "<|tool_call_start|>[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": {}}]<|tool_call_end|>",
    ),
    (
        "<function_calls>",
        "<function_calls>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}}]</function_calls>",
        "<function_calls>[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": {}}]</function_calls>",
    ),
    (
        "<|START_ACTION|>",
        "<|START_ACTION|>[{\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}}]<|END_ACTION|>",
        "<|START_ACTION|>[{\"tool_call_id\": \"0\", \"tool_name\": \"now\", \"parameters\": {}}, {\"tool_call_id\": \"0\", \"tool_name\": \"now\", \"parameters\": {}}]<|END_ACTION|>",
    ),
    (
        "<seed:tool_call>",
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Ulm</parameter>\n<parameter=days>3</parameter>\n<parameter=unit>C</parameter>\n</function>\n</seed:tool_call>",
        "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
    ),
];
