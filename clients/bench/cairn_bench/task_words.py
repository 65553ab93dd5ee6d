"""The words that generated documents are made of; the model that ships with Cairn was trained on texts of them.

The order counts: what is drawn by number must stay what it is, or a seed gives other documents.
"""

NAMES = ("Mira Tom Anna Paul Nina Omar Lena Hugo Clara Felix Ruth Ivan Sara Leo Emma Karl Dora Max Eva Ben "
         "Julia Otto Mona Finn Alma Rosa Hans Ida Noah Vera Adam Greta").split()
COLOURS = "red blue green white black yellow brown grey golden silver".split()
# Fit people, weather and things.
MOODS = "old new small large wooden stone iron round".split()
STATES = "narrow tall broken heavy quiet bright dark cold warm dusty hidden empty soft strange".split()
ADJECTIVES = COLOURS + MOODS + STATES
OBJECTS = ("door box lamp drum flute rope clock map coat ring cup book bell key knife chair mirror basket hammer "
           "candle letter bottle blanket ladder wheel kettle lantern needle violin camera painting table boat wagon "
           "hat shoe plate spoon brush saddle").split()
WORDS = ("river tulip apple tiger cloud pepper marble copper rabbit planet thunder velvet orange falcon ginger "
         "harvest island jacket kingdom lemon meadow nickel olive pearl quartz ribbon salmon timber walnut winter "
         "zebra cactus desert engine feather glacier honey igloo").split()
PLACES = ("cellar attic kitchen garden library tower barn stable harbor market school church station mill workshop "
          "tunnel forest valley bridge castle museum bakery office cabin").split()
PEOPLE = "farmer sailor teacher doctor baker soldier painter driver child guard".split()
TIMES = ("In the morning", "At night", "After the storm", "Before dinner", "On Monday", "On Friday", "Later",
         "That evening", "In the summer", "At noon", "After lunch", "Once again", "A week later", "For a while")
DAYS = "Monday Tuesday Friday Sunday".split()
WEATHER = ("wind", "water", "air", "road", "house")
GROUND = ("sky", "sun", "snow", "rain", "grass")
SOUNDS = ("loud", "quiet", "strange")
SYLLABLES = "ba be bo da de do ka ke ko la le lo ma me mo na ne no ra re ro sa se so ta te to va ve vo zu fi".split()
