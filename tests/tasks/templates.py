"""Chat templates for the tokenizer of `tiny`, of the kinds that people's models have."""

from __future__ import annotations

from functools import cache

from tests.tasks import tiny

TURN = "'<|' + message.role + '|> '"
PROMPT = "{% if add_generation_prompt %}{{ '<|assistant|> ' }}{% endif %}"

# Every turn ends with a special token
PLAIN = "{% for message in messages %}{{ " + TURN + " + message.content + ' [EOS]' }}{% endfor %}" + PROMPT

# As ChatML: a line break behind each end of turn (the tokenizer has no token for it)
CHATML = "{% for message in messages %}{{ " + TURN + " + message.content + '[EOS]\\n' }}{% endfor %}" + PROMPT

# The same, with what the assistant says marked
MARKED = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content + '[EOS]' }}{% endgeneration %}"
    "{% else %}{{ message.content + '[EOS]' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

# The end of turn is not marked
UNSTOPPED = MARKED.replace("+ '[EOS]' }}{% endgeneration %}", "}}{% endgeneration %}{{ '[EOS]' }}")

# As Qwen3: what was thought (before "when") in earlier turns is left out
REWRITING = (
    "{% for message in messages %}{{ " + TURN + " }}"
    "{% if message.role == 'assistant' and not loop.last %}{{ message.content.split('when')[-1] }}"
    "{% else %}{{ message.content }}{% endif %}{{ ' [EOS]' }}{% endfor %}" + PROMPT
)
REWRITING_MARKED = (
    "{% for message in messages %}{{ " + TURN + " }}"
    "{% if message.role != 'assistant' %}{{ message.content + ' [EOS]' }}"
    "{% elif loop.last %}{% generation %}{{ message.content + ' [EOS]' }}{% endgeneration %}"
    "{% else %}{% generation %}{{ message.content.split('when')[-1] | trim + ' [EOS]' }}{% endgeneration %}{% endif %}"
    "{% endfor %}" + PROMPT
)

# A system prompt of its own where the chat has none, as Qwen2.5
DEFAULT = "{% if messages[0].role != 'system' %}{{ '<|system|> thanks [EOS]' }}{% endif %}" + PLAIN

# With tools
TOOLS = (
    "{% if tools %}{{ '<|system|> tool : ' + tools | length | string + ' [EOS]' }}{% endif %}"
    "{% for message in messages %}{{ " + TURN + " }}{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}{{ ' tool ' + call.function.name }}{% endfor %}"
    "{{ ' [EOS]' }}{% endfor %}" + PROMPT
)


@cache
def tokenizer(template=PLAIN):
    """A copy of the tiny tokenizer with a chat template."""
    import copy

    made = copy.deepcopy(tiny.tokenizer())
    made.chat_template = template
    return made


def chat(*contents, system=None):
    """Messages of user and assistant in turns."""
    roles = ("user", "assistant")
    made = [{"role": roles[at % 2], "content": content} for at, content in enumerate(contents)]
    return ([{"role": "system", "content": system}] if system else []) + made
