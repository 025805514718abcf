"""Made-up users, a vocabulary of twenty words and recipes of text that are carried out in seconds."""

import json

KNOWN = (  # most frequent first
    *("the", "a", "it", "is", "and", "of", "to", "in", "we", "that"),
    *("was", "for", "on", "he", "they", "with", "court", "said", "not", "you"),
)
UNKNOWN = ("lattice", "orbit", "quarry", "walnut", "ember")
RECIPE = """
name = "toy"
task = "T3"
[data]
source = "jsonl"
path = "{data}"
name = "crowd"
{more}
[text]
vocabulary = "{vocabulary}"
width = 10
embedding = 4
units = 6
projection = 4
warm_steps = 2
samples = 200
{text}
{selections}
[privacy]
epsilon = 8.0
delta = 1e-5
rounds = 2
users = 20
population = 60
clip = 0.5
minimum_users = 1
count_noise = 2.0
[training]
batch = 4
local_steps = 2
local_rate = 0.5
"""
ALL = '[selections.all]\nby = "everyone"'
PAIR = """
[selections.new]
by = "attribute"
attribute = "version"
values = [1]
[selections.old]
by = "attribute"
attribute = "version"
values = [0]
"""


def lines(users=24):
    """A user a line: three sentences, each of known words with an unknown one, and a version of 0 or 1."""
    return [
        {
            "user": f"patient-4711-{user:03d}",
            "version": user % 2,
            "text": [
                f"{KNOWN[(user + place) % 20]} {UNKNOWN[(user + place) % 5]} {KNOWN[(3 * user + place) % 20]}"
                for place in range(3)
            ],
        }
        for user in range(users)
    ]


def written(folder, found=None, *, selections=ALL, more="", text="", known=KNOWN):
    """Data, a vocabulary and a recipe for them in `folder`."""
    content = found if isinstance(found, bytes) else "".join(f"{json.dumps(line)}\n" for line in found or lines())
    (folder / "d.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "known.txt").write_text("".join(f"{word}\n" for word in known))
    if selections == PAIR and not more:
        more = 'attributes = ["version"]'
    recipe = RECIPE.format(
        data=folder / "d.jsonl", vocabulary=folder / "known.txt", selections=selections, more=more, text=text
    )
    (folder / "recipe.toml").write_text(recipe)
    return folder
