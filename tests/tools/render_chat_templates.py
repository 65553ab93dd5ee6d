#!/usr/bin/env python3
"""Renders the cases of tests/unit/tokenizer/chat_template_test.cc with the published Jinja templates.

usage: render_chat_templates.py FOLDER > tests/data/chat-templates.txt
FOLDER has NAME.jinja, the text under tokenizer.chat_template of a model of that family: the name of the family, or for
variants within one: qwen1.5, qwen2.5 (chatml), llama3.1 (llama3), deepseek3-distill (deepseek3). Needs Debian's
python3-jinja2. Each case is a line "name case" and lines "|text|" of a piece each, in which a line end is written as a
backslash and n, and a backslash twice. The text is "refused" where the template raises.
"""
import pathlib
import sys

from jinja2.sandbox import ImmutableSandboxedEnvironment

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": " Hi there \n"}
ASSISTANT = {"role": "assistant", "content": "<think>\nWell.\n</think>\n\nYes."}
SECOND = {"role": "user", "content": "Why <|im_end|></s>?"}
PIECE_SIZE = 100
CASES = {
    "u": [USER],
    "su": [SYSTEM, USER],
    "uau": [USER, ASSISTANT, SECOND],
    "suau": [SYSTEM, USER, ASSISTANT, SECOND],
    "uu": [USER, SECOND],
}


def refuse(message):
    raise ValueError(message)


def main():
    # As the library that models are published for sets it up.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja")):
        template = environment.from_string(path.read_text(encoding="utf-8"))
        for case, messages in CASES.items():
            try:
                text = template.render(messages=messages, add_generation_prompt=True, bos_token="<s>", eos_token="</s>")
            except ValueError:
                text = "refused"
            text = text.replace("\\", "\\\\").replace("\n", "\\n")
            print(path.stem, case)
            for begin in range(0, len(text), PIECE_SIZE):
                print(f"|{text[begin:begin + PIECE_SIZE]}|")


if __name__ == "__main__":
    main()
