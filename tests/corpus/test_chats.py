"""What is learned of chats: by prefixes, by marks, by TRL's own templates; and every chat that is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.tasks import templates
from tests.tasks.templates import chat, tokenizer

from nopad.corpus.chats import Answered, ChatEncoder, fitted
from nopad.corpus.conversations import conversation_of, pair_of
from nopad.errors import LengthError, OptionError, RecordError

TWO = chat("is it ?", "yes", "why ?", "blue when red")
THOUGHT = chat("is it ?", "yes when no", "why ?", "blue when red")


def encoded(template, record, **options):
    """(words, learned words) of each example."""
    made = tokenizer(getattr(templates, template))
    record = record if isinstance(record, dict) else {"messages": record}
    found = ChatEncoder(made, **options)(conversation_of(record, 3), 3)

    def text(ids):
        return " ".join(made.convert_ids_to_tokens(ids))

    return [(text(one.ids), text([i for i, mine in zip(one.ids, one.learned, strict=True) if mine])) for one in found]


@pytest.mark.parametrize("template", ["PLAIN", "CHATML", "MARKED", "DEFAULT", "TOOLS"])
def test_all_turns_of_the_assistant_are_learned_with_their_ends(template):
    ((words, learned),) = encoded(template, TWO)
    first = "<|system|> thanks [EOS] " if template == "DEFAULT" else ""
    assert words == first + (
        "<|user|> is it ? [EOS] <|assistant|> yes [EOS] <|user|> why ? [EOS] <|assistant|> blue when red [EOS]"
    )
    assert learned == "yes [EOS] blue when red [EOS]"
    assert encoded(template, TWO, last_only=True) == [(words, "blue when red [EOS]")]
    assert encoded(template, TWO, rewriting="expand") == [(words, learned)]


@pytest.mark.parametrize("template", ["REWRITING", "REWRITING_MARKED"])
def test_a_template_that_rewrites_earlier_turns_is_found_out(template):
    with pytest.raises(RecordError, match=r"record 3: the chat template rewrites message 1 .* rewriting='expand'"):
        encoded(template, THOUGHT)
    assert encoded(template, THOUGHT, rewriting="expand") == [
        ("<|user|> is it ? [EOS] <|assistant|> yes when no [EOS]", "yes when no [EOS]"),
        (
            "<|user|> is it ? [EOS] <|assistant|> no [EOS] <|user|> why ? [EOS] <|assistant|> blue when red [EOS]",
            "blue when red [EOS]",
        ),
    ]
    ((_, learned),) = encoded(template, THOUGHT, last_only=True)
    assert learned == "blue when red [EOS]"
    # A last turn that others follow is rewritten too.
    with pytest.raises(RecordError, match="rewrites message 1"):
        encoded(template, THOUGHT[:3], last_only=True)
    assert encoded(template, chat("is it ?", "yes when no")) == [
        ("<|user|> is it ? [EOS] <|assistant|> yes when no [EOS]", "yes when no [EOS]")
    ]


@pytest.mark.parametrize("template", ["PLAIN", "CHATML", "MARKED", "TOOLS"])
@pytest.mark.parametrize("key", [{"weight": 0}, {"train": False}, {"weight": 0.0, "train": 0}])
def test_messages_that_are_not_to_be_learned(template, key):
    def said(*numbers, **more):
        return [{**one, **key, **more} if at in numbers else one for at, one in enumerate(TWO)]

    ((words, learned),) = encoded(template, TWO)
    assert encoded(template, said(1)) == [(words, "blue when red [EOS]")]
    assert encoded(template, said(3)) == [(words, "yes [EOS]")]
    assert encoded(template, said(0, 2)) == [(words, learned)]  # a user's is not learned anyway
    assert encoded(template, said(1), last_only=True) == [(words, "blue when red [EOS]")]
    filled = [{"weight": None, "train": None, **one} for one in said(1)]  # as tables have them
    assert encoded(template, filled) == [(words, "blue when red [EOS]")]
    ones = [{**one, "weight": 1, "train": True} if one["role"] == "assistant" else one for one in TWO]
    assert encoded(template, ones) == [(words, learned)]
    for given, options in ((said(1, 3), {}), (said(3), {"last_only": True})):
        with pytest.raises(RecordError, match="record 3 has the weight 0, or train false, for all that would be"):
            encoded(template, given, **options)
    assert conversation_of({"messages": said(1)}, 0).messages == TWO  # no template gets the keys


def test_turns_that_are_not_learned_give_no_example():
    silent = [{**one, "weight": 0} if at == 1 else one for at, one in enumerate(THOUGHT)]
    assert encoded("REWRITING", silent, rewriting="expand") == [
        (
            "<|user|> is it ? [EOS] <|assistant|> no [EOS] <|user|> why ? [EOS] <|assistant|> blue when red [EOS]",
            "blue when red [EOS]",
        )
    ]


@pytest.mark.parametrize(
    ("at", "keys", "message"),
    [
        (1, {"weight": 0.5}, r"message 1 of messages has the weight 0.5; a message is learned or not: 0 or 1"),
        (1, {"weight": "0"}, r"has the weight '0'; a message is learned or not"),
        (1, {"weight": 2}, r"has the weight 2;"),
        (0, {"weight": 1}, r"message 0 of messages \(user\) has the weight 1, and only what the assistant says"),
        (2, {"train": True}, r"message 2 of messages \(user\) has the train True"),
        (1, {"weight": 1, "train": False}, r"has weight 1 and train False; remove one of them"),
    ],
)
def test_weights_that_are_none_are_refused(at, keys, message):
    with pytest.raises(RecordError, match=message):
        encoded("PLAIN", [{**one, **keys} if n == at else one for n, one in enumerate(TWO)])


def test_formats_of_chats_are_one():
    wanted = encoded("PLAIN", TWO)
    names = {"user": "human", "assistant": "gpt"}
    shared = [{"from": names[one["role"]], "value": one["content"]} for one in TWO]
    assert encoded("PLAIN", {"conversations": shared}) == wanted
    assert encoded("PLAIN", {"messages": None, "conversations": shared, "source": "x"}) == wanted
    ((words, learned),) = encoded("PLAIN", {"prompt": TWO[:3], "completion": TWO[3:]})
    assert (words, learned) == (wanted[0][0], "blue when red [EOS]")
    bots = [{"role": {"user": "user", "assistant": "bot"}[one["role"]], "content": one["content"]} for one in TWO]
    from nopad.corpus.conversations import roles_of

    made = conversation_of({"messages": bots}, 0, roles_of({"bot": "assistant"}))
    assert made.answers == [1, 3]


@pytest.mark.parametrize("roles", [{"bot": ["assistant"]}, {"bot": {}}, {"bot": None}, {1: "assistant"}, ["bot"]])
def test_roles_that_are_no_names_are_refused(roles):
    from nopad.corpus.conversations import roles_of

    with pytest.raises(OptionError, match="give a dict of a data set's names to assistant, developer, system, tool"):
        roles_of(roles)


def test_prompt_and_completion_as_strings():
    assert encoded("PLAIN", {"prompt": "is it ?", "completion": "yes no"}) == [
        ("[CLS] is it ? yes no [EOS]", "yes no [EOS]")
    ]
    assert encoded("PLAIN", {"prompt": "is it ?", "completion": "yes [EOS]"})[0][1] == "yes [EOS]"
    with pytest.raises(RecordError, match="share a token"):
        encoded("PLAIN", {"prompt": "is it th", "completion": "anks"})


def test_tool_turns_are_never_learned():
    call = {"type": "function", "function": {"name": "river", "arguments": {}}}
    messages = [
        {"role": "user", "content": "who"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "cat"},
        {"role": "assistant", "content": "dog"},
    ]
    for tools in ([call], '[{"name": "river"}]'):
        ((words, learned),) = encoded("TOOLS", {"messages": messages, "tools": tools})
        assert words.startswith("<|system|> tool : 1 [EOS] <|user|> who [EOS] <|assistant|> tool river [EOS] <|tool|>")
        assert learned == "tool river [EOS] dog [EOS]"
    with pytest.raises(RecordError, match="has tools, and the chat template leaves them out"):
        encoded("PLAIN", {"messages": TWO, "tools": [call]})
    for broken in ("[{", "1" * 5000, "[" * 100_000):
        with pytest.raises(RecordError, match="tools are no JSON"):
            encoded("TOOLS", {"messages": TWO, "tools": broken})


BAD = {
    "no assistant": ({"messages": chat("is it ?")}, "has no assistant's turn"),
    "no answer": ({"prompt": TWO[:2], "completion": TWO[2:3]}, "no assistant's turn in its completion"),
    "empty": ({"messages": []}, "messages has no message"),
    "role": ({"messages": [{"role": "narrator", "content": "a"}]}, "message 0 of messages has the role 'narrator'"),
    "no role": ({"messages": [{"content": "a"}]}, "has the role None"),
    "no content": ({"messages": [*TWO, {"role": "user"}]}, r"message 4 of messages \(user\) has no content"),
    "calls": ({"messages": [*TWO, {"role": "assistant", "tool_calls": []}]}, r"\(assistant\) has no content"),
    "parts": ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "has a list as content"),
    "string": ({"messages": "is it ?"}, "messages is a str"),
    "message": ({"messages": ["is it ?"]}, "message 0 of messages is a str"),
    "nothing": ({"text": "a"}, "has text; a chat is 'messages'"),
    "two": ({"messages": TWO, "conversations": TWO}, "which are two chats"),
    "kinds": ({"prompt": "is it", "completion": TWO[1:2]}, "prompt is a str and completion is a list"),
    "half": ({"prompt": "is it"}, "has prompt; a chat is"),
    "no completion": ({"prompt": "is it", "completion": ""}, "completion is empty"),
    "first": ({"messages": TWO[1:]}, "begins with the assistant"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_chat_is_refused(name):
    record, words = BAD[name]
    with pytest.raises(RecordError, match=f"record 3.*{words}"):
        encoded("PLAIN", record)


def test_templates_that_cannot_be_trusted_are_refused():
    made = tokenizer.__wrapped__()
    plain = conversation_of({"messages": TWO}, 0)

    def told(template, match, error=RecordError, given=plain):
        made.chat_template = template
        with pytest.raises(error, match=match):
            ChatEncoder(made)(given, 7)

    told(None, "has no chat template; .* tokenizer.chat_template = ", OptionError)
    told("{{ raise_exception('roles must alternate') }}", "record 7: .*TemplateError: roles must alternate")
    told("{{ messages[0].content + 3 }}", "record 7: the chat template refuses it: TypeError")
    told("{% for", "record 7: the chat template refuses it: TemplateSyntaxError")
    told(templates.UNSTOPPED, "never learn to stop")
    told(templates.PLAIN.replace(" [EOS]", " ."), "never learn to stop")
    # The turn is not what the prompt asked for.
    told(templates.PLAIN.replace("'<|assistant|> '", "'<|assistant|> when '"), "asks for message 1")
    # What was thought is left out, also in the last turn.
    cut = templates.PLAIN.replace("message.content", "message.content.split('when')[-1]")
    told(cut, "does not write all that message 3")
    # A role that the template does not know is left out without a word.
    known = templates.PLAIN.replace("{{ '<|'", "{% if message.role != 'system' %}{{ '<|'", 1)
    system = conversation_of({"messages": chat("is it", "no", system="thanks")}, 7)
    told(known.replace("{% endfor %}", "{% endif %}{% endfor %}"), "leaves out what 'system' says", given=system)
    call = {"type": "function", "function": {"name": "river", "arguments": {}}}
    calls = [*TWO, {"role": "user", "content": "who"}, {"role": "assistant", "content": "a", "tool_calls": [call]}]
    told(templates.PLAIN, "leaves out calls of tools", given=conversation_of({"messages": calls}, 7))
    # transformers marks everything behind a mark whose last character has no token, and nothing if the first has none.
    told(templates.MARKED.replace("'[EOS]' }}{% endgeneration", "'[EOS]\\n' }}{% endgeneration"), "reaches into")
    told(templates.MARKED.replace("generation %}{{ message", "generation %}{{ '\\n' + message"), "marks nothing")


def test_a_template_that_refuses_a_chat_without_its_tools_reads_them():
    """As it reads a message without which it refuses the chat."""
    call = {"type": "function", "function": {"name": "river", "arguments": {}}}
    strict = "{% if not tools %}{{ raise_exception('no tools') }}{% endif %}" + templates.TOOLS
    made = tokenizer.__wrapped__(strict)
    encoder = ChatEncoder(made)
    first, second = (encoder(conversation_of({"messages": TWO, "tools": [call]}, 0), 0) for _ in range(2))
    assert first == second
    assert made.decode(first[0].ids).startswith("<|system|> tool : 1 [EOS]")


def test_what_a_template_leaves_out_is_refused_in_every_chat():
    """Not only in the first one, since bad records may be skipped."""
    call = {"type": "function", "function": {"name": "river", "arguments": {}}}
    encoder = ChatEncoder(tokenizer())
    calls = [*TWO, {"role": "user", "content": "who"}, {"role": "assistant", "content": "a", "tool_calls": [call]}]
    for number in range(3):
        with pytest.raises(RecordError, match=f"record {number} has tools, and the chat template leaves them out"):
            encoder(conversation_of({"messages": TWO, "tools": [call]}, 0), number)
        with pytest.raises(RecordError, match=f"record {number}: the chat template leaves out calls of tools"):
            encoder(conversation_of({"messages": calls}, 0), number)
    silent = ChatEncoder(
        tokenizer.__wrapped__(
            "{% for message in messages if message.role != 'system' %}{{ '<|' + "
            "message.role + '|> ' + message.content + ' [EOS]' }}{% endfor %}" + templates.PROMPT
        )
    )
    for number in range(2):
        with pytest.raises(RecordError, match=f"record {number}: the chat template leaves out what 'system' says"):
            silent(conversation_of({"messages": chat("is it", "no", system="thanks")}, 0), number)


def test_any_end_of_turn():
    made = tokenizer.__wrapped__()
    made.chat_template = templates.PLAIN.replace(" [EOS]", " .")
    (found,) = ChatEncoder(made, end_of_turn="any")(conversation_of({"messages": TWO}, 0), 0)
    ids = [one for one, mine in zip(found.ids, found.learned, strict=True) if mine]
    assert made.decode(ids) == "yes . blue when red ."


def test_options_are_checked():
    with pytest.raises(OptionError, match="rewriting is 'ignore'; it is 'error' or 'expand'"):
        ChatEncoder(tokenizer(), rewriting="ignore")
    with pytest.raises(OptionError, match="end_of_turn is 'no'"):
        ChatEncoder(tokenizer(), end_of_turn="no")
    with pytest.raises(OptionError, match="template has 'max_length', which is no argument of a chat template"):
        ChatEncoder(tokenizer(), options={"max_length": 4})
    with pytest.raises(OptionError, match="template is 'thinking'"):
        ChatEncoder(tokenizer(), options="thinking")
    with pytest.raises(RecordError, match="record 3: chat_template_kwargs has 'continue_final_message'"):
        encoded("PLAIN", {"messages": TWO, "chat_template_kwargs": {"continue_final_message": True}})
    given = {"messages": TWO, "chat_template_kwargs": {"kind": "dog", "other": None}}
    made = tokenizer.__wrapped__("{% if kind %}{{ kind }} {% endif %}" + templates.PLAIN)
    for options, record in (({"kind": "dog"}, {"messages": TWO}), (None, given), ({"kind": "cat"}, given)):
        (found,) = ChatEncoder(made, options=options)(conversation_of(record, 0), 0)
        assert made.decode(found.ids[:1]) == "dog"


def test_what_is_too_long_is_cut_from_the_right_or_dropped():
    given, counts = Answered(ids=[1, 2, 3, 4], learned=[False, False, True, True]), {}
    assert fitted(given, 0, counts, 4, "error") is given
    assert fitted(given, 0, counts, 3, "truncate").labels == [-100, -100, 3]
    assert fitted(given, 0, counts, 2, "truncate") is None
    assert fitted(given, 0, counts, 3, "drop") is None
    assert counts == {"truncated": 1, "dropped": 2}
    with pytest.raises(LengthError, match="record 5 has 4 tokens, and max_length is 3"):
        fitted(given, 5, counts, 3, "error")
    # The first token is not predicted, so it is nothing to learn.
    assert Answered(ids=[1, 2], learned=[True, False]).empty


@pytest.fixture(scope="module")
def byte_tokenizer():
    """A tokenizer of bytes, with the special tokens of published chat templates."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(models.BPE({one: at for at, one in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = (
        "<|im_start|>",
        "<|im_end|>",
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    )
    special += ("<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<think>")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<|begin_of_text|>",
        eos_token="<|endoftext|>",
        additional_special_tokens=list(special),
    )


@pytest.mark.parametrize("name", ["qwen2_5", "llama3", "gemma", "phi3", "qwen3_instruct_2507", "lfm2"])
def test_published_templates_give_what_trls_marked_ones_give(name, byte_tokenizer):
    trl = pytest.importorskip("trl")
    folder = Path(trl.__file__).parent / "chat_templates"
    if not (folder / f"{name}_training.jinja").is_file():
        pytest.skip(f"this version of TRL has no {name}_training.jinja")
    given = conversation_of({"messages": chat("Is it?", "Yes, it is.", "And why?", "Because\n\nof that.")}, 0)
    found = []
    for kind in ("", "_training"):
        byte_tokenizer.chat_template = (folder / f"{name}{kind}.jinja").read_text(encoding="utf-8")
        found.append(ChatEncoder(byte_tokenizer)(given, 0)[0])
    made, marked = found
    wanted = byte_tokenizer.apply_chat_template(
        [dict(one) for one in given.messages], return_assistant_tokens_mask=True, return_dict=True
    )
    assert made.ids == marked.ids == wanted["input_ids"]
    assert marked.learned == [bool(one) for one in wanted["assistant_masks"]]
    # Apart from line breaks around a turn, which some of TRL's templates mark.
    odd = [one for one, a, b in zip(made.ids, made.learned, marked.learned, strict=True) if a != b]
    assert byte_tokenizer.decode(odd).strip() == ""
    assert not any(a and not b for a, b in zip(made.learned, marked.learned, strict=True))


def test_qwen3_drops_what_was_thought(byte_tokenizer):
    trl = pytest.importorskip("trl")
    path = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    byte_tokenizer.chat_template = path.read_text(encoding="utf-8")
    messages = chat("Is it?", "<think>\nHm.\n</think>\n\nYes.", "And why?", "<think>\nOh.\n</think>\n\nSo.")
    given = conversation_of({"messages": messages}, 0)
    with pytest.raises(RecordError, match="rewrites message 1"):
        ChatEncoder(byte_tokenizer)(given, 0)
    found = ChatEncoder(byte_tokenizer, rewriting="expand")(given, 0)
    said = [
        byte_tokenizer.decode([one for one, mine in zip(made.ids, made.learned, strict=True) if mine]) for made in found
    ]
    assert said == ["<think>\nHm.\n</think>\n\nYes.<|im_end|>", "<think>\nOh.\n</think>\n\nSo.<|im_end|>"]
    assert "Hm." not in byte_tokenizer.decode(found[1].ids)


def test_arrays_in_messages_are_lists():
    """Templates ask whether there are calls of tools, and NumPy gives an array no truth value."""
    calls = [{"name": "look", "arguments": {}}, {"name": "add", "arguments": {}}]
    called = {"role": "assistant", "tool_calls": np.array(calls, object)}
    sides = [[{"role": "user", "content": "why"}, called, {"role": "assistant", "content": one}] for one in "ab"]
    assert conversation_of({"messages": np.array(sides[0], object)}, 0).messages[1]["tool_calls"] == calls
    chosen, rejected = pair_of({"chosen": sides[0], "rejected": sides[1]}, 0)
    assert chosen.begin == rejected.begin == 2
