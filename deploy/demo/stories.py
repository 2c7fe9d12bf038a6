"""Writes short children's stories: the training text of the demo model.

A story is one plot out of plots.txt told about one drawn world: a hero, a friend, a guide and a
relative with names and pronouns, a place with its spots, a thing, some food. Every beat has several
wordings, but all of them speak of the same world, so that what a story says at its beginning still
holds at its end. That is the property the model is meant to learn.

The same seed always gives the same stories:  python stories.py --count 3 --seed 7
"""

import argparse
import random
import re
from pathlib import Path

PLOTS_FILE = Path(__file__).with_name("plots.txt")

BOYS = """Pip Tom Max Sam Ben Leo Finn Oscar Milo Toby Hugo Jack Charlie Theo Felix Gus Otto Henry
Oliver Noah Jasper Rufus Barney Bruno Archie Teddy Ned Ralph Simon Walter Albert Basil Casper Dexter
Elmer Freddy George Harry Jonas Kip Louis Monty Nico Oswald Percy Quill Rory Stanley Timmy Victor
Wilbur Zeke Bobo Duncan Emil Arlo""".split()
GIRLS = """Lily Mia Anna Ruby Daisy Rosie Bella Molly Emma Zoe Luna Nora Ella Poppy Hazel Ivy Clara
Tilly Penny Sophie Lucy Maya Olive Pearl Violet Willow Fern Greta Holly Iris Josie Kitty Lottie
Mabel Nelly Opal Polly Robin Sally Tessa Una Vera Wendy Yara Zelda Alice Betty Coco Dora Edith Flora
Ginny Heidi Ida June""".split()
SYLLABLES = [c + v for c in "b d f g k l m n p r s t v z".split() for v in "aeiou"]
ANIMALS = """fox bear rabbit mouse cat dog duck frog hedgehog squirrel turtle pony lamb kitten puppy
dragon penguin elephant otter badger deer goat pig owl mole beaver raccoon donkey
goose monkey""".split()
ELDERS = ANIMALS + "horse crow cow hen stork moose snail".split()
RELATIVES = [("mother", "f"), ("father", "m"), ("grandmother", "f"), ("grandfather", "m"),
             ("aunt", "f"), ("uncle", "m"), ("big sister", "f"), ("big brother", "m")]
HERO_ADJECTIVES = "little little little small young happy cheerful curious clever busy".split()
FRIEND_ADJECTIVES = "funny friendly cheerful small young clever quiet jolly little merry".split()
GUIDE_ADJECTIVES = ["wise old", "kind old", "friendly", "gentle", "clever", "big", "kind"]

COLORS = "red blue green yellow orange purple silver golden white pink".split()
THINGS = """ball kite drum boat hat scarf lantern flute bell whistle ribbon shell cup blanket doll
train bag umbrella book hoop basket feather coat crown""".split()
# A toy that breaks things and one that is good to hold at night suit only some of the things.
THINGS_OF_PLOT = {"honest": "ball hoop train kite boat drum".split(),
                  "dark": "doll scarf pillow bear rabbit lamb".split()}
FOODS = """apples pears cookies berries cherries nuts buns plums carrots pancakes muffins peaches
oranges strawberries""".split()
WEATHERS = "sunny warm bright fine windy cool quiet lovely".split()
SAFE_SPOTS = ["on the shelf", "next to {h.his} bed", "in a box under {h.his} bed",
              "on the table by the window", "on {h.his} pillow", "in a drawer"]
HIDE_SPOTS = ["under the rug", "behind the curtain", "under the bed", "in a drawer",
              "behind the door", "under a pillow"]
ACTIVITIES = [("fly a kite", "flew a kite"), ("pick berries", "picked berries"),
              ("play hide and seek", "played hide and seek"), ("sing songs", "sang songs"),
              ("play ball", "played ball"), ("tell stories", "told stories"),
              ("look for shiny stones", "looked for shiny stones"),
              ("play tag", "played tag"), ("pick flowers", "picked flowers"),
              ("chase butterflies", "chased butterflies"), ("climb trees", "climbed trees"),
              ("play music", "played music"), ("draw pictures", "drew pictures")]
CHORES = [("pull the weeds in my garden", "pulled weeds"), ("sweep my house", "swept the floor"),
          ("chop some wood", "chopped wood"), ("carry water from the well", "carried water"),
          ("wash my windows", "washed windows"), ("paint my fence", "painted the fence"),
          ("dig my garden", "dug in the garden"), ("hang up my washing", "hung up the washing")]

# (place, homes, spots): a spot has to read well after "looked", "sat" and "was".
SETTINGS = [
    ("the forest", ["a small house at the edge of the forest", "a hollow tree in the forest"],
     ["under the big oak tree", "behind a mossy rock", "beside the stream", "under some leaves",
      "near the old stump", "between the ferns"]),
    ("the beach", ["a little house by the sea", "a village by the sea"],
     ["behind the tall rocks", "next to an old boat", "near the water", "under the pier",
      "beside a sand castle", "by the lighthouse"]),
    ("the farm", ["a cottage near the farm", "a little house by the farm"],
     ["behind the barn", "next to the well", "under the apple tree", "beside the haystack",
      "near the pigpen", "by the wooden gate"]),
    ("the meadow", ["a cozy house near the meadow", "a small cottage in the meadow"],
     ["in the tall grass", "under a willow tree", "between the flowers", "beside the pond",
      "next to a big stone", "by the old fence"]),
    ("the hills", ["a stone house in the hills", "a village in the hills"],
     ["behind a big rock", "near the waterfall", "under a pine tree", "next to a cave",
      "beside the path", "on a flat stone"]),
    ("the river", ["a little house by the river", "a cabin near the river"],
     ["under the bridge", "between the reeds", "on the sandy bank", "next to the old mill",
      "behind a log", "beside the willow"]),
    ("the park", ["a small house near the park", "a busy town"],
     ["under the bench", "behind the fountain", "next to the swings", "near the rose bush",
      "beside the slide", "by the duck pond"]),
    ("the garden", ["a cottage with a big garden", "a white house with a garden"],
     ["under the pear tree", "between the cabbages", "behind the shed", "next to the fish pond",
      "beside the roses", "near the garden wall"]),
    ("the valley", ["a warm cabin in the valley", "a village in the valley"],
     ["under a tall fir tree", "behind the wood pile", "near the frozen pond",
      "next to a stone wall", "beside the sleepy brook", "by the crossroads"]),
    ("the jungle", ["a hut at the edge of the jungle", "a tree house in the jungle"],
     ["under a palm tree", "behind the vines", "next to the waterfall", "beside a giant leaf",
      "near the muddy pool", "on a fallen log"]),
]

SPECIAL_IN = {"the beach": "on the beach", "the farm": "on the farm", "the river": "by the river"}

# Openings that only introduce the hero; the plot then begins on "one day".
OPENINGS = [
    "Once upon a time, there was a {h.adj} {h.kind} named {h.name}. {H.he} lived in {home}.",
    "Once upon a time, there was a {h.adj} {h.kind} named {h.name}, who lived in {home} with "
    "{h.his} {r.kind}.",
    "Once upon a time, a {h.adj} {h.kind} named {h.name} lived in {home}.",
    "Once upon a time, in {home}, there lived a {h.adj} {h.kind} named {h.name}.",
    "Once there was a {h.adj} {h.kind} who lived in {home}. {H.his} name was {h.name}.",
    "There once was a {h.adj} {h.kind} named {h.name}. {H.he} lived in {home} with "
    "{h.his} {r.kind}.",
    "In {home}, there lived a {h.adj} {h.kind} named {h.name}.",
    "{h.name} was a {h.adj} {h.kind} who lived in {home}.",
    "{h.name} the {h.kind} lived in {home} with {h.his} {r.kind}.",
    "Long ago, in {home}, there lived a {h.adj} {h.kind}. {H.his} name was {h.name}.",
    "A {h.adj} {h.kind} named {h.name} lived in {home}.",
    "Not far from {place}, there lived a {h.adj} {h.kind} named {h.name}.",
]
# Openings that are already in the middle of the day; the plot goes on with "that day".
DAY_OPENINGS = [
    "One [{weather} ]{tod}, a {h.adj} {h.kind} named {h.name} {awake}.",
    "One {tod}, a {h.adj} {h.kind} named {h.name} {awake}. {H.he} lived in {home}.",
    "One {tod}, {h.name} the {h.kind} {awake}.",
    "It was a {weather} {tod}. A {h.adj} {h.kind} named {h.name} {awake}.",
    "It was a {weather} {tod} {in.place}. {h.name}, a {h.adj} {h.kind}, {awake}.",
    "Early one morning, a {h.adj} {h.kind} named {h.name} {awake}.",
]
AWAKE = ["woke up early", "came out of {h.his} house", "looked out of the window",
         "was in a very good mood", "had nothing to do", "went outside to play",
         "jumped out of bed", "sat down to breakfast", "was ready for something new"]
DETAILS = [
    "{H.he} always wore a {color2} hat.", "{H.he} had a {color2} scarf that kept {h.him} warm.",
    "{H.he} liked {food} more than anything else to eat.", "Everyone there knew and liked {h.him}.",
    "{H.he} loved to ask questions.", "{H.he} liked to sing in the morning.",
    "From the window, {h.he} could see {place}.", "{H.his} door was painted {color2}.",
]

# How often an optional beat is told.
TOLD_SHARE = 0.35

CHOICE = re.compile(r"\[([^\[\]]*)\]")
SLOT = re.compile(r"\{([A-Za-z0-9.]+)\}")
ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])")


def read_plots(path=PLOTS_FILE):
    """Returns {plot: (cases, beats)}; a case is a dict of slots, a beat (optional, wordings)."""
    text = re.sub(r"\n +", " ", path.read_text())
    plots, beats, cases = {}, None, None
    for line in text.splitlines():
        mark, body = line[:1], line[2:].strip()
        if mark == "=":
            cases, beats = [], []
            plots[body] = (cases, beats)
        elif mark == "+":
            cases.append(dict(pair.split(": ", 1) for pair in re.split(r" +/ +", body)))
        elif mark in ("*", "?"):
            beats.append((mark == "?", []))
        elif mark == "-":
            beats[-1][1].append(body)
    return plots


PLOTS = read_plots()


def pronouns(gender):
    words = ("he", "him", "his") if gender == "m" else ("she", "her", "her")
    return dict(zip(("he", "him", "his"), words))


class World:
    """What one story is about: a table from slots to words, drawn once and never changed."""

    def __init__(self, rng, plot, case, names=None):
        self.rng, self.names = rng, names
        self.slots = dict(case)
        self.taken = set(case.get("not", "").split()) | {case.get("mother")}
        self.add_character("h", ANIMALS, HERO_ADJECTIVES, human_share=0.25)
        self.add_character("f", ANIMALS, FRIEND_ADJECTIVES, human_share=0.1)
        self.add_character("g", ELDERS, GUIDE_ADJECTIVES, human_share=0.0)
        kind, gender = rng.choice(RELATIVES)
        self.add("r", kind=kind, **pronouns(gender))
        self.add_setting()
        self.add_objects(plot)

    def add(self, prefix, **words):
        self.slots.update({f"{prefix}.{key}": word for key, word in words.items()})

    def draw_new(self, words):
        """Draws a word that nothing else in this story is called by."""
        word = self.rng.choice([w for w in words if w not in self.taken])
        self.taken.add(word)
        return word

    def draw_name(self, gender):
        if self.names:
            return self.draw_new((BOYS if gender == "m" else GIRLS)[:self.names])
        # Names that appear nowhere else force the model to copy a name rather than know it.
        if self.rng.random() < 0.12:
            return self.draw_new([(a + b).capitalize() for a in self.rng.sample(SYLLABLES, 4)
                                  for b in self.rng.sample(SYLLABLES, 4)])
        return self.draw_new(BOYS if gender == "m" else GIRLS)

    def add_character(self, prefix, kinds, adjectives, human_share):
        gender = self.rng.choice("mf")
        child = "boy" if gender == "m" else "girl"
        human = self.rng.random() < human_share and child not in self.taken
        kind = self.draw_new([child] if human else kinds)
        self.add(prefix, kind=kind, name=self.draw_name(gender), adj=self.rng.choice(adjectives),
                 **pronouns(gender))

    def add_setting(self):
        place, homes, spots = self.rng.choice(SETTINGS)
        spots = self.rng.sample(spots, 3)
        self.add("in", place=SPECIAL_IN.get(place, f"in {place}"))
        self.slots.update(place=place, home=self.rng.choice(homes), spot1=spots[0], spot2=spots[1],
                          spot3=spots[2], weather=self.rng.choice(WEATHERS),
                          tod=self.rng.choice(["day", "day", "morning", "afternoon"]))

    def add_objects(self, plot):
        rng = self.rng
        color, color2 = rng.sample(COLORS, 2)
        food, food2 = rng.sample(FOODS, 2)
        noun = rng.choice(THINGS_OF_PLOT.get(plot, THINGS))
        self.slots.update(color=color, color2=color2, noun=noun, thing=f"{color} {noun}", food=food,
                          food2=food2, safe=rng.choice(SAFE_SPOTS), hide=rng.choice(HIDE_SPOTS),
                          awake=rng.choice(AWAKE))
        self.add("act", **dict(zip(("do", "did"), rng.choice(ACTIVITIES))))
        self.add("chore", **dict(zip(("do", "did"), rng.choice(CHORES))))

    def word(self, slot):
        if slot[0].isupper():
            word = self.slots[slot[0].lower() + slot[1:]]
            return word[0].upper() + word[1:]
        return self.slots[slot]

    def tell(self, text):
        """Draws the wordings of a text and fills its slots, which may hold slots themselves."""
        while CHOICE.search(text) or SLOT.search(text):
            text = CHOICE.sub(lambda m: self.rng.choice(choices(m[1])), text)
            text = SLOT.sub(lambda m: self.word(m[1]), text)
        return text


def choices(text):
    """[a|b] is a or b; [a] alone is a or nothing."""
    return text.split("|") if "|" in text else [text, ""]


def draw_case(rng, cases):
    return rng.choice(cases) if cases else {}


def open_story(world, beats):
    """Tells the opening and settles how the plot's first day is called."""
    rng, slots = world.rng, world.slots
    has_day = any("{Day}" in text for _, beat in beats for text in beat)
    if has_day and rng.random() < 0.4:
        opening = rng.choice(DAY_OPENINGS)
        if opening.startswith("Early one morning"):
            slots["tod"] = "morning"
        slots["day"] = rng.choice(["that {tod}", "that same {tod}", "that {tod}"])
    else:
        opening = rng.choice(OPENINGS)
        slots["day"] = rng.choice(["one {tod}", "one {weather} {tod}", "one {tod}"])
    if rng.random() < 0.35:
        opening += " " + rng.choice(DETAILS)
    return world.tell(opening)


def story(rng, names=None):
    """One story, as one paragraph of 120 to 250 words; names limits the names of either gender."""
    plot = rng.choice(sorted(PLOTS))
    cases, beats = PLOTS[plot]
    world = World(rng, plot, draw_case(rng, cases), names)
    parts = [open_story(world, beats)]
    parts += [world.tell(rng.choice(wordings)) for optional, wordings in beats
              if not optional or rng.random() < TOLD_SHARE]
    text = " ".join(parts)
    return ARTICLE.sub(r"\1n ", re.sub(r" +", " ", text))


def stories(seed, count, names=None):
    rng = random.Random(seed)
    for _ in range(count):
        yield story(rng, names)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for text in stories(args.seed, args.count):
        print(text, end="\n\n")


if __name__ == "__main__":
    main()
