"""The words of the world. German nouns carry gender and plural, verbs their participle."""

from typing import NamedTuple

# fmt: off
NAMES = (
    "Anna", "Bruno", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas",
    "Karin", "Lukas", "Maria", "Nils", "Olga", "Paul", "Rosa", "Simon", "Tina", "Uwe", "Vera",
    "Walter", "Yara", "Zeno", "Amir", "Bella", "Carlos", "Dora", "Erik", "Fatima", "Georg",
    "Hanna", "Ivan", "Julia", "Kofi", "Lena", "Marco", "Nadia", "Oskar", "Petra", "Quinn",
    "Ravi", "Sofia", "Tomas", "Ursula", "Viktor", "Wanda", "Xenia", "Yusuf", "Zoe",
)
# fmt: on
# fmt: off
TOWNS = (
    "Arlen", "Brenau", "Castow", "Dorfen", "Elmstad", "Farnau", "Glenmoor", "Harwick", "Istra",
    "Jarrow", "Kelden", "Lindau", "Marbach", "Norwick", "Oldenau", "Penrith", "Quarley",
    "Rosenau", "Selby", "Tarnow", "Ulmen", "Velden", "Weston", "Yarm", "Zelten", "Bergau",
    "Corwen", "Dunmore", "Eschen", "Fenwick",
)
# fmt: on
DAYS = {
    "Monday": "Montag",
    "Tuesday": "Dienstag",
    "Wednesday": "Mittwoch",
    "Thursday": "Donnerstag",
    "Friday": "Freitag",
    "Saturday": "Samstag",
    "Sunday": "Sonntag",
}
NUMBERS = {
    "two": "zwei",
    "three": "drei",
    "four": "vier",
    "five": "fünf",
    "six": "sechs",
    "seven": "sieben",
    "eight": "acht",
    "nine": "neun",
    "ten": "zehn",
    "twelve": "zwölf",
}
COLOURS = {
    "red": "rote",
    "green": "grüne",
    "blue": "blaue",
    "white": "weiße",
    "black": "schwarze",
    "old": "alte",
    "new": "neue",
    "small": "kleine",
    "large": "große",
    "heavy": "schwere",
    "cheap": "billige",
    "fine": "feine",
}
GOODS = {
    "apple": ("apples", "Äpfel"),
    "book": ("books", "Bücher"),
    "chair": ("chairs", "Stühle"),
    "lamp": ("lamps", "Lampen"),
    "coat": ("coats", "Mäntel"),
    "clock": ("clocks", "Uhren"),
    "boat": ("boats", "Boote"),
    "basket": ("baskets", "Körbe"),
    "bottle": ("bottles", "Flaschen"),
    "carpet": ("carpets", "Teppiche"),
    "drum": ("drums", "Trommeln"),
    "flower": ("flowers", "Blumen"),
    "hat": ("hats", "Hüte"),
    "key": ("keys", "Schlüssel"),
    "letter": ("letters", "Briefe"),
    "mirror": ("mirrors", "Spiegel"),
    "painting": ("paintings", "Gemälde"),
    "ring": ("rings", "Ringe"),
    "shirt": ("shirts", "Hemden"),
    "table": ("tables", "Tische"),
}
ANIMALS = {
    "cow": ("cows", "Kühe"),
    "dog": ("dogs", "Hunde"),
    "goat": ("goats", "Ziegen"),
    "hen": ("hens", "Hühner"),
    "horse": ("horses", "Pferde"),
    "sheep": ("sheep", "Schafe"),
    "cat": ("cats", "Katzen"),
    "duck": ("ducks", "Enten"),
}
JOBS = {
    "teacher": "Lehrer",
    "farmer": "Bauer",
    "baker": "Bäcker",
    "doctor": "Arzt",
    "painter": "Maler",
    "smith": "Schmied",
    "singer": "Sänger",
    "judge": "Richter",
    "sailor": "Seemann",
    "gardener": "Gärtner",
}
PLACES = {
    "market": ("at the market", "auf dem Markt"),
    "harbour": ("at the harbour", "am Hafen"),
    "garden": ("in the garden", "im Garten"),
    "school": ("in the school", "in der Schule"),
    "bridge": ("near the bridge", "bei der Brücke"),
    "church": ("behind the church", "hinter der Kirche"),
    "mill": ("at the mill", "an der Mühle"),
    "river": ("by the river", "am Fluss"),
}
BUILDINGS = ("bakery", "library", "museum", "theatre", "workshop", "tavern", "clinic", "bookshop")
FEELINGS = ("happy", "proud", "tired", "calm", "worried", "surprised", "grateful", "curious")
WEATHER = ("sunny", "rainy", "windy", "cold", "warm", "foggy", "quiet", "bright")
OPPOSITES = {
    "hot": "cold",
    "old": "new",
    "large": "small",
    "heavy": "light",
    "early": "late",
    "happy": "sad",
    "open": "closed",
    "fast": "slow",
    "dark": "bright",
    "cheap": "expensive",
    "full": "empty",
    "near": "far",
}


class Verb(NamedTuple):
    """One action: English pasts to choose from, present, base form, German participle."""

    pasts: tuple[str, ...]
    present: str
    base: str
    participle: str


VERBS = (
    Verb(("bought", "purchased"), "buys", "buy", "gekauft"),
    Verb(("sold",), "sells", "sell", "verkauft"),
    Verb(("found", "discovered"), "finds", "find", "gefunden"),
    Verb(("lost",), "loses", "lose", "verloren"),
    Verb(("brought", "carried"), "brings", "bring", "gebracht"),
    Verb(("painted",), "paints", "paint", "gemalt"),
    Verb(("saw", "noticed"), "sees", "see", "gesehen"),
    Verb(("counted",), "counts", "count", "gezählt"),
    Verb(("hid", "concealed"), "hides", "hide", "versteckt"),
    Verb(("collected", "gathered"), "collects", "collect", "gesammelt"),
)
