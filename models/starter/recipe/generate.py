"""Endless synthetic conversations for a very small chat model.

Everything here is drawn from the tables and grammars below; no outside text is used. A
conversation is a dict:

    task      which family it belongs to (used by evaluate.py)
    messages  OpenAI-style messages; the last one is the assistant turn to learn
    tools     OpenAI-style tool definitions, or None
    thinking  whether the last turn thinks first (the template's enable_thinking)
    check     how evaluate.py scores the answer: "exact", "calls", "story" or "loss"

Open classes (names, words, tool names, number pairs, ...) are cut in two by a hash of the item:
split "train" never draws a held-out item, split "test" draws only held-out items.

Given a list of `extra` words a source draws the training mixture: names and words of many more
shapes, and more of what is hard. The evaluation always draws the plain mixture.

    python generate.py --seed 1 --count 5             # print five conversations
    python generate.py --seed 1 --count 5 --task tools --split test
"""
import argparse
import json
import random
import zlib

# ---------------------------------------------------------------- tables

NAMES = """Ada Adam Aisha Alan Alice Amir Amy Ana Andre Anna Arun Ben Beth Bianca Boris Bruno Carla
Carlos Chen Chloe Clara Cora Dana Daniel Daria David Diego Dina Elena Eli Elsa Emil Emma Eric Erin
Eva Felix Fiona Frank Freya Gina Grace Greta Hana Hans Harry Hugo Ian Ida Igor Ines Ivan Jack Jan
Jane Jin Joan Joel John Jonas Jose Judy Julia Kai Kara Karl Kate Kenji Kim Lara Laura Leah Leo Lena
Liam Lily Lina Lisa Lucas Lucy Luis Maya Marco Maria Mark Marta Max Mei Mia Mila Mina Nadia Nina
Noah Nora Oleg Olga Oscar Otto Owen Paul Pavel Petra Priya Rafa Raj Rita Robin Rosa Ruth Sam Sana
Sara Sean Simon Sofia Stella Sven Tara Theo Tim Tom Uma Vera Victor Wendy Will Yara Yuki Yusuf Zara
Zoe""".split()

CAPITALS = dict(pair.split(":") for pair in """France:Paris Spain:Madrid Italy:Rome Germany:Berlin
Portugal:Lisbon Greece:Athens Austria:Vienna Poland:Warsaw Hungary:Budapest Norway:Oslo
Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen Ireland:Dublin Belgium:Brussels Russia:Moscow
Ukraine:Kyiv Romania:Bucharest Bulgaria:Sofia Serbia:Belgrade Croatia:Zagreb Iceland:Reykjavik
England:London Scotland:Edinburgh Wales:Cardiff Turkey:Ankara Egypt:Cairo Morocco:Rabat Kenya:Nairobi
Ghana:Accra Nigeria:Abuja Senegal:Dakar Tunisia:Tunis Israel:Jerusalem Iraq:Baghdad Iran:Tehran
India:Delhi Nepal:Kathmandu China:Beijing Japan:Tokyo Thailand:Bangkok Vietnam:Hanoi Mongolia:Ulaanbaatar
Indonesia:Jakarta Philippines:Manila Australia:Canberra Canada:Ottawa Cuba:Havana Peru:Lima Chile:Santiago
Argentina:Buenos_Aires Uruguay:Montevideo Colombia:Bogota Ecuador:Quito Venezuela:Caracas
Mexico:Mexico_City Cyprus:Nicosia Estonia:Tallinn Latvia:Riga Lithuania:Vilnius""".split())
CAPITALS = {country: city.replace("_", " ") for country, city in CAPITALS.items()}
CITIES = sorted(set(CAPITALS.values()) | set("""Milan Lyon Porto Seville Munich Hamburg Krakow Bergen
Geneva Zurich Naples Turin Leeds York Bristol Boston Chicago Denver Austin Seattle Toronto Montreal
Sydney Perth Mumbai Osaka Kyoto Seoul Lagos Casablanca Valencia Bilbao Ghent Utrecht Graz Split
Tartu Malmo""".split()))

# animal: sound, young, what it eats, legs
ANIMALS = {a: (s, y, e, int(n)) for a, s, y, e, n in (line.split() for line in """cat meows kitten fish 4
dog barks puppy meat 4
cow moos calf grass 4
horse neighs foal hay 4
sheep bleats lamb grass 4
goat bleats kid leaves 4
pig grunts piglet roots 4
duck quacks duckling seeds 2
hen clucks chick grain 2
goose honks gosling grass 2
lion roars cub meat 4
wolf howls pup meat 4
bear growls cub berries 4
frog croaks tadpole insects 4
owl hoots owlet mice 2
bee buzzes larva nectar 6
snake hisses snakelet mice 0
mouse squeaks pup seeds 4
elephant trumpets calf leaves 4
donkey brays foal hay 4
crow caws chick seeds 2
pigeon coos squab seeds 2""".splitlines())}

THING_COLOURS = dict(p.split(":") for p in """grass:green snow:white coal:black blood:red milk:white
a_banana:yellow a_lemon:yellow a_carrot:orange a_tomato:red the_sky:blue the_sun:yellow a_cherry:red
chocolate:brown an_orange:orange a_leaf:green a_cucumber:green a_strawberry:red salt:white ink:black
a_flamingo:pink a_frog:green a_polar_bear:white a_raven:black gold:yellow the_night:black
a_plum:purple""".replace("\n", " ").split())
THING_COLOURS = {k.replace("_", " "): v for k, v in THING_COLOURS.items()}
COLOURS = "red blue green yellow orange purple pink brown black white grey silver gold violet teal".split()

OPPOSITES = dict(p.split(":") for p in """hot:cold big:small up:down left:right day:night good:bad
fast:slow high:low old:new rich:poor happy:sad wet:dry light:dark open:closed full:empty early:late
hard:soft loud:quiet long:short near:far strong:weak thick:thin true:false clean:dirty easy:difficult
first:last inside:outside love:hate win:lose buy:sell push:pull start:stop wide:narrow
deep:shallow heavy:light sharp:blunt safe:dangerous cheap:expensive brave:afraid sweet:bitter
smooth:rough tight:loose alive:dead above:below before:after always:never arrive:leave""".split())

PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = """January February March April May June July August September October November
December""".split()
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
UNITS = [("minutes", "an hour", 60), ("seconds", "a minute", 60), ("hours", "a day", 24),
         ("days", "a week", 7), ("months", "a year", 12), ("days", "a year", 365),
         ("centimetres", "a metre", 100), ("metres", "a kilometre", 1000), ("grams", "a kilogram", 1000),
         ("millimetres", "a centimetre", 10), ("years", "a century", 100), ("years", "a decade", 10),
         ("items", "a dozen", 12), ("sides", "a triangle", 3), ("sides", "a square", 4),
         ("legs", "a spider", 8), ("legs", "an insect", 6), ("wheels", "a bicycle", 2),
         ("wheels", "a car", 4), ("fingers", "a hand", 5), ("seasons", "a year", 4),
         ("players", "a football team", 11), ("strings", "a violin", 4), ("planets", "the solar system", 8)]
MORE_FACTS = [
    ("What do bees make?", "honey"), ("What is frozen water called?", "ice"),
    ("What do we call the star at the centre of the solar system?", "the Sun"),
    ("Which planet is the largest?", "Jupiter"), ("Which planet is closest to the Sun?", "Mercury"),
    ("Which planet is called the red planet?", "Mars"), ("Which planet has bright rings?", "Saturn"),
    ("Which planet do we live on?", "Earth"), ("What goes around the Earth?", "the Moon"),
    ("Which animal is the tallest?", "the giraffe"), ("Which animal is the largest?", "the blue whale"),
    ("What do plants need to grow?", "water, light and air"), ("What is bread made from?", "flour"),
    ("What is wine made from?", "grapes"), ("What is cheese made from?", "milk"),
    ("What is paper made from?", "wood"), ("What is glass made from?", "sand"),
    ("What do you use to cut paper?", "scissors"), ("What do you use to open a lock?", "a key"),
    ("What do we use to see?", "our eyes"), ("What do we use to hear?", "our ears"),
    ("Where do fish live?", "in water"), ("What gas do we breathe?", "oxygen"),
    ("At how many degrees Celsius does water boil?", "100"),
    ("At how many degrees Celsius does water freeze?", "0"),
    ("What colour do you get from blue and yellow?", "green"),
    ("What colour do you get from red and yellow?", "orange"),
    ("What colour do you get from red and blue?", "purple"),
    ("What is the longest river in Africa?", "the Nile"), ("What is the highest mountain?", "Mount Everest"),
    ("What is the largest ocean?", "the Pacific Ocean"), ("What season comes after winter?", "spring"),
    ("What season comes after summer?", "autumn"), ("In which direction does the sun rise?", "in the east"),
    ("In which direction does the sun set?", "in the west")]

NOUNS = """apple anchor arrow badge ball basket bell bench bird blanket boat book bottle box bread
bridge broom brush bucket button cake camera candle card carpet castle chair clock cloud coat coin
comb cookie cup curtain desk door dress drum egg engine fence field flag flower forest fork garden
gate glove guitar hammer harbour hat hill horn house island jacket jar key kite knife ladder lake
lamp leaf lemon letter lock map market mask meadow mirror moon mountain needle nest oven paint pan
paper path pear pen pencil phone piano picture pillow pipe plate pocket pond potato radio rain ring
river road robot rock roof room rope ruler salt school seed shelf ship shirt shoe shop soap sock
spoon stamp star stone storm street sugar table tent ticket tower toy train tree truck tunnel
umbrella valley vase village violin wagon wall watch wave wheel whistle window winter wood
yard""".split()
ADJECTIVES = """ancient bitter bold brave bright broken busy calm careful cheerful clever cold cosy
curious dark deep dusty eager empty fancy fast fierce flat fresh gentle giant golden grand happy
heavy hidden hollow honest huge icy kind lazy little lonely loud lucky merry misty modern narrow
noisy old pale patient plain polite proud quick quiet rare red rich rough round rusty sharp shiny
shy silent silver simple sleepy slow small smooth soft stormy strange strong sunny sweet tall tiny
tired warm wide wild wise wooden young""".split()
FOODS = """pizza soup rice pasta bread cheese salad cake noodles curry tacos sushi pancakes apples
mango beans honey olives plums toast stew figs""".split()
JOBS = """teacher doctor nurse baker farmer pilot painter singer writer driver cook dentist lawyer
tailor plumber gardener actor barber judge sailor builder clerk""".split()
PETS = "cat dog rabbit parrot hamster turtle goldfish pony lizard canary ferret gecko".split()
HOBBIES = """reading swimming painting cooking running dancing singing fishing hiking chess cycling
knitting skiing sailing drawing gardening""".split()
LANGUAGES = """French Spanish German Italian Greek Polish Dutch Swedish Turkish Arabic Hindi Japanese
Korean Finnish Danish Czech""".split()
NUMBER_WORDS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen twenty""".split()

GOOD = """great wonderful excellent lovely fantastic delicious perfect superb brilliant pleasant
charming amazing delightful enjoyable beautiful fine""".split()
BAD = """awful terrible horrible bad disgusting boring poor dreadful ugly painful useless annoying
disappointing broken rude nasty""".split()

VOWELS, ONSETS, CODAS = "a e i o u".split(), "b d f g k l m n p r s t v z br dr kr st tr pl".split(), "n r l s k m t".split()


def held_out(item):
    """True for about one item in eight, always the same ones."""
    return zlib.crc32(str(item).encode()) % 8 == 3


def for_training(words):
    """The words of which no spelling is held out."""
    return [w for w in words if not any(map(held_out, (w, w.lower(), w.capitalize())))]


def letters_after(words):
    """Which letters follow two others in these words; "^" begins a word and "$" ends it."""
    table = {}
    for word in words:
        word = f"^^{word.lower()}$"
        for i in range(2, len(word)):
            table.setdefault(word[i - 2:i], []).append(word[i])
    return table


FOLLOWING = letters_after(for_training(
    w for w in NAMES + CITIES + NOUNS + ADJECTIVES + FOODS + JOBS + HOBBIES + LANGUAGES + GOOD + BAD if w.isalpha()))


class Source(random.Random):
    """Random draws that respect the train/test cut."""

    def __init__(self, seed, split="train", extra=()):
        super().__init__(f"{split}-{seed}")
        self.test = split == "test"
        assert not (extra and self.test)
        self.extra = extra  # more words, for the training mixture only

    def ok(self, item):
        return held_out(item) == self.test

    def open(self, make):
        """An item on our side of the cut; `make` is a list or a function."""
        while True:
            item = make() if callable(make) else self.choice(make)
            if self.ok(item):
                return item

    def chance(self, p, training=None):
        """True with probability p, or `training` in the training mixture."""
        return self.random() < (training if self.extra and training is not None else p)

    def pseudo(self):
        """For training: a made-up word that looks English, random letters, or one of the extra words."""
        while True:
            kind = self.random()
            if kind < 0.35:
                word = self.choice(self.extra)
            elif kind < 0.45:
                word = "".join(self.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(self.randrange(2, 8)))
            else:
                word = "^^"
                while word[-1] != "$":
                    word += self.choice(FOLLOWING[word[-2:]])
                word = word[2:-1]
            word = word.lower()
            if 2 <= len(word) <= 10 and for_training([word]):
                return word

    def nonce(self):
        """A made-up word such as "bradik" or "velu"."""
        word = "".join(self.choice(ONSETS) + self.choice(VOWELS) for _ in range(self.choice((1, 2, 2, 3))))
        return word + (self.choice(CODAS) if len(word) < 3 or self.chance(0.5) else "")

    def name(self):
        if self.extra and self.chance(0.4):
            return self.pseudo().capitalize()
        return self.open(NAMES if self.chance(0.6) else lambda: self.nonce().capitalize())

    def place(self):
        if self.extra and self.chance(0.4):
            return self.pseudo().capitalize()
        return self.open(CITIES if self.chance(0.7) else lambda: self.nonce().capitalize())

    def word(self):
        if self.extra and self.chance(0.55):
            return self.pseudo()
        return self.open(NOUNS + ADJECTIVES if self.chance(0.65) else self.nonce)

    def words(self, n):
        found = []
        while len(found) < n:
            word = self.word()
            if word not in found:
                found.append(word)
        return found


def a(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def listing(items):
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


# ---------------------------------------------------------------- single questions
# Each returns (task, question, answer, thought).

def facts(g):
    kind = g.randrange(13)
    if kind <= 2:
        country, city = g.choice(list(CAPITALS.items()))
        if g.chance(0.75):
            q = g.choice(["What is the capital of {}?", "Which city is the capital of {}?", "Capital of {}?",
                          "Tell me the capital of {}.", "Name the capital of {}."]).format(country)
            ans = f"The capital of {country} is {city}."
        else:
            q = g.choice([f"{city} is the capital of which country?", f"Which country has {city} as its capital?"])
            ans = f"{city} is the capital of {country}."
    elif kind == 3:
        animal, (sound, young, eats, legs) = g.choice(list(ANIMALS.items()))
        q, ans = g.choice([
            (f"What sound does {a(animal)} make?", f"{a(animal).capitalize()} {sound}."),
            (f"What is a young {animal} called?", f"A young {animal} is called {a(young)}."),
            (f"What does {a(animal)} eat?", f"{a(animal).capitalize()} eats {eats}."),
            (f"How many legs does {a(animal)} have?", f"{a(animal).capitalize()} has {legs} legs."),
            (f"Which animal {sound}?", f"{a(next(k for k, v in ANIMALS.items() if v[0] == sound)).capitalize()} {sound}.")])
    elif kind == 4:
        thing, colour = g.choice(list(THING_COLOURS.items()))
        q = g.choice([f"What colour is {thing}?", f"Which colour is {thing}?", f"Tell me the colour of {thing}."])
        ans = f"{thing[0].upper() + thing[1:]} is {colour}."
    elif kind <= 6:
        x, y = g.choice([*OPPOSITES.items(), *((v, k) for k, v in OPPOSITES.items())])
        while sum(x == k for k in [*OPPOSITES, *OPPOSITES.values()]) > 1:  # "light" has two opposites
            x, y = g.choice(list(OPPOSITES.items()))
        q = g.choice([f"What is the opposite of {x}?", f"Opposite of {x}?", f'Give me the opposite of "{x}".'])
        ans = f"The opposite of {x} is {y}."
    elif kind <= 8:
        seq, what = g.choice([(DAYS, "day"), (MONTHS, "month")])
        i = g.randrange(len(seq))
        if g.chance(0.5):
            q = g.choice([f"What {what} comes after {seq[i]}?", f"Which {what} follows {seq[i]}?"])
            ans = f"{seq[(i + 1) % len(seq)]} comes after {seq[i]}."
        elif g.chance(0.6):
            q, ans = f"What {what} comes before {seq[i]}?", f"{seq[i - 1]} comes before {seq[i]}."
        else:
            where = "week" if what == "day" else "year"
            q = f"What is the {ORDINALS[i]} {what} of the {where}?"
            ans = f"The {ORDINALS[i]} {what} of the {where} is {seq[i]}."
    elif kind == 9:
        i = g.randrange(8)
        q, ans = g.choice([(f"What is the {ORDINALS[i]} planet from the Sun?",
                            f"The {ORDINALS[i]} planet from the Sun is {PLANETS[i]}."),
                           (f"Which planet comes after {PLANETS[i]}?",
                            f"{PLANETS[i + 1]} comes after {PLANETS[i]}." if i < 7 else "No planet comes after Neptune.")])
        if g.chance(0.1):
            q = g.choice(["Name the planets in order.", "List the planets."])
            ans = f"The planets are {listing(PLANETS)}."
    elif kind == 10:
        unit, whole, n = g.choice(UNITS)
        q = g.choice([f"How many {unit} are in {whole}?", f"How many {unit} are there in {whole}?"])
        if unit in ("legs", "wheels", "fingers", "sides", "strings", "players", "seasons"):
            q = f"How many {unit} does {whole} have?"
        ans = f"There are {n} {unit} in {whole}." if " in " in q else f"{whole[0].upper() + whole[1:]} has {n} {unit}."
    elif kind == 11:
        q, short = g.choice(MORE_FACTS)
        ans = short[0].upper() + short[1:] + "."
    else:
        place = g.open(lambda: g.nonce().capitalize() + g.choice(["ia", "land", "stan"]))
        q = g.choice([f"What is the capital of {place}?", f"Tell me the capital of {place}."])
        ans = f"I do not know a country called {place}."
    return "facts", q, ans, "I look for this in what I know. " + ans if g.chance(0.5) else "This is a question about facts."


def column_steps(x, y, sign):
    """Column arithmetic from the last digit, as a thought."""
    width, carry, steps, out = max(len(str(x)), len(str(y))), 0, [], ""
    for dx, dy in zip(reversed(str(x).zfill(width)), reversed(str(y).zfill(width))):
        if sign == "+":
            total = int(dx) + int(dy) + carry
            digit, new = total % 10, total // 10
        else:
            total = int(dx) - int(dy) - carry
            digit, new = total % 10, int(total < 0)
        steps.append(f"{dx} {sign} {dy}" + (f" {sign} {carry}" if carry else "") + f" = {total}, write {digit}"
                     + (f", carry {new}" if new else ""))
        carry, out = new, str(digit) + out
    if carry:
        steps.append(f"write {carry}")
    return "\n".join(steps)


def arithmetic(g):
    kind = g.choice("++++++-----*" if g.extra else "++++---**")
    size = lambda: g.randrange(10 ** g.choice((1, 2, 2, 3, 3)))
    if kind == "*":
        x, y = g.randrange(10 if g.chance(0.8) else 13), g.randrange(10)
        result, verb, small = x * y, "times", f"{x} * {y} = {x * y}"
        if x > 9:
            small = f"{x - x % 10} * {y} = {(x - x % 10) * y}\n{x % 10} * {y} = {x % 10 * y}\n" + \
                    f"{(x - x % 10) * y} + {x % 10 * y} = {result}"
    else:
        x, y = g.open(lambda: (size(), size()))
        if kind == "-" and x < y:
            x, y = y, x
        result, verb = (x + y, "plus") if kind == "+" else (x - y, "minus")
        small = column_steps(x, y, kind)
    sign = "x" if kind == "*" and g.chance(0.3) else kind
    q = g.choice([f"What is {x} {verb} {y}?", f"{x} {sign} {y}", f"{x} {sign} {y} = ?", f"What is {x} {sign} {y}?",
                  f"Calculate {x} {sign} {y}.", f"{x}{sign}{y}", f"{x} {verb} {y}?", f"Please compute {x} {sign} {y}."])
    task = "arithmetic: " + {"+": "add", "-": "subtract", "*": "multiply"}[kind]
    thing = g.choice(NOUNS) + "s"
    if kind == "+" and g.chance(0.15):
        who = g.name()
        q = g.choice([f"{who} has {x} {thing} and gets {y} more. How many {thing} does {who} have now?",
                      f"There are {x} red {thing} and {y} blue {thing}. How many {thing} are there?"])
        return task, q, f"{result} {thing}.", small
    if kind == "-" and g.chance(0.15):
        who = g.name()
        q = f"{who} had {x} {thing} and gave away {y}. How many {thing} are left?"
        return task, q, f"{result} {thing}.", small
    return task, q, str(result), small


def text_ops(g):
    w = g.word()
    spelled = " ".join(w)
    op = g.randrange(16 if g.extra else 14)
    quoted = g.choice(['"{}"', "{}", "'{}'"]).format(w)
    if op <= 1:
        q = g.choice(["Reverse the word {}.", "Spell {} backwards.", "Write {} in reverse.", "Reverse {}"]).format(quoted)
        return "text: reverse", q, w[::-1], f"{spelled}\nbackwards: {' '.join(w[::-1])}"
    if op == 2:
        phrase = " ".join(g.words(g.choice((1, 1, 2, 3))))
        q = g.choice(["Write {} in uppercase.", "Uppercase: {}", "Put {} in capital letters."]).format(phrase)
        return "text: uppercase", q, phrase.upper(), \
            "\n".join(f"{' '.join(x)} becomes {' '.join(x.upper())}" for x in phrase.split())
    if op == 3:
        phrase = " ".join(g.words(g.choice((1, 2))))
        return "text: lowercase", g.choice(["Write {} in lowercase.", "Lowercase: {}"]).format(phrase.upper()), phrase, \
            "\n".join(f"{' '.join(x.upper())} becomes {' '.join(x)}" for x in phrase.split())
    if op == 4:
        q = g.choice(["How many letters are in {}?", "Count the letters in {}.", "How long is the word {}?"]).format(quoted)
        return "text: count letters", q, str(len(w)), " ".join(f"{c} {i}" for i, c in enumerate(w, 1))
    if op == 5:
        c = g.choice(w) if g.chance(0.8) else g.choice("aeiourst")
        n, steps = 0, []
        for x in w:
            n += x == c
            steps.append(f"{x} {n}")
        return "text: count a letter", f"How many times does the letter {c} appear in {quoted}?", str(n), " ".join(steps)
    if op == 6:
        q, ans = g.choice([("What is the first letter of {}?", w[0]), ("What is the last letter of {}?", w[-1])])
        return "text: first or last letter", q.format(quoted), ans, spelled
    if op <= 8:
        ws = g.words(g.randrange(3, 7))
        q, ans = g.choice([("What is the first word of: {}", ws[0]), ("What is the last word of: {}", ws[-1]),
                           ("Give me the last word: {}", ws[-1]), ("Give me the first word: {}", ws[0]),
                           ("How many words are in: {}", str(len(ws))), ("Count the words: {}", str(len(ws)))])
        return "text: first or last word", q.format(" ".join(ws)), ans, " ".join(f"{i} {x}" for i, x in enumerate(ws, 1))
    if op <= 10:
        ws = g.words(g.randrange(3, 6))
        q = g.choice(["Sort these words: {}", "Put these words in alphabetical order: {}", "Sort alphabetically: {}"])
        sep = g.choice([", ", " "])
        return "text: sort words", q.format(sep.join(ws)), sep.join(sorted(ws)), \
            "\n".join([f"{' '.join(x[:3])} {x}" for x in ws] + ["sorted:"] + [f"{' '.join(x[:3])} {x}" for x in sorted(ws)])
    if op == 11:
        n = g.randrange(2, 6)
        q = g.choice(["Repeat the word {} {} times.", "Say {} {} times.", "Write {} {} times."])
        return "text: repeat", q.format(w, NUMBER_WORDS[n]), " ".join([w] * n), " ".join(f"{i} {w}" for i in range(1, n + 1))
    if op == 12:
        return "text: spell", g.choice(["Spell the word {}.", "Spell {}."]).format(quoted), "-".join(w), spelled
    phrase = " ".join(g.words(g.randrange(1, 13 if g.extra else 6)))
    q = g.choice(["Repeat after me: {}", "Say this back to me: {}", "Echo: {}", "Copy this text: {}"]).format(phrase)
    return "text: copy", q, phrase, "I copy the text."


FIELDS = {  # key: (how a sentence says it, how to draw it)
    "age": (["{n} is {v} years old", "{n} is aged {v}"], lambda g: g.randrange(5, 99)),
    "city": (["{n} lives in {v}", "{n} comes from {v}", "{n} is from {v}"], lambda g: g.place()),
    "job": (["{n} works as a {v}", "{n} is a {v} by trade"], lambda g: g.choice(JOBS)),
    "pet": (["{n} has a {v}", "{n} owns a {v}"], lambda g: g.choice(PETS)),
    "colour": (["{n} likes the colour {v}", "{n} always wears {v}"], lambda g: g.choice(COLOURS)),
    "food": (["{n} loves {v}", "{n} likes to eat {v}"], lambda g: g.choice(FOODS)),
    "hobby": (["{n} enjoys {v}", "{n} spends weekends on {v}"], lambda g: g.choice(HOBBIES)),
    "day": (["{n} arrives on {v}", "{n} is free on {v}"], lambda g: g.choice(DAYS)),
    "language": (["{n} speaks {v}", "{n} is learning {v}"], lambda g: g.choice(LANGUAGES)),
    "phone": (["{n} can be called at {v}"], lambda g: "".join(g.choice("0123456789") for _ in range(6))),
}
ORDER_KEYS = ("item", "quantity", "price")


def extraction(g):
    if g.chance(0.25):  # an order
        record = {"item": g.word(), "quantity": g.randrange(1, 60), "price": g.randrange(1, 500)}
        text = g.choice(["We ordered {quantity} of the {item} at {price} each.",
                         "Please send {quantity} pieces of {item}, price {price}.",
                         "The {item} costs {price} and we need {quantity}."]).format(**record)
    else:
        who = g.name()
        chosen = g.sample(list(FIELDS), g.randrange(1, 4))
        record, parts = {"name": who}, []
        for i, key in enumerate(chosen):
            says, draw = FIELDS[key]
            record[key] = draw(g)
            parts.append(g.choice(says).format(n=who if i == 0 else g.choice(["who", "and"]), v=record[key]))
        text = parts[0]
        for p in parts[1:]:
            text += (", " + p) if p.startswith("who") else " " + p
        text = g.choice(["", "", "This is a note: ", "My friend told me that "]) + text + "."
    keys = list(record)
    g.shuffle(keys)
    if len(keys) > 2 and g.chance(0.3):
        keys.pop()
    if g.chance(0.1, training=0.2):  # a key that the text does not give
        missing = g.choice([k for k in FIELDS if k not in record])
        keys.insert(g.randrange(len(keys) + 1), missing)
    ask = g.choice(["Extract {} as JSON: {}", "Return a JSON object with the keys {}. Text: {}",
                    "Give me {} as JSON from this text: {}", "JSON with {}: {}"])
    answer = json.dumps({k: record.get(k) for k in keys}, ensure_ascii=False)
    return "extract", ask.format(listing(keys), text), answer, \
        "\n".join(f"{k}: {record.get(k, 'not given')}" for k in keys)


def classify(g):
    kind = g.random()
    if kind < 0.55:
        good = g.chance(0.5)
        adj, thing = g.open(lambda: (g.choice(GOOD if good else BAD), g.choice(NOUNS + FOODS)))
        other = g.choice(GOOD if good else BAD)
        text = g.choice([f"The {thing} was {adj}.", f"I think the {thing} is {adj}.", f"What {a(adj)} {thing}!",
                         f"The {thing} was {adj} and {other}.", f"This {thing} is really {adj}.",
                         f"I {'love' if good else 'hate'} this {thing}.",
                         f"I would {'' if good else 'not '}buy this {thing} again.",
                         f"The {thing} was not {g.choice(BAD if good else GOOD)} at all, it was {adj}."])
        label = "positive" if good else "negative"
        q = g.choice(["Is this positive or negative? {}", "Positive or negative: {}", "Classify the sentiment: {}",
                      "What is the sentiment of this text? {}"]).format(text)
        return "classify", q, label, f"The words sound {'good' if good else 'bad'}."
    if kind < 0.7:
        groups = {"animal": list(ANIMALS), "colour": COLOURS, "food": FOODS, "job": JOBS, "day": DAYS,
                  "month": MONTHS, "planet": PLANETS[3:], "country": list(CAPITALS), "language": LANGUAGES}
        label, rest = (lambda ks: (ks[0], ks[1:]))(g.sample(list(groups), 3))
        options = [label, *rest]
        g.shuffle(options)
        item = g.choice([x for x in groups[label] if x not in ("orange",)])
        q = g.choice([f"Is {item} {listing([a(o) for o in options]).replace(' and ', ' or ')}?",
                      f"Which kind is \"{item}\": {', '.join(options)}?"])
        return "classify", q, label, f"{item} is {a(label)}."
    if kind < 0.75:  # nothing to decide on: any of the three is fine
        q = g.choice(["Say yes, no or maybe.", "Answer yes, no or maybe.", "Choose one: yes, no, maybe.",
                      "Pick one of yes, no and maybe."])
        return "choice", q, g.choice(["yes", "no", "maybe"]), "Any of the three is fine."
    pick = g.randrange(5)
    if pick == 0:
        x, y = g.open(lambda: (g.randrange(100), g.randrange(100)))
        text, ans = f"Is {x} greater than {y}?", "yes" if x > y else "no"
    elif pick == 1:
        country = g.choice(list(CAPITALS))
        city = CAPITALS[country] if g.chance(0.5) else g.choice(list(CAPITALS.values()))
        text, ans = f"Is {city} the capital of {country}?", "yes" if CAPITALS[country] == city else "no"
    elif pick == 2:
        thing, colour = g.choice(list(THING_COLOURS.items()))
        said = colour if g.chance(0.5) else g.choice(COLOURS)
        text, ans = f"Is {thing} {said}?", "yes" if said == colour else "no"
    elif pick == 3:
        text, ans = g.choice([f"Will it rain in {g.place()} {g.choice(['tomorrow', 'next week', 'on ' + g.choice(DAYS)])}?",
                              f"Will {g.name()} call me today?", f"Is {g.name()} at home?",
                              f"Will {g.name()} like the {g.choice(NOUNS)}?", f"Is there {a(g.choice(NOUNS))} in the next room?"]), "maybe"
    else:
        item = g.choice(list(ANIMALS) + FOODS + JOBS)
        label = g.choice(["animal", "food", "job"])
        real = "animal" if item in ANIMALS else "food" if item in FOODS else "job"
        text, ans = f"Is {item} {a(label)}?", "yes" if label == real else "no"
    q = g.choice(["{} Say yes, no or maybe.", "{} Answer yes, no or maybe.", "Yes, no or maybe: {}"]).format(text)
    return "classify", q, ans, g.choice(["I answer with one word.", "I decide between yes, no and maybe."])


def small_talk(g):
    name = g.name()
    q, ans = g.choice([
        (["Hello!", "Hi!", "Hello", "Hi there", "Hey!", "Good day!", "hi", "hello"],
         ["Hello! How can I help you?", "Hi! What can I do for you?"]),
        (["Good morning!", "Good morning"], ["Good morning! How can I help you?"]),
        (["Good evening!", "Good evening"], ["Good evening! How can I help you?"]),
        (["How are you?", "How are you today?", "How do you feel?", "How is it going?"],
         ["I am fine, thank you. How are you?", "All is well here. How are you?"]),
        (["Thanks!", "Thank you!", "Thank you very much.", "Thanks a lot"], ["You are welcome!", "My pleasure!"]),
        (["Bye!", "Goodbye!", "See you later.", "I have to go now."], ["Goodbye! Have a nice day.", "See you soon!"]),
        (["Who are you?", "What are you?", "What is your name?", "Tell me about yourself."],
         ["I am a very small language model. I can chat, count, sort words and call tools."]),
        (["What can you do?", "What can you help me with?", "Help"],
         ["I can chat, answer simple questions, do small sums, work with words, write tiny stories and call tools."]),
        (["Are you a human?", "Are you a robot?", "Are you real?"], ["I am a very small language model, not a person."]),
        (["Who made you?", "Where do you come from?"], ["I was trained from scratch on made-up conversations."]),
        ([f"My name is {name}.", f"I am {name}.", f"Hi, I am {name}.", f"Hello, my name is {name}."],
         [f"Nice to meet you, {name}!", f"Hello {name}! How can I help you?"]),
        ([f"I feel {x}." for x in ("sad", "tired", "lonely", "sick", "bad")] + ["I had a bad day."],
         ["I am sorry to hear that. I hope it gets better soon."]),
        ([f"I feel {x}." for x in ("happy", "great", "good", "lucky")] + ["I had a great day!"],
         ["I am glad to hear that!", "That is good news!"]),
        (["Tell me a joke.", "Make me laugh."],
         [f"Why did the {g.choice(NOUNS)} cross the road? To see the {g.choice(NOUNS)} on the other side!"]),
        ([f"I like {x}." for x in FOODS + HOBBIES], ["That sounds nice! What do you like about it?"]),
        (["You are smart.", "Well done!", "Good job!", "I like you."], ["Thank you, that is kind of you!"]),
        (["You are wrong.", "That is not right.", "I do not think so."],
         ["I am sorry. I am a small model and I make mistakes."]),
        (["What time is it?", "What day is it today?", "What is the weather like?"], ["I have no way to know that, sorry."]),
        (["Can you help me?", "I need help.", "I have a question."], ["Of course! What do you need?"]),
    ])
    return "chat", g.choice(q), g.choice(ans), g.choice(["The user is just talking to me.", "I give a friendly answer."])


PLACES = """in a small village|by the sea|at the edge of a forest|on a high hill|in a busy town|near an
old mill|beside a quiet river|on a little island|in a house with a blue roof|under a tall
tree""".replace("\n", " ").split("|")
WISHES = """find a friend|see the sea|learn to sing|build a boat|climb the mountain|bake the best cake|
fly like a bird|find the lost key|paint the sky|cross the river|read every book|grow a garden""".replace("\n", "").split("|")
HELPERS = "an old owl|a kind baker|a shy fox|a tall sailor|a clever mouse|a little girl|a sleepy bear|a wise goat".split("|")


def story(g):
    animal, adj, thing = g.choice(list(ANIMALS)), g.choice(ADJECTIVES), g.choice(NOUNS)
    hero, place, wish = g.name(), g.choice(PLACES), g.choice(WISHES)
    about = g.choice(["animal", "name", "thing"])
    topic = {"animal": a(animal), "name": hero, "thing": a(thing)}[about]
    longer = about in ("animal", "thing") and bool(g.extra) and g.chance(0.8)  # in training the request may say more
    how = g.choice(ADJECTIVES) if longer and about == "thing" else adj
    if longer:
        topic = a(f"{how} {animal if about == 'animal' else thing}")
    q = g.choice(["Tell me a story about {}.", "Write a short story about {}.", "Tell a tiny story about {}.",
                  "Can you tell me a story about {}?", "Story about {}, please."]).format(topic)
    she = g.choice(["he", "she"])
    her = {"he": "his", "she": "her"}[she]
    who = a(f"{adj} {animal}")
    first = g.choice([f"Once there was {who} called {hero} who lived {place}.",
                      f"{hero} was {who} who lived {place}.", f"{place[0].upper() + place[1:]} lived {who} named {hero}."])
    want = g.choice([f"More than anything, {hero} wanted to {wish}.", f"Every night {hero} dreamed of one thing: to {wish}.",
                     f"One morning {hero} decided to {wish}."])
    found = g.choice([f"On the way {she} found {a(g.choice(ADJECTIVES) + ' ' + thing)}.",
                      f"Under {a(g.choice(NOUNS))} {she} saw {a(g.choice(ADJECTIVES) + ' ' + thing)}.",
                      f"Then {she} met {g.choice(HELPERS)} with {a(thing)}."])
    trouble = g.choice(["But a storm came and the road was gone.", f"But the {thing} was broken.",
                        "But it was dark and nobody was near.", f"But {she} was too {g.choice(['small', 'tired', 'shy', 'slow'])}."])
    solved = g.choice([f"With the {thing}, {she} tried again and again.", f"{hero} sat down, had an idea, and used the {thing}.",
                       f"{g.choice(HELPERS).capitalize()} came to help."])
    end = g.choice([f"In the end {hero} was very happy.", f"That evening {hero} told {her} friends everything.",
                    f"And {hero} kept the {thing} for ever.", "They all laughed and went home.",
                    f"Since that day, {hero} is never lonely."])
    if longer and about == "thing":
        found = f"On the way {she} found {a(f'{how} {thing}')}."
        end = g.choice([end, f"And {hero} kept the {how} {thing} for ever."])
    middle = [s for s in (want, found, trouble, solved) if g.chance(0.75)] or [want]
    text = " ".join([first, *middle, end])
    if about == "thing" and (longer and found not in text or thing not in text.replace(".", " ").split()):
        text = " ".join([first, found, end])
    return "story", q, text, f"I need a hero, a wish and an ending. The story is about {topic}."


def count_or_list(g):
    x, n = g.randrange(0, 60), g.randrange(2, 8)
    kind = g.randrange(4)
    if kind == 0:
        ans = ", ".join(map(str, range(x, x + n + 1)))
        return "text: count up", f"Count from {x} to {x + n}.", ans, f"I start at {x} and stop at {x + n}."
    if kind == 1:
        nums = g.sample(range(100), g.randrange(3, 6))
        return "text: sort numbers", f"Sort these numbers: {', '.join(map(str, nums))}", ", ".join(map(str, sorted(nums))), \
            f"The smallest is {min(nums)} and the largest is {max(nums)}."
    if kind == 2:
        nums = g.sample(range(100), g.randrange(2, 5))
        word = g.choice(["largest", "smallest"])
        return "text: compare numbers", f"Which number is the {word}: {', '.join(map(str, nums))}?", \
            str(max(nums) if word == "largest" else min(nums)), f"I compare {listing(list(map(str, nums)))}."
    kinds = {"animals": list(ANIMALS), "colours": COLOURS, "foods": FOODS, "jobs": JOBS}
    what = g.choice(list(kinds))
    n = g.randrange(2, 5)
    return "list", f"Name {NUMBER_WORDS[n]} {what}.", listing(g.sample(kinds[what], n)) + ".", f"I need {n} {what}."


# maker, weight, weight in the training mixture
QUESTIONS = [(facts, 12, 6), (arithmetic, 20, 32), (text_ops, 16, 34), (extraction, 9, 12), (classify, 7, 5),
             (small_talk, 7, 4), (story, 6, 20), (count_or_list, 3, 5)]


def draw_from(g, table):
    makers, weights, training = zip(*table)
    return g.choices(makers, training if g.extra else weights)[0](g)


def question(g):
    return draw_from(g, QUESTIONS)


# ---------------------------------------------------------------- conversations

def user(text, objects=()):
    """`objects` says what a request for a tool is about; the template does not show it, train.py hints at it."""
    return {"role": "user", "content": text, **({"objects": list(objects)} if objects else {})}


def assistant(text, thought=""):
    return {"role": "assistant", "content": text, "reasoning_content": thought}


CHECKS = {"chat": "loss", "story": "story", "choice": "loss", "list": "loss"}
PLAIN_SYSTEM = ["You are a helpful assistant.", "Be brief and friendly.", "You are a small chat model.",
                "Answer the questions of the user.", "You help people with simple tasks.", "Be helpful."]


def finish(g, task, messages, thinking=None, tools=None, check=None):
    """Settle the thought of the last turn and drop those of earlier ones."""
    thinking = g.chance(0.25) if thinking is None else thinking
    for i, m in enumerate(messages):
        if m["role"] == "assistant" and (i < len(messages) - 1 or not thinking):
            m["reasoning_content"] = ""
    return {"task": task, "messages": messages, "tools": tools, "thinking": thinking,
            "check": check or CHECKS.get(task, "exact")}


def plain(g, make=None):
    """One to four unrelated questions; mostly one."""
    messages = [{"role": "system", "content": g.choice(PLAIN_SYSTEM)}] if g.chance(0.15) else []
    for _ in range(g.choice((0, 0, 0, 0, 0, 0, 0, 0, 1, 2) if g.extra else (0, 0, 0, 0, 0, 0, 1, 1, 2, 3))):
        _, q, ans, _ = question(g)
        messages += [user(q), assistant(ans)]
    task, q, ans, thought = make(g) if make else question(g)
    return finish(g, task, messages + [user(q), assistant(ans, thought)])


def obey(g):
    """A system prompt that changes every answer."""
    name = g.name()
    word = g.word()
    system, rule = g.choice([
        (["Answer in uppercase.", "Always write in capital letters.", "You only write in uppercase."], str.upper),
        (["Answer in lowercase.", "Never use capital letters."], str.lower),
        ([f"Sign every answer with {name}.", f"End each answer with the name {name}.", f"Your name is {name}. Sign your answers."],
         lambda s: f"{s}\n- {name}"),
        ([f"End every answer with the word {word}.", f"Always finish with {word}."], lambda s: f"{s} {word}"),
        ([f"Start every answer with {word}:", f"Begin each answer with {word}:"], lambda s: f"{word}: {s}"),
        (["Answer as a JSON object with the key answer.", 'Reply only with JSON: {"answer": ...}'],
         lambda s: json.dumps({"answer": s}, ensure_ascii=False)),
        (["Answer in one word.", "Use only one word for each answer.", "Reply with a single word."], None),
        ([f"You are {name}.", f"Your name is {name}.", f"You are {name}, a friendly assistant."], "persona"),
        (["Put every answer in quotes.", "Write all answers in quotes."], lambda s: f'"{s}"'),
    ])
    messages = [{"role": "system", "content": g.choice(system)}]
    for _ in range(g.choice((1, 1, 1, 2, 3))):
        thought = "I follow the rule of the system."
        if rule == "persona":
            _, q, ans, thought = small_talk(g) if g.chance(0.2) else question(g)
            if g.chance(0.6) or "your name" in q or "are you" in q or "yourself" in q:
                q = g.choice(["Who are you?", "What is your name?", "What should I call you?", "Tell me your name."])
                ans = f"I am {name}."
        elif rule is None:
            pick = g.randrange(4)
            if pick == 0:
                country, ans = g.choice([(c, t) for c, t in CAPITALS.items() if " " not in t])
                q = f"What is the capital of {country}?"
            elif pick == 1:
                thing, ans = g.choice(list(THING_COLOURS.items()))
                q = f"What colour is {thing}?"
            elif pick == 2:
                q, ans = g.choice(list(OPPOSITES.items()))
                q, ans = (f"What is the opposite of {q}?", ans) if q != "heavy" else ("What do bees make?", "honey")
            else:
                i = g.randrange(7)
                q, ans = f"What day comes after {DAYS[i]}?", DAYS[(i + 1) % 7]
        else:
            _, q, ans, thought = g.choices([facts, arithmetic, small_talk, text_ops], [5, 1, 3, 1])[0](g)
            ans = rule(ans)
        messages += [user(q), assistant(ans, thought)]
    inexact = rule != "persona" and rule is not None and messages[-2]["content"] in SMALL_TALK_QUESTIONS
    return finish(g, "system", messages, check="loss" if inexact else None)


SMALL_TALK_QUESTIONS = {small_talk(Source(s))[1] for s in range(3000)}  # more than one right answer

REMEMBER = {  # what: (ways to say it, reply, questions, answer)
    "name": (["My name is {}.", "I am {}.", "Call me {}."], "Nice to meet you, {}!",
             ["What is my name?", "Do you remember my name?", "Who am I?"], "Your name is {}."),
    "colour": (["My favourite colour is {}.", "I love the colour {}."], "{} is a nice colour.",
               ["What is my favourite colour?", "Which colour do I like?"], "Your favourite colour is {}."),
    "city": (["I live in {}.", "My home is in {}."], "I hope you like it in {}.",
             ["Where do I live?", "In which city do I live?"], "You live in {}."),
    "pet": (["I have a {}.", "My pet is a {}."], "A {} is a good friend.",
            ["What pet do I have?", "Which animal do I have?"], "You have a {}."),
    "food": (["My favourite food is {}.", "I love to eat {}."], "I hear that {} is very tasty.",
             ["What is my favourite food?", "What do I like to eat?"], "Your favourite food is {}."),
    "number": (["My lucky number is {}.", "Remember the number {}."], "I will remember {}.",
               ["What is my lucky number?", "Which number did I tell you?"], "The number is {}."),
    "word": (["The secret word is {}.", "Remember the word {}."], "I will remember the word {}.",
             ["What is the secret word?", "Which word did I tell you?"], "The word is {}."),
}


def memory(g):
    draw = {"name": g.name, "colour": lambda: g.choice(COLOURS), "city": g.place, "pet": lambda: g.choice(PETS),
            "food": lambda: g.choice(FOODS), "number": lambda: str(g.randrange(1000)), "word": g.word}
    told = {k: draw[k]() for k in g.sample(list(REMEMBER), g.randrange(1, 4))}
    items = list(told)
    messages = []
    if g.chance(0.3):  # all in one turn
        messages += [user(" ".join(g.choice(REMEMBER[k][0]).format(told[k]) for k in items)), assistant("Good to know!")]
    else:
        for k in items:
            reply = REMEMBER[k][1].format(told[k])
            messages += [user(g.choice(REMEMBER[k][0]).format(told[k])), assistant(reply[0].upper() + reply[1:])]
    for _ in range(g.choice((0, 0, 1, 1, 2))):
        _, q, ans, _ = g.choice([facts, arithmetic, small_talk])(g)
        if not q.startswith(("I am", "My name", "Hi, I", "Hello, my", "I like")):
            messages += [user(q), assistant(ans)]
    for k in g.sample(items, g.randrange(1, len(items) + 1)):
        ans = REMEMBER[k][3].format(told[k])
        messages += [user(g.choice(REMEMBER[k][2])), assistant(ans, f"The user told me: {told[k]}.")]
    if g.chance(0.12, training=0.25):
        k = g.choice([k for k in REMEMBER if k not in told])
        messages += [user(REMEMBER[k][2][0]), assistant("You have not told me that.", "The user did not say it.")]
    return finish(g, "memory", messages)


# ---------------------------------------------------------------- tools

VERBS = """get find search list open close start stop send create delete update check book order play
set add remove show convert translate schedule cancel lock unlock move copy rename print scan measure
count track share save load sort mix paint cook clean charge call invite rate""".split()
OBJECTS = """weather forecast time alarm timer reminder message email note task event meeting song playlist
video photo file folder report invoice ticket flight hotel room table taxi train parcel product price
stock recipe lamp door window heater fan robot printer battery sensor camera user account contact
document page map route""".split()

# parameter: (type, description, how to draw a value)
PARAMETERS = {
    "city": ("string", "Name of the city", lambda g: g.place()),
    "place": ("string", "Where", lambda g: g.place()),
    "person": ("string", "Name of a person", lambda g: g.name()),
    "recipient": ("string", "Who receives it", lambda g: g.name()),
    "owner": ("string", "Who owns it", lambda g: g.name()),
    "title": ("string", "A title", lambda g: " ".join(g.words(g.choice((1, 2))))),
    "query": ("string", "What to look for", lambda g: " ".join(g.words(g.choice((1, 2, 3))))),
    "text": ("string", "The text", lambda g: " ".join(g.words(g.choice((2, 3, 4))))),
    "label": ("string", "A short label", lambda g: g.word()),
    "item": ("string", "The item", lambda g: g.word()),
    "language": ("string", "A language", lambda g: g.choice(LANGUAGES)),
    "day": ("string", "Day of the week", lambda g: g.choice(DAYS)),
    "date": ("string", "Date as YYYY-MM-DD", lambda g: f"20{g.randrange(10, 40)}-{g.randrange(1, 13):02}-{g.randrange(1, 29):02}"),
    "code": ("string", "A code", lambda g: "".join(g.choice("ABCDEFGHKLMNPRSTXZ23456789") for _ in range(g.choice((3, 4, 5))))),
    "count": ("integer", "How many", lambda g: g.randrange(1, 100)),
    "minutes": ("integer", "Number of minutes", lambda g: g.randrange(1, 120)),
    "hour": ("integer", "Hour of the day", lambda g: g.randrange(24)),
    "number": ("integer", "A number", lambda g: g.randrange(1000)),
    "level": ("integer", "A level", lambda g: g.randrange(1, 11)),
    "price": ("number", "Price", lambda g: g.randrange(1, 9999) / 10),
    "weight": ("number", "Weight in kilograms", lambda g: g.randrange(1, 999) / 10),
    "urgent": ("boolean", "Whether it is urgent", None),
    "repeat": ("boolean", "Whether to repeat", None),
    "silent": ("boolean", "Whether to be silent", None),
    "public": ("boolean", "Whether all can see it", None),
    "unit": (["celsius", "fahrenheit"], "Unit", None),
    "size": (["small", "medium", "large"], "Size", None),
    "mode": (["auto", "manual", "eco", "turbo"], "Mode", None),
    "priority": (["low", "normal", "high"], "Priority", None),
    "format": (["pdf", "csv", "txt", "html"], "Format", None),
    "colour": (["red", "green", "blue", "white"], "Colour", None),
}


class Tool:
    """A random tool: name, schema, and ways to ask for it."""

    def __init__(self, g, made_up=0.15):
        def part(words):
            return g.pseudo() if g.extra and g.chance(made_up) else g.choice(words)

        self.verb, self.object = g.open(lambda: (part(VERBS), part(OBJECTS)))
        style = g.choice((0, 0, 4, 5, 5, 5)) if g.extra else g.randrange(6)
        self.name = f"{self.verb}_{self.object}" if style < 4 else \
            f"{self.verb}{self.object.capitalize()}" if style == 4 else f"{g.open(g.nonce)}_{g.randrange(100)}"
        self.parameters = g.sample(list(PARAMETERS), g.choices((0, 1, 2, 3, 4), (1, 4, 5, 3, 1))[0])
        self.required = [p for p in self.parameters if g.chance(0.75)]
        self.described = g.chance(0.6, training=0.4)

    def schema(self):
        properties = {}
        for p in self.parameters:
            kind, text, _ = PARAMETERS[p]
            properties[p] = {"type": "string", "enum": kind} if isinstance(kind, list) else {"type": kind}
            if self.described:
                properties[p]["description"] = text
        return {"type": "function", "function": {
            "name": self.name, "description": f"{self.verb.capitalize()} the {self.object}.",
            "parameters": {"type": "object", "properties": properties, "required": self.required}}}

    def arguments(self, g):
        chosen = [p for p in self.parameters if p in self.required or g.chance(0.5)]
        drawn = {}
        for p in chosen:
            kind, _, draw = PARAMETERS[p]
            drawn[p] = draw(g) if draw else g.choice(kind if isinstance(kind, list) else [True, False])
        return drawn

    def phrases(self, g, arguments):
        """The arguments in words, in any order."""
        out = []
        for p, v in g.sample(list(arguments.items()), len(arguments)):
            if isinstance(v, bool):
                said = g.choice([f"{p} {'yes' if v else 'no'}", f"{'' if v else 'not '}{p}", f"{p} {'on' if v else 'off'}"])
            elif p in ("city", "place") and g.chance(0.4):
                said = f"{g.choice(['in', 'for'])} {v}"
            elif p in ("person", "recipient") and g.chance(0.4):
                said = f"{g.choice(['for', 'to'])} {v}"
            elif p in ("day", "date") and g.chance(0.4):
                said = f"on {v}"
            elif p == "minutes" and g.chance(0.4):
                said = f"for {v} minutes"
            elif p == "unit" and g.chance(0.4):
                said = f"in {v}"
            else:
                value = f'"{v}"' if isinstance(v, str) and (" " in v or g.chance(0.15)) else v
                said = g.choice(["{} {}", "{} {}", "{} = {}", "the {} is {}", "{}: {}", "with {} {}"]).format(p, value)
            out.append(said)
        return out

    def ask(self, g, arguments):
        head = g.choice(["{} the {}", "Please {} the {}", "Can you {} the {}", "I want you to {} the {}", "{} {}",
                         "I need to {} the {}", "Could you {} a {}", "Now {} the {}"]).format(self.verb, self.object)
        head = head[0].upper() + head[1:]
        said = self.phrases(g, arguments)
        end = "?" if head.startswith(("Can", "Could")) else "."
        if not said:
            return head + end
        return head + g.choice([" ", ", ", ": "]) + g.choice([", ", " and ", ", "]).join(said) + end


def call(tool, arguments):
    return {"type": "function", "function": {"name": tool.name, "arguments": arguments}}


def result_of(g):
    """A tool result and the sentence that reports it."""
    kind = g.randrange(5)
    if kind == 0:
        why = g.choice(["not found", "no access", "timeout", "not available", "wrong code"])
        return {"error": why}, f"That did not work: {why}."
    if kind == 1:
        number = g.randrange(1000)
        return {"status": "ok", "id": number}, f"Done. The id is {number}."
    if kind == 2:
        return {"status": g.choice(["ok", "done"])}, "Done."
    keys = g.sample(["temperature", "price", "count", "distance", "sky", "owner", "city", "colour", "minutes", "result", "day"],
                    g.choice((1, 1, 2, 3)))
    draw = {"sky": lambda: g.choice(["clear", "cloudy", "grey", "sunny", "rainy"]), "owner": g.name, "city": g.place,
            "colour": lambda: g.choice(COLOURS), "day": lambda: g.choice(DAYS), "price": lambda: g.randrange(10, 9999) / 10}
    found = {k: draw.get(k, lambda: g.randrange(400))() for k in keys}
    said = listing([f"the {k} is {v}" for k, v in found.items()])
    return found, said[0].upper() + said[1:] + "."


def tool_request(g, tools, answered):
    """One request and what follows: (task, messages, check)."""
    kind = g.random()
    not_needed, none_fits = (0.15, 0.4) if g.extra else (0.12, 0.22)
    if kind < not_needed:  # a plain question although tools are there
        task, q, ans, thought = g.choice([facts, small_talk, arithmetic, text_ops])(g)
        return "tools: none needed", [user(q), assistant(ans, "No tool is needed. " + thought)], CHECKS.get(task)
    if kind < none_fits:  # a request that no tool covers
        near = bool(g.extra) and g.chance(0.1)  # in training it may share the verb or the object with one, not both
        other = Tool(g)
        if near:
            which = g.choice(["verb", "object"])
            setattr(other, which, getattr(g.choice(tools), which))
        while any((other.object == t.object) + (other.verb == t.verb) > near for t in tools) or \
                not g.ok((other.verb, other.object)):
            other = Tool(g)
        thought = f"The user wants to {other.verb} the {other.object}. No tool can do that."
        return "tools: none fits", [user(other.ask(g, other.arguments(g)), [other.object]),
                                    assistant("I do not have a tool for that.", thought)], None
    tool = g.choice(tools)
    arguments = tool.arguments(g)
    calls, text, task, objects = [call(tool, arguments)], tool.ask(g, arguments), "tools: one call", [tool.object]
    if g.chance(0.15, training=0.2):  # two calls at once
        second = g.choice(tools)
        more = second.arguments(g)
        if (second.name, more) != (tool.name, arguments):
            ask = second.ask(g, more)
            text = text.rstrip(".?") + g.choice([". Also ", ", and also ", ". Then "]) + ask[0].lower() + ask[1:]
            calls.append(call(second, more))
            objects.append(second.object)
            task = "tools: two calls"
    thought = f"The user wants to {tool.verb} the {tool.object}. I call {tool.name}."
    messages = [user(text, objects), {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": calls}]
    if not answered:
        return task, messages, "calls"
    results = [result_of(g) for _ in calls]
    messages += [{"role": "tool", "content": json.dumps(r, ensure_ascii=False)} for r, _ in results]
    messages.append(assistant(" ".join(s for _, s in results), "I tell the user what the tool returned."))
    return "tools: result", messages, None


def tool_drill(g):
    """For training: many requests on few tools, often without parameters, to learn which one fits, if any."""
    tools, messages, made_up, bare = [], [], g.choice((0.1, 0.5)), g.chance(0.5)
    for _ in range(g.randrange(1, 5) if bare else g.choice((1, 2, 2, 3))):
        tool = Tool(g, made_up)
        tool.described = False
        if bare:
            tool.parameters = tool.required = []
        if all(tool.object != t.object for t in tools):
            tools.append(tool)
    for _ in range(g.randrange(4, 9)):
        tool = g.choice(tools) if g.chance(0.5 if bare else 0.8) else Tool(g, made_up)
        fits = tool in tools
        if not fits and any(tool.object == t.object or tool.verb == t.verb for t in tools):
            continue
        arguments = {} if bare else tool.arguments(g)
        thought = f"The user wants to {tool.verb} the {tool.object}. "
        messages += [user(tool.ask(g, arguments), [tool.object]), {
            "role": "assistant", "content": "", "reasoning_content": thought + f"I call {tool.name}.",
            "tool_calls": [call(tool, arguments)]} if fits else
            assistant("I do not have a tool for that.", thought + "No tool can do that.")]
    if not messages:
        return tool_drill(g)
    thinking = g.chance(0.3)
    return finish(g, "tools: drill", messages[-2:] if thinking else messages, thinking, [t.schema() for t in tools])


def tool_use(g):
    if g.extra and g.chance(0.55):
        return tool_drill(g)
    tools = []
    for _ in range(g.choices((1, 2, 3, 4), (4, 4, 2, 1))[0]):
        tool = Tool(g)
        if all((tool.verb, tool.object) != (t.verb, t.object) and tool.name != t.name for t in tools):
            tools.append(tool)
    messages = [{"role": "system", "content": g.choice(PLAIN_SYSTEM)}] if g.chance(0.15) else []
    for _ in range(g.choice((0, 1, 2, 3, 4) if g.extra else (0, 0, 1, 2)) if len(tools) < 3 else 0):
        messages += tool_request(g, tools, answered=True)[1]
    task, last, check = tool_request(g, tools, answered=g.chance(0.4))
    return finish(g, task, messages + last, tools=[t.schema() for t in tools], check=check,
                  thinking=False if g.extra and len(messages) > 5 else None)


KINDS = [(plain, 66, 68), (obey, 9, 10), (memory, 8, 7), (tool_use, 23, 32)]


def conversation(g):
    return draw_from(g, KINDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--split", choices=("train", "test"), default="train")
    parser.add_argument("--task", default="", help="only conversations whose task starts with this")
    args = parser.parse_args()
    g = Source(args.seed, args.split)
    shown = 0
    while shown < args.count:
        c = conversation(g)
        if c["task"].startswith(args.task):
            print(json.dumps(c, ensure_ascii=False))
            shown += 1


if __name__ == "__main__":
    main()
