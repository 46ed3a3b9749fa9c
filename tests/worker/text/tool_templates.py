"""Small chat templates that show tools with the markers of the families' published ones."""

HERMES = """\
{%- if tools %}
<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}
# Tools
<tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools><|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role == 'assistant' %}
<|im_start|>assistant
{% if message.content %}{{ message.content }}{% endif %}
{% for call in message.tool_calls %}

<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{% endfor %}
<|im_end|>
{% elif message.role != 'system' or not tools %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}
"""

LLAMA = """\
{{- bos_token }}
{%- for message in messages %}
{%- if 'tool_calls' in message %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('single calls only') }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{{- '{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}
{{- '}<|eot_id|>' }}
{%- elif message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}{{ message.content | tojson }}
{{- '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
{%- if loop.first and tools %}{% for tool in tools %}{{ tool | tojson(indent=4) }}
{% endfor %}{% endif %}
{{- message.content + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if loop.last and tools is not none %}
{{- '[AVAILABLE_TOOLS] [' }}
{%- for tool in tools %}
{{- '{"type": "function", "function": {' }}
{%- for key, value in tool.function.items() %}
{{- '"' + key + '": ' }}{{ value | tojson }}{{ ', ' if not loop.last }}
{%- endfor %}
{{- '}}' }}{{ ', ' if not loop.last }}
{%- endfor %}
{{- '][/AVAILABLE_TOOLS]' }}
{%- endif %}
{{- '[INST] ' + message.content + '[/INST]' }}
{%- elif message.role == 'tool' %}
{%- if message.tool_call_id | length != 9 %}
{{- raise_exception('ids have 9 characters') }}
{%- endif %}
{{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', "call_id": "' }}
{{- message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- elif message.tool_calls is defined and message.tool_calls is not none %}
{{- '[TOOL_CALLS] [' }}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}
{%- set text = call.function | tojson %}
{{- text[:-1] + ', "id": "' + call.id + '"}' }}{{ ', ' if not loop.last }}
{%- endfor %}
{{- ']' + eos_token }}
{%- elif message.role == 'system' %}
{{- raise_exception('no system turns') }}
{%- else %}
{{- ' ' + message.content + eos_token }}
{%- endif %}
{%- endfor %}
"""

_BEFORE_CALLS, _, _LISTED = MISTRAL.partition("{{- '[TOOL_CALLS] ['")
_, _, _BEHIND_CALLS = _LISTED.partition("']' + eos_token }}")
NEWER_MISTRAL = f"""\
{_BEFORE_CALLS}
{{%- for call in message.tool_calls %}}
{{{{- '[TOOL_CALLS]' + call.function.name + '[CALL_ID]' + call.id + '[ARGS]' }}}}
{{{{- call.function.arguments | tojson }}}}
{{%- endfor %}}
{{{{- eos_token }}}}
{_BEHIND_CALLS}"""

# As models were made before they knew tools: what a turn is not shown is lost.
PLAIN = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] }}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
WITHOUT_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system turns') }}{% endif %}"
    + PLAIN
)
DEAF_TO_SYSTEM = (
    "{% for m in messages if m.role != 'system' %}{{ m.role + ': ' + m.content + '\\n' }}"
    "{% endfor %}"
)
