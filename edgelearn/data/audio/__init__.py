"""Sound: recordings in folders by word, Speech Commands, words synthesised by the program itself; features of them.

A clip is float32 samples in -1..1, one channel, at RATE samples a second unless said otherwise.
"""

RATE = 16_000  # samples a second
