"""Text: unknown words of made-up users, learnt letter by letter, and the likeliest of them."""

import json
import pathlib
import sys

import fedlens

out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "text-run")
out.mkdir(parents=True, exist_ok=True)
words = ["the", "court", "said", "that", "it", "was", "late"]
(out / "known.txt").write_text("".join(f"{word}\n" for word in words))
with (out / "talk.jsonl").open("w") as lines:
    for user in range(80):
        said = [f"{words[(user + at) % 7]} covfefe {words[(2 * user + at) % 7]}" for at in range(4)]
        lines.write(json.dumps({"user": f"user {user}", "text": said}) + "\n")
recipe = fedlens.Recipe.parsed(
    f"""
name = "words"
task = "T3"
[data]
source = "jsonl"
path = {json.dumps(str(out / "talk.jsonl"))}
[text]
vocabulary = {json.dumps(str(out / "known.txt"))}
width = 10
embedding = 8
units = 16
projection = 8
samples = 500
[selections.all]
by = "everyone"
[privacy]
epsilon = 8.0
delta = 1e-5
units = 80
population = 100
rounds = 20
clip = 0.5
minimum_units = 2
[training]
batch = 8
local_steps = 1
local_rate = 0.5
server = {{ kind = "sgd", rate = 1.0, momentum = 0.9 }}
"""
)
run = fedlens.Run.created(recipe, out, address=out / "ledger.sqlite", seed=None, device="cpu", say=print)
run.executed(lambda group, done, rounds, facts: None)
model = fedlens.opened(run.folder / "all" / "model.safetensors")
print(model.likeliest(5, beams=50).guarantee.headline)
print(fedlens.contrast(model.sampled(500, 0), title="unknown words").text())
