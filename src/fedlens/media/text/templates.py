"""The pieces of a recipe to start from that are about text."""

import json
import pathlib
from collections.abc import Mapping

from fedlens.media.protocol import Template

_JSONL = """\
users = "user"                # keys of a line: {"user": "...", "text": ["...", "..."]}
text = "text"
# attributes = ["version"]    # further keys with whole numbers, to select by
"""
_FAULT = """
# [data.bug]                  # a rehearsal: plant a bug of a tokenizer and see whether it would be found
# kind = "concatenated"       # or spaceless, wrong-case, truncated, doubled, mojibake; or package.module:function
# fraction = 0.1
# of = "examples"             # of each user's sentences; or of the "users"
"""
_TEXT = """
[text]
model = "spelling"            # the words outside the vocabulary, letter by letter; or "words": whole sentences
vocabulary = {vocabulary}
{baseline}
# tokenizer = "plain"         # or whitespace, or package.module:function
# width = 16                  # bytes of a word, or words of a sentence
# samples = 20000
"""
_BASELINE = '# baseline = "runs/october/all"  # to compare with'
_TAIL = """\
# rounds = 100                # this and all below is left open
# clip = 0.5                  # or [privacy.adaptive_clip] with start = 0.5
# minimum_units = 20          # with fewer, by a noisy count, no model is trained

# [training]
# batch = 16
# local_steps = 2
# local_rate = 0.5
# server = { kind = "sgd", rate = 2.0, momentum = 0.9 }
"""


def pieces(
    task: str, data: str, *, facts: Mapping[str, int], model: str = "", vocabulary: str = "", baseline: str = ""
) -> Template:
    source = "jsonl" if ".jsonl" in pathlib.Path(data).suffixes else "population"
    earlier = f"baseline = {_quoted(baseline)}" if baseline else _BASELINE
    return Template(
        source=source,
        columns=_JSONL if source == "jsonl" else "",
        fault=_FAULT,
        tables=_TEXT.format(vocabulary=_quoted(vocabulary or "vocabulary.txt"), baseline=earlier),
        tail=_TAIL,
    )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
