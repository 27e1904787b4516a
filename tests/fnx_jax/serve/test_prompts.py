"""A conversation's text: template helpers, thinking and effort, tools, an open last message."""

from pathlib import Path

import pytest

import checkpoints
from fnx_jax.serve.assets import AssetError, read_text_assets
from fnx_jax.serve.errors import ApiError
from fnx_jax.serve.markup import MARKUP
from fnx_jax.serve.offers import read_offer
from fnx_jax.serve.prompts import Prompt, render_prompt
from fnx_jax.serve.template import ChatTemplate, TemplateError
from fnx_jax.serve.validate import Fields
from tests.fnx_jax.serve.support import TEMPLATE, WEATHER, assets, ids, tokenizer

USER = {"role": "user", "content": "hi"}


def render(**values) -> Prompt:
    fields = Fields({"messages": [USER]} | values)
    return render_prompt(fields, read_offer(fields), assets(), MARKUP, "refuse")


def refusal(**values) -> ApiError:
    with pytest.raises(ApiError) as fault:
        render(**values)
    assert fault.value.status == 400
    return fault.value


def test_json_is_neither_escaped_nor_ascii():
    template = ChatTemplate("{{ messages[0] | tojson }}")
    assert template.render([{"a": "<é & 'b'>"}]) == '{"a": "<é & \'b\'>"}'


def test_template_blocks_are_trimmed_and_loops_controlled():
    source = "  {% for m in messages %}\n  {% if m == 2 %}{% break %}{% endif %}\n{{ m }}\n  {% endfor %}\n"
    assert ChatTemplate(source).render([1, 2, 3]) == "1\n"  # type: ignore[list-item]


def test_template_faults_are_told():
    with pytest.raises(TemplateError, match="chat template"):
        ChatTemplate("{% if %}")
    with pytest.raises(TemplateError, match="no such thing"):
        ChatTemplate("{{ raise_exception('no such thing') }}").render([])
    with pytest.raises(TemplateError):
        ChatTemplate("{{ messages + 1 }}").render([])
    with pytest.raises(TemplateError):
        ChatTemplate("{{ messages.append(1) }}").render([])


def test_the_prompt_leaves_a_think_block_open_or_closed():
    assert render().text == "<|im_start|>user\neffort xhigh\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert render().in_reasoning
    off = render(enable_thinking=False)
    assert off.text.endswith("<think>\n\n</think>\n\n") and not off.in_reasoning
    assert render().ids == tuple(ids(render().text))


@pytest.mark.parametrize(
    ("effort", "shown"),
    [("minimal", "low"), ("low", "low"), ("high", "xhigh"), ("xhigh", "xhigh"), ("max", "xhigh"), ("medium", None)],
)
def test_efforts_are_mapped(effort, shown):
    assert ("effort" in render(reasoning_effort=effort).text) is (shown is not None)
    assert shown is None or f"effort {shown}\n" in render(reasoning_effort=effort).text


def test_effort_none_turns_thinking_off_unless_told_otherwise():
    assert not render(reasoning_effort="none").in_reasoning
    assert render(reasoning_effort="none", enable_thinking=True).in_reasoning


def test_template_arguments_win_over_aliases():
    given = {"enable_thinking": True}
    assert render(enable_thinking=False, chat_template_kwargs=given).in_reasoning
    assert "effort low" in render(reasoning_effort="high", chat_template_kwargs={"reasoning_effort": "low"}).text


def test_the_template_may_refuse():
    fault = refusal(chat_template_kwargs={"reasoning_effort": "huge"})
    assert fault.param == "messages" and "no such effort: huge" in fault.message


def test_conversation_may_not_be_replaced_by_arguments():
    assert refusal(chat_template_kwargs={"messages": []}).param == "chat_template_kwargs.messages"


def test_tools_are_rendered_with_and_without_the_choice_to_call():
    assert '"name": "get_weather"' in render(tools=[WEATHER]).text
    assert render(tools=[WEATHER], tool_choice="none").text == render(tools=[WEATHER]).text


def test_a_spelled_special_token_becomes_it():
    end = tokenizer().id_of("<|endoftext|>")
    assert end in render(messages=[{"role": "user", "content": "a<|endoftext|>b"}]).ids


@pytest.mark.parametrize("last", ["so far ", "so\nfar"])
def test_a_last_message_may_be_continued(last):
    messages = [USER, {"role": "assistant", "content": last}]
    assert render(messages=messages, continue_final_message=True).text.endswith(f"<|im_start|>assistant\n{last}")


def test_continuing_needs_an_assistant_message():
    assert refusal(continue_final_message=True).param == "continue_final_message"
    assert refusal(continue_final_message=True, add_generation_prompt=True).param == "continue_final_message"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [3]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"function": {"name": "a>b"}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "a", "parameters": 3}}]}, "tools[0].function.parameters"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": [WEATHER], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"function": {"name": "get_weather"}}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": 3}, "tool_choice"),
    ],
)
def test_wrong_tools_are_refused_by_name(fields, param):
    assert refusal(**fields).param == param


def write_assets(folder, **files: str) -> None:
    (folder / "tokenizer.json").write_text(tokenizer().raw.to_str())
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_assets_are_read_from_a_folder(tmp_path):
    write_assets(
        tmp_path,
        chat_template__jinja=TEMPLATE,
        generation_config__json='{"eos_token_id": [5, 6], "temperature": 0.5}',
        config__json='{"eos_token_id": 7}',
    )
    read = read_text_assets(tmp_path)
    assert read.eos_token_ids == (5, 6) and read.generation["temperature"] == 0.5
    assert read.template is not None and read.template.source == TEMPLATE


def test_template_and_end_token_may_come_from_the_tokenizer_settings(tmp_path):
    settings = '{"chat_template": "{{ eos_token }}", "eos_token": {"content": "<|im_end|>"}}'
    write_assets(tmp_path, tokenizer_config__json=settings)
    read = read_text_assets(tmp_path)
    assert read.template is not None and read.template.render([]) == "<|im_end|>"
    assert read.eos_token_ids == (tokenizer().id_of("<|im_end|>"),)


def test_missing_and_broken_files_are_named(tmp_path):
    with pytest.raises(AssetError, match=r"tokenizer\.json"):
        read_text_assets(tmp_path)
    write_assets(tmp_path, generation_config__json="{")
    with pytest.raises(AssetError, match=r"generation_config\.json"):
        read_text_assets(tmp_path)


def test_the_embedded_demo_has_its_text_files():
    demo = read_text_assets(Path(checkpoints.__file__).parent / "demo")
    assert demo.template is not None and len(demo.eos_token_ids) == 2
    fields = Fields({"messages": [{"role": "developer", "content": "be brief"}, USER], "tools": [WEATHER]})
    prompt = render_prompt(fields, read_offer(fields), demo, MARKUP, "refuse")
    assert prompt.in_reasoning and demo.tokenizer.decode(prompt.ids) == prompt.text
    assert demo.tokenizer.id_of("</think>") is not None and demo.tokenizer.id_of("<tool_call>") is not None
