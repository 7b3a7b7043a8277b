//! Calls in the forms of all families.

/// Marks of a template, a call of `weather`, and two calls of `now` (empty: not tested).
pub(super) const FORMS: [(&str, &str, &str); 36] = [
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
    (
        "<｜DSML｜tool_calls>",
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Ulm</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n<｜DSML｜parameter name=\"unit\" string=\"true\">C</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ),
    (
        "<｜DSML｜ calls>",
        "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"weather\">\n<｜DSML｜ parameter name=\"city\" string=\"true\">Ulm</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"days\" string=\"false\">3</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"unit\" string=\"true\">C</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
        "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"now\">\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"now\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
    ),
    (
        "<｜GCML｜tool_calls>",
        "<｜GCML｜tool_calls>\n<｜GCML｜invoke name=\"weather\">\n<｜GCML｜parameter name=\"city\" string=\"true\">Ulm</｜GCML｜parameter>\n<｜GCML｜parameter name=\"days\" string=\"false\">3</｜GCML｜parameter>\n<｜GCML｜parameter name=\"unit\" string=\"true\">C</｜GCML｜parameter>\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>",
        "<｜GCML｜tool_calls>\n<｜GCML｜invoke name=\"now\">\n</｜GCML｜invoke>\n<｜GCML｜invoke name=\"now\">\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>",
    ),
    (
        "<|function_call|>",
        "<|function_call|>{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}}",
        "",
    ),
    (
        "<|open|> <|close|> <|sep|>",
        "<|open|>tools<|sep|><|open|>call tool=\"weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>Ulm<|close|>argument<|sep|><|open|>argument key=\"days\" type=\"integer\"<|sep|>3<|close|>argument<|sep|><|open|>argument key=\"unit\" type=\"string\"<|sep|>C<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        "<|open|>tools<|sep|><|open|>call tool=\"now\" index=\"1\"<|sep|><|close|>call<|sep|><|open|>call tool=\"now\" index=\"1\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    (
        "<longcat_tool_call>",
        "<longcat_tool_call>weather\n<longcat_arg_key>city</longcat_arg_key>\n<longcat_arg_value>Ulm</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n<longcat_arg_value>3</longcat_arg_value>\n<longcat_arg_key>unit</longcat_arg_key>\n<longcat_arg_value>C</longcat_arg_value>\n</longcat_tool_call>",
        "<longcat_tool_call>now\n</longcat_tool_call>\n<longcat_tool_call>now\n</longcat_tool_call>",
    ),
    (
        "<iquest_tool_call>",
        "<iquest_tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Ulm</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>unit</arg_key>\n<arg_value>C</arg_value>\n</iquest_tool_call>",
        "<iquest_tool_call>now\n</iquest_tool_call>\n<iquest_tool_call>now\n</iquest_tool_call>",
    ),
    (
        "<tool_sep>",
        "<tool_calls>\n<tool_call>weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Ulm</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>unit</arg_key>\n<arg_value>C</arg_value>\n</tool_call>\n</tool_calls>",
        "<tool_calls>\n<tool_call>now<tool_sep>\n</tool_call>\n<tool_call>now<tool_sep>\n</tool_call>\n</tool_calls>",
    ),
    (
        "<tool_sep:opensource>",
        "<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Ulm</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>3</arg_value:opensource>\n<arg_key:opensource>unit</arg_key:opensource>\n<arg_value:opensource>C</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
        "<tool_calls:opensource>\n<tool_call:opensource>now<tool_sep:opensource>\n</tool_call:opensource>\n<tool_call:opensource>now<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
    ),
    (
        "<steptml:invoke",
        "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"weather\">\n<steptml:parameter name=\"city\">Ulm</steptml:parameter>\n<steptml:parameter name=\"days\">3</steptml:parameter>\n<steptml:parameter name=\"unit\">C</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>",
        "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"now\">\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"now\">\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>",
    ),
    (
        "<atem:function_calls>",
        "<atem:function_calls>\n<atem:invoke name=\"weather\">\n<atem:parameter name=\"city\">Ulm</atem:parameter>\n<atem:parameter name=\"days\">3</atem:parameter>\n<atem:parameter name=\"unit\">C</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
        "<atem:function_calls>\n<atem:invoke name=\"now\">\n</atem:invoke>\n<atem:invoke name=\"now\">\n</atem:invoke>\n</atem:function_calls>",
    ),
    (
        "<dots_function_call>",
        "<dots_function_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Ulm</parameter>\n<parameter name=\"days\">3</parameter>\n<parameter name=\"unit\">C</parameter>\n</invoke>\n</dots_function_call>",
        "<dots_function_call>\n<invoke name=\"now\">\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</dots_function_call>",
    ),
    (
        "<function name= <param name=",
        "<function name=\"weather\"><param name=\"city\">Ulm</param><param name=\"days\">3</param><param name=\"unit\">C</param></function>",
        "<function name=\"now\"></function>\n<function name=\"now\"></function>",
    ),
    (
        "<|action_start|> <|plugin|>",
        "<|action_start|> <|plugin|>\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}}<|action_end|>",
        "<|action_start|> <|plugin|>\n{\"name\": \"now\", \"parameters\": {}}<|action_end|>\n<|action_start|> <|plugin|>\n{\"name\": \"now\", \"parameters\": {}}<|action_end|>",
    ),
];
