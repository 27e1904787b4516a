"""Host side: the demo's chat template, in Jinja.

Turns are `<|im_start|>role`, a line end, the content, `<|im_end|>`, a line end. Only the first message may be `system`.
Thinking is on unless `enable_thinking` is false; `reasoning_effort` is low, medium or xhigh; `preserve_thinking` false
drops the thinking of what was answered before the last question.
"""

CHAT_TEMPLATE = r"""
{%- set thinking = enable_thinking if enable_thinking is defined and enable_thinking is not none else true %}
{%- set keep_thinking = true %}
{%- if preserve_thinking is defined and preserve_thinking is not none %}
    {%- set keep_thinking = preserve_thinking %}
{%- endif %}
{%- set effort = reasoning_effort if reasoning_effort is defined and reasoning_effort is not none else 'xhigh' %}
{%- if effort not in ['low', 'medium', 'xhigh'] %}
    {{- raise_exception("reasoning_effort must be low, medium or xhigh, not " ~ effort) }}
{%- endif %}
{%- if not messages %}
    {{- raise_exception("the conversation holds no message") }}
{%- endif %}

{%- macro as_text(content) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content is none or content is undefined %}
    {%- elif content is iterable and content is not mapping %}
        {%- for part in content %}
            {%- if part is string %}
                {{- part }}
            {%- elif part is mapping and 'text' in part %}
                {{- part.text }}
            {%- else %}
                {%- set kind = part.type if part is mapping else part %}
                {{- raise_exception("only text can be read in a message, not " ~ kind) }}
            {%- endif %}
        {%- endfor %}
    {%- else %}
        {{- raise_exception("the content of a message must be text or a list of parts") }}
    {%- endif %}
{%- endmacro %}

{%- set first = namespace(text='', sections=[]) %}
{%- if messages[0].role == 'system' %}
    {%- set first.text = as_text(messages[0].content) | trim %}
{%- endif %}
{%- if thinking and effort == 'low' %}
    {%- set first.sections = first.sections + ['Keep your thinking short, and answer as soon as you can.'] %}
{%- elif thinking and effort == 'xhigh' %}
    {%- set first.sections = first.sections
        + ['Think as long as the question needs, and check your answer before you give it.'] %}
{%- endif %}
{%- if first.text %}
    {%- set first.sections = first.sections + [first.text] %}
{%- endif %}
{%- if tools %}
    {%- set listed = namespace(text='You may call these tools, described by one JSON object a line:\n<tools>') %}
    {%- for tool in tools %}
        {%- set listed.text = listed.text ~ '\n' ~ (tool | tojson) %}
    {%- endfor %}
    {%- set listed.text = listed.text ~ '\n</tools>\n\n'
        ~ 'To call one, write this, with one parameter element for each argument, and nothing after it:\n'
        ~ '<tool_call>\n<function=NAME>\n<parameter=ARGUMENT>\nVALUE\n</parameter>\n</function>\n</tool_call>' %}
    {%- set first.sections = first.sections + [listed.text] %}
{%- endif %}
{%- if first.sections %}
    {{- '<|im_start|>system\n' ~ (first.sections | join('\n\n')) ~ '<|im_end|>\n' }}
{%- endif %}

{%- set asked = namespace(question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set asked.question = loop.index0 %}
    {%- endif %}
{%- endfor %}

{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}
            {{- raise_exception("a system message must be the first message") }}
        {%- endif %}
    {%- elif message.role == 'user' %}
        {{- '<|im_start|>user\n' ~ as_text(message.content) ~ '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set turn = namespace(text=as_text(message.content), thought='') %}
        {%- if message.reasoning_content is string %}
            {%- set turn.thought = message.reasoning_content | trim %}
        {%- elif '</think>' in turn.text %}
            {%- set turn.thought = (turn.text.split('</think>')[0].split('<think>') | last) | trim %}
            {%- set turn.text = turn.text.split('</think>')[1:] | join('</think>') %}
        {%- endif %}
        {%- set turn.text = turn.text | trim %}
        {{- '<|im_start|>assistant\n' }}
        {%- if keep_thinking or loop.index0 > asked.question %}
            {{- '<think>\n' ~ turn.thought ~ '\n</think>\n\n' }}
        {%- endif %}
        {{- turn.text }}
        {%- for call in message.tool_calls or [] %}
            {%- set function = call.function if call.function is defined else call %}
            {%- if turn.text and loop.first %}
                {{- '\n\n' }}
            {%- elif not loop.first %}
                {{- '\n' }}
            {%- endif %}
            {{- '<tool_call>\n<function=' ~ function.name ~ '>\n' }}
            {%- if function.arguments is mapping %}
                {%- for name, value in function.arguments.items() %}
                    {%- set shown = value if value is string else value | tojson %}
                    {{- '<parameter=' ~ name ~ '>\n' ~ shown ~ '\n</parameter>\n' }}
                {%- endfor %}
            {%- elif function.arguments %}
                {{- raise_exception("the arguments of a tool call must be an object") }}
            {%- endif %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' ~ as_text(message.content) ~ '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- else %}
        {{- raise_exception("unknown role " ~ message.role) }}
    {%- endif %}
{%- endfor %}

{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n<think>\n' }}
    {%- if not thinking %}
        {{- '\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
""".lstrip()
